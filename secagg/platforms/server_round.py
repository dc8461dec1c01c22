"""One round on a platform's server: open a session, carry its messages, and return the sum.

It knows no protocol and no platform; a platform's own round sends the messages of a stage and hands its answers over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from secagg.contract import Aggregate
from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label
from secagg.errors import PeerError, PeerMisbehaved, Reason, SecAggError
from secagg.identifiers import ClientId
from secagg.session.certificates import verify_signature
from secagg.session.patience import Limits
from secagg.session.roles import ServerSession, Stage

from .leaving import Left, StageCount
from .logs import LOG
from .round_task import RoundTask
from .terms import Terms

Node = TypeVar("Node", bound=Hashable)
_LEAST_PATIENCE: Final = 5.0
FOR_EVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a node answered."""

    message: bytes
    client: ClientId | None
    """Who it says that it is of, where clients have keys."""
    signature: bytes
    """The client's, over the terms and the message."""
    size: int


class ServerRound(ABC, Generic[Node]):
    """One session over a platform's nodes."""

    def __init__(self, task: RoundTask, coins: Coins) -> None:
        """Hold everything for one round; ``carried`` once."""
        self.task, self._coins, self._about = task, coins, task.terms.digest
        self._nodes = dict[ClientId, Node]()
        self._own = dict[Node, ClientId]()
        self.stages = list[tuple[str, StageCount]]()
        """What each stage carried, so far."""

    @abstractmethod
    def exchanged(
        self, session: ServerSession, stage: Stage, messages: Mapping[Node, bytes], terms: Terms | None
    ) -> StageCount:
        """Send to each node its message, and hand over every answer as soon as it is there; ``terms`` go first."""

    def carried(self, nodes: Mapping[Node, ClientId]) -> Aggregate:
        """Carry a session through.

        Args:
            nodes: who is invited, and which client each is where clients have no keys.
        Raises:
            ThresholdNotMet: too few stayed; nothing is learned, and the model stays as it was.
            SecAggError: the session could not be planned, or its sum is wrong.
            ConnectionError: a helper of the server is lost.
        """
        self._own = dict(nodes)
        try:
            with ExitStack() as resources:
                session = self.task.opened(len(nodes), frozenset(nodes.values()), self._coins, resources)
                resources.callback(session.abort)
                try:
                    self._run_stages(session)
                    return session.release().aggregate
                finally:
                    for fault in session.faults:
                        blamed = ", ".join(map(str, fault.culprits)) or "nobody for certain"
                        LOG.warning("%s (to blame: %s)", fault, blamed)
        except (SecAggError, ConnectionError) as error:
            LOG.error("round %d failed, and nothing of it was learned: %s", self.task.round_number, error)
            raise

    def limits(self, *, exchange: float, training: float, training_patience: float | None = None) -> Limits:
        """Return how long to wait for a stage, in seconds."""
        patience = self.task.settings.stage_patience
        return Limits(
            exchange=exchange,
            training=training,
            patience=patience,
            training_patience=training_patience,
            least=_LEAST_PATIENCE,
        )

    def _run_stages(self, session: ServerSession) -> None:
        terms: Terms | None = self.task.terms
        while (stage := session.stage) is not None:
            if terms is not None:
                messages = dict.fromkeys(self._own, session.invitation)
            else:
                due = {node: session.message_to(client) for client, node in self._nodes.items()}
                messages = {node: message for node, message in due.items() if message is not None}
            if stage.takes_update:
                self.task.say_noise(session)
            count = self.exchanged(session, stage, messages, terms)
            self.stages.append((stage.name, count))
            LOG.info("round %d, %s: %s", self.task.round_number, stage.name, count)
            for sentence in count.advice:
                LOG.warning("%s", sentence)
            if stage.takes_update:
                self.task.require_threshold(len(self._own), count.received)
            session.close_stage()
            terms = None

    def take(self, session: ServerSession, node: Node, read: Callable[[], Answer], count: StageCount) -> bool:
        """Hand an answer over; whether it was taken.

        Args:
            read: takes the answer out of what the platform carried; raises where it is none.
        """
        try:
            answer = read()
            count.took(answer.size)
            client = self._introduced(node, answer)
            session.receive(client, answer.message)
        except SecAggError as error:
            count.refused += 1
            culprits = ", ".join(map(str, error.culprits)) if isinstance(error, PeerError) else ""
            LOG.warning("node %s is left out: %s%s", node, error, f" (to blame: {culprits})" if culprits else "")
            return False
        self._nodes[client] = node
        count.received += 1
        return True

    def drop(self, session: ServerSession, node: Node, count: StageCount, code: Left | None = None) -> None:
        """Await a node no more: it left with a code, or its platform lost it."""
        if code is not None:
            count.left[code] += 1
        for client in [client for client, known in self._nodes.items() if known == node]:
            session.drop(client)
        if self.task.roster is None and node in self._own:
            session.drop(self._own[node])

    def _introduced(self, node: Node, answer: Answer) -> ClientId:
        """Return which client a node is: itself, or the certified one whose signature it shows.

        A session takes the word of its transport for who speaks, and would exclude whom garbage came in the name of.
        """
        client = self._own.get(node)
        if client is None:
            raise _not_eligible(None, "was invited under this name; a platform's nodes are those that it named")
        if (roster := self.task.roster) is not None:
            if answer.client is None or answer.client not in roster.clients:
                raise _not_eligible(answer.client, "is not on the roster; hand out a new one, or remove the node")
            client, key = answer.client, roster.certificates[answer.client].public_key
            verify_signature(key, answer.signature, Label.PLATFORM_ANSWER, self._about, answer.message)
        if self._nodes.get(client, node) != node:
            raise _not_eligible(client, "is answered for by two nodes; give each node a key of its own")
        return client


def _not_eligible(client: ClientId | None, sentence: str) -> PeerMisbehaved:
    culprits = set[ClientId]() if client is None else {client}
    return PeerMisbehaved(f"{client or 'nobody'} {sentence}", reason=Reason.NOT_ELIGIBLE, culprits=culprits)
