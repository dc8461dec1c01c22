"""A client that puts more than one vote into a block, and does everything else as the protocol says.

For rehearsals and attacks. Where clients are checked it is found out; elsewhere it spoils the sum.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from secagg.contract import Payload
from secagg.crypto.entropy import Coins
from secagg.crypto.hpke import ClassicSealingKey
from secagg.identifiers import ClientId

from .client import Client
from .configuration import IndexingConfiguration
from .lanes.groups import LaneGroup, Lanes
from .point_functions.explicit_share import ExplicitShare, SeedShare
from .point_functions.generation import ServerShare
from .point_functions.tree_share import TreeShare
from .uploads.point_function_halves import SharedIndices
from .uploads.upload import Upload, UploadHeader

if TYPE_CHECKING:
    from secagg.crypto.hybrid_key_agreement import HybridPublicKey

_MORE = 2
"""So many that no codeword can make up for it: one more could turn a vote for the derived lane into a valid one."""


class InsecureCheatingClient(Client):
    """Votes for one codeword of its first block twice more than it may."""

    def _sealed(
        self,
        configuration: IndexingConfiguration,
        header: UploadHeader,
        indices: SharedIndices,  # noqa: ARG002 -- the honest ones
        payload: Payload,
        keys: list[ClassicSealingKey | HybridPublicKey],
    ) -> tuple[Upload, Upload]:
        """Seal, sign and prove other point functions than the honest ones."""
        cheating = _ManyVotes(
            configuration, header.round_number, self.client, payload, self._coins, threads=self._threads
        )
        try:
            altered = replace(header, segments=cheating.headers)
            return super()._sealed(configuration, altered, cheating, payload, keys)
        finally:
            cheating.wipe()


class _ManyVotes(SharedIndices):
    """Point functions of which the first block's are worth more than one vote."""

    def __init__(  # noqa: PLR0913 -- what shares are made from
        self,
        configuration: IndexingConfiguration,
        round_number: int,
        client: ClientId,
        payload: Payload,
        coins: Coins,
        *,
        threads: int = 1,
    ) -> None:
        super().__init__(configuration, round_number, client, payload, coins, threads=threads)
        (number, segment, of, shares), *others = self._segments
        self._segments = [(number, segment, of, _with_more_votes(shares, segment.blocks)), *others]


def _with_more_votes(shares: tuple[ServerShare, ServerShare], blocks: int) -> tuple[ServerShare, ServerShare]:
    match shares:
        case SeedShare() as zero, ExplicitShare() as one:
            group = one.shape.group
            lanes = group.unpack(memoryview(one.encode()), blocks * one.shape.sent_lanes)
            _raise(group, lanes[:1])
            return zero, ExplicitShare(one.shape, blocks, one.binding, lanes)
        case TreeShare() as zero, TreeShare() as one:
            # The leaf on the path is corrected at one of the servers, whichever codeword was meant.
            _raise(zero.shape.group, zero.correction.leaf[0, 0, :1])
            changed = zero.correction.freeze()
            return (
                TreeShare(0, zero.binding, zero.seed, changed),
                TreeShare(1, one.binding, one.seed, changed),
            )
        case _:
            raise TypeError("these are no two halves of point functions")


def _raise(group: LaneGroup, lanes: Lanes) -> None:
    group.add_into(lanes, np.full_like(lanes, _MORE))
    group.reduce_into(lanes)
