"""Files with keys: identities of clients for active mode, and the keys of two servers.

Flower's SuperNode keys authenticate a node to the SuperLink, which is the very party that active mode does not trust.
So clients need keys that somebody else vouches for. That authority runs ``secagg keys``, keeps
``authority.key`` away from the server, hands each client its ``client-<id>.key``, and the server ``roster.json``.
The client's file holds the authority's public key as well: a client believes no other, whatever a server says.

Each operator of two servers writes his own keys (``secagg two-servers keys --role``), gives the public file to the
other one, and writes ``servers.json`` from both public files; the two come out alike, and both compare its fingerprint.
A person who writes both private files is both servers: ``make_trial_pair`` is for a trial.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Secret
from secagg.errors import AuthenticationFailed, InvalidParameters, PeerError
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers import OperatorKeys, ServerKeys
from secagg.session.certificates import IDENTITY_KEY_BYTES, Authority, Certificate, SigningKey, issue_certificate
from secagg.session.durable import PUBLIC, create, replace

# --- Clients and their authority --------------------------------------------------------------------------------------

AUTHORITY_FILE: Final = "authority.key"
ROSTER_FILE: Final = "roster.json"
FORMAT: Final = "secagg/flower/1"
_ROSTER: Final = "roster"


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """One client's key, the authority's word for it, and the authority that it believes."""

    client: ClientId
    signing_key: SigningKey
    certificate: Certificate
    authority: Authority


@dataclass(frozen=True, slots=True)
class Roster:
    """Clients that may take part: the authority, and the identity keys that it certified."""

    authority: bytes
    certificates: Mapping[ClientId, Certificate]

    @property
    def clients(self) -> frozenset[ClientId]:
        return frozenset(self.certificates)


def client_file(client: ClientId) -> str:
    """Return the name of a client's key file."""
    return f"client-{client.value}.key"


def make_identities(folder: Path, clients: Iterable[ClientId], coins: Coins) -> tuple[int, bool]:
    """Write a key for each client that has none in the folder, the authority's if there is none, and the roster of all.

    Returns:
        How many clients got a key, and whether the authority is new.
    Security: the folder holds every private key until they are handed out; do this where the server has no access.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / AUTHORITY_FILE
    is_new = not path.exists()
    if is_new:
        with Secret.random("authority seed", IDENTITY_KEY_BYTES, coins) as seed:
            _write_key(path, {"kind": "authority", "seed": bytes(seed.expose()).hex()})
    authority = _signing_key(path, _read(path, "authority"))
    made = 0
    for client in clients:
        own = folder / client_file(client)
        if own.exists():
            continue
        with Secret.random("identity seed", IDENTITY_KEY_BYTES, coins) as seed:
            key = SigningKey(seed)
            certificate = issue_certificate(authority, client, key.public_key)
            fields = {
                "kind": "client",
                "id": client.value,
                "seed": bytes(seed.expose()).hex(),
                "certificate": certificate.signature.hex(),
                "authority": authority.public_key.hex(),
            }
            _write_key(own, fields)
        made += 1
    identities = sorted(map(load_identity, folder.glob("client-*.key")), key=lambda identity: identity.client)
    listed = [
        {
            "id": identity.client.value,
            "public_key": identity.signing_key.public_key.hex(),
            "certificate": identity.certificate.signature.hex(),
        }
        for identity in identities
    ]
    roster = {"format": FORMAT, "kind": "roster", "authority": authority.public_key.hex(), "clients": listed}
    replace(folder / ROSTER_FILE, (json.dumps(roster, indent=1) + "\n").encode(), PUBLIC)
    return made, is_new


def load_identity(path: Path) -> ClientIdentity:
    """Read a client's key file, which nobody else may read, and check its certificate."""
    fields = _read(path, "client")
    key = _signing_key(path, fields)
    try:
        client = ClientId(fields["id"])
        authority = Authority(bytes.fromhex(fields["authority"]))
        certificate = Certificate(client, key.public_key, bytes.fromhex(fields["certificate"]))
        authority.verify(certificate)
    except (KeyError, TypeError, ValueError, AuthenticationFailed):
        raise _unreadable(path, "client") from None
    return ClientIdentity(client, key, certificate, authority)


def load_authority(path: Path) -> SigningKey:
    """Read the authority's key file."""
    return _signing_key(path, _read(path, "authority"))


def load_roster(path: Path) -> Roster:
    """Read a roster, and check every certificate in it."""
    fields = _read(path, _ROSTER)
    try:
        authority = Authority(bytes.fromhex(fields["authority"]))
        certificates = [
            Certificate(ClientId(entry["id"]), bytes.fromhex(entry["public_key"]), bytes.fromhex(entry["certificate"]))
            for entry in fields["clients"]
        ]
        for certificate in certificates:
            authority.verify(certificate)
    except (KeyError, TypeError, ValueError, AuthenticationFailed):
        raise _unreadable(path, _ROSTER) from None
    listed = {certificate.client: certificate for certificate in certificates}
    if len({certificate.public_key for certificate in certificates} | {authority.public_key}) <= len(certificates) or (
        len(listed) < len(certificates)
    ):
        raise InvalidParameters(f"{path} lists a client or a key twice; each client has one key of its own")
    return Roster(authority.public_key, listed)


def read_private(path: Path) -> bytes:
    """Read a file that holds a key, which nobody else may read."""
    with path.open("rb") as file:
        _require_private(path, os.fstat(file.fileno()).st_mode)
        return file.read()


def _require_private(path: Path, mode: int) -> None:
    if hasattr(os, "getuid") and stat.S_IMODE(mode) & 0o077:
        raise InvalidParameters(f"{path} holds a private key, and others may read it; chmod 600 it")


def _read(path: Path, kind: str) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            mode, fields = os.fstat(file.fileno()).st_mode, cast("object", json.loads(file.read()))
    except FileNotFoundError:
        raise InvalidParameters(f"there is no file {path}; make one with `secagg keys`, or name another") from None
    except (OSError, ValueError):
        raise _unreadable(path, kind) from None
    if not isinstance(fields, dict):
        raise _unreadable(path, kind)
    named = cast("dict[str, Any]", fields)
    if named.get("format") == FORMAT and named.get("kind") != kind:
        raise InvalidParameters(f"{path} is of another kind ({named.get('kind')!r}); name a {kind} file")
    if named.get("format") != FORMAT:
        raise _unreadable(path, kind)
    if kind != _ROSTER:
        _require_private(path, mode)
    return named


def _signing_key(path: Path, fields: dict[str, Any]) -> SigningKey:
    try:
        with Secret("seed", bytes.fromhex(fields["seed"])) as seed:
            return SigningKey(seed)
    except (KeyError, TypeError, ValueError):
        raise _unreadable(path, str(fields.get("kind"))) from None


def _write_key(path: Path, fields: dict[str, Any]) -> None:
    create(path, (json.dumps({"format": FORMAT, **fields}, indent=1) + "\n").encode())


def _unreadable(path: Path, kind: str) -> InvalidParameters:
    return InvalidParameters(f"{path} is not a {kind} file with a valid certificate; make one with `secagg keys`")


# --- Two servers ------------------------------------------------------------------------------------------------------

SERVERS_FILE: Final = "servers.json"
_KIND: Final = "servers"
_KEYS: Final = 5
_TRIAL_FILES: Final = 3
_KEY_BYTES: Final = IDENTITY_KEY_BYTES
_FINGERPRINT_DIGITS: Final = 32


@dataclass(frozen=True, slots=True)
class ServerPair:
    """Which two servers somebody believes to be in two hands, and who certifies their clients."""

    authority: bytes
    operators: tuple[OperatorKeys, OperatorKeys]

    @property
    def server_keys(self) -> tuple[bytes, bytes]:
        """The keys with which the servers sign."""
        return self.operators[0].signing_key, self.operators[1].signing_key

    @property
    def fingerprint(self) -> str:
        """Fingerprint that both operators compare, by telephone for instance."""
        parts = (self.authority, *(keys.encode() for keys in self.operators))
        return hashlib.sha256(bind(Label.INDEXING_FINGERPRINT, *parts)).hexdigest()[:_FINGERPRINT_DIGITS]


def server_file(index: int) -> str:
    """Return the name of a server's private key file."""
    return f"server-{index}.keys"


def public_file(index: int) -> str:
    """Return the name of the file that an operator gives away."""
    return f"server-{index}.public"


def make_server_keys(folder: Path, index: int, coins: Coins) -> OperatorKeys:
    """Write one operator's private and public file, where there are none, and return the public keys."""
    private, public = folder / server_file(index), folder / public_file(index)
    for file in (private, public):
        if file.exists():
            raise InvalidParameters(f"{file} exists; name another --out, or remove the keys that are there")
    with ServerKeys.random(ServerId(index), coins) as keys:
        create(private, keys.encode())
        replace(public, (keys.public.encode().hex() + "\n").encode(), PUBLIC)
        return keys.public


def write_server_pair(folder: Path, roster: Path, operators: Iterable[OperatorKeys]) -> ServerPair:
    """Write ``servers.json`` from both operators' public keys and the authority of a roster, or refuse to change it."""
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
        raise InvalidParameters(f"{path} names other servers; remove it first")
    replace(path, (json.dumps(fields, indent=1) + "\n").encode(), PUBLIC)
    return pair


def make_trial_pair(folder: Path, coins: Coins) -> bool:
    """Write the keys of both servers into a folder with a roster, unless they are there; return whether they are new.

    Security: for a trial. The owner of this folder is both servers.
    """
    there = [file for file in (server_file(0), server_file(1), SERVERS_FILE) if (folder / file).exists()]
    if there:
        if len(there) < _TRIAL_FILES:
            raise InvalidParameters(f"{folder / there[0]} is there and other files are not; remove it, or add them")
        return False
    # Before any key is written, which would stand there alone.
    load_roster(folder / ROSTER_FILE)
    write_server_pair(folder, folder / ROSTER_FILE, [make_server_keys(folder, index, coins) for index in (0, 1)])
    return True


def load_server_pair(path: Path) -> ServerPair:
    """Read which two servers are meant."""
    try:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        zero, one = (OperatorKeys.verified(bytes.fromhex(keys)) for keys in fields["servers"])
        pair = ServerPair(bytes.fromhex(fields["authority"]), (zero, one))
        is_ours = (fields["format"], fields["kind"]) == (FORMAT, _KIND)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, PeerError) as error:
        raise InvalidParameters(f"{path} names no two servers ({error}); {_ADVICE}") from None
    if not is_ours:
        raise InvalidParameters(f"{path} names no two servers; {_ADVICE}")
    return _checked(pair, str(path))


def load_operator_keys(path: Path) -> OperatorKeys:
    """Read the file that an operator has given away."""
    try:
        return OperatorKeys.verified(bytes.fromhex(path.read_text(encoding="ascii")))
    except (OSError, ValueError, PeerError) as error:
        raise InvalidParameters(f"{path} holds no public keys of a server ({error}); {_ADVICE}") from None


def _checked(pair: ServerPair, name: str) -> ServerPair:
    zero, one = pair.operators
    keys = {pair.authority, *pair.server_keys, zero.exchange_key, one.exchange_key}
    if (zero.server.index, one.server.index) != (0, 1) or len(keys) != _KEYS or len(pair.authority) != _KEY_BYTES:
        raise InvalidParameters(f"{name}: not an authority and two servers, each with keys of its own; {_ADVICE}")
    return pair


def load_server_keys(path: Path, index: int) -> ServerKeys:
    """Read one server's key file; the caller wipes the keys."""
    try:
        keys = ServerKeys.decode(read_private(path))
    except (OSError, PeerError) as error:
        raise InvalidParameters(f"{path} holds no keys of a server ({error}); {_ADVICE}") from None
    if keys.server.index != index:
        keys.wipe()
        raise InvalidParameters(f"{path} holds the keys of {keys.server}; expected those of server/{index}")
    return keys


_ADVICE: Final = "make some with `secagg two-servers keys`"
