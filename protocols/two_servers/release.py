"""The end of a round at one server: one list, one commitment, one share, and the sum of both servers' shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from secagg.contract import Aggregate
from secagg.contract.layout import IndexSegment
from secagg.crypto.ring import RingVector, add_into, reduce_into
from secagg.crypto.secret import Confined
from secagg.errors import CapacityExceeded, Misuse, PeerMisbehaved, Reason, blaming
from secagg.identifiers import ClientId
from secagg.session.certificates import SigningKey

from .class_totals import ClassTotals
from .configuration import IndexingConfiguration
from .round_rules import Entry
from .server_messages import AcceptedList, OutputCommitment, OutputShare, RoundStamp


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a round gave."""

    aggregate: Aggregate
    counted: tuple[ClientId, ...]
    left_out: tuple[ClientId, ...]
    """Clients whose uploads were taken, and whose weight too few others had."""
    rejected: dict[ClientId, str]


class Release(Confined):
    """What one server has signed and heard at the end of a round; which steps are allowed is for ``RoundRules``."""

    def __init__(
        self,
        configuration: IndexingConfiguration,
        stamp: RoundStamp,
        peer_stamp: RoundStamp,
        signing_key: SigningKey,
    ) -> None:
        """Begin with nothing signed."""
        self._configuration = configuration
        self._stamp, self._peer_stamp = stamp, peer_stamp
        self._signing_key = signing_key
        self.signed_list: bytes | None = None
        self.peer_list: bytes | None = None
        self.peer_commitment: OutputCommitment | None = None
        self._share: bytes | None = None

    def sign(self, entries: Sequence[Entry]) -> bytes:
        """Return the signed list of these uploads."""
        return AcceptedList.signed(self._stamp, entries, self._signing_key).encode()

    def require_same_list(self, peer_list: bytes) -> None:
        """Check that the other server has signed the same list.

        Raises:
            AuthenticationFailed: the other server did not sign it.
            MalformedMessage, UnexpectedMessage: it is no list.
            PeerMisbehaved: with reason ``servers_disagree``.
        """
        theirs = AcceptedList.decode(peer_list, self._configuration, self._peer_stamp)
        ours = self._own_list()
        if (theirs.entries_digest, theirs.contributors) != (ours.entries_digest, ours.contributors):
            raise PeerMisbehaved(
                f"{self._peer_stamp.server} has signed another list, of {theirs.contributors} uploads and not "
                f"{ours.contributors}; nothing of this round is released",
                reason=Reason.SERVERS_DISAGREE,
                round_name="agree",
            )

    def commitment(self, totals: ClassTotals, counted: Sequence[Entry]) -> bytes:
        """Return the commitment to this server's share."""
        share = self.share(totals, counted)
        return OutputCommitment.to(self._stamp, self._own_list().entries_digest, share).encode()

    def read_commitment(self, message: bytes) -> OutputCommitment:
        """Read the other server's commitment.

        Raises:
            PeerMisbehaved: the other server committed to something else before.
            MalformedMessage, UnexpectedMessage: it is no commitment.
        """
        theirs = OutputCommitment.decode(message, self._peer_stamp)
        if self.peer_commitment not in (None, theirs):
            raise PeerMisbehaved(
                f"{self._peer_stamp.server} has committed to another share before",
                reason=Reason.ALREADY_ANSWERED,
                culprits=[self._peer_stamp.server],
                round_name="open",
            )
        return theirs

    def share(self, totals: ClassTotals, counted: Sequence[Entry]) -> bytes:
        """Return this server's share of the sum, which is computed once."""
        if self._share is None:
            values = totals.weighted(sorted({entry.weight for entry in counted}))
            self._share = OutputShare(stamp=self._stamp, values=values).encode(self._configuration)
        return self._share

    def combined(self, peer_share: bytes, totals: ClassTotals, counted: Sequence[Entry]) -> Aggregate:
        """Add the other server's share, and return the sum.

        Raises:
            PeerMisbehaved: it is not what the other server committed to, or the two add up to no sum.
        """
        peer = self._peer_stamp.server
        if self.peer_commitment is None:
            raise Misuse("a server opens its share first, against the other server's commitment")
        digest = self._own_list().entries_digest
        if OutputCommitment.to(self._peer_stamp, digest, peer_share) != self.peer_commitment:
            raise PeerMisbehaved(
                f"the share of {peer} is not what it committed to",
                reason=Reason.COMMITMENT_MISMATCH,
                culprits=[peer],
                round_name="combine",
            )
        with blaming(peer):
            theirs = OutputShare.decode(peer_share, self._configuration, self._peer_stamp)
        own = OutputShare.decode(self.share(totals, counted), self._configuration, self._stamp)
        try:
            return self._aggregate(own, theirs, counted)
        except CapacityExceeded as error:
            raise PeerMisbehaved(
                f"the two shares add up to no sum: {error}", reason=Reason.SERVERS_DISAGREE, round_name="combine"
            ) from None

    def wipe(self) -> None:
        """Give this server's share up."""
        self._share = None

    def _own_list(self) -> AcceptedList:
        if self.signed_list is None:
            raise Misuse("a server signs its own list first")
        return AcceptedList.decode(self.signed_list, self._configuration, self._stamp)

    def _aggregate(self, own: OutputShare, theirs: OutputShare, counted: Sequence[Entry]) -> Aggregate:
        configuration, group = self._configuration, self._configuration.group
        sums = list[RingVector]()
        for segment, value, other in zip(configuration.layout.segments, own.values, theirs.values, strict=True):
            if isinstance(segment, IndexSegment):
                group.add_into(value, other)
                group.reduce_into(value)
                sums.append(value.reshape(segment.blocks, segment.codewords).astype(np.uint64))
            else:
                sums.append(reduce_into(add_into(value, other), segment.modulus_bits))
        total_weight = sum(entry.weight for entry in counted)
        return Aggregate(configuration.layout, tuple(sums), len(counted), total_weight)
