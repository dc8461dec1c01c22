"""A tree of sums: the released sums of several sessions, added, where there are more clients than one session takes.

Every session releases its own sum, so whoever adds learns each of them and not the total alone. A client is protected
by its own session: by that session's minimum cohort, and by its noise. The noise of the other sums does not add to its
protection, and is in the total all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Final

from secagg.contract import Layout, RingSegment
from secagg.contract.decoder import Integers, integers_of
from secagg.errors import CapacityExceeded, InvalidParameters, Misuse
from secagg.identifiers import ClientId
from secagg.parameters import LEAST_COHORT

from .roles import Released

MOST_CLIENTS: Final = 10_000
"""Of one session; nothing breaks above, but a client is told of everybody, and one process holds everybody's shares."""
_INTEGER_BITS: Final = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """What several sums come to."""

    values: Integers = field(repr=False)
    """Integers, segment by segment; of indices, how often each was chosen."""
    sums: int
    contributors: int
    total_weight: int
    deviations: tuple[float, ...]
    """Of the noise of each segment of the total, in steps: what accuracy suffers from."""
    least_deviations: tuple[float, ...]
    """Of that sum which has the least: what the privacy of every client can be accounted with."""


class AddedSums:
    """Adds released sums of clients of whom nobody is in two."""

    def __init__(self, layout: Layout, *, minimum_cohort: int) -> None:
        """Begin with nothing.

        Args:
            layout: of every sum; the ring holds the sum of one session, and totals are integers.
            minimum_cohort: how many contributors each sum has at least.
        """
        if minimum_cohort < LEAST_COHORT:
            raise InvalidParameters(f"minimum_cohort is at least {LEAST_COHORT}; got {minimum_cohort}")
        self._layout, self._least = layout, minimum_cohort
        self._values: Integers | None = None
        self._counted = set[ClientId]()
        self._weight = 0
        self._deviations = list[tuple[float, ...]]()

    def add(self, released: Released, deviations: Sequence[float] = ()) -> None:
        """Add the sum of one session; a sum that is refused has changed nothing.

        Args:
            deviations: of the noise in this sum, one for each segment, as ``deviations_in`` says of its session.
        Raises:
            InvalidParameters: too few contributors, a client that is in another sum, or noise unlike the others'.
            CapacityExceeded: more sums than 64 bits hold of this layout.
            Misuse: a sum of another layout.
        """
        aggregate, noise = released.aggregate, tuple(deviations)
        if aggregate.layout != self._layout:
            raise Misuse("a sum of another layout; open every session with the same layout and parameters")
        for shown in (released.counted, *released.revealed):
            if len(shown) < self._least:
                raise InvalidParameters(
                    f"a session showed the sum of {len(shown)} clients, and {self._least} are insisted on: deal "
                    "clients out to fewer sessions, and set minimum_cohort in each"
                )
        if twice := self._counted & released.counted:
            raise InvalidParameters(
                f"{min(twice)} is in two sums, and so are {len(twice) - 1} others: invite every client to one session "
                "of a round"
            )
        if noise and len(noise) != len(self._layout.segments):
            raise Misuse(f"{len(noise)} deviations for {len(self._layout.segments)} segments; give one for each")
        if self._deviations and bool(self._deviations[0]) != bool(noise):
            raise InvalidParameters(
                "one sum has noise and another has none, so that the clients of the latter are not protected: set the "
                "same noise in every session"
            )
        self._require_room(len(self._deviations) + 1, self._weight + aggregate.total_weight)
        values = integers_of(aggregate)
        if self._values is not None:
            values = tuple(total + value for total, value in zip(self._values, values, strict=True))
        self._values = values
        self._counted |= released.counted
        self._weight += aggregate.total_weight
        self._deviations.append(noise)

    def total(self) -> Total:
        """Return what the sums come to so far.

        Raises:
            InvalidParameters: nothing was added.
        """
        if self._values is None:
            raise InvalidParameters("there is no total of no sums; add one")
        by_segment = list(zip(*self._deviations, strict=True))
        return Total(
            values=tuple(value.copy() for value in self._values),
            sums=len(self._deviations),
            contributors=len(self._counted),
            total_weight=self._weight,
            deviations=tuple(sqrt(sum(each * each for each in segment)) for segment in by_segment),
            least_deviations=tuple(min(segment) for segment in by_segment),
        )

    def _require_room(self, sums: int, weight: int) -> None:
        rings = (segment.modulus_bits for segment in self._layout.segments if isinstance(segment, RingSegment))
        # An element is below half of its modulus, and a counter at most the total weight.
        widest = max(rings, default=1) - 1 + (sums - 1).bit_length()
        if max(widest, weight.bit_length()) > _INTEGER_BITS:
            raise CapacityExceeded(
                f"{sums} sums of this layout need more than 64 bits: take a narrower ring or fewer sessions"
            )


def deal_out(clients: Sequence[ClientId], *, minimum_cohort: int, most: int = MOST_CLIENTS) -> list[list[ClientId]]:
    """Deal clients out to as few sessions as take them, of sizes that differ by one at most.

    Security: draw the order at random, or an authority fixes it. Whoever chooses the sessions chooses whose inputs are
    summed, and one client among corrupted ones is one input.
    Raises:
        InvalidParameters: the sessions would be smaller than the minimum cohort.
    """
    sessions = -(-len(clients) // most)
    if not clients or len(clients) // sessions < minimum_cohort:
        raise InvalidParameters(
            f"{len(clients)} clients in sessions of at most {most} leave one below the minimum cohort of "
            f"{minimum_cohort}: invite more, or lower it"
        )
    return [list(clients[place::sessions]) for place in range(sessions)]
