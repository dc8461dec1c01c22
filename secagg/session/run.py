"""A stopwatch around any server session: it is one itself, and knows nothing of any protocol.

And what simulations share: keys of clients, and the cost of a session by a protocol's own formulas.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from threading import Lock
from time import perf_counter
from typing import Final

from secagg.contract.layout import RingSegment, Segment
from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined, Secret
from secagg.errors import Fault, InvalidParameters, Misuse, PeerError, SecAggError, UnexpectedMessage
from secagg.identifiers import ClientId
from secagg.session.roles import ClientSession, Participation, Released, ServerSession, Stage

from .certificates import Authority, Certificate, SigningKey, Standing, issue_certificate, new_signing_key
from .standings import Clock

# --- Figures of a session ---------------------------------------------------------------------------------------------

LEFT: Final = "left"
"""Reason for a client's absence where nothing else is known."""


@dataclass(slots=True)
class StageFigures:
    """Figures of a stage; a driver in memory adds its clients' seconds."""

    name: str
    takes_update: bool = False
    sent: int = 0
    """Number of messages sent."""
    answered: set[ClientId] = field(default_factory=set[ClientId], repr=False)
    failed: dict[ClientId, str] = field(default_factory=dict[ClientId, str])
    """Clients that were refused or left, and the reasons."""
    bytes_down: int = 0
    bytes_up: int = 0
    bytes_between: int = 0
    """Bytes between the server and its helpers."""
    largest_up: int = 0
    seconds: float = 0.0
    """Seconds from opening the stage to closing it."""
    server_seconds: float = 0.0
    client_seconds: float = 0.0
    """Seconds of all clients together, without making their updates."""
    slowest_client_seconds: float = 0.0

    def add_client(self, seconds: float) -> None:
        self.client_seconds += seconds
        self.slowest_client_seconds = max(self.slowest_client_seconds, seconds)


class Measured:
    """Counts what passes through a session, stage by stage; the last figures are those of the release.

    For any thread, as the session is. The seconds of the server are summed over threads.
    """

    def __init__(self, session: ServerSession, between: Callable[[], int] = lambda: 0) -> None:
        """Begin; ``between`` says how many bytes went to and from helpers so far, as their connections count them."""
        self.session, self._lock, self._between, self._told = session, Lock(), between, between()
        self.figures = list[StageFigures]()
        """Figures of each stage so far, in order."""
        self._opened = 0.0
        self._begin()

    @property
    def now(self) -> StageFigures:
        """The figures of the open stage, or of the release."""
        return self.figures[-1]

    def _begin(self) -> None:
        stage = self.session.stage
        with self._lock:
            self.figures.append(
                StageFigures("release") if stage is None else StageFigures(stage.name, stage.takes_update)
            )
            self._opened = perf_counter()

    @contextmanager
    def _timed(self) -> Generator[StageFigures]:
        """Charge work to the stage in which it began."""
        figures, started = self.now, perf_counter()
        try:
            yield figures
        finally:
            with self._lock:
                ended = perf_counter()
                figures.server_seconds += ended - started
                figures.seconds = ended - self._opened
                total = self._between()
                figures.bytes_between, self._told = figures.bytes_between + total - self._told, total

    @property
    def invitation(self) -> bytes:
        """See ``ServerSession``, as for all that follows."""
        return self.session.invitation

    @property
    def stage(self) -> Stage | None:
        return self.session.stage

    @property
    def awaited(self) -> frozenset[ClientId] | None:
        return self.session.awaited

    @property
    def participation(self) -> Participation:
        return self.session.participation

    @property
    def faults(self) -> tuple[Fault, ...]:
        return self.session.faults

    def message_to(self, client: ClientId) -> bytes | None:
        """Return a client's message, and count it each time that it is taken to be sent."""
        with self._timed() as figures:
            message = self.session.message_to(client)
        with self._lock:
            figures.sent += message is not None
            figures.bytes_down += len(message or b"")
        return message

    def receive(self, sender: ClientId, message: bytes) -> None:
        """Take an answer, and count it whether it is taken or not."""
        with self._timed() as figures:
            try:
                self.session.receive(sender, message)
            except UnexpectedMessage:
                raise
            except PeerError as error:
                figures.failed[sender] = str(error)
                raise
            finally:
                with self._lock:
                    figures.bytes_up += len(message)
                    figures.largest_up = max(figures.largest_up, len(message))
            figures.answered.add(sender)

    def drop(self, client: ClientId) -> None:
        self.now.failed.setdefault(client, LEFT)
        self.session.drop(client)

    def close_stage(self) -> None:
        """Close the stage, whose figures are complete then."""
        with self._timed():
            self.session.close_stage()
        self._begin()

    def release(self, progress: Callable[[int, int], None] | None = None) -> Released:
        with self._timed():
            return self.session.release(progress)

    def abort(self) -> None:
        self.session.abort()

    def snapshot(self) -> Secret | None:
        """Return what the session is restored from; figures are not in it."""
        return self.session.snapshot()


# --- When to wait no longer -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Waiting times of a loop, in seconds of the clock that it uses."""

    exchange: float
    """At most, for a stage without updates."""
    training: float
    """At most, for the stage that takes the updates."""
    patience: float | None = 1.0
    """Once there are enough in a stage without updates: this share of the time that it took until then.
    None waits for everybody until the limit."""
    training_patience: float | None = None
    """The same for the stage of the updates, where each client waited for adds one update to the sum."""
    least: float = 0.0
    """Wait at least so long after there are enough, however fast they were."""

    def __post_init__(self) -> None:
        # Written so that NaN is refused too.
        shares = [share for share in (self.patience, self.training_patience) if share is not None]
        if not (self.exchange > 0 and self.training > 0 and self.least >= 0 and all(share >= 0 for share in shares)):
            raise InvalidParameters("exchange and training are positive seconds; patience and least are not negative")


class Patience:
    """The wait for one stage; ask after each answer, or sleep for ``left`` at most."""

    def __init__(self, stage: Stage, limits: Limits, clock: Callable[[], float]) -> None:
        """Begin to wait now; the clock never goes back, as ``time.monotonic`` does not."""
        self._limits, self._clock, self._began = limits, clock, clock()
        self._last = self._began + (limits.training if stage.takes_update else limits.exchange)
        self._share = limits.training_patience if stage.takes_update else limits.patience
        self._is_enough = False

    def left(self, participation: Participation) -> float:
        """Return how many seconds to wait at most; 0 if the stage is to be closed now."""
        now = self._clock()
        if participation >= Participation.COMPLETE:
            self._last = min(self._last, now)
        elif participation >= Participation.ENOUGH and not self._is_enough:
            self._is_enough = True
            if self._share is not None:
                self._last = min(self._last, now + max(self._limits.least, self._share * (now - self._began)))
        return max(0.0, self._last - now)

    def is_over(self, participation: Participation) -> bool:
        return self.left(participation) <= 0


# --- The driver -------------------------------------------------------------------------------------------------------

_SHOWN: Final = 3
Progress = Callable[[str, int, int], None]
"""Told of a stage, how many answered it, and how many are still in the session."""


def run(
    session: Measured,
    clients: Iterable[ClientSession],
    dropouts: Mapping[str, frozenset[ClientId]] | None = None,
    *,
    progress: Progress = lambda _, __, ___: None,
    making: Callable[[], float] = lambda: 0.0,
) -> Released:
    """Carry a session through, one client after another; a client is pulled when its first message is needed.

    Args:
        dropouts: by the name of a stage, the clients that are gone for good before answering.
        making: the seconds spent on updates so far, which the figures count for no client.
    Raises:
        SecAggError, ConnectionError: nothing is released; notes of the first say why clients left.
    """
    present = list[ClientSession]()
    try:
        while (stage := session.stage) is not None:
            gone, present = (dropouts or {}).get(stage.name, frozenset[ClientId]()), list[ClientSession]()
            for client in clients:
                if client.client in gone or not _exchanged(session, client, making):
                    session.drop(client.client)
                    client.abort()
                    continue
                present.append(client)
                progress(stage.name, len(session.now.answered), len(present))
            session.close_stage()
            clients = present
        return session.release(lambda done, count: progress("release", done, count))
    except SecAggError as error:
        # That too few stayed is not what to change; why they left is.
        reasons = dict.fromkeys(reason for stage in session.figures for reason in stage.failed.values())
        for reason in [each for each in reasons if each != LEFT][:_SHOWN]:
            error.add_note(f"a client left: {reason}")
        raise
    finally:
        session.abort()
        for client in present:
            client.abort()


def _exchanged(session: Measured, client: ClientSession, making: Callable[[], float]) -> bool:
    """Deliver one message and its answer; return whether the client stays."""
    if (message := session.message_to(client.client)) is None:
        return True
    started, made = perf_counter(), making()
    try:
        answer = client.answer(message)
        session.now.add_client(perf_counter() - started - (making() - made))
        session.receive(client.client, answer)
    except SecAggError as error:
        session.now.failed[client.client] = str(error)
        return False
    return True


# --- Metrics of a process ---------------------------------------------------------------------------------------------

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Metrics:
    """Counters, gauges and histograms for any thread, as text that Prometheus reads.

    One object for each process; whatever serves sums, over whichever transport, adds to it. Names and labels are the
    caller's: never a client's.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._told = dict[str, tuple[str, str]]()
        self._values = dict[str, dict[tuple[tuple[str, str], ...], float]]()
        self._bounds = dict[str, tuple[float, ...]]()

    def counter(self, name: str, text: str) -> None:
        """Say what a number means that only goes up; its name ends in ``_total``."""
        self._tell(name, "counter", text)

    def gauge(self, name: str, text: str) -> None:
        self._tell(name, "gauge", text)

    def histogram(self, name: str, text: str, bounds: Sequence[float]) -> None:
        """Say what is observed, and count what is at most each of some rising bounds."""
        self._tell(name, "histogram", text)
        self._bounds[name] = (*bounds, inf)
        self._values |= {name + part: {} for part in ("_bucket", "_sum", "_count")}

    def observe(self, name: str, value: float, **labels: str) -> None:
        for bound in self._bounds[name]:
            le = "+Inf" if bound == inf else f"{bound:g}"
            self.add(f"{name}_bucket", float(value <= bound), le=le, **labels)
        self.add(f"{name}_sum", value, **labels)
        self.add(f"{name}_count", 1, **labels)

    def _tell(self, name: str, kind: str, text: str) -> None:
        if not _NAME.fullmatch(name):
            raise Misuse(f"a metric is named by small letters, digits and underscores; got {name!r}")
        self._told[name] = kind, text
        self._values.setdefault(name, {})

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        with self._lock:
            series, key = self._values[name], tuple(sorted(labels.items()))
            series[key] = series.get(key, 0) + amount

    def set(self, name: str, value: float, **labels: str) -> None:
        with self._lock:
            self._values[name][tuple(sorted(labels.items()))] = value

    def text(self) -> str:
        lines = list[str]()
        with self._lock:
            for name, (kind, text) in self._told.items():
                lines += (f"# HELP {name} {text}", f"# TYPE {name} {kind}")
                named = [name + part for part in ("_bucket", "_sum", "_count")] if name in self._bounds else [name]
                for each in named:
                    found = self._values[each].items()
                    # Buckets stay in the order of their bounds, in which they were made.
                    for key, value in found if each != name else sorted(found):
                        labels = ",".join(f'{label}="{part.translate(_ESCAPED)}"' for label, part in key)
                        lines.append(f"{each}{{{labels}}} {value:.15g}" if labels else f"{each} {value:.15g}")
        return "\n".join(lines) + "\n"


# --- Simulations ------------------------------------------------------------------------------------------------------


class SimulatedKeys(Confined):
    """An authority that nobody else holds, and the keys of clients, each drawn when it is first asked for."""

    def __init__(self, coins: Coins) -> None:
        self._coins, self.root = coins, new_signing_key(coins)
        self._keys = dict[ClientId, tuple[SigningKey, Certificate]]()

    @property
    def authority(self) -> Authority:
        return Authority(self.root.public_key)

    def standing(self, clock: Clock) -> Standing:
        """Return the head of a roster of now, in which nobody was revoked."""
        return Standing(number=int(clock().timestamp())).signed(self.root)

    def of(self, client: ClientId) -> tuple[SigningKey, Certificate]:
        if client not in self._keys:
            key = new_signing_key(self._coins)
            self._keys[client] = key, issue_certificate(self.root, client, key.public_key)
        return self._keys[client]

    def __repr__(self) -> str:
        return f"<SimulatedKeys of {len(self._keys)} clients>"


AES_BLOCK_BYTES: Final = 16
ONE_IN: Final = 20
"""A planned session tolerates one corrupted client in this number of clients, and as many dropouts."""
_WORDS_OF_A_CALL: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Counted computation of one party in a session."""

    cipher_calls: int = 0
    """Blocks of 16 bytes that AES expands masks, shares or indices into."""
    word_operations: int = 0
    """Additions of words; also multiplications with additions where clients are checked."""
    steps: int = 1
    """Work independent of the layout, in units of the protocol's own: clients, or edges of its graph."""

    @property
    def words(self) -> int:
        """Work that grows with the layout, in one number: a cipher call takes about as long as two words."""
        return _WORDS_OF_A_CALL * self.cipher_calls + self.word_operations


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """One form of a protocol, for one layout and cohort; bytes are those of one client."""

    plan: str
    """The parameters and the omissions, in a sentence."""
    payload_bytes: int
    """The values alone, packed."""
    up_bytes: int
    down_bytes: int
    between_bytes: int = 0
    """Bytes between the server and its helpers, for one client."""
    client: Work
    server: Work
    """Work of the server for all clients together, with that of its helpers."""
    variant: str = ""
    """Which of several forms of the protocol."""
    is_checked: bool = True
    """Whether a client cannot vote more than once, where it votes at all."""
    reveals_counts: bool = False
    """Whether the server learns how often each index was chosen, even where only the sum is asked for."""


def mask_cipher_calls(segments: Iterable[Segment]) -> int:
    """Return how many cipher calls one mask takes: its words have the bytes of the machine's, not of the wire's."""
    return sum(-(-ring.length * ring.ring.word_bytes // AES_BLOCK_BYTES) for ring in _rings(segments))


def ring_length(segments: Iterable[Segment]) -> int:
    """Return how many ring elements there are."""
    return sum(ring.length for ring in _rings(segments))


def _rings(segments: Iterable[Segment]) -> Iterable[RingSegment]:
    return (segment for segment in segments if isinstance(segment, RingSegment))
