"""Pairwise masks in one process, and their entry in the registry of protocols."""

from __future__ import annotations

from typing import Final

from secagg.contract import RingSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined
from secagg.identifiers import ClientId
from secagg.parameters import LEAST_COHORT, LEAST_THRESHOLD, SecurityMode
from secagg.session.latch import MemoryLatch
from secagg.session.privacy_ledger import PrivacyLedgers
from secagg.session.registry import Clock, ProtocolEntry
from secagg.session.roles import Subject
from secagg.session.simulated_keys import SimulatedKeys

from .configuration import NO_AUTHORITY
from .costs import costs
from .floors import ClientFloors
from .graph import MAXIMUM_POPULATION
from .plan import PairwiseSettings
from .server import STAGES, Server
from .session import PairwiseHelpers, PairwiseMember, open_session
from .thresholds import least_privacy_bits


def describe(session: Server) -> tuple[str, ...]:
    """Return what was planned, a line each."""
    configuration = session.configuration
    widths = sorted({segment.modulus_bits for segment in configuration.layout.require_rings()})
    most = configuration.maximum_population
    lines = [
        (
            f"sums modulo {', '.join(f'2^{width}' for width in widths)}; {configuration.mode.value} mode, "
            f"{configuration.topology.value} graph, {configuration.suite.value}"
        ),
        (
            f"{configuration.degree_among(most)} neighbours, of whose shares any {configuration.threshold} recover a "
            f"secret; nothing is released of fewer than {configuration.minimum_cohort}"
        ),
    ]
    if configuration.quorum:
        lines.append(
            f"the survivors are certified by {configuration.quorum} of a committee of "
            f"{configuration.committee_among(most)}"
        )
    if session.noise is not None:
        lines += session.noise.sentences()
    return tuple(lines)


class PairwiseSimulation(Confined):
    """A server and its clients in one process; see ``Simulation``."""

    def __init__(
        self,
        settings: PairwiseSettings,
        *,
        coins: Coins,
        clock: Clock,
        threads: int = 1,
    ) -> None:
        """Draw the authority's key."""
        del clock  # Nothing here expires.
        self._settings, self._coins, self._threads = settings, coins, threads
        self._keys = SimulatedKeys(coins) if settings.mode is SecurityMode.ACTIVE else None
        self._latch = MemoryLatch()
        self._privacy = PrivacyLedgers(settings.budget)

    def open(self, subject: Subject, invited: frozenset[ClientId] | None) -> Server:
        """Begin a session."""
        authority = NO_AUTHORITY if self._keys is None else self._keys.authority.public_key
        helpers = PairwiseHelpers(coins=self._coins, authority=authority, threads=self._threads)
        return open_session(subject, self._settings, invited, helpers)

    def member(self, client: ClientId) -> PairwiseMember:
        """Return a client."""
        settings = self._settings
        key, certificate = (None, None) if self._keys is None else self._keys.of(client)
        return PairwiseMember(
            client,
            floors=ClientFloors(
                suites=frozenset({settings.suite}),
                modes=frozenset({settings.mode}),
                minimum_cohort=settings.minimum_cohort or LEAST_COHORT,
                minimum_threshold=LEAST_THRESHOLD,
                minimum_modulus_bits=1,
                maximum_length=1 << 40,
                maximum_population=settings.population or MAXIMUM_POPULATION,
                assumed_corrupted=settings.corrupted,
                privacy_bits=settings.privacy_bits or least_privacy_bits(settings.mode),
            ),
            coins=self._coins,
            authority=None if self._keys is None else self._keys.authority,
            signing_key=key,
            certificate=certificate,
            latch=self._latch,
            threads=self._threads,
            noise=settings,
            privacy=self._privacy.of(client),
        )

    @property
    def bytes_between(self) -> int:
        """Nothing: there are no helpers."""
        return 0

    def close(self) -> None:
        """End; nothing outlives a session."""


ENTRY: Final = ProtocolEntry(
    name="pairwise",
    summary="pairwise masks: one server, four or five exchanges, any number of dropouts that was planned for",
    settings=PairwiseSettings,
    segments=frozenset({RingSegment}),
    rounds=True,
    stages=tuple(STAGES.values()),
    takes=PairwiseSettings.takes,
    describe=describe,
    open_session=open_session,
    helpers=PairwiseHelpers,
    simulate=PairwiseSimulation,
    restore=Server.restore,
    costs=costs,
    trust="an authority apart from the server; no more corrupted clients than planned for (one in twenty); the "
    "server may be active",
)
