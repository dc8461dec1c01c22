"""The servers' side of the one-hot check: each computes from its share alone, both open, both decide.

From its shares y of the blocks, m of the masks and p of the polynomial a server computes shares of

    f_i(tau) = L_0(tau) m_i + sum_g L_g(tau) <r, y_ig>          for each row i
    p(tau)
    v = sum_g sigma_g (p(g) - sum_j r_j^2 u_gj) + sum_g eta_g (sum_j u_gj - sum_i rho_i),   u_gj = sum_i rho_i y_igj

An upload is accepted if v = 0 and p(tau) = sum_i rho_i f_i(tau)^2. With two honest servers a client whose vectors are
not all unit vectors passes with probability at most 4 Q / |F| + 2 G / (|F| - q) if it computes Q hashes. A client and a
server that work together pass always; such a server could add any error to the result in any case.

What is opened for an honest client is uniform subject to the two equations, which hold for every input, so it says
nothing about the input. That is so *once*: a second query point would open f_i at a second place under one mask, and
with it the row. ``RoundChallenges`` therefore fixes the point by what was uploaded, and refuses a second upload.
"""

from __future__ import annotations

import hashlib
from copy import copy
from dataclasses import dataclass
from typing import Final

from secagg.crypto.key_derivation import expand
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Confined, Secret
from secagg.errors import Misuse, PeerError, PeerMisbehaved, Reason, blaming
from secagg.identifiers import AttemptContext, ClientId, ServerId
from secagg.protocols.two_servers.lanes.extension_field import Elements
from secagg.wire import owned_bytes

from .messages import OneHotCommitment, OneHotOpening, OneHotProof
from .sketch import sketch
from .statement import SEED_BYTES, Challenges, OneHotShare, UploadContext, query_point, require_seed

REJECTED: Final = Reason.ONE_HOT_REFUTED
"""The openings of an upload contradict each other."""
_ROUND: Final = "one_hot_check"


class RoundChallenges(Confined):
    """The query points of one round, which both servers can compute and no client can.

    The round's key follows from a key that the two servers share for longer, so that a restart cannot change it. Each
    client has one upload for each segment of a layout: a second one is refused, whatever its nonce.

    Security: it remembers in memory. A server that goes on after a crash restores what it answered from its journal, or
    gives the uploads of before up.
    """

    def __init__(self, pair_key: Secret, attempt: AttemptContext, round_number: int) -> None:
        """Derive the key of one round; the caller keeps the servers' pair key and wipes it."""
        require_seed(pair_key)
        self.attempt = attempt
        self.round_number = round_number
        parts = (attempt.digest, round_number.to_bytes(8, "big"))
        self._key = expand("one-hot round key", SEED_BYTES, pair_key, Label.ONE_HOT_ROUND_KEY, *parts)
        self._answered: dict[tuple[ClientId, bytes, int], bytes] = {}

    def point(self, context: UploadContext, joint: bytes, polynomial: bytes) -> Elements:
        """Return the query point of an upload, and remember that it was asked for.

        Raises:
            Misuse: the upload belongs to another round, or was queried before.
            PeerMisbehaved: the client uploaded something else before.
        """
        if (context.attempt, context.round_number) != (self.attempt, self.round_number):
            raise Misuse("an upload of another round is never queried with the key of this one")
        upload = hashlib.sha256(bind(Label.ONE_HOT_UPLOAD, context.statement, joint, polynomial)).digest()
        place = (context.client, context.layout_digest, context.segment)
        # One step, so that of two threads with two uploads of one client only one goes on.
        known = self._answered.setdefault(place, upload)
        if known is not upload:
            if known == upload:
                raise Misuse("an upload is queried once; go on with its verifier", reason=Reason.ALREADY_SPENT)
            raise PeerMisbehaved(
                f"{context.client} uploaded twice for one round and segment",
                reason=Reason.ALREADY_ANSWERED,
                culprits=[context.client],
                round_name=_ROUND,
            )
        return query_point(context.shape, self._key, context.statement, joint)

    def wipe(self) -> None:
        """Overwrite the round's key."""
        self._key.wipe()


@dataclass(frozen=True, slots=True)
class VerifiedUpload:
    """An upload whose shares add up to unit vectors; only ``OneHotVerifier.decide`` makes one.

    A server adds its share, times the weight, to its accumulator for such an upload and for no other.
    """

    context: UploadContext


class OneHotVerifier(Confined):
    """One server's check of one upload: commit, then open, then decide; each once, whatever is called how often.

    Calling a step again with the same bytes gives the same bytes. Another commitment after the opening has left, or
    another opening after the decision, is refused, so that nothing is ever opened in two ways.
    """

    def __init__(
        self,
        context: UploadContext,
        share: OneHotShare,
        proof: OneHotProof,
        challenges: RoundChallenges,
        *,
        threads: int = 1,
    ) -> None:
        """Compute what this server will open; its index is that of the proof.

        Raises:
            PeerMisbehaved: the client uploaded something else before.
            MalformedMessage: a seed of the client's gives no lanes; ``culprits`` names the client.
            Misuse: this upload has a verifier already; the proof or the share has another shape.
            CapacityExceeded: the share holds what is no lane.
        """
        shape, self.context = context.shape, context
        self.server, self.peer = proof.server, ServerId(1 - proof.server.index)
        own_part = context.part(self.server, share.digest, proof.seed)
        parts = (own_part, proof.other_part) if self.server.index == 0 else (proof.other_part, own_part)
        self._joint = context.joint(*parts)
        point = challenges.point(context, self._joint, proof.packed_polynomial(shape))
        with blaming(context.client):
            masks = context.masks(self.server, proof.seed, self._joint)
            polynomial = context.polynomial_mask(self.server, proof.seed, self._joint)
        if self.server.index == 1:
            polynomial = shape.field.add(polynomial, proof.polynomial)
        self._challenges = Challenges.of(shape, self._joint)
        made = sketch(
            shape,
            self.server,
            share,
            self._challenges,
            masks=masks,
            polynomial=polynomial,
            point=point,
            threads=threads,
        )
        self._own = OneHotOpening(
            server=self.server,
            statement=context.statement,
            joint=self._joint,
            rows=made.rows,
            polynomial=made.polynomial,
            linear=made.linear,
        )
        self._opening = self._own.encode(shape)
        self._peer_commitment: OneHotCommitment | None = None
        self._decided: tuple[bytes, PeerError | None] | None = None

    def commit(self) -> bytes:
        """Return the commitment to this server's opening."""
        return OneHotCommitment.to(self.server, self.context.statement, self._opening).encode()

    def open(self, commitment: bytes) -> bytes:
        """Return this server's opening, given the other server's commitment.

        Raises:
            MalformedMessage, UnexpectedMessage, PeerMisbehaved: it is no commitment of the other server's to this
                upload.
            Misuse: another commitment was taken before.
        """
        with blaming(self.peer):
            received = OneHotCommitment.decode(commitment)
        self._require_from_peer(received)
        if self._peer_commitment not in (None, received):
            raise Misuse("a verifier opens against one commitment", reason=Reason.ALREADY_SPENT)
        self._peer_commitment = received
        return self._opening

    def decide(self, opening: bytes) -> VerifiedUpload:
        """Accept the upload, given the other server's opening.

        Raises:
            PeerMisbehaved: the opening is not what was committed to (the other server's doing), or the openings
                contradict each other (the client's doing or the other server's).
            MalformedMessage, UnexpectedMessage: it is no opening.
            Misuse: no commitment was taken yet, or another opening was.
        """
        opening = owned_bytes(opening)
        if self._peer_commitment is None:
            raise Misuse("a verifier takes the other server's commitment first, and decides then")
        if self._decided is not None and self._decided[0] != opening:
            raise Misuse("a verifier decides once", reason=Reason.ALREADY_SPENT)
        if self._decided is None:
            self._decided = (opening, self._fault_in(opening, self._peer_commitment))
        if (fault := self._decided[1]) is not None:
            # A copy, so that what is kept refers to no frame of a caller.
            raise copy(fault)
        return VerifiedUpload(self.context)

    def _fault_in(self, opening: bytes, commitment: OneHotCommitment) -> PeerError | None:
        try:
            self._check(opening, commitment)
        except PeerError as fault:
            return fault.with_traceback(None)
        return None

    def _check(self, opening: bytes, commitment: OneHotCommitment) -> None:
        if OneHotCommitment.to(self.peer, self.context.statement, opening) != commitment:
            raise self._fault("an opening is not what was committed to", Reason.COMMITMENT_MISMATCH, self.peer)
        with blaming(self.peer):
            received = OneHotOpening.decode(opening, self.context.shape)
        self._require_from_peer(received)
        # Each server recomputed its own part, so servers with different parts were given different uploads.
        if received.joint != self._joint or not self._is_one_hot(received):
            raise self._fault(
                "the openings of an upload contradict each other", REJECTED, self.context.client, self.peer
            )

    def _is_one_hot(self, peer: OneHotOpening) -> bool:
        """Decide by what both servers have opened.

        Claim DP-3: other rows pass for at most 4 / |F| + 2 G / (|F| - q) of the challenges and query points.
        """
        field = self.context.shape.field
        rows = field.add(self._own.rows, peer.rows)
        squares = field.inner_product(self._challenges.row, field.multiply(rows, rows))
        polynomial = field.add(self._own.polynomial, peer.polynomial)
        linear = field.add(self._own.linear, peer.linear)
        return not linear.any() and not field.subtract(polynomial, squares).any()

    def _require_from_peer(self, message: OneHotCommitment | OneHotOpening) -> None:
        if message.server != self.peer or message.statement != self.context.statement:
            raise self._fault("a message belongs to another server or upload", Reason.WRONG_SESSION, self.peer)

    def _fault(self, message: str, reason: Reason, *culprits: ClientId | ServerId) -> PeerMisbehaved:
        return PeerMisbehaved(message, reason=reason, culprits=culprits, round_name=_ROUND)
