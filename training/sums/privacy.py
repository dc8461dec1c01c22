"""Differential privacy of a run: noise of the enclave or of clients, and what it costs the client in most rounds.

Clients clip what they changed to ``local.clip``. The enclave adds noise to everything that it releases, or each client
its share of it to what it uploads. No
amplification by sampling is counted, because a server that invites its clients knows them: what counts is how often a
client is really in a round, which follows from the seed before anything is trained.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from secagg.compression.model_update import ModelUpdate
from secagg.compression.rounded_rotation import RoundedRotation
from secagg.contract.layout import RingSegment
from secagg.errors import InternalError, InvalidParameters
from secagg.privacy.client_noise import noise_in
from secagg.privacy.sensitivity import Adjacency
from secagg.training.settings.configuration import Configuration
from secagg.training.settings.parts import Cohorts
from secagg.training.settings.sections import WHOLE_UPDATES, PrivacySettings, Scheme, Source, SumMode, Weighting

_FLOAT_ROOM: Final = 1 + 2.0**-16
"""A clipped norm was computed in floats of 24 bits."""
_SAID_BY_PRIVACY: Final = frozenset(
    {
        "noise_multiplier",
        "l2_bounds",
        "adjacency",
        "is_rotated",
        "releases_per_client",
        "budget_epsilon",
        "budget_delta",
    }
)
"""Settings of protocols that follow from the sections privacy and local."""


@dataclass(frozen=True, slots=True)
class Noised:
    """The noise of one session."""

    deviations: tuple[float, ...]
    """Of each released segment, in integer steps."""
    epsilon: float
    """What all rounds so far cost the client that is in most of them."""


class RunNoise:
    """The noise of a run's sessions."""

    def __init__(self, settings: PrivacySettings, *, clip: float, fraction_bits: int, rounds: int) -> None:
        """Take over what is configured; ``require_private`` has judged it."""
        self.settings, self._clip, self._fraction_bits, self._rounds = settings, clip, fraction_bits, rounds

    @property
    def _adjacency(self) -> Adjacency:
        return Adjacency.ZERO_OUT if self.settings.zero_out else Adjacency.REPLACE

    def settings_for(self, codec: ModelUpdate) -> dict[str, Any]:
        """Return what a protocol's settings say of noise.

        All ring segments are fixed point of one step, whose rounding moves a value by at most half of it, or there is
        one of steps that were rounded to a bound.
        """
        scheme = codec.tensors[0].scheme
        if isinstance(scheme, RoundedRotation):
            return self._settings_for((scheme.l2_bound,), is_rotated=True)
        rings = [segment for segment in codec.layout.segments if isinstance(segment, RingSegment)]
        clipped = math.ldexp(self._clip * _FLOAT_ROOM, self._fraction_bits)
        bounds = tuple(math.ceil(clipped + math.sqrt(segment.length) / 2) for segment in rings)
        return self._settings_for(bounds, is_rotated=False)

    def _settings_for(self, bounds: tuple[int, ...], *, is_rotated: bool) -> dict[str, Any]:
        settings = self.settings
        return {
            "budget_epsilon": Fraction(str(settings.epsilon)) if settings.epsilon else None,
            "budget_delta": Fraction(str(settings.delta)),
            "noise_multiplier": Fraction(str(settings.noise_multiplier)),
            "l2_bounds": bounds,
            "is_rotated": is_rotated,
            "releases_per_client": self._rounds,
            "adjacency": self._adjacency,
        }

    def of(self, session: object, releases: int) -> Noised:
        """Return the noise of a session, or of clients without one, and its cost for a client in so many releases.

        Raises:
            InvalidParameters: histograms leave the enclave.
        """
        if (noise := noise_in(session)) is not None:
            return Noised(noise.deviations, noise.epsilon(self.settings.delta, releases))
        from secagg.protocols.enclave import (  # noqa: PLC0415 -- a protocol, where it is asked for
            Server,
            epsilon_of,
        )

        if not isinstance(session, Server) or session.configuration.noise is None:
            raise InternalError("the session was to be an enclave's, with noise, and is not")
        configuration = session.configuration
        if configuration.index_segments and not configuration.tables:
            raise InvalidParameters(
                "noise is for decoded sums, which tell less than histograms: take form=decoded_sum in secagg.settings"
            )
        deviations = tuple(math.sqrt(variance) for variance in session.configuration.noise.variances)
        return Noised(deviations, epsilon_of(configuration, self.settings.delta, self._adjacency, releases=releases))


def require_private(configuration: Configuration) -> None:
    """Refuse noise that only a protocol's settings speak of, and what noise does not go together with.

    Raises:
        InvalidParameters: saying what to take instead.
    """
    for assigned in configuration.secagg.settings:
        name = assigned.partition("=")[0]
        if name in _SAID_BY_PRIVACY or (name == "noise_kind" and not configuration.privacy.is_on):
            raise InvalidParameters(
                f"secagg.settings has {name}, and the noise of a run is accounted by what the section privacy says: "
                "set privacy.noise_multiplier, privacy.zero_out and local.clip instead"
            )
    if not configuration.privacy.is_on:
        return
    for is_wrong, sentence in _conflicts(configuration):
        if is_wrong:
            raise InvalidParameters(f"privacy.noise_multiplier is above 0, and {sentence}")


def _conflicts(configuration: Configuration) -> Iterator[tuple[bool, str]]:
    secagg, source = configuration.secagg, configuration.compression.source
    yield (
        secagg.mode is SumMode.REAL and secagg.every != 1,
        "the sums between in the clear have none: take secagg.every = 1",
    )
    yield configuration.local.clip is None, "noise is chosen for a largest norm: set local.clip"
    yield (
        configuration.server.weighting is not Weighting.EQUAL,
        "with noise every client weighs 1: take server.weighting = 'equal'",
    )
    yield configuration.asynchronous.buffer > 0, "noise is for rounds: take asynchronous.buffer = 0"
    yield (
        configuration.compression.has_codes,
        "codes of a few bits have no room for noise: take compression.scheme = 'pq', 'pruning' or 'none'",
    )
    yield (
        configuration.compression.scheme in set(WHOLE_UPDATES) - {Scheme.ROTATED},
        "lengths beside a whole update would drown in it: take compression.scheme = 'rotated', 'pruning' or 'none'",
    )
    yield (
        source not in {None, Source.PUBLIC},
        "scales and codebooks may come from public data alone: take compression.calibration = 'public'",
    )


class ReleaseCount:
    """In how many rounds each client was."""

    def __init__(self, cohorts: Cohorts, available: int, rounds: int = 0) -> None:
        """Count the rounds that are over; it follows from the seed who was in them."""
        self._counts = Counter[int]()
        for number in range(rounds):
            clients = cohorts.invited(available, number)[: cohorts.size]
            self.add(cohorts.uploaders(clients, cohorts.lost(clients, number)))

    def add(self, clients: tuple[int, ...]) -> None:
        """Count one more round."""
        self._counts.update(clients)

    def most_with(self, clients: tuple[int, ...]) -> int:
        """Return how many rounds the client is in that is in most, once a round with these is over."""
        so_far = max(self._counts.values(), default=0)
        return max(so_far, *(1 + self._counts[client] for client in clients)) if clients else max(1, so_far)

    @property
    def most(self) -> int:
        """How many rounds the client was in that was in most."""
        return max(self._counts.values(), default=0)


def require_budget(noise: RunNoise, session: object, most: int, rounds: int) -> None:
    """Refuse a run that would cost a client more than its limit.

    Raises:
        InvalidParameters: saying what the run would cost.
        CapacityExceeded: a sum with its noise could leave its ring.
    """
    settings, spent = noise.settings, noise.of(session, max(1, most)).epsilon
    if settings.epsilon and spent > settings.epsilon:
        raise InvalidParameters(
            f"the client that is in most rounds, {most} of {rounds}, would spend epsilon {spent:.3g} at "
            f"delta {settings.delta:g}, above privacy.epsilon = {settings.epsilon:g}; raise privacy.noise_multiplier "
            "or data.clients, or lower rounds"
        )
