"""What the closed rounds of a session have settled: who advertised, who of them shared keys, who of them uploaded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from secagg.blame import said_by, unverified
from secagg.errors import InternalError, PeerMisbehaved, Reason
from secagg.identifiers import ClientId, Party
from secagg.parameters import SecurityMode
from secagg.session.certificates import VerifiedIdentity

from .advertisement import VerifiedAdvertiser
from .client_set import ClientSet
from .configuration import SessionConfiguration
from .roster import Roster
from .round0_advertise_keys import PublishedRoster

Known = TypeVar("Known")


@dataclass(frozen=True, slots=True)
class Settled:
    """What the server's later rounds start from; a round that is not closed has settled nothing."""

    published: PublishedRoster = field(repr=False)
    advertisers: tuple[VerifiedAdvertiser, ...] = field(repr=False)
    """In the order of the roster."""
    known_sharers: ClientSet | None = None
    known_contributors: ClientSet | None = None

    @property
    def roster(self) -> Roster:
        """Who advertised."""
        return self.published.roster

    @property
    def configuration(self) -> SessionConfiguration:
        """What the session agrees on."""
        return self.published.roster.configuration

    @property
    def sharers(self) -> ClientSet:
        """Who shared keys."""
        return certain(self.known_sharers)

    @property
    def contributors(self) -> ClientSet:
        """Who of the sharers uploaded."""
        return certain(self.known_contributors)

    @property
    def is_active(self) -> bool:
        """Whether clients sign what they send."""
        return self.configuration.mode is SecurityMode.ACTIVE

    def identity_of(self, position: int) -> VerifiedIdentity:
        """Return the identity of a client of an active session."""
        return certain(self.advertisers[position].identity)

    def position_of(self, client: ClientId) -> int:
        """Return where a client stands in the roster.

        Raises:
            PeerMisbehaved: it did not advertise.
        """
        position = self.roster.position_of(client)
        if position is None:
            raise PeerMisbehaved(
                f"{client} is not on the roster", reason=Reason.NOT_ELIGIBLE, culprits=unverified(client)
            )
        return position

    def set_of(self, clients: Iterable[ClientId]) -> ClientSet:
        """Return the set of these clients."""
        return self.roster.set_of(self.position_of(client) for client in clients)

    def with_sharers(self, clients: Iterable[ClientId]) -> Settled:
        """Return what is settled when the second round is closed."""
        return replace(self, known_sharers=self.set_of(clients))

    def with_contributors(self, clients: Iterable[ClientId]) -> Settled:
        """Return what is settled when the third round is closed."""
        return replace(self, known_contributors=self.set_of(clients))

    def said_by(self, position: int) -> frozenset[Party]:
        """Return who answers for what a client sent."""
        return said_by(self.roster.clients[position], self.configuration.mode)


def certain(value: Known | None) -> Known:
    """Return what an earlier round, or the mode of the session, has made sure of."""
    if value is None:
        raise InternalError("a round reads what no round before it has settled")
    return value
