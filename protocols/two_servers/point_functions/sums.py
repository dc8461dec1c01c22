"""A server's sums of the shares of many clients, block by block and codeword by codeword."""

from __future__ import annotations

from secagg.crypto.secret import Confined
from secagg.errors import Misuse, Reason
from secagg.parameters import require_integer
from secagg.protocols.two_servers.lanes.fields import Lanes

from .generation import ServerShare, over_threads
from .shape import PointFunctionShape, require_weight
from .shares import LaneGrid, require_range


class HistogramShare(Confined):
    """One server's share of the histogram: the sum of the shares that it accepted, of O(blocks x codewords) memory.

    Security: a share of one client alone, or of two sets of clients that differ in one, is that client's input as soon
        as the other server's share is known. Which sums leave the server is for the protocol to decide.
    """

    def __init__(self, shape: PointFunctionShape, blocks: int, server_index: int) -> None:
        """Begin with nobody's share."""
        self.shape = shape
        self.blocks = blocks
        self.server_index = server_index
        self._total = LaneGrid.zeros(shape, blocks)
        self._given_up = False

    def add(self, share: ServerShare, *, weight: int = 1, threads: int = 1) -> None:
        """Evaluate a client's share and add it, times a public weight; no client's lanes are ever held whole.

        Raises:
            Misuse: the share is of another shape, number of blocks, or server, or this sum was given up. Nothing was
                added.
            MalformedMessage: the client's key is refused for want of lanes, see ``evaluate``.

        Should anything go wrong on the way, the sum is overwritten and given up, because it holds part of a share. A
        key that lacks lanes does not come about by chance, nor can a client search for one; who would rather lose the
        client than the sum evaluates first.
        """
        self._require_ours(share)
        require_weight(weight, self.shape.group)
        total = self._usable()
        require_integer("threads", threads, 1)
        try:
            over_threads(
                self.shape, self.blocks, threads, lambda first, stop: share.accumulate(total.part(first, stop), weight)
            )
        except BaseException:
            total.wipe()
            self._given_up = True
            raise

    def add_evaluated(self, grid: LaneGrid, *, weight: int = 1) -> None:
        """Add lanes that were evaluated before, times a public weight; ``grid`` may be of a part of the blocks."""
        if grid.shape != self.shape:
            raise Misuse("the lanes are of another shape than the histogram")
        require_weight(weight, self.shape.group)
        require_range(grid.first, grid.stop, 0, self.blocks)
        for first, stop, array in grid.located():
            scaled = array.copy() if weight != 1 else array
            if weight != 1:
                self.shape.group.scale_into(scaled, weight)
            for low, high, total in self._usable().part(first, stop).located():
                self.shape.group.add_into(total, scaled[:, low - first : high - first])

    def rows(self, first: int = 0, count: int | None = None) -> Lanes:
        """Return this share for blocks [first, first + count), by default all, as rows of codewords."""
        stop = self.blocks if count is None else first + count
        return self._usable().part(first, stop).rows()

    def wipe(self) -> None:
        """Overwrite the sum, and give it up."""
        self._total.wipe()
        self._given_up = True

    def _usable(self) -> LaneGrid:
        if self._given_up:
            raise Misuse("the sum was wiped, or holds part of a share; begin a new one", reason=Reason.ALREADY_SPENT)
        return self._total

    def _require_ours(self, share: ServerShare) -> None:
        if (share.shape, share.blocks, share.server_index) != (self.shape, self.blocks, self.server_index):
            raise Misuse("the share is of another shape, number of blocks or server than the histogram")


def evaluate(share: ServerShare, *, threads: int = 1) -> LaneGrid:
    """Return one client's share of all blocks, before it is added to anything.

    Raises:
        MalformedMessage: the client's key is refused for want of lanes.
    """
    grid = LaneGrid.zeros(share.shape, share.blocks)
    over_threads(share.shape, share.blocks, threads, lambda first, stop: share.accumulate(grid.part(first, stop)))
    return grid
