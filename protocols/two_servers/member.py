"""A client's state across rounds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from secagg.contract import Layout
from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Confined
from secagg.privacy.client_noise import NO_NOISE, NoiseSettings
from secagg.session.certificates import Certificate, SigningKey
from secagg.session.client_policy import ClientPolicy
from secagg.session.ledger import Spent
from secagg.session.registry import Clock
from secagg.session.roles import Subject
from secagg.session.standings import SeenStandings, Standings

from .configuration import ServerNoise
from .release import server_noise


def bound_layout(subject: Subject, model_digest: bytes | None) -> Layout:
    """Return a layout whose version also covers model, capacity and terms, which the servers do not know."""
    bound = bind(
        Label.SESSION_LAYOUT,
        subject.layout.version,
        subject.capacity.to_bytes(8, "big"),
        model_digest or bytes(hashlib.sha256().digest_size),
        subject.terms,
    )
    return Layout(subject.layout.segments, hashlib.sha256(bound).digest())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class MemberParts(Confined):
    """A client's keys, policy and ledger; ``TwoServersMember`` joins rounds with them."""

    certificate: Certificate
    """The authority's certificate for the signing key."""
    signing_key: SigningKey
    policy: ClientPolicy
    charge: Callable[[Spent], None]
    """Charges an upload before its update is made; raises to refuse, and is durable when it returns, like
    ``SpentUpdates.charge``.
    """
    clock: Clock
    coins: Coins
    """``SystemCoins()`` in production."""
    accepts_simulated: bool = False
    """Whether to accept a second server that the first one simulates; only for rehearsals."""
    threads: int = 1
    standings: Standings = field(default_factory=SeenStandings)
    """Remembers the newest standing of the authority, in a ``Store`` or in this process only."""
    noise: NoiseSettings = NO_NOISE
    """Noise that the servers must add; the client refuses a round with other noise."""

    def layout_for(self, subject: Subject, model: bytes) -> Layout:
        """Return the layout that the servers must aggregate for a model, given its digest."""
        return bound_layout(subject, model)

    def noise_for(self, subject: Subject) -> ServerNoise | None:
        """Return the noise that each server must add."""
        return server_noise(self.noise, subject.layout)
