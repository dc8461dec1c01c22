"""A cohort that lives in one process: clients with real keys, certificates where the mode asks for them, and inputs.

Everything cryptographic is the library's own, with the coins of production. What is simulated is that the clients, the
authority and the server are strangers to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from secagg.contract import Payload
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.parameters import LEAST_THRESHOLD, SecurityMode, Suite
from secagg.protocols.pairwise_mask import (
    PairwiseMember,
    ServerState,
    SessionPlan,
    Topology,
    charged_elsewhere,
    plan_session,
)
from secagg.protocols.pairwise_mask.configuration import NO_AUTHORITY
from secagg.protocols.pairwise_mask.floors import ClientFloors
from secagg.protocols.pairwise_mask.run import Observer
from secagg.session.certificates import IDENTITY_KEY_BYTES, Authority, SigningKey, issue_certificate
from tests.harness.pairwise_measurement import MeasuredClient, MeasuredRun, Progress, measured_run
from tests.harness.pairwise_sessions import OfferedSubject, update_of

PLACES: Final = (
    ServerState.AWAITING_MASKED_INPUTS,
    ServerState.AWAITING_UNMASKING_SHARES,
    ServerState.AWAITING_ENCRYPTED_SHARES,
    ServerState.AWAITING_SURVIVOR_SIGNATURES,
    ServerState.AWAITING_KEY_ADVERTISEMENTS,
)
"""Where clients drop out, in the order in which a number of them is dealt out; the costliest comes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The choices that a rehearsal leaves to whoever starts it."""

    mode: SecurityMode = SecurityMode.ACTIVE
    topology: Topology = Topology.SPARSE
    suite: Suite = Suite.CLASSIC
    corrupted: int = 0
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Cohort:
    """A planned session with everybody who is invited to it, and who of them will drop out where."""

    plan: SessionPlan
    clients: tuple[MeasuredClient, ...]
    dropouts: dict[ServerState, frozenset[ClientId]]
    threads: int

    def run(self, progress: Progress | None = None, sent: Observer | None = None) -> MeasuredRun:
        """Run the session, once."""
        return measured_run(
            self.plan, self.clients, dropouts=self.dropouts, sent=sent, progress=progress, threads=self.threads
        )


def gather(
    inputs: Callable[[int], Payload],
    clients: int,
    *,
    capacity: int,
    dropouts: dict[ServerState, frozenset[ClientId]],
    setting: Setting,
) -> Cohort:
    """Plan a session that withstands these dropouts, and make its clients; they are numbered from 1.

    Args:
        inputs: what the client of a number uploads.
        capacity: of the decoder of the inputs.
    Raises:
        InvalidParameters: no such session is safe; the message says what to relax.
    """
    coins = SystemCoins()
    everybody = client_ids(clients)
    payloads = {client: inputs(client.value) for client in everybody}
    authority = _new_signing_key() if setting.mode is SecurityMode.ACTIVE else None
    gone = frozenset[ClientId]().union(*dropouts.values())
    late = dropouts.get(ServerState.AWAITING_KEY_ADVERTISEMENTS, frozenset())
    plan = plan_session(
        payloads[everybody[0]].layout,
        coins,
        population=clients,
        corrupted=setting.corrupted,
        dropped=len(gone - late),
        late=len(late),
        mode=setting.mode,
        suite=setting.suite,
        topology=setting.topology,
        authority=NO_AUTHORITY if authority is None else authority.public_key,
    )
    floors = ClientFloors(
        suites=frozenset({setting.suite}),
        modes=frozenset({setting.mode}),
        minimum_cohort=plan.configuration.minimum_cohort,
        minimum_threshold=LEAST_THRESHOLD,
        minimum_modulus_bits=1,
        maximum_length=sum(segment.length for segment in plan.configuration.layout.segments),
        maximum_population=clients,
        assumed_corrupted=setting.corrupted,
        privacy_bits=plan.privacy_bits,
    )

    def new_client(client: ClientId) -> MeasuredClient:
        signing_key = None if authority is None else _new_signing_key()
        member = PairwiseMember(
            client,
            floors=floors,
            coins=coins,
            authority=None if authority is None else Authority(authority.public_key),
            signing_key=signing_key,
            certificate=None
            if authority is None or signing_key is None
            else issue_certificate(authority, client, signing_key.public_key),
            charge=charged_elsewhere,
            threads=setting.threads,
        )
        subject = OfferedSubject.of(plan.configuration, capacity)
        return MeasuredClient(member, subject, update_of(payloads[client]))

    return Cohort(plan, tuple(map(new_client, everybody)), dropouts, setting.threads)


def client_ids(clients: int) -> list[ClientId]:
    """Return the ids of a cohort."""
    return [ClientId(number) for number in range(1, clients + 1)]


def spread_dropouts(
    clients: int, dropped: int, mode: SecurityMode, places: Iterable[ServerState] = PLACES
) -> dict[ServerState, frozenset[ClientId]]:
    """Deal dropouts out to the rounds, one after another, and take clients from all over the cohort.

    A client that is to vanish before the consistency check vanishes before unmasking if it is not on the committee.
    """
    if not 0 <= dropped < clients:
        raise InvalidParameters(f"of {clients} clients, 0 to {clients - 1} can drop out; got {dropped}")
    due = [
        place
        for place in places
        if mode is SecurityMode.ACTIVE or place is not ServerState.AWAITING_SURVIVOR_SIGNATURES
    ]
    dealt: dict[ServerState, set[ClientId]] = {place: set() for place in PLACES}
    for turn in range(dropped):
        client, place = ClientId(1 + turn * clients // dropped), due[turn % len(due)]
        dealt[place].add(client)
        if place is ServerState.AWAITING_SURVIVOR_SIGNATURES:
            dealt[ServerState.AWAITING_UNMASKING_SHARES].add(client)
    return {place: frozenset(gone) for place, gone in dealt.items()}


def _new_signing_key() -> SigningKey:
    with Secret.random("signing key", IDENTITY_KEY_BYTES, SystemCoins()) as seed:
        return SigningKey(seed)
