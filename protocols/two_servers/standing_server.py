"""Server 1 for many consecutive rounds: answers server 0, which starts rounds, relays uploads and requests checks.

Server 0 is another party and offers a configuration for each round. Server 1 refuses an offer that violates its
operator's policy before it draws a key, and never starts a round twice. It stores only the number of a round.

    BEGIN_ROUND         a configuration and a number, within the operator's policy     -> this server's offer
    INDEXING_UPLOAD     this server's half of an upload, relayed                        -> its id
    PROPOSE_UPLOADS     the uploads to check                                            -> a proposal
    INDEXING_ANSWER     server 0's answer about them                                    -> a conclusion
    ACCEPTED_LIST       server 0's signed list                                          -> this server's
    OUTPUT_COMMITMENT   server 0's commitment                                           -> this server's
    OUTPUT_SHARE        server 0's share, from which this server computes the sum        -> this server's

On a new connection server 0 repeats the step whose answer it missed, and gets the same bytes, including the released
share, until the next round begins. When the process ends, so does its round.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from secagg.blame import between_servers
from secagg.contract.layout import IndexSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined
from secagg.errors import InternalError, InvalidParameters, Misuse, Reason, SecAggError, blaming
from secagg.errors import UnexpectedMessage as Unexpected
from secagg.identifiers import ServerId
from secagg.parameters import require_integer
from secagg.session.client_policy import ClientPolicy, require_policy
from secagg.session.frames import decode_refusal, encode_refusal
from secagg.session.store import Store
from secagg.wire import MessageKind, message_kind

from .configuration import ENFORCED, IndexingConfiguration
from .server import IndexingServer
from .server_keys import OperatorKeys, ServerKeys
from .server_messages import MAXIMUM_BEGINNING_BYTES, BatchRequest, Beginning, Done, exchange_bytes

MAXIMUM_STEP: Final = 1 << 32
"""Maximum step between consecutive round numbers: server 0 must not end a task by offering the last number."""
MAXIMUM_TASKS: Final = 1 << 16
"""Limit on remembered tasks. Server 0 names them and must not exhaust memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPolicy:
    """Policy of server 1's operator, which applies to every offer of server 0."""

    weakest: ClientPolicy
    """The weakest round, as for a client. It pins the keys of both servers, and the authority: a server that could
    certify clients could impersonate all of them but one."""
    task_prefix: bytes
    """Prefix of every task; empty for any."""
    maximum_cohort: int
    maximum_lanes: int
    """Limit on the counters and ring elements of a layout; this server holds several times that number per client."""
    maximum_lifetime: timedelta
    """Limit on the time from now to the expiry of a round."""

    def __post_init__(self) -> None:
        require_policy(self.weakest)
        if self.weakest.authority is None or self.weakest.server_keys is None:
            raise InvalidParameters("server 1's operator pins the clients' authority and the keys of both servers")
        require_integer("maximum_cohort", self.maximum_cohort, self.weakest.minimum_cohort)
        require_integer("maximum_lanes", self.maximum_lanes, 1)
        if type(self.task_prefix) is not bytes:
            raise InvalidParameters(f"task_prefix must be bytes; got {self.task_prefix!r}")
        if type(self.maximum_lifetime) is not timedelta or self.maximum_lifetime <= timedelta(0):
            raise InvalidParameters(f"maximum_lifetime must be a time above 0; got {self.maximum_lifetime}")

    def admit(self, configuration: IndexingConfiguration, now: datetime) -> None:
        """Refuse a configuration that breaks the operator's policy."""
        keeps = ENFORCED - {"maximum_standing_age"}  # Only clients check how old a standing is.
        self.weakest.admit("the round offered to server 1", keeps, configuration.compared())
        for is_wrong, sentence in self._objections(configuration, now):
            if is_wrong:
                raise InvalidParameters(
                    f"server 1 refuses this round: {sentence}; offer another configuration, or ask its operator to "
                    f"change the policy",
                    reason=Reason.BELOW_FLOOR,
                )

    def _objections(self, offered: IndexingConfiguration, now: datetime) -> Iterator[tuple[bool, str]]:
        is_known = offered.task.startswith(self.task_prefix)
        yield not is_known, f"the task {offered.task!r} does not begin with {self.task_prefix!r}"
        most = offered.maximum_cohort
        yield most > self.maximum_cohort, f"a cohort of {most} is above {self.maximum_cohort}"
        lanes = lanes_of(offered)
        yield lanes > self.maximum_lanes, f"{lanes} counters and ring elements exceed the limit of {self.maximum_lanes}"
        yield now.timestamp() >= offered.expiry, "it has expired"
        is_far = offered.expiry > (now + self.maximum_lifetime).timestamp()
        yield is_far, f"it expires more than {self.maximum_lifetime} from now"


def lanes_of(configuration: IndexingConfiguration) -> int:
    """Return the number of counters and ring elements of a round."""
    return sum(
        segment.blocks * segment.codewords if isinstance(segment, IndexSegment) else segment.length
        for segment in configuration.layout.segments
    )


class StandingRounds(Confined):
    """Highest round that a standing server has started for each task, in memory or in a folder's store.

    Security: a restored store is refused. If the store is removed, server 0 can start a round again, but this reveals
        nothing: the round then has another root, nothing sealed before opens, and clients upload once per round.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Load the folder's store; start empty without a folder."""
        try:
            self._store = Store(folder)
        except OSError as error:
            raise InvalidParameters(f"cannot open the journal in {folder}: {error}") from None

    @property
    def tasks(self) -> int:
        return self._number("SELECT count(*) FROM begun")

    @property
    def count(self) -> int:
        """Number of rounds that were started."""
        return self._number("SELECT ifnull(sum(rounds), 0) FROM begun")

    def begin(self, task: bytes, round_number: int) -> None:
        """Record that a round starts, under any configuration; once this returns, a crash cannot lose the record.

        Raises:
            InvalidParameters: the round or a later one was already started, its number is too far ahead, or it cannot
                be stored; nothing has changed.
        """
        try:
            with self._store.transaction() as rows:
                last = self._number("SELECT ifnull(max(number), -1) FROM begun WHERE task = ?", task)
                self._require_next(task, last, round_number)
                rows.execute(
                    "INSERT INTO begun VALUES (?1, ?2, 1) "
                    "ON CONFLICT (task) DO UPDATE SET number = ?2, rounds = rounds + 1",
                    (task, round_number),
                )
        except OSError as error:
            raise InvalidParameters(
                f"server 1 cannot record the start of round {round_number} ({error}); ask its operator to free space, "
                "then offer the round again"
            ) from error

    def _require_next(self, task: bytes, last: int, round_number: int) -> None:
        if round_number <= last:
            raise InvalidParameters(
                f"round {last} of {task!r} was already started, and a round can start only once; if server 1 "
                "has restarted since, that round is over, and the updates uploaded for it are spent: "
                f"offer a round above {last}",
                reason=Reason.ALREADY_ANSWERED,
            )
        if round_number > max(last, 0) + MAXIMUM_STEP:
            raise InvalidParameters(
                f"round {round_number} is more than {MAXIMUM_STEP} above the last one, {max(last, 0)}; "
                "number rounds consecutively"
            )
        if last < 0 and self.tasks >= MAXIMUM_TASKS:
            raise InvalidParameters(
                f"this journal already has {MAXIMUM_TASKS} tasks; its operator must start server 1 with new keys and a "
                "new journal"
            )

    def _number(self, statement: str, *arguments: bytes) -> int:
        with self._store.transaction() as rows:
            return int(rows.execute(statement, arguments).fetchone()[0])

    def close(self) -> None:
        self._store.close()

    def __repr__(self) -> str:
        return "<StandingRounds>"


_LOG = logging.getLogger(__name__)


class StandingServer(Confined):
    """Answers of server 1 to each request of server 0; independent of sockets."""

    def __init__(  # noqa: PLR0913 -- what a standing server brings
        self,
        keys: ServerKeys,
        peer: OperatorKeys,
        policy: OperatorPolicy,
        rounds: StandingRounds,
        *,
        coins: Coins,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        threads: int = 1,
    ) -> None:
        """Create a server; no round runs yet.

        Args:
            keys: server 1's private keys; the caller wipes them after the last round.
            peer: public keys of the operator of server 0.
        """
        named = (peer.signing_key, keys.signing_key().public_key)
        if (peer.server.index, keys.server.index) != (0, 1) or named != policy.weakest.server_keys:
            raise InvalidParameters(
                f"these are the keys of {keys.server}, not those that the policy names for server 1; a standing "
                "server is server 1"
            )
        self._keys, self._peer = keys, peer
        self._policy, self._rounds = policy, rounds
        self._coins = coins
        self._clock = clock
        self._threads = threads
        self._server: IndexingServer | None = None
        self._released: tuple[bytes, bytes] | None = None
        """Digest of server 0's share in the last round, and this server's share."""
        self.request_bytes = MAXIMUM_BEGINNING_BYTES
        """Limit on the length of the next request."""

    @property
    def operators(self) -> tuple[ServerKeys, OperatorKeys]:
        """Its keys, and the other server's public keys."""
        return self._keys, self._peer

    def answer(self, request: bytes) -> bytes:
        """Process a request of server 0, and return the answer; never raises."""
        try:
            try:
                with blaming(*between_servers()):
                    return self._obey(request)
            except SecAggError as error:
                _LOG.warning("server 1 refuses: %s", str(error))
                return encode_refusal(error)
        except Exception as error:  # noqa: BLE001 -- logged, and the round ends
            # This error is unexpected, so the rest of the round may be wrong.
            _LOG.exception("server 1 ends its round")
            self.end_round()
            return encode_refusal(InternalError(f"server 1 met a {type(error).__name__} and has ended its round"))

    def end_round(self) -> None:
        """End the running round, if any, and forget its answers."""
        if self._server is not None:
            self._server.wipe()
        self._server = self._released = None
        self.request_bytes = MAXIMUM_BEGINNING_BYTES

    def _obey(self, request: bytes) -> bytes:
        kind = message_kind(request)
        if kind is MessageKind.BEGIN_ROUND:
            return self._begin(request)
        if self._released is not None and self._released[0] == hashlib.sha256(request).digest():
            return self._released[1]
        if self._server is None:
            raise Misuse(
                "no round is running at server 1: the last one ended, or server 1 restarted, which ends a round and "
                "spends the updates that were uploaded for it; start the next round"
            )
        return self._step(self._server, kind, request)

    def _step(self, server: IndexingServer, kind: MessageKind, request: bytes) -> bytes:
        match kind:
            case MessageKind.INDEXING_UPLOAD:
                return Done(server.receive(request)).encode()
            case MessageKind.PROPOSE_UPLOADS:
                return server.propose(list(BatchRequest.decode(request).uploads))
            case MessageKind.INDEXING_ANSWER:
                return server.conclude(request)
            case MessageKind.ACCEPTED_LIST:
                # Verify this before closing the round, because closing cannot be undone.
                server.verify_list(request)
                own_list = server.close()
                server.agree(request)
                return own_list
            case MessageKind.OUTPUT_COMMITMENT:
                server.open(request)
                return server.commitment
            case MessageKind.OUTPUT_SHARE:
                return self._release(server, request)
            case _:
                raise Unexpected(expected="a message of server 0", received=kind.name, culprits=between_servers())

    def _begin(self, request: bytes) -> bytes:
        """Start a round, replacing the running one; a repeated request for the running round gets the same offer."""
        beginning, server = Beginning.decode(request), self._server
        configuration, round_number = beginning.configuration, beginning.round_number
        self._policy.admit(configuration, self._clock())
        if server is not None and (server.configuration, server.round_number) == (configuration, round_number):
            return server.offer
        self._rounds.begin(configuration.task, round_number)
        self.end_round()
        with self._keys.pair_key(self._peer) as pair_key:
            self._server = IndexingServer(
                configuration,
                ServerId(1),
                round_number=round_number,
                signing_key=self._keys.signing_key(),
                pair_key=pair_key,
                coins=self._coins,
                threads=self._threads,
            )
        self.request_bytes = max(MAXIMUM_BEGINNING_BYTES, exchange_bytes(configuration))
        _LOG.info("server 1 begins round %d of %r", round_number, configuration.task)
        return self._server.offer

    def _release(self, server: IndexingServer, peer_share: bytes) -> bytes:
        """Accept server 0's share, and release this server's; this ends the round."""
        share = server.opened_share()
        result = server.combine(peer_share)
        _LOG.info("server 1 released a sum over %d clients", result.aggregate.contributors)
        server.wipe()
        self._server, self._released = None, (hashlib.sha256(peer_share).digest(), share)
        return share

    def __repr__(self) -> str:
        return f"<StandingServer {self._server!r}>"


def asking(answer: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Return a function that queries a server in this process, like ``PeerLink.ask`` for a remote one."""

    def ask(request: bytes) -> bytes:
        answered = answer(request)
        if message_kind(answered) is MessageKind.REFUSAL:
            raise decode_refusal(answered)
        return answered

    return ask
