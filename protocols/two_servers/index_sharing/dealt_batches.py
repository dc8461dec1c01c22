"""A dealer's batches at one server: checked once for all of their clients, then used once by each.

The servers run the one-hot check over a batch before they use any of it. Without that a dealer that deals a thousand
times the vote of one client reads the client's index off the histogram. What the check does not see is whether the
votes stand at the indices that were shared: that, and all else, is why the mode is called semi-honest.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from secagg.contract.layout import IndexSegment
from secagg.crypto.secret import Confined, Secret
from secagg.errors import MalformedMessage, Misuse, PeerError, Reason
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers.class_totals import ClassTotals
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.exchange import cut
from secagg.protocols.two_servers.lanes.groups import Lanes
from secagg.protocols.two_servers.one_hot.check import OneHotVerifier, RoundChallenges
from secagg.protocols.two_servers.one_hot.messages import OneHotProof
from secagg.protocols.two_servers.point_functions.block_ranges import over_threads
from secagg.protocols.two_servers.point_functions.explicit_share import ExplicitShare, SeedShare
from secagg.protocols.two_servers.point_functions.grid import LaneGrid
from secagg.protocols.two_servers.round_rules import Entry

from .dealt_correlations import DEALER, DealtHeader, body_sizes
from .index_shares import Indices, turn_into, uniform_indices
from .one_hot_exchange import OneHotExchange

_Step = TypeVar("_Step", bytes, None)


@dataclass(slots=True, eq=False)
class _DealtSegment:
    """What one server was dealt for one segment."""

    number: int
    segment: IndexSegment
    share: SeedShare | ExplicitShare = field(repr=False)
    mask_key: Secret
    proof: OneHotProof
    lanes: Lanes | None = field(repr=False)
    """The memory of an explicit share."""


class DealtBatch(Confined):
    """One server's side of one batch, from when it was opened until nothing of it is needed any more."""

    def __init__(  # noqa: PLR0913, PLR0917 -- what a batch is made of
        self,
        configuration: IndexingConfiguration,
        server: ServerId,
        header: DealtHeader,
        seed: Secret,
        body: bytearray | memoryview,
        challenges: RoundChallenges,
        *,
        threads: int = 1,
    ) -> None:
        """Read what this server was sent.

        Raises:
            MalformedMessage: it is nothing that an honest dealer sends.
        """
        self._configuration = configuration
        self._server = server
        self.header = header
        self._challenges = challenges
        self._threads = threads
        self._places = {client: place for place, client in enumerate(header.clients)}
        self._used = dict[ClientId, bytes]()
        self._exchange: OneHotExchange | None = None
        self.is_checked = False
        """Whether both servers found that all of it are votes for one codeword."""
        self._segments = dict[int, _DealtSegment]()
        sizes = body_sizes(configuration, server, len(header.clients))
        pieces = cut(body, [size for pair in sizes for size in pair])
        for (number, segment), nonce in zip(configuration.index_segments, header.nonces, strict=True):
            self._segments[number] = self._read(number, segment, nonce, seed, next(pieces), next(pieces))

    def _read(  # noqa: PLR0913, PLR0917 -- one segment of a body
        self, number: int, segment: IndexSegment, nonce: bytes, seed: Secret, sent: memoryview, proven: memoryview
    ) -> _DealtSegment:
        configuration, clients = self._configuration, len(self.header.clients)
        shape, blocks = configuration.shape(segment), clients * segment.blocks
        binding = self.header.key_binding(configuration, number, nonce)
        proof = OneHotProof.decode(
            bytes(proven), self.header.check_context(configuration, number, segment, nonce).shape
        )
        if proof.server != self._server:
            raise MalformedMessage("a proof is for the other server", reason=Reason.NOT_CANONICAL)
        lanes: Lanes | None = None
        if self._server.index:
            lanes = shape.group.unpack(sent, blocks * shape.sent_lanes)
            share: SeedShare | ExplicitShare = ExplicitShare(shape, blocks, binding, lanes)
        else:
            share = SeedShare(shape, blocks, binding, Secret("dealt vote seed", sent))
        mask_key = self.header.mask_key(configuration, self._server, number, seed)
        return _DealtSegment(number, segment, share, mask_key, proof, lanes)

    # --- The check, once for all clients ------------------------------------------------------------------------------

    def propose(self) -> bytes:
        """Commit to what will be opened."""
        return self._check(lambda checks: checks.propose())

    def learn(self, heard: bytes) -> None:
        """Learn nothing: shares of votes depend on nothing that the other server says."""

    def answer(self, proposal: bytes) -> bytes:
        """Open against server 1's commitments."""
        return self._check(lambda checks: checks.answer(proposal))

    def conclude(self, answer: bytes) -> bytes:
        """Decide upon server 0's openings, and open."""
        return self._check(lambda checks: checks.conclude(answer))

    def settle(self, conclusion: bytes) -> None:
        """Decide upon server 1's openings."""
        self._check(lambda checks: checks.settle(conclusion))

    def _check(self, step: Callable[[OneHotExchange], _Step]) -> _Step:
        with _true_blame():
            if self._exchange is None:
                self._exchange = OneHotExchange([self._verifier(dealt) for dealt in self._segments.values()])
            return step(self._exchange)

    def _verifier(self, dealt: _DealtSegment) -> OneHotVerifier:
        nonce = dealt.share.binding.nonce
        context = self.header.check_context(self._configuration, dealt.number, dealt.segment, nonce)
        return OneHotVerifier(context, dealt.share, dealt.proof, self._challenges, threads=self._threads)

    def add_to(self, totals: ClassTotals) -> None:
        """Add nothing to the sums: from now on votes are added with the uploads that they are for."""
        del totals
        self.end_check(accepted=True)

    def end_check(self, *, accepted: bool) -> None:
        """Forget what only the check needed; burn all of a batch that was not accepted."""
        self.is_checked = accepted
        self._exchange = None
        for dealt in self._segments.values():
            dealt.proof.seed.wipe()
        if not accepted:
            self.wipe()

    # --- Each correlation, once -----------------------------------------------------------------------------------

    def use(self, client: ClientId, upload_id: bytes) -> None:
        """Spend the correlation of a client on an upload; for the same upload it may be asked for again.

        Raises:
            Misuse: the batch is not checked, or the correlation was spent on another upload.
        """
        if not self.is_checked:
            raise Misuse("a correlation is used after its whole batch was checked")
        if self._used.setdefault(client, upload_id) != upload_id:
            raise Misuse("a correlation hides one index, once", reason=Reason.ALREADY_SPENT)

    def masks(self, client: ClientId, number: int) -> Indices:
        """Return this server's shares of the random indices of a client."""
        dealt = self._segments[number]
        blocks = dealt.segment.blocks
        return uniform_indices(dealt.mask_key, dealt.segment.codewords, self._places[client] * blocks, blocks)

    def turned(self, client: ClientId, number: int, differences: Indices) -> LaneGrid:
        """Return this server's shares of a client's votes, each turned by its difference."""
        dealt = self._segments[number]
        share, blocks = dealt.share, dealt.segment.blocks
        place, grid = self._places[client] * blocks, LaneGrid.zeros(share.shape, blocks)

        def turn(first: int, stop: int) -> None:
            dealt_lanes = LaneGrid.zeros(share.shape, stop - first, place + first)
            share.accumulate(dealt_lanes)
            lanes = np.concatenate([array[:, :, 0] for array in dealt_lanes.arrays], axis=1)
            dealt_lanes.wipe()
            turn_into(lanes, differences[first:stop])
            for low, high, array in grid.part(first, stop).located():
                array[:, :, 0] = lanes[:, low - first : high - first]
            lanes.fill(0)

        over_threads(share.shape, blocks, self._threads, turn)
        return grid

    def wipe(self) -> None:
        """Overwrite all seeds and shares."""
        self.is_checked = False
        for dealt in self._segments.values():
            dealt.mask_key.wipe()
            dealt.proof.seed.wipe()
            if isinstance(dealt.share, SeedShare):
                dealt.share.seed.wipe()
            if dealt.lanes is not None:
                dealt.lanes.fill(0)

    def __repr__(self) -> str:
        checked = "checked" if self.is_checked else "not checked"
        return f"<DealtBatch at {self._server}, {len(self._places)} clients, {checked}>"


@dataclass(slots=True, eq=False)
class OpenedBatch:
    """A batch that is neither taken nor rejected yet, in the form in which a server asks about uploads."""

    entry: Entry
    exchange: DealtBatch
    asked: tuple[bytes, bytes] | None = None
    is_live: bool = False
    is_ready: bool = True

    def add_to(self, totals: ClassTotals) -> None:
        """Let the correlations be used."""
        self.exchange.add_to(totals)

    def wipe(self) -> None:
        """Forget the check; burn a batch that was not taken."""
        self.exchange.end_check(accepted=self.exchange.is_checked)


class Correlations(Confined):
    """All batches of one round at one server."""

    def __init__(self) -> None:
        """Begin with none."""
        self._of = dict[ClientId, DealtBatch]()

    def add(self, batch: DealtBatch) -> None:
        """Remember a new batch, of which no client has another one."""
        self._of.update(dict.fromkeys(batch.header.clients, batch))

    def of(self, client: ClientId) -> DealtBatch | None:
        """Return the batch of a client, if there is one."""
        return self._of.get(client)

    def wipe(self) -> None:
        """Overwrite all seeds and shares."""
        for batch in set(self._of.values()):
            batch.wipe()
        self._of.clear()

    def __repr__(self) -> str:
        return f"<Correlations of {len(self._of)} clients>"


@contextmanager
def _true_blame() -> Generator[None]:
    """Blame nobody where the check blames who made a batch: the dealer is no party that errors can name."""
    try:
        yield
    except PeerError as error:
        if DEALER in error.culprits:
            error.culprits = frozenset[ClientId | ServerId]()
        raise
