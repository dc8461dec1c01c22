"""Key files of two servers, and the file that names the pair that clients and operators trust not to collude.

Each operator writes a key file (``secagg server keys --role``), gives the public file to the other operator, and writes
``servers.json`` from both public files. The two copies are equal, and the operators compare their fingerprint. A party
that writes both private files controls both servers, so use ``make_trial_pair`` only for a trial.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters, PeerError
from secagg.identifiers import ServerId
from secagg.session.certificates import IDENTITY_KEY_BYTES
from secagg.session.durable import PUBLIC, create, replace
from secagg.session.identities import FORMAT, ROSTER_FILE, load_roster, read_private

from .server_keys import OperatorKeys, ServerKeys

SERVERS_FILE: Final = "servers.json"
_KIND: Final = "servers"
_KEYS: Final = 3
_TRIAL_FILES: Final = 3
_KEY_BYTES: Final = IDENTITY_KEY_BYTES
_FINGERPRINT_DIGITS: Final = 32


@dataclass(frozen=True, slots=True)
class ServerPair:
    """Two servers that are trusted not to collude, and the authority that certifies their clients."""

    authority: bytes
    operators: tuple[OperatorKeys, OperatorKeys]

    @property
    def server_keys(self) -> tuple[bytes, bytes]:
        """The keys with which the servers sign."""
        return self.operators[0].signing_key, self.operators[1].signing_key

    @property
    def fingerprint(self) -> str:
        """Fingerprint that both operators compare, for instance by telephone."""
        parts = (self.authority, *(keys.encode() for keys in self.operators))
        return hashlib.sha256(bind(Label.INDEXING_FINGERPRINT, *parts)).hexdigest()[:_FINGERPRINT_DIGITS]


def server_file(index: int) -> str:
    """Return the name of a server's private key file."""
    return f"server-{index}.keys"


def public_file(index: int) -> str:
    """Return the name of an operator's public key file."""
    return f"server-{index}.public"


def make_server_keys(folder: Path, index: int, coins: Coins) -> OperatorKeys:
    """Write one operator's private and public key files, unless they exist, and return the public keys."""
    private, public = folder / server_file(index), folder / public_file(index)
    for file in (private, public):
        if file.exists():
            raise InvalidParameters(f"{file} exists; choose another --out, or remove the existing keys")
    with ServerKeys.random(ServerId(index), coins) as keys:
        create(private, keys.encode())
        replace(public, (keys.public.encode().hex() + "\n").encode(), PUBLIC)
        return keys.public


def write_server_pair(folder: Path, roster: Path, operators: Iterable[OperatorKeys]) -> ServerPair:
    """Write ``servers.json`` from both operators' public keys and the authority of a roster; refuses to change it."""
    zero, one = sorted(operators, key=lambda keys: keys.server.index)
    pair = _checked(ServerPair(load_roster(roster).authority, (zero, one)), "these public keys")
    fields = {
        "format": FORMAT,
        "kind": _KIND,
        "authority": pair.authority.hex(),
        "servers": [keys.encode().hex() for keys in pair.operators],
    }
    path = folder / SERVERS_FILE
    if path.exists() and load_server_pair(path) != pair:
        raise InvalidParameters(f"{path} names different servers; remove it first")
    replace(path, (json.dumps(fields, indent=1) + "\n").encode(), PUBLIC)
    return pair


def make_trial_pair(folder: Path, coins: Coins) -> bool:
    """Write the keys of both servers into a folder with a roster, unless they exist; return whether they are new.

    Security: for a trial. The owner of this folder controls both servers.
    """
    there = [file for file in (server_file(0), server_file(1), SERVERS_FILE) if (folder / file).exists()]
    if there:
        if len(there) < _TRIAL_FILES:
            raise InvalidParameters(f"{folder / there[0]} exists but the other files do not; remove it, or add them")
        return False
    # Check this before any key is written; otherwise that key would be left without the others.
    load_roster(folder / ROSTER_FILE)
    write_server_pair(folder, folder / ROSTER_FILE, [make_server_keys(folder, index, coins) for index in (0, 1)])
    return True


def load_server_pair(path: Path) -> ServerPair:
    """Read a file that names two servers."""
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        zero, one = (OperatorKeys.verified(bytes.fromhex(keys)) for keys in fields["servers"])
        pair = ServerPair(bytes.fromhex(fields["authority"]), (zero, one))
        is_ours = (fields["format"], fields["kind"]) == (FORMAT, _KIND)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, PeerError) as error:
        raise InvalidParameters(f"{path} does not name two servers ({error}); {_ADVICE}") from None
    if not is_ours:
        raise InvalidParameters(f"{path} does not name two servers; {_ADVICE}")
    return _checked(pair, str(path))


def load_operator_keys(path: Path) -> OperatorKeys:
    """Read an operator's public key file."""
    try:
        return OperatorKeys.verified(bytes.fromhex(path.read_text(encoding="ascii")))
    except (OSError, ValueError, PeerError) as error:
        raise InvalidParameters(f"{path} is not a server's public key file ({error}); {_ADVICE}") from None


def _checked(pair: ServerPair, name: str) -> ServerPair:
    zero, one = pair.operators
    keys = {pair.authority, *pair.server_keys}
    if (zero.server.index, one.server.index) != (0, 1) or len(keys) != _KEYS or len(pair.authority) != _KEY_BYTES:
        raise InvalidParameters(f"{name}: an authority and two servers need three different keys; {_ADVICE}")
    return pair


def load_server_keys(path: Path, index: int) -> ServerKeys:
    """Read one server's key file; the caller wipes the keys."""
    try:
        keys = ServerKeys.decode(read_private(path))
    except (OSError, PeerError) as error:
        raise InvalidParameters(f"{path} is not a server's key file ({error}); {_ADVICE}") from None
    if keys.server.index != index:
        keys.wipe()
        raise InvalidParameters(f"{path} contains the keys of {keys.server}; expected those of server/{index}")
    return keys


_ADVICE: Final = "create them with `secagg server keys`"
