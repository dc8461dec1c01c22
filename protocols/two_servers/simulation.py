"""Two servers and their clients in one process, and the entry in the registry of protocols."""

from __future__ import annotations

from functools import partial
from typing import Final

from secagg.contract import IndexSegment, RingSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined
from secagg.identifiers import ClientId
from secagg.parameters import LEAST_COHORT
from secagg.privacy.client_noise import said_epsilon
from secagg.session.registry import Clock, ProtocolEntry
from secagg.session.roles import Stage, Subject
from secagg.session.simulated_keys import SimulatedKeys

from .cheating_client import InsecureCheatingClient
from .client import Client
from .costs import costs
from .floors import IndexingFloors
from .ledger import UploadLedger
from .less_protected import NoJournal, NoRoundFile
from .operators.server_keys import trial_server_keys
from .operators.standing_rules import StandingFloors, StandingRounds
from .operators.standing_server import StandingServer, asking
from .session import STAGE, TwoServersHelpers, TwoServersMember, TwoServersSession, TwoServersSettings, open_session

_MOST_LANES: Final = 1 << 40


def describe(session: TwoServersSession) -> tuple[str, ...]:
    """Return what both servers agreed on, a line each."""
    configuration = session.configuration
    lines = [f"two servers, {configuration.suite.value}, {'checked' if configuration.is_checked else 'unchecked'}"]
    if configuration.index_segments:
        depths = sorted({configuration.shape(segment).depth for _, segment in configuration.index_segments})
        lines[0] += f", lanes are integers modulo {configuration.group.order}"
        shared = ", ".join(f"in trees of depth {depth}" if depth else "without trees" for depth in depths)
        lines.append(f"indices are shared {shared}")
    if (noise := session.noise) is not None:
        lines.append(f"each server adds noise of its own, enough against the other one: {said_epsilon(noise)}")
    return (
        *lines,
        f"nothing is released of fewer than {configuration.minimum_cohort}, nor unless both servers sign one list",
    )


class TwoServersSimulation(Confined):
    """Both servers and their clients in one process; see ``Simulation``."""

    def __init__(self, settings: TwoServersSettings, *, coins: Coins, clock: Clock, threads: int = 1) -> None:
        """Draw the keys of the authority and of both servers."""
        self._settings, self._coins, self._clock, self._threads = settings, coins, clock, threads
        self._keys = SimulatedKeys(coins)
        self._zero, self._one = trial_server_keys(coins)
        self._server_keys = self._zero.signing_key().public_key, self._one.signing_key().public_key
        floors = StandingFloors(
            task_prefix=b"",
            authority=self._keys.authority.public_key,
            server_keys=self._server_keys,
            modes=frozenset({settings.mode}),
            minimum_cohort=LEAST_COHORT,
            maximum_cohort=(1 << 24) - 1,
            maximum_lanes=_MOST_LANES,
            maximum_weight=max(settings.weights),
            maximum_lifetime=2 * settings.lifetime,
        )
        standing = StandingServer(
            self._one,
            self._zero.public,
            StandingRounds(floors, NoJournal()),
            NoRoundFile(),
            coins=coins,
            clock=clock,
            threads=threads,
        )
        self._asked, self._standing, self._count = asking(standing.answer), standing, 0
        self._ledgers = dict[tuple[ClientId, bytes], UploadLedger]()

    def open(self, subject: Subject, invited: frozenset[ClientId] | None) -> TwoServersSession:
        """Begin a round; its number is above that of the last one."""
        helpers = TwoServersHelpers(
            keys=self._zero,
            server_one=self._one.public,
            authority=self._keys.authority.public_key,
            ask=self._ask,
            coins=self._coins,
            clock=self._clock,
            is_simulated=True,
            threads=self._threads,
        )
        return open_session(subject, self._settings, invited, helpers)

    def _ask(self, request: bytes) -> bytes:
        answer = self._asked(request)
        self._count += len(request) + len(answer)
        return answer

    def member(self, client: ClientId, kind: type[Client] = Client) -> TwoServersMember:
        """Return a client."""
        settings, (key, certificate) = self._settings, self._keys.of(client)
        return TwoServersMember(
            certificate=certificate,
            signing_key=key,
            floors=IndexingFloors(
                suites=frozenset({settings.suite}),
                authority=self._keys.authority.public_key,
                server_keys=self._server_keys,
                minimum_cohort=settings.minimum_cohort,
                maximum_length=_MOST_LANES,
                maximum_weight=max(settings.weights),
                modes=frozenset({settings.mode}),
            ),
            ledger=partial(self._ledger, client),
            clock=self._clock,
            coins=self._coins,
            accepts_simulated=True,
            noise=settings,
            threads=self._threads,
            kind=kind,
        )

    def _ledger(self, client: ClientId, task: bytes) -> UploadLedger:
        return self._ledgers.setdefault((client, task), UploadLedger(task))

    @property
    def bytes_between(self) -> int:
        """How many bytes the servers sent each other."""
        return self._count

    def close(self) -> None:
        """End server 1's round, and wipe both servers' keys."""
        self._standing.end_round()
        self._zero.wipe()
        self._one.wipe()


def cheater(simulation: TwoServersSimulation, client: ClientId) -> TwoServersMember:
    """Return a client that votes more than once in its first block of indices."""
    return simulation.member(client, InsecureCheatingClient)


ENTRY: Final = ProtocolEntry(
    name="two-servers",
    summary="two servers that do not collude: one exchange, any segment, and no hardware to believe in",
    settings=TwoServersSettings,
    segments=frozenset({RingSegment, IndexSegment}),
    stages=(Stage(name=STAGE, takes_update=True),),
    describe=describe,
    simulate_cheater=cheater,
    open_session=open_session,
    helpers=TwoServersHelpers,
    simulate=TwoServersSimulation,
    reveals_weights=True,
    costs=costs,
    trust="two servers that do not collude, of which one may be active; a client that is not checked can vote as often "
    "as it likes",
)
