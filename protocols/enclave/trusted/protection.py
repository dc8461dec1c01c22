"""Drops privileges of the enclave's process before a host connects: core dumps, swap and most system calls."""

from __future__ import annotations

import ctypes
import platform
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_SET_DUMPABLE: Final = 4
_SET_NO_NEW_PRIVILEGES: Final = 38
_SECCOMP_FILTER: Final = 1
_ALL_THREADS: Final = 1
_LOCK_PRESENT_AND_FUTURE: Final = 3


def give_up_privileges(memory_bytes: int) -> list[str]:
    """Take each protective step, and return a phrase for each one that failed.

    Call it once everything is open and imported: afterwards the process cannot open files or sockets or start programs.
    """
    if sys.platform != "linux":
        return ["no privileges are dropped, which requires Linux"]
    import resource  # noqa: PLC0415 -- missing on Windows

    libc, missing = ctypes.CDLL(None, use_errno=True), list[str]()
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    # With a smaller limit, mlockall would succeed and a later allocation would fail.
    if 0 <= limit < memory_bytes or libc.mlockall(_LOCK_PRESENT_AND_FUTURE):
        missing.append("its memory may be written to swap (raise RLIMIT_MEMLOCK above --memory)")
    return missing + give_up_calls()


def give_up_calls(*, device_request: int | None = None) -> list[str]:
    """Disable core dumps, new privileges and most system calls; return a phrase for each that failed."""
    import resource  # noqa: PLC0415 -- missing on Windows

    libc, missing = ctypes.CDLL(None, use_errno=True), list[str]()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0):
        missing.append("other processes of its user may read its memory")
    # Without this, only root may install a filter.
    if libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        missing.append("it may gain privileges")
    if not allow_only_needed_calls(device_request=device_request):
        missing.append("it may start programs and open connections")
    return missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """System call numbers of an architecture: calls that are allowed, and calls that are restricted by an argument."""

    architecture: int
    seccomp: int
    clone: int
    ioctl: int
    with_protection: tuple[int, int]
    allowed: dict[str, int]
    of_driver: dict[str, int]
    """Additional calls of a source of evidence, which reads a driver's files and its device."""


def _numbers(table: str) -> dict[str, int]:
    return {name: int(number) for name, number in (entry.split() for entry in table.split(", "))}


CALLS: Final[dict[str, Calls]] = {
    "x86_64": Calls(
        architecture=0xC000_003E,
        seccomp=317,
        clone=56,
        ioctl=16,
        with_protection=(9, 10),  # mmap, mprotect
        allowed=_numbers(
            "read 0, write 1, close 3, poll 7, select 23, pselect6 270, accept4 288, "
            "recvfrom 45, sendto 44, getsockname 51, getsockopt 55, shutdown 48, "
            "clock_nanosleep 230, clock_gettime 228, "
            "brk 12, munmap 11, mremap 25, madvise 28, getrandom 318, "
            "futex 202, set_robust_list 273, rseq 334, sched_yield 24, sched_getaffinity 204, "
            "gettid 186, exit 60, "
            "rt_sigaction 13, rt_sigprocmask 14, rt_sigreturn 15, sigaltstack 131, getpid 39, "
            "unlink 87, exit_group 231"
        ),
        of_driver=_numbers("openat 257, fstat 5, newfstatat 262, lseek 8"),
    ),
    "aarch64": Calls(
        architecture=0xC000_00B7,
        seccomp=277,
        clone=220,
        ioctl=29,
        with_protection=(222, 226),
        allowed=_numbers(
            "read 63, write 64, close 57, ppoll 73, pselect6 72, accept4 242, "
            "recvfrom 207, sendto 206, getsockname 204, getsockopt 209, shutdown 210, "
            "clock_nanosleep 115, clock_gettime 113, "
            "brk 214, munmap 215, mremap 216, madvise 233, getrandom 278, "
            "futex 98, set_robust_list 99, rseq 293, sched_yield 124, sched_getaffinity 123, "
            "gettid 178, exit 93, "
            "rt_sigaction 134, rt_sigprocmask 135, rt_sigreturn 139, sigaltstack 132, getpid 172, "
            "unlinkat 35, exit_group 94"
        ),
        of_driver=_numbers("openat 56, fstat 80, newfstatat 79, lseek 62"),
    ),
}
"""Observed with strace in sessions with and without threads, over a Unix socket and a virtio port; the others are for
signals and shutdown."""
_LOAD, _EQUAL, _HAS_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
"""Instructions of a BPF filter. A comparison has two counts: instructions to skip if it is true, and if it is false."""
_ALLOW, _REFUSE, _NO_SUCH_CALL = 0x7FFF_0000, 0x0005_0001, 0x0005_0026
_NUMBER_AT, _ARCHITECTURE_AT, _FIRST_AT, _SECOND_AT, _THIRD_AT = 0, 4, 16, 24, 32
_CLONE3: Final = 435
_NON_BLOCKING: Final = 0x5421
"""FIONBIO, which sets a socket's blocking mode: the only ioctl of the service."""
_EXECUTABLE: Final = 4
_THREAD: Final = 0x0001_0000
"""Flag of clone that creates a thread rather than a process."""
_NAMESPACES: Final = 0x7E02_0000
"""Flags of clone that create a new mount, network or other namespace."""
Line = tuple[int, int, int, int]


def filter_of(calls: Calls, *, device_request: int | None = None) -> Iterator[Line]:
    """Yield the filter's instructions. It refuses every call that is not listed, including those of newer kernels.

    Args:
        device_request: the only ioctl of a source of evidence; None for the service's filter.
    """
    is_driver = device_request is not None
    yield _LOAD, 0, 0, _ARCHITECTURE_AT
    yield _EQUAL, 1, 0, calls.architecture
    yield _RETURN, 0, 0, _REFUSE
    yield _LOAD, 0, 0, _NUMBER_AT
    for number in (*calls.allowed.values(), *(calls.of_driver.values() if is_driver else ())):
        yield from ((_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW))
    # clone3 has its flags in memory, which a filter cannot read. If it is missing, the C library uses clone instead.
    yield from ((_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _NO_SUCH_CALL))
    # Only the lower half of each argument is compared: the kernel uses 32 bits of these.
    yield from _if_argument(
        calls.ioctl, _SECOND_AT, (_EQUAL, 0, 1, _NON_BLOCKING if device_request is None else device_request)
    )
    for number in calls.with_protection:
        yield from _if_argument(number, _THIRD_AT, (_HAS_BIT, 1, 0, _EXECUTABLE))
    yield from ((_EQUAL, 0, 5, calls.clone), (_LOAD, 0, 0, _FIRST_AT), (_HAS_BIT, 2, 0, _NAMESPACES))
    yield from ((_HAS_BIT, 0, 1, _THREAD), (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE))
    yield _RETURN, 0, 0, _REFUSE


def _if_argument(number: int, place: int, condition: Line) -> Iterator[Line]:
    """Allow a call if its argument meets the condition, which skips one instruction otherwise; else refuse it."""
    yield from ((_EQUAL, 0, 4, number), (_LOAD, 0, 0, place), condition)
    yield from ((_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE))


def allow_only_needed_calls(*, device_request: int | None = None) -> bool:
    """Install the filter permanently for all threads; return whether that succeeded."""
    libc, calls = ctypes.CDLL(None, use_errno=True), CALLS.get(platform.machine())
    if calls is None or sys.maxsize < 1 << 32:
        return False
    program = b"".join(struct.pack("=HBBI", *line) for line in filter_of(calls, device_request=device_request))
    instructions = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    return bool(libc.syscall(calls.seccomp, _SECCOMP_FILTER, _ALL_THREADS, described) == 0)
