"""Pairwise masks in one process, what a session costs, and the entry in the registry of protocols.

Costs are counted by lengths and degrees alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from secagg.contract import Layout, RingSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.hpke import sealing_sizes
from secagg.crypto.secret import Confined
from secagg.errors import InvalidParameters
from secagg.identifiers import CONTEXT_TAG_BYTES, ClientId
from secagg.parameters import LEAST_COHORT, LEAST_THRESHOLD, SecurityMode, Suite
from secagg.session.costs import AES_BLOCK_BYTES, ONE_IN, Costs, Work, mask_cipher_calls, ring_length
from secagg.session.privacy_ledger import PrivacyLedgers
from secagg.session.registry import Clock, ProtocolEntry
from secagg.session.roles import Subject
from secagg.session.sealed_state import MemoryLatch
from secagg.session.simulated_keys import SimulatedKeys

from .client import PairwiseMember, charged_elsewhere
from .client_record import Recorder
from .configuration import NO_AUTHORITY, SessionConfiguration
from .floors import ClientFloors
from .graph import MAXIMUM_POPULATION, Topology, least_privacy_bits
from .plan import PairwiseSettings, plan_session
from .session import STAGES, PairwiseHelpers, Server, open_session


def describe(session: Server) -> tuple[str, ...]:
    """Return the plan, a line each."""
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
            charge=charged_elsewhere,
            recording=partial(Recorder, self._latch),
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


# --- Costs ------------------------------------------------------------------------------------------------------------


_HEADER, _DIGEST, _ELEMENT, _SIGNATURE, _COUNT, _ID = 7 + CONTEXT_TAG_BYTES, 32, 32, 64, 4, 8
"""Bytes of every message's header, and of its fields."""
_CREDENTIAL = _DIGEST + 2 * _SIGNATURE
"""An identity key, the authority's signature on it, and a signature made with it."""
_AUTHORITY = b"\x01" * _DIGEST
"""Placeholder for the key of an authority; only its length counts here."""
_OWN_STEPS: Final = 8
"""Work of a client for itself, in units of its work for a neighbour."""
_SIGNATURES_OF_A_STEP: Final = 5
"""Number of the committee's signatures that are verified in the time that a neighbour takes."""
_PASSES: Final = 8
"""Passes over an upload besides its masks: packed, hashed, checked, sent, read and added."""


def costs(layout: Layout, clients: int, suite: Suite) -> Iterator[Costs]:
    """Plan a session, with a sparse graph where one is safe, and count.

    Raises:
        InvalidParameters: no such session is safe; the message says what to relax.
    """
    rare = clients // ONE_IN
    configuration = _planned(layout, clients, suite, rare)
    degree = configuration.degree_among(clients)
    # Everybody who uploads leaves a self mask, everybody who vanishes before that the masks of its edges.
    masks = clients - rare + rare * degree
    calls, length = mask_cipher_calls(configuration.segments), ring_length(configuration.segments)
    yield Costs(
        plan=f"active mode, {suite.value}, for {rare} corrupted clients and as many that drop out; "
        f"{degree} neighbours, of whom {configuration.threshold} recover a secret",
        payload_bytes=layout.payload_bytes,
        up_bytes=_sent(configuration, degree),
        down_bytes=_received(configuration, clients, degree),
        client=Work(
            cipher_calls=(1 + degree) * calls,
            word_operations=(_PASSES + degree) * length,
            steps=_OWN_STEPS + degree + configuration.quorum // _SIGNATURES_OF_A_STEP,
        ),
        server=Work(
            cipher_calls=masks * calls,
            word_operations=(clients - rare + masks) * length,
            steps=clients * (_OWN_STEPS + degree),
        ),
    )


class _Zeros:
    """Coins for a plan that is counted and never offered; what it draws is public."""

    def draw(self, count: int) -> bytearray:
        return bytearray(count)


def _planned(layout: Layout, clients: int, suite: Suite, rare: int) -> SessionConfiguration:
    try:
        return _plan(layout, clients, suite, rare, Topology.SPARSE)
    except InvalidParameters:
        return _plan(layout, clients, suite, rare, Topology.FULL)


def _plan(layout: Layout, clients: int, suite: Suite, rare: int, topology: Topology) -> SessionConfiguration:
    plan = plan_session(
        layout,
        _Zeros(),
        population=clients,
        corrupted=rare,
        dropped=rare,
        mode=SecurityMode.ACTIVE,
        suite=suite,
        topology=topology,
        authority=_AUTHORITY,
    )
    return plan.configuration


def _sent(configuration: SessionConfiguration, degree: int) -> int:
    key, sealed, edge = _sizes(configuration.suite)
    advertised = _HEADER + _ID + 2 * key + _DIGEST + _CREDENTIAL
    # Of two neighbours one sends the seed of the edge, so a client sends half of its edges on the average.
    shared = _HEADER + _SIGNATURE + degree * sealed + degree * edge // 2
    masked = _HEADER + _SIGNATURE + configuration.masked_bytes
    unmasking = _HEADER + _set_bytes(degree) + degree * (_ELEMENT + _DIGEST) + _SIGNATURE
    return advertised + shared + masked + _confirming(configuration, _SIGNATURE) + unmasking


def _received(configuration: SessionConfiguration, clients: int, degree: int) -> int:
    key, sealed, edge = _sizes(configuration.suite)
    # Ids are taken for consecutive: each is one byte of the roster.
    roster = _HEADER + (_COUNT + clients) + 2 * _DIGEST + 2 * _COUNT
    roster += degree * (2 * key + _DIGEST + _CREDENTIAL) + _DIGEST * _proof_nodes(clients, degree)
    paths = degree * (_SIGNATURE + 1 + _DIGEST * (degree - 1).bit_length())
    shares = _HEADER + _set_bytes(clients) + degree * sealed + degree * edge // 2 + paths
    views = configuration.quorum * (_COUNT + _DIGEST + 2 * _SIGNATURE) + degree * _SIGNATURE
    survivors = _HEADER + _set_bytes(clients) + 2 * _COUNT + views
    confirmed = _confirming(configuration, 2 * _set_bytes(clients))
    return len(configuration.encode()) + roster + shares + confirmed + survivors


def _confirming(configuration: SessionConfiguration, content: int) -> int:
    """Count a message of the consistency check where everybody is on the committee; in a large one nearly nobody is."""
    return 0 if configuration.committee_size else _HEADER + content


def _sizes(suite: Suite) -> tuple[int, int, int]:
    """Return the bytes of a public key, of two sealed shares with their commitment, and of the seed of an edge."""
    key, overhead = sealing_sizes(suite)
    match suite:
        case Suite.CLASSIC:
            return key, 2 * _ELEMENT + AES_BLOCK_BYTES + _DIGEST, 0
        case Suite.HYBRID:
            return key, 2 * _ELEMENT + overhead + _DIGEST, _DIGEST + _ELEMENT + overhead


def _set_bytes(count: int) -> int:
    """Return the bytes of a set among so many: one bit for each."""
    return (count + 7) // 8


def _proof_nodes(clients: int, degree: int) -> int:
    """Return how many hashes prove a client and its neighbours, if they stand evenly among all; others take fewer."""
    known = {place * clients // (degree + 1) for place in range(degree + 1)}
    width, nodes = clients, 0
    while width > 1:
        nodes += sum(1 for place in known if place ^ 1 not in known and place ^ 1 < width)
        known, width = {place >> 1 for place in known}, (width + 1) >> 1
    return nodes


# --- The entry --------------------------------------------------------------------------------------------------------


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
    trust="an authority apart from the server; no more corrupted clients than planned for (one in ten); the "
    "server may be active",
)
