"""A server's sums of the shares of many clients, block by block and codeword by codeword."""

from __future__ import annotations

from secagg.crypto.secret import Confined
from secagg.errors import Misuse, Reason
from secagg.parameters import require_integer
from secagg.protocols.two_servers.lanes.fields import Lanes

from .generation import ServerShare, over_threads
from .shape import PointFunctionShape
from .shares import LaneGrid


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

    def add(self, share: ServerShare, *, threads: int = 1) -> None:
        """Evaluate a client's share and add it; no client's lanes are ever held whole.

        Raises:
            Misuse: the share is of another shape, number of blocks, or server, or this sum was given up. Nothing was
                added.
            MalformedMessage: the client's key is refused for want of lanes.

        Should anything go wrong on the way, the sum is overwritten and given up, because it holds part of a share. A
        key that lacks lanes does not come about by chance, nor can a client search for one.
        """
        self._require_ours(share)
        total = self._usable()
        require_integer("threads", threads, 1)
        try:
            over_threads(
                self.shape, self.blocks, threads, lambda first, stop: share.accumulate(total.part(first, stop))
            )
        except BaseException:
            total.wipe()
            self._given_up = True
            raise

    def rows(self) -> Lanes:
        """Return this share as a row of codewords for each block."""
        return self._usable().rows()

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
