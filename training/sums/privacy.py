"""Differential privacy of a run: noise that the enclave adds, and what it costs the client that is in most rounds.

Clients clip what they changed to ``local.clip``, and the enclave adds noise to everything that it releases. No
amplification by sampling is counted, because a server that invites its clients knows them: what counts is how often a
client is really in a round, which follows from the seed before anything is trained.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import Final, TypedDict

from secagg.compression.model_update import ModelUpdate
from secagg.contract.layout import RingSegment
from secagg.errors import CapacityExceeded, InvalidParameters
from secagg.protocols.enclave.privacy.budget import epsilon_of
from secagg.protocols.enclave.privacy.sensitivity import Adjacency
from secagg.protocols.enclave.trusted.configuration import EnclaveConfiguration
from secagg.protocols.enclave.trusted.noise import NoiseKind
from secagg.training.settings.cohorts import invited, lost, uploaders
from secagg.training.settings.configuration import Configuration
from secagg.training.settings.sections import WHOLE_UPDATES, NoiseShape, Scheme, Source, SumMode, SumProtocol, Weighting

_FLOAT_ROOM: Final = 1 + 2.0**-16
"""A clipped norm was computed in floats of 24 bits."""
_TAIL_DEVIATIONS: Final = 10
_KINDS: Final = {
    NoiseShape.DISCRETE_GAUSSIAN: NoiseKind.DISCRETE_GAUSSIAN,
    NoiseShape.SKELLAM: NoiseKind.SKELLAM,
}


class NoiseChoices(TypedDict, total=False):
    """What a plan of an enclave is told of noise."""

    noise_multiplier: Fraction
    noise_kind: NoiseKind
    l2_bounds: tuple[int, ...]
    releases_per_client: int
    adjacency: Adjacency


class EnclaveNoise:
    """The noise of a run's enclaves."""

    def __init__(self, configuration: Configuration) -> None:
        """Take over what is configured.

        Raises:
            InvalidParameters: it does not go together with noise; the message says what does.
        """
        require_private(configuration)
        self._settings = configuration.privacy
        self._clip = configuration.local.clip or 0.0
        self._fraction_bits = configuration.compression.fraction_bits
        self._releases = configuration.rounds
        self._adjacency = Adjacency.ZERO_OUT if self._settings.zero_out else Adjacency.REPLACE

    def choices(self, codec: ModelUpdate) -> NoiseChoices:
        """Return what an enclave for a codec is planned with.

        All ring segments are fixed point of one step. Rounding moves a value by at most half of it.
        """
        rings = [segment for segment in codec.layout.segments if isinstance(segment, RingSegment)]
        clipped = math.ldexp(self._clip * _FLOAT_ROOM, self._fraction_bits)
        return {
            "noise_multiplier": Fraction(str(self._settings.noise_multiplier)),
            "noise_kind": _KINDS[self._settings.noise],
            "l2_bounds": tuple(math.ceil(clipped + math.sqrt(segment.length) / 2) for segment in rings),
            "releases_per_client": self._releases,
            "adjacency": self._adjacency,
        }

    def deviations(self, configuration: EnclaveConfiguration) -> tuple[float, ...]:
        """Return the standard deviation of the noise of each released segment, in integer steps."""
        return () if configuration.noise is None else tuple(math.sqrt(v) for v in configuration.noise.variances)

    def epsilon(self, configuration: EnclaveConfiguration, releases: int) -> float:
        """Return what so many releases cost a client that is in all of them."""
        return epsilon_of(configuration, self._settings.delta, self._adjacency, releases=releases)

    def require_room(self, configuration: EnclaveConfiguration) -> None:
        """Refuse rings that a sum with its noise could leave; those of codewords are as wide as they have to be.

        Raises:
            CapacityExceeded: lower the noise, the clip or the fraction bits.
        """
        if configuration.noise is None:
            return
        deviations, tables = iter(self.deviations(configuration)), iter(configuration.tables)
        bounds = iter(configuration.noise.l2_bounds)
        for segment in configuration.layout.segments:
            if not isinstance(segment, RingSegment):
                for _ in next(tables):
                    next(deviations)
                continue
            reach = configuration.maximum_total_weight * next(bounds) + _TAIL_DEVIATIONS * next(deviations)
            if reach > segment.ring.greatest:
                raise CapacityExceeded(
                    f"sums with their noise reach {reach:.3g} steps, and a ring of {segment.modulus_bits} bits holds "
                    f"{segment.ring.greatest}; lower compression.fraction_bits, local.clip or privacy.noise_multiplier"
                )


def require_private(configuration: Configuration) -> None:
    """Refuse what noise does not go together with.

    Raises:
        InvalidParameters: saying what to take instead.
    """
    for is_wrong, sentence in _conflicts(configuration):
        if is_wrong:
            raise InvalidParameters(f"privacy.noise_multiplier is above 0, and {sentence}")


def _conflicts(configuration: Configuration) -> Iterator[tuple[bool, str]]:
    secagg, source = configuration.secagg, configuration.compression.source
    yield (
        secagg.protocol is not SumProtocol.ENCLAVE,
        "pairwise masks and two servers release sums as they are: take secagg.protocol = 'enclave'",
    )
    yield (
        secagg.mode is not SumMode.REAL or secagg.every != 1,
        "sums in the clear have no noise: take secagg.mode = 'real' and secagg.every = 1",
    )
    yield configuration.local.clip is None, "noise is chosen for a largest norm: set local.clip"
    yield (
        configuration.server.weighting is not Weighting.EQUAL,
        "with noise every client weighs 1: take server.weighting = 'equal'",
    )
    yield configuration.asynchronous.buffer > 0, "noise is for rounds: take asynchronous.buffer = 0"
    yield (
        secagg.histograms,
        "noise is added to decoded sums, which tell less than histograms: take secagg.histograms = false",
    )
    yield (
        configuration.compression.scheme is Scheme.SCALAR,
        "codes of a few bits have no room for noise: take compression.scheme = 'pq', 'pruning' or 'none'",
    )
    yield (
        configuration.compression.scheme in WHOLE_UPDATES,
        "lengths beside a whole update would drown in it: take compression.scheme = 'pq', 'pruning' or 'none'",
    )
    yield (
        source not in {None, Source.PUBLIC},
        "scales and codebooks may come from public data alone: take compression.calibration = 'public'",
    )


class ReleaseCount:
    """In how many rounds each client was."""

    def __init__(self, configuration: Configuration, available: int, rounds: int = 0) -> None:
        """Count the rounds that are over; it follows from the seed who was in them."""
        self._counts = Counter[int]()
        for number in range(rounds):
            clients = invited(configuration, available, number)[: configuration.clients_per_round]
            self.add(uploaders(clients, lost(configuration, clients, number)))

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


def require_budget(configuration: Configuration, planned: EnclaveConfiguration, available: int) -> None:
    """Refuse a run that would cost a client more than its limit.

    Raises:
        InvalidParameters: saying what the run would cost.
    """
    settings = configuration.privacy
    if not settings.epsilon:
        return
    most = max(1, ReleaseCount(configuration, available, configuration.rounds).most)
    spent = EnclaveNoise(configuration).epsilon(planned, most)
    if spent > settings.epsilon:
        raise InvalidParameters(
            f"the client that is in most rounds, {most} of {configuration.rounds}, would spend epsilon {spent:.3g} at "
            f"delta {settings.delta:g}, above privacy.epsilon = {settings.epsilon:g}; raise privacy.noise_multiplier "
            "or data.clients, or lower rounds"
        )
