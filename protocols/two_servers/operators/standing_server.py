"""Server 1 for many rounds, one after the other: it answers a server 0 that begins them, relays uploads, and asks.

    BEGIN_ROUND         a configuration and a number, within the operator's floors      -> this server's offer
    INDEXING_UPLOAD     this server's half of an upload, relayed                        -> its id
    PROPOSE_UPLOADS     which uploads to speak of                                       -> a proposal
    INDEXING_ANSWER     what server 0 says of them                                      -> a conclusion
    ACCEPTED_LIST       server 0's signed list                                          -> this server's
    OUTPUT_COMMITMENT   server 0's commitment                                           -> this server's
    OUTPUT_SHARE        server 0's share, with which this server has the sum            -> this server's

The steps are those of ``IndexingServer``, each of which holds against a server 0 that does whatever it likes. A round
has a journal of its own. After a crash, or on another connection, server 0 begins the same round again, is given the
same offer, and goes on with the step whose answer it missed. When the sum is released the journal is erased.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined, Secret
from secagg.errors import (
    InternalError,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerMisbehaved,
    Reason,
    SecAggError,
    blaming,
)
from secagg.errors import UnexpectedMessage as Unexpected
from secagg.identifiers import ServerId
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.journal import Journal
from secagg.protocols.two_servers.message_sizes import exchange_bytes
from secagg.protocols.two_servers.server import IndexingServer
from secagg.protocols.two_servers.uploads.upload import DIGEST_BYTES
from secagg.session.sockets.frames import decode_refusal, encode_refusal
from secagg.wire import MessageKind, Writer, message_kind

from .relay_messages import MAXIMUM_BEGINNING_BYTES, BatchRequest, Beginning
from .server_keys import OperatorKeys, ServerKeys
from .standing_rules import StandingRounds

_LOG = logging.getLogger(__name__)


def system_clock() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


class CountedJournal(Journal, Protocol):
    """A journal that says whether it is new."""

    @property
    def count(self) -> int:
        """How many records there were when it was opened."""
        ...


class RoundStore(Protocol):
    """Where the journal of the round that runs is kept: ``RoundFile``."""

    def open(self) -> CountedJournal:
        """Open the journal, or begin one."""
        ...

    def close(self) -> None:
        """Close it; it stays."""
        ...

    def erase(self) -> None:
        """Erase it, open or not."""
        ...


class StandingServer(Confined):
    """What server 1 answers to each request of server 0; it knows nothing of sockets."""

    def __init__(  # noqa: PLR0913 -- what a standing server brings
        self,
        keys: ServerKeys,
        peer: OperatorKeys,
        rounds: StandingRounds,
        store: RoundStore,
        *,
        coins: Coins,
        clock: Callable[[], datetime] = system_clock,
        threads: int = 1,
    ) -> None:
        """Stand ready; no round runs.

        Args:
            keys: server 1's own; the caller wipes them, after the last round.
            peer: what the operator of server 0 has given away of its keys.
            store: where the journal of the round that runs is kept.
            coins: ``SystemCoins()`` in production.
        Raises:
            InvalidParameters: these are server 0's keys, or others than the floors name.
        """
        named = (peer.signing_key, keys.signing_key().public_key)
        if (peer.server.index, keys.server.index) != (0, 1) or named != rounds.floors.server_keys:
            raise InvalidParameters(
                f"these are the keys of {keys.server}, and not those that the floors name for server 1; a standing "
                "server is server 1"
            )
        self._keys, self._peer = keys, peer
        self._rounds, self._store = rounds, store
        self._coins = coins
        self._clock = clock
        self._threads = threads
        self._server: IndexingServer | None = None

    @property
    def request_bytes(self) -> int:
        """No request that may come now is longer."""
        server = self._server
        return max(MAXIMUM_BEGINNING_BYTES, exchange_bytes(server.configuration) if server else 0)

    def pair_key(self) -> Secret:
        """Return the key that both servers share; the caller wipes it."""
        return self._keys.pair_key(self._peer)

    def answer(self, request: bytes) -> bytes:
        """Do what server 0 asks for, and return the message that answers it; never raise for what it sent."""
        try:
            try:
                with blaming(ServerId(0)):
                    return self._obey(request)
            except SecAggError as error:
                _LOG.warning("server 1 refuses: %s", error)
                return encode_refusal(error)
        except Exception as error:  # noqa: BLE001 -- logged, and the round ends
            # Nobody has thought of this error, so nobody can say that what is left of the round is in order.
            _LOG.exception("server 1 ends its round")
            self.end_round()
            return encode_refusal(InternalError(f"server 1 met a {type(error).__name__} and has ended its round"))

    def end_round(self) -> None:
        """End the round that runs, if one does: overwrite what it left, and erase its journal."""
        self.close()
        self._store.erase()

    def close(self) -> None:
        """Overwrite what is in memory; the round's journal stays, and another process goes on with it."""
        if self._server is not None:
            self._server.wipe()
        self._server = None
        self._store.close()

    def _obey(self, request: bytes) -> bytes:
        kind = message_kind(request)
        if kind is MessageKind.BEGIN_ROUND:
            return self._begin(request)
        if self._server is None:
            raise Misuse("no round runs at server 1: it ended, or server 1 was started again; begin the next one")
        return self._step(self._server, kind, request)

    def _step(self, server: IndexingServer, kind: MessageKind, request: bytes) -> bytes:
        match kind:
            case MessageKind.INDEXING_UPLOAD:
                return Writer(MessageKind.INDEXING_DONE).fixed(server.receive(request), DIGEST_BYTES).finish()
            case MessageKind.PROPOSE_UPLOADS:
                return server.propose(list(BatchRequest.decode(request).uploads))
            case MessageKind.INDEXING_ANSWER:
                return server.conclude(request)
            case MessageKind.ACCEPTED_LIST:
                own_list = server.close()
                server.agree(request)
                return own_list
            case MessageKind.OUTPUT_COMMITMENT:
                server.open(request)
                return server.commitment
            case MessageKind.OUTPUT_SHARE:
                return self._release(server, request)
            case _:
                raise Unexpected(expected="a message of server 0", received=kind.name, culprits=[server.peer])

    def _begin(self, request: bytes) -> bytes:
        """Accept a round, in place of one that runs; or go on with the one that was begun last."""
        beginning = Beginning.decode(request)
        configuration, round_number = beginning.configuration, beginning.round_number
        is_new = self._rounds.admit(configuration, round_number, self._clock())
        if is_new:
            self.end_round()
            self._rounds.begin(configuration, round_number)
        if self._server is None:
            try:
                self._server = self._start(configuration, round_number, is_new=is_new)
            except MalformedMessage as error:
                # Not what server 0 has sent: this server's own file.
                raise InvalidParameters(f"server 1 cannot go on with round {round_number}: {error}") from error
        _LOG.info("server 1 %s round %d of %r", "begins" if is_new else "resumes", round_number, configuration.task)
        return self._server.offer

    def _start(self, configuration: IndexingConfiguration, round_number: int, *, is_new: bool) -> IndexingServer:
        journal = self._store.open()
        if not is_new and not journal.count:
            self._store.erase()
            raise PeerMisbehaved(
                f"round {round_number} is over, and each is begun once; offer a later one",
                reason=Reason.ALREADY_ANSWERED,
                culprits=[ServerId(0)],
            )
        with self.pair_key() as pair_key:
            return IndexingServer(
                configuration,
                ServerId(1),
                round_number=round_number,
                signing_key=self._keys.signing_key(),
                pair_key=pair_key,
                journal=journal,
                coins=self._coins,
                threads=self._threads,
            )

    def _release(self, server: IndexingServer, peer_share: bytes) -> bytes:
        """Take server 0's share, and let this server's go: the round is over."""
        share = server.opened_share()
        result = server.combine(peer_share)
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
