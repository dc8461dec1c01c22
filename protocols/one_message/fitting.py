"""The cheapest parameters for a layout, a number of uploads and the holders at hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Final

from secagg.errors import InvalidParameters

from .lattice.estimator import greatest_modulus_bits
from .lattice.values import Values
from .parameters import (
    DEGREES,
    LEAST_SECURITY,
    MAXIMUM_DROPPED_BITS,
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
    for degree, modulus_bits, dropped_bits in _lattices(degrees, least_security):
        with suppress(InvalidParameters):
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
            found.append(((fitting.upload_bytes + fitting.dealt_bytes) * words, fitting))
    if not found:
        raise _nothing_fits(segments, capacity, weight, least_security, degrees)
    # The narrowest of equally long ones is the strongest.
    return min(found, key=lambda entry: (entry[0], entry[1].modulus_bits))[1]


def choose_committee(holders: int, corrupted: int, absent: int = 0, rule: ThresholdRule | None = None) -> Committee:
    """Return thresholds that these holders can keep, with the corrupted ones silent and the absent ones away.

    The threshold is the largest that leaves as many answers as it needs: whatever is above the bound protects against
    more corrupted holders than were assumed. Half of what certified lists leave goes to packing.

    Args:
        corrupted: how many may work with the server, or lie.
        absent: how many more may be away when answers are due.
        rule: one answer where the holders suffice for it, otherwise certified lists, if nothing is said.

    Raises:
        InvalidParameters: there are too few holders; the message says how many suffice.
    """
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
    raise InvalidParameters(
        f"{holders} holders cannot do without {corrupted} corrupted and {absent} absent ones under {rules[-1]}; "
        f"{suffice} can"
    )


def _lattices(degrees: Sequence[int], least_security: int) -> Iterator[tuple[int, int, int]]:
    for degree in degrees:
        widest = min(MAXIMUM_MODULUS_BITS, greatest_modulus_bits(degree, least_security))
        for modulus_bits in range(2, widest + 1):
            for dropped_bits in range(MAXIMUM_DROPPED_BITS + 1):
                yield degree, modulus_bits, dropped_bits


def _nothing_fits(
    segments: Sequence[Values], capacity: int, weight: int, least_security: int, degrees: Sequence[int]
) -> InvalidParameters:
    for position, segment in enumerate(segments):
        bits = segment.field_bits(weight)
        if bits > segment.ring_bits:
            return InvalidParameters(
                f"a sum of segment {position} reaches {bits} bits and its ring has {segment.ring_bits}; "
                f"a ring of {bits} bits fits"
            )
    widest = max(min(MAXIMUM_MODULUS_BITS, greatest_modulus_bits(degree, least_security)) for degree in degrees)
    room = widest - least_guard_bits(capacity, 0)
    return InvalidParameters(
        f"no lattice of {least_security} bits of security in degrees {tuple(degrees)} holds these values; rings of at "
        f"most {max(room, 0)} bits fit, or plan with a higher degree"
    )
