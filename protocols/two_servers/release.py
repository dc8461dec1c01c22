"""The end of a round at one server: one list, one commitment, one share, and the sum of both servers' shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from secagg.contract import Aggregate
from secagg.contract.layout import IndexSegment
from secagg.crypto.key_derivation import expand
from secagg.crypto.labels import Label
from secagg.crypto.ring import RingVector, add_into, reduce_into
from secagg.crypto.secret import Confined, Secret
from secagg.errors import CapacityExceeded, Misuse, PeerMisbehaved, Reason, blaming
from secagg.identifiers import ClientId
from secagg.session.certificates import SigningKey

from .configuration import IndexingConfiguration
from .noise import centred, counts_layout
from .round_rules import Entry
from .server_messages import NONCE_BYTES, AcceptedList, OutputCommitment, OutputShare, RoundStamp, entries_digest
from .uploads.class_totals import ClassTotals

NOISE_SEED_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What a round gave."""

    aggregate: Aggregate
    counted: tuple[ClientId, ...]
    left_out: dict[ClientId, int]
    """Clients whose uploads were taken, and whose weight too few had, with how many did."""
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
        self.share: bytes | None = None
        """This server's share of the sum with its nonce, once the servers agree on a list."""

    def sign(self, entries: Sequence[Entry]) -> bytes:
        """Return the signed list of these uploads."""
        return AcceptedList.signed(self._stamp, entries, self._signing_key).encode()

    def is_list_of(self, own_list: bytes, entries: Sequence[Entry]) -> bool:
        """Whether a list that this server signed is that of these uploads."""
        own = AcceptedList.decode(own_list, self._configuration, self._stamp)
        return (own.entries_digest, own.contributors) == (entries_digest(entries), len(entries))

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

    def encode_share(self, nonce_key: Secret, totals: ClassTotals, counted: Sequence[Entry]) -> bytes:
        """Return this server's share of the sum, with a nonce that hides it in its commitment until it is opened.

        Security: the nonce follows from a key of the round and from the list, so a server that was killed says the
            same again, and no nonce is that of two lists.
        """
        digest = self._own_list().entries_digest
        with expand("commitment nonce", NONCE_BYTES, nonce_key, Label.INDEXING_NONCE, digest) as fresh:
            nonce = bytes(fresh.expose())
        values = totals.weighted(sorted({entry.weight for entry in counted}))
        configuration = self._configuration
        if configuration.noise is not None:
            # From the same root, which no other server has: the journal holds it from the first record on.
            with expand("noise seed", NOISE_SEED_BYTES, nonce_key, Label.INDEXING_NOISE, digest) as seed:
                configuration.noise.add_to(values, configuration.layout, configuration.group, seed)
        return OutputShare(stamp=self._stamp, nonce=nonce, values=values).encode(self._configuration)

    def commitment(self, share: bytes | None = None) -> bytes:
        """Return the commitment to this server's share, or to what is to be its share."""
        return OutputCommitment.to(self._stamp, self._own_list().entries_digest, share or self.own_share()).encode()

    def own_share(self) -> bytes:
        """Return this server's share, which it has committed to."""
        if self.share is None:
            raise Misuse("a server agrees on a list before it commits to its share")
        return self.share

    def read_commitment(self, message: bytes) -> OutputCommitment:
        """Read the other server's commitment.

        Raises:
            PeerMisbehaved: the other server committed to something else before.
            MalformedMessage, UnexpectedMessage: it is no commitment.
        """
        theirs = OutputCommitment.decode(message, self._configuration, self._peer_stamp)
        if self.peer_commitment not in (None, theirs):
            raise PeerMisbehaved(
                f"{self._peer_stamp.server} has committed to another share before",
                reason=Reason.ALREADY_ANSWERED,
                culprits=[self._peer_stamp.server],
                round_name="open",
            )
        return theirs

    def combined(self, peer_share: bytes, counted: Sequence[Entry]) -> Aggregate:
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
        own = OutputShare.decode(self.own_share(), self._configuration, self._stamp)
        try:
            return self._aggregate(own, theirs, counted)
        except CapacityExceeded as error:
            raise PeerMisbehaved(
                f"the two shares add up to no sum: {error}", reason=Reason.SERVERS_DISAGREE, round_name="combine"
            ) from None

    def wipe(self) -> None:
        """Give this server's share up."""
        self.share = None

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
                if configuration.noise is not None:
                    sums.append(centred(value, group.order))
                    continue
                sums.append(value.reshape(segment.blocks, segment.codewords).astype(np.uint64))
            else:
                sums.append(reduce_into(add_into(value, other), segment.modulus_bits))
        total_weight = sum(entry.weight for entry in counted)
        layout = configuration.layout if configuration.noise is None else counts_layout(configuration.layout)
        return Aggregate(layout, tuple(sums), len(counted), total_weight)
