"""Shares without a tree: server 0 expands a seed into its lanes, and server 1 is sent its own.

Lanes are laid out in runs of ``RUN_BLOCKS`` blocks, the last of which may be shorter, and lane by lane within a run,
which is what vector units add fast. Where the shape derives the last lane, each server computes its own as
the difference of the others' sum from 1 at server 0 and from 0 at server 1, for every client by itself. A sum of
shares could not tell later which client had left out what.

An explicit share is secret: together with the seed of server 0, it is the assignments.
"""

from __future__ import annotations

import hashlib

import numpy as np

from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Confined, Secret
from secagg.errors import InvalidParameters, Misuse
from secagg.protocols.two_servers.lanes.groups import Lanes, LaneSource

from .grid import LaneGrid, require_blocks, require_range
from .seeds import lanes_key, require_weight, share_digest
from .shape import RUN_BLOCKS, PointFunctionShape
from .tree_hash import KeyBinding


class _WithoutTree(Confined):
    """What both shares have in common: lanes in runs, and what a server adds of them."""

    server_index: int

    def __init__(self, shape: PointFunctionShape, blocks: int, binding: KeyBinding) -> None:
        if type(shape) is not PointFunctionShape or type(binding) is not KeyBinding:
            raise Misuse("a share is made from a PointFunctionShape and a KeyBinding")
        if shape.depth:
            raise InvalidParameters(f"a shape of depth {shape.depth} has a tree; its shares are TreeShares")
        require_blocks(blocks)
        self.shape = shape
        self.blocks = blocks
        self.binding = binding

    def lanes(self, first: int, count: int) -> Lanes:
        """Return this client's share of blocks [first, first + count) as rows of codewords."""
        require_range(first, first + count, 0, self.blocks)
        grid = LaneGrid.zeros(self.shape, count, first)
        self.accumulate(grid)
        return grid.rows()

    def accumulate(self, grid: LaneGrid, weight: int = 1) -> None:
        """Add the share of the grid's blocks, times a public weight, into the grid."""
        require_range(grid.first, grid.stop, 0, self.blocks)
        require_weight(weight, self.shape.group)
        source, sent = self._source(), self.shape.sent_lanes
        for first, stop, array in grid.located():
            # A run is made whole, also where the grid holds part of it.
            run_first = first // RUN_BLOCKS * RUN_BLOCKS
            run_blocks = min(self.blocks - run_first, RUN_BLOCKS)
            lanes = source.lanes(run_first * sent, run_blocks * sent).reshape(sent, run_blocks)
            self._add(array[:, :, 0], lanes[:, first - run_first : stop - run_first], weight)

    def _add(self, part: Lanes, lanes: Lanes, weight: int) -> None:
        group, sent = self.shape.group, self.shape.sent_lanes
        if weight != 1:
            lanes = lanes.copy()
            group.scale_into(lanes, weight)
        group.add_into(part[:sent], lanes)
        if self.shape.derives_last_lane:
            last = part[sent]
            group.subtract_into(last, group.column_sums(lanes))
            if not self.server_index:
                group.add_into(last, np.full_like(last, weight))

    def _source(self) -> LaneSource:
        raise NotImplementedError


class SeedShare(_WithoutTree):
    """The share of server 0: a seed and what it expands into."""

    server_index = 0

    def __init__(self, shape: PointFunctionShape, blocks: int, binding: KeyBinding, seed: Secret) -> None:
        """Take a seed; the caller keeps it and wipes it."""
        super().__init__(shape, blocks, binding)
        self.seed = seed
        self._source()

    @property
    def digest(self) -> bytes:
        """The digest of everything that the share is made from."""
        return share_digest(self.shape, self.blocks, self.binding, self.server_index, self.seed, b"")

    def _source(self) -> LaneSource:
        return self.shape.group.stream(lanes_key(self.shape, self.blocks, self.binding, self.seed))


class ExplicitShare(_WithoutTree):
    """The share of server 1: lanes, for its eyes only."""

    server_index = 1

    def __init__(self, shape: PointFunctionShape, blocks: int, binding: KeyBinding, sent: Lanes) -> None:
        """Take the lanes that are sent, in the order of runs, and below the order of the group."""
        super().__init__(shape, blocks, binding)
        if sent.dtype != shape.group.word or sent.shape != (blocks * shape.sent_lanes,):
            raise Misuse(f"an explicit share of {blocks} blocks is {blocks * shape.sent_lanes} {shape.group.word}")
        self._sent = _Fixed(sent)

    @property
    def digest(self) -> bytes:
        """The digest of everything that the share is made from."""
        sent = hashlib.sha256(bind(Label.POINT_FUNCTION_EXPLICIT_DIGEST, self.encode())).digest()
        return share_digest(self.shape, self.blocks, self.binding, self.server_index, None, sent)

    @staticmethod
    def encoded_bytes(shape: PointFunctionShape, blocks: int) -> int:
        """Return how many bytes ``encode`` gives."""
        return (blocks * shape.sent_lanes * shape.group.bits + 7) // 8

    def encode(self) -> bytes:
        """Return the canonical encoding: each lane in exactly p bits."""
        return self.shape.group.pack(self._sent.lanes(0, self.blocks * self.shape.sent_lanes))

    @classmethod
    def decode(
        cls, data: bytes | bytearray | memoryview, shape: PointFunctionShape, blocks: int, binding: KeyBinding
    ) -> ExplicitShare:
        """Read a share back.

        Raises:
            MalformedMessage: the number of bytes is wrong, which is checked before anything is allocated; a bit that
                fills the last byte is set; or a lane is not below the group's order.
        """
        require_blocks(blocks)
        return cls(shape, blocks, binding, shape.group.unpack(memoryview(data), blocks * shape.sent_lanes))

    def _source(self) -> LaneSource:
        return self._sent


class _Fixed:
    """Lanes that are there already."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes

    def lanes(self, start: int, count: int) -> Lanes:
        """Return lanes [start, start + count)."""
        return self._lanes[start : start + count]
