"""Two servers and their clients in one process, a client that cheats, and the entry in the registry of protocols."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from secagg.contract import IndexSegment, Payload, RingSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.hpke import ClassicSealingKey
from secagg.crypto.secret import Confined
from secagg.identifiers import ClientId
from secagg.parameters import LEAST_COHORT
from secagg.privacy.client_noise import said_epsilon
from secagg.session.ledger import SpentUpdates
from secagg.session.registry import Clock, ProtocolEntry
from secagg.session.roles import Subject
from secagg.session.simulated import SimulatedKeys

from .client import Client
from .configuration import IndexingConfiguration
from .costs import costs
from .floors import IndexingFloors
from .lanes.fields import LaneGroup, Lanes
from .point_functions.generation import ServerShare
from .point_functions.shares import ExplicitShare, SeedShare, TreeShare
from .server import STAGE, Server
from .server_keys import trial_server_keys
from .session import TwoServersHelpers, TwoServersMember, TwoServersSettings, open_session
from .standing_server import StandingFloors, StandingRounds, StandingServer, asking
from .upload import SharedIndices, Upload, UploadHeader

if TYPE_CHECKING:
    from secagg.crypto.hybrid_key_agreement import HybridPublicKey

_MORE = 2
"""So many that no codeword can make up for it: one more could turn a vote for the derived lane into a valid one."""


class InsecureCheatingClient(Client):
    """Votes for one codeword of its first block twice more than it may."""

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
            # The leaf on the path is corrected at one of the servers, whichever codeword was meant.
            _raise(zero.shape.group, zero.correction.leaf[0, 0, :1])
            changed = zero.correction.freeze()
            return (
                TreeShare(0, zero.binding, zero.seed, changed),
                TreeShare(1, one.binding, one.seed, changed),
            )
        case _:
            raise TypeError("these are not two halves of point functions")


def _raise(group: LaneGroup, lanes: Lanes) -> None:
    group.add_into(lanes, np.full_like(lanes, _MORE))
    group.reduce_into(lanes)


_MOST_LANES: Final = 1 << 40


def describe(session: Server) -> tuple[str, ...]:
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
            floors,
            StandingRounds(),
            coins=coins,
            clock=clock,
            threads=threads,
        )
        self._asked, self._standing, self._count = asking(standing.answer), standing, 0
        self._ledgers = defaultdict[ClientId, SpentUpdates](SpentUpdates)

    def open(self, subject: Subject, invited: frozenset[ClientId] | None) -> Server:
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
    """Return a client that votes more than once in its first block of indices."""
    return simulation.member(client, InsecureCheatingClient)


ENTRY: Final = ProtocolEntry(
    name="two-servers",
    summary="two servers that do not collude: one exchange, any segment, and no hardware to believe in",
    settings=TwoServersSettings,
    segments=frozenset({RingSegment, IndexSegment}),
    stages=(STAGE,),
    describe=describe,
    simulate_cheater=cheater,
    open_session=open_session,
    helpers=TwoServersHelpers,
    simulate=TwoServersSimulation,
    reveals_weights=True,
    costs=costs,
    trust="two servers that do not collude, one of which may be active; a client that is not checked can vote as often "
    "as it likes",
)
