"""From what a platform wants to a configuration: noise in proportion to what it protects, and numbers that fit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import ROUND_DOWN
from fractions import Fraction
from typing import Final

from secagg.contract.codewords import Tables
from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.crypto.ring import require_capacity
from secagg.errors import CapacityExceeded, InvalidParameters
from secagg.parameters import LEAST_COHORT, Suite
from secagg.privacy.kinds import NoiseKind
from secagg.privacy.rounding import room_for_noise, rounded_root
from secagg.privacy.sensitivity import Adjacency, of_vector
from secagg.session.certificates import Authority
from secagg.session.roles import Subject

from .budget import squared_sensitivities
from .trusted.configuration import NO_AUTHORITY, Accumulation, EnclaveConfiguration, Noise, ReleaseForm

DEFAULT_LIFETIME: Final = timedelta(hours=12)
_MOST_UPLOADS: Final = 1 << 20


def plan_enclave(  # noqa: PLR0913 -- all but seven have defaults
    *,
    task: bytes,
    layout: Layout,
    tables: Tables = (),
    capacity: int,
    authority: Authority | None,
    minimum_cohort: int,
    maximum_cohort: int,
    now: datetime,
    lifetime: timedelta = DEFAULT_LIFETIME,
    suite: Suite = Suite.HYBRID,
    form: ReleaseForm = ReleaseForm.DECODED_SUM,
    accumulation: Accumulation = Accumulation.OBLIVIOUS,
    maximum_weight: int = 1,
    staleness_weights: tuple[int, ...] = (1,),
    noise_multiplier: Fraction | None = None,
    noise_kind: NoiseKind = NoiseKind.DISCRETE_GAUSSIAN,
    l2_bounds: tuple[int, ...] = (),
    releases_per_client: int = 1,
    adjacency: Adjacency = Adjacency.REPLACE,
    codeword_bound: int = 0,
) -> EnclaveConfiguration:
    """Return a configuration for an enclave, or say which numbers do not fit.

    Args:
        layout: of the codec that clients encode with.
        tables: the codebooks of that codec as integers, where it has any.
        capacity: of that codec: the largest total weight whose sum stays in its rings.
        authority: who certifies clients and is not the host; None needs noise.
        minimum_cohort: how many uploads a release has at least.
        maximum_cohort: how many a buffer takes at most.
        now: when the configuration is made, with a time zone.
        noise_multiplier: a release is as private as one Gaussian with this multiple of the sensitivity as its standard
            deviation. Every released segment gets noise in proportion to its own sensitivity, and as many times the
            variance as there are segments, because their losses add up.
        l2_bounds: with noise, for each ring segment the largest norm of a client's own values in integer steps.
        releases_per_client: with noise, in how many releases of the epoch one client may be.
        adjacency: what the neighbour of a set of clients is: one client's values replaced, or by zeros.
        codeword_bound: the largest norm of the codewords that one client chooses; longer ones count as the least.
    Raises:
        InvalidParameters: a number out of range, or tables that do not fit.
        CapacityExceeded: a buffer could reach a weight above the capacity; ``require_held`` looks at noise.
    """
    noise = None
    if noise_multiplier is not None:
        weight = maximum_weight * max(staleness_weights)
        sensitivities = list(squared_sensitivities(layout, form, tables, weight, l2_bounds, adjacency))
        if noise_multiplier <= 0:
            raise InvalidParameters(f"noise_multiplier is positive; got {noise_multiplier}")
        variances = tuple(noise_multiplier**2 * len(sensitivities) * squared for squared in sensitivities)
        noise = Noise(
            kind=noise_kind, variances=variances, l2_bounds=l2_bounds, releases_per_client=releases_per_client
        )
    has_indices = any(isinstance(segment, IndexSegment) for segment in layout.segments)
    configuration = EnclaveConfiguration(
        task=task,
        suite=suite,
        authority=NO_AUTHORITY if authority is None else authority.public_key,
        layout=layout,
        form=form,
        tables=tables if has_indices and form is ReleaseForm.DECODED_SUM else (),
        accumulation=accumulation,
        minimum_cohort=minimum_cohort,
        maximum_cohort=maximum_cohort,
        maximum_weight=maximum_weight,
        staleness_weights=staleness_weights,
        noise=noise,
        codeword_bound=codeword_bound,
        expiry=int((now + lifetime).timestamp()),
    )
    require_capacity(configuration.maximum_total_weight, capacity)
    return configuration


def require_held(  # noqa: PLR0913 -- what noise is judged by
    layout: Layout,
    multiplier: Fraction | None,
    l2_bounds: tuple[int, ...],
    adjacency: Adjacency,
    *,
    segments: int,
    total_weight: int,
    capacity: int,
) -> None:
    """Refuse noise that rings of this width do not hold beside the largest sum; those of codewords are made for it.

    Args:
        segments: how many are released.
        capacity: of the codec, which says how large one value is at most.
    Raises:
        CapacityExceeded: naming the multiplier that they do hold.
    """
    if multiplier is None:
        return
    rings = [segment for segment in layout.segments if isinstance(segment, RingSegment)]
    most = min(
        (
            room_for_noise(segment, min(bound, segment.ring.greatest // capacity), total_weight, is_rotated=False)
            / max(1, segments * of_vector(bound, 1, adjacency))
            for segment, bound in zip(rings, l2_bounds, strict=False)
        ),
        default=multiplier**2,
    )
    if multiplier**2 > most:
        held = rounded_root(most, ROUND_DOWN)
        raise CapacityExceeded(
            f"rings do not hold sums of a weight of {total_weight} with this noise: "
            + (f"take noise_multiplier = {held:f} at most, or wider rings" if held else "take wider rings, or none")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclaveSettings:
    """What an epoch is configured for; ``plan_enclave`` says what each value means."""

    suite: Suite = Suite.HYBRID
    minimum_cohort: int = LEAST_COHORT
    maximum_cohort: int | None = None
    """By default as many as the codec's capacity allows."""
    maximum_weight: int = 1
    staleness_weights: tuple[int, ...] = (1,)
    form: ReleaseForm = ReleaseForm.DECODED_SUM
    accumulation: Accumulation = Accumulation.OBLIVIOUS
    noise_multiplier: Fraction | None = None
    noise_kind: NoiseKind = NoiseKind.DISCRETE_GAUSSIAN
    l2_bounds: tuple[int, ...] = ()
    releases_per_client: int = 1
    adjacency: Adjacency = Adjacency.REPLACE
    codeword_bound: int = 0
    lifetime: timedelta = DEFAULT_LIFETIME

    def plan(self, subject: Subject, authority: Authority | None, now: datetime) -> EnclaveConfiguration:
        """Return the configuration of an epoch whose buffers are about a subject's task, layout and tables.

        Raises:
            InvalidParameters, CapacityExceeded: no enclave can; the message says what to change.
        """
        heaviest = self.maximum_weight * max(self.staleness_weights)
        has_indices = any(isinstance(segment, IndexSegment) for segment in subject.layout.segments)
        maximum_cohort = self.maximum_cohort or min(subject.capacity // heaviest, _MOST_UPLOADS)
        counted = sum(map(len, subject.tables)) if self.form is ReleaseForm.DECODED_SUM else 0
        require_held(
            subject.layout,
            self.noise_multiplier,
            self.l2_bounds,
            self.adjacency,
            segments=len(subject.layout.ring_positions) + counted,
            total_weight=maximum_cohort * heaviest,
            capacity=subject.capacity,
        )
        return plan_enclave(
            task=subject.task,
            layout=subject.layout,
            tables=subject.tables if has_indices else (),
            capacity=subject.capacity,
            authority=authority,
            minimum_cohort=self.minimum_cohort,
            maximum_cohort=maximum_cohort,
            now=now,
            lifetime=self.lifetime,
            suite=self.suite,
            form=self.form,
            accumulation=self.accumulation,
            maximum_weight=self.maximum_weight,
            staleness_weights=self.staleness_weights,
            noise_multiplier=self.noise_multiplier,
            noise_kind=self.noise_kind,
            l2_bounds=self.l2_bounds,
            releases_per_client=self.releases_per_client,
            adjacency=self.adjacency,
            codeword_bound=self.codeword_bound,
        )
