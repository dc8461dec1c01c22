"""What an authority has revoked at a time, and what a client remembers of that.

A roster ends in a signed head. The head with the numbers of revoked certificates is a *standing*: a server shows it in
its offer, T0 binds it, and a client refuses one that is older than it has seen or than its policy allows. Whether a
certificate has expired is judged at the time of the standing, so that all clients of a session agree on it; a client's
own clock judges only the age of the standing. A standing's number is the second in which it was made, so that nobody
who has the authority's key for a moment can make one that no later standing exceeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Final, Protocol

from secagg.crypto.labels import Label
from secagg.declared import fixed, repeated, unsigned
from secagg.errors import UNDECIDED, AuthenticationFailed, InternalError, InvalidParameters, Reason
from secagg.identifiers import Party

from .certificates import HOUR, SIGNATURE_BYTES, Certificate, SigningKey, verify_signature

if TYPE_CHECKING:
    from .client_policy import ClientPolicy

Clock = Callable[[], datetime]
DIGEST_BYTES: Final = 32
MOST_REVOKED: Final = 1 << 16
CLOCKS_APART: Final = HOUR
"""Seconds by which an authority's clock may be ahead of a client's."""
_CACHED: Final = 64


def system_clock() -> datetime:
    """Return the time of this machine."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Head of an authority's roster: a time, the digest of all before it, and the numbers that were revoked."""

    number: Annotated[int, unsigned(8)] = 0
    """When it was made, in seconds since 1970; each standing of an authority has a higher one than those before."""
    digest: Annotated[bytes, fixed(DIGEST_BYTES)] = bytes(DIGEST_BYTES)
    revoked: Annotated[tuple[int, ...], repeated(unsigned(4), MOST_REVOKED)] = ()
    """Revoked certificates that have not expired, increasing."""
    signature: Annotated[bytes, fixed(SIGNATURE_BYTES)] = field(default=bytes(SIGNATURE_BYTES), repr=False)

    def __post_init__(self) -> None:
        if list(self.revoked) != sorted({*self.revoked}) or len(self.revoked) > MOST_REVOKED:
            raise InvalidParameters(f"a standing lists at most {MOST_REVOKED} revoked numbers, once each, increasing")

    def encode(self) -> bytes:
        """Return what ``decode`` reads."""
        return b"".join((*self.parts, self.signature))

    @classmethod
    def decode(cls, encoded: bytes) -> Standing:
        """Read a standing of this client's own state."""
        revoked = encoded[8 + DIGEST_BYTES : -SIGNATURE_BYTES]
        return cls(
            number=int.from_bytes(encoded[:8], "big"),
            digest=encoded[8 : 8 + DIGEST_BYTES],
            revoked=tuple(int.from_bytes(revoked[at : at + 4], "big") for at in range(0, len(revoked), 4)),
            signature=encoded[-SIGNATURE_BYTES:],
        )

    @property
    def parts(self) -> tuple[bytes, ...]:
        """What is signed besides the authority's key."""
        return self.number.to_bytes(8, "big"), self.digest, *(each.to_bytes(4, "big") for each in self.revoked)

    def signed(self, authority: SigningKey) -> Standing:
        """Return it with the authority's signature."""
        return replace(self, signature=authority.sign(Label.STANDING, authority.public_key, *self.parts))

    def verify(self, authority: bytes) -> None:
        """Refuse a standing that the authority has not signed."""
        _verify(authority, self)

    def require_valid(self, certificate: Certificate, *, culprits: Iterable[Party] = UNDECIDED) -> None:
        """Refuse a certificate that was revoked or had expired when the standing was made.

        Raises:
            AuthenticationFailed: naming the culprits.
        """
        if certificate.number in self.revoked or certificate.expiry <= self.number:
            raise AuthenticationFailed(culprits=culprits)


NO_STANDING: Final = Standing()
"""In place of a standing where nobody certifies clients; a client of an authority refuses it as too old."""


class Standings(Protocol):
    """Durable memory of the newest standing of each authority; a ``Store`` is one."""

    def see_standing(self, authority: bytes, standing: Standing) -> None:
        """Remember a verified standing, or refuse it."""


class SeenStandings:
    """Memory of standings that does not outlive its process."""

    def __init__(self) -> None:
        self._newest = dict[bytes, Standing]()
        self.evidence = list[tuple[Standing, Standing]]()
        """Pairs of different standings with one number, which only a dishonest authority signs."""

    def see_standing(self, authority: bytes, standing: Standing) -> None:
        seen = self._newest.get(authority)
        try:
            require_newer(seen, standing)
        except InvalidParameters:
            if seen is not None and seen.number == standing.number:
                self.evidence.append((seen, standing))
            raise
        self._newest[authority] = standing


def require_newer(seen: Standing | None, standing: Standing) -> None:
    """Refuse a standing that is older than the newest seen, or another one with the same number.

    Raises:
        InvalidParameters: saying which.
    """
    if seen is None:
        return
    if standing.number < seen.number:
        raise _refused(
            f"is of {_said(standing)}, and this client has seen one of {_said(seen)}: a server that shows an older "
            "one hides what was revoked since; give the server the authority's newest roster"
        )
    if standing.number == seen.number and standing.parts != seen.parts:
        raise _refused(
            f"of {_said(standing)} differs from another one of the same time, and the authority signed both: it shows "
            "clients different lists of revoked keys. Both are kept as evidence; ask the authority"
        )


class Certified(Protocol):
    """A client with a certificate, as every protocol has one."""

    @property
    def certificate(self) -> Certificate | None: ...
    @property
    def policy(self) -> ClientPolicy: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def standings(self) -> Standings: ...


def require_standing(standing: Standing, client: Certified, authority: bytes) -> None:
    """Refuse an offer whose standing is forged, too old for a policy, older than seen, or against this client.

    It is the last check before an update is made, since it remembers what it has seen.

    Raises:
        InvalidParameters: with reason ``below_floor``; what is wrong, and what to do.
    """
    if (certificate := client.certificate) is None:
        raise InternalError("a client without a certificate looks at a standing")
    now, longest = client.clock().timestamp(), client.policy.maximum_standing_age
    if standing == NO_STANDING:
        raise _refused("is missing; give the server the authority's roster")
    try:
        standing.verify(authority)
    except AuthenticationFailed:
        raise _refused("is not signed by this client's authority; give the server its roster") from None
    if standing.number > now + CLOCKS_APART:
        raise _refused(f"is of {_said(standing)}, in the future; compare this machine's clock with the authority's")
    if now - standing.number > longest:
        raise _refused(
            f"is of {_said(standing)}, {(now - standing.number) / HOUR:.0f} hours old, and this client accepts at most "
            f"{longest / HOUR:g}; run `secagg keys renew` where the authority's key is and give the server the roster, "
            "or raise maximum_standing_age"
        )
    client.standings.see_standing(authority, standing)
    if certificate.number in standing.revoked:
        raise _refused(
            f"of {_said(standing)} revokes this client's own certificate (number {certificate.number}). If you did not "
            "ask for that, warn the authority: somebody else may hold a key in this client's name. Otherwise use the "
            "new key"
        )
    if certificate.expiry <= standing.number:
        raise _refused(
            f"is later than the expiry of this client's certificate, {_time(certificate.expiry)}; ask for a new one: "
            "secagg keys new --replaces KEY"
        )


def _refused(sentence: str) -> InvalidParameters:
    return InvalidParameters(f"the standing in the offer {sentence}", reason=Reason.BELOW_FLOOR)


def _said(standing: Standing) -> str:
    return _time(standing.number)


def _time(seconds: int) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"second {seconds}"


@lru_cache(maxsize=_CACHED)
def _verify(authority: bytes, standing: Standing) -> None:
    verify_signature(authority, standing.signature, Label.STANDING, authority, *standing.parts)
