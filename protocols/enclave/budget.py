"""The worth of a configuration's noise: the sensitivity of all that it releases, the epsilon, and a client's limit.

Sensitivities follow from the configuration alone: from its bounds, its codebooks and its weights. The enclave draws
the noise and does not need this; a client does, before it seals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from secagg.contract.codewords import Tables, require_tables
from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.errors import InvalidParameters
from secagg.privacy.accounting import Adjacency, ReleasePart, epsilon, of_decoded_sum, of_histogram, of_vector
from secagg.privacy.kinds import require_delta

from .trusted.configuration import EnclaveConfiguration, ReleaseForm


def squared_sensitivities(  # noqa: PLR0913, PLR0917 -- what a release depends on
    layout: Layout,
    form: ReleaseForm,
    tables: Tables,
    weight: int,
    l2_bounds: tuple[int, ...],
    adjacency: Adjacency,
) -> Iterator[int]:
    """Return, for each released segment, how much one client moves it at most: the L2 norm squared, in integer steps.

    Args:
        weight: the largest that one upload can count.
        l2_bounds: for each ring segment, the largest norm of a client's own values.
    """
    rings = sum(isinstance(segment, RingSegment) for segment in layout.segments)
    if len(l2_bounds) != rings:
        raise InvalidParameters(f"{rings} ring segments need as many L2 bounds; got {len(l2_bounds)}")
    if form is ReleaseForm.DECODED_SUM:
        require_tables(layout, tables)
    bounds, counted = iter(l2_bounds), iter(tables)
    for segment in layout.segments:
        match segment, form:
            case RingSegment(), _:
                yield of_vector(next(bounds), weight, adjacency)
            case IndexSegment(), ReleaseForm.HISTOGRAM:
                yield of_histogram(segment.blocks, weight, adjacency)
            case IndexSegment(), ReleaseForm.DECODED_SUM:
                for table in next(counted):
                    yield of_decoded_sum([(table.blocks, table.entries)], weight, adjacency)


def epsilon_of(
    configuration: EnclaveConfiguration,
    delta: float,
    adjacency: Adjacency = Adjacency.REPLACE,
    *,
    releases: int | None = None,
) -> float:
    """Return the epsilon of all releases that one client may be in under this configuration.

    Args:
        releases: how many, where that is not what one epoch allows: a client's own limit, over all epochs.
    Raises:
        InvalidParameters: it adds no noise, or the extra ``dp`` is not installed.
    """
    noise = configuration.noise
    if noise is None:
        raise InvalidParameters("a configuration without noise has no epsilon; a sum can tell everything of a client")
    weight = configuration.maximum_weight * max(configuration.staleness_weights)
    what = (configuration.layout, configuration.form, configuration.tables)
    sensitivities = squared_sensitivities(*what, weight, noise.l2_bounds, adjacency)
    parts = [
        ReleasePart(l2_squared=squared, l1=None, variance=variance)
        for squared, variance in zip(sensitivities, noise.variances, strict=True)
    ]
    return epsilon(noise.kind, parts, releases or noise.releases_per_client, delta)


@dataclass(frozen=True, slots=True)
class PrivacyFloor:
    """The differential privacy that a client asks for over all uploads of a task; its ledger then needs a limit."""

    epsilon: float
    delta: float
    adjacency: Adjacency = Adjacency.REPLACE

    def __post_init__(self) -> None:
        # Written so that NaN is refused too.
        if type(self.epsilon) not in (float, int) or not self.epsilon > 0:
            raise InvalidParameters(f"epsilon is a number above 0; got {self.epsilon!r}")
        require_delta(self.delta)

    def holds(self, configuration: EnclaveConfiguration, releases: int | None) -> bool:
        return epsilon_of(configuration, self.delta, self.adjacency, releases=releases) <= self.epsilon
