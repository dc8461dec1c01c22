"""The filter of the enclave's process: what is refused, and that the table says what it allows."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from secagg.protocols.enclave.trusted.protection import CALLS, Calls, filter_of

LOAD, EQUAL, HAS_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, REFUSE, NO_SUCH_CALL = 0x7FFF0000, 0x00050001, 0x00050026


def judged(
    calls: Calls,
    number: int,
    arguments: tuple[int, ...] = (),
    architecture: int | None = None,
    device_request: int | None = None,
) -> int:
    """Run the filter as a kernel does, on a call's number and arguments."""
    lines, at, loaded = list(filter_of(calls, device_request=device_request)), 0, 0
    places = {0: number, 4: architecture or calls.architecture}
    places |= {16 + 8 * index: value & 0xFFFF_FFFF for index, value in enumerate((*arguments, 0, 0, 0, 0, 0, 0)[:6])}
    while True:
        code, if_true, if_false, value = lines[at]
        at += 1
        match code:
            case 0x20:
                loaded = places[value]
            case 0x15:
                at += if_true if loaded == value else if_false
            case 0x45:
                at += if_true if loaded & value else if_false
            case _:
                return value


@pytest.mark.parametrize("calls", CALLS.values(), ids=CALLS)
def test_everything_that_is_not_in_the_table_is_refused(calls: Calls) -> None:
    named = {*calls.allowed.values(), calls.clone, calls.ioctl, *calls.with_protection, 435}
    for number in range(600):
        if number not in named:
            assert judged(calls, number) == REFUSE, number
    for number in calls.allowed.values():
        assert judged(calls, number) == ALLOW
        assert judged(calls, number, architecture=1) == REFUSE
        # x32 has the numbers of x86-64 above 2^30.
        assert judged(calls, number | 1 << 30) == REFUSE
    assert judged(calls, 435) == NO_SUCH_CALL


@pytest.mark.parametrize("calls", CALLS.values(), ids=CALLS)
def test_calls_that_depend_on_an_argument(calls: Calls) -> None:
    thread, fork = 0x003D_0F00, 17
    assert judged(calls, calls.clone, (thread,)) == ALLOW
    assert judged(calls, calls.clone, (fork,)) == REFUSE
    for namespace in (0x20000, *(1 << bit for bit in range(25, 31))):
        assert judged(calls, calls.clone, (thread | namespace,)) == REFUSE
    assert judged(calls, calls.ioctl, (3, 0x5421)) == ALLOW
    assert judged(calls, calls.ioctl, (3, 0x5412)) == REFUSE
    for number in calls.with_protection:
        for protection, verdict in ((0, ALLOW), (1, ALLOW), (3, ALLOW), (5, REFUSE), (7, REFUSE)):
            assert judged(calls, number, (0, 4096, protection)) == verdict


@pytest.mark.parametrize("calls", CALLS.values(), ids=CALLS)
def test_a_source_of_evidence_opens_files_and_asks_its_device(calls: Calls) -> None:
    named = {*calls.allowed.values(), *calls.of_driver.values(), calls.clone, calls.ioctl, *calls.with_protection, 435}
    for number in range(600):
        if number not in named:
            assert judged(calls, number, device_request=7) == REFUSE, number
    for number in calls.of_driver.values():
        assert judged(calls, number, device_request=7) == ALLOW
        assert judged(calls, number) == REFUSE
    assert judged(calls, calls.ioctl, (3, 7), device_request=7) == ALLOW
    assert judged(calls, calls.ioctl, (3, 0x5421), device_request=7) == REFUSE


@pytest.mark.parametrize("name", ["socket", "connect", "openat", "execve", "io_uring_setup", "fork", "bpf", "ptrace"])
def test_the_tables_name_nothing_that_reaches_out(name: str) -> None:
    assert all(name not in calls.allowed for calls in CALLS.values())


TRIED = {
    "openat": (257, -100, b"/etc/passwd", 0, 0),
    "socket": (41, 1, 1, 0),
    "io_uring_setup": (425, 8, bytes(256)),
    "io_uring_enter": (426, 3, 1, 0, 0),
    "execve": (59, b"/bin/true", 0, 0),
    "fork": (57,),
    "bpf": (321, 0, 0, 0),
    "mmap of code": (9, 0, 4096, 5, 0x22, -1, 0),
    "ioctl TIOCSTI": (16, 0, 0x5412, b"x"),
    "setsid": (112,),
    "thread in a network of its own": (56, 0x403D_0F00, 0, 0, 0, 0),
    "fork by clone": (56, 17, 0, 0, 0, 0),
    "mprotect of code": (10, 0, 4096, 7),
    "pkey_mprotect": (329, 0, 4096, 4, -1),
    "shmat of code": (30, 0, 0, 0o100000),
    "memfd_create": (319, b"x", 0),
    "ptrace": (101, 0, 0, 0, 0),
    "process_vm_readv": (310, 1, 0, 0, 0, 0, 0),
    "prctl": (157, 4, 1, 0, 0, 0),
    "personality": (135, 0x0040_0000),
    "kill": (62, 0, 0),
    "tgkill of another process": (234, os.getpid(), os.getpid(), 0),
    "getpid of x32": (1 << 30 | 39,),
    "socketpair": (53, 1, 1, 0, bytes(8)),
    "userfaultfd": (323, 0),
    "keyctl": (250, 0, -3, 0),
    "seccomp": (317, 1, 0, 0),
}
PROGRAM = f"""
import ctypes
from secagg.protocols.enclave.trusted.protection import give_up_privileges
libc = ctypes.CDLL(None, use_errno=True)
assert not [each for each in give_up_privileges(1 << 20) if "connections" in each]
for name, call in {TRIED!r}.items():
    ctypes.set_errno(0)
    print(name, libc.syscall(*call), ctypes.get_errno(), sep="|", flush=True)
"""


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="numbers of x86-64")
def test_the_kernel_refuses_what_reaches_out(repository: Path) -> None:
    ran = subprocess.run(  # noqa: S603 -- this interpreter
        [sys.executable, "-c", PROGRAM], cwd=repository, capture_output=True, text=True, timeout=30, check=False
    )
    assert [line.split("|") for line in ran.stdout.splitlines()] == [[name, "-1", "1"] for name in TRIED], ran.stderr
