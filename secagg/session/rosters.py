"""Rosters: what an authority certified and revoked, in one text file that only grows.

``secagg-roster 1``, the authority's key, then a line for each certificate that was issued or revoked. Each append ends
in a head, which signs all that is before it. A torn append has no head; readers ignore it, and the next append replaces
it. A roster extends each of its earlier forms byte for byte, which anybody who has kept one can check.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from secagg.crypto.labels import Label
from secagg.errors import AuthenticationFailed, InvalidParameters
from secagg.identifiers import ClientId

from .certificates import HOUR, Authority, Certificate, SigningKey, issue_certificate, verify_signature
from .durable import PUBLIC, claim, sync_folder
from .standings import CLOCKS_APART, NO_STANDING, Clock, Standing, system_clock

ROSTER_FILE: Final = "roster.txt"
_FIRST: Final = "secagg-roster 1"
_REQUEST: Final = "secagg-request-1"
DAYS: Final = 365
_MOST_DAYS: Final = 3660


@dataclass(frozen=True, slots=True)
class Roster:
    """Clients that may take part, as of the newest head of an authority's roster."""

    authority: bytes
    certificates: Mapping[ClientId, Certificate]
    """The live certificate of each client: neither revoked nor expired."""
    standing: Standing = NO_STANDING
    text: str = field(default="", repr=False)
    """All up to the head."""
    issued: Mapping[ClientId, Certificate] = field(default_factory=dict[ClientId, Certificate], repr=False)
    """The last certificate of each client that ever had one."""

    @property
    def clients(self) -> frozenset[ClientId]:
        return frozenset(self.certificates)


@dataclass(frozen=True, slots=True)
class Request:
    """A key for which a client asks an authority to vouch, with the proof that it holds the private key."""

    authority: bytes
    client: ClientId
    public_key: bytes
    proof: bytes
    proof_of_live_key: bytes = b""
    """Signature of the key that the client has now, where it replaces one."""

    @property
    def _statement(self) -> tuple[bytes, ...]:
        return self.authority, self.client.encode(), self.public_key

    @classmethod
    def of(cls, authority: bytes, client: ClientId, key: SigningKey, live: SigningKey | None = None) -> Request:
        """Ask for a certificate of a new key; the live key signs as well where there is one."""
        statement = authority, client.encode(), key.public_key
        proofs = [b"" if each is None else each.sign(Label.KEY_REQUEST, *statement) for each in (key, live)]
        return cls(authority, client, key.public_key, *proofs)

    def encode(self) -> str:
        """Return it as a line."""
        words = _REQUEST, self.authority.hex(), str(self.client.value), self.public_key.hex(), self.proof.hex()
        return " ".join((*words, self.proof_of_live_key.hex())).strip() + "\n"

    @classmethod
    def decode(cls, text: str) -> Request:
        """Read a line and check its proof of possession."""
        try:
            authority, client, *keys = text.removeprefix(_REQUEST).split()
            request = cls(bytes.fromhex(authority), ClientId(int(client)), *map(bytes.fromhex, keys))
            request.verify(request.public_key, request.proof)
        except (TypeError, ValueError, AuthenticationFailed) as error:
            raise InvalidParameters(
                f"it is not a request with a proof that its sender holds the key ({type(error).__name__}); "
                "make one with `secagg keys new`"
            ) from None
        return request

    def verify(self, key: bytes, proof: bytes) -> None:
        """Check that a key signed the request."""
        verify_signature(key, proof, Label.KEY_REQUEST, *self._statement)


# --- Reading ----------------------------------------------------------------------------------------------------------


def load_roster(path: Path) -> Roster:
    """Read a roster up to its last whole head, and check the head and the order of what it signs.

    Raises:
        InvalidParameters: there is none, or it was altered.
    """
    try:
        text = path.read_text(encoding="ascii")
    except FileNotFoundError:
        raise InvalidParameters(f"there is no file {path}; make one with `secagg keys`, or name another") from None
    except (OSError, ValueError):
        raise _unreadable(path, "it is no text") from None
    try:
        return _parsed(text)
    except (ValueError, TypeError, KeyError, InvalidParameters, AuthenticationFailed) as error:
        raise _unreadable(path, str(error) or "it was altered") from None


def _parsed(text: str) -> Roster:
    lines = text.splitlines(keepends=True)
    while lines and not (lines[-1].startswith("head ") and lines[-1].endswith("\n")):
        lines.pop()  # A torn append: nobody was given it.
    if not lines:
        raise ValueError("it has no signed head")
    before, (number, signature) = "".join(lines[:-1]), lines[-1].split()[1:]
    entries = _Entries.of(before)
    standing = replace(entries.standing(int(number), before), signature=bytes.fromhex(signature))
    standing.verify(entries.authority)
    valid = {client: each for client, each in entries.live.items() if each.expiry > standing.number}
    return Roster(entries.authority, valid, standing, "".join(lines), entries.last)


@dataclass(slots=True)
class _Entries:
    """What the lines of a roster say together."""

    authority: bytes
    issued: list[Certificate] = field(default_factory=list[Certificate])
    live: dict[ClientId, Certificate] = field(default_factory=dict[ClientId, Certificate])
    """Not revoked; it may have expired."""
    keys: set[bytes] = field(default_factory=set[bytes])
    last: dict[ClientId, Certificate] = field(default_factory=dict[ClientId, Certificate])

    @classmethod
    def of(cls, text: str) -> _Entries:
        name, authority, *lines = text.splitlines()
        if name != _FIRST:
            raise ValueError("it begins otherwise")
        made = cls(Authority(bytes.fromhex(authority.removeprefix("authority "))).public_key)
        made.keys.add(made.authority)
        for line in lines:
            made.take(*line.split())
        return made

    def take(self, kind: str, *words: str) -> None:
        """Read one line."""
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
                raise ValueError(f"it revokes another number than the live one of client {client}")
        elif kind != "head":
            raise ValueError(f"it has a line that begins with {kind!r}")

    def standing(self, number: int, before: str) -> Standing:
        """Return the standing after some text, without a signature."""
        live = {each.number for each in self.live.values()}
        revoked = [each.number for each in self.issued if each.number not in live and each.expiry > number]
        return Standing(number=number, digest=hashlib.sha256(before.encode("ascii")).digest(), revoked=tuple(revoked))


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
    """Certify the keys of requests and append them to the roster: all, or none where one is refused.

    Args:
        replaces: the client that gets a new key without a proof by the live one; the only one of the requests.
        days: until the certificates expire.
    Raises:
        InvalidParameters: a request is for another authority, its number has a history and no proof by its live key,
            or its key was certified before.
    """
    if not 1 <= days <= _MOST_DAYS:
        raise InvalidParameters(f"--days must be between 1 and {_MOST_DAYS}; got {days}")
    asked = list(requests)
    if replaces is not None and [each.client for each in asked] != [replaces]:
        raise InvalidParameters(f"--replace {replaces.value} takes one request, that of client {replaces.value}")
    made, asking = list[Certificate](), set[ClientId]()

    def lines(known: _Entries, now: int) -> Iterable[str]:
        for request in asked:
            client, held = request.client.value, known.live.get(request.client)
            if request.authority != authority.public_key:
                raise InvalidParameters(f"client {client} asks another authority; let it make a request to this one")
            if request.public_key in known.keys:
                raise InvalidParameters(f"the key of client {client} was certified before; a client makes a new one")
            if request.client in asking:
                raise InvalidParameters(f"client {client} asks twice; sign only the request that is its own")
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


def _require_live_proof(request: Request, held: Certificate | None) -> None:
    number, advice = request.client.value, "if you know that the new key is that client's, sign it with --replace"
    if held is None:
        raise InvalidParameters(f"client {number} had a key, which was revoked or has expired; {advice} {number}")
    if not request.proof_of_live_key:
        raise InvalidParameters(f"client {number} has a key, and the request has no proof by it; {advice} {number}")
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
    """Append a head and nothing else, so that clients do not take the standing for old."""
    _append(path, authority, lambda *_: (), clock)


def _append(path: Path, authority: SigningKey, lines: Callable[[_Entries, int], Iterable[str]], clock: Clock) -> None:
    """Append lines and a head; where one is refused, nothing."""
    now = int(clock().timestamp())
    with open(path, "a+b", opener=lambda name, flags: os.open(name, flags, PUBLIC)) as file:
        claim(file.fileno(), f"{path} is being written by another process; try again")
        roster = load_roster(path) if file.seek(0) or b"\nhead " in file.read() else None
        if roster is not None and roster.authority != authority.public_key:
            raise InvalidParameters(f"{path} is the roster of another authority; name the key that signed it")
        if roster is not None and roster.standing.number > now + CLOCKS_APART:
            raise InvalidParameters(f"{path} ends in a head of the future; set this machine's clock right")
        before = f"{_FIRST}\nauthority {authority.public_key.hex()}\n" if roster is None else roster.text
        known, text = _Entries.of(before), before
        for line in lines(known, now):
            known.take(*line.split())
            text += f"{line}\n"
        number = now if roster is None else max(now, roster.standing.number + 1)
        head = known.standing(number, text).signed(authority)
        text += f"head {number} {head.signature.hex()}\n"
        kept = 0 if roster is None else len(before)
        file.truncate(kept)
        file.write(text[kept:].encode("ascii"))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def _unreadable(path: Path, why: str) -> InvalidParameters:
    return InvalidParameters(f"{path} is not a roster that its authority signed: {why}; take the authority's newest")
