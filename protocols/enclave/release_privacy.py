"""Epsilon of an enclave's releases, in proportion to what their noise protects.

Sensitivities follow from the configuration alone: from its bounds and its codebooks. The enclave draws
the noise and does not need this; a client does, before it seals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from secagg.choices import ReleaseForm
from secagg.contract.codewords import Tables, require_tables
from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.errors import InvalidParameters
from secagg.privacy.accounting import Adjacency, ReleasePart, epsilon, of_decoded_sum, of_histogram, of_vector
from secagg.privacy.kinds import require_delta

from .trusted.configuration import EnclaveConfiguration
from .verified_enclave import weaker


def squared_sensitivities(
    layout: Layout,
    form: ReleaseForm,
    tables: Tables,
    l2_bounds: tuple[int, ...],
    adjacency: Adjacency,
) -> Iterator[int]:
    """Return, for each released segment, how much one client moves it at most: the L2 norm squared, in integer steps.

    Args:
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
                yield of_vector(next(bounds), adjacency)
            case IndexSegment(), ReleaseForm.HISTOGRAM:
                yield of_histogram(segment.blocks, adjacency)
            case IndexSegment(), ReleaseForm.DECODED_SUM:
                for table in next(counted):
                    yield of_decoded_sum([(table.blocks, table.entries)], adjacency)


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
    what = (configuration.layout, configuration.form, configuration.tables)
    sensitivities = squared_sensitivities(*what, noise.l2_bounds, adjacency)
    parts = [
        ReleasePart(l2_squared=squared, l1=None, variance=variance)
        for squared, variance in zip(sensitivities, noise.variances, strict=True)
    ]
    return epsilon(noise.kind, parts, releases or noise.releases_per_client, delta)


@dataclass(frozen=True, slots=True)
class PrivacyLimit:
    """The differential privacy that a client asks for over all uploads of a task; its ledger then needs a limit."""

    epsilon: float
    delta: float
    adjacency: Adjacency = Adjacency.REPLACE

    def __post_init__(self) -> None:
        # Written so that NaN is refused too.
        if type(self.epsilon) not in (float, int) or not self.epsilon > 0:
            raise InvalidParameters(f"epsilon is a number above 0; got {self.epsilon!r}")
        require_delta(self.delta)

    def require(self, configuration: EnclaveConfiguration, releases: int | None) -> None:
        """Refuse a configuration without noise, or with too little."""
        if configuration.noise is None:
            raise weaker("it adds no noise")
        if not epsilon_of(configuration, self.delta, self.adjacency, releases=releases) <= self.epsilon:
            raise weaker(f"its noise does not keep epsilon to {self.epsilon}")
