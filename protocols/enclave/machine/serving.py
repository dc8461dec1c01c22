"""The enclave's service, from its address to its first host: vouch, test itself, listen, give up the rest, serve."""

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


def serve_at(  # noqa: PLR0913 -- what an enclave is started with
    address: str,
    *,
    evidence: str,
    coins: Coins,
    threads: int = 1,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    become: Callable[[], None] = lambda: None,
) -> None:
    """Serve hosts until the process is told to end.

    Args:
        address: ``unix:PATH``, ``vsock:PORT`` or ``virtio:NAME``.
        evidence: the name of its source: ``nsm``, ``tsm``, ``gramine`` or ``simulated``.
        become: gives up the user that drivers wanted, once everything is open.
    Raises:
        InvalidParameters: the machine lacks what was asked for, or the address is taken; nothing was served.
        InternalError: the self-test failed.
    """
    if threads < 1 or memory_bytes < 1:
        raise InvalidParameters("an enclave has at least one thread and one MiB of memory: raise --threads or --memory")
    source = source_named(evidence)
    # Forked before anything is secret. Simulated evidence has no driver.
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
    """Passes on a number of different lines; a host can neither fill a disk nor a pipe that nobody reads."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._last, self._rest = say, "", _MOST_LINES

    def __call__(self, line: str) -> None:
        if line == self._last or not self._rest:
            return
        self._last, self._rest = line, self._rest - 1
        cut = "".join(each if each.isprintable() else "?" for each in line[:_MOST_CHARACTERS])
        self._say(cut if self._rest else f"{cut} (later refusals are not logged; the host is sent each of them)")


def _say(sentence: str) -> None:
    print(f"secagg enclave: {sentence}", file=sys.stdout, flush=True)


def _vouched(form: str) -> str:
    if form != SIMULATED:
        return f"Its evidence is {form}."
    return (
        "No hardware vouches for it: its evidence is simulated, and it protects nobody from the owner of this machine."
    )


def _lacking(missing: list[str]) -> str:
    return f" Beyond that, {'; '.join(missing)}." if missing else ""
