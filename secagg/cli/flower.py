"""Keys for Flower apps in active mode."""

from __future__ import annotations

from pathlib import Path

from secagg.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.flower.identities import AUTHORITY_FILE, ROSTER_FILE, make_identities
from secagg.identifiers import ClientId

_MOST_CLIENTS = 100_000


def run_flower_keys(*, clients: int, first: int, out: Path) -> int:
    """Write an authority's key, a key for each client, and the roster; keys that are there already stay."""
    if not 1 <= clients <= _MOST_CLIENTS or first < 0:
        raise InvalidParameters(f"--clients is in 1..{_MOST_CLIENTS} and --first is not negative")
    made, is_new = make_identities(out, map(ClientId, range(first, first + clients)), SystemCoins())
    if is_new:
        print(f"{out / AUTHORITY_FILE}: a new authority; keep it where no server can read it")
    print(f"{out}/client-<id>.key: {made} new of {clients}; hand each client its own, and nobody else's")
    print(f"{out / ROSTER_FILE}: public; the server's secagg-roster names it")
    return 0
