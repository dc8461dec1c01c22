"""The first process of an enclave's machine: what it reads of the command line, and which machine it refuses."""

from __future__ import annotations

import ctypes
import errno
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from secagg.enclave_image.image import PROTECTED
from secagg.enclave_image.nitro import registers
from secagg.errors import InvalidParameters
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.planted import always

if sys.platform != "linux":
    pytest.skip("an enclave's machine runs Linux", allow_module_level=True)

import resource

from secagg.protocols.enclave.machine import boot, listeners


def test_its_words_stand_once_on_the_command_line() -> None:
    line = "console=ttyS0 quiet secagg.listen=virtio:secagg secagg.evidence=nsm secagg.memory=96\n"
    assert boot.told(line) == {"listen": "virtio:secagg", "evidence": "nsm", "memory": "96"}
    with pytest.raises(InvalidParameters, match=r"has secagg\.evidence twice"):
        boot.told(line + "secagg.evidence=simulated")
    for stray in ("secagg.treads=4", "secagg.", 'secagg.evidence"=x'):
        with pytest.raises(InvalidParameters, match="known: acpi, evidence, heartbeat, listen, memory, threads"):
            boot.told(f"quiet {stray}")


def test_no_process_finds_the_memory_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source of evidence is root, and may open files: /proc holds the service's memory as one."""
    texts = {"/proc/cmdline": f"{PROTECTED} secagg.evidence=tsm", "/proc/cpuinfo": "flags\t\t: rdrand\n"}
    mounted, served = list[str](), list[list[str]]()

    def mount(kind: str, place: str, *_: object) -> None:
        del kind
        mounted.append(place)

    def read(path: Path) -> str:
        return texts[str(path)]

    def serve(*_: object, **__: object) -> None:
        served.append(mounted.copy())

    monkeypatch.setattr(boot, "_mount", mount)
    monkeypatch.setattr(boot, "_unmount", mounted.remove)
    monkeypatch.setattr(boot, "_load_drivers", lambda: None)
    monkeypatch.setattr(resource, "setrlimit", always(None))
    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(boot, "serve_at", serve)
    boot.main(InsecureSeededCoins(b"boot"))
    assert served == [["/sys", "/dev", "/sys/kernel/config"]]


def test_a_host_takes_no_protection_off_the_command_line_of_a_nitro_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """It moves the boundary between two sections, which no register covers."""
    line = f"{PROTECTED} secagg.evidence=nsm secagg.listen=vsock:5000"

    def serve(*_: object, **__: object) -> None:
        pytest.fail("served")

    monkeypatch.setattr(boot, "serve_at", serve)
    monkeypatch.setattr(boot, "_mount", always(None))
    monkeypatch.setattr(boot, "_unmount", always(None))
    monkeypatch.setattr(boot, "_load_drivers", lambda: None)
    monkeypatch.setattr(resource, "setrlimit", always(None))
    for cut in range(1, line.index("secagg")):
        moved, rest = line[:cut], line[cut:]
        assert registers(b"kernel" + moved.encode(), rest.encode(), [b"i"]) == registers(
            b"kernel", line.encode(), [b"i"]
        )
        monkeypatch.setattr(Path, "read_text", always(rest))
        with pytest.raises(InvalidParameters, match=r"command line lacks .*; start the image as it was built"):
            boot.main(InsecureSeededCoins(b"boot"))


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5", ""])
def test_numbers_are_numbers(text: str) -> None:
    with pytest.raises(InvalidParameters, match=r"secagg\.memory must be a positive number"):
        boot.number_of({"memory": text}, "memory", 256)
    assert boot.number_of({}, "memory", 256) == 256


@pytest.mark.parametrize("line", ["flags\t\t: fpu rdrand sse", "Features\t: fp rng"])
def test_a_processor_with_a_generator_is_enough(line: str) -> None:
    boot.require_generator(f"model name : x\n{line}\n", "tsm")


def test_randomness_of_the_host_is_refused() -> None:
    processor = "model name : rdrand\nflags\t\t: fpu sse\n"
    with pytest.raises(InvalidParameters, match="the host's randomness cannot be trusted"):
        boot.require_generator(processor, "tsm")
    boot.require_generator(processor, "nsm")


@pytest.mark.parametrize("evidence", ["tsm", "simulated"])
def test_a_security_module_that_any_host_can_show_is_no_generator(
    monkeypatch: pytest.MonkeyPatch, evidence: str
) -> None:
    """QEMU has one for every guest, and its driver is in every image; a host also hides what a processor can do."""
    texts = {"/proc/cmdline": f"{PROTECTED} secagg.evidence={evidence}", "/proc/cpuinfo": "flags\t\t: fpu sse\n"}
    served = list[str]()

    def stands_in(name: str) -> Callable[..., None]:
        def stand_in(*_: object, **__: object) -> None:
            served.append(name)

        return stand_in

    def read(path: Path) -> str:
        return texts[str(path)]

    def is_there(path: Path) -> bool:
        return str(path) == "/dev/nsm"

    for name in ("_mount", "_unmount", "_load_drivers", "serve_at"):
        monkeypatch.setattr(boot, name, stands_in(name))
    monkeypatch.setattr(resource, "setrlimit", always(None))
    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(Path, "exists", is_there)
    with pytest.raises(InvalidParameters, match="the host's randomness cannot be trusted"):
        boot.main(InsecureSeededCoins(b"boot"))
    assert "serve_at" not in served
    texts["/proc/cmdline"] = f"{PROTECTED} secagg.evidence=nsm"
    boot.main(InsecureSeededCoins(b"boot"))
    assert "serve_at" in served


def test_acpi_stays_only_where_the_image_says_so() -> None:
    without = PROTECTED.replace("acpi=off ", "")
    assert boot.require_protected(f"{without} secagg.acpi=1")
    for line in (without, f"{without} secagg.acpi=0", f"{without} x.secagg.acpi=1"):
        with pytest.raises(InvalidParameters, match="lacks acpi=off"):
            boot.require_protected(line)
    with pytest.raises(InvalidParameters, match="lacks lockdown=confidentiality"):
        boot.require_protected(f"{without} secagg.acpi=1".replace("lockdown=confidentiality", ""))


@pytest.mark.parametrize("error", [InvalidParameters("the command line lacks quiet"), OSError(5, "mount /proc")])
def test_a_machine_that_refuses_says_why_in_a_line_and_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    ended = list[int]()

    class Library:
        reboot = ended.append

    def refuse(_: object) -> None:
        raise error

    monkeypatch.setattr(boot, "main", refuse)
    monkeypatch.setattr(ctypes, "CDLL", always(Library))
    boot.run(InsecureSeededCoins(b"boot"))
    (line,) = capsys.readouterr().out.splitlines()
    assert line == f"secagg enclave: does not start: {error}"
    assert ended == [0x01234567]


def test_a_heartbeat_needs_a_parent_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoDevice(socket.socket):
        def connect(self, _: object) -> None:
            raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(socket, "socket", always(NoDevice()))
    with pytest.raises(
        InvalidParameters, match=r"no Nitro parent instance answers at vsock:3:9000 .*without --heartbeat"
    ):
        listeners.send_heartbeat()


@pytest.mark.parametrize(
    ("code", "found"), [(errno.ENODEV, False), (errno.EINPROGRESS, True), (errno.ECONNRESET, True)]
)
def test_a_machine_without_a_device_is_not_reached_at_its_vsock(
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    found: bool,  # noqa: FBT001 -- a row of the table
) -> None:
    class Knocking(socket.socket):
        def connect_ex(self, _: object) -> int:
            return code

    monkeypatch.setattr(socket, "socket", always(Knocking()))
    assert listeners.is_reachable("vsock:5000") is found
    assert listeners.is_reachable("virtio:secagg")


@pytest.mark.parametrize("port", ["70000000000", str(2**32 - 1), "-1", "x", ""])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    with pytest.raises(InvalidParameters, match="the address must be unix"), listeners.listening_at(f"vsock:{port}"):
        pytest.fail("listens")
