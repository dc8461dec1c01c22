"""One round on the server: plan a session, carry its messages through Flower, and decode the sum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy.typing as npt
from flwr.app import Message, RecordDict

from secagg.compression.model_update import ModelUpdate, encode_parameters
from secagg.entropy import Coins
from secagg.errors import MalformedMessage, PeerMisbehaved, Reason, SecAggError, ThresholdNotMet
from secagg.flower.exchange import Exchange, StageCount
from secagg.flower.identities import Roster
from secagg.flower.logs import LOG
from secagg.flower.model_tensors import METRICS, Arrays, model_digest
from secagg.flower.records import RECORD, Invitation, message_in, with_message
from secagg.flower.settings import GRAPHS, MODES, SUITES, SecAggSettings
from secagg.identifiers import ClientId
from secagg.protocols.pairwise_mask import Server, ServerState, SessionPlan, plan_session
from secagg.protocols.pairwise_mask.advertisement import KeyAdvertisement
from secagg.protocols.pairwise_mask.configuration import NO_AUTHORITY

STAGES: Final = {
    ServerState.AWAITING_KEY_ADVERTISEMENTS: "train and advertise keys",
    ServerState.AWAITING_ENCRYPTED_SHARES: "share keys",
    ServerState.AWAITING_MASKED_INPUTS: "masked input",
    ServerState.AWAITING_SURVIVOR_SIGNATURES: "consistency check",
    ServerState.AWAITING_UNMASKING_SHARES: "unmasking",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTask:
    """What a round is about."""

    settings: SecAggSettings
    roster: Roster | None
    task: str
    round_number: int
    weighted_by: str
    sent: Arrays
    update: ModelUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What a round gives: means alone."""

    mean: Mapping[str, npt.NDArray[Any]]
    metrics: dict[str, float]
    contributors: int
    total_weight: int
    carrier: Message
    """An answer of the last stage, which carries the result to the strategy."""
    failures: list[Message]


class SecureRound:
    """One session over a grid."""

    def __init__(self, task: RoundTask, exchange: Exchange, coins: Coins) -> None:
        """Hold everything for one round; ``run`` once."""
        self._task = task
        self._exchange = exchange
        self._coins = coins
        self._nodes = dict[ClientId, int]()
        self.stages = list[tuple[str, StageCount]]()
        """What each stage carried, so far."""
        self._failures = list[Message]()
        self._carrier: Message | None = None

    def run(self, invited: Sequence[Message], timeout: float | None) -> RoundResult:
        """Carry a session through, and return the means.

        Args:
            invited: the strategy's own messages, one for each node.
            timeout: for training; the stages after it have the timeout of the settings.
        Raises:
            ThresholdNotMet: too few stayed; nothing is learned, and the model stays as it was.
            SecAggError: the session could not be planned, or its sum is wrong.
        """
        settings = self._task.settings
        try:
            plan = self._plan(len(invited))
            server = Server(plan)
            invitation = self._invitation(server)
            contents = {
                message.metadata.dst_node_id: RecordDict({**message.content, RECORD: invitation.to_record()})
                for message in invited
            }
            self._stage(server, contents, timeout=timeout)
            while _is_open(server):
                outgoing = server.close_round()
                contents = {self._nodes[one.receiver]: with_message(one.message) for one in outgoing}
                # In a sparse graph it matters who answers in the last stage, and not only how many.
                is_counted = _is_open(server) or settings.graph == "full"
                enough = max(server.configuration.minimum_cohort, server.configuration.quorum)
                self._stage(server, contents, timeout=settings.stage_timeout, enough=enough if is_counted else None)
            self._require_contributors(server)
            try:
                aggregate = server.unmask()
            finally:
                for fault in server.faults:
                    LOG.warning("%s (to blame: %s)", fault, ", ".join(map(str, fault.culprits)) or "nobody for certain")
        except SecAggError as error:
            LOG.error("round %d failed, and nothing of it was learned: %s", self._task.round_number, error)
            raise
        mean = self._task.update.mean(aggregate)
        vector = mean.pop(METRICS)
        if vector[0]:
            LOG.warning("%.3g of the clients' values were out of range and cut off; raise secagg-clip", vector[0])
        if self._carrier is None:
            raise ThresholdNotMet(needed=1, present=0, what="answers of the last stage")
        LOG.info(
            "round %d, sum: %d clients of total weight %d, and nothing else is revealed",
            self._task.round_number,
            aggregate.contributors,
            aggregate.total_weight,
        )
        return RoundResult(
            mean=mean,
            metrics=dict(zip(self._task.settings.metric_names, map(float, vector[1:]), strict=True)),
            contributors=aggregate.contributors,
            total_weight=aggregate.total_weight,
            carrier=self._carrier,
            failures=self._failures,
        )

    def _plan(self, invited: int) -> SessionPlan:
        settings, task = self._task.settings, self._task
        tolerated = settings.tolerated_dropouts(invited)
        # In a full graph a client that never advertises is as one that drops out later. A sparse graph is planned for
        # both, half and half.
        late = tolerated if settings.graph == "full" else (tolerated + 1) // 2
        return plan_session(
            task.update.layout,
            self._coins,
            population=invited,
            corrupted=settings.corrupted,
            dropped=tolerated - late,
            late=late,
            mode=MODES[settings.mode],
            suite=SUITES[settings.suite],
            topology=GRAPHS[settings.graph],
            authority=task.roster.authority if task.roster else NO_AUTHORITY,
            minimum_cohort=settings.minimum_cohort or None,
            maximum_weight=settings.maximum_weight if settings.weighting == "examples" else 1,
            privacy_bits=settings.privacy_bits,
            task=task.task.encode(),
            model_digest=model_digest(task.sent),
            round_number=task.round_number,
            application_digest=self._invitation_of(b"").application_digest,
        )

    def _invitation(self, server: Server) -> Invitation:
        return self._invitation_of(server.offer)

    def _invitation_of(self, offer: bytes) -> Invitation:
        settings = self._task.settings
        return Invitation(
            offer=offer,
            parameters=encode_parameters(self._task.update) if offer else b"",
            weighted_by=self._task.weighted_by,
            weighting=settings.weighting,
            weight_unit=settings.weight_unit,
            maximum_weight=settings.maximum_weight,
            metrics=settings.metric_names,
            round_number=self._task.round_number,
            task=self._task.task,
        )

    def _stage(
        self, server: Server, contents: Mapping[int, RecordDict], *, timeout: float | None, enough: int | None = None
    ) -> None:
        name, first = STAGES[server.state], server.state is ServerState.AWAITING_KEY_ADVERTISEMENTS

        def accept(reply: Message) -> None:
            node, message = reply.metadata.src_node_id, message_in(reply.content)
            sender = self._introduce(node, message, server) if first else self._client_of(node)
            server.receive(sender, message)
            reply.content = RecordDict()
            self._carrier = reply

        patience = self._task.settings.stage_patience
        count = self._exchange.run(contents, accept, timeout=timeout, enough=enough, patience=patience)
        self._failures += count.failures
        count.failures = []
        self.stages.append((name, count))
        LOG.info("round %d, %s: %s", self._task.round_number, name, count)

    def _introduce(self, node: int, message: bytes, server: Server) -> ClientId:
        """Return which client a node is: itself, or in active mode the certified one for which it signed."""
        if self._task.roster is None:
            client = ClientId(node)
        else:
            # Who signed is checked by the session; here it is only read, so that two nodes are not one client.
            client = KeyAdvertisement.decode(message, server.configuration).client
            if client not in self._task.roster.clients:
                raise _not_eligible(client, "is not on the roster; hand out a new one, or remove the node")
        if self._nodes.setdefault(client, node) != node:
            raise _not_eligible(client, "is answered for by two nodes; give each node a key of its own")
        return client

    def _client_of(self, node: int) -> ClientId:
        for client, known in self._nodes.items():
            if known == node:
                return client
        raise MalformedMessage(f"node {node} answers and was not asked", reason=Reason.NOT_ELIGIBLE)

    def _require_contributors(self, server: Server) -> None:
        """Hold a sparse session to the threshold that was configured; a full one is planned so."""
        invited = self.stages[0][1].sent
        needed = invited - self._task.settings.tolerated_dropouts(invited)
        uploads = next(count.received for name, count in self.stages if name == "masked input")
        if self._task.settings.threshold and uploads < needed:
            server.abort()
            raise ThresholdNotMet(needed=needed, present=uploads, what="clients (secagg-threshold)")


def _is_open(server: Server) -> bool:
    """Whether another round follows the one that is open."""
    return server.state is not ServerState.AWAITING_UNMASKING_SHARES


def _not_eligible(client: ClientId, sentence: str) -> PeerMisbehaved:
    return PeerMisbehaved(f"{client} {sentence}", reason=Reason.NOT_ELIGIBLE, culprits={client})
