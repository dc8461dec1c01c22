"""One round on the server: open a session, carry its messages through Flower, and decode the sum.

It knows no protocol. The strategy's own messages, with the model, go out with the stage that takes the updates, so that
clients train last and hold no update while anything else is waited for.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from secagg.compression.model_update import ModelUpdate, encode_parameters
from secagg.contract import Aggregate
from secagg.crypto.entropy import Coins
from secagg.errors import Misuse, PeerError, PeerMisbehaved, Reason, SecAggError, ThresholdNotMet
from secagg.flower.keys.identities import Roster
from secagg.flower.logs import LOG
from secagg.flower.model_tensors import METRICS, Arrays, model_digest
from secagg.flower.noise import noise_settings
from secagg.flower.plugs import ServerSide, plug_of
from secagg.flower.schemes import COARSE, part, steps_in, taken_told, value_bounds
from secagg.flower.settings import SecAggSettings
from secagg.identifiers import ClientId
from secagg.privacy.client_noise import ClientNoise, noise_in
from secagg.session.patience import Limits, Patience
from secagg.session.registry import find
from secagg.session.roles import ServerSession, Stage, Subject

from .records import ADVICE, Left, Terms, claimed_client, code_in, message_in, protocol_bytes, with_message
from .trained_update import FINER

_SHORTEST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.5
_PAUSE_SHARE: Final = 1 / 32
"""Answers are asked for so often that none waits longer than this share of the stage's time until then."""
_LEAST_PATIENCE: Final = 5.0
_FOR_EVER: Final = float("inf")
_KILO: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTask:
    """What a round is about."""

    settings: SecAggSettings
    roster: Roster | None
    task: str
    round_number: int
    weighted_by: str
    metrics: tuple[str, ...]
    sent: Arrays
    update: ModelUpdate
    joined: tuple[str, ...] = ()
    """The tensors that travel as one vector."""

    @property
    def terms(self) -> Terms:
        """What clients are told."""
        settings = self.settings
        return Terms(
            protocol=settings.protocol,
            is_certified=settings.is_certified,
            weighted_by=self.weighted_by,
            weighting=settings.weighting,
            weight_unit=settings.weight_unit,
            maximum_weight=settings.maximum_weight,
            metrics=self.metrics,
            joined=self.joined,
            round_number=self.round_number,
            task=self.task,
            parameters=encode_parameters(self.update),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """What a round gives: means alone."""

    mean: Mapping[str, npt.NDArray[Any]]
    told: Mapping[str, float]
    """What clients told of their tensors, as scales of the next round."""
    metrics: dict[str, float]
    contributors: int
    total_weight: int
    carrier: Message
    """An answer of the last stage, which carries the result to the strategy."""
    failures: list[Message]


@dataclass(slots=True)
class StageCount:
    """What one stage carried."""

    sent: int = 0
    received: int = 0
    refused: int = 0
    """Answers that the protocol does not accept."""
    left: Counter[Left] = field(default_factory=Counter[Left])
    """Clients that left, or raised an error, by what they said of it."""
    bytes_down: int = 0
    bytes_up: int = 0
    largest_up: int = 0
    """The bytes of the largest answer."""
    seconds: float = 0.0

    @property
    def failed(self) -> int:
        """How many left, or raised an error."""
        return self.left.total()

    @property
    def late(self) -> int:
        """How many did not answer at all."""
        return self.sent - self.received - self.refused - self.failed

    def __str__(self) -> str:
        dropped = self.sent - self.received
        text = (
            f"sent {self.sent} ({self.bytes_down / _KILO:.1f} kB), received {self.received} "
            f"({self.bytes_up / _KILO:.1f} kB), dropped {dropped}, in {self.seconds:.1f} s"
        )
        reasons = [f"{count} left: {code}" for code, count in sorted(self.left.items())]
        reasons += [f"{count} {name}" for name, count in (("refused", self.refused), ("silent", self.late)) if count]
        return f"{text} ({', '.join(reasons)})" if reasons else text


class ServerRound:
    """One session over a grid."""

    def __init__(self, task: RoundTask, grid: Grid, message_type: str, group_id: str, coins: Coins) -> None:
        """Hold everything for one round; ``run`` once."""
        self._task, self._grid, self._coins = task, grid, coins
        self._kind = message_type, group_id
        self._terms = task.terms
        self._nodes = dict[ClientId, int]()
        self._failures = list[Message]()
        self._carrier: Message | None = None
        self.stages = list[tuple[str, StageCount]]()
        """What each stage carried, so far."""

    def run(self, invited: Sequence[Message], timeout: float | None) -> RoundResult:
        """Carry a session through, and return the means.

        Args:
            invited: the strategy's own messages, one for each node.
            timeout: for the first stage and for training; the others have that of the settings.
        Raises:
            ThresholdNotMet: too few stayed; nothing is learned, and the model stays as it was.
            SecAggError: the session could not be planned, or its sum is wrong.
            ConnectionError: a helper of the server is lost.
        """
        models = {message.metadata.dst_node_id: message.content for message in invited}
        try:
            with ExitStack() as resources:
                session = self._opened(models, resources)
                resources.callback(session.abort)
                try:
                    self._run_stages(session, models, timeout or _FOR_EVER)
                    aggregate = session.release().aggregate
                finally:
                    for fault in session.faults:
                        blamed = ", ".join(map(str, fault.culprits)) or "nobody for certain"
                        LOG.warning("%s (to blame: %s)", fault, blamed)
        except (SecAggError, ConnectionError) as error:
            LOG.error("round %d failed, and nothing of it was learned: %s", self._task.round_number, error)
            raise
        if self._carrier is None:
            raise ThresholdNotMet(needed=1, present=0, what="answers of the last stage")
        return self._result(aggregate, self._carrier)

    def _opened(self, models: Mapping[int, RecordDict], resources: ExitStack) -> ServerSession:
        task = self._task
        update, roster = task.update, task.roster
        find(task.settings.protocol).require_segments(update.layout)
        subject = Subject(
            task=task.task.encode(),
            round_number=task.round_number,
            layout=update.layout,
            capacity=update.capacity,
            tables=update.tables,
            terms=self._terms.digest,
            model_digest=model_digest(task.sent),
        )
        side = ServerSide(
            settings=task.settings,
            subject=subject,
            population=len(models),
            invited=frozenset(map(ClientId, models)) if roster is None else None,
            roster=roster,
            bounds=value_bounds(update),
            noise=noise_settings(task.settings.noise, task.settings.norm, update),
            coins=self._coins,
            clock=lambda: datetime.now(UTC),
            resources=resources,
        )
        return plug_of(task.settings.protocol).open(side)

    def _say_noise(self, session: ServerSession) -> None:
        """Say what the noise costs, before an update is asked for."""
        if isinstance(noise := noise_in(session), ClientNoise):
            # A client may have been in every round so far.
            for line in noise.sentences(releases=self._task.round_number):
                LOG.info("round %d, %s", self._task.round_number, line)
        elif self._task.settings.noise:
            raise Misuse("the session was to have its clients' noise, and has none")

    def _run_stages(self, session: ServerSession, models: Mapping[int, RecordDict], timeout: float) -> None:
        is_first = True
        while (stage := session.stage) is not None:
            if is_first:
                messages = {node: with_message(session.invitation, terms=self._terms) for node in models}
            else:
                due = {node: session.message_to(client) for client, node in self._nodes.items()}
                messages = {node: with_message(message) for node, message in due.items() if message is not None}
            if stage.takes_update:
                self._say_noise(session)
                messages = {node: RecordDict({**models[node], **content}) for node, content in messages.items()}
            # The first message of a run may have to start a simulation, or to install the app on a node.
            limit = timeout if is_first or stage.takes_update else self._task.settings.stage_timeout
            count = self._exchanged(session, stage, messages, limit)
            self.stages.append((stage.name, count))
            LOG.info("round %d, %s: %s", self._task.round_number, stage.name, count)
            for code in sorted(count.left):
                LOG.warning("%d clients left with code %r: %s", count.left[code], str(code), ADVICE[code])
            if stage.takes_update:
                self._require_threshold(len(models), count)
            session.close_stage()
            is_first = False

    def _exchanged(
        self, session: ServerSession, stage: Stage, contents: dict[int, RecordDict], limit: float
    ) -> StageCount:
        """Send to each node, and hand every answer over as soon as it is there; it is not kept."""
        began, count = time.monotonic(), StageCount(sent=len(contents))
        count.bytes_down = sum(map(protocol_bytes, contents.values()))
        kind, group = self._kind
        waiting = set(
            self._grid.push_messages(
                [Message(content, node, kind, group_id=group) for node, content in contents.items()]
            )
        )
        contents.clear()
        limits = Limits(
            exchange=limit, training=limit, patience=self._task.settings.stage_patience, least=_LEAST_PATIENCE
        )
        patience = Patience(stage, limits, time.monotonic)
        while waiting and not patience.is_over(session.turnout):
            for reply in list(self._grid.pull_messages(waiting)):
                waiting.discard(reply.metadata.reply_to_message_id)
                self._take(session, reply, count)
            if waiting and (left := patience.left(session.turnout)):
                pause = max(_SHORTEST_PAUSE, _PAUSE_SHARE * (time.monotonic() - began))
                time.sleep(min(pause, _LONGEST_PAUSE, left))
        count.seconds = time.monotonic() - began
        return count

    def _take(self, session: ServerSession, reply: Message, count: StageCount) -> None:
        node = reply.metadata.src_node_id
        if reply.has_error():
            count.left[code_in(reply)] += 1
            self._failures.append(reply)
            LOG.debug("node %d: %s", node, reply.error.reason)
            for client in [client for client, known in self._nodes.items() if known == node]:
                session.drop(client)
            if self._task.roster is None:
                session.drop(ClientId(node))
            return
        size = protocol_bytes(reply.content)
        count.bytes_up += size
        count.largest_up = max(count.largest_up, size)
        try:
            client = self._introduced(reply)
            session.receive(client, message_in(reply.content))
        except SecAggError as error:
            count.refused += 1
            culprits = ", ".join(map(str, error.culprits)) if isinstance(error, PeerError) else ""
            LOG.warning("node %d is left out: %s%s", node, error, f" (to blame: {culprits})" if culprits else "")
            return
        self._nodes[client] = node
        count.received += 1
        reply.content = RecordDict()
        self._carrier = reply

    def _introduced(self, reply: Message) -> ClientId:
        """Return which client a node is: itself, or the certified one that it says; the session checks the claim."""
        node, roster = reply.metadata.src_node_id, self._task.roster
        client = ClientId(node) if roster is None else claimed_client(reply.content)
        if roster is not None and client not in roster.clients:
            raise _not_eligible(client, "is not on the roster; hand out a new one, or remove the node")
        if self._nodes.get(client, node) != node:
            raise _not_eligible(client, "is answered for by two nodes; give each node a key of its own")
        return client

    def _require_threshold(self, invited: int, count: StageCount) -> None:
        """Hold a round to the threshold that was configured, whatever the protocol's own least is."""
        settings = self._task.settings
        needed = invited - settings.tolerated_dropouts(invited)
        if settings.threshold and count.received < needed:
            raise ThresholdNotMet(needed=needed, present=count.received, what="clients (secagg-threshold)")

    def _result(self, aggregate: Aggregate, carrier: Message) -> RoundResult:
        task = self._task
        mean = task.update.mean(aggregate)
        vector, told = mean.pop(METRICS), taken_told(mean, task.sent)
        part(mean, task.joined, task.sent)
        # With noise it is noise.
        if vector[0] and not task.settings.noise:
            LOG.warning("%.3g of the clients' values were out of range and cut off; raise secagg-clip", vector[0])
        if (steps := steps_in(task.update, mean)) < COARSE / np.sqrt(aggregate.contributors):
            LOG.warning("the mean change is about %.2g steps, and the rest is noise; %s", steps, FINER)
        LOG.info(
            "round %d, sum: %d clients of total weight %d",
            task.round_number,
            aggregate.contributors,
            aggregate.total_weight,
        )
        return RoundResult(
            mean=mean,
            told=told,
            metrics=dict(zip(task.metrics, map(float, vector[1:]), strict=True)),
            contributors=aggregate.contributors,
            total_weight=aggregate.total_weight,
            carrier=carrier,
            failures=self._failures,
        )


def _not_eligible(client: ClientId, sentence: str) -> PeerMisbehaved:
    return PeerMisbehaved(f"{client} {sentence}", reason=Reason.NOT_ELIGIBLE, culprits={client})
