"""Decides how to answer one session's requests: a state machine without sockets, threads or a clock.

Its driver carries out each verdict and reports the outcome. Per client and stage:

    (asked) -> MESSAGE -> (offered) -> READ -> (read) -> HAND -> (settled) -> TAKEN, LATE or REFUSED

The session itself judges messages. This module decides which client may send one now, and how to answer repeated and
late requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from secagg.errors import PeerError, UnexpectedMessage
from secagg.identifiers import ClientId
from secagg.session.roles import Participation, Stage
from secagg.session.run import Limits, Patience


class Answer(Enum):
    """Answer to a request, with its HTTP status; the README lists a client's reactions."""

    MESSAGE = "message", 200
    DONE = "done", 200
    READ = "read", 100
    HAND = "hand", 100
    TAKEN = "taken", 202
    AGAIN = "again", 204
    KNOWN = "known", 208
    WRONG = "wrong", 400
    STRANGER = "stranger", 401
    OUT = "out", 403
    SLOW = "slow", 408
    LATE = "late", 409
    OVER = "over", 410
    LONG = "long", 413
    ENCODED = "encoded", 415
    REFUSED = "refused", 422
    BUSY = "busy", 429
    STOPPING = "stopping", 503

    @property
    def status(self) -> int:
        """Status of the response; 100 if the request is not answered yet."""
        return self.value[1]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Answer to a request, with a message for the client's log."""

    answer: Answer
    sentence: str = ""
    result: bytes = b""
    """JSON for the clients of a sum, if the server shows it."""


_MOST_DEPARTURES: Final = 1 << 10
"""Each is stored and synced. A client that leaves more often has left the session."""
LEFT: Final = "this client has left the session; take part in the next one"


class Exchange:
    """State of one session's requests."""

    def __init__(self, limits: Limits, longest: int, clock: Callable[[], float], number: int = 0) -> None:
        """Start before the first stage to open, which has this number; above zero after a restart."""
        self._limits, self._clock = limits, clock
        self.longest = longest
        """Maximum length of an answer to the open stage, in bytes."""
        self.number = number - 1
        """Number of the open or last stage; -1 before the first."""
        self.over: Verdict | None = None
        """The verdict for every request after the session's end; None before it."""
        self._patience: Patience | None = None
        self._participation = Participation.TOO_FEW
        self._taken, self._sending = set[ClientId](), set[ClientId]()
        self._out = dict[ClientId, str]()
        self._departures = Counter[ClientId]()
        self.away = set[ClientId]()
        """Clients that left before sending anything; they may return while the first stage is open."""
        self._heard, self._untold = set[ClientId](), set[ClientId]()

    # --- The driver says ----------------------------------------------------------------------------------------------

    @property
    def untold(self) -> int:
        """Number of clients that have not yet fetched the outcome or the next message."""
        return len(self._untold - self._out.keys())

    @property
    def clients(self) -> dict[str, frozenset[ClientId]]:
        """Clients that have answered the open stage, are sending their answer, or are excluded."""
        out = frozenset(self._out) | self.away
        return {"taken": frozenset(self._taken), "sending": frozenset(self._sending), "out": out}

    @property
    def present(self) -> int:
        """Number of clients that have asked for a message and are not excluded."""
        return len(self._heard - self._out.keys() - self.away)

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of these clients."""
        return {state: len(clients) for state, clients in self.clients.items()}

    def open(self, stage: Stage, participation: Participation, longest: int | None = None) -> None:
        """Open the next stage and wait for answers of at most ``longest`` bytes."""
        self.longest = self.longest if longest is None else longest
        self.number += 1
        self._patience, self._participation = Patience(stage, self._limits, self._clock), participation
        self._taken.clear()
        self._untold.clear()

    def close(self) -> None:
        """Stop waiting; an answer that is still being read is too late, and absent clients are excluded."""
        self._patience = None
        self._out |= dict.fromkeys(self.away, LEFT)
        self.away.clear()

    def end(
        self, sentence: str, *, is_released: bool, counted: frozenset[ClientId] = frozenset(), result: bytes = b""
    ) -> None:
        """End the session; every later request gets the outcome.

        Clients in the sum may not have returned yet after a restart of the server.
        """
        self._untold |= counted - self._heard
        self._patience = None
        self.over = Verdict(Answer.DONE if is_released else Answer.OVER, sentence, result)

    def left(self) -> float:
        """Return the maximum number of seconds to wait; 0 closes the stage."""
        return 0.0 if self._patience is None else self._patience.left(self._participation)

    # --- A client asks for its message --------------------------------------------------------------------------------

    def asked(self, client: ClientId) -> Verdict:
        """Decide whether a client gets its message now, or waits for the next stage."""
        self._hear(client)
        if (no := self._no(client)) is not None:
            self._untold.discard(client)
            return no
        is_done = client in self._taken or client in self._sending
        return Verdict(Answer.AGAIN if self._patience is None or is_done else Answer.MESSAGE)

    # --- A client offers its answer -----------------------------------------------------------------------------------

    def offered(self, client: ClientId, number: int, length: int | None) -> Verdict:
        """Decide on an answer before a byte of it is read; ``length`` is its declared length."""
        self._hear(client)
        if (no := self._no(client) or self._untimely(number)) is not None:
            return no
        if client in self._taken:
            return Verdict(Answer.KNOWN, f"{client} already answered stage {number}; the first answer counts")
        if client in self._sending:
            return Verdict(Answer.BUSY, f"another answer of {client} is being read; wait for its result")
        if length is not None and length > self.longest:
            return self.too_long(length)
        self._sending.add(client)
        return Verdict(Answer.READ)

    def too_long(self, length: int) -> Verdict:
        """Return the verdict for an answer that is longer than any to this stage can be."""
        sentence = f"an answer to stage {self.number} has {length} bytes or more; the limit is {self.longest}"
        return Verdict(Answer.LONG, sentence)

    def read(self, client: ClientId, number: int) -> Verdict:
        """Decide on an answer that was read completely; its stage may have closed meanwhile."""
        return self._no(client) or self._untimely(number) or Verdict(Answer.HAND)

    def settled(
        self,
        client: ClientId,
        number: int,
        error: PeerError | None,
        participation: Participation,
        *,
        is_awaited: bool = False,
    ) -> Verdict:
        """Record the session's judgement of an answer.

        Args:
            is_awaited: whether the session still awaits the client: another party may have sent the refused answer.
        """
        self.gave_up(client)
        if isinstance(error, UnexpectedMessage):
            return Verdict(Answer.LATE, str(error))
        if number == self.number:
            self._participation = participation
        if error is not None and is_awaited:
            return Verdict(Answer.REFUSED, f"an answer to stage {number} was refused: {error}")
        if error is not None:
            self._out[client] = f"an answer to stage {number} was refused: {error}"
            return Verdict(Answer.REFUSED, self._out[client])
        if number == self.number:
            self._taken.add(client)
            self._untold.add(client)
        return Verdict(Answer.TAKEN, "taken")

    def gave_up(self, client: ClientId) -> None:
        """Forget an incomplete answer; the client may send it again."""
        self._sending.discard(client)

    def step_away(self, client: ClientId) -> bool:
        """Record that a client left, if it has sent nothing and has not left too often."""
        if self.number > 0 or client in self._out or client in self._taken or client in self._sending:
            return False
        self._departures[client] += 1
        if self._departures[client] > _MOST_DEPARTURES:
            return False
        self.away.add(client)
        return True

    def leave(self, client: ClientId, participation: Participation) -> None:
        """Record that a client has left."""
        self._out.setdefault(client, LEFT)
        self._participation = participation

    # --- Private ------------------------------------------------------------------------------------------------------

    def _hear(self, client: ClientId) -> None:
        self._heard.add(client)
        self.away.discard(client)

    def _no(self, client: ClientId) -> Verdict | None:
        if self.over is not None:
            return self.over
        if client in self._out:
            return Verdict(Answer.OUT, self._out[client])
        return None

    def _untimely(self, number: int) -> Verdict | None:
        if number == self.number + 1 and self._patience is None:
            # A restarted server listens before it has opened the stage that its clients know.
            return Verdict(Answer.BUSY, f"stage {number} is about to begin; send the answer again")
        if number > self.number:
            return Verdict(Answer.WRONG, f"stage {number} has not begun; answer the open stage")
        if number < self.number or self._patience is None:
            return Verdict(Answer.LATE, f"stage {number} is closed; ask for the next message")
        return None
