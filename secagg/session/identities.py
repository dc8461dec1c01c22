"""Identity files: a client's key, made by the client itself, and the key of the authority that certifies clients.

Flower's SuperNode keys authenticate a node to the SuperLink, which is the very party that active mode does not trust.
So clients need keys that another party certifies. A client creates its own key and a request (``secagg keys new``). The
authority, away from the server, signs requests (``secagg keys sign``) and gives the server its roster. The client's
file also names the authority, and the client trusts no other, whatever a server says. For a trial, ``secagg keys
--clients N`` creates all keys in one folder.

A roster lists what an authority certified and revoked, in one append-only text file: ``secagg-roster 1``, the
authority's key, then a line for each issued or revoked certificate. Each append ends in a head, which signs everything
before it. A torn append has no head; readers ignore it, and the next append replaces it. A roster extends each of its
earlier versions byte for byte, which anyone who kept one can check.

An authority rotates its key by a line that both keys sign (``secagg keys rotate``). The lines after it renew the live
certificates under the new key, with their numbers and expiry, and the new key signs the head. A client follows by
reading the roster (``secagg keys follow``), and keeps its own key and state.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any, Final, cast

from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label
from secagg.crypto.secret import Secret
from secagg.errors import AuthenticationFailed, InvalidParameters
from secagg.identifiers import ClientId

from .certificates import (
    HOUR,
    IDENTITY_KEY_BYTES,
    NO_STANDING,
    Authority,
    Certificate,
    SigningKey,
    Standing,
    verify_signature,
)
from .client_policy import ClientPolicy
from .durable import PUBLIC, claim, create, replace, sync_folder
from .signing_keys import issue_certificate
from .standings import CLOCKS_APART, Clock, require_standing, system_clock
from .store import Store

ROSTER_FILE: Final = "roster.txt"
_FIRST: Final = "secagg-roster 1"
_REQUEST: Final = "secagg-request-1"
_HEAD: Final = re.compile(r"head [0-9]+ [0-9a-f]{128}")
_ENTRY: Final = re.compile(r"(issued|revoked|authority|renewed|secagg-roster) |\s*$")
DAYS: Final = 365
_MOST_DAYS: Final = 3660


@dataclass(frozen=True, slots=True)
class Roster:
    """Clients that may take part, according to the newest head of an authority's roster."""

    authority: bytes
    certificates: Mapping[ClientId, Certificate]
    """Each client's live certificate: neither revoked nor expired."""
    standing: Standing = NO_STANDING
    text: str = field(default="", repr=False)
    """The text up to the head."""
    issued: Mapping[ClientId, Certificate] = field(default_factory=dict[ClientId, Certificate], repr=False)
    """The last certificate of each client that ever had one."""
    authorities: tuple[bytes, ...] = ()
    """All keys that the authority has had, the current one last."""

    @property
    def clients(self) -> frozenset[ClientId]:
        return frozenset(self.certificates)


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request to certify a key, with a proof that it holds the private key."""

    authority: bytes
    client: ClientId
    public_key: bytes
    proof: bytes
    proof_of_live_key: bytes = b""
    """Signature by the client's current key, if the new one replaces it."""

    @property
    def _statement(self) -> tuple[bytes, ...]:
        return self.authority, self.client.encode(), self.public_key

    @classmethod
    def of(cls, authority: bytes, client: ClientId, key: SigningKey, live: SigningKey | None = None) -> Request:
        """Request a certificate for a new key; the live key signs as well, if there is one."""
        statement = authority, client.encode(), key.public_key
        proofs = [b"" if each is None else each.sign(Label.KEY_REQUEST, *statement) for each in (key, live)]
        return cls(authority, client, key.public_key, *proofs)

    def encode(self) -> str:
        """Encode it as one line of text."""
        words = _REQUEST, self.authority.hex(), str(self.client.value), self.public_key.hex(), self.proof.hex()
        return " ".join((*words, self.proof_of_live_key.hex())).strip() + "\n"

    @classmethod
    def decode(cls, text: str) -> Request:
        """Decode a line and check its proof of possession."""
        try:
            authority, client, *keys = text.removeprefix(_REQUEST).split()
            request = cls(bytes.fromhex(authority), ClientId(int(client)), *map(bytes.fromhex, keys))
            request.verify(request.public_key, request.proof)
        except (TypeError, ValueError, AuthenticationFailed) as error:
            raise InvalidParameters(
                f"it is not a request with a proof that its sender holds the key ({type(error).__name__}); "
                "create one with `secagg keys new`"
            ) from None
        return request

    def verify(self, key: bytes, proof: bytes) -> None:
        """Check that a key signed the request."""
        verify_signature(key, proof, Label.KEY_REQUEST, *self._statement)


# --- Reading ----------------------------------------------------------------------------------------------------------


def load_roster(path: Path, known: Roster | None = None) -> Roster:
    """Read a roster up to its last complete head, and verify the head and the order of its entries.

    Args:
        known: an earlier version, which this one must extend.
    Raises:
        InvalidParameters: the file is missing or was altered.
    """
    try:
        # Keep the line endings: otherwise a later append would cut the file at the wrong place.
        text = path.read_bytes().decode("ascii")
    except FileNotFoundError:
        raise InvalidParameters(f"there is no file {path}; create one with `secagg keys`, or use another") from None
    except (OSError, ValueError):
        raise _no_roster(path, "it is not a text file") from None
    try:
        return _parsed(text, "" if known is None else known.text)
    except (ValueError, TypeError, LookupError, OverflowError, InvalidParameters, AuthenticationFailed) as error:
        raise _no_roster(path, str(error) or "it was altered") from None


def _parsed(text: str, known: str) -> Roster:
    if "\r" in text:
        raise InvalidParameters("its line endings were changed")
    if _HEAD.fullmatch(text, text.rfind("\n") + 1):
        text += "\n"  # A copy or an editor dropped the last newline: the head is complete, so its append counts.
    lines = text.splitlines(keepends=True)
    while lines and not (lines[-1].startswith("head ") and lines[-1].endswith("\n")):
        # A torn append, which nobody has received, has whole entries and no head.
        if _HEAD.search(line := lines.pop()) or (line.endswith("\n") and not _ENTRY.match(line)):
            raise ValueError("the line of its last head was changed")
    if not lines:
        raise ValueError("it has no signed head")
    if not text.startswith(known):
        raise ValueError("it does not extend the version that was read before")
    before, (number, signature) = "".join(lines[:-1]), lines[-1].split()[1:]
    entries = _Entries.of(before)
    standing = replaced(entries.standing(int(number), before), signature=bytes.fromhex(signature))
    standing.verify(entries.authority)
    valid = {client: each for client, each in entries.live.items() if each.expiry > standing.number}
    return Roster(entries.authority, valid, standing, "".join(lines), entries.last, tuple(entries.authorities))


@dataclass(slots=True)
class _Entries:
    """The combined contents of a roster's lines."""

    authorities: list[bytes]
    issued: list[Certificate] = field(default_factory=list[Certificate])
    live: dict[ClientId, Certificate] = field(default_factory=dict[ClientId, Certificate])
    """Not revoked, but possibly expired."""
    keys: set[bytes] = field(default_factory=set[bytes])
    last: dict[ClientId, Certificate] = field(default_factory=dict[ClientId, Certificate])
    carried: dict[ClientId, Certificate] = field(default_factory=dict[ClientId, Certificate])
    """Live before the last rotation, and not renewed since."""

    @property
    def authority(self) -> bytes:
        return self.authorities[-1]

    @classmethod
    def of(cls, text: str) -> _Entries:
        name, authority, *lines = text.splitlines()
        if name != _FIRST:
            raise ValueError("its first line is wrong")
        made = cls([Authority(bytes.fromhex(authority.removeprefix("authority "))).public_key])
        made.keys.add(made.authority)
        for line in lines:
            made.take(*line.split())
        return made

    def take(self, kind: str, *words: str) -> None:
        """Process one line."""
        if kind == "issued":
            client, key, grant = words
            one = Certificate(ClientId(int(client)), bytes.fromhex(key), bytes.fromhex(grant))
            if one.client in self.live or one.public_key in self.keys or one.number != len(self.issued) + 1:
                raise ValueError(f"it lists client {client}, its key or its number twice")
            self.issued.append(one)
            self.keys.add(one.public_key)
            self.last[one.client] = self.live[one.client] = one
        elif kind == "revoked":
            client, number = words
            if self.live.pop(ClientId(int(client))).number != int(number):
                raise ValueError(f"it revokes a number that is not the live one of client {client}")
        elif kind == "authority":
            self._rotate(*map(bytes.fromhex, words))
        elif kind == "renewed":
            self._renew(ClientId(int(words[0])), bytes.fromhex(words[1]))
        elif kind != "head":
            raise ValueError(f"it has an unknown line, which begins with {kind!r}")

    def _rotate(self, key: bytes, by_old: bytes, by_new: bytes) -> None:
        for signer, signature in ((self.authority, by_old), (key, by_new)):
            verify_signature(signer, signature, Label.AUTHORITY_ROTATION, self.authority, key)
        if key in self.keys:
            raise InvalidParameters("an authority's new key must be unused by clients and authorities; use another")
        self.keys.add(key)
        self.authorities.append(key)
        self.carried, self.live = self.live, {}

    def _renew(self, client: ClientId, grant: bytes) -> None:
        held = self.carried.pop(client)
        one = replaced(held, grant=grant)
        if (one.number, one.expiry) != (held.number, held.expiry):
            raise ValueError(f"it renews the certificate of {client} with a different number or expiry")
        self.last[client] = self.live[client] = one

    def standing(self, number: int, before: str) -> Standing:
        """Return the standing after some text, unsigned."""
        live = {each.number for each in self.live.values()}
        revoked = [each.number for each in self.issued if each.number not in live and each.expiry > number]
        return Standing(number=number, digest=hashlib.sha256(before.encode("ascii")).digest(), revoked=tuple(revoked))


Lines = Callable[[_Entries, int], Iterable[str]]
"""Returns the lines to append to a roster, at a time in seconds since 1970."""


# --- The authority ----------------------------------------------------------------------------------------------------


def sign_requests(  # noqa: PLR0913 -- what an authority decides
    path: Path,
    authority: SigningKey,
    requests: Iterable[Request],
    *,
    replaces: ClientId | None = None,
    days: int = DAYS,
    clock: Clock = system_clock,
) -> list[Certificate]:
    """Certify the keys of requests and append them to the roster: all of them, or none if one is refused.

    Args:
        replaces: the client that gets a new key without a proof by its live key; it must be the only request.
        days: until the certificates expire.
    Raises:
        InvalidParameters: a request is for another authority, its number has a history but no proof by its live key, or
            its key was already certified.
    """
    if not 1 <= days <= _MOST_DAYS:
        raise InvalidParameters(f"--days must be between 1 and {_MOST_DAYS}; got {days}")
    asked = list(requests)
    if replaces is not None and [each.client for each in asked] != [replaces]:
        raise InvalidParameters(f"--replace {replaces.value} needs exactly one request, from client {replaces.value}")
    made, asking = list[Certificate](), set[ClientId]()

    def lines(known: _Entries, now: int) -> Iterable[str]:
        for request in asked:
            client, held = request.client.value, known.live.get(request.client)
            is_held = held is not None and held.public_key == request.public_key and held.expiry > now
            if held is not None and is_held and request.authority == authority.public_key:
                made.append(held)  # Signed by a call that could not return it.
                continue
            _require_new(request, authority, known.keys, asking)
            if request.client in known.last and replaces is None:
                _require_live_proof(request, held if held is not None and held.expiry > now else None)
            if held is not None:
                yield f"revoked {client} {held.number}"
            asking.add(request.client)
            number, until = len(known.issued) + 1, now // HOUR + 24 * days
            one = issue_certificate(authority, request.client, request.public_key, number=number, until=until)
            made.append(one)
            yield f"issued {client} {one.public_key.hex()} {one.grant.hex()}"

    _append(path, authority, lines, clock)
    return made


def _require_new(request: Request, authority: SigningKey, keys: Container[bytes], asking: Container[ClientId]) -> None:
    client = request.client.value
    if request.authority != authority.public_key:
        raise InvalidParameters(f"client {client} has a request to another authority; it must create one to this one")
    if request.public_key in keys:
        raise InvalidParameters(f"the key of client {client} was already certified; the client must create a new one")
    if request.client in asking:
        raise InvalidParameters(f"client {client} has two requests; sign only its genuine one")


def _require_live_proof(request: Request, held: Certificate | None) -> None:
    number, advice = request.client.value, "if you know that the new key is that client's, sign it with --replace"
    if held is None:
        raise InvalidParameters(f"client {number} had a key that was revoked or has expired; {advice} {number}")
    if not request.proof_of_live_key:
        raise InvalidParameters(f"client {number} has a key, but the request has no proof by it; {advice} {number}")
    try:
        request.verify(held.public_key, request.proof_of_live_key)
    except AuthenticationFailed:
        raise InvalidParameters(
            f"the request is not signed by the live key of client {number}; {advice} {number}"
        ) from None


def revoke(path: Path, authority: SigningKey, clients: Iterable[ClientId], *, clock: Clock = system_clock) -> None:
    """Revoke the live certificates of clients."""

    def lines(known: _Entries, _: int) -> Iterable[str]:
        for client in clients:
            if (held := known.live.get(client)) is None:
                raise InvalidParameters(f"client {client.value} has no certificate to revoke")
            yield f"revoked {client.value} {held.number}"

    _append(path, authority, lines, clock)


def renew(path: Path, authority: SigningKey, *, clock: Clock = system_clock) -> None:
    """Append only a head, so that clients do not consider the standing outdated."""
    _append(path, authority, lambda _known, _now: (), clock)


def rotate(path: Path, old: SigningKey, new: SigningKey, *, clock: Clock = system_clock) -> None:
    """Replace the authority's key by a new one; both sign this, and live certificates are renewed under it."""

    def lines(known: _Entries, _: int) -> Iterable[str]:
        live = list(known.live.values())
        signed = (each.sign(Label.AUTHORITY_ROTATION, old.public_key, new.public_key).hex() for each in (old, new))
        yield " ".join(("authority", new.public_key.hex(), *signed))
        for each in live:
            until = each.expiry // HOUR
            one = issue_certificate(new, each.client, each.public_key, number=each.number, until=until)
            yield f"renewed {one.client.value} {one.grant.hex()}"

    _append(path, old, lines, clock, new)


def _append(path: Path, authority: SigningKey, lines: Lines, clock: Clock, signs: SigningKey | None = None) -> None:
    """Append lines and a head, signed by the authority or its next key; append nothing if one line is refused."""
    now = int(clock().timestamp())
    with open(path, "a+b", opener=lambda name, flags: os.open(name, flags, PUBLIC)) as file:
        claim(file.fileno(), f"{path} is being written by another process; try again")
        file.seek(0)
        content = file.read()
        begun = f"{_FIRST}\nauthority {authority.public_key.hex()}\n"
        if b"\nhead " not in content and not begun.encode().startswith(content[: len(begun)]):
            raise InvalidParameters(f"{path} is not a roster and would be overwritten; name the roster's file")
        roster = load_roster(path) if b"\nhead " in content else None
        if roster is not None and roster.authority != authority.public_key:
            raise InvalidParameters(f"{path} is another authority's roster; name the key that signed it")
        if roster is not None and roster.standing.number > now + CLOCKS_APART:
            raise InvalidParameters(f"{path} ends in a head from the future; correct this machine's clock")
        before = begun if roster is None else roster.text
        known, text = _Entries.of(before), before
        for line in lines(known, now):
            known.take(*line.split())
            text += f"{line}\n"
        if not known.issued:  # A head of such a roster revokes nothing, and would supersede those of the correct one.
            raise InvalidParameters(f"{path} lists no client, so it is not the authority's roster; use that file")
        number = now if roster is None else max(now, roster.standing.number + 1)
        head = known.standing(number, text).signed(signs or authority)
        text += f"head {number} {head.signature.hex()}\n"
        kept = 0 if roster is None else min(len(before), len(content))
        file.truncate(kept)
        file.write(text[kept:].encode("ascii"))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def _no_roster(path: Path, why: str) -> InvalidParameters:
    return InvalidParameters(f"{path} is not a valid signed roster: {why}; use the authority's newest one")


# --- Files ------------------------------------------------------------------------------------------------------------

AUTHORITY_FILE: Final = "authority.key"
FORMAT: Final = "secagg/flower/1"


@dataclass(frozen=True, slots=True)
class ClientIdentity:
    """A client's key, its certificate, and the authority that the client trusts."""

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
    """Write a client's new key, and return the request for its authority to sign.

    Args:
        live: the client's current key, which the new one replaces.
    """
    Authority(authority)
    with Secret.random("identity seed", IDENTITY_KEY_BYTES, coins) as seed:
        fields = {"id": client.value, "seed": bytes(seed.expose()).hex(), "authority": authority.hex()}
        _write_key(path, {"kind": "client", **fields})
        return Request.of(authority, client, SigningKey(seed), live)


def certificate_file(path: Path) -> Path:
    """Return the name of the certificate for a key file or a request: the same path with another suffix."""
    return path.with_suffix(".certificate")


def make_authority(path: Path, coins: Coins) -> None:
    """Write an authority's key."""
    with Secret.random("authority seed", IDENTITY_KEY_BYTES, coins) as seed:
        _write_key(path, {"kind": "authority", "seed": bytes(seed.expose()).hex()})


def make_identities(
    folder: Path, clients: Iterable[ClientId], coins: Coins, clock: Clock = system_clock
) -> tuple[int, bool]:
    """Write a key for each client without one in the folder, and for the authority if it has none; list all clients.

    Returns:
        How many clients got a key, and whether the authority is new.
    Raises:
        InvalidParameters: a client on the roster would get a new key, because the folder has no key of it or another
            one; or the roster's authority is not there. Nothing was written.
    Security: the folder contains every private key until they are handed out; keep it where the server has no access.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path, listed = folder / AUTHORITY_FILE, folder / ROSTER_FILE
    is_new = not path.exists()
    known = _issued(listed, None if is_new else load_authority(path).public_key)
    asked = list(clients)
    for client in asked:
        own = folder / client_file(client)
        if client in known and (not own.exists() or _key_of(own).public_key != known[client].public_key):
            raise InvalidParameters(
                f"client {client.value} was already certified, but {own} does not hold its key, so it would get a new "
                "one. Put the file back, name other clients with --first, or let the client create a new key "
                f"(`secagg keys new`) and sign it with `secagg keys sign --replace {client.value}`"
            )
    if is_new:
        make_authority(path, coins)
    authority, made, requests = load_authority(path), 0, list[Request]()
    for client in asked:
        if not (own := folder / client_file(client)).exists():
            new_identity(own, client, authority.public_key, coins)
            made += 1
        if client not in known:  # Includes keys of a call that was killed before it signed.
            requests.append(Request.of(authority.public_key, client, _key_of(own)))
    signed = {each.client: each for each in sign_requests(listed, authority, requests, clock=clock)}
    for client in asked:
        fields = _read(own := folder / client_file(client), "client")
        if "certificate" not in fields:
            fields["certificate"] = (signed.get(client) or known[client]).grant.hex()
            replace(own, _text(fields))
    return made, is_new


def _issued(listed: Path, authority: bytes | None) -> Mapping[ClientId, Certificate]:
    """Return what the roster of a folder's authority has issued, if there is one."""
    if authority is None and listed.exists():
        raise InvalidParameters(f"the key of {listed}'s authority is not in {listed.parent}; use another folder")
    if not listed.exists() or not listed.stat().st_size:
        return {}
    if (roster := load_roster(listed)).authority != authority:
        raise InvalidParameters(f"{listed} does not have the authority of {AUTHORITY_FILE}; use another folder")
    return roster.issued


def load_identity(path: Path) -> ClientIdentity:
    """Read a client's key file, which must be private to its owner, and verify its certificate."""
    fields = _read(path, "client")
    key, beside = _signing_key(path, fields), certificate_file(path)
    if "certificate" not in fields:
        if not beside.exists():
            raise InvalidParameters(
                f"{path} has no certificate yet: give its request to the authority, and save the output of "
                f"`secagg keys sign` as {beside}"
            )
        fields["certificate"] = beside.read_text(encoding="ascii", errors="replace")
    try:
        client = ClientId(fields["id"])
        authority = Authority(bytes.fromhex(fields["authority"]))
        certificate = Certificate(client, key.public_key, bytes.fromhex(fields["certificate"]))
        authority.verify(certificate)
    except (KeyError, TypeError, ValueError, AuthenticationFailed):
        raise _unreadable(path, "client") from None
    return ClientIdentity(client, key, certificate, authority)


@dataclass(frozen=True, slots=True)
class _Follower:
    """A client that checks a roster as it would check an offer."""

    certificate: Certificate
    standings: Store
    clock: Clock
    policy: ClientPolicy = field(default_factory=ClientPolicy)


def follow(path: Path, roster: Roster, state: Store, *, clock: Clock = system_clock) -> ClientIdentity:
    """Make a client trust its authority's new key; its own key and state stay.

    Raises:
        InvalidParameters: the roster does not lead from the client's authority, is older than seen or than a day, or
            has no live certificate of this client's key; its file has not changed.
    """
    own = load_identity(path)
    before, certificate = own.authority.public_key, roster.certificates.get(own.client)
    if before not in roster.authorities:
        raise InvalidParameters(
            f"the roster does not lead from the authority that {path} trusts; use that authority's newest roster"
        )
    if certificate is None or certificate.public_key != own.signing_key.public_key:
        raise InvalidParameters(f"the roster has no live certificate for the key in {path}; create another request")
    require_standing(roster.standing, _Follower(certificate, state, clock), roster.authority)
    # Heads signed by the old key are older, and refused from here on.
    state.see_standing(before, roster.standing)
    state.rotate(before, roster.authority)
    fields = {"authority": roster.authority.hex(), "certificate": certificate.grant.hex()}
    # Keep the link, so that the private key stays where it is.
    replace(path.resolve(), _text({**_read(path, "client"), **fields}))
    return load_identity(path)


def _key_of(path: Path) -> SigningKey:
    return _signing_key(path, _read(path, "client"))


def load_authority(path: Path) -> SigningKey:
    """Read the authority's key file."""
    return _signing_key(path, _read(path, "authority"))


def load_signing_key(path: Path) -> SigningKey:
    """Read a key made by `secagg holder keys`, or an authority's key."""
    try:
        data = read_private(path)
    except OSError as error:
        raise InvalidParameters(f"{path} cannot be read: {error.strerror}") from None
    if len(data) != IDENTITY_KEY_BYTES:
        return load_authority(path)
    with Secret("signing key", data) as seed:
        return SigningKey(seed)


def read_private(path: Path) -> bytes:
    """Read a file with a key, which must be private to its owner."""
    with path.open("rb") as file:
        _require_private(path, os.fstat(file.fileno()).st_mode)
        return file.read()


def _require_private(path: Path, mode: int) -> None:
    if hasattr(os, "getuid") and stat.S_IMODE(mode) & 0o077:
        raise InvalidParameters(f"{path} contains a private key that others can read; run chmod 600 on it")


def _read(path: Path, kind: str) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            mode, fields = os.fstat(file.fileno()).st_mode, cast("object", json.loads(file.read()))
    except FileNotFoundError:
        raise InvalidParameters(f"there is no file {path}; create one with `secagg keys`, or use another") from None
    except (OSError, ValueError, RecursionError):
        raise _unreadable(path, kind) from None
    if not isinstance(fields, dict):
        raise _unreadable(path, kind)
    named = cast("dict[str, Any]", fields)
    if named.get("format") == FORMAT and named.get("kind") != kind:
        raise InvalidParameters(f"{path} is a file of the wrong kind ({named.get('kind')!r}); use a {kind} file")
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
    return InvalidParameters(f"{path} is not a {kind} file with a valid certificate; create one with `secagg keys`")
