"""The keys of two servers for a Flower app: a file for each operator, and one that is public and names both.

Whoever writes both files could sign for both servers, as whoever writes clients' keys could be any client. The
operators of a deployment therefore make their keys apart, agree on the key that they share, and write ``servers.json``
by hand; ``secagg flower keys --two-servers`` is for a trial, or for somebody whom everybody believes to forget.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from secagg.crypto.entropy import Coins
from secagg.errors import InvalidParameters, PeerError
from secagg.protocols.two_servers.operators.server_keys import ServerKeys, new_server_keys
from secagg.session.certificates import IDENTITY_KEY_BYTES

from .identities import FORMAT, ROSTER_FILE, load_roster, write_private

SERVERS_FILE: Final = "servers.json"
_KIND: Final = "servers"
_MOST_BYTES: Final = 1 << 12


@dataclass(frozen=True, slots=True)
class ServerPair:
    """Which two servers somebody believes to be in two hands, and who certifies their clients."""

    authority: bytes
    server_keys: tuple[bytes, bytes]


def server_file(index: int) -> str:
    """Return the name of a server's key file."""
    return f"server-{index}.keys"


def make_server_pair(folder: Path, coins: Coins) -> bool:
    """Write the servers' keys into a folder with a roster, unless they are there; return whether they are new.

    Security: the folder holds both servers' keys until they are handed out.
    """
    files = [folder / server_file(index) for index in (0, 1)]
    there = [file for file in (*files, folder / SERVERS_FILE) if file.exists()]
    if there:
        if len(there) <= len(files):
            raise InvalidParameters(f"{there[0]} is there and the other server's file is not; remove it, or add that")
        return False
    both = new_server_keys(coins)
    public_keys = [keys.signing_key().public_key.hex() for keys in both]
    for keys, file in zip(both, files, strict=True):
        with keys:
            write_private(file, keys.encode())
    fields = {
        "format": FORMAT,
        "kind": _KIND,
        "authority": load_roster(folder / ROSTER_FILE).authority.hex(),
        "servers": public_keys,
    }
    (folder / SERVERS_FILE).write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")
    return True


def load_server_pair(path: Path) -> ServerPair:
    """Read which two servers are meant.

    Raises:
        InvalidParameters: it is missing, or no such file.
    """
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        zero, one = (bytes.fromhex(key) for key in fields["servers"])
        pair = ServerPair(bytes.fromhex(fields["authority"]), (zero, one))
        is_whole = {len(key) for key in (pair.authority, *pair.server_keys)} == {IDENTITY_KEY_BYTES}
        is_ours = (fields["format"], fields["kind"]) == (FORMAT, _KIND)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidParameters(f"{path} names no two servers ({error}); {_ADVICE}") from None
    if not is_whole or not is_ours or zero == one:
        raise InvalidParameters(f"{path} names no two servers with keys of their own; {_ADVICE}")
    return pair


def load_server_keys(path: Path, index: int) -> ServerKeys:
    """Read one server's key file; the caller wipes the keys.

    Raises:
        InvalidParameters: it is missing, readable by others, or holds no keys of that server.
    """
    try:
        with path.open("rb") as file:
            if hasattr(os, "getuid") and stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise InvalidParameters(f"{path} holds a private key, and others may read it; chmod 600 it")
            keys = ServerKeys.decode(file.read(_MOST_BYTES))
    except (OSError, PeerError) as error:
        raise InvalidParameters(f"{path} holds no keys of a server ({error}); {_ADVICE}") from None
    if keys.server.index != index:
        keys.wipe()
        raise InvalidParameters(f"{path} holds the keys of {keys.server}, and those of server/{index} are due here")
    return keys


_ADVICE: Final = "make some with `secagg flower keys --two-servers`"
