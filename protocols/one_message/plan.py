"""From what an operator knows to an epoch's record and to an offer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from secagg.parameters import SecurityMode, Suite
from secagg.privacy.client_noise import NO_NOISE, NoiseSettings
from secagg.session.roles import Subject

from .configuration import NO_SUM, Configuration, Offer, SumTerms, masked_values
from .epoch import NO_KEY, EpochRecord, HolderIdentity
from .fitting import Committee, choose_committee, plan
from .parameters import ThresholdRule

Bounds = tuple[int, int] | None


def plan_epoch(  # noqa: PLR0913 -- all but four have defaults
    holders: Sequence[HolderIdentity],
    *,
    number: int,
    expiry: int,
    corrupted: int,
    absent: int = 0,
    suite: Suite = Suite.CLASSIC,
    authority: bytes = NO_KEY,
    rule: ThresholdRule | None = None,
) -> EpochRecord:
    """Choose thresholds for these holders; the authority signs what is returned.

    Args:
        authority: its public key; none means ``semi_honest`` mode.
        absent: how many holders may be away, besides those that are corrupted.
    Raises:
        InvalidParameters: so few holders cannot do that; the message says how many can.
    """
    committee = choose_committee(len(holders), corrupted, absent, rule)
    return EpochRecord(
        number=number,
        mode=SecurityMode.SEMI_HONEST if authority == NO_KEY else SecurityMode.ACTIVE,
        suite=suite,
        rule=committee.rule,
        corrupted=corrupted,
        threshold=committee.threshold,
        packing=committee.packing,
        quorum=committee.quorum,
        expiry=expiry,
        authority=authority,
        holders=tuple(holders),
    )


def plan_offer(  # noqa: PLR0913 -- all but four have defaults
    record: EpochRecord,
    keys: Sequence[bytes],
    subject: Subject,
    *,
    sum_id: bytes,
    capacity: int,
    minimum_cohort: int,
    corrupted_clients: int,
    maximum_weight: int = 1,
    bounds: Sequence[Bounds] | None = None,
    noise: NoiseSettings = NO_NOISE,
) -> Offer:
    """Put an offer together from an epoch's record, its holders' keys, and what is summed.

    Raises:
        InvalidParameters: nothing fits; the message names the next parameters that do.
    """
    bounds, most = tuple(bounds or [None] * len(subject.layout.segments)), capacity * maximum_weight
    committee = Committee(
        len(record.holders), record.corrupted, record.threshold, record.packing, record.rule, record.quorum
    )
    parameters = plan(masked_values(subject.layout, bounds, most), capacity, committee, capacity_weight=most)
    return Offer(
        record=record.encode(),
        keys=tuple(keys),
        configuration=Configuration(
            task=subject.task,
            layout=subject.layout,
            parameters=parameters,
            minimum_cohort=minimum_cohort,
            corrupted_clients=corrupted_clients,
            maximum_weight=maximum_weight,
        ),
        terms=SumTerms(
            sum_id=NO_SUM if record.rule is ThresholdRule.CERTIFIED else sum_id,
            round_number=subject.round_number,
            model_digest=subject.model_digest or bytes(32),
            application_digest=noise.bound_to(subject.terms_digest),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OneMessageSettings(NoiseSettings):
    """What an epoch and its sums are planned for."""

    suite: Suite = Suite.CLASSIC
    rule: ThresholdRule | None = None
    """The rule ``one_answer`` where the holders suffice for it, if nothing is said."""
    corrupted_holders: int = 1
    """How many holders are assumed to work with the server."""
    absent_holders: int = 0
    """How many other holders may be away."""
    minimum_cohort: int = 3
    corrupted: int = 1
    """How many clients are assumed to be corrupted, counted absolutely."""
    capacity: int | None = None
    """The most clients of a sum; by default all who are invited."""
    maximum_weight: int = 1
    bounds: tuple[Bounds, ...] | None = None
    """For each segment of the layout what one value lies between: several then share a coefficient."""
    delivered_at_once: int = 64
    """So many uploads wait until standing holders are sent their shares."""
    mode: SecurityMode = SecurityMode.ACTIVE
    holders: int = 5
    """How many holders a simulation has; the epoch's record says how many there are elsewhere."""
    lifetime: timedelta = timedelta(hours=24)
    """Of an epoch."""
