"""Simulation of pairwise masks in one process, cost estimates, and the entry in the protocol registry."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from secagg.contract import Layout, RingSegment
from secagg.crypto.aead import TAG_BYTES
from secagg.crypto.entropy import Coins
from secagg.crypto.hpke import sealing_sizes
from secagg.crypto.merkle import NODE_BYTES
from secagg.crypto.prime_field import ELEMENT_BYTES
from secagg.crypto.public_keys import KEY_BYTES
from secagg.crypto.secret import Confined
from secagg.identifiers import CONTEXT_TAG_BYTES, ClientId
from secagg.parameters import LEAST_COHORT, SecurityMode, Suite
from secagg.session.certificates import GRANT_BYTES, IDENTITY_KEY_BYTES, NO_STANDING, SIGNATURE_BYTES
from secagg.session.client_policy import ClientPolicy, usual_corrupted
from secagg.session.ledger import PrivacyLedgers, uncharged
from secagg.session.registry import Clock, ProtocolEntry
from secagg.session.roles import Subject
from secagg.session.run import ONE_IN, Costs, SimulatedKeys, Work, mask_cipher_calls, ring_length
from secagg.session.sealed_state import MemoryLatch

from .client import PairwiseMember
from .client_record import Recorder
from .configuration import DIGEST_BYTES, ENFORCED, NO_AUTHORITY, SessionConfiguration, set_bytes
from .graph import MAXIMUM_POPULATION, least_privacy_bits
from .plan import PairwiseOptions, plan_session
from .session import STAGES, PairwiseHelpers, Server, open_session
from .suites import COMMITMENT_BYTES, SHARES_BYTES


def describe(session: Server) -> tuple[str, ...]:
    """Return a description of the plan, one line per element."""
    configuration = session.configuration
    widths = sorted({segment.modulus_bits for segment in configuration.layout.require_rings()})
    most = configuration.maximum_population
    lines = [
        (
            f"sums modulo {', '.join(f'2^{width}' for width in widths)}; {configuration.mode.value} mode, "
            f"{configuration.topology.value} graph, {configuration.suite.value}"
        ),
        (
            f"{configuration.degree_among(most)} neighbours, any {configuration.threshold} of whose shares recover a "
            f"secret; no sum of fewer than {configuration.minimum_cohort} is released"
        ),
    ]
    if configuration.quorum:
        lines.append(
            f"the survivors are certified by {configuration.quorum} members of a committee of "
            f"{configuration.committee_among(most)}"
        )
    if session.noise is not None:
        lines += session.noise.sentences()
    return tuple(lines)


class PairwiseSimulation(Confined):
    """A server and its clients in one process; see ``Simulation``."""

    def __init__(self, settings: PairwiseOptions, *, coins: Coins, clock: Clock, threads: int = 1) -> None:
        self._clock = clock
        self._settings, self._coins, self._threads = settings, coins, threads
        self._keys = SimulatedKeys(coins) if settings.mode is SecurityMode.ACTIVE else None
        self._latch = MemoryLatch()
        self._privacy = PrivacyLedgers(settings.budget)

    def open(self, subject: Subject, invited: frozenset[ClientId] | None) -> Server:
        authority = NO_AUTHORITY if self._keys is None else self._keys.authority.public_key
        standing = NO_STANDING if self._keys is None else self._keys.standing(self._clock)
        helpers = PairwiseHelpers(coins=self._coins, authority=authority, standing=standing, threads=self._threads)
        return open_session(subject, self._settings, invited, helpers)

    def member(self, client: ClientId) -> PairwiseMember:
        settings = self._settings
        key, certificate = (None, None) if self._keys is None else self._keys.of(client)
        return PairwiseMember(
            client,
            policy=ClientPolicy(
                suites=frozenset({settings.suite}),
                modes=frozenset({settings.mode}),
                minimum_cohort=settings.minimum_cohort or LEAST_COHORT,
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
            charge=uncharged,
            recording=partial(Recorder, self._latch),
            threads=self._threads,
            noise=settings,
            privacy=self._privacy.of(client),
            clock=self._clock,
        )

    @property
    def bytes_between(self) -> int:
        return 0

    def close(self) -> None:
        """End the simulation; nothing survives a session."""


# --- Costs ------------------------------------------------------------------------------------------------------------

_HEADER: Final = 7 + CONTEXT_TAG_BYTES
_COUNT, _ID = 4, 8
_AUTHORITY = b"\x01" * IDENTITY_KEY_BYTES
"""Placeholder for an authority's key; only its length matters here."""
_OWN_STEPS: Final = 8
"""A client's work for itself, in units of its work for one neighbour."""
_SIGNATURES_OF_A_STEP: Final = 5
"""Number of committee signatures that are verified in the time of one neighbour's work."""
_PASSES: Final = 8
"""Passes over an upload in addition to its masks: pack, hash, check, send, read and add."""


def costs(layout: Layout, clients: int, suite: Suite, dropped: int | None = None) -> Iterator[Costs]:
    """Plan a session, with a sparse graph where that is safe, and estimate its costs from lengths and degrees.

    Running it would take the work of all clients: minutes for a thousand, and infeasible for a million. Without
    ``dropped``, it assumes that one client in twenty drops out and one is corrupted, as in the timed rehearsals.

    Raises:
        InvalidParameters: no safe session exists; the message says what to relax.
    """
    rare = clients // ONE_IN
    corrupted, leaving = (rare, rare) if dropped is None else (usual_corrupted(clients), dropped)
    settings = PairwiseOptions(corrupted=corrupted, dropped=leaving, suite=suite)
    subject = Subject(task=b"federated training", round_number=0, layout=layout, capacity=clients)
    configuration = plan_session(subject, settings, clients, _Zeros(), _AUTHORITY).configuration
    degree = configuration.degree_among(clients)
    # Each client that uploads leaves a self mask; each client that drops out before leaves the masks of its edges.
    masks = clients - rare + rare * degree
    calls, length = mask_cipher_calls(configuration.segments), ring_length(configuration.segments)
    up_bytes, down_bytes = _bytes(configuration, clients, degree)
    yield Costs(
        plan=f"active mode, {suite.value}, for {corrupted} corrupted and {leaving} dropped clients; "
        f"{degree} neighbours, of which {configuration.threshold} recover a secret",
        payload_bytes=layout.payload_bytes,
        up_bytes=up_bytes,
        down_bytes=down_bytes,
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
    """Coins for a plan that is only costed and never offered; their output is public."""

    def draw(self, count: int) -> bytearray:
        return bytearray(count)


def _bytes(configuration: SessionConfiguration, clients: int, degree: int) -> tuple[int, int]:
    """Return the bytes that one client sends and receives, round by round, assuming consecutive ids."""
    # In the hybrid suite one of two neighbours sends the seed of their edge, so a client sends half of them on average.
    key, overhead = sealing_sizes(configuration.suite)
    is_hybrid = configuration.suite is Suite.HYBRID
    sealed = SHARES_BYTES + COMMITMENT_BYTES + (overhead if is_hybrid else TAG_BYTES)
    edges = degree * (COMMITMENT_BYTES + KEY_BYTES + overhead) // 2 if is_hybrid else 0
    entry = 2 * key + COMMITMENT_BYTES + IDENTITY_KEY_BYTES + GRANT_BYTES + SIGNATURE_BYTES
    # If everyone is on the committee, this client is; on a small committee of a large session, almost no client is.
    asked = not configuration.committee_size
    up = (
        _HEADER + _ID + entry,
        _HEADER + SIGNATURE_BYTES + degree * sealed + edges,
        _HEADER + SIGNATURE_BYTES + configuration.masked_bytes,
        asked * (_HEADER + SIGNATURE_BYTES),
        _HEADER + set_bytes(degree) + degree * (ELEMENT_BYTES + DIGEST_BYTES) + SIGNATURE_BYTES,
    )
    endorsements = configuration.quorum * (_COUNT + IDENTITY_KEY_BYTES + GRANT_BYTES + SIGNATURE_BYTES)
    path = SIGNATURE_BYTES + 1 + NODE_BYTES * (degree - 1).bit_length()
    down = (
        len(configuration.encode()),
        _HEADER + 3 * _COUNT + clients + 2 * DIGEST_BYTES + degree * entry + NODE_BYTES * _proof_nodes(clients, degree),
        _HEADER + set_bytes(clients) + degree * (sealed + path) + edges,
        asked * (_HEADER + 2 * set_bytes(clients)),
        _HEADER + set_bytes(clients) + 2 * _COUNT + endorsements + degree * SIGNATURE_BYTES,
    )
    return sum(up), sum(down)


def _proof_nodes(clients: int, degree: int) -> int:
    """Return the number of hashes that prove evenly spaced positions; other positions need fewer."""
    known = {place * clients // (degree + 1) for place in range(degree + 1)}
    width, nodes = clients, 0
    while width > 1:
        nodes += sum(1 for place in known if place ^ 1 not in known and place ^ 1 < width)
        known, width = {place >> 1 for place in known}, (width + 1) >> 1
    return nodes


# --- The entry --------------------------------------------------------------------------------------------------------

ENTRY: Final = ProtocolEntry(
    name="pairwise",
    summary="pairwise masks: one server, four or five exchanges, tolerates the dropouts it was planned for",
    settings=PairwiseOptions,
    segments=frozenset({RingSegment}),
    rounds=True,
    stages=tuple(STAGES.values()),
    takes=PairwiseOptions.takes,
    describe=describe,
    open_session=open_session,
    keeps=ENFORCED,
    helpers=PairwiseHelpers,
    simulate=PairwiseSimulation,
    restore=Server.restore,
    costs=costs,
    trust="an authority independent of the server; at most the planned corrupted clients (one in ten); the "
    "server may be active",
)
