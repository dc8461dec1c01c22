"""What one of the two servers answers to each request: to its front end and operator, and to the other server.

Server 1 asks about uploads by itself, as they come, and takes the steps of a release when its operator closes the
round. Server 0 answers. Every step may be taken again, because the servers say the same bytes again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from threading import Event, Lock
from time import sleep
from typing import Final, NoReturn

from secagg.crypto.secret import Confined
from secagg.errors import InternalError, Misuse, SecAggError, ThresholdNotMet, UnexpectedMessage
from secagg.identifiers import CLIENT_ID_BYTES, ClientId
from secagg.protocols.two_servers.configuration import SERVERS
from secagg.protocols.two_servers.message_sizes import dealt_bytes, half_bytes
from secagg.protocols.two_servers.release import RoundResult
from secagg.protocols.two_servers.run import BATCH
from secagg.protocols.two_servers.server import IndexingServer
from secagg.protocols.two_servers.upload import DIGEST_BYTES
from secagg.session.frames import decode_refusal, encode_refusal
from secagg.wire import MessageKind, Reader, Writer, message_kind

MAXIMUM_SENTENCE_BYTES: Final = 1 << 12
_GATHER: Final = 0.05
"""Seconds in which uploads come together in one batch."""
_PAUSE: Final = 0.5
_LOG = logging.getLogger(__name__)


class IndexingService(Confined):
    """What one server answers to each request; it knows nothing of sockets."""

    def __init__(self, server: IndexingServer, ask: Callable[[bytes], bytes] | None = None) -> None:
        """Prepare to answer for a server of one round.

        Args:
            ask: what takes a message to server 0 and returns its answer, or raises its refusal; for server 1.
        """
        self._server = server
        self._ask = ask
        self._exchange = Lock()
        """Held by whoever speaks with the other server."""
        self._asked = set[bytes]()
        self._is_delivered = False
        self._news = Event()
        self._news.set()
        self._commitment: bytes | None = None
        self._share: bytes | None = None
        self._result: RoundResult | None = None
        self._failure: InternalError | None = None
        self.request_bytes = max(
            half_bytes(server.configuration, server.server), dealt_bytes(server.configuration, server.server)
        )
        """No request at the front socket is longer."""

    def answer(self, request: bytes) -> bytes:
        """Do what a request at the front socket asks for, and return the message that answers it; never raise."""
        return self._guarded(self._answered, request)

    def answer_peer(self, request: bytes) -> bytes:
        """Do what server 1 asks of server 0, and return the message that answers it; never raise."""
        return self._guarded(self._answered_to_peer, request)

    def keep_asking(self) -> NoReturn:
        """Ask server 0 about uploads as they come, as server 1; without an end."""
        while True:
            self._news.wait()
            sleep(_GATHER)
            self._news.clear()
            answer = self._guarded(self._ask_about_new, b"")
            if message_kind(answer) is MessageKind.REFUSAL:
                _LOG.warning("%s could not ask about uploads: %s", self._server.server, decode_refusal(answer))
                if isinstance(decode_refusal(answer), ThresholdNotMet):
                    sleep(_PAUSE)
                    self._news.set()

    # --- The front socket -----------------------------------------------------------------------------------------

    def _answered(self, request: bytes) -> bytes:
        match message_kind(request):
            case MessageKind.INDEXING_UPLOAD:
                upload_id = self._server.receive(request)
                self._news.set()
                return _done(upload_id)
            case MessageKind.DEALT_CORRELATIONS:
                batch_id = self._server.deal(request)
                self._news.set()
                return _done(batch_id)
            case MessageKind.OFFER_REQUEST as kind:
                Reader(request, kind).finish()
                return self._server.offer
            case MessageKind.CLOSE_ROUND as kind:
                Reader(request, kind).finish()
                return encode_result(self._close())
            case MessageKind.RESULT_REQUEST as kind:
                Reader(request, kind).finish()
                if self._result is None:
                    raise Misuse("the sum is not released; the operator of server 1 closes the round, or does so again")
                return encode_result(self._result)
            case kind:
                raise UnexpectedMessage(expected="an upload, or a request of the operator", received=kind.name)

    # --- The other server: server 1's side ------------------------------------------------------------------------

    def _close(self) -> RoundResult:
        """Ask about everything that waits, and release the sum; each step again gives the same bytes."""
        if self._ask is None:
            raise Misuse("the operator of server 1 closes the round")
        with self._exchange:
            server = self._server
            if self._server.is_collecting:
                self._ask_about_all_but(set())
            own_list = server.close()
            commitment = server.agree(self._told(own_list))
            share = server.open(self._told(commitment))
            self._result = server.combine(self._told(share))
            return self._result

    def _ask_about_new(self, _: bytes) -> bytes:
        with self._exchange:
            if self._server.is_collecting:
                self._ask_about_all_but(self._asked)
        return _done()

    def _ask_about_all_but(self, asked: set[bytes]) -> None:
        """Ask about whatever waits, once each; of what is dealt for, some waits only after its batch was taken."""
        # What was concluded before a crash, and did not arrive, comes first: server 0 has not added it yet.
        self._deliver()
        while batch := [upload for upload in self._server.waiting() if upload not in asked][:BATCH]:
            answer = self._told(self._server.propose(batch))
            self._is_delivered = False
            self._server.conclude(answer)
            self._deliver()
            asked.update(batch)

    def _deliver(self) -> None:
        if not self._is_delivered and self._server.last_conclusion is not None:
            _read_done(self._told(self._server.last_conclusion))
        self._is_delivered = True

    def _told(self, message: bytes) -> bytes:
        """Send a message to server 0, and return its answer."""
        if self._ask is None:
            raise Misuse("server 0 answers, and asks nothing")
        try:
            return self._ask(message)
        except OSError as error:
            _LOG.warning("server 0 cannot be reached: %s", error)
            raise ThresholdNotMet(needed=SERVERS, present=1, what="servers") from None

    # --- The other server: server 0's side ------------------------------------------------------------------------

    def _answered_to_peer(self, request: bytes) -> bytes:
        server = self._server
        if self._ask is not None:
            raise Misuse("server 1 asks, and answers nothing")
        match message_kind(request):
            case MessageKind.INDEXING_PROPOSAL:
                return server.answer(request)
            case MessageKind.INDEXING_CONCLUSION:
                server.settle(request)
                return _done()
            case MessageKind.ACCEPTED_LIST:
                own_list = server.close()
                self._commitment = server.agree(request)
                return own_list
            case MessageKind.OUTPUT_COMMITMENT:
                if self._commitment is None:
                    raise UnexpectedMessage(expected="a list first", received="a commitment", culprits=[server.peer])
                self._share = server.open(request)
                return self._commitment
            case MessageKind.OUTPUT_SHARE:
                if self._share is None:
                    raise UnexpectedMessage(expected="a commitment first", received="a share", culprits=[server.peer])
                # Server 0 lets its share go when it has the sum.
                self._result = server.combine(request)
                return self._share
            case kind:
                raise UnexpectedMessage(expected="a message of server 1", received=kind.name)

    # --- Private --------------------------------------------------------------------------------------------------

    def _guarded(self, answered: Callable[[bytes], bytes], request: bytes) -> bytes:
        try:
            try:
                if self._failure is not None:
                    raise self._failure
                return answered(request)
            except SecAggError as error:
                return encode_refusal(error)
        except Exception as error:  # noqa: BLE001 -- logged, and nothing is answered any more
            # Nobody has thought of this error, so nobody can say that what is in memory is what the journal says.
            _LOG.exception("%s stops answering", self._server.server)
            self._failure = InternalError(
                f"the server met a {type(error).__name__} and answers no more; start it again with its journal"
            )
            return encode_refusal(self._failure)

    def __repr__(self) -> str:
        return f"<IndexingService of {self._server.server}>"


# --- Messages ---------------------------------------------------------------------------------------------------------


def encode_result(result: RoundResult) -> bytes:
    """Return what a round gave as one message for the operator."""
    aggregate = result.aggregate.encode()
    writer = Writer(MessageKind.ROUND_RESULT).integer(len(aggregate), 8).borrowed(aggregate)
    for clients in (result.counted, result.left_out):
        writer.integer(len(clients), 4)
        for client in clients:
            writer.fixed(client.encode(), CLIENT_ID_BYTES)
    rejected: Mapping[ClientId, str] = result.rejected
    writer.integer(len(rejected), 4)
    for client in sorted(rejected):
        sentence = rejected[client].encode(errors="replace")[:MAXIMUM_SENTENCE_BYTES]
        writer.fixed(client.encode(), CLIENT_ID_BYTES).variable(sentence, MAXIMUM_SENTENCE_BYTES)
    return writer.finish()


def _done(upload_id: bytes = bytes(DIGEST_BYTES)) -> bytes:
    """Return the answer to what was done; only an upload or a batch has an id."""
    return Writer(MessageKind.INDEXING_DONE).fixed(upload_id, DIGEST_BYTES).finish()


def _read_done(answer: bytes) -> None:
    reader = Reader(answer, MessageKind.INDEXING_DONE)
    reader.fixed(DIGEST_BYTES)
    reader.finish()
