"""A host that goes for the process itself: costly configurations, mutated or half messages, silence, old sockets.

| attack | defence |
|---|---|
| a short configuration that needs gigabytes and minutes | what an epoch may need is bounded before it is allocated |
| any byte of any message is changed | an answer or a refusal that names what is wrong; never an internal error |
| half a message, or a byte a minute | one message has one time in which it comes |
| silence, with another host waiting | the silent one gives way to one that has something to say; a probe ends nothing |
| a killed process leaves its socket behind | a socket at which nobody listens is replaced |
| code that runs inside the process opens connections or starts programs | the kernel refuses, for every thread |
"""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.choices import ReleaseForm
from secagg.contract import IndexSegment, Layout, RingSegment
from secagg.contract.codewords import CodewordTable
from secagg.errors import InternalError, InvalidParameters, MalformedMessage, Reason
from secagg.privacy.kinds import NoiseKind
from secagg.protocols.enclave.remote_enclave import RemoteEnclave
from secagg.protocols.enclave.trusted.configuration import EnclaveConfiguration, Noise
from secagg.protocols.enclave.trusted.hosts import serve
from secagg.protocols.enclave.trusted.service import SIMULATED, EnclaveService
from secagg.session.frames import decode_refusal, listening, receive_frame, send_frame
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.wire import MessageKind, Writer, message_kind
from tests.harness.enclave_buffers import EnclaveSetup, InsecureEnclaveSession, model_digest, start_of, started_by

if sys.platform == "win32":
    pytest.skip("there are no Unix sockets", allow_module_level=True)

import socket

ANSWERED_IN = 30
SESSION = InsecureEnclaveSession(EnclaveSetup())
CONFIGURATION = SESSION.configuration
START = start_of(CONFIGURATION)
MEBIBYTE = 1 << 20


def simulated(binding: bytes) -> tuple[str, bytes]:
    return SIMULATED, binding


def service(**changes: Any) -> EnclaveService:
    fields: dict[str, Any] = {"coins": InsecureSeededCoins(b"coins"), "quote": simulated}
    return EnclaveService(**(fields | changes))


def opening(version: int) -> bytes:
    return Writer(MessageKind.OPEN_BUFFER).integer(version, 8).fixed(model_digest(version), 32).finish()


# --- What a configuration may cost ------------------------------------------------------------------------------------


def configured(layout: Layout, **changes: Any) -> EnclaveConfiguration:
    chosen: dict[str, Any] = {"form": ReleaseForm.HISTOGRAM, "tables": (), "maximum_cohort": 1 << 20}
    return replace(CONFIGURATION, layout=layout, **(chosen | changes))


COSTLY = {
    "many counters": configured(Layout((IndexSegment(1 << 16, 1 << 20),))),
    "all counters": configured(Layout((IndexSegment(1 << 16, 1 << 28),))),
    "a long ring": configured(Layout((RingSegment(64, 1 << 40),))),
    "many long rings": configured(Layout((RingSegment(20, 1 << 28),) * 50)),
    "a table for many blocks": configured(
        Layout((IndexSegment(2, 1 << 32),)),
        form=ReleaseForm.DECODED_SUM,
        tables=((CodewordTable(1 << 32, np.array([[0], [1]], dtype=np.int64)),),),
    ),
    "long noise": configured(
        Layout((RingSegment(64, 1 << 34),)),
        noise=Noise(kind=NoiseKind.DISCRETE_GAUSSIAN, variances=(Fraction(1),), l2_bounds=(9,), releases_per_client=1),
    ),
}


@pytest.mark.parametrize("name", COSTLY)
def test_a_costly_configuration_is_refused_before_anything_is_allocated(name: str) -> None:
    request = start_of(COSTLY[name])
    assert len(request) < 1000
    served = service()
    tracemalloc.start()
    began = time.perf_counter()
    refusal = decode_refusal(served.answer(request))
    took, peak = time.perf_counter() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(refusal, InvalidParameters), refusal
    assert "bytes of memory; the enclave may use" in str(refusal)
    assert peak < MEBIBYTE
    assert took < ANSWERED_IN
    assert "no epoch is running" in str(decode_refusal(served.answer(opening(1))))


def test_an_enclave_takes_what_fits_its_memory_and_needs_no_more_than_it_was_told() -> None:
    configuration = configured(Layout((IndexSegment(256, 1 << 10), RingSegment(20, 1 << 18))), maximum_cohort=6)
    least = configuration.memory_bytes
    request = start_of(configuration)
    assert message_kind(service(memory_bytes=least - 1).answer(request)) is MessageKind.REFUSAL
    assert message_kind(service(memory_bytes=least).answer(request)) is MessageKind.ATTESTED_OFFER
    session = InsecureEnclaveSession(EnclaveSetup(layout=configuration.layout, form=ReleaseForm.HISTOGRAM))
    uploads = [session.seal(number).sealed.encode() for number in (1, 2, 3)]
    enclave = session.enclave
    tracemalloc.start()
    enclave.open_buffer(0, model_digest(0))
    for upload in uploads:
        enclave.receive(upload)
    enclave.release()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < session.configuration.memory_bytes + MEBIBYTE


@pytest.mark.parametrize("count", [(1 << 16) + 1, (1 << 32) - 1])
def test_more_parts_than_a_configuration_has_are_refused_before_one_is_read(count: int) -> None:
    place = 7 + 1 + 4 + len(CONFIGURATION.encode())
    for start in (place, place + 4):
        with pytest.raises(MalformedMessage) as caught:
            started_by(START[:start] + count.to_bytes(4, "big") + START[start + 4 :])
        assert caught.value.reason is Reason.LENGTH_OVER_LIMIT


# --- Mutated messages -------------------------------------------------------------------------------------------------

SETUPS = [
    EnclaveSetup(),
    EnclaveSetup(form=ReleaseForm.HISTOGRAM, oldest=1),
    EnclaveSetup(noise_multiplier=Fraction(1), l2_bounds=(100, 100), releases_per_client=3),
]
STARTS = [start_of(InsecureEnclaveSession(setup).configuration) for setup in SETUPS]
MESSAGES: list[Callable[[bytes], bytes]] = [
    lambda _: opening(2),
    lambda upload: upload,
    lambda _: Writer(MessageKind.RELEASE_BUFFER).finish(),
    lambda _: Writer(MessageKind.GIVE_UP_BUFFER).finish(),
    lambda _: Writer(MessageKind.DESTROY_ENCLAVE).finish(),
]
MUTATIONS = st.lists(
    st.tuples(st.integers(0, 1 << 20), st.one_of(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]), st.integers(0, 255))),
    min_size=1,
    max_size=4,
)


def mutated(message: bytes, changes: list[tuple[int, int]], cut: int, tail: bytes) -> bytes:
    altered = bytearray(message)
    for place, value in changes:
        # The header stays as it is for most: a message of no kind is refused at once.
        altered[7 + place % max(1, len(altered) - 7) if place % 16 and len(altered) > 7 else place % len(altered)] = (
            value
        )
    return bytes(altered[: len(altered) - cut % 8]) + tail


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(STARTS), MUTATIONS, st.sampled_from([0] * 12 + [1, 7]), st.sampled_from([b""] * 12 + [b"\0"]))
def test_a_mutated_configuration_starts_an_epoch_or_is_refused_and_costs_nothing(
    start: bytes, changes: list[tuple[int, int]], cut: int, tail: bytes
) -> None:
    served = service(memory_bytes=64 * MEBIBYTE)
    began = time.perf_counter()
    answer = served.answer(mutated(start, changes, cut, tail))
    if message_kind(answer) is MessageKind.REFUSAL:
        assert not isinstance(decode_refusal(answer), InternalError), str(decode_refusal(answer))
    else:
        for request in (opening(1), Writer(MessageKind.GIVE_UP_BUFFER).finish()):
            done = served.answer(request)
            assert message_kind(done) is MessageKind.ENCLAVE_DONE
    assert time.perf_counter() - began < ANSWERED_IN
    served.destroy()


@settings(max_examples=120, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(MESSAGES), MUTATIONS, st.sampled_from([0] * 6 + [3]), st.sampled_from([b"", b"\0"])),
        min_size=1,
        max_size=4,
    )
)
def test_mutated_messages_never_meet_an_error_that_nobody_has_thought_of(
    steps: list[tuple[Callable[[bytes], bytes], list[tuple[int, int]], int, bytes]],
) -> None:
    served = service()
    served.answer(START)
    served.answer(opening(1))
    upload = UPLOAD
    for make, changes, cut, tail in steps:
        answer = served.answer(mutated(make(upload), changes, cut, tail))
        if message_kind(answer) is MessageKind.REFUSAL:
            assert not isinstance(decode_refusal(answer), InternalError), str(decode_refusal(answer))
    served.destroy()


SESSION.host.open_buffer(1, model_digest(1))
UPLOAD = SESSION.seal(1, version=1).sealed.encode()


def test_a_machine_with_less_memory_than_an_epoch_may_use_is_told_apart() -> None:
    def out_of_memory(binding: bytes) -> tuple[str, bytes]:
        raise MemoryError(binding)

    assert "ran out of memory" in str(decode_refusal(service(quote=out_of_memory).answer(START)))


# --- The connection ---------------------------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Path]:
    """Serve with little patience in a thread of this process, until the test ends."""
    path, ready = tmp_path / "s", Event()

    def run() -> None:
        with listening(path) as listener:
            ready.set()
            coins = InsecureSeededCoins(b"coins")
            serve(listener, coins=coins, quote=simulated, frame_seconds=0.5, silence_seconds=0.2)

    Thread(target=run, daemon=True).start()
    assert ready.wait(ANSWERED_IN)
    yield path
    path.unlink(missing_ok=True)


def connected(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(ANSWERED_IN)
    made.connect(str(path))
    return made


def is_served(host: socket.socket, request: bytes = START) -> bool:
    try:
        send_frame(host, request)
        return message_kind(receive_frame(host, MEBIBYTE)) is not MessageKind.REFUSAL
    except OSError:
        return False


@pytest.mark.parametrize("sent", [b"\0\0\0", len(START).to_bytes(8, "big") + START[:-1]])
def test_half_a_message_blocks_nobody(served: Path, sent: bytes) -> None:
    with connected(served) as slow:
        slow.sendall(sent)
        time.sleep(0.1)
        with connected(served) as following:
            assert slow.recv(1) == b"", "let go"
            assert is_served(following)


def test_a_message_that_drips_has_one_time_in_which_it_comes(served: Path) -> None:
    began, message = time.monotonic(), len(START).to_bytes(8, "big") + START
    with connected(served) as slow:

        def drip() -> None:
            for byte in message:
                slow.sendall(bytes([byte]))
                time.sleep(0.05)

        with pytest.raises(OSError, match=r"."):
            drip()
        assert time.monotonic() - began < len(message) * 0.05
    with connected(served) as following:
        assert is_served(following)


def test_a_host_that_reads_no_answer_is_let_go(served: Path) -> None:
    with connected(served) as deaf:
        deaf.settimeout(0.2)
        question = (1).to_bytes(8, "big") + b"?"
        with suppress(TimeoutError):
            while True:
                deaf.sendall(question * 1000)
        time.sleep(0.6)
        with connected(served) as following:
            assert is_served(following)


def test_a_silent_host_gives_way_to_one_that_speaks_and_to_no_probe(served: Path) -> None:
    with connected(served) as silent:
        assert is_served(silent)
        time.sleep(0.3)
        connected(served).close()
        time.sleep(0.1)
        assert is_served(silent, opening(1)), "a probe ends no epoch"
        time.sleep(0.3)
        with connected(served) as newcomer:
            assert is_served(newcomer)
            assert silent.recv(1) == b"", "its epoch has ended"
            assert is_served(newcomer, opening(1))


# --- The program ------------------------------------------------------------------------------------------------------

Program = subprocess.Popen[str]


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[[], tuple[Program, Path, str]]]:
    started = list[Program]()

    def start() -> tuple[Program, Path, str]:
        command = [sys.executable, "-m", "secagg.protocols.enclave.machine"]
        command += ["--listen", f"unix:{tmp_path / 's'}", "--evidence", "simulated"]
        process = subprocess.Popen(  # noqa: S603 -- this interpreter
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        return process, tmp_path / "s", process.stdout.readline()

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=ANSWERED_IN)


def test_a_killed_program_leaves_a_socket_that_the_next_one_replaces(
    program: Callable[[], tuple[Program, Path, str]],
) -> None:
    first, path, line = program()
    assert f"ready at unix:{path}" in line
    first.send_signal(signal.SIGKILL)
    first.wait(ANSWERED_IN)
    assert path.is_socket()
    _, _, line = program()
    assert f"ready at unix:{path}" in line
    with RemoteEnclave(path, timeout=ANSWERED_IN) as remote:
        remote.start(CONFIGURATION)
    third, _, line = program()
    assert line == ""
    assert third.wait(ANSWERED_IN) == 2, "somebody listens there"
    with RemoteEnclave(path, timeout=ANSWERED_IN) as remote:
        remote.start(CONFIGURATION)


HARDENED = """
import ctypes, errno, os, platform, socket, subprocess, sys, threading
from secagg.protocols.enclave.trusted.protection import give_up_privileges
import numpy
left, right = socket.socketpair()
without = give_up_privileges(1 << 20)
found = []
def attempt(name, call):
    try:
        call()
    except (OSError, RuntimeError) as error:
        found.append(name)
def each():
    attempt("socket", socket.socket)
    attempt("fork", lambda: os.fork() or os._exit(0))
    attempt("program", lambda: os.execv("/bin/true", ["true"]))
each()
inner = threading.Thread(target=each)
inner.start()
inner.join()
libc = ctypes.CDLL(None, use_errno=True)
IO_URING_SETUP = 425
if libc.syscall(IO_URING_SETUP, 0, 0) == -1 and ctypes.get_errno() == errno.EPERM:
    found.append("io_uring")
X32_GETPID = (1 << 30) + 39
if platform.machine() != "x86_64" or (libc.syscall(X32_GETPID) == -1 and ctypes.get_errno() == errno.EPERM):
    found.append("x32")
left.send(b"still")
assert right.recv(9) == b"still"
print(*found, "|", *without)
"""


def test_code_inside_the_process_starts_nothing_and_connects_to_nobody(repository: Path) -> None:
    done = subprocess.run(  # noqa: S603 -- our own interpreter, on our own module
        [sys.executable, "-c", HARDENED],
        cwd=repository,
        capture_output=True,
        text=True,
        check=True,
        timeout=ANSWERED_IN,
    )
    found, _, without = done.stdout.strip().partition("|")
    if sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64") and "open connections" not in without:
        assert found.split() == [*["socket", "fork", "program"] * 2, "io_uring", "x32"]
    else:
        # What cannot be had is said, and nothing is claimed.
        assert "start programs and open connections" in without or "Linux" in without


DUMPABLE = """
import ctypes
from secagg.protocols.enclave.trusted import protection
protection.allow_only_needed_calls = lambda **_: True
protection.give_up_privileges(1 << 20)
PR_GET_DUMPABLE = 3
print(ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_others_of_its_user_may_not_look_into_it(repository: Path) -> None:
    command = [sys.executable, "-c", DUMPABLE]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True, timeout=ANSWERED_IN)  # noqa: S603 -- our own interpreter
    assert done.stdout == "0\n"


def test_what_the_kernel_says_of_the_program(program: Callable[[], tuple[Program, Path, str]]) -> None:
    process, _, line = program()
    status = Path(f"/proc/{process.pid}/status")
    if not status.exists():
        pytest.skip("there is no /proc")
    fields = dict(entry.split(":", 1) for entry in status.read_text().splitlines())
    assert ("it may gain privileges" in line) is not (fields["NoNewPrivs"].strip() == "1")
    assert ("start programs" in line) is not (fields["Seccomp"].strip() == "2")
    assert ("written to swap" in line) is (int(fields["VmLck"].split()[0]) == 0)
