"""The sum of a round by an enclave whose hardware is simulated, with noise where that is asked for.

There is a buffer for each round, and an epoch for each set of public parameters. Clients keep their keys and their
ledgers from round to round.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from time import perf_counter

from secagg.compression.model_update import ModelUpdate
from secagg.contract import IndexSegment
from secagg.crypto.entropy import SystemCoins
from secagg.parameters import LEAST_COHORT
from secagg.protocols.enclave.client import Client
from secagg.protocols.enclave.floors import EnclaveFloors
from secagg.protocols.enclave.host import Host
from secagg.protocols.enclave.ledger import SealLedger
from secagg.protocols.enclave.plan import plan_enclave
from secagg.protocols.enclave.trusted.configuration import EnclaveConfiguration, ReleaseForm
from secagg.protocols.enclave.trusted.histogram import Accumulation
from secagg.protocols.enclave.trusted.messages import ModelStamp
from secagg.protocols.enclave.unattested import SimulatedEnclave, SimulatedJudge
from secagg.protocols.enclave.verified_enclave import VerifiedEnclave
from secagg.training.settings.cohorts import minimum_cohort
from secagg.training.settings.configuration import Configuration, suite_of

from .privacy import EnclaveNoise, NoiseChoices
from .round_sums import TASK, StageFigures, SumOutcome, SumRound, Upload
from .simulated_clients import ClientKeys


class EnclaveSum:
    """Enclaves, one after another, and their clients."""

    def __init__(self, configuration: Configuration, staleness_weights: tuple[int, ...] = (1,)) -> None:
        """Prepare to start enclaves."""
        self._settings = configuration.secagg
        buffer = configuration.asynchronous.buffer
        minimum = buffer or minimum_cohort(configuration)
        # An enclave releases nothing in which one client has more than its share of the least cohort.
        self._minimum_cohort = max(LEAST_COHORT, minimum // configuration.maximum_weight)
        self._maximum_cohort = buffer or configuration.clients_per_round
        self._maximum_weight = configuration.maximum_weight
        self._staleness_weights = staleness_weights
        self._noise = EnclaveNoise(configuration) if configuration.privacy.is_on else None
        self._keys = ClientKeys()
        self._ledgers = dict[int, SealLedger]()
        self._codec: ModelUpdate | None = None
        self._enclave: SimulatedEnclave | None = None

    def plan(self, codec: ModelUpdate) -> EnclaveConfiguration:
        """Choose what an enclave does for the clients of a codec.

        Raises:
            InvalidParameters, CapacityExceeded: no enclave can; the message says what to change.
        """
        has_indices = any(isinstance(segment, IndexSegment) for segment in codec.layout.segments)
        noise: NoiseChoices = {} if self._noise is None else self._noise.choices(codec)
        planned = plan_enclave(
            task=TASK,
            layout=codec.layout,
            tables=codec.tables if has_indices else (),
            capacity=codec.capacity,
            authority=self._keys.authority,
            minimum_cohort=self._minimum_cohort,
            maximum_cohort=self._maximum_cohort,
            now=datetime.now(UTC),
            suite=suite_of(self._settings),
            form=ReleaseForm.HISTOGRAM if self._settings.histograms else ReleaseForm.DECODED_SUM,
            accumulation=Accumulation.OBLIVIOUS if self._settings.oblivious else Accumulation.DIRECT,
            maximum_weight=self._maximum_weight,
            staleness_weights=self._staleness_weights,
            **noise,
        )
        if self._noise is not None:
            self._noise.require_room(planned)
        return planned

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
        received, noise = offer_bytes * count, self._noise
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
            deviations=() if noise is None else noise.deviations(enclave.configuration),
            epsilon=None if noise is None else noise.epsilon(enclave.configuration, due.releases),
        )

    def _started(self, codec: ModelUpdate) -> SimulatedEnclave:
        if self._enclave is not None and self._codec is codec:
            return self._enclave
        if self._enclave is not None:
            self._enclave.destroy()
        self._codec = codec
        self._enclave = SimulatedEnclave(self.plan(codec), coins=SystemCoins(), threads=self._settings.threads)
        return self._enclave

    def _client(self, client: int, codec: ModelUpdate, configuration: EnclaveConfiguration) -> Client:
        if client not in self._ledgers:
            self._ledgers[client] = SealLedger(TASK)
        return Client(
            certificate=self._keys.certificate(client),
            signing_key=self._keys.signing_key(client),
            floors=EnclaveFloors(
                suites=frozenset({configuration.suite}),
                minimum_cohort=configuration.minimum_cohort,
                maximum_length=sum(segment.length for segment in configuration.layout.segments),
                authority=self._keys.authority.public_key,
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
