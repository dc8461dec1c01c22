"""Starts the enclave's service: opens the source of evidence, runs the self-test, listens, drops privileges, serves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from secagg.crypto.entropy import Coins
from secagg.errors import InvalidParameters
from secagg.protocols.enclave.trusted.enclave import DEFAULT_MEMORY_BYTES
from secagg.protocols.enclave.trusted.hosts import serve
from secagg.protocols.enclave.trusted.protection import give_up_privileges
from secagg.protocols.enclave.trusted.service import SIMULATED, Quote

from .evidence import SourceApart, source_named
from .listeners import is_reachable, listening_at
from .self_test import test_itself

_MOST_LINES: Final = 200
_MOST_CHARACTERS: Final = 200


def serve_at(  # noqa: PLR0913 -- the options of an enclave
    address: str,
    *,
    evidence: str,
    coins: Coins,
    threads: int = 1,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    become: Callable[[], None] = lambda: None,
) -> None:
    """Serve hosts until the process is terminated.

    Args:
        address: ``unix:PATH``, ``vsock:PORT`` or ``virtio:NAME``.
        evidence: source of evidence: ``nsm``, ``tsm``, ``gramine`` or ``simulated``.
        become: changes to an unprivileged user; called once everything is open.
    Raises:
        InvalidParameters: the machine lacks the source of evidence, or the address cannot be used; nothing was served.
        InternalError: the self-test failed.
    """
    if threads < 1 or memory_bytes < 1:
        raise InvalidParameters("an enclave needs at least 1 thread and 1 MiB of memory; raise --threads or --memory")
    source = source_named(evidence)
    # SourceApart forks, before this process has any secret. Simulated evidence has no driver and needs no process.
    quote: Quote = (lambda report: (SIMULATED, report)) if evidence == SIMULATED else SourceApart(source).quote
    test_itself(coins)
    with listening_at(address) as listener:
        if not is_reachable(address):
            _say(f"this machine has no vsock device, so that no host can reach {address}; give it vhost-vsock-pci")
        become()
        missing = give_up_privileges(memory_bytes)
        _say(f"ready at {address}. {_vouched(source.format)}{_lacking(missing)}")
        log = BoundedLog(_say)
        serve(listener, coins=coins, quote=quote, threads=threads, memory_bytes=memory_bytes, log=log)


class BoundedLog:
    """Limits the number and length of log lines, so that a host cannot fill a disk or block an unread pipe."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._last, self._rest = say, "", _MOST_LINES

    def __call__(self, line: str) -> None:
        if line == self._last or not self._rest:
            return
        self._last, self._rest = line, self._rest - 1
        cut = "".join(each if each.isprintable() else "?" for each in line[:_MOST_CHARACTERS])
        self._say(cut if self._rest else f"{cut} (later refusals are sent to the host but not logged)")


def _say(sentence: str) -> None:
    print(f"secagg enclave: {sentence}", file=sys.stdout, flush=True)


def _vouched(form: str) -> str:
    if form != SIMULATED:
        return f"Its evidence is {form}."
    return (
        "Its evidence is simulated: no hardware vouches for it, and it protects nobody from the owner of this machine."
    )


def _lacking(missing: list[str]) -> str:
    return f" Missing protections: {'; '.join(missing)}." if missing else ""
