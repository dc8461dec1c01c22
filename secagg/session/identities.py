"""Files with identities: the key of a client, made by itself, and of the authority that vouches for all.

Flower's SuperNode keys authenticate a node to the SuperLink, which is the very party that active mode does not trust.
So clients need keys that somebody else vouches for. A client makes its own key and a request (``secagg keys new``); the
authority, away from the server, signs requests (``secagg keys sign``) and gives the server its roster. The client's
file names the authority as well: a client trusts no other, whatever a server says. For a trial, ``secagg keys
--clients N`` makes all keys in one folder.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Secret
from secagg.errors import AuthenticationFailed, InvalidParameters
from secagg.identifiers import ClientId

from .certificates import IDENTITY_KEY_BYTES, Authority, Certificate, SigningKey
from .durable import create, replace
from .rosters import ROSTER_FILE, Request, load_roster, sign_requests
from .standings import Clock, system_clock

AUTHORITY_FILE: Final = "authority.key"
FORMAT: Final = "secagg/flower/1"


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """One client's key, the authority's word for it, and the authority that it believes."""

    client: ClientId
    signing_key: SigningKey
    certificate: Certificate
    authority: Authority


def client_file(client: ClientId) -> str:
    """Return the name of a client's key file."""
    return f"client-{client.value}.key"


def new_identity(
    path: Path, client: ClientId, authority: bytes, coins: Coins, live: SigningKey | None = None
) -> Request:
    """Write a client's new key, and return the request that its authority has to sign.

    Args:
        live: the key that the client has now, which the new one replaces.
    """
    Authority(authority)
    with Secret.random("identity seed", IDENTITY_KEY_BYTES, coins) as seed:
        fields = {"id": client.value, "seed": bytes(seed.expose()).hex(), "authority": authority.hex()}
        _write_key(path, {"kind": "client", **fields})
        return Request.of(authority, client, SigningKey(seed), live)


def certificate_file(path: Path) -> Path:
    """Return the name of the certificate of a key file or a request: beside it, with another ending."""
    return path.with_suffix(".certificate")


def make_authority(path: Path, coins: Coins) -> None:
    """Write an authority's key."""
    with Secret.random("authority seed", IDENTITY_KEY_BYTES, coins) as seed:
        _write_key(path, {"kind": "authority", "seed": bytes(seed.expose()).hex()})


def make_identities(
    folder: Path, clients: Iterable[ClientId], coins: Coins, clock: Clock = system_clock
) -> tuple[int, bool]:
    """Write a key for each client that has none in the folder, the authority's if there is none, and list all of them.

    Returns:
        How many clients got a key, and whether the authority is new.
    Raises:
        InvalidParameters: a client on the roster has no key in the folder, or another one, and would get a new key; or
            the roster's authority is not there. Nothing was written.
    Security: the folder holds every private key until they are handed out; do this where the server has no access.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path, listed = folder / AUTHORITY_FILE, folder / ROSTER_FILE
    is_new = not path.exists()
    if is_new and listed.exists():
        raise InvalidParameters(f"{listed} is of an authority whose key is not in {folder}; name another folder")
    known = load_roster(listed).issued if listed.exists() and listed.stat().st_size else {}
    asked = list(clients)
    for client in asked:
        own = folder / client_file(client)
        if client in known and (not own.exists() or _key_of(own).public_key != known[client].public_key):
            raise InvalidParameters(
                f"client {client.value} was certified before, and {own} does not hold its key, so that it would get "
                "another one. Put the file back, name other clients with --first, or let the client make a new key "
                f"(`secagg keys new`) and sign it with `secagg keys sign --replace {client.value}`"
            )
    if is_new:
        make_authority(path, coins)
    authority, made = load_authority(path), 0
    requests = list[Request]()
    for client in asked:
        own = folder / client_file(client)
        if not own.exists():
            requests.append(new_identity(own, client, authority.public_key, coins))
            made += 1
        elif client not in known:  # Of a call that was killed before it signed.
            requests.append(Request.of(authority.public_key, client, _key_of(own)))
    signed = {each.client: each for each in sign_requests(listed, authority, requests, clock=clock)}
    for client in asked:
        fields = _read(own := folder / client_file(client), "client")
        if "certificate" not in fields:
            fields["certificate"] = (signed.get(client) or known[client]).grant.hex()
            replace(own, _text(fields))
    return made, is_new


def load_identity(path: Path) -> ClientIdentity:
    """Read a client's key file, which nobody else may read, and check its certificate."""
    fields = _read(path, "client")
    key, beside = _signing_key(path, fields), certificate_file(path)
    if "certificate" not in fields:
        if not beside.exists():
            raise InvalidParameters(
                f"{path} has no certificate yet: give the authority its request, and put what `secagg keys sign` "
                f"writes at {beside}"
            )
        fields["certificate"] = beside.read_text(encoding="ascii")
    try:
        client = ClientId(fields["id"])
        authority = Authority(bytes.fromhex(fields["authority"]))
        certificate = Certificate(client, key.public_key, bytes.fromhex(fields["certificate"]))
        authority.verify(certificate)
    except (KeyError, TypeError, ValueError, AuthenticationFailed):
        raise _unreadable(path, "client") from None
    return ClientIdentity(client, key, certificate, authority)


def _key_of(path: Path) -> SigningKey:
    return _signing_key(path, _read(path, "client"))


def load_authority(path: Path) -> SigningKey:
    """Read the authority's key file."""
    return _signing_key(path, _read(path, "authority"))


def load_signing_key(path: Path) -> SigningKey:
    """Read a key that `secagg holder keys` made, or an authority's."""
    try:
        data = read_private(path)
    except OSError as error:
        raise InvalidParameters(f"{path} cannot be read: {error.strerror}") from None
    if len(data) != IDENTITY_KEY_BYTES:
        return load_authority(path)
    with Secret("signing key", data) as seed:
        return SigningKey(seed)


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
    _require_private(path, mode)
    return named


def _signing_key(path: Path, fields: dict[str, Any]) -> SigningKey:
    try:
        with Secret("seed", bytes.fromhex(fields["seed"])) as seed:
            return SigningKey(seed)
    except (KeyError, TypeError, ValueError):
        raise _unreadable(path, str(fields.get("kind"))) from None


def _write_key(path: Path, fields: dict[str, Any]) -> None:
    create(path, _text({"format": FORMAT, **fields}))


def _text(fields: dict[str, Any]) -> bytes:
    return (json.dumps(fields, indent=1) + "\n").encode()


def _unreadable(path: Path, kind: str) -> InvalidParameters:
    return InvalidParameters(f"{path} is not a {kind} file with a valid certificate; make one with `secagg keys`")
