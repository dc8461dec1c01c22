"""One round of pairwise masks on the server: plan a session, carry its messages through Flower, and decode the sum.

Keys and shares are exchanged first, in small messages. The strategy's own messages, with the model, go out with the
stage that the upload answers, so that clients train last and hold no update while anything else is waited for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from flwr.app import Message, RecordDict

from secagg.crypto.entropy import Coins
from secagg.errors import MalformedMessage, PeerMisbehaved, Reason, SecAggError, ThresholdNotMet
from secagg.flower.model_tensors import model_digest
from secagg.flower.settings import GRAPHS, MODES, SUITES
from secagg.identifiers import ClientId
from secagg.protocols.pairwise_mask import Server, ServerState, SessionPlan, plan_session
from secagg.protocols.pairwise_mask.advertisement import KeyAdvertisement
from secagg.protocols.pairwise_mask.configuration import NO_AUTHORITY

from .exchange import Exchange, StageCount
from .logs import LOG
from .records import OFFER_STAGE, RECORD, TRAIN_STAGE, message_in, with_message
from .round_task import RoundResult, RoundTask, round_result

STAGES: Final = {
    ServerState.AWAITING_KEY_ADVERTISEMENTS: "advertise keys",
    ServerState.AWAITING_ENCRYPTED_SHARES: "share keys",
    ServerState.AWAITING_MASKED_INPUTS: "train and upload",
    ServerState.AWAITING_SURVIVOR_SIGNATURES: "consistency check",
    ServerState.AWAITING_UNMASKING_SHARES: "unmasking",
}


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
        try:
            server = Server(self._plan(len(invited)))
            models = {message.metadata.dst_node_id: message.content for message in invited}
            self._run_stages(server, models, timeout)
            self._require_contributors(server)
            try:
                aggregate = server.unmask()
            finally:
                for fault in server.faults:
                    LOG.warning("%s (to blame: %s)", fault, ", ".join(map(str, fault.culprits)) or "nobody for certain")
        except SecAggError as error:
            LOG.error("round %d failed, and nothing of it was learned: %s", self._task.round_number, error)
            raise
        if self._carrier is None:
            raise ThresholdNotMet(needed=1, present=0, what="answers of the last stage")
        return round_result(self._task, aggregate, self._carrier, self._failures)

    def _run_stages(self, server: Server, models: Mapping[int, RecordDict], timeout: float | None) -> None:
        settings = self._task.settings
        offer = self._task.invitation(server.offer).to_record(OFFER_STAGE)
        least = max(server.configuration.minimum_cohort, server.configuration.quorum)
        # The first message of a run may have to start a simulation, or to install the app on a node.
        self._stage(server, {node: RecordDict({RECORD: offer}) for node in models}, timeout, enough=least)
        while _is_open(server):
            outgoing = server.close_round()
            contents = {self._nodes[one.receiver]: with_message(one.message) for one in outgoing}
            if server.state is ServerState.AWAITING_MASKED_INPUTS:
                # Training has the strategy's own timeout, and nobody is hurried.
                contents = {node: self._with_model(content, models[node]) for node, content in contents.items()}
                self._stage(server, contents, timeout)
                continue
            # In a sparse graph it matters who answers in the last stage, and not only how many.
            is_counted = _is_open(server) or settings.graph == "full"
            enough = max(server.configuration.minimum_cohort, server.configuration.quorum) if is_counted else None
            self._stage(server, contents, settings.stage_timeout, enough=enough)

    def _with_model(self, content: RecordDict, model: RecordDict) -> RecordDict:
        """Return one message of the protocol together with what the strategy sends, and how to encode."""
        message = content.config_records[RECORD].get("message", b"")
        terms = self._task.invitation(b"").to_record(TRAIN_STAGE, message if isinstance(message, bytes) else b"")
        return RecordDict({**model, **content, RECORD: terms})

    def _plan(self, invited: int) -> SessionPlan:
        settings, task = self._task.settings, self._task
        tolerated = settings.tolerated_dropouts(invited)
        # In a full graph a client that never advertises is as one that drops out later. A sparse graph is planned for
        # both, half and half.
        late = tolerated if settings.graph == "full" else tolerated // 2
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
            privacy_bits=settings.privacy_bits or None,
            task=task.task.encode(),
            model_digest=model_digest(task.sent),
            round_number=task.round_number,
            application_digest=task.invitation(b"").application_digest,
        )

    def _stage(
        self, server: Server, contents: Mapping[int, RecordDict], timeout: float | None, *, enough: int | None = None
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
        uploads = next(
            count.received for name, count in self.stages if name == STAGES[ServerState.AWAITING_MASKED_INPUTS]
        )
        if self._task.settings.threshold and uploads < needed:
            server.abort()
            raise ThresholdNotMet(needed=needed, present=uploads, what="clients (secagg-threshold)")


def _is_open(server: Server) -> bool:
    """Whether another round follows the one that is open."""
    return server.state is not ServerState.AWAITING_UNMASKING_SHARES


def _not_eligible(client: ClientId, sentence: str) -> PeerMisbehaved:
    return PeerMisbehaved(f"{client} {sentence}", reason=Reason.NOT_ELIGIBLE, culprits={client})
