"""Two servers and their clients in one process, a cheating client, costs, and the protocol's entry in the registry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Final

import numpy as np

from secagg.choices import SharingMode
from secagg.contract import IndexSegment, Layout, Payload, RingSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.hpke import ClassicSealingKey
from secagg.crypto.secret import Confined
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import LEAST_COHORT, Suite
from secagg.privacy.client_noise import said_epsilon
from secagg.session.certificates import IDENTITY_KEY_BYTES
from secagg.session.client_policy import ClientPolicy
from secagg.session.ledger import SpentUpdates
from secagg.session.registry import Clock, ProtocolEntry
from secagg.session.roles import Subject
from secagg.session.run import Costs, SimulatedKeys, Work, mask_cipher_calls, ring_length

from .client import Client
from .configuration import ENFORCED, SERVERS, IndexingConfiguration
from .offers import Invitation, RoundOffers
from .point_functions.generation import ServerShare
from .point_functions.lanes import LaneGroup, Lanes
from .point_functions.shares import CorrectionWords, ExplicitShare, SeedShare, TreeShare
from .server import STAGE, Server
from .server_keys import trial_server_keys
from .server_messages import BATCH, batch_bytes, half_bytes, offers_bytes
from .session import TwoServersHelpers, TwoServersMember, TwoServersOptions, open_session
from .standing_server import OperatorPolicy, StandingRounds, StandingServer, asking
from .upload import SharedIndices, Upload, UploadHeader

if TYPE_CHECKING:
    from secagg.crypto.hybrid_key_agreement import HybridPublicKey


_MORE = 2
"""Large enough that no codeword can cancel it: with one more, a vote for the derived lane could become valid."""


class InsecureCheatingClient(Client):
    """Client that votes for one codeword of its first block twice more than allowed."""

    def _sealed(
        self,
        configuration: IndexingConfiguration,
        header: UploadHeader,
        indices: SharedIndices,
        payload: Payload,
        keys: list[ClassicSealingKey | HybridPublicKey],
    ) -> tuple[Upload, Upload]:
        (number, segment, of, shares), *_ = segments = indices.segments
        segments[0] = number, segment, of, _with_more_votes(shares, segment.blocks)
        return super()._sealed(configuration, replace(header, segments=indices.headers), indices, payload, keys)


def _with_more_votes(shares: tuple[ServerShare, ServerShare], blocks: int) -> tuple[ServerShare, ServerShare]:
    match shares:
        case SeedShare() as zero, ExplicitShare() as one:
            group = one.shape.group
            lanes = group.unpack(memoryview(one.encode()), blocks * one.shape.sent_lanes)
            _raise(group, lanes[:1])
            return zero, ExplicitShare(one.shape, blocks, one.binding, lanes)
        case TreeShare() as zero, TreeShare() as one:
            # One of the servers corrects the leaf on the path, whichever codeword was chosen.
            _raise(zero.shape.group, zero.correction.leaf[0, 0, :1])
            changed = zero.correction.freeze()
            return (TreeShare(0, zero.binding, zero.seed, changed), TreeShare(1, one.binding, one.seed, changed))
        case _:
            raise TypeError("the shares are not two halves of point functions")


def _raise(group: LaneGroup, lanes: Lanes) -> None:
    group.add_into(lanes, np.full_like(lanes, _MORE))
    group.reduce_into(lanes)


_MOST_LANES: Final = 1 << 40


def describe(session: Server) -> tuple[str, ...]:
    """Return what both servers agreed on, one line per fact."""
    configuration = session.configuration
    lines = [f"two servers, {configuration.suite.value}, {'checked' if configuration.is_checked else 'unchecked'}"]
    if configuration.index_segments:
        depths = sorted({configuration.shape(segment).depth for _, segment in configuration.index_segments})
        lines[0] += f", lanes are integers modulo {configuration.group.order}"
        shared = ", ".join(f"in trees of depth {depth}" if depth else "without trees" for depth in depths)
        lines.append(f"indices are shared {shared}")
    if (noise := session.noise) is not None:
        lines.append(f"each server adds enough noise against the other server: {said_epsilon(noise)}")
    return (*lines, f"a sum needs {configuration.minimum_cohort} clients and a list signed by both servers")


class TwoServersSimulation(Confined):
    """Both servers and their clients in one process; see ``Simulation``."""

    def __init__(self, settings: TwoServersOptions, *, coins: Coins, clock: Clock, threads: int = 1) -> None:
        self._settings, self._coins, self._clock, self._threads = settings, coins, clock, threads
        self._keys = SimulatedKeys(coins)
        self._zero, self._one = trial_server_keys(coins)
        self._server_keys = self._zero.signing_key().public_key, self._one.signing_key().public_key
        policy = OperatorPolicy(
            weakest=ClientPolicy(
                authority=self._keys.authority.public_key,
                server_keys=self._server_keys,
                sharings=frozenset({settings.mode}),
                minimum_cohort=LEAST_COHORT,
            ),
            task_prefix=b"",
            maximum_cohort=(1 << 24) - 1,
            maximum_lanes=_MOST_LANES,
            maximum_lifetime=2 * settings.lifetime,
        )
        standing = StandingServer(
            self._one, self._zero.public, policy, StandingRounds(), coins=coins, clock=clock, threads=threads
        )
        self._asked, self._standing, self._count = asking(standing.answer), standing, 0
        self._ledgers = defaultdict[ClientId, SpentUpdates](SpentUpdates)

    def open(self, subject: Subject, invited: frozenset[ClientId] | None) -> Server:
        helpers = TwoServersHelpers(
            keys=self._zero,
            server_one=self._one.public,
            authority=self._keys.authority.public_key,
            standing=self._keys.standing(self._clock),
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
        settings, (key, certificate) = self._settings, self._keys.of(client)
        return TwoServersMember(
            certificate=certificate,
            signing_key=key,
            policy=ClientPolicy(
                suites=frozenset({settings.suite}),
                sharings=frozenset({settings.mode}),
                authority=self._keys.authority.public_key,
                server_keys=self._server_keys,
                minimum_cohort=settings.least_cohort,
                maximum_length=_MOST_LANES,
            ),
            charge=self._ledgers[client].charge,
            clock=self._clock,
            coins=self._coins,
            accepts_simulated=True,
            noise=settings,
            threads=self._threads,
            kind=kind,
        )

    @property
    def bytes_between(self) -> int:
        return self._count

    def close(self) -> None:
        self._standing.end_round()
        self._zero.wipe()
        self._one.wipe()


def cheater(simulation: TwoServersSimulation, client: ClientId) -> TwoServersMember:
    """Return a client that votes more than once in its first index block."""
    return simulation.member(client, InsecureCheatingClient)


# --- Costs ------------------------------------------------------------------------------------------------------------

_FRAME_BYTES: Final = 7 + 2 * 4
"""Frame of the message that carries both halves to server 0."""


def costs(layout: Layout, clients: int, suite: Suite) -> Iterator[Costs]:
    """Estimate the costs of explicit shares of all blocks, and of the cheapest trees if these are shorter."""
    if not any(isinstance(segment, IndexSegment) for segment in layout.segments):
        yield _costs(_configured(layout, clients, suite, SharingMode.CHECKED_POINT_FUNCTIONS, None), clients)
        return
    for mode in (SharingMode.UNCHECKED_POINT_FUNCTIONS, SharingMode.CHECKED_POINT_FUNCTIONS):
        for depth in (0, None):
            configuration = _configured(layout, clients, suite, mode, depth)
            if depth == 0 or _depths(configuration) != {0}:
                yield _costs(configuration, clients)


def _configured(
    layout: Layout, clients: int, suite: Suite, mode: SharingMode, depth: int | None
) -> IndexingConfiguration:
    """Return the configuration of a round, with dummy keys."""
    keys = [bytes([number]) * IDENTITY_KEY_BYTES for number in range(1, 4)]
    return IndexingConfiguration(
        task=b"a plan",
        suite=suite,
        authority=keys[0],
        server_keys=(keys[1], keys[2]),
        layout=layout,
        mode=mode,
        depth=depth,
        minimum_cohort=LEAST_COHORT,
        maximum_cohort=clients,
        maximum_rejections=0,
        expiry=1,
    )


def _depths(configuration: IndexingConfiguration) -> set[int]:
    return {configuration.shape(segment).depth for _, segment in configuration.index_segments}


def _costs(configuration: IndexingConfiguration, clients: int) -> Costs:
    """Add up the plain parts (one server expands them, the other receives them), envelopes, proofs and signatures."""
    shapes = [(configuration.shape(segment), segment.blocks) for _, segment in configuration.index_segments]
    payload = sum(
        CorrectionWords.encoded_bytes(shape, blocks) if shape.depth else ExplicitShare.encoded_bytes(shape, blocks)
        for shape, blocks in shapes
    )
    operations = sum(shape.codewords * blocks for shape, blocks in shapes)
    if configuration.is_checked:
        # Two products of the whole share, with one element per codeword and one per row.
        operations += sum(
            2 * configuration.check_shape(segment).field.degree * segment.codewords * segment.blocks
            for _, segment in configuration.index_segments
        )
    rings = configuration.ring_segments
    calls = sum((Fraction(shape.cipher_calls) * blocks for shape, blocks in shapes), Fraction(0))
    of_client = ceil(calls) + mask_cipher_calls(rings)
    operations += ring_length(rings)
    full, rest = divmod(clients, BATCH)
    offer = bytes(offers_bytes(configuration) // SERVERS)
    between = full * sum(batch_bytes(configuration, BATCH)) + (sum(batch_bytes(configuration, rest)) if rest else 0)
    return Costs(
        plan=f"between counts batches of {BATCH} uploads; the shares of the sum, exchanged once per round, are extra",
        payload_bytes=payload + sum(segment.payload_bytes for segment in rings),
        up_bytes=_FRAME_BYTES + sum(half_bytes(configuration, ServerId(index)) for index in range(SERVERS)),
        down_bytes=len(Invitation(0, configuration, RoundOffers(is_simulated=False, offers=(offer, offer))).encode()),
        # Clients reach only server 0, so server 1's half passes through it.
        between_bytes=round(between / clients) + half_bytes(configuration, ServerId(1)),
        client=Work(cipher_calls=2 * of_client, word_operations=operations),
        server=Work(
            cipher_calls=ceil(clients * (calls + mask_cipher_calls(rings))),
            word_operations=clients * operations,
            steps=clients,
        ),
        variant=_variant(configuration),
        is_checked=configuration.is_checked or not shapes,
        reveals_counts=bool(shapes),
    )


def _variant(configuration: IndexingConfiguration) -> str:
    depths = _depths(configuration)
    if not depths:
        return ""
    least, greatest = min(depths), max(depths)
    depth = f"depth {least}" if least == greatest else f"depths {least} to {greatest}"
    return f"{depth}, checked" if configuration.is_checked else depth


ENTRY: Final = ProtocolEntry(
    name="two-servers",
    summary="two servers that do not collude: one round trip, any segment, and no trusted hardware",
    settings=TwoServersOptions,
    segments=frozenset({RingSegment, IndexSegment}),
    stages=(STAGE,),
    describe=describe,
    simulate_cheater=cheater,
    open_session=open_session,
    keeps=ENFORCED,
    helpers=TwoServersHelpers,
    simulate=TwoServersSimulation,
    costs=costs,
    is_certified=True,
    trust="two servers that do not collude, one of which may be active; an unchecked client can vote any number "
    "of times",
)
