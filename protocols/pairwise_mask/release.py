"""The release of one sum: what the transcript reveals is counted first, then the masks that are left are removed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import islice
from typing import Final

from secagg.contract import Aggregate
from secagg.errors import NOBODY, PeerMisbehaved, Reason, ThresholdNotMet
from secagg.identifiers import ClientId

from .masking import MaskedVector, SignedKey
from .recovery import Recovery
from .settled import Settled
from .transcript import Transcript, revealed_sets

MASKS_PER_STEP: Final = 1024
"""Masks removed between two calls of the progress callback; their keys are in memory together."""
_LOG = logging.getLogger(__name__)


def count_revealed_sets(settled: Settled) -> frozenset[frozenset[ClientId]]:
    """Return the sets of clients whose sums the transcript reveals, unless one of them is too small.

    Raises:
        ThresholdNotMet: the sum of fewer clients than the minimum cohort would be revealed.
    """
    revealed = revealed_sets(transcript_of(settled))
    sizes = sorted(map(len, revealed))
    _LOG.info("the session reveals the sums of %d sets of clients, of sizes %s", len(sizes), sizes)
    smallest, needed = sizes[0] if sizes else 0, settled.configuration.minimum_cohort
    if smallest < needed:
        what = "contributors in the smallest set whose sum would be revealed"
        raise ThresholdNotMet(needed=needed, present=smallest, what=what, round_name="unmasking")
    return revealed


def transcript_of(settled: Settled) -> Transcript:
    """Return what a finished session shows of its contributors: who masked with whom, and what was recovered."""
    clients, neighbours_of = settled.roster.clients, settled.roster.graph.neighbours
    sharers, contributors = settled.sharers, settled.contributors
    masked_with = {
        clients[position]: frozenset(clients[other] for other in neighbours_of(position) if other in sharers)
        for position in contributors
    }
    dropped = frozenset(clients[position] for position in sharers if position not in contributors)
    return Transcript(masked_with=masked_with, self_mask_seeds=frozenset(masked_with), mask_roots=dropped)


def release_sum(settled: Settled, total: MaskedVector) -> Aggregate:
    """Return a sum from which every mask was removed, if it agrees with its check words and with who contributed.

    Raises:
        PeerMisbehaved: it does not; ``culprits`` is empty.
    """
    total.check(settled.roster.context)
    contributors, configuration = len(settled.contributors), settled.configuration
    if not contributors <= total.weight <= contributors * configuration.maximum_weight:
        raise PeerMisbehaved(
            f"{contributors} contributors have a total weight of {total.weight}, which weights of 1 to "
            f"{configuration.maximum_weight} do not give",
            reason=Reason.INPUT_OUT_OF_RANGE,
            culprits=NOBODY,
        )
    return Aggregate(configuration.layout, total.inputs(contributors), contributors, total.weight)


def remove_masks(
    total: MaskedVector, recovery: Recovery, progress: Callable[[int, int], None] | None, *, threads: int = 1
) -> None:
    """Remove every mask that is left from the sum of the uploads, some at a time.

    Implements: [BIK+17] Fig. 4, Round 4, server, the last equation.
    """
    done, count, keys = 0, recovery.mask_count, recovery.keys()
    while done < count:
        batch = list[SignedKey]()
        try:
            batch.extend(islice(keys, MASKS_PER_STEP))
            total.apply(
                [key for is_added, key in batch if is_added],
                [key for is_added, key in batch if not is_added],
                threads=threads,
            )
        finally:
            for _, key in batch:
                key.wipe()
        done += len(batch)
        if progress is not None:
            progress(done, count)
