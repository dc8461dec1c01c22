"""Files with identities: a key for each client, of an authority that vouches for it, and the roster of all.

Flower's SuperNode keys authenticate a node to the SuperLink, which is the very party that active mode does not trust.
So clients need keys that somebody else vouches for. That authority runs ``secagg keys``, keeps
``authority.key`` away from the server, hands each client its ``client-<id>.key``, and the server ``roster.json``.
The client's file holds the authority's public key as well: a client believes no other, whatever a server says.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Secret
from secagg.errors import AuthenticationFailed, InvalidParameters
from secagg.identifiers import ClientId

from .certificates import IDENTITY_KEY_BYTES, Authority, Certificate, SigningKey, issue_certificate
from .durable import PUBLIC, create, replace

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
                "certificate": certificate.grant.hex(),
                "authority": authority.public_key.hex(),
            }
            _write_key(own, fields)
        made += 1
    identities = sorted(map(load_identity, folder.glob("client-*.key")), key=lambda identity: identity.client)
    listed = [
        {
            "id": identity.client.value,
            "public_key": identity.signing_key.public_key.hex(),
            "certificate": identity.certificate.grant.hex(),
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
