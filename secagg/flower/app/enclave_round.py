"""One round of the enclave on the server: a fresh epoch, one exchange with the nodes, and one release.

The server is the enclave's host. The parameters of a round are part of the enclave's configuration, so each round has
an enclave epoch of its own; what clients sealed before is kept by their ledgers, not by the enclave.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from flwr.app import Message, RecordDict

from secagg.crypto.entropy import Coins
from secagg.errors import InvalidParameters, SecAggError, ThresholdNotMet
from secagg.flower.model_tensors import model_digest
from secagg.flower.settings import PREFIX, SUITES
from secagg.parameters import LEAST_COHORT
from secagg.protocols.enclave.attestation import Evidence
from secagg.protocols.enclave.host import EnclaveConnection, Host
from secagg.protocols.enclave.plan import plan_enclave
from secagg.protocols.enclave.remote_enclave import EnclaveLost, RemoteEnclave
from secagg.protocols.enclave.trusted.configuration import EnclaveConfiguration
from secagg.protocols.enclave.trusted.messages import EnclaveOffer
from secagg.protocols.enclave.trusted.service import SIMULATED, encode_attested_offer
from secagg.protocols.enclave.unattested import SimulatedEnclave, SimulatedEvidence
from secagg.session.certificates import Authority

from .enclave_member import model_stamp
from .exchange import Exchange, StageCount
from .logs import LOG
from .records import RECORD, TRAIN_STAGE, message_in
from .round_task import RoundResult, RoundTask, round_result

STAGE: Final = "train and seal"


class EnclaveRound:
    """One buffer of an enclave over a grid."""

    def __init__(self, task: RoundTask, exchange: Exchange, coins: Coins) -> None:
        """Hold everything for one round; ``run`` once."""
        self._task = task
        self._exchange = exchange
        self._coins = coins
        self.stages = list[tuple[str, StageCount]]()
        """What each stage carried, so far."""

    def run(self, invited: Sequence[Message], timeout: float | None) -> RoundResult:
        """Carry a buffer through, and return the means.

        Raises:
            ThresholdNotMet: too few sealed; nothing is learned, and the model stays as it was.
            EnclaveLost: the enclave's process ended, and what was sealed to it with it.
            SecAggError: the enclave could not be planned, or does not release.
        """
        try:
            with ExitStack() as stack:
                return self._run(invited, timeout, stack)
        except (SecAggError, EnclaveLost) as error:
            LOG.error("round %d failed, and nothing of it was learned: %s", self._task.round_number, error)
            raise

    def _run(self, invited: Sequence[Message], timeout: float | None, stack: ExitStack) -> RoundResult:
        task, carrier = self._task, list[Message]()
        configuration = self._configuration(len(invited))
        offer, evidence, enclave = self._start(configuration, stack)
        attested = encode_attested_offer(offer, *_document(evidence))
        invitation = task.invitation(configuration.encode(), attested)
        host = Host(configuration, enclave)
        model = model_stamp(invitation, model_digest(task.sent))
        host.open_buffer(model.version, model.digest)
        record = invitation.to_record(TRAIN_STAGE)

        def accept(reply: Message) -> None:
            host.receive(message_in(reply.content))
            reply.content = RecordDict()
            carrier[:] = [reply]

        contents = {
            message.metadata.dst_node_id: RecordDict({**message.content, RECORD: record}) for message in invited
        }
        count = self._exchange.run(contents, accept, timeout=timeout)
        failures, count.failures = count.failures, []
        self.stages.append((STAGE, count))
        LOG.info("round %d, %s: %s", task.round_number, STAGE, count)
        if not carrier:
            raise ThresholdNotMet(needed=configuration.minimum_cohort, present=0, what="sealed updates")
        aggregate, _ = host.release()
        return round_result(task, aggregate, carrier[0], failures)

    def _configuration(self, invited: int) -> EnclaveConfiguration:
        task, settings = self._task, self._task.settings
        if task.roster is None:
            raise InvalidParameters(
                f"{PREFIX}roster names the clients of an enclave; make one with `secagg flower keys`"
            )
        least = settings.minimum_cohort or max(LEAST_COHORT, invited - settings.tolerated_dropouts(invited))
        if least > invited:
            raise InvalidParameters(
                f"{PREFIX}minimum-cohort is {least}, and the strategy invites {invited} clients; let it sample more"
            )
        update = task.update
        return plan_enclave(
            task=task.task.encode(),
            layout=update.layout,
            tables=update.tables,
            capacity=update.capacity,
            authority=Authority(task.roster.authority),
            minimum_cohort=least,
            maximum_cohort=invited,
            now=datetime.now(UTC),
            suite=SUITES[settings.suite],
            maximum_weight=task.maximum_weight,
        )

    def _start(
        self, configuration: EnclaveConfiguration, stack: ExitStack
    ) -> tuple[EnclaveOffer, Evidence | SimulatedEvidence, EnclaveConnection]:
        """Start an epoch, in the process behind the socket or simulated in this one."""
        path = self._task.settings.enclave_socket
        if path:
            try:
                remote = stack.enter_context(RemoteEnclave(Path(path)))
            except OSError as error:
                raise InvalidParameters(
                    f"{PREFIX}enclave-socket is {path}, and nothing answers there ({error}); start "
                    f"`secagg enclave serve --socket {path}`"
                ) from None
            return *remote.start(configuration), remote
        LOG.warning(
            "a simulated enclave protects no client from this server; %senclave-socket names a real one", PREFIX
        )
        enclave = SimulatedEnclave(configuration, coins=self._coins)
        return enclave.offer, enclave.evidence, enclave


def _document(evidence: Evidence | SimulatedEvidence) -> tuple[str, bytes]:
    if isinstance(evidence, SimulatedEvidence):
        return SIMULATED, evidence.binding
    return evidence.format.value, evidence.document
