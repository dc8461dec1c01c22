"""Keys of clients, for every platform and for HTTP, and a trial's keys of two servers."""

from __future__ import annotations

import argparse
from pathlib import Path

from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.platforms.keys.identities import AUTHORITY_FILE, ROSTER_FILE, make_identities
from secagg.platforms.keys.server_pair import SERVERS_FILE, make_trial_pair, server_file

_MOST_CLIENTS = 100_000


def make_all_keys(options: argparse.Namespace) -> int:
    """Write an authority's key, a key for each client that has none, the roster, and for a trial both servers' keys."""
    clients, first, out = int(options.clients), int(options.first), Path(options.out)
    if not 1 <= clients <= _MOST_CLIENTS or first < 0:
        raise InvalidParameters(f"--clients is in 1..{_MOST_CLIENTS} and --first is not negative")
    made, is_new = make_identities(out, map(ClientId, range(first, first + clients)), SystemCoins())
    if is_new:
        print(f"{out / AUTHORITY_FILE}: a new authority; keep it where no server can read it")
    print(f"{out}/client-<id>.key: {made} new of {clients}; hand each client its own, and nobody else's")
    print(f"{out / ROSTER_FILE}: public; the server's setting `roster` names it")
    if options.trial_servers:
        is_new = make_trial_pair(out, SystemCoins())
        print(f"{out / server_file(0)}, {out / server_file(1)}: {'new' if is_new else 'there already'}; for a trial,")
        print("  because one who holds both files is both servers; two operators use `secagg two-servers keys`")
        print(f"{out / SERVERS_FILE}: public; every client's secagg-servers, and the server's, name it")
    return 0
