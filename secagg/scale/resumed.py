"""A server's session that outlives its process: everything it was told is written down first, and told again after.

A session follows from what it is told, so nothing else is kept. What it asked of helpers is answered from the journal,
and whatever was not finished is asked again, in the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from threading import RLock
from typing import Protocol

from secagg.crypto.entropy import Coins
from secagg.errors import InvalidParameters, Misuse, PeerError, Reason, SecAggError
from secagg.identifiers import ClientId
from secagg.session.measured import Measured
from secagg.session.roles import ServerSession
from secagg.session.sockets.connection import AskAll

from .jobs import Disagreement
from .journal import Event, Journal
from .work import Outcome, Wrong


class SpreadSession(ServerSession, Protocol):
    """A session whose uploads are added elsewhere."""

    def without_vector(self, client: ClientId, message: bytes) -> bytes:
        """Return a client's message without its vector, whose pieces are stored; other messages as they are."""
        ...


class RecordedCoins:
    """Coins of an earlier life, and behind them fresh ones; what a server draws for its invitation is no secret."""

    def __init__(self, coins: Coins, drawn: bytes = b"") -> None:
        self._coins, self._drawn, self._at = coins, drawn, 0

    def draw(self, count: int) -> bytearray:
        """Return coins."""
        left = len(self._drawn) - self._at
        if left < count:
            self._drawn += bytes(self._coins.draw(count - left))
        self._at += count
        return bytearray(self._drawn[self._at - count : self._at])

    @property
    def drawn(self) -> bytes:
        """All of them so far."""
        return self._drawn


class ResumableSession(Measured):
    """A ``ServerSession`` around another one, with its figures, and the ``Memory`` of its ``SpreadSum``.

    Who ends the process without ``abort`` goes on later; after ``abort``, or a release, the session is over for good.
    """

    def __init__(
        self,
        journal: Journal,
        coins: Coins,
        open_session: Callable[[ResumableSession, Coins], SpreadSession],
        asking: AskAll | None = None,
    ) -> None:
        """Open the session, and tell it again what the journal has.

        Args:
            open_session: is given this object, as memory and for its ``ask_all``, and the coins of the invitation.

        Raises:
            InvalidParameters: the journal is of another session, or version.
            Misuse: the session is over.
            Disagreement: workers made different sums; it is over.
        """
        past = journal.past
        if any(record.event is Event.OVER for record in past):
            raise Misuse("the session of this journal is over; begin another one", reason=Reason.ALREADY_SPENT)
        self._journal, self._asking, self._turn = journal, asking, RLock()
        self._sent: tuple[ClientId, bytes] | None = None
        self._written = set[bytes]()
        self._asked = {record.parts[0]: record.parts[1:] for record in past if record.event is Event.ASKED}
        opened = next((record for record in past if record.event is Event.OPENED), None)
        self._is_live, self._is_over, self._heard = False, False, list[tuple[bytes, ...]]()
        drawn = RecordedCoins(coins, opened.parts[1] if opened else b"")
        self._opened_session = session = open_session(self, drawn)
        super().__init__(session)
        digest = hashlib.sha256(session.invitation).digest()
        if opened is None:
            journal.append(Event.OPENED, digest, drawn.drawn)
        elif opened.parts[0] != digest:
            session.abort()
            raise InvalidParameters("the journal is of another session; open it with the subject and settings of that")
        try:
            for record in past:
                self._tell(record.event, record.parts)
        except Disagreement:
            # The next life may draw other audits.
            journal.append(Event.OVER)
            raise
        self._asked.clear()
        self._write_heard()
        if journal.count(Event.CLOSED) > journal.count(Event.SHOWN):
            journal.append(Event.SHOWN)
        self._is_live = True

    def _tell(self, event: Event, parts: tuple[bytes, ...]) -> None:
        match event:
            case Event.RECEIVED:
                self._written.add(_digest_of(_client(parts[0]), parts[1]))
                try:
                    super().receive(_client(parts[0]), parts[1])
                except PeerError as error:
                    # What is refused is not written down, so this life would show clients something else.
                    raise InvalidParameters(
                        f"a message in the journal was taken before and is refused now ({error}); go on with the "
                        "version of the library that wrote it, or begin another session"
                    ) from error
            case Event.DROPPED:
                super().drop(_client(parts[0]))
            case Event.CLOSED:
                super().close_stage()
            case _:
                pass

    # --- What the session and its sum use -----------------------------------------------------------------------------

    def ask_all(self, requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        """Ask helpers; while the journal is told, take what they said to the same requests."""
        digest = hashlib.sha256(repr(sorted(requests.items())).encode()).digest()
        answers = self._asked.get(digest)
        if answers is None:
            if self._asking is None:
                raise Misuse("this session has no helpers to ask")
            answers = tuple(number.to_bytes(2, "big") + answer for number, answer in self._asking(requests))
            # A life that cannot be told to its end, because helpers are away, leaves nothing behind.
            self._heard.append((digest, *answers))
            if self._is_live:
                self._write_heard()
        return [(int.from_bytes(part[:2], "big"), part[2:]) for part in answers]

    def _write_heard(self) -> None:
        for parts in self._heard:
            self._journal.append(Event.ASKED, *parts)
        self._heard.clear()

    def through(self, asking: AskAll) -> AskAll:
        """Take helpers that are found while the session is opened; return how to ask them."""
        self._asking = asking
        return self.ask_all

    def outcome(self, key: str) -> Outcome | None:
        """Return the outcome of a job that was done in an earlier life."""
        return self._journal.outcome(key)

    def remember(self, outcome: Outcome) -> None:
        """Write an outcome down."""
        self._journal.remember(outcome)

    def kept(self, client: ClientId) -> None:
        """Write the upload down that is about to be taken."""
        if self._is_live:
            self._write_sent(client)

    def settled(self, wrong: Iterable[Wrong] | None) -> Iterable[Wrong] | None:
        """Write down whose vectors are not in the sum; or return what was."""
        return self._journal.settled(wrong)

    def ended(self) -> bool:
        """Write down that nothing is released any more, before anything is removed or released.

        A session that cannot be told again now, because helpers are away, is not over, and keeps what it stored.
        """
        if self._is_live and not self._is_over:
            self._journal.append(Event.OVER)
            self._is_over = True
        return self._is_live

    def _write_sent(self, client: ClientId) -> None:
        if self._sent is None or self._sent[0] != client:
            raise Misuse("an upload is kept while it is received")
        message = self._opened_session.without_vector(client, self._sent[1])
        self._sent = None
        if (digest := _digest_of(client, message)) not in self._written:
            self._journal.append(Event.RECEIVED, client.encode(), message)
            self._written.add(digest)

    # --- The session --------------------------------------------------------------------------------------------------

    @property
    def _is_unwritten(self) -> bool:
        return self._sent is not None

    def receive(self, sender: ClientId, message: bytes) -> None:
        """Take an answer; once this returns, a crash does not lose it. What is refused is not written down."""
        with self._turn:
            self._sent = sender, message
            try:
                super().receive(sender, message)
                if self._is_unwritten:
                    self._write_sent(sender)
            except OSError:
                # What counts here and is not written down, or the other way round, would be another session later.
                self._give_up()
                raise
            finally:
                self._sent = None

    def drop(self, client: ClientId) -> None:
        """Await a client no more."""
        with self._turn:
            self._journal.append(Event.DROPPED, client.encode())
            super().drop(client)

    def close_stage(self) -> None:
        """Close the stage."""
        with self._turn:
            if self.stage is not None:
                self._journal.append(Event.CLOSED)
            try:
                super().close_stage()
                self._journal.append(Event.SHOWN)
            except Misuse:
                raise
            except (SecAggError, OSError):
                self._give_up()
                raise

    def abort(self) -> None:
        """End the session for good, whether anything was added yet or not."""
        self._give_up()

    def leave(self) -> None:
        """Leave the session to the next life, whatever fails in this one from here on; its workers are ended."""
        self._is_live = False

    def _give_up(self) -> None:
        with self._turn:
            super().abort()
            self.ended()


def _client(encoded: bytes) -> ClientId:
    return ClientId(int.from_bytes(encoded, "big"))


def _digest_of(client: ClientId, message: bytes) -> bytes:
    return hashlib.sha256(client.encode() + message).digest()
