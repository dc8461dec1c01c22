"""Measured runs of a server session, with any protocol: ``Measured`` wraps a session and is one itself.

Also shared by simulations: clients' keys, and the cost of a session by a protocol's own formulas.
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

from .certificates import Authority, Certificate, SigningKey, Standing
from .signing_keys import issue_certificate, new_signing_key
from .standings import Clock

# --- Figures of a session ---------------------------------------------------------------------------------------------

LEFT: Final = "left"
"""Reason for a client's absence if nothing else is known."""


@dataclass(slots=True)
class StageFigures:
    """Figures of a stage; an in-memory driver adds its clients' seconds."""

    name: str
    takes_update: bool = False
    sent: int = 0
    """Number of messages sent."""
    answered: set[ClientId] = field(default_factory=set[ClientId], repr=False)
    failed: dict[ClientId, str] = field(default_factory=dict[ClientId, str])
    """Clients that were refused or left, with the reasons."""
    bytes_down: int = 0
    bytes_up: int = 0
    bytes_between: int = 0
    """Bytes between the server and its helpers."""
    largest_up: int = 0
    seconds: float = 0.0
    """Seconds from opening the stage to closing it."""
    server_seconds: float = 0.0
    client_seconds: float = 0.0
    """Seconds of all clients together, excluding the creation of their updates."""
    slowest_client_seconds: float = 0.0

    def add_client(self, seconds: float) -> None:
        self.client_seconds += seconds
        self.slowest_client_seconds = max(self.slowest_client_seconds, seconds)


class Measured:
    """Counts what passes through a session, stage by stage; the last figures are those of the release.

    Thread-safe, like the session. The server's seconds are summed over threads.
    """

    def __init__(self, session: ServerSession, between: Callable[[], int] = lambda: 0) -> None:
        """Start measuring; ``between`` returns the bytes exchanged with helpers so far."""
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
        """See ``ServerSession``, as for the methods below."""
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
        """Return a client's message, and count it each time it is sent."""
        with self._timed() as figures:
            message = self.session.message_to(client)
        with self._lock:
            figures.sent += message is not None
            figures.bytes_down += len(message or b"")
        return message

    def receive(self, sender: ClientId, message: bytes) -> None:
        """Receive an answer, and count it whether or not it is accepted."""
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
        """Close the stage, which completes its figures."""
        with self._timed():
            self.session.close_stage()
        self._begin()

    def release(self, progress: Callable[[int, int], None] | None = None) -> Released:
        with self._timed():
            return self.session.release(progress)

    def abort(self) -> None:
        self.session.abort()

    def snapshot(self) -> Secret | None:
        """Return the session's snapshot, which does not include figures."""
        return self.session.snapshot()


# --- When to wait no longer -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Waiting times of a driver, in seconds of its clock."""

    exchange: float
    """Maximum for a stage without updates."""
    training: float
    """Maximum for the stage that takes the updates."""
    patience: float | None = 1.0
    """In a stage without updates, how long to wait once there are enough answers, as a share of the time until then.
    None waits for all clients until the limit."""
    training_patience: float | None = None
    """The same for the stage with updates, where each further client adds an update to the sum."""
    least: float = 0.0
    """Minimum wait once there are enough answers, however fast they came."""

    def __post_init__(self) -> None:
        # Written so that NaN is refused too.
        shares = [share for share in (self.patience, self.training_patience) if share is not None]
        if not (self.exchange > 0 and self.training > 0 and self.least >= 0 and all(share >= 0 for share in shares)):
            raise InvalidParameters("exchange and training must be positive seconds; patience and least not negative")


class Patience:
    """The wait for one stage; call ``is_over`` after each answer, or sleep for at most ``left``."""

    def __init__(self, stage: Stage, limits: Limits, clock: Callable[[], float]) -> None:
        """Start waiting now; the clock must be monotonic, such as ``time.monotonic``."""
        self._limits, self._clock, self._began = limits, clock, clock()
        self._last = self._began + (limits.training if stage.takes_update else limits.exchange)
        self._share = limits.training_patience if stage.takes_update else limits.patience
        self._is_enough = False

    def left(self, participation: Participation) -> float:
        """Return how many seconds to wait at most; 0 if the stage should be closed now."""
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
"""Called with a stage, the number of answers, and the number of clients still in the session."""


def run(
    session: Measured,
    clients: Iterable[ClientSession],
    dropouts: Mapping[str, frozenset[ClientId]] | None = None,
    *,
    progress: Progress = lambda _, __, ___: None,
    making: Callable[[], float] = lambda: 0.0,
) -> Released:
    """Run a session, one client after another; a client is created when its first message is needed.

    Args:
        dropouts: by the name of a stage, the clients that drop out before answering it.
        making: returns the seconds spent on creating updates so far, which count for no client.
    Raises:
        SecAggError, ConnectionError: nothing is released; the first has notes that say why clients left.
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
        # Do not advise on too few clients; the notes say why they left.
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
    """Thread-safe counters, gauges and histograms, as text in Prometheus format.

    Use one object per process; everything that serves sums adds to it, over any transport. The caller chooses names and
    labels, which must never come from a client.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._told = dict[str, tuple[str, str]]()
        self._values = dict[str, dict[tuple[tuple[str, str], ...], float]]()
        self._bounds = dict[str, tuple[float, ...]]()

    def counter(self, name: str, text: str) -> None:
        """Declare a number that only increases; its name ends in ``_total``."""
        self._tell(name, "counter", text)

    def gauge(self, name: str, text: str) -> None:
        self._tell(name, "gauge", text)

    def histogram(self, name: str, text: str, bounds: Sequence[float]) -> None:
        """Declare a histogram with increasing bounds; it counts the observations up to each bound."""
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
            raise Misuse(f"a metric's name must consist of lower-case letters, digits and underscores; got {name!r}")
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
                    # Buckets stay in the order of their bounds, in which they were created.
                    for key, value in found if each != name else sorted(found):
                        labels = ",".join(f'{label}="{part.translate(_ESCAPED)}"' for label, part in key)
                        lines.append(f"{each}{{{labels}}} {value:.15g}" if labels else f"{each} {value:.15g}")
        return "\n".join(lines) + "\n"


# --- Simulations ------------------------------------------------------------------------------------------------------


class SimulatedKeys(Confined):
    """A simulated authority, and the clients' keys, each drawn on first use."""

    def __init__(self, coins: Coins) -> None:
        self._coins, self.root = coins, new_signing_key(coins)
        self._keys = dict[ClientId, tuple[SigningKey, Certificate]]()

    @property
    def authority(self) -> Authority:
        return Authority(self.root.public_key)

    def standing(self, clock: Clock) -> Standing:
        """Return the head of a current roster without revocations."""
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
"""A planned session tolerates one corrupted client per this many clients, and as many dropouts."""
_WORDS_OF_A_CALL: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Estimated computation of one party in a session."""

    cipher_calls: int = 0
    """AES calls on blocks of 16 bytes that expand masks, shares or indices."""
    word_operations: int = 0
    """Additions of words; also multiply-adds if clients are checked."""
    steps: int = 1
    """Work independent of the layout, in units of the protocol's own: clients, or edges of its graph."""

    @property
    def words(self) -> int:
        """Work that grows with the layout, in one number: a cipher call takes about as long as two words."""
        return _WORDS_OF_A_CALL * self.cipher_calls + self.word_operations


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Cost of one form of a protocol, for one layout and cohort; bytes are per client."""

    plan: str
    """The parameters and what the estimate omits, in one sentence."""
    payload_bytes: int
    """The packed values only."""
    up_bytes: int
    down_bytes: int
    between_bytes: int = 0
    """Bytes between the server and its helpers, per client."""
    client: Work
    server: Work
    """The server's work for all clients, including its helpers' work."""
    variant: str = ""
    """Name of the form, if the protocol has several."""
    is_checked: bool = True
    """Whether a client can vote only once, if it votes at all."""
    reveals_counts: bool = False
    """Whether the server learns how often each index was chosen, even if only the sum is requested."""


def mask_cipher_calls(segments: Iterable[Segment]) -> int:
    """Return the number of cipher calls for one mask; its words have machine width, not wire width."""
    return sum(-(-ring.length * ring.ring.word_bytes // AES_BLOCK_BYTES) for ring in _rings(segments))


def ring_length(segments: Iterable[Segment]) -> int:
    """Return the number of ring elements."""
    return sum(ring.length for ring in _rings(segments))


def _rings(segments: Iterable[Segment]) -> Iterable[RingSegment]:
    return (segment for segment in segments if isinstance(segment, RingSegment))
