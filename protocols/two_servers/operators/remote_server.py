"""A server in another process, as its front end and its operator reach it.

Every request may be made again: an upload that came before changes nothing, and a round that was closed is closed.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Final, Self, TypeVar

from secagg.contract import Aggregate
from secagg.errors import MalformedMessage, PeerError, Reason
from secagg.identifiers import CLIENT_ID_BYTES, ClientId, ServerId
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.message_sizes import dealt_bytes, half_bytes, share_bytes
from secagg.protocols.two_servers.release import RoundResult
from secagg.protocols.two_servers.server_messages import RoundStamp, ServerOffer
from secagg.protocols.two_servers.upload import DIGEST_BYTES
from secagg.session.frames import decode_refusal, receive_frame, send_frame
from secagg.wire import MessageKind, Reader, Writer, message_kind

from .service import MAXIMUM_SENTENCE_BYTES

_SHORT_ANSWER_BYTES: Final = 1 << 16
"""No answer but a result is longer: an offer, an upload's id, or a refusal."""

Answer = TypeVar("Answer")


class ServerLost(ConnectionError):
    """The process of a server cannot be reached any more, or does not answer as a server does.

    It is no ``SecAggError``: nothing was refused. What was asked was done or not, and may be asked again.
    """

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(
            f"the server at {path} is lost ({cause}); start it again with its journal, connect anew, and ask again"
        )


class RemoteServer:
    """A connection to one server of one round."""

    def __init__(
        self,
        socket_path: Path,
        configuration: IndexingConfiguration,
        server: ServerId,
        *,
        round_number: int,
        timeout: float | None = None,
    ) -> None:
        """Connect.

        Args:
            timeout: how many seconds the process may take to go on with an answer, closing included; None for any.
        Raises:
            OSError: nothing listens at the path; ``secagg indexing-server`` does.
        """
        self.configuration = configuration
        self.server = server
        self._stamp = RoundStamp(context=configuration.context, round_number=round_number, server=server)
        self._path = socket_path
        self._lock = Lock()
        self._is_lost = False
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connection.settimeout(timeout)
            self._connection.connect(str(socket_path))
        except BaseException:
            self._connection.close()
            raise

    def offer(self) -> bytes:
        """Return the server's offer for the round, which clients verify; it is verified here as well.

        Raises:
            ServerLost: the process ended, or its offer is for another configuration, round or server.
        """

        def read(answer: bytes) -> bytes:
            ServerOffer.decode(answer, self.configuration, self._stamp)
            return answer

        return self._ask(Writer(MessageKind.OFFER_REQUEST).finish(), read)

    def upload(self, half: bytes) -> bytes:
        """Relay a client's half to the server, and return the upload's id.

        Raises:
            PeerError: as for ``IndexingServer.receive``; nothing has changed.
            ServerLost: the upload was taken in or not; relay it again.
        """
        return self._relay(half, MessageKind.INDEXING_UPLOAD, half_bytes(self.configuration, self.server))

    def deal(self, half: bytes) -> bytes:
        """Relay a dealer's batch to the server, and return the batch's id.

        Raises:
            PeerError: as for ``IndexingServer.deal``; nothing has changed.
            ServerLost: the batch was taken in or not; relay it again.
        """
        return self._relay(half, MessageKind.DEALT_CORRELATIONS, dealt_bytes(self.configuration, self.server))

    def close_round(self) -> RoundResult:
        """Close the round and return its result, as the operator of server 1; again, if that did not work out.

        Raises:
            ThresholdNotMet: too few uploads of any one weight were taken, or server 0 cannot be reached; the round
                goes on.
            PeerError, Misuse: the round is given up.
            ServerLost: the round was closed or not; close it again.
        """
        return self._ask(Writer(MessageKind.CLOSE_ROUND).finish(), self._read_result, self._result_bytes)

    def result(self) -> RoundResult:
        """Return the result of a round that was closed, as the operator of either server.

        Raises:
            Misuse: there is none, or the process was started again since; the operator of server 1 closes the round.
        """
        return self._ask(Writer(MessageKind.RESULT_REQUEST).finish(), self._read_result, self._result_bytes)

    def close(self) -> None:
        """Close the connection; the server goes on."""
        self._is_lost = True
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RemoteServer {self.server} at {self._path}{', lost' if self._is_lost else ''}>"

    @property
    def _result_bytes(self) -> int:
        """A bound on the bytes of a result: counters of at most 24 bits, and a line for each client."""
        widest = 32 * share_bytes(self.configuration)
        return _SHORT_ANSWER_BYTES + widest + self.configuration.maximum_cohort * (MAXIMUM_SENTENCE_BYTES + 16)

    def _read_result(self, answer: bytes) -> RoundResult:
        return decode_result(answer, self.configuration)

    def _relay(self, message: bytes, kind: MessageKind, limit: int) -> bytes:
        # The bytes are somebody else's. As another request they would do what only the operator may ask for.
        Reader(message, kind)
        if len(message) > limit:
            raise MalformedMessage(
                f"a message has {limit} bytes at most; got {len(message)}", reason=Reason.LENGTH_OVER_LIMIT
            )
        return self._ask(message, _read_done)

    def _ask(self, request: bytes, read: Callable[[bytes], Answer], limit: int = 0) -> Answer:
        """Send a request and read its answer; raise what the server refused with, or that it is lost."""
        with self._lock:
            if self._is_lost:
                raise ServerLost(self._path, "its connection was closed")
            try:
                send_frame(self._connection, request)
                answer = receive_frame(self._connection, max(limit, _SHORT_ANSWER_BYTES))
                if message_kind(answer) is not MessageKind.REFUSAL:
                    return read(answer)
                refusal = decode_refusal(answer)
            except (OSError, PeerError) as error:
                self.close()
                raise ServerLost(self._path, str(error)) from error
            except BaseException:
                # The answer is still to come, and would be taken for that of the next request.
                self.close()
                raise
        raise refusal


def decode_result(message: bytes, configuration: IndexingConfiguration) -> RoundResult:
    """Read back what a round gave.

    Raises:
        MalformedMessage: anything that ``encode_result`` would not have written.
    """
    reader = Reader(message, MessageKind.ROUND_RESULT)
    aggregate = Aggregate.decode(bytes(reader.view(reader.integer(8))), configuration.layout)
    counted, left_out = _read_clients(reader), _read_clients(reader)
    rejected = dict[ClientId, str]()
    try:
        for _ in range(reader.integer(4)):
            client = ClientId(reader.integer(CLIENT_ID_BYTES))
            rejected[client] = reader.variable(MAXIMUM_SENTENCE_BYTES).decode()
    except UnicodeDecodeError:
        raise MalformedMessage("a sentence is no text", reason=Reason.NOT_CANONICAL) from None
    reader.finish()
    groups = [list(counted), list(left_out), list(rejected)]
    is_ordered = all(clients == sorted(set(clients)) for clients in groups)
    everybody = [client for clients in groups for client in clients]
    if not is_ordered or len(set(everybody)) != len(everybody) or aggregate.contributors != len(counted):
        raise MalformedMessage("the lists of a result contradict each other", reason=Reason.NOT_CANONICAL)
    return RoundResult(aggregate, counted, left_out, rejected)


def _read_clients(reader: Reader) -> tuple[ClientId, ...]:
    return tuple(ClientId(reader.integer(CLIENT_ID_BYTES)) for _ in range(reader.integer(4)))


def _read_done(answer: bytes) -> bytes:
    reader = Reader(answer, MessageKind.INDEXING_DONE)
    upload_id = reader.fixed(DIGEST_BYTES)
    reader.finish()
    return upload_id
