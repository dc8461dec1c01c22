"""The sum of a round by two servers, each of which has one half of every upload.

Clients keep their keys and their ledgers from round to round, and so do the servers their signing keys; the key that a
pair of servers shares is drawn anew for each round, as they keep no journal here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from secagg.compression.model_update import ModelUpdate
from secagg.contract import Payload
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters
from secagg.identifiers import ServerId
from secagg.protocols.two_servers.client import Client
from secagg.protocols.two_servers.configuration import IndexingConfiguration, SharingMode
from secagg.protocols.two_servers.floors import IndexingFloors
from secagg.protocols.two_servers.ledger import UploadLedger
from secagg.protocols.two_servers.less_protected import UNCHECKED_POINT_FUNCTIONS, NoJournal
from secagg.protocols.two_servers.one_hot.statement import SEED_BYTES
from secagg.protocols.two_servers.server import IndexingServer
from secagg.simulation.measured_indexing import Delivery, IndexingFigures, measured_round
from secagg.training.settings.cohorts import minimum_cohort
from secagg.training.settings.configuration import Configuration, suite_of
from secagg.training.settings.sections import Stage, Weighting

from .round_sums import TASK, StageFigures, SumOutcome, SumRound, Upload, zero_payload
from .simulated_clients import ClientKeys, new_signing_key

_LIFETIME: Final = timedelta(days=1)
_CHECKS: Final = 3
"""How many of the servers' messages decide about uploads; the others release the sum."""


class TwoServerSum:
    """Two servers in memory, and their clients."""

    def __init__(self, configuration: Configuration) -> None:
        """Make the servers' keys.

        Raises:
            InvalidParameters: clients weigh by their examples, or come when they like.
        """
        if configuration.server.weighting is not Weighting.EQUAL:
            raise InvalidParameters(
                "two servers leave a weight out that few clients have, as those of the most examples would: take "
                "server.weighting = 'equal', or secagg.protocol = 'enclave'"
            )
        if configuration.asynchronous.buffer:
            raise InvalidParameters(
                "two servers are told of no model, so they cannot tell old updates: take secagg.protocol = 'enclave' "
                "for asynchronous clients"
            )
        self._settings = configuration.secagg
        self._mode = UNCHECKED_POINT_FUNCTIONS if self._settings.unchecked else SharingMode.CHECKED_POINT_FUNCTIONS
        self._minimum_cohort = minimum_cohort(configuration)
        self._maximum_cohort = configuration.clients_per_round
        self._keys = ClientKeys()
        self._server_keys = new_signing_key(), new_signing_key()
        self._ledgers = dict[int, UploadLedger]()

    def plan(self, codec: ModelUpdate) -> IndexingConfiguration:
        """Choose what the servers do for the clients of a codec.

        Raises:
            InvalidParameters: they cannot; the message says why.
        """
        return IndexingConfiguration(
            task=TASK,
            suite=suite_of(self._settings),
            authority=self._keys.authority.public_key,
            server_keys=(self._server_keys[0].public_key, self._server_keys[1].public_key),
            layout=codec.layout,
            mode=self._mode,
            minimum_cohort=self._minimum_cohort,
            maximum_cohort=self._maximum_cohort,
            maximum_rejections=0,
            expiry=int((datetime.now(UTC) + _LIFETIME).timestamp()),
        )

    def run(self, due: SumRound, uploads: Iterable[Upload]) -> SumOutcome:
        """Let everybody share an update between the servers, and add both shares of the sum."""
        configuration = self.plan(due.codec)
        with Secret.random("pair key", SEED_BYTES, SystemCoins()) as pair_key:
            zero, one = (
                IndexingServer(
                    configuration,
                    ServerId(index),
                    round_number=due.number,
                    signing_key=signing_key,
                    pair_key=pair_key,
                    journal=NoJournal(),
                    coins=SystemCoins(),
                    threads=self._settings.threads,
                )
                for index, signing_key in enumerate(self._server_keys)
            )
        clients = self._clients(due, configuration, uploads)
        measured = measured_round(zero, one, clients, count=len(due.clients), now=datetime.now(UTC))
        stages = tuple(_stages(measured.figures))
        return SumOutcome(
            aggregate=measured.results[0].aggregate,
            bytes_up=sum(measured.figures.bytes_up),
            bytes_down=measured.figures.bytes_down,
            is_real=True,
            stages=stages,
        )

    def _clients(
        self, due: SumRound, configuration: IndexingConfiguration, uploads: Iterable[Upload]
    ) -> Iterator[tuple[Client, Callable[[], Payload], Delivery]]:
        # Whoever is lost between the halves is in no sum, and what it shares does not matter.
        zeros = _returning(zero_payload(due.codec.layout))
        for client in sorted(due.lost.get(Stage.BETWEEN_HALVES, ())):
            yield self._client(client, due.codec, configuration, UploadLedger(TASK)), zeros, Delivery.ZERO_ALONE
        for client, payload, _ in uploads:
            ledger = self._ledgers.setdefault(client, UploadLedger(TASK))
            yield self._client(client, due.codec, configuration, ledger), _returning(payload), Delivery.BOTH

    def _client(
        self, client: int, codec: ModelUpdate, configuration: IndexingConfiguration, ledger: UploadLedger
    ) -> Client:
        return Client(
            certificate=self._keys.certificate(client),
            signing_key=self._keys.signing_key(client),
            floors=IndexingFloors(
                suites=frozenset({configuration.suite}),
                authority=configuration.authority,
                server_keys=configuration.server_keys,
                minimum_cohort=configuration.minimum_cohort,
                maximum_length=sum(segment.length for segment in configuration.layout.segments),
                modes=frozenset({self._mode}),
            ),
            layout=codec.layout,
            capacity=codec.capacity,
            ledger=ledger,
            coins=SystemCoins(),
            threads=self._settings.threads,
        )


def _stages(figures: IndexingFigures) -> Iterator[StageFigures]:
    steps = list(figures.between.values())
    yield StageFigures(
        name="shared uploads",
        bytes_up=sum(figures.bytes_up),
        bytes_down=figures.bytes_down,
        client_seconds=figures.client_seconds,
        server_seconds=sum(figures.upload_seconds),
    )
    yield StageFigures(
        name="checks and sums", bytes_between=sum(steps[:_CHECKS]), server_seconds=sum(figures.check_seconds)
    )
    yield StageFigures(name="release", bytes_between=sum(steps[_CHECKS:]), server_seconds=sum(figures.release_seconds))


def _returning(payload: Payload) -> Callable[[], Payload]:
    return lambda: payload
