"""The sum of a round by pairwise masks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from secagg.contract import Payload
from secagg.crypto.entropy import SystemCoins
from secagg.identifiers import ClientId
from secagg.parameters import LEAST_THRESHOLD, SecurityMode
from secagg.protocols.pairwise_mask import (
    ClientInput,
    ServerState,
    SessionPlan,
    SessionTerms,
    Topology,
    plan_session,
)
from secagg.protocols.pairwise_mask.configuration import NO_AUTHORITY
from secagg.protocols.pairwise_mask.floors import ClientFloors
from secagg.training.settings.cohorts import minimum_cohort, planned_losses
from secagg.training.settings.configuration import Configuration, suite_of
from secagg.training.settings.sections import Stage
from tests.harness.pairwise_measurement import MeasuredClient, measured_run

from .round_sums import TASK, StageFigures, SumOutcome, SumRound, Upload, zero_payload
from .simulated_clients import ClientKeys, client_id

_STATES: Final = {
    Stage.BEFORE_KEYS: ServerState.AWAITING_KEY_ADVERTISEMENTS,
    Stage.BEFORE_SHARES: ServerState.AWAITING_ENCRYPTED_SHARES,
    Stage.BEFORE_UPLOAD: ServerState.AWAITING_MASKED_INPUTS,
    Stage.BETWEEN_HALVES: ServerState.AWAITING_MASKED_INPUTS,
    Stage.BEFORE_CHECK: ServerState.AWAITING_SURVIVOR_SIGNATURES,
    Stage.BEFORE_UNMASKING: ServerState.AWAITING_UNMASKING_SHARES,
}


class PairwiseSum:
    """Sessions of pairwise masks in memory. They hold the encoded updates of a round, because all clients live here."""

    def __init__(self, configuration: Configuration) -> None:
        """Prepare sessions for what a configuration expects of its rounds."""
        self._settings = configuration.secagg
        self._maximum_weight = configuration.maximum_weight
        self._late, self._dropped = planned_losses(configuration)
        self._minimum_cohort = minimum_cohort(configuration)
        self._mode = SecurityMode.ACTIVE if self._settings.active else SecurityMode.SEMI_HONEST
        self._keys = ClientKeys() if self._settings.active else None

    def plan(self, due: SumRound) -> SessionPlan:
        """Choose the parameters of a round's session.

        Raises:
            InvalidParameters: no such session is safe; the message says what to relax.
        """
        return plan_session(
            due.codec.layout,
            SystemCoins(),
            population=len(due.clients),
            corrupted=self._settings.corrupted,
            dropped=self._dropped,
            late=self._late,
            mode=self._mode,
            suite=suite_of(self._settings),
            topology=Topology.SPARSE if self._settings.sparse else Topology.FULL,
            authority=NO_AUTHORITY if self._keys is None else self._keys.authority.public_key,
            minimum_cohort=self._minimum_cohort,
            maximum_weight=self._maximum_weight,
            task=TASK,
            model_digest=due.model_digest,
            round_number=due.number,
        )

    def run(self, due: SumRound, uploads: Iterable[Upload]) -> SumOutcome:
        """Run one session with everybody who is invited."""
        given = {client: (payload, weight) for client, payload, weight in uploads}
        plan = self.plan(due)
        # Whoever is lost before uploading takes part until then, and its input does not matter.
        zeros = zero_payload(due.codec.layout)
        floors = ClientFloors(
            suites=frozenset({plan.configuration.suite}),
            modes=frozenset({self._mode}),
            minimum_cohort=plan.configuration.minimum_cohort,
            minimum_threshold=LEAST_THRESHOLD,
            minimum_modulus_bits=1,
            maximum_length=sum(segment.length for segment in due.codec.layout.segments),
            maximum_population=len(due.clients),
            assumed_corrupted=self._settings.corrupted,
            privacy_bits=plan.privacy_bits,
        )
        clients = [
            self._client(client, *given.get(client, (zeros, 1)), floors=floors, due=due) for client in due.clients
        ]
        result = measured_run(plan, clients, dropouts=self._dropouts(due), threads=self._settings.threads)
        stages = [
            StageFigures(
                name=figures.state.name.removeprefix("AWAITING_").replace("_", " ").lower(),
                bytes_up=figures.bytes_up,
                bytes_down=figures.bytes_down,
                client_seconds=figures.client_seconds,
                server_seconds=figures.server_seconds,
            )
            for figures in result.rounds
        ]
        stages.append(StageFigures(name="unmasking", server_seconds=result.unmask_seconds))
        return SumOutcome(
            aggregate=result.aggregate,
            bytes_up=sum(stage.bytes_up for stage in stages),
            bytes_down=sum(stage.bytes_down for stage in stages),
            is_real=True,
            stages=tuple(stages),
        )

    def _dropouts(self, due: SumRound) -> dict[ServerState, frozenset[ClientId]]:
        gone = {state: set[ClientId]() for state in _STATES.values()}
        for stage, clients in due.lost.items():
            ids = {client_id(client) for client in clients}
            if stage is Stage.BEFORE_CHECK:
                # Whoever is not on the committee is not asked there, and vanishes one round later.
                gone[ServerState.AWAITING_UNMASKING_SHARES] |= ids
                if not self._settings.active:
                    continue
            gone[_STATES[stage]] |= ids
        return {state: frozenset(ids) for state, ids in gone.items()}

    def _client(
        self, client: int, payload: Payload, weight: int, *, floors: ClientFloors, due: SumRound
    ) -> MeasuredClient:
        keys = self._keys
        return MeasuredClient(
            client_id(client),
            ClientInput(payload, weight),
            floors=floors,
            capacity=due.codec.capacity,
            coins=SystemCoins(),
            authority=None if keys is None else keys.authority,
            signing_key=None if keys is None else keys.signing_key(client),
            certificate=None if keys is None else keys.certificate(client),
            terms=SessionTerms(task=TASK, model_digest=due.model_digest, round_number=due.number),
            threads=self._settings.threads,
        )
