"""Standings: what an authority has revoked at a given time, and what a client remembers of it.

A roster ends in a signed head. The head and the numbers of revoked certificates form a *standing*. A server includes it
in its offer, and T0 binds it. A client refuses a standing that is older than one it has seen or than its policy allows.
The time of the standing decides whether a certificate has expired, so all clients of a session agree; a client's own
clock only judges the age of the standing. A standing's number is the second in which it was made, so nobody who holds
the authority's key briefly can make one that no later standing exceeds.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol

from secagg.errors import AuthenticationFailed, InternalError, InvalidParameters, Reason

from .certificates import HOUR, NO_STANDING, Certificate, Standing

if TYPE_CHECKING:
    from .client_policy import ClientPolicy

Clock = Callable[[], datetime]
CLOCKS_APART: Final = HOUR
"""Maximum lead of an authority's clock over a client's, in seconds."""


def system_clock() -> datetime:
    """Return this machine's time."""
    return datetime.now(UTC)


class Standings(Protocol):
    """Durable memory of each authority's newest standing; a ``Store`` is one."""

    def see_standing(self, authority: bytes, standing: Standing) -> None:
        """Remember a verified standing, or refuse it."""


class SeenStandings:
    """Memory of standings that ends with its process."""

    def __init__(self) -> None:
        self._newest = dict[bytes, Standing]()
        self.evidence = list[tuple[Standing, Standing]]()
        """Pairs of different standings with the same number, which only a dishonest authority signs."""

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
    """Refuse a standing that is older than the newest seen, or a different one with the same number.

    Raises:
        InvalidParameters: says which.
    """
    if seen is None:
        return
    if standing.number < seen.number:
        raise _refused(
            f"is of {_time(standing.number)}, but this client has seen one of {_time(seen.number)}: a server that "
            "shows an older one hides later revocations; give the server the authority's newest roster"
        )
    if standing.number == seen.number and standing.parts != seen.parts:
        raise _refused(
            f"of {_time(seen.number)} differs from another one of the same time, and the authority signed both: it "
            "shows clients different lists of revoked keys. Both are kept as evidence; ask the authority"
        )


class Certified(Protocol):
    """A client with a certificate, in any protocol."""

    @property
    def certificate(self) -> Certificate | None: ...
    @property
    def policy(self) -> ClientPolicy: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def standings(self) -> Standings: ...


def require_standing(standing: Standing, client: Certified, authority: bytes) -> None:
    """Refuse an offer whose standing is forged, too old for a policy, older than one seen, or revokes this client.

    Call it after an offer's other checks, because it remembers the standing.

    Raises:
        InvalidParameters: with reason ``below_floor``; says what is wrong and what to do.
    """
    if (certificate := client.certificate) is None:
        raise InternalError("only a client with a certificate can check a standing")
    now, longest, said = client.clock().timestamp(), client.policy.maximum_standing_age, _time(standing.number)
    if standing == NO_STANDING:
        raise _refused("is missing; give the server the authority's roster")
    try:
        standing.verify(authority)
    except AuthenticationFailed:
        raise _refused("is not signed by this client's authority; give the server its roster") from None
    if standing.number > now + CLOCKS_APART:
        raise _refused(f"is of {said}, in the future; compare this machine's clock with the authority's")
    if now - standing.number > longest:
        raise _refused(
            f"is of {said}, {(now - standing.number) / HOUR:.0f} hours old, but this client accepts at most "
            f"{longest / HOUR:g}; run `secagg keys renew` where the authority's key is and give the server the roster, "
            "or raise maximum_standing_age"
        )
    client.standings.see_standing(authority, standing)
    if certificate.number in standing.revoked:
        raise _refused(
            f"of {said} revokes this client's own certificate (number {certificate.number}). If you did not "
            "request that, warn the authority: somebody else may hold a key in this client's name. Otherwise use the "
            "new key"
        )
    if certificate.expiry <= standing.number:
        raise _refused(
            f"is later than the expiry of this client's certificate, {_time(certificate.expiry)}; ask for a new one: "
            "secagg keys new --replaces KEY"
        )


def _refused(sentence: str) -> InvalidParameters:
    return InvalidParameters(f"the standing of the roster {sentence}", reason=Reason.BELOW_FLOOR)


def _time(seconds: int) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"second {seconds}"
