"""Which rounds a standing server 1 takes part in: what its operator insists on, and no round twice.

Pure rules. Server 0 offers a configuration for each round, and it is another party's: whatever is not within these
floors is refused before a key is drawn. What was accepted is written down before the offer that answers it is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from secagg.contract.layout import IndexSegment
from secagg.crypto.secret import Confined
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, PeerMisbehaved, Reason
from secagg.identifiers import ServerId
from secagg.parameters import LEAST_COHORT, Suite, require_integer
from secagg.protocols.two_servers.configuration import SERVERS, IndexingConfiguration, SharingMode
from secagg.protocols.two_servers.journal import Event, Journal
from secagg.protocols.two_servers.uploads.upload import DIGEST_BYTES, ROUND_BYTES
from secagg.session.certificates import IDENTITY_KEY_BYTES

MAXIMUM_STEP: Final = 1 << 32
"""How far the number of a round may lie above the last one: no server 0 ends a task by offering the last number."""
MAXIMUM_TASKS: Final = 1 << 16
"""How many tasks are remembered; server 0 names them, and their number is not to be what ends this server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingFloors:
    """What the operator of server 1 insists on, whatever server 0 offers."""

    task_prefix: bytes
    """What every task begins with; empty for any."""
    authority: bytes
    """Who certifies clients; a server that could certify its own would be all of them but one."""
    server_keys: tuple[bytes, bytes]
    """The other server's key and this one's."""
    suites: frozenset[Suite] = frozenset(Suite)
    modes: frozenset[SharingMode] = frozenset({SharingMode.CHECKED_POINT_FUNCTIONS})
    minimum_cohort: int
    maximum_cohort: int
    maximum_lanes: int
    """The most counters and ring elements of a layout, which this server holds a few times over for each client."""
    maximum_weight: int = 1
    maximum_lifetime: timedelta
    """How far ahead the expiry of a round may lie."""

    def __post_init__(self) -> None:
        if len(self.server_keys) != SERVERS:
            raise Misuse("server_keys are the public keys of server 0 and of server 1")
        for key in (self.authority, *self.server_keys):
            if type(key) is not bytes or len(key) != IDENTITY_KEY_BYTES:
                raise InvalidParameters(f"authority and server_keys have {IDENTITY_KEY_BYTES} bytes each")
        require_integer("minimum_cohort", self.minimum_cohort, LEAST_COHORT)
        require_integer("maximum_cohort", self.maximum_cohort, self.minimum_cohort)
        require_integer("maximum_lanes", self.maximum_lanes, 1)
        require_integer("maximum_weight", self.maximum_weight, 1)
        if not self.suites or not self.modes or self.maximum_lifetime <= timedelta(0):
            raise InvalidParameters("a standing server accepts at least one suite, one mode and some time to come")

    def admit(self, configuration: IndexingConfiguration, now: datetime) -> None:
        """Refuse a configuration that its operator would not have written.

        Raises:
            InvalidParameters: with reason ``below_floor``, naming what is to be changed.
        """
        for is_wrong, sentence in self._objections(configuration, now):
            if is_wrong:
                raise InvalidParameters(
                    f"server 1 takes no part in this round: {sentence}; offer another configuration, or ask its "
                    "operator for other floors",
                    reason=Reason.BELOW_FLOOR,
                )

    def _objections(self, offered: IndexingConfiguration, now: datetime) -> Iterator[tuple[bool, str]]:
        is_known = offered.task.startswith(self.task_prefix)
        yield not is_known, f"the task {offered.task!r} does not begin with {self.task_prefix!r}"
        yield offered.authority != self.authority, "clients are certified by another authority than its operator's"
        yield offered.server_keys[0] != self.server_keys[0], "server 0 has another key than its operator knows"
        yield offered.server_keys[1] != self.server_keys[1], "it names another key than its own for server 1"
        yield offered.suite not in self.suites, f"suite {offered.suite} is not accepted"
        yield offered.mode not in self.modes, f"mode {offered.mode.name.lower()} is not accepted"
        least, most = offered.minimum_cohort, offered.maximum_cohort
        yield least < self.minimum_cohort, f"a cohort of {least} is below {self.minimum_cohort}"
        yield most > self.maximum_cohort, f"a cohort of {most} is above {self.maximum_cohort}"
        heaviest = max(offered.weights)
        yield heaviest > self.maximum_weight, f"a client may weigh {heaviest}, above {self.maximum_weight}"
        lanes = lanes_of(offered)
        yield lanes > self.maximum_lanes, f"{lanes} counters and ring elements are more than {self.maximum_lanes}"
        yield now.timestamp() >= offered.expiry, "it has expired"
        is_far = offered.expiry > (now + self.maximum_lifetime).timestamp()
        yield is_far, f"it expires later than {self.maximum_lifetime} from now"


def lanes_of(configuration: IndexingConfiguration) -> int:
    """Return how many counters and ring elements a round has."""
    return sum(
        segment.blocks * segment.codewords if isinstance(segment, IndexSegment) else segment.length
        for segment in configuration.layout.segments
    )


class StandingRounds(Confined):
    """Which rounds a standing server began; of each task the numbers go up, and each has one configuration."""

    def __init__(self, floors: StandingFloors, journal: Journal) -> None:
        """Begin with what the journal holds.

        Raises:
            MalformedMessage: the journal is that of something else.
        """
        self.floors = floors
        self._journal = journal
        self._last = dict[bytes, tuple[int, bytes]]()
        self._latest: tuple[bytes, int, bytes] | None = None
        for event, fields in journal.records():
            if event is not Event.BEGUN or [len(part) for part in fields[1:]] != [ROUND_BYTES, DIGEST_BYTES]:
                raise MalformedMessage(
                    "this is no journal of a standing server; name another one", reason=Reason.NOT_CANONICAL
                )
            self._remember(fields[0], int.from_bytes(fields[1], "big"), fields[2])

    def admit(self, configuration: IndexingConfiguration, round_number: int, now: datetime) -> bool:
        """Return whether a round is new; it is not if it is the one that was begun last of all, and goes on.

        Raises:
            InvalidParameters: the configuration is not within the operator's floors, or the number is too far ahead.
            PeerMisbehaved: a later round of its task was begun before, or this one under another configuration.
        """
        self.floors.admit(configuration, now)
        task, digest = configuration.task, configuration.context.digest
        last, known = self._last.get(task, (-1, b""))
        if self._latest == (task, round_number, digest):
            return False
        if round_number <= last:
            was = "under this configuration" if known == digest else "under another configuration"
            said = (
                f"round {last} of {task!r} was begun before, {was}; rounds go up, and each is begun once: offer a later"
            )
            raise PeerMisbehaved(
                f"{said} one than {round_number}", reason=Reason.ALREADY_ANSWERED, culprits=[ServerId(0)]
            )
        if round_number > max(last, 0) + MAXIMUM_STEP:
            raise InvalidParameters(
                f"round {round_number} lies further than {MAXIMUM_STEP} above the last one, which was {max(last, 0)}; "
                "count rounds one by one"
            )
        if last < 0 and len(self._last) >= MAXIMUM_TASKS:
            raise InvalidParameters(
                f"{MAXIMUM_TASKS} tasks were begun with this journal; its operator starts server 1 with other keys and "
                "a new journal"
            )
        return True

    def begin(self, configuration: IndexingConfiguration, round_number: int) -> None:
        """Write down that a round which was admitted begins."""
        task, digest = configuration.task, configuration.context.digest
        self._journal.append(Event.BEGUN, task, round_number.to_bytes(ROUND_BYTES, "big"), digest)
        self._remember(task, round_number, digest)

    def _remember(self, task: bytes, round_number: int, digest: bytes) -> None:
        self._last[task] = round_number, digest
        self._latest = task, round_number, digest

    def __repr__(self) -> str:
        return f"<StandingRounds of {len(self._last)} tasks>"
