"""Sums over more clients than one session can have: runs one session per group, and adds their released sums.

The server learns each group's sum, so each session has its own minimum cohort and noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from secagg.contract import Aggregate, Layout, RingSegment, Segment
from secagg.contract.codewords import Tables, require_summed, summed_layout
from secagg.crypto.ring import Ring, RingVector
from secagg.errors import CapacityExceeded, InvalidParameters, SecAggError
from secagg.identifiers import ClientId
from secagg.parameters import LEAST_COHORT
from secagg.session.roles import Released

MOST_IN_A_GROUP: Final = 10_000


def divided(clients: int, groups: int) -> list[range]:
    """Return the numbers of each group's clients, from 1; sizes differ by at most one."""
    least, most = -(-clients // MOST_IN_A_GROUP), clients // LEAST_COHORT
    if not max(1, least) <= groups <= most:
        raise InvalidParameters(
            f"{clients} clients need {least} to {most} groups of {LEAST_COHORT} to {MOST_IN_A_GROUP}; got {groups}"
        )
    edges = [1 + clients * index // groups for index in range(groups + 1)]
    return [range(edges[index], edges[index + 1]) for index in range(groups)]


def joined(groups: Sequence[Released], layout: Layout, capacity: int, tables: Tables = ()) -> Released:
    """Add the released sums of all groups; ``revealed`` has what the server learned of each.

    Args:
        layout: layout of the updates, planned for all clients.
        capacity: largest number of uploads that its rings can hold.
        tables: codewords, if sums of them are released; they are added in rings that are wide enough.

    Raises:
        InvalidParameters: a sum has another layout, reveals too few clients, or counts a client that another sum
        counts. CapacityExceeded: the total has more uploads than the capacity, so that it may have wrapped.
    """
    of_all, counted = require_addable(groups, layout, tables), frozenset[ClientId]()
    for group in groups:
        if (shown := min(map(len, (group.counted, *group.revealed)))) < LEAST_COHORT:
            raise InvalidParameters(f"a group revealed the sum of {shown} clients; each needs at least {LEAST_COHORT}")
        if twice := counted & group.counted:
            raise InvalidParameters(f"{min(twice)} is counted in two groups; invite each client to one")
        counted |= group.counted
    uploads = sum(group.aggregate.contributors for group in groups)
    if uploads > capacity:
        raise CapacityExceeded(
            f"groups of {uploads} clients do not fit into a ring for {capacity}; plan it for all groups"
        )
    columns = zip(*(zip(g.aggregate.layout.segments, g.aggregate.values, strict=True) for g in groups), strict=True)
    values = tuple(
        segment.ring.sum((_within(segment.ring, *one) for one in column), segment.length)
        if isinstance(segment, RingSegment)
        else np.add.reduce([counts for _, counts in column], axis=0, dtype=np.uint64)
        for segment, column in zip(of_all.segments, columns, strict=True)
    )
    return Released(
        aggregate=Aggregate(of_all, values, uploads),
        counted=counted,
        left_out={client: error for group in groups for client, error in group.left_out.items()},
        revealed=frozenset[frozenset[ClientId]]().union(*(group.revealed for group in groups)),
        unbounded=tuple(sorted({segment for group in groups for segment in group.unbounded})),
    )


def require_addable(groups: Sequence[Released], layout: Layout, tables: Tables = ()) -> Layout:
    """Return the layout of the groups' total: that of the updates, or of sums of their codewords."""
    if all(group.aggregate.layout == layout for group in groups):
        return layout
    try:
        for group in groups:
            require_summed(group.aggregate.layout, layout, tables, group.aggregate.contributors)
    except SecAggError as error:
        raise InvalidParameters(
            f"a group's sum has neither the layout of the updates nor that of sums of codewords ({error}); release "
            "histograms"
        ) from None
    return summed_layout(layout, tables, sum(group.aggregate.contributors for group in groups))


def _within(ring: Ring, segment: Segment, values: RingVector) -> RingVector:
    """Return values as elements of a ring that holds the total."""
    return values if segment.ring == ring else ring.from_integers(segment.ring.lift(values))
