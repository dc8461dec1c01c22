"""Sources of evidence: what each asks its driver, what it refuses, and a source in a process of its own."""

from __future__ import annotations

import ctypes
import os
import platform
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from secagg.errors import InvalidParameters
from secagg.protocols.enclave.machine.evidence import (
    MOST_DOCUMENT_BYTES,
    GramineQuote,
    SecurityModule,
    SimulatedSource,
    SourceApart,
    TsmReport,
    source_named,
)

if sys.platform == "win32":
    pytest.skip("an enclave's machine runs Linux", allow_module_level=True)

REPORT = bytes(range(64))
SECONDS = 30


# --- Drivers ----------------------------------------------------------------------------------------------------------


def security_module(device: Path, said: bytes, seen: list[tuple[int, bytes, int]] | None = None) -> SecurityModule:
    """Return a source whose driver answers with these bytes."""

    def ioctl(_file: int, request: int, message: ctypes.Array[ctypes.c_char]) -> int:
        asked, size, answer, room = struct.unpack("<QQQQ", message.raw)
        if seen is not None:
            seen.append((request, ctypes.string_at(asked, size), room))
        ctypes.memmove(answer, said, len(said))
        struct.pack_into("<Q", message, 24, len(said))
        return 0

    device.write_bytes(b"")
    return SecurityModule(str(device), ioctl)


def test_the_security_module_is_asked_in_cbor(tmp_path: Path) -> None:
    seen = list[tuple[int, bytes, int]]()
    for document, head in ((b"d" * 5000, b"\x59\x13\x88"), (b"d" * 200, b"\x58\xc8"), (b"d" * 20, b"\x54")):
        source = security_module(tmp_path / "nsm", b"\xa1\x6bAttestation\xa1\x68document" + head + document, seen)
        assert source.quote(REPORT) == document
    request = b"\xa1\x6bAttestation\xa3\x69user_data\x58\x40" + REPORT + b"\x65nonce\xf6\x6apublic_key\xf6"
    assert seen == [(0xC0200A00, request, 0x3000)] * 3


@pytest.mark.parametrize(
    "said",
    [
        b"\xa1\x65Error\x6finvalid",
        b"",
        b"\xa1\x6bAttestation\xa1\x68document",
        b"\xa1\x6bAttestation\xa1\x68document\x59\xff\xffshort",
        b"\xa1\x6bAttestation\xa1\x68document\x54" + b"d" * 21,
        b"\xa1\x6bAttestation\xa1\x68document\x64text",
    ],
)
def test_what_is_not_a_document_is_refused(tmp_path: Path, said: bytes) -> None:
    with pytest.raises(OSError, match="security module"):
        security_module(tmp_path / "nsm", said).quote(REPORT)


@pytest.fixture
def configfs(tmp_path: Path) -> Path:
    entry = tmp_path / "secagg"
    entry.mkdir()
    for name, content in (("provider", "tdx_guest\n"), ("generation", "0\n"), ("outblob", "report")):
        (entry / name).write_text(content)
    return tmp_path


def counting(source: TsmReport, numbers: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    count: Iterator[int] = iter(numbers)
    monkeypatch.setattr(source, "_generation", lambda: next(count))


@pytest.mark.parametrize(("provider", "form"), [("sev_guest", "sev-snp"), ("tdx_guest", "tdx")])
def test_a_report_is_written_and_read_under_one_generation(
    configfs: Path, monkeypatch: pytest.MonkeyPatch, provider: str, form: str
) -> None:
    (configfs / "secagg" / "provider").write_text(provider)
    source = TsmReport(configfs)
    counting(source, (7, 8, 8), monkeypatch)
    assert (source.format, source.quote(REPORT)) == (form, b"report")
    assert (configfs / "secagg" / "inblob").read_bytes() == REPORT


@pytest.mark.parametrize("counted", [(7, 9, 9), (7, 8, 9), (7, 7, 7)])
def test_a_report_that_another_process_asked_for_is_refused(
    configfs: Path, monkeypatch: pytest.MonkeyPatch, counted: tuple[int, ...]
) -> None:
    source = TsmReport(configfs)
    counting(source, counted, monkeypatch)
    with pytest.raises(OSError, match="another process"):
        source.quote(REPORT)


def test_gramine_takes_a_report_and_gives_a_quote(tmp_path: Path) -> None:
    (tmp_path / "attestation_type").write_text("dcap")
    (tmp_path / "quote").write_bytes(b"quote")
    assert GramineQuote(tmp_path).quote(REPORT) == b"quote"
    assert (tmp_path / "user_report_data").read_bytes() == REPORT
    (tmp_path / "attestation_type").write_text("none")
    with pytest.raises(OSError, match="none"):
        GramineQuote(tmp_path)


@pytest.mark.parametrize("name", ["nsm", "tsm", "gramine", "auto", ""])
def test_nothing_takes_the_place_of_a_source_that_is_missing(name: str) -> None:
    """No test runs where there is one; a fallback to simulated evidence would be silent."""
    with pytest.raises(InvalidParameters):
        source_named(name)
    assert source_named("simulated").quote(REPORT) == REPORT


# --- A source apart ---------------------------------------------------------------------------------------------------


class Told:
    """A source that answers what it was made with."""

    format = "nitro"

    def __init__(self, answer: bytes | Exception | None = None) -> None:
        self.answer = answer

    def quote(self, report: bytes) -> bytes:
        if isinstance(self.answer, Exception):
            raise self.answer
        return report + b"!" if self.answer is None else self.answer


def test_many_threads_get_each_their_own_document() -> None:
    source = SourceApart(Told())
    reports = [bytes([number]) * 64 for number in range(60)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(source.quote, reports)) == [("nitro", report + b"!") for report in reports]
    source.close()


def test_a_refusal_is_an_error_and_the_next_request_is_answered() -> None:
    source = SourceApart(Told(PermissionError("not for you")))
    for _ in range(2):
        with pytest.raises(OSError, match="PermissionError: not for you"):
            source.quote(REPORT)
    source.close()


def test_a_document_that_is_too_long_ends_the_source() -> None:
    """Bytes of an answer that nobody read would be taken for the next one."""
    source = SourceApart(Told(b"d" * (MOST_DOCUMENT_BYTES + 1)))
    for _ in range(2):
        with pytest.raises(OSError, match="source of evidence has ended"):
            source.quote(REPORT)
    with pytest.raises((ProcessLookupError, ChildProcessError)):
        # A process that was ended is waited for, and then there is none.
        os.kill(os.waitpid(source._process, 0)[0], 0)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]


def test_a_source_whose_process_was_killed_says_so() -> None:
    source = SourceApart(SimulatedSource())
    source.close()
    with pytest.raises(OSError, match="source of evidence has ended"):
        source.quote(REPORT)
    assert threading.active_count() >= 1


class Slow:
    """A source whose driver hangs at its second document."""

    format = "nitro"
    asked = 0

    def quote(self, report: bytes) -> bytes:
        self.asked += 1
        if self.asked > 1:
            time.sleep(SECONDS)
        return report


def test_hardware_that_does_not_answer_is_given_up_and_never_asked_again() -> None:
    source, began = SourceApart(Slow(), seconds=0.5), time.monotonic()
    assert source.quote(REPORT) == ("nitro", REPORT)
    with ThreadPoolExecutor(4) as threads:
        for found in [threads.submit(source.quote, REPORT) for _ in range(4)]:
            with pytest.raises(OSError, match="source of evidence has ended"):
                found.result()
    assert time.monotonic() - began < SECONDS / 2


ENDED = """
import os, signal, sys, time
from secagg.protocols.enclave.machine.evidence import SimulatedSource, SourceApart

def end(*_):
    raise SystemExit(0)

for each in (signal.SIGINT, signal.SIGTERM):
    signal.signal(each, end)
source = SourceApart(SimulatedSource())
for each in (signal.SIGINT, signal.SIGTERM):
    os.kill(source._process, each)
time.sleep(0.2)
print(source.quote(bytes(64)) == ("simulated", bytes(64)), flush=True)
signal.raise_signal(signal.SIGTERM)
"""


def test_a_signal_to_all_processes_ends_the_service_and_the_source_with_it(repository: Path) -> None:
    """Its process would otherwise run what the service does at its end: remove sockets, overwrite keys, report."""
    ran = apart_in(repository, ENDED)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("True\n", "", 0)


WITHOUT_PRIVILEGES = """
import ctypes, socket, struct
from secagg.protocols.enclave.machine.evidence import SourceApart

class ReachingOut:
    format = "nitro"
    def quote(self, report):
        socket.socket()
        return report

# As a service that root did not start.
header, none = struct.pack("Ii", 0x20080522, 0), bytes(24)
assert ctypes.CDLL(None).capset(header, none) == 0
source = SourceApart(ReachingOut())
try:
    source.quote(bytes(64))
except OSError as error:
    print(error)
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no filter for this processor")
def test_a_source_has_its_filter_without_root(repository: Path) -> None:
    assert apart_in(repository, WITHOUT_PRIVILEGES).stdout.startswith("PermissionError")


def apart_in(repository: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program that forks its source."""
    return subprocess.run(  # noqa: S603 -- this interpreter
        [sys.executable, "-c", program, *arguments],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


class ReachingOut:
    """A source whose driver was taken over."""

    format = "nitro"

    def quote(self, report: bytes) -> bytes:
        socket.socket()
        return report


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no filter for this processor")
def test_a_source_that_reaches_out_is_refused() -> None:
    source = SourceApart(ReachingOut())
    with pytest.raises(OSError, match="PermissionError"):
        source.quote(REPORT)
    source.close()


FILTERED = """
import sys
from pathlib import Path
from secagg.protocols.enclave.machine.evidence import GramineQuote, SourceApart
from secagg.protocols.enclave.trusted.protection import give_up_privileges
source = GramineQuote(Path(sys.argv[1]))
apart = SourceApart(source)
without = " ".join(give_up_privileges(1 << 20))
assert "open connections" not in without, without
assert apart.quote(bytes(64)) == ("sgx", b"q" * 6000) == apart.quote(bytes(64))
try:
    source.quote(bytes(64))
except PermissionError:
    print("refused here, made there", flush=True)
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no filter for this processor")
def test_a_source_apart_works_behind_the_filter(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "attestation_type").write_text("dcap")
    (tmp_path / "quote").write_bytes(b"q" * 6000)
    ran = apart_in(repository, FILTERED, str(tmp_path))
    assert "refused here, made there" in ran.stdout, ran.stderr
