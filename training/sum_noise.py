"""Plans the noise of a run's sums, and checks configurations with privacy.

Clients clip their change to ``local.clip``. The enclave adds noise to everything that it releases, or each client adds
its share to its upload. Amplification by sampling is not claimed, because the server knows which clients it invites.
Costs are computed from a client's actual number of rounds, which the seed fixes before training.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from secagg.compression.model_update import ModelUpdate
from secagg.compression.rotation import RoundedRotation
from secagg.contract import RingSegment
from secagg.errors import InternalError, InvalidParameters
from secagg.privacy.accounting import Adjacency
from secagg.privacy.client_noise import noise_in
from secagg.training.configuration import WHOLE_UPDATES, Configuration, Scheme, Source, SumMode, Weighting
from secagg.training.parts import Cohorts

_FLOAT_ROOM: Final = 1 + 2.0**-16
"""Slack: a clipped norm was computed in floats with 24 bits."""
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
"""Protocol settings that follow from the sections privacy and local."""


@dataclass(frozen=True, slots=True)
class Noised:
    """The noise of one session."""

    deviations: tuple[float, ...]
    """Standard deviations of each released segment, in integer steps."""
    epsilon: float
    """Privacy cost of all rounds so far to the client in the most rounds."""


class RunNoise:
    """The noise of a run's sessions."""

    def __init__(self, run: Configuration) -> None:
        self.settings, self._rounds = run.privacy, run.rounds
        self._clipped = math.ldexp((run.local.clip or 0.0) * _FLOAT_ROOM, run.compression.fraction_bits)
        self._adjacency = Adjacency.ZERO_OUT if run.privacy.zero_out else Adjacency.REPLACE

    def settings_for(self, codec: ModelUpdate) -> dict[str, Any]:
        """Return the noise settings of a protocol.

        Either all ring segments are fixed point with one step, and rounding changes a value by at most half of it, or
        one segment has steps that were rounded to a bound.
        """
        scheme, settings = codec.tensors[0].scheme, self.settings
        is_rotated = isinstance(scheme, RoundedRotation)
        rings = [segment for segment in codec.layout.segments if isinstance(segment, RingSegment)]
        return {
            "budget_epsilon": Fraction(str(settings.epsilon)) if settings.epsilon else None,
            "budget_delta": Fraction(str(settings.delta)),
            "noise_multiplier": Fraction(str(settings.noise_multiplier)),
            "l2_bounds": (scheme.l2_bound,)
            if isinstance(scheme, RoundedRotation)
            else tuple(math.ceil(self._clipped + math.sqrt(segment.length) / 2) for segment in rings),
            "is_rotated": is_rotated,
            "releases_per_client": self._rounds,
            "adjacency": self._adjacency,
        }

    def of(self, session: object, releases: int) -> Noised:
        """Return the noise of a session, or of clients without one, and a client's loss over several releases."""
        if (noise := noise_in(session)) is not None:
            return Noised(noise.deviations, noise.epsilon(self.settings.delta, releases))
        from secagg.protocols.enclave import Server, epsilon_of  # noqa: PLC0415 -- only with this protocol

        if not isinstance(session, Server) or session.configuration.noise is None:
            raise InternalError("the session should be an enclave's, with noise, but is not")
        configuration = session.configuration
        if configuration.index_segments and not configuration.tables:
            raise InvalidParameters(
                "noise needs decoded sums, which reveal less than histograms: set form=decoded_sum in secagg.settings"
            )
        deviations = tuple(math.sqrt(variance) for variance in session.configuration.noise.variances)
        return Noised(deviations, epsilon_of(configuration, self.settings.delta, self._adjacency, releases=releases))


def require_private(configuration: Configuration) -> None:
    """Refuse noise that only a protocol's settings configure, and settings that noise excludes."""
    for assigned in configuration.secagg.settings:
        name = assigned.partition("=")[0]
        if name in _SAID_BY_PRIVACY or (name == "noise_kind" and not configuration.privacy.is_on):
            raise InvalidParameters(
                f"secagg.settings has {name}, but a run accounts only the noise of the section privacy: "
                "set privacy.noise_multiplier, privacy.zero_out and local.clip instead"
            )
    if not configuration.privacy.is_on:
        return
    for is_wrong, sentence in _conflicts(configuration):
        if is_wrong:
            raise InvalidParameters(f"privacy.noise_multiplier is above 0, but {sentence}")


def _conflicts(configuration: Configuration) -> Iterator[tuple[bool, str]]:
    secagg, source = configuration.secagg, configuration.compression.source
    yield (secagg.mode is SumMode.REAL and secagg.every != 1, "other sums in the clear have none: set secagg.every = 1")
    yield configuration.local.clip is None, "noise is scaled to a maximum norm: set local.clip"
    yield (
        configuration.server.weighting is not Weighting.EQUAL,
        "the count of examples has none: set server.weighting = 'equal'",
    )
    yield (
        configuration.compression.has_codes,
        "codes of a few bits have no room for noise: set compression.scheme = 'pq', 'pruning' or 'none'",
    )
    yield (
        configuration.compression.scheme in set(WHOLE_UPDATES) - {Scheme.ROTATED},
        "lengths next to a whole update would drown in noise: set compression.scheme = 'rotated', 'pruning' or 'none'",
    )
    yield (
        source not in {None, Source.PUBLIC},
        "scales and codebooks may only come from public data: set compression.calibration = 'public'",
    )


class ReleaseCount:
    """Number of rounds of each client."""

    def __init__(self, cohorts: Cohorts, available: int, rounds: int = 0) -> None:
        """Count the finished rounds; their clients follow from the seed."""
        self._counts = Counter[int]()
        for number in range(rounds):
            clients = cohorts.invited(available, number)[: cohorts.size]
            self.add(cohorts.uploaders(clients, cohorts.lost(clients, number)))

    def add(self, clients: tuple[int, ...]) -> None:
        self._counts.update(clients)

    def most_with(self, clients: tuple[int, ...]) -> int:
        """Return the most rounds that any client is in, after a round with these clients."""
        so_far = max(self._counts.values(), default=0)
        return max(so_far, *(1 + self._counts[client] for client in clients)) if clients else max(1, so_far)

    @property
    def most(self) -> int:
        return max(self._counts.values(), default=0)


def require_budget(noise: RunNoise, session: object, most: int, rounds: int) -> None:
    """Refuse a run whose privacy cost to a client exceeds the limit."""
    settings, spent = noise.settings, noise.of(session, max(1, most)).epsilon
    if settings.epsilon and spent > settings.epsilon:
        raise InvalidParameters(
            f"the client in the most rounds, {most} of {rounds}, would spend epsilon {spent:.3g} at "
            f"delta {settings.delta:g}, above privacy.epsilon = {settings.epsilon:g}; raise privacy.noise_multiplier "
            "or data.clients, or lower rounds"
        )
