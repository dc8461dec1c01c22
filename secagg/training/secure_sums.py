"""How the payloads of a round are added up: in the clear, or by a real protocol in memory.

A sum pulls uploads one after another, so that a client is trained when the sum is ready for it and its update is gone
before the next one comes. The protocols are the library's own with coins of production; what is simulated is that the
parties are strangers to each other, and who is lost where. A protocol that runs for real is compared with the sum in
the clear, bit for bit, every time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import perf_counter
from typing import Final, Protocol

import numpy as np

from secagg.compression.byte_accounting import Accounting, upload_bytes
from secagg.compression.model_update import ModelUpdate
from secagg.contract import Aggregate, IndexSegment, Payload
from secagg.entropy import SystemCoins
from secagg.errors import InternalError, InvalidParameters
from secagg.identifiers import ClientId
from secagg.identity import IDENTITY_KEY_BYTES, Authority, SigningKey, issue_certificate
from secagg.parameters import LEAST_COHORT, LEAST_THRESHOLD, ClientFloors, SecurityMode
from secagg.protocols.enclave.client import Client as EnclaveClient
from secagg.protocols.enclave.configuration import EnclaveConfiguration, ReleaseForm
from secagg.protocols.enclave.floors import EnclaveFloors
from secagg.protocols.enclave.histogram import Accumulation
from secagg.protocols.enclave.host import Host
from secagg.protocols.enclave.ledger import SealLedger
from secagg.protocols.enclave.messages import ModelStamp
from secagg.protocols.enclave.plan import plan_enclave
from secagg.protocols.enclave.simulated_enclave import SimulatedEnclave, SimulatedJudge
from secagg.protocols.enclave.verified_enclave import VerifiedEnclave
from secagg.protocols.pairwise_mask import ClientInput, ServerState, SessionPlan, Topology, plan_session
from secagg.protocols.pairwise_mask.configuration import NO_AUTHORITY
from secagg.secret import Secret
from secagg.simulation.measured_run import MeasuredClient, measured_run
from secagg.training.clear_sum import ClearSum
from secagg.training.configuration import Configuration, suite_of
from secagg.training.settings import Stage, SumMode, SumProtocol, SumSettings

LOST_BEFORE_UPLOAD: Final = frozenset({Stage.BEFORE_KEYS, Stage.BEFORE_SHARES, Stage.BEFORE_UPLOAD})
_STATES: Final = {
    Stage.BEFORE_KEYS: ServerState.AWAITING_KEY_ADVERTISEMENTS,
    Stage.BEFORE_SHARES: ServerState.AWAITING_ENCRYPTED_SHARES,
    Stage.BEFORE_UPLOAD: ServerState.AWAITING_MASKED_INPUTS,
    Stage.BEFORE_CHECK: ServerState.AWAITING_SURVIVOR_SIGNATURES,
    Stage.BEFORE_UNMASKING: ServerState.AWAITING_UNMASKING_SHARES,
}
_TASK: Final = b"federated training"
_DEVIATIONS: Final = 2
"""Standard deviations by which a session is planned for more dropouts than are expected; a round that loses more still
releases nothing."""

Upload = tuple[int, Payload, int]
"""A client's number, what it encoded, and its weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumRound:
    """What a round's sum is about."""

    number: int
    codec: ModelUpdate
    clients: tuple[int, ...]
    """Everybody who is invited, those who will be lost included."""
    lost: Mapping[Stage, frozenset[int]] = field(default_factory=dict[Stage, frozenset[int]])
    model_digest: bytes = bytes(32)
    versions: dict[int, tuple[int, bytes]] = field(default_factory=dict[int, tuple[int, bytes]])
    """Where clients are asynchronous: the number and the digest of the model that each started from."""

    @property
    def uploaders(self) -> tuple[int, ...]:
        """Those who stay for long enough to upload."""
        gone = frozenset[int]().union(*(self.lost.get(stage, frozenset()) for stage in LOST_BEFORE_UPLOAD))
        return tuple(client for client in self.clients if client not in gone)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFigures:
    """What one stage of a protocol took, of all clients together."""

    name: str
    bytes_up: int = 0
    bytes_down: int = 0
    client_seconds: float = 0.0
    server_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SumOutcome:
    """A sum, and what it took; bytes are those of real messages, of all clients together."""

    aggregate: Aggregate
    bytes_up: int
    bytes_down: int
    is_real: bool
    stages: tuple[StageFigures, ...] = ()

    @property
    def seconds(self) -> float:
        """What all parties took together, one after another."""
        return sum(stage.client_seconds + stage.server_seconds for stage in self.stages)


class SecureSum(Protocol):
    """Adds the payloads of a round up."""

    def run(self, due: SumRound, uploads: Iterable[Upload]) -> SumOutcome:
        """Pull every upload, and return the sum.

        Raises:
            ThresholdNotMet: too many were lost; nothing is released.
        """
        ...


def secure_sum(configuration: Configuration, staleness_weights: tuple[int, ...] = (1,)) -> SecureSum:
    """Return what adds up as a configuration says."""
    minimum, largest = minimum_cohort(configuration), configuration.asynchronous.buffer
    if largest:
        minimum = largest
    ideal = IdealSum(configuration.maximum_total_weight, minimum)
    if configuration.secagg.mode is SumMode.IDEAL:
        return ideal
    real: SecureSum = (
        PairwiseSum(configuration)
        if configuration.secagg.protocol is SumProtocol.PAIRWISE
        else EnclaveSum(
            configuration.secagg,
            # An enclave releases nothing in which one client has more than its share of the least cohort.
            minimum_cohort=max(LEAST_COHORT, minimum // configuration.maximum_weight),
            maximum_cohort=largest or configuration.clients_per_round,
            maximum_weight=configuration.maximum_weight,
            staleness_weights=staleness_weights,
        )
    )
    return CheckedSum(real, ideal, every=configuration.secagg.every)


def planned_losses(configuration: Configuration) -> tuple[int, int]:
    """Return how many clients a round is planned to lose before they advertise keys, and after."""
    clients, stages = configuration.clients_per_round, configuration.dropouts.stages
    early = sum(stage is Stage.BEFORE_KEYS for stage in stages)
    rates = [configuration.dropouts.rate * count / max(1, len(stages)) for count in (early, len(stages) - early)]
    late, dropped = (
        min(clients, math.ceil(clients * rate + _DEVIATIONS * math.sqrt(clients * rate * (1 - rate)))) for rate in rates
    )
    return late, dropped


def minimum_cohort(configuration: Configuration) -> int:
    """Return how many clients a released sum has at least."""
    return max(LEAST_COHORT, configuration.clients_per_round - sum(planned_losses(configuration)))


# --- In the clear -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IdealSum:
    """What every protocol computes, without one."""

    maximum_total_weight: int
    minimum_cohort: int = LEAST_COHORT

    def run(self, due: SumRound, uploads: Iterable[Upload]) -> SumOutcome:
        """Add up in the clear; an upload has the bytes of its payload's encoding."""
        clear, seconds = ClearSum(due.codec, self.maximum_total_weight, self.minimum_cohort), 0.0
        for _, payload, weight in uploads:
            started = perf_counter()
            clear.add(payload, weight)
            seconds += perf_counter() - started
        sent = clear.contributors * int(upload_bytes(due.codec.layout, Accounting.WIRE))
        return SumOutcome(
            aggregate=clear.finish(),
            bytes_up=sent,
            bytes_down=0,
            is_real=False,
            stages=(StageFigures(name="sum in the clear", bytes_up=sent, server_seconds=seconds),),
        )


@dataclass(frozen=True, slots=True)
class CheckedSum:
    """A real protocol every so many rounds, compared with the sum in the clear; the sum in the clear between."""

    real: SecureSum
    ideal: IdealSum
    every: int = 1

    def run(self, due: SumRound, uploads: Iterable[Upload]) -> SumOutcome:
        """Run the protocol if it is due, and hold it to the sum in the clear.

        Raises:
            InternalError: the two differ.
        """
        if due.number % self.every:
            return self.ideal.run(due, uploads)
        clear = ClearSum(due.codec, self.ideal.maximum_total_weight)

        def seen() -> Iterator[Upload]:
            for client, payload, weight in uploads:
                clear.add(payload, weight)
                yield client, payload, weight

        outcome = self.real.run(due, seen())
        require_equal(due.codec, outcome.aggregate, clear.finish())
        return outcome


def require_equal(codec: ModelUpdate, real: Aggregate, ideal: Aggregate) -> None:
    """Refuse a sum that differs from the one in the clear in anything that is decoded.

    Raises:
        InternalError: it does.
    """
    counts = [(aggregate.contributors, aggregate.total_weight) for aggregate in (real, ideal)]
    if counts[0] != counts[1]:
        raise InternalError(f"the protocol summed {counts[0]} (clients, weight) instead of {counts[1]}")
    decoded, due = codec.mean(real), codec.mean(ideal)
    wrong = [name for name in due if not np.array_equal(decoded[name], due[name])]
    if wrong:
        raise InternalError(f"the protocol's sum is not the sum of the updates: {', '.join(wrong)} differ")


# --- Pairwise masks ---------------------------------------------------------------------------------------------------


class PairwiseSum:
    """Sessions of pairwise masks in memory. They hold the encoded updates of a round, because all clients live here."""

    def __init__(self, configuration: Configuration) -> None:
        """Prepare sessions for what a configuration expects of its rounds."""
        self._settings = configuration.secagg
        self._maximum_weight = configuration.maximum_weight
        self._late, self._dropped = planned_losses(configuration)
        self._minimum_cohort = minimum_cohort(configuration)
        self._mode = SecurityMode.ACTIVE if self._settings.active else SecurityMode.SEMI_HONEST
        self._authority = _new_signing_key() if self._settings.active else None

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
            authority=NO_AUTHORITY if self._authority is None else self._authority.public_key,
            minimum_cohort=self._minimum_cohort,
            maximum_weight=self._maximum_weight,
            task=_TASK,
            model_digest=due.model_digest,
            round_number=due.number,
        )

    def run(self, due: SumRound, uploads: Iterable[Upload]) -> SumOutcome:
        """Run one session with everybody who is invited."""
        given = {client: (payload, weight) for client, payload, weight in uploads}
        plan = self.plan(due)
        # Whoever is lost before uploading takes part until then, and its input does not matter.
        zeros = Payload(
            due.codec.layout, tuple(segment.ring.zeros(segment.length) for segment in due.codec.layout.segments)
        )
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
            self._client(client, *given.get(client, (zeros, 1)), floors=floors, capacity=due.codec.capacity)
            for client in due.clients
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
            ids = {_client_id(client) for client in clients}
            if stage is Stage.BEFORE_CHECK:
                # Whoever is not on the committee is not asked there, and vanishes one round later.
                gone[ServerState.AWAITING_UNMASKING_SHARES] |= ids
                if not self._settings.active:
                    continue
            gone[_STATES[stage]] |= ids
        return {state: frozenset(ids) for state, ids in gone.items()}

    def _client(
        self, client: int, payload: Payload, weight: int, *, floors: ClientFloors, capacity: int
    ) -> MeasuredClient:
        signing_key = None if self._authority is None else _new_signing_key()
        identity = _client_id(client)
        return MeasuredClient(
            identity,
            ClientInput(payload, weight),
            floors=floors,
            capacity=capacity,
            coins=SystemCoins(),
            authority=None if self._authority is None else Authority(self._authority.public_key),
            signing_key=signing_key,
            certificate=None
            if self._authority is None or signing_key is None
            else issue_certificate(self._authority, identity, signing_key.public_key),
            threads=self._settings.threads,
        )


# --- The enclave ------------------------------------------------------------------------------------------------------


class EnclaveSum:
    """An enclave with simulated hardware: a buffer for each round, and an epoch for each set of public parameters.

    Clients keep their keys and their ledgers from round to round.
    """

    def __init__(
        self,
        settings: SumSettings,
        *,
        minimum_cohort: int,
        maximum_cohort: int,
        maximum_weight: int = 1,
        staleness_weights: tuple[int, ...] = (1,),
    ) -> None:
        """Prepare to start enclaves."""
        self._settings = settings
        self._minimum_cohort = minimum_cohort
        self._maximum_cohort = maximum_cohort
        self._maximum_weight = maximum_weight
        self._staleness_weights = staleness_weights
        self._authority = _new_signing_key()
        self._keys = dict[int, SigningKey]()
        self._ledgers = dict[int, SealLedger]()
        self._codec: ModelUpdate | None = None
        self._enclave: SimulatedEnclave | None = None

    def run(self, due: SumRound, uploads: Iterable[Upload]) -> SumOutcome:
        """Fill a buffer and release it."""
        started = perf_counter()
        enclave, now = self._started(due.codec), datetime.now(UTC)
        host = Host(enclave.configuration, enclave)
        model = ModelStamp(version=due.number, digest=due.model_digest)
        host.open_buffer(model.version, model.digest)
        offer_bytes = len(enclave.offer.encode())
        server_seconds, client_seconds, sent, count = perf_counter() - started, 0.0, 0, 0
        for client, payload, weight in uploads:
            started = perf_counter()
            verified = VerifiedEnclave(
                enclave.offer, enclave.evidence, configuration=enclave.configuration, judge=SimulatedJudge(), now=now
            )
            version, digest = due.versions.get(client, (model.version, model.digest))
            message = self._client(client, due.codec, enclave.configuration).seal(
                payload,
                enclave=verified,
                model=ModelStamp(version=version, digest=digest),
                now=now,
                # The weight of age is the enclave's own.
                weight=1 if due.versions else weight,
            )
            encoded = message.encode()
            sealed = perf_counter()
            host.receive(encoded)
            client_seconds += sealed - started
            server_seconds += perf_counter() - sealed
            sent, count = sent + len(encoded), count + 1
        started = perf_counter()
        aggregate, receipt = host.release()
        release_seconds = perf_counter() - started
        VerifiedEnclave(
            enclave.offer, enclave.evidence, configuration=enclave.configuration, judge=SimulatedJudge(), now=now
        ).verify_receipt(receipt)
        received = offer_bytes * count
        return SumOutcome(
            aggregate=aggregate,
            bytes_up=sent,
            bytes_down=received,
            is_real=True,
            stages=(
                StageFigures(
                    name="sealed uploads",
                    bytes_up=sent,
                    bytes_down=received,
                    client_seconds=client_seconds,
                    server_seconds=server_seconds,
                ),
                StageFigures(name="release", server_seconds=release_seconds),
            ),
        )

    def _started(self, codec: ModelUpdate) -> SimulatedEnclave:
        if self._enclave is not None and self._codec is codec:
            return self._enclave
        if self._enclave is not None:
            self._enclave.destroy()
        has_indices = any(isinstance(segment, IndexSegment) for segment in codec.layout.segments)
        configuration = plan_enclave(
            task=_TASK,
            layout=codec.layout,
            tables=codec.tables if has_indices else (),
            capacity=codec.capacity,
            authority=Authority(self._authority.public_key),
            minimum_cohort=self._minimum_cohort,
            maximum_cohort=self._maximum_cohort,
            now=datetime.now(UTC),
            suite=suite_of(self._settings),
            form=ReleaseForm.HISTOGRAM if self._settings.histograms else ReleaseForm.DECODED_SUM,
            accumulation=Accumulation.OBLIVIOUS if self._settings.oblivious else Accumulation.DIRECT,
            maximum_weight=self._maximum_weight,
            staleness_weights=self._staleness_weights,
        )
        self._codec = codec
        self._enclave = SimulatedEnclave(configuration, coins=SystemCoins(), threads=self._settings.threads)
        return self._enclave

    def _client(self, client: int, codec: ModelUpdate, configuration: EnclaveConfiguration) -> EnclaveClient:
        if client not in self._keys:
            self._keys[client], self._ledgers[client] = _new_signing_key(), SealLedger(_TASK)
        return EnclaveClient(
            certificate=issue_certificate(self._authority, _client_id(client), self._keys[client].public_key),
            signing_key=self._keys[client],
            floors=EnclaveFloors(
                suites=frozenset({configuration.suite}),
                minimum_cohort=configuration.minimum_cohort,
                maximum_length=sum(segment.length for segment in configuration.layout.segments),
                authority=self._authority.public_key,
                maximum_weight=self._maximum_weight,
                histograms_accepted=self._settings.histograms,
                direct_accepted=not self._settings.oblivious,
            ),
            layout=codec.layout,
            tables=configuration.tables if configuration.index_segments else (),
            capacity=codec.capacity,
            ledger=self._ledgers[client],
            coins=SystemCoins(),
            threads=self._settings.threads,
        )


# --- Private ----------------------------------------------------------------------------------------------------------


def require_feasible(configuration: Configuration, codec: ModelUpdate) -> None:
    """Refuse a run whose rounds no protocol could add up, before anything is trained.

    Raises:
        InvalidParameters: saying what to relax.
        CapacityExceeded: a sum could leave the codec's rings.
    """
    settings, clients = configuration.secagg, configuration.clients_per_round
    if settings.mode is SumMode.IDEAL:
        return
    if (planned := sum(planned_losses(configuration))) > clients - LEAST_COHORT:
        raise InvalidParameters(
            f"a round of {clients} clients is planned to lose up to {planned}; lower dropouts.rate, or raise "
            "clients_per_round"
        )
    if settings.protocol is SumProtocol.PAIRWISE:
        PairwiseSum(configuration).plan(SumRound(number=0, codec=codec, clients=tuple(range(clients))))


def _new_signing_key() -> SigningKey:
    with Secret.random("signing key", IDENTITY_KEY_BYTES, SystemCoins()) as seed:
        return SigningKey(seed)


def _client_id(client: int) -> ClientId:
    return ClientId(client + 1)


def sampled_losses(
    clients: Sequence[int], rate: float, stages: Sequence[Stage], generator: np.random.Generator
) -> dict[Stage, frozenset[int]]:
    """Draw who is lost where: each client with the same probability, each stage equally likely."""
    lost = {stage: set[int]() for stage in stages}
    for client, draw in zip(clients, generator.random(len(clients)), strict=True):
        if draw < rate:
            lost[stages[int(generator.integers(len(stages)))]].add(client)
    return {stage: frozenset(some) for stage, some in lost.items() if some}
