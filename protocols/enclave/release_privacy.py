"""Computes the epsilon of an enclave's releases from the noise and each segment's sensitivity.

The configuration's bounds and codebooks determine the sensitivities. The enclave only draws the noise; the client
computes epsilon before it seals.
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
    layout: Layout, form: ReleaseForm, tables: Tables, l2_bounds: tuple[int, ...], adjacency: Adjacency
) -> Iterator[int]:
    """Yield each released segment's squared L2 sensitivity to one client, in integer steps.

    Args:
        l2_bounds: the maximum norm of one client's values, for each ring segment.
    """
    rings = sum(isinstance(segment, RingSegment) for segment in layout.segments)
    if len(l2_bounds) != rings:
        raise InvalidParameters(f"l2_bounds has {len(l2_bounds)} values; give one for each of {rings} ring segments")
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
    """Return the epsilon of all releases that may include one client under this configuration.

    Args:
        releases: number of releases over all epochs, the client's own limit (default: the limit of one epoch).
    Raises:
        InvalidParameters: the configuration adds no noise, or the extra ``dp`` is not installed.
    """
    noise = configuration.noise
    if noise is None:
        raise InvalidParameters("the configuration adds no noise, so epsilon is infinite; set noise_multiplier")
    what = (configuration.layout, configuration.form, configuration.tables)
    sensitivities = squared_sensitivities(*what, noise.l2_bounds, adjacency)
    parts = [
        ReleasePart(l2_squared=squared, l1=None, variance=variance)
        for squared, variance in zip(sensitivities, noise.variances, strict=True)
    ]
    return epsilon(noise.kind, parts, releases or noise.releases_per_client, delta)


@dataclass(frozen=True, slots=True)
class PrivacyLimit:
    """Limits on the epsilon and delta of all uploads for a task; the client's ledger then needs ``maximum_seals``."""

    epsilon: float
    delta: float
    adjacency: Adjacency = Adjacency.REPLACE

    def __post_init__(self) -> None:
        # NaN compares false, so this form refuses it too.
        if type(self.epsilon) not in (float, int) or not self.epsilon > 0:
            raise InvalidParameters(f"epsilon must be above 0; got {self.epsilon!r}")
        require_delta(self.delta)

    def require(self, configuration: EnclaveConfiguration, releases: int | None) -> None:
        """Refuse a configuration with no noise or too little."""
        if configuration.noise is None:
            raise weaker("it adds no noise")
        if not epsilon_of(configuration, self.delta, self.adjacency, releases=releases) <= self.epsilon:
            raise weaker(f"its noise is too small for an epsilon of {self.epsilon}")
