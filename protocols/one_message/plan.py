"""Plan from an operator's facts: the cheapest parameters, an epoch's record, an offer, and the cost of a sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import lru_cache
from typing import Final

from secagg.contract import Layout
from secagg.crypto.hpke import sealing_sizes
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.parameters import LEAST_COHORT, SecurityMode, Suite
from secagg.privacy.client_noise import NO_NOISE, BudgetedNoise, NoiseSettings
from secagg.session.certificates import IDENTITY_KEY_BYTES, SIGNATURE_BYTES
from secagg.session.costs import ONE_IN, Costs, Work
from secagg.session.roles import Subject

from .configuration import NO_SUM, SUM_ID_BYTES, Configuration, Offer, SumTerms, weight_bits
from .epoch import DIGEST_BYTES, NO_KEY, NONCE_BYTES, EpochRecord, HolderIdentity, HolderKeys
from .lattice.estimator import greatest_modulus_bits
from .lattice.values import Values
from .messages import IDENTITY_BYTES, Upload, UploadHeader
from .parameters import (
    DEGREES,
    LEAST_SECURITY,
    MAXIMUM_DROPPED_BITS,
    MAXIMUM_HOLDERS,
    MAXIMUM_MODULUS_BITS,
    Parameters,
    ThresholdRule,
    greatest_capacity,
    least_guard_bits,
    least_quorum,
    least_threshold,
)

MAXIMUM_PACKING: Final = 16
_SECOND_WORD_COSTS = 1.1
"""Coefficients of two words take twice the time, so they must save a tenth of the bytes."""
_WORD_BITS = 64


@dataclass(frozen=True, slots=True)
class Committee:
    """The numbers of a set of holders."""

    holders: int
    corrupted: int
    threshold: int
    packing: int
    rule: ThresholdRule
    quorum: int


def plan(  # noqa: PLR0913 -- all but three have defaults
    segments: Sequence[Values],
    capacity: int,
    committee: Committee,
    *,
    capacity_weight: int | None = None,
    least_security: int = LEAST_SECURITY,
    degrees: Sequence[int] = DEGREES,
) -> Parameters:
    """Return the parameters with the fewest bytes a client.

    Args:
        segments: the values of the layout, in its order.
        capacity: the most uploads of a sum.
        committee: the thresholds of the holders.
        capacity_weight: the largest total weight of a sum; the capacity where nobody weighs.
        least_security: the floor of the lattice estimate, in bits.
        degrees: ring degrees to choose from.

    Raises:
        InvalidParameters: nothing fits; the message names the next parameters that do.
    """
    if not 1 <= capacity <= greatest_capacity():
        raise InvalidParameters(f"a sum has 1 to {greatest_capacity()} uploads; got {capacity}; make several sums")
    weight = capacity if capacity_weight is None else capacity_weight
    return _cheapest(tuple(segments), capacity, committee, weight, least_security, tuple(degrees))


@lru_cache(maxsize=16)
def _cheapest(  # noqa: PLR0913, PLR0917 -- a platform asks for the same in every round
    segments: tuple[Values, ...],
    capacity: int,
    committee: Committee,
    weight: int,
    least_security: int,
    degrees: tuple[int, ...],
) -> Parameters:
    found, thresholds = list[tuple[float, Parameters]](), asdict(committee)
    refused = InvalidParameters("no lattice is wide enough; plan with a higher degree")
    for degree, modulus_bits, dropped_bits in _lattices(degrees, least_security):
        try:
            fitting = Parameters(
                degree=degree,
                modulus_bits=modulus_bits,
                guard_bits=least_guard_bits(capacity, dropped_bits),
                dropped_bits=dropped_bits,
                segments=segments,
                capacity=capacity,
                capacity_weight=weight,
                **thresholds,
            )
            words = _SECOND_WORD_COSTS if modulus_bits > _WORD_BITS else 1.0
            # Without the ends of pieces, which are many in a long upload and alike in every lattice.
            sent = sum(run.sent_bytes for run in fitting.whole_runs)
            found.append(((sent + fitting.dealt_bytes) * words, fitting))
        except InvalidParameters as error:
            refused = error
    if not found:
        # Whatever else is wrong is wrong in the widest lattice too, which is tried last.
        raise _too_wide(segments, capacity, weight, least_security, degrees) or refused
    # The narrowest of equally long ones is the strongest.
    return min(found, key=lambda entry: (entry[0], entry[1].modulus_bits))[1]


def choose_committee(holders: int, corrupted: int, absent: int = 0, rule: ThresholdRule | None = None) -> Committee:
    """Return thresholds that these holders can keep, with the corrupted ones silent and the absent ones away.

    The threshold is the largest that leaves as many answers as it needs: each holder above the bound protects against
    one more corrupted holder than was assumed. Half of what certified lists leave goes to packing.

    Args:
        corrupted: how many may work with the server, or lie.
        absent: how many more may be away when answers are needed.
        rule: one answer where the holders suffice for it, otherwise certified lists, if nothing is said.

    Raises:
        InvalidParameters: there are too few holders; the message says how many suffice.
    """
    if holders > MAXIMUM_HOLDERS:
        raise InvalidParameters(f"an epoch has at most {MAXIMUM_HOLDERS} holders; got {holders}, so list fewer")
    if not 0 <= corrupted < holders or absent < 0:
        raise InvalidParameters(f"{corrupted} corrupted and {absent} absent ones are not among {holders} holders")
    rules = tuple(ThresholdRule) if rule is None else (rule,)
    threshold = holders - corrupted - absent
    for candidate in rules:
        certified = candidate is ThresholdRule.CERTIFIED
        spare = threshold - least_threshold(candidate, holders, corrupted, 1)
        quorum = least_quorum(holders, corrupted) if certified else 0
        if spare >= 0 and quorum <= threshold:
            packing = 1
            while 2 * packing <= min(MAXIMUM_PACKING, (spare // 2 if certified else spare) + 1):
                packing *= 2
            return Committee(holders, corrupted, threshold, packing, candidate, quorum)
    # 3 (C - c - absent) > 2 C + c for one answer; 2 (C - c - absent) > C + c and C - absent > 2 c for certified lists.
    is_one_answer = rules[-1] is ThresholdRule.ONE_ANSWER
    suffice = 4 * corrupted + 3 * absent + 1 if is_one_answer else 3 * corrupted + 2 * absent + 1
    can = f"{suffice} can" if suffice <= MAXIMUM_HOLDERS else f"an epoch has at most {MAXIMUM_HOLDERS}; assume fewer"
    raise InvalidParameters(
        f"{holders} holders cannot do without {corrupted} corrupted and {absent} absent ones under {rules[-1]}; {can}"
    )


def _lattices(degrees: Sequence[int], least_security: int) -> Iterator[tuple[int, int, int]]:
    for degree in degrees:
        widest = min(MAXIMUM_MODULUS_BITS, greatest_modulus_bits(degree, least_security))
        for modulus_bits in range(2, widest + 1):
            for dropped_bits in range(MAXIMUM_DROPPED_BITS + 1):
                yield degree, modulus_bits, dropped_bits


def _too_wide(
    segments: Sequence[Values], capacity: int, weight: int, least_security: int, degrees: Sequence[int]
) -> InvalidParameters | None:
    """Return the error that the values alone make, in any lattice."""
    widest = max(min(MAXIMUM_MODULUS_BITS, greatest_modulus_bits(degree, least_security)) for degree in degrees)
    room, is_held = widest - least_guard_bits(capacity, 0), True
    for position, segment in enumerate(segments):
        bits = segment.field_bits(weight)
        if bits > segment.ring_bits:
            return InvalidParameters(
                f"a sum of segment {position} reaches {bits} bits and its ring has {segment.ring_bits}; "
                f"a ring of {bits} bits fits"
            )
        is_held &= bits <= (widest if segment.fine_bits else room)
    if is_held and room > 0:
        return None
    return InvalidParameters(
        f"no lattice of {least_security} bits of security in degrees {tuple(degrees)} holds these values; rings of at "
        f"most {max(room, 0)} bits fit, or plan with a higher degree"
    )


Bounds = tuple[int, int] | None
_WORDS_OF_A_PRODUCT: Final = 64
"""A client's work for a coefficient: a product of polynomials, noise, packing, and the digest."""
_WORDS_OF_AN_ADDITION: Final = 4


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
    """Choose thresholds for these holders; the authority signs the returned record.

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
    """Put an offer together from an epoch's record, its holders' keys, and the subject of the sum.

    Raises:
        InvalidParameters: nothing fits; the message names the next parameters that do.
    """
    bounds, most = tuple(bounds or [None] * len(subject.layout.segments)), capacity * maximum_weight
    committee = Committee(
        len(record.holders), record.corrupted, record.threshold, record.packing, record.rule, record.quorum
    )
    values = masked_values(subject.layout, bounds, most)
    parameters = plan(values, capacity, committee, capacity_weight=most).with_witnesses()
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
            application_digest=noise.bound_to(subject.terms_digest, corrupted_clients),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OneMessageSettings(BudgetedNoise):
    """Plan of an epoch and its sums."""

    suite: Suite = Suite.CLASSIC
    rule: ThresholdRule | None = None
    """The rule ``one_answer`` where the holders suffice for it, if nothing is said."""
    corrupted_holders: int = 1
    """Number of holders assumed to work with the server."""
    absent_holders: int = 0
    """Number of other holders that may be away."""
    minimum_cohort: int = 3
    corrupted: int = 1
    """Number of clients assumed to be corrupted, counted absolutely."""
    capacity: int | None = None
    """The most clients of a sum; by default all who are invited."""
    maximum_weight: int = 1
    bounds: tuple[Bounds, ...] | None = None
    """Bounds of one value of each segment of the layout: several then share a coefficient."""
    delivered_at_once: int = 64
    """Number of uploads, or 16 MiB of them, that wait until standing holders are sent their shares."""
    mode: SecurityMode = SecurityMode.ACTIVE
    holders: int = 5
    """Number of holders of a simulation; elsewhere the epoch's record says it."""
    lifetime: timedelta = timedelta(hours=24)
    """Lifetime of an epoch."""


def costs(layout: Layout, clients: int, suite: Suite) -> Iterator[Costs]:
    """Find the masks for five holders, and count.

    Raises:
        InvalidParameters: nothing fits; the message names the next parameters that do.
    """
    rare, settings = clients // ONE_IN, OneMessageSettings(suite=suite)
    record = plan_epoch(
        [HolderIdentity(number=place, public_key=_key(place)) for place in range(settings.holders)],
        number=1,
        expiry=1,
        corrupted=settings.corrupted_holders,
        suite=suite,
        authority=_key(settings.holders),
    )
    sealing_key_bytes, overhead = sealing_sizes(suite)
    keys = HolderKeys(
        record=bytes(DIGEST_BYTES),
        position=0,
        sealing_key=bytes(sealing_key_bytes),
        nonce=bytes(NONCE_BYTES),
        signature=bytes(SIGNATURE_BYTES),
    )
    offer = plan_offer(
        replace(record, signature=bytes(SIGNATURE_BYTES)),
        [keys.encode()] * settings.holders,
        Subject(task=b"a plan", round_number=1, layout=layout, capacity=clients),
        sum_id=bytes([1]) * SUM_ID_BYTES,
        capacity=clients,
        minimum_cohort=max(LEAST_COHORT, rare + 2),
        corrupted_clients=rare,
    )
    parameters = offer.configuration.parameters
    upload = Upload(
        t0=bytes(DIGEST_BYTES),
        header=UploadHeader(
            client=ClientId(0), identity=bytes(IDENTITY_BYTES), terms=offer.terms, nonce=bytes(NONCE_BYTES)
        ),
        pieces=(bytes(DIGEST_BYTES),) * len(parameters.piece_bytes),
        vector=b"",
        polynomial=bytes(parameters.polynomial_bytes),
        sealed=tuple(bytes(parameters.share_bytes(place) + overhead) for place in range(settings.holders)),
        signature=bytes(SIGNATURE_BYTES),
    )
    sent = len(upload.encode())
    shown = len(replace(upload, pieces=(bytes(DIGEST_BYTES),)).encode())
    padded = parameters.polynomials * parameters.degree
    yield Costs(
        plan=f"masks of degree {parameters.degree} modulo 2^{parameters.modulus_bits} with {parameters.guard_bits} "
        f"guard bits, {parameters.security_bits:.0f} bits of security by our estimate; {settings.holders} holders, of "
        f"whom any {parameters.threshold} open a sum and {parameters.corrupted} may be corrupted ({parameters.rule}); "
        "a coefficient for each value, because no bounds are set",
        payload_bytes=layout.payload_bytes,
        up_bytes=sent + parameters.upload_bytes,
        down_bytes=len(offer.encode()),
        # Every holder is shown all of an upload but the vector and the shares of others.
        between_bytes=settings.holders * shown - (settings.holders - 1) * sum(map(len, upload.sealed)),
        client=Work(word_operations=_WORDS_OF_A_PRODUCT * padded),
        server=Work(word_operations=(clients * _WORDS_OF_AN_ADDITION + _WORDS_OF_A_PRODUCT) * padded, steps=clients),
    )


def _key(number: int) -> bytes:
    """Return a key that nobody has; only its length counts."""
    return bytes([number + 1]) * IDENTITY_KEY_BYTES


def masked_values(layout: Layout, bounds: tuple[tuple[int, int] | None, ...], capacity_weight: int) -> list[Values]:
    """Return what ``plan`` is asked for: a layout's segments, with bounds where they are known, weight, check words.

    The zeros behind the weight follow from what it finds.
    """
    segments = layout.require_rings()
    if len(bounds) != len(segments):
        raise InvalidParameters(f"there are bounds, or None, for each of {len(segments)} segments; got {len(bounds)}")
    values = [
        Values(segment.length, segment.ring.modulus_bits, bound, segment.fine_bits)
        for segment, bound in zip(segments, bounds, strict=True)
    ]
    weight = Values(length=1, ring_bits=weight_bits(capacity_weight))
    return [*values, weight, *(one.check_words for one in values if one.fine_bits)]
