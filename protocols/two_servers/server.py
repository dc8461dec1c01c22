"""One of the two servers in one round: opens its halves of uploads, checks them with the other server, and adds them.

    receive    an upload of a client                              any number
    propose -> answer -> conclude -> settle                       for any batch of uploads, server 1 begins
    close      sign the list of this round, only once
    agree      accept the other server's signature on the same list, and commit to this server's share of the sum
    open       accept the other server's commitment, and release the share
    combine    accept the other server's share, and return the sum

A repeated step gives the same bytes. The round's root, from which its sealing key, nonce and noise are derived, is only
in memory: when the process ends, so does the round, and nobody can get another sum of it.

``Server`` is the session of server 0, which clients connect to; server 0 reaches server 1 over a connection.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import RLock
from typing import Final

from secagg.blame import Evidence, between_servers, culprits
from secagg.contract import Aggregate
from secagg.crypto.entropy import Coins
from secagg.crypto.key_derivation import expand
from secagg.crypto.labels import Label
from secagg.crypto.secret import Confined, Secret
from secagg.errors import (
    NOBODY,
    UNDECIDED,
    Fault,
    InvalidParameters,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    SecAggError,
    UnexpectedMessage,
)
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import require_integer
from secagg.privacy.client_noise import NO_NOISE, NoiseSettings
from secagg.session.certificates import SigningKey
from secagg.session.roles import Released, Stage, Subject
from secagg.session.sockets import Ask
from secagg.session.stages import Checked, StagedServerSession
from secagg.wire import MessageKind, owned_bytes

from .configuration import IndexingConfiguration
from .offers import (
    Entry,
    Invitation,
    RoundOffers,
    RoundRules,
    RoundStamp,
    RoundState,
    ServerOffer,
    Standing,
    UploadHalves,
)
from .opened_upload import HalfOpener, OpenedUpload, PointFunctionExchange, RoundTotals
from .point_functions.one_hot_check import RoundChallenges
from .release import Release, ReleasedNoise, RoundResult, sums_of_counts
from .server_messages import BATCH, AcceptedList, BatchItem, BatchRequest, Beginning, Done, decode_batch, encode_batch
from .upload import ROUND_BYTES, Upload

_LOG = logging.getLogger(__name__)
STAGE: Final = Stage(name="shared upload", takes_update=True)
_ROOT_BYTES: Final = 32
_UNDECIDED: Final = "the servers did not decide about it: one of them lacks its half or did not answer"


class IndexingServer(Confined):
    """State machine of server 0 or server 1 in one round.

    Claim DP-4: the model checker drives this class, with a hostile network or a corrupted other server.
    """

    def __init__(  # noqa: PLR0913 -- what a server brings
        self,
        configuration: IndexingConfiguration,
        server: ServerId,
        *,
        round_number: int,
        signing_key: SigningKey,
        pair_key: Secret,
        coins: Coins,
        threads: int = 1,
    ) -> None:
        """Start a round.

        Args:
            pair_key: 32 bytes that the two servers share and no client knows; the caller wipes it.
        """
        require_integer("a round number", round_number, 0, (1 << (8 * ROUND_BYTES)) - 1)
        if (type(configuration), type(server)) != (IndexingConfiguration, ServerId):
            raise Misuse("a server needs an IndexingConfiguration and a ServerId")
        if signing_key.public_key != configuration.server_keys[server.index]:
            raise InvalidParameters(f"the signing key differs from the configuration's key for {server}")
        self.configuration = configuration
        self.server, self.peer = server, ServerId(1 - server.index)
        self.round_number = round_number
        self._stamp = RoundStamp(context=configuration.context, round_number=round_number, server=server)
        self._peer_stamp = RoundStamp(context=configuration.context, round_number=round_number, server=self.peer)
        self._rules = RoundRules(
            minimum_cohort=configuration.minimum_cohort,
            maximum_cohort=configuration.maximum_cohort,
            maximum_rejections=configuration.maximum_rejections,
        )
        self._release = Release(configuration, self._stamp, self._peer_stamp, signing_key)
        self._totals = RoundTotals(configuration, server, threads=threads)
        self._pending = dict[bytes, OpenedUpload]()
        self._rejected = dict[ClientId, str]()
        self._concluded: tuple[bytes, bytes] | None = None
        """Digest of the last answer that server 1 concluded from, and its conclusion."""
        self._lock, self._process = RLock(), os.getpid()
        challenges = RoundChallenges(pair_key, configuration.context, round_number)
        with Secret.random("round root", _ROOT_BYTES, coins) as root:
            self._nonce_key = expand("nonce key", _ROOT_BYTES, root, Label.INDEXING_NONCE)
            self._opener = HalfOpener(configuration, server, round_number, root, challenges, threads=threads)
        self.offer = ServerOffer.signed(self._stamp, self._opener.sealing_key, signing_key).encode()

    # --- Uploads --------------------------------------------------------------------------------------------------

    def receive(self, message: bytes, sender: ClientId | None = None) -> bytes:
        """Accept this server's half of an upload, and return the upload's id; a repeated half changes nothing.

        Args:
            sender: the sender that the transport authenticated; None if the other server relays it.
        Raises:
            AuthenticationFailed: the authority did not certify the client, or the half was altered.
            MalformedMessage, PeerMisbehaved: it is not a half of an upload for this round; nothing has changed.
            UnexpectedMessage: the round is closed.
        """
        owned = owned_bytes(message)
        with self._held():
            self._require_collecting()
            return self.take(self.read(owned, sender))

    def read(self, message: bytes, sender: ClientId | None = None) -> Upload:
        """Decode this server's half of an upload and verify its signature; nothing is opened or accepted."""
        with self._held():
            return self._opener.read(owned_bytes(message), sender)

    def take(self, upload: Upload) -> bytes:
        """Accept a half that ``read`` returned, and return the upload's id."""
        with self._held():
            entry = Entry(upload.header.client, upload.upload_id(self.configuration))
            if self._rules.require_new(entry):
                self._pending[entry.upload_id] = self._opener.open(upload)
                self._rules.receive(entry)
            return entry.upload_id

    def _require_collecting(self) -> None:
        if self._rules.state is not RoundState.COLLECTING:
            raise UnexpectedMessage(expected="no upload; the round is closed", received="an upload")

    def waiting(self) -> tuple[bytes, ...]:
        """Return the uploads that are neither accepted nor rejected, in order of arrival."""
        with self._held():
            return self._rules.waiting()

    @property
    def rejected(self) -> dict[ClientId, str]:
        return dict(self._rejected)

    def propose(self, uploads: Sequence[bytes]) -> bytes:
        """Propose uploads to the other server, as server 1."""
        self._require_server(1)
        with self._held():
            self._rules.require(RoundState.COLLECTING)
            if len(set(uploads)) != len(uploads) or any(upload_id not in self._pending for upload_id in uploads):
                raise Misuse("propose only waiting uploads, each once; see waiting()")
            items: list[BatchItem] = [
                (upload_id, self._say(upload_id, b"", self._pending[upload_id].exchange.propose))
                for upload_id in uploads
            ]
            return encode_batch(MessageKind.INDEXING_PROPOSAL, self._stamp, items)

    def answer(self, proposal: bytes) -> bytes:
        """Answer for the uploads whose other half this server holds, as server 0."""
        self._require_server(0)
        items = decode_batch(proposal, MessageKind.INDEXING_PROPOSAL, self._peer_stamp)
        with self._held():
            self._require_turn("a proposal", RoundState.COLLECTING)
            answers = list[BatchItem]()
            for upload_id, proposed in items:
                if self._rules.standing(upload_id) is Standing.REJECTED:
                    answers.append((upload_id, None))
                pending = self._pending.get(upload_id)
                if pending is None:
                    continue
                if proposed is None:
                    self._reject(upload_id, self._refused())
                    continue
                answer = partial(pending.exchange.answer, proposed)
                answers.append((upload_id, self._say(upload_id, proposed, answer)))
            return encode_batch(MessageKind.INDEXING_ANSWER, self._stamp, answers)

    def conclude(self, answer: bytes) -> bytes:
        """Decide on the uploads that the other server answered for, and accept them, as server 1."""
        self._require_server(1)
        answer = owned_bytes(answer)
        items = decode_batch(answer, MessageKind.INDEXING_ANSWER, self._peer_stamp)
        digest = hashlib.sha256(answer).digest()
        with self._held():
            if self._concluded is not None and self._concluded[0] == digest:
                return self._concluded[1]
            self._require_turn("an answer", RoundState.COLLECTING)
            decided = list[BatchItem]()
            for upload_id, answered in items:
                match self._rules.standing(upload_id):
                    case Standing.ASKED:
                        decided.append((upload_id, self._decide(upload_id, answered, _conclude)))
                    case Standing.REJECTED:
                        # Repeat the refusal, because it may not have arrived.
                        decided.append((upload_id, None))
                    case _:
                        pass
            conclusion = encode_batch(MessageKind.INDEXING_CONCLUSION, self._stamp, decided)
            taken = [upload_id for upload_id, concluded in decided if concluded is not None]
            if taken:
                self._concluded = digest, conclusion
            for upload_id in taken:
                self._take(upload_id)
            return conclusion

    def settle(self, conclusion: bytes) -> None:
        """Decide on the uploads that the other server accepted, and accept them, as server 0."""
        self._require_server(0)
        items = decode_batch(conclusion, MessageKind.INDEXING_CONCLUSION, self._peer_stamp)
        with self._held():
            due = [item for item in items if self._rules.standing(item[0]) is Standing.ASKED]
            if not due:
                return
            self._require_turn("a conclusion", RoundState.COLLECTING)
            for upload_id, concluded in due:
                if self._decide(upload_id, concluded, _settle) is not None:
                    self._take(upload_id)

    # --- The sum --------------------------------------------------------------------------------------------------

    def verify_list(self, peer_list: bytes) -> None:
        """Refuse a list that the other server did not sign for this round; changes no state."""
        AcceptedList.verified(owned_bytes(peer_list), self.configuration, self._peer_stamp)

    def close(self) -> bytes:
        """Sign the list of uploads to release; this server signs no other list in this round.

        Raises:
            ThresholdNotMet: too few uploads were accepted; the round continues.
            PeerMisbehaved: too many uploads were rejected; the round is aborted.
        """
        with self._held():
            if self._release.signed_list is None:
                try:
                    self._release.signed_list = self._release.sign(self._rules.sign())
                except PeerMisbehaved:
                    self.wipe()
                    raise
            self._rules.require(RoundState.SIGNED, RoundState.AGREED)
            return self._release.signed_list or b""

    def agree(self, peer_list: bytes) -> bytes:
        """Accept the other server's list, and return the commitment to this server's share of the sum."""
        peer_list = owned_bytes(peer_list)
        with self._held():
            self._require_turn("a list", RoundState.SIGNED, RoundState.AGREED)
            try:
                self._release.require_same_list(peer_list)
            except PeerMisbehaved as error:
                if error.reason is Reason.SERVERS_DISAGREE:
                    self.wipe()
                raise
            if self._release.share is None:
                self._release.share = self._release.encode_share(self._nonce_key, self._totals)
            self._rules.agree()
            return self.commitment

    @property
    def commitment(self) -> bytes:
        with self._held():
            self._require_turn("a commitment", RoundState.AGREED)
            return self._release.commitment()

    def open(self, peer_commitment: bytes) -> bytes:
        """Accept the other server's commitment, and return this server's share of the sum."""
        peer_commitment = owned_bytes(peer_commitment)
        with self._held():
            self._require_turn("a commitment", RoundState.AGREED)
            self._release.peer_commitment = self._release.read_commitment(peer_commitment)
            return self._release.own_share()

    def opened_share(self) -> bytes:
        """Return this server's opened share again."""
        with self._held():
            if self._release.peer_commitment is None:
                raise UnexpectedMessage(expected="a commitment first", received="a share", culprits=between_servers())
            return self._release.own_share()

    def combine(self, peer_share: bytes) -> RoundResult:
        """Add the other server's share, and return the sum."""
        with self._held():
            self._require_turn("a share", RoundState.AGREED)
            aggregate = self._release.combined(owned_bytes(peer_share))
            counted = tuple(entry.client for entry in self._rules.counted)
            undecided = {self._rules.entry(upload_id).client: _UNDECIDED for upload_id in self._rules.waiting()}
            return RoundResult(aggregate, counted, self.rejected | undecided)

    def wipe(self) -> None:
        """Abort the round: overwrite sums, seeds and keys."""
        with self._lock:
            while self._pending:
                self._pending.popitem()[1].wipe()
            for part in (self._totals, self._release, self._opener, self._nonce_key):
                part.wipe()
            self._rules.fail()

    # --- Private --------------------------------------------------------------------------------------------------

    @contextmanager
    def _held(self) -> Generator[None]:
        """Allow one thread at a time to take a step, in the process that started the round.

        Security: a fork also holds the root, and could sign another list.
        """
        if os.getpid() != self._process:
            raise Misuse("this server was forked into another process; use it in the process that started the round")
        with self._lock:
            yield

    def _say(self, upload_id: bytes, heard: bytes, say: Callable[[], bytes]) -> bytes | None:
        """Return this server's first message about an upload; None if it rejects the upload.

        Security: a repeated message uses the same query point and the same correction words, because the point is
            derived from the upload and from a key that the servers keep.
        """
        pending, question = self._pending[upload_id], hashlib.sha256(heard).digest()
        if pending.asked not in (None, question):
            raise PeerMisbehaved(
                "an upload is checked only once, and this request differs",
                reason=Reason.ALREADY_ANSWERED,
                culprits=between_servers(),
            )
        pending.asked = question
        try:
            said = say()
        except PeerError as error:
            self._reject(upload_id, error)
            return None
        self._rules.ask(upload_id)
        return said

    def _decide(
        self, upload_id: bytes, heard: bytes | None, decide: Callable[[PointFunctionExchange, bytes], bytes]
    ) -> bytes | None:
        """Return the result of a step that decides on an upload; None if the upload is rejected."""
        try:
            if heard is None:
                raise self._refused()
            return decide(self._pending[upload_id].exchange, heard)
        except PeerError as error:
            self._reject(upload_id, error)
            return None

    def _take(self, upload_id: bytes) -> None:
        self._rules.require_asked(upload_id)
        try:
            self._pending[upload_id].add_to(self._totals)
        except BaseException:
            self.wipe()  # Part of the upload may already be in the sums.
            raise
        self._rules.take(upload_id)
        self._pending.pop(upload_id).wipe()

    def _refused(self) -> PeerMisbehaved:
        return PeerMisbehaved(f"{self.peer} refuses it", reason=Reason.ONE_HOT_REFUTED, culprits=UNDECIDED)

    def _reject(self, upload_id: bytes, error: PeerError) -> None:
        self._rules.reject(upload_id)
        client = self._rules.entry(upload_id).client
        self._pending.pop(upload_id).wipe()
        self._rejected[client] = reason = str(error)
        _LOG.warning("%s rejects an upload of %s: %s", self.server, client, reason)

    def _require_turn(self, received: str, *states: RoundState) -> None:
        if self._rules.state not in states:
            due = " or ".join(state.value for state in states)
            raise UnexpectedMessage(
                expected=f"a round that is {due}; this one is {self._rules.state.value}",
                received=received,
                culprits=between_servers(),
            )

    def _require_server(self, index: int) -> None:
        if self.server.index != index:
            raise Misuse(f"this step is for server/{index}; this is {self.server}")

    def __repr__(self) -> str:
        return f"<IndexingServer {self.server}, round {self.round_number}, {self._rules!r}>"


def _conclude(exchange: PointFunctionExchange, answer: bytes) -> bytes:
    return exchange.conclude(answer)


def _settle(exchange: PointFunctionExchange, conclusion: bytes) -> bytes:
    exchange.settle(conclusion)
    return b""


# --- Server 0, which clients reach ------------------------------------------------------------------------------------


class Server(StagedServerSession[tuple[Upload, bytes]]):
    """Server 0's side of a round as a session: relays server 1's halves, and runs every step of the round with it.

    Server 0 cannot read the halves that it relays: they are sealed to server 1. Relaying gives it no new power: it can
        refuse a client or abort the round in any case.
    """

    def __init__(  # noqa: PLR0913 -- what a round is made of
        self,
        subject: Subject,
        zero: IndexingServer,
        ask: Ask,
        invited: frozenset[ClientId] | None,
        *,
        is_simulated: bool,
        settings: NoiseSettings = NO_NOISE,
    ) -> None:
        """Send server 1 the configuration, and open the stage.

        Args:
            ask: sends a message to server 1 and returns its answer, or raises its refusal.
        Raises:
            InvalidParameters, PeerMisbehaved: server 1 refuses to take part; the error says what to change.
            AuthenticationFailed: the answering party is not the configuration's server 1.
        """
        self._subject, self._zero, self._ask, self._settings = subject, zero, ask, settings
        self._unasked = list[bytes]()
        self._refused = dict[ClientId, PeerMisbehaved]()
        self._failure: SecAggError | None = None
        shown = RoundOffers(is_simulated=is_simulated, offers=(zero.offer, self._begun()))
        invitation = Invitation(zero.round_number, zero.configuration, shown).encode()
        super().__init__(STAGE, invitation, invited, zero.configuration.minimum_cohort)

    def _begun(self) -> bytes:
        zero = self._zero
        offer = self._tell(Beginning(zero.configuration, zero.round_number).encode())
        stamp = RoundStamp(context=zero.configuration.context, round_number=zero.round_number, server=zero.peer)
        ServerOffer.verified(offer, zero.configuration, stamp)
        return offer

    @property
    def configuration(self) -> IndexingConfiguration:
        return self._zero.configuration

    @property
    def noise(self) -> ReleasedNoise | None:
        noise, subject = self.configuration.noise, self._subject
        return None if noise is None else ReleasedNoise(noise, self._settings, subject.layout, subject.tables)

    @property
    def is_signed(self) -> bool:
        return True

    def _check(self, sender: ClientId, message: bytes) -> Checked[tuple[Upload, bytes]]:
        halves = UploadHalves.decode(message)
        upload = self._zero.read(halves.zero, sender)
        return Checked((upload, halves.one), upload.upload_id(self.configuration))

    def _take(self, sender: ClientId, content: tuple[Upload, bytes]) -> None:
        upload, second = content
        upload_id = self._zero.take(upload)
        try:
            if Done.decode(self._tell(second)).upload != upload_id:
                raise PeerMisbehaved(
                    "the two halves belong to different uploads, or server 1 claims so",
                    reason=Reason.WRONG_SESSION,
                    culprits=UNDECIDED,
                )
        except PeerError as error:
            # Server 0 cannot open that half: the client made it wrong, someone altered it, or server 1 lies.
            error.culprits = culprits(Evidence.REFUSED_HALF, sender=sender)
            raise
        self._unasked.append(upload_id)
        if len(self._unasked) >= BATCH and self._failure is None:
            try:
                self._decide()
            except SecAggError as error:
                # The last sender is not at fault, and the traceback would keep its upload; the error ends the round.
                self._failure = error.with_traceback(None)

    def _next(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._decide()

    def _decide(self) -> None:
        try:
            while batch := self._unasked[:BATCH]:
                proposal = self._tell(BatchRequest(tuple(batch)).encode())
                self._zero.settle(self._tell(self._zero.answer(proposal)))
                del self._unasked[: len(batch)]
        finally:
            # Record rejections now: too many of them end the round before a result could name them.
            for client, sentence in self._zero.rejected.items():
                if client not in self._refused:
                    self._refused[client] = _refused(client, sentence)
                    self._record(self._refused[client])

    def _sum(self, progress: Callable[[int, int], None] | None) -> Released:
        del progress  # Each server sends three messages, whatever the size.
        zero, subject = self._zero, self._subject
        commitment = zero.agree(self._tell(zero.close()))
        share = zero.open(self._tell(commitment))
        found = zero.combine(self._tell(share))
        left_out = {
            client: self._refused.get(client) or _refused(client, sentence)
            for client, sentence in found.rejected.items()
        }
        self._record(*(error for client, error in left_out.items() if client not in self._refused))
        sums, counted = found.aggregate, frozenset(found.counted)
        if self.configuration.noise is not None and subject.tables:
            aggregate = sums_of_counts(sums, subject.layout, subject.tables)
        else:
            aggregate = Aggregate(subject.layout, sums.values, sums.contributors)
        return Released(
            aggregate=aggregate,
            counted=counted,
            left_out={client: Fault.of(error) for client, error in left_out.items()},
            revealed=frozenset({counted}),
            # An unchecked client can vote any number of times.
            unbounded=subject.layout.ring_positions
            if self.configuration.is_checked
            else tuple(range(len(subject.layout.segments))),
        )

    def _tell(self, message: bytes) -> bytes:
        """Return server 1's answer; if the connection is lost, ask once more, which changes nothing."""
        try:
            try:
                return self._ask(message)
            except ConnectionError:
                return self._ask(message)
        except PeerError as error:
            # A refusal is not signed, so the names in it come from server 1 or from the network.
            if error.culprits is not NOBODY:
                error.culprits = between_servers()
            raise

    def _wipe(self) -> None:
        self._zero.wipe()


def _refused(client: ClientId, sentence: str) -> PeerMisbehaved:
    named = culprits(Evidence.REFUSED_HALF, sender=client)
    return PeerMisbehaved(sentence, reason=Reason.ONE_HOT_REFUTED, culprits=named)
