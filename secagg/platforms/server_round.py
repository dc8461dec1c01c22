"""One round on a platform's server: opens a session, carries its messages, and returns the sum.

Independent of protocol and platform; a platform's subclass sends the messages of a stage and returns the replies.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, TypeVar

from secagg.blame import unverified
from secagg.contract import Aggregate
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.labels import Label
from secagg.errors import NOBODY, PeerError, PeerMisbehaved, Reason, SecAggError, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.session.certificates import verify_signature
from secagg.session.roles import ServerSession, Stage
from secagg.session.run import Limits, Patience

from . import LOG, Left, StageCount
from .round_task import RoundTask
from .terms import (
    NEWEST_FORM,
    Record,
    client_in,
    malformed,
    message_in,
    newest_form_in,
    record_bytes,
    record_of,
    signature_in,
)

Node = TypeVar("Node", bound=Hashable)
_LEAST_PATIENCE: Final = 5.0
FOR_EVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a node."""

    message: bytes
    client: ClientId
    """The client that the node claims to be."""
    signature: bytes
    """The client's signature over the terms, the form and the message."""
    size: int
    newest_form: bytes = NEWEST_FORM
    """Newest form of messages that the client speaks, in a byte."""

    @classmethod
    def of(cls, record: object) -> Answer:
        parts = message_in(record), client_in(record), signature_in(record)
        return cls(*parts, record_bytes(record), newest_form_in(record))


Reply = Callable[[], Answer | Left | None]
"""Reads a node's reply: an answer, a reason for leaving, or None if the platform lost the node."""


class ServerRound(ABC, Generic[Node]):
    """One session over a platform's nodes."""

    own_timeout: ClassVar[str] = "the timeout of training"
    """Name of the setting for the first stage's and training's seconds on this platform."""
    if_foreign: ClassVar[str] = ""
    """Advice if no client answers with this protocol."""

    def __init__(
        self,
        task: RoundTask,
        *,
        first: float | None = None,
        training: float = FOR_EVER,
        training_patience: float | None = None,
    ) -> None:
        """Create a round; call ``carried`` once.

        Args:
            first: seconds for the first stage, if they differ from the other stages.
            training: seconds for the training stage.
            training_patience: once enough have trained, the wait for the others, as a multiple of that time.
        """
        self.task, self._about = task, task.terms.digest
        self._first, self._training, self._training_patience = first, training, training_patience
        self._nodes = dict[ClientId, Node]()
        self._own = dict[Node, ClientId]()
        self._forms = dict[ClientId, int]()
        self._answered = set[Node]()
        """Nodes whose answer to the stage counts."""
        self._awaited = 0
        """Number of nodes that had not answered when the last stage ended."""
        self.stages = list[tuple[str, StageCount]]()
        self.has_asked = False
        """Whether clients were asked for updates, which they may have sent."""

    @abstractmethod
    def send(self, records: Mapping[Node, Record], *, takes_update: bool) -> Iterable[Node]:
        """Send each node its record, with the model if updates are wanted; return the nodes that received one."""

    @abstractmethod
    def heard(self, seconds: float) -> Iterable[tuple[Node, Reply]]:
        """Yield the replies that arrive within ``seconds`` seconds."""

    def end_stage(self) -> None:
        """Stop accepting answers to the stage."""

    def carried(self, nodes: Mapping[Node, ClientId]) -> Aggregate:
        """Run a session, and return its sum.

        Args:
            nodes: invited nodes, with the client of each one if clients have no keys.
        Raises:
            ThresholdNotMet: too few clients stayed; the server learns nothing, and the model is unchanged.
            SecAggError, ConnectionError: the session could not be planned, its sum is wrong, or a helper is lost.
        """
        self._own = dict(nodes)
        try:
            with ExitStack() as resources:
                session = self.task.opened(len(nodes), frozenset(nodes.values()), SystemCoins(), resources)
                resources.callback(session.abort)
                try:
                    self._run_stages(session)
                    aggregate = session.release().aggregate
                    self.task.say_if_noise_alone(session, aggregate)
                    return aggregate
                finally:
                    for fault in session.faults:
                        blamed = ", ".join(map(str, fault.culprits)) or "nobody for certain"
                        LOG.warning("%s (to blame: %s)", fault, blamed)
        except (SecAggError, ConnectionError) as error:
            LOG.error("round %d failed, and the server learned nothing: %s", self.task.terms.round_number, str(error))
            raise

    def _run_stages(self, session: ServerSession) -> None:
        is_first = True
        while (stage := session.stage) is not None:
            if is_first:
                messages: Mapping[Node, bytes | None] = dict.fromkeys(self._own, session.invitation)
            else:
                messages = {node: session.message_to(client) for client, node in self._nodes.items()}
            if stage.takes_update:
                self.task.say_noise(session)
                self.has_asked = True
            settings = self.task.settings
            limits = Limits(
                exchange=settings.stage_timeout if self._first is None or not is_first else self._first,
                training=self._training,
                patience=settings.stage_patience,
                training_patience=self._training_patience,
                least=_LEAST_PATIENCE,
            )
            terms = self.task.terms if is_first else None
            records = {node: record_of(message, terms=terms) for node, message in messages.items() if message}
            if (held := self.task.held if stage.takes_update else None) is not None:
                records = {node: {**record, **held.record(node)} for node, record in records.items()}
            count = self._exchanged(session, stage, records, Patience(stage, limits, time.monotonic))
            if held is not None:
                held.answered(self._answered)
            self.stages.append((stage.name, count))
            LOG.info("round %d, %s: %s", self.task.terms.round_number, stage.name, count)
            if is_first:
                spoken = ", ".join(f"{form}: {n}" for form, n in sorted(Counter(self._forms.values()).items()))
                LOG.info("clients by the newest form of messages that they support: %s", spoken or "none")
            for sentence in count.advice:
                LOG.warning("%s", sentence)
            try:
                if stage.takes_update:
                    self.task.require_threshold(len(self._own), count.received)
                session.close_stage()
            except ThresholdNotMet as error:
                is_foreign = is_first and count.left[Left.FOREIGN] == len(records)
                name = self.own_timeout if is_first or stage.takes_update else "secagg-stage-timeout"
                seconds = limits.training if stage.takes_update else limits.exchange
                late = f"{self._awaited} did not answer within {seconds:g} s: raise {name}"
                is_late = self._awaited > 0 and count.seconds >= seconds
                raise error.because(late if is_late else "", self.if_foreign if is_foreign else "") from None
            is_first = False

    def _exchanged(
        self, session: ServerSession, stage: Stage, records: Mapping[Node, Record], patience: Patience
    ) -> StageCount:
        """Send each node its message, and pass every answer to the session when it arrives."""
        began = time.monotonic()
        self._answered.clear()
        count = StageCount(sent=len(records), bytes_down=sum(map(record_bytes, records.values())))
        try:
            waiting = {*self.send(records, takes_update=stage.takes_update)}
            for node in records.keys() - waiting:
                LOG.warning("could not send to node %s", node)
                self._drop(session, node)
            while waiting and (left := patience.left(session.participation)):
                for node, read in self.heard(left):
                    if node in waiting:
                        waiting.discard(node)
                        self._take(session, node, read, count)
            self._awaited = len(waiting)
        finally:
            self.end_stage()
        count.seconds = time.monotonic() - began
        return count

    def _take(self, session: ServerSession, node: Node, read: Reply, count: StageCount) -> None:
        """Pass a node's reply to the session; the reply can be anything."""
        try:
            answer = _readable(read)
            if not isinstance(answer, Answer):
                if answer is None:
                    LOG.warning("node %s is lost", node)
                else:
                    count.left[answer] += 1
                self._drop(session, node)
                return
            count.took(answer.size)
            client = self._introduced(node, answer)
            session.receive(client, answer.message)
        except SecAggError as error:
            count.refused += 1
            culprits = ", ".join(map(str, error.culprits)) if isinstance(error, PeerError) else ""
            LOG.warning("node %s is excluded: %s%s", node, str(error), f" (to blame: {culprits})" if culprits else "")
            return
        self._nodes[client] = node
        self._forms[client] = answer.newest_form[0]
        self._answered.add(node)
        count.received += 1

    def _drop(self, session: ServerSession, node: Node) -> None:
        for client in [client for client, known in self._nodes.items() if known == node]:
            session.drop(client)
        if self.task.roster is None and node in self._own:
            session.drop(self._own[node])

    def _introduced(self, node: Node, answer: Answer) -> ClientId:
        """Return the client of a node: the node itself, or the certified client that signed the answer.

        A session trusts its transport to name the sender, and excludes the named client if the answer is garbage.
        """
        client = self._own.get(node)
        if client is None:
            raise not_eligible("nobody", "was invited under this name; the platform names the nodes that take part")
        if (roster := self.task.roster) is not None:
            client = answer.client
            if client not in roster.clients:
                raise not_eligible(client, "is not on the roster; distribute a new roster, or remove the node")
            key = roster.certificates[client].public_key
            parts = self._about, answer.newest_form, answer.message
            verify_signature(key, answer.signature, Label.PLATFORM_ANSWER, *parts)
        if self._nodes.get(client, node) != node:
            raise not_eligible(client, "is answered for by two nodes; give each node its own key")
        return client


def _readable(read: Reply) -> Answer | Left | None:
    try:
        return read()
    except SecAggError:
        raise
    except Exception:  # noqa: BLE001 -- what another party sent can be wrong in any way
        raise malformed("answer") from None


def not_eligible(client: object, sentence: str) -> PeerMisbehaved:
    """Return the error of an answer that does not count."""
    culprits = unverified(client) if isinstance(client, ClientId) else NOBODY
    return PeerMisbehaved(f"{client} {sentence}", reason=Reason.NOT_ELIGIBLE, culprits=culprits)
