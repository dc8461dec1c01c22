"""Server 1 for many rounds, one after the other: it answers a server 0 that begins them, relays uploads, and asks.

    BEGIN_ROUND         a configuration and a number, within the operator's floors      -> this server's offer
    INDEXING_UPLOAD     this server's half of an upload, relayed                        -> its id
    PROPOSE_UPLOADS     which uploads to speak of                                       -> a proposal
    INDEXING_ANSWER     what server 0 says of them                                      -> a conclusion
    ACCEPTED_LIST       server 0's signed list                                          -> this server's
    OUTPUT_COMMITMENT   server 0's commitment                                           -> this server's
    OUTPUT_SHARE        server 0's share, with which this server has the sum            -> this server's

The steps are those of ``IndexingServer``, each of which holds against a server 0 that does whatever it likes. A round
lives no longer than its connection, and is not written down but for its number: after a crash there is another round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined
from secagg.errors import InternalError, InvalidParameters, Misuse, SecAggError, UnexpectedMessage, blaming
from secagg.identifiers import ServerId
from secagg.protocols.two_servers.journal import NoJournal
from secagg.protocols.two_servers.server import IndexingServer
from secagg.protocols.two_servers.upload import DIGEST_BYTES
from secagg.session.frames import decode_refusal, encode_refusal
from secagg.wire import MessageKind, Writer, message_kind

from .relay_messages import decode_batch_request, decode_beginning
from .server_keys import ServerKeys
from .standing_rules import StandingRounds

_LOG = logging.getLogger(__name__)


def system_clock() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


class StandingServer(Confined):
    """What server 1 answers to each request of server 0; it knows nothing of sockets."""

    def __init__(
        self,
        keys: ServerKeys,
        rounds: StandingRounds,
        *,
        coins: Coins,
        clock: Callable[[], datetime] = system_clock,
        threads: int = 1,
    ) -> None:
        """Stand ready; no round runs.

        Args:
            keys: server 1's own; whoever made them wipes them, after the last round.
            coins: ``SystemCoins()`` in production.
        Raises:
            InvalidParameters: these are server 0's keys, or others than the floors name.
        """
        if keys.server.index != 1 or keys.signing_key().public_key != rounds.floors.server_keys[1]:
            raise InvalidParameters(
                f"these are the keys of {keys.server}, and not those that the floors name for server 1; a standing "
                "server is server 1"
            )
        self._keys = keys
        self._rounds = rounds
        self._coins = coins
        self._clock = clock
        self._threads = threads
        self._server: IndexingServer | None = None
        self._commitment: bytes | None = None
        self._share: bytes | None = None

    def answer(self, request: bytes) -> bytes:
        """Do what server 0 asks for, and return the message that answers it; never raise for what it sent."""
        try:
            try:
                with blaming(ServerId(0)):
                    return self._answered(request)
            except SecAggError as error:
                _LOG.warning("server 1 refuses: %s", error)
                return encode_refusal(error)
        except Exception as error:  # noqa: BLE001 -- logged, and the round ends
            # Nobody has thought of this error, so nobody can say that what is left of the round is in order.
            _LOG.exception("server 1 ends its round")
            self.end_round()
            return encode_refusal(InternalError(f"server 1 met a {type(error).__name__} and has ended its round"))

    def end_round(self) -> None:
        """End the round that runs, if one does, and overwrite what it left."""
        if self._server is not None:
            self._server.wipe()
        self._server = self._commitment = self._share = None

    def _answered(self, request: bytes) -> bytes:
        kind = message_kind(request)
        if kind is MessageKind.BEGIN_ROUND:
            return self._begin(request)
        if self._server is None:
            raise Misuse("no round runs at server 1: it ended, or server 1 was started again; begin the next one")
        return self._stepped(self._server, kind, request)

    def _stepped(self, server: IndexingServer, kind: MessageKind, request: bytes) -> bytes:
        match kind:
            case MessageKind.INDEXING_UPLOAD:
                return Writer(MessageKind.INDEXING_DONE).fixed(server.receive(request), DIGEST_BYTES).finish()
            case MessageKind.PROPOSE_UPLOADS:
                return server.propose(decode_batch_request(request))
            case MessageKind.INDEXING_ANSWER:
                return server.conclude(request)
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
                return self._release(server, request)
            case _:
                raise UnexpectedMessage(expected="a message of server 0", received=kind.name, culprits=[server.peer])

    def _begin(self, request: bytes) -> bytes:
        """Accept a round, in place of one that runs."""
        configuration, round_number = decode_beginning(request)
        self._rounds.accept(configuration, round_number, self._clock())
        self.end_round()
        self._server = IndexingServer(
            configuration,
            ServerId(1),
            round_number=round_number,
            signing_key=self._keys.signing_key(),
            pair_key=self._keys.pair_key,
            # A round that this process forgets is over: its number was written down, and is accepted no more.
            journal=NoJournal(),
            coins=self._coins,
            threads=self._threads,
        )
        _LOG.info("server 1 begins round %d of %r", round_number, configuration.task)
        return self._server.offer

    def _release(self, server: IndexingServer, peer_share: bytes) -> bytes:
        """Take server 0's share, and let this server's go: the round is over."""
        if self._share is None:
            raise UnexpectedMessage(expected="a commitment first", received="a share", culprits=[server.peer])
        result, share = server.combine(peer_share), self._share
        _LOG.info("server 1 released a sum over %d clients", result.aggregate.contributors)
        self.end_round()
        return share

    def __repr__(self) -> str:
        return f"<StandingServer {self._server!r}>"


def asking(answer: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Return what asks a server that is in this very process, as ``PeerLink.ask`` asks one that is not."""

    def ask(request: bytes) -> bytes:
        answered = answer(request)
        if message_kind(answered) is MessageKind.REFUSAL:
            raise decode_refusal(answered)
        return answered

    return ask
