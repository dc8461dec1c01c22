"""Server side: a grid that turns a strategy's training messages into one session, and answers with the mean.

``strategy.start(grid=SecAggGrid(grid, context), ...)``. The strategy gets one reply: the resulting model, the means of
the metrics, and the total number of examples. Averaging over this reply is therefore exact. The config record
``secagg.left`` in that reply counts the messages of each stage and says why clients left. Evaluation is summed in the
same way if ``secagg-evaluation-metrics`` names metrics; everything else passes to the inner grid.

A failed round is skipped or ends the run, as ``secagg-on-failure`` says. Code that calls the grid without a strategy
gets the error.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import Any, Final

import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.server.workflow import DefaultWorkflow
from flwr.serverapp import Grid

from secagg.compression.model_update.arrays import Arrays, model_digest
from secagg.errors import InvalidParameters, Misuse, ThresholdNotMet
from secagg.flower.strategies import (
    calling_strategy,
    own_functions,
    require_sum_suffices,
    weight_key,
    write_where_flower_does,
)
from secagg.identifiers import ClientId
from secagg.platforms import Left, StageCount, stages_said
from secagg.platforms.failed_rounds import FAILURES, SKIPPED, FailedRounds
from secagg.platforms.round_task import Means, Rounds, RoundTask
from secagg.platforms.server_round import FOR_EVER, Answer, Reply, ServerRound, not_eligible
from secagg.platforms.settings import SecAggSettings
from secagg.platforms.terms import Record

from .client import LEFT_RECORD, LEGACY_ARRAYS, arrays_of, code_in, emptied, record_in, with_record
from .strategy_results import StrategyResults

# --- One round over a grid --------------------------------------------------------------------------------------------

_SHORTEST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.5
_PAUSE_SHARE: Final = 1 / 32
"""Polling interval, as a fraction of the stage's time so far."""


class GridRound(ServerRound[int]):
    """One session over a grid.

    The strategy's own messages, with the model, are sent in the stage that collects the updates, so that clients train
    last and hold no update during other waits.
    """

    own_timeout = "timeout= of strategy.start or of this call"
    if_foreign = "does the client app use ClientApp(mods=[SecAggMod()])?"

    def __init__(self, task: RoundTask, grid: Grid, invited: Sequence[Message], timeout: float | None) -> None:
        """Create a round; run it once.

        Args:
            invited: the strategy's own messages, one per node.
            timeout: seconds for training, and for the first stage, which may start a simulation or install the app.
        """
        super().__init__(task, first=timeout or FOR_EVER, training=timeout or FOR_EVER)
        self._grid = grid
        self._kind = invited[0].metadata.message_type, invited[0].metadata.group_id
        self._models = {message.metadata.dst_node_id: message.content for message in invited}
        self._asked = dict[str, int]()
        """Node whose answer is awaited, by message id."""
        self._began, self._has_looked = 0.0, False
        self.failures = list[Message]()
        self._carrier: Message | None = None

    def run(self) -> Means:
        aggregate = self.carried({node: ClientId(node) for node in self._models})
        return self.task.means(aggregate)

    def replies(self, content: RecordDict) -> list[Message]:
        """Return the strategy's replies: one answer of the last stage with the result, and the failures."""
        if self._carrier is None:
            raise ThresholdNotMet(needed=1, present=0, what="clients", must="answer the last stage")
        self._carrier.content = content
        return [self._carrier, *self.failures]

    def send(self, records: Mapping[int, Record], *, takes_update: bool) -> list[int]:
        kind, group = self._kind
        contents = {node: with_record(record) for node, record in records.items()}
        if takes_update:
            contents = {node: RecordDict({**self._models[node], **content}) for node, content in contents.items()}
        pushed = [Message(content, node, kind, group_id=group) for node, content in contents.items()]
        # For a message that a SuperLink refuses, some grids return nothing, and others an empty id.
        taken = {*self._grid.push_messages(pushed)}
        self._asked = {
            message.metadata.message_id: message.metadata.dst_node_id
            for message in pushed
            if message.metadata.message_id in taken
        }
        self._began, self._has_looked = time.monotonic(), False
        return list(self._asked.values())

    def heard(self, seconds: float) -> Iterator[tuple[int, Reply]]:
        if self._has_looked:
            pause = max(_SHORTEST_PAUSE, _PAUSE_SHARE * (time.monotonic() - self._began))
            time.sleep(min(pause, _LONGEST_PAUSE, seconds))
        self._has_looked = True
        for reply in list(self._grid.pull_messages({*self._asked})):
            # Flower's SuperLink itself answers for a node that is gone.
            node = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                yield node, partial(self._read, reply, node)

    def _read(self, reply: Message, node: int) -> Answer | Left:
        if reply.has_error():
            self.failures.append(reply)
            return code_in(reply)
        if (sender := reply.metadata.src_node_id) != node:
            raise not_eligible(f"node {sender}", "was not asked; a node can only answer for itself")
        if not record_in(reply.content):
            return Left.FOREIGN
        answer = Answer.of(record_in(reply.content))
        # Do not pass anything from this node to the strategy.
        reply.content = RecordDict()
        self._carrier = reply
        return answer


# --- The grid ---------------------------------------------------------------------------------------------------------

_ROUNDS, _COUNTING = dict[int, int](), Lock()
"""Number of rounds per run in this process; clients refuse repeated numbers, so all grids of a run share it."""


def next_round(run: int) -> int:
    """Return the number of the next session of a run."""
    with _COUNTING:
        _ROUNDS[run] = number = _ROUNDS.get(run, 0) + 1
    return number


def turn_in(message: Message, turns: int) -> int:
    """Return the round number from 0, as clients read it in the strategy's message: ``server-round`` - 1."""
    found = [record.get("server-round") for record in message.content.config_records.values()]
    numbers = [number - 1 for number in found if type(number) is int and number > 0]
    if turns > 1 and not numbers:
        raise InvalidParameters(
            "secagg-tensors has turns, which clients take by server-round, but the strategy's messages have none; "
            "use a strategy of flwr.serverapp, or tensors without a semicolon"
        )
    return numbers[0] if numbers else 0


class SecAggGrid(Grid):
    """Grid whose training rounds reveal only sums."""

    def __init__(
        self,
        grid: Grid,
        context: Context | None = None,
        *,
        settings: SecAggSettings | None = None,
        strategy: object | None = None,
    ) -> None:
        """Wrap a grid.

        Args:
            context: the server app's; its ``secagg-`` keys are the settings.
            settings: instead of the context's.
            strategy: the strategy that gets the replies (default: the caller).
        """
        write_where_flower_does()
        self.settings = settings or SecAggSettings.from_run_config(context.run_config if context else {})
        self.stages = list[tuple[str, StageCount]]()
        """Number of messages and of clients that left in the last round, per stage."""
        self._inner = grid
        self._strategy = strategy
        self._rounds = Rounds(self.settings)
        self.failed = FailedRounds(self.settings)
        """Count of failed rounds, and the decision after each."""
        self._results: StrategyResults | None = None
        if strategy is not None:
            self._require_sum_suffices(strategy)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Run a session for training messages; pass others to the inner grid.

        Raises:
            SecAggError: the round failed; the error ends the run, instead of continuing with an untrained model.
        """
        listed = list(messages)
        kinds = {message.metadata.message_type for message in listed}
        families = {kind.partition(".")[0] for kind in kinds}
        is_training = MessageType.TRAIN in families
        if MessageType.EVALUATE in families and not self.settings.evaluated_names:
            self._rounds.say_once(
                "evaluation is not aggregated securely: the server sees the metrics and examples of each client; "
                "name metrics in secagg-evaluation-metrics, or use fraction_evaluate=0.0"
            )
        elif MessageType.EVALUATE in families:
            is_training = True
        if not is_training:
            return self._inner.send_and_receive(listed, timeout=timeout)
        if len(kinds) > 1:
            raise Misuse(f"messages of several types at once: {', '.join(sorted(kinds))}; send one type at a time")
        return self._summed(listed, timeout, is_evaluation=MessageType.TRAIN not in families)

    def _summed(self, messages: list[Message], timeout: float | None, *, is_evaluation: bool) -> list[Message]:
        strategy = self._strategy or calling_strategy()
        if strategy is not None:
            self._require_sum_suffices(strategy)
        # A legacy strategy's workflow skips the round itself.
        if strategy is None or not hasattr(strategy, "aggregate_train"):
            return self._replies(messages, timeout, strategy, is_evaluation=is_evaluation)
        if self._results is None or self._results.strategy is not strategy:
            self._results = StrategyResults(strategy, self._restored)
        try:
            return self._replies(messages, timeout, strategy, is_evaluation=is_evaluation)
        except FAILURES as error:
            if self.failed.is_skipped(error):
                self._results.skip()
            else:
                self._results.stop()
            return []

    def _replies(
        self, messages: list[Message], timeout: float | None, strategy: object | None, *, is_evaluation: bool
    ) -> list[Message]:
        """Return the strategy's replies of a round, or raise the error that made it fail."""
        key, sent = self._common_model(messages)
        is_legacy = key == LEGACY_ARRAYS
        if is_evaluation and is_legacy:
            raise Misuse("the legacy API can only evaluate in the clear; remove secagg-evaluation-metrics")
        weighted_by = "num_examples" if is_legacy else weight_key(strategy)

        def carried(model: Arrays) -> tuple[GridRound, Means]:
            # A client keeps rounds of one run only, so each run is counted separately.
            run = self._inner.run.run_id
            task = self._rounds.begun(
                model,
                clients=len(messages),
                task=self._task,
                number=next_round(run),
                weighted_by=weighted_by,
                is_evaluation=is_evaluation,
                turn=turn_in(messages[0], self.settings.turns),
            )
            if task.held is not None or model is not sent:
                record = emptied(model, task.terms.joined if task.held else ())
                for message in messages:
                    message.content = RecordDict({**message.content, key: record})
            session = GridRound(task, self._inner, messages, timeout)
            self.stages = session.stages
            try:
                return session, session.run()
            except FAILURES as error:
                if not self.failed.is_retried(error, has_asked=session.has_asked):
                    raise
            return carried(model)

        session, means = carried(sent)
        self.failed.succeeded()
        self._rounds.say_of_bounds(means)
        examples, metrics = means.examples, {**means.metrics, **means.trainings}
        reported = MetricRecord({weighted_by: examples, **metrics})
        if is_evaluation:
            content = RecordDict({"metrics": reported})
            self._rounds.probe(sent, means, lambda model: carried(model)[1])
        else:
            model = arrays_of(self._rounds.model(session.task, means))
            whole = RecordDict({key: model, "metrics": reported})
            content = _legacy_content(key, model, metrics, examples) if is_legacy else whole
        content[LEFT_RECORD] = ConfigRecord(
            {**stages_said(self.stages), "sum": f"{means.contributors} clients, {means.counted.sentence}"}
        )
        return session.replies(content)

    def _require_sum_suffices(self, strategy: object) -> None:
        require_sum_suffices(strategy, sums_evaluation=bool(self.settings.evaluated_names))
        if found := own_functions(strategy):
            self._rounds.say_once(f"{', '.join(found)} receives one record, the means of all clients")

    @property
    def _task(self) -> str:
        return f"flower run {self._inner.run.run_id}"

    def _restored(self, record: ArrayRecord) -> ArrayRecord:
        """Return a strategy's model with its original dtypes, for the next round and for the result."""
        read = {name: array.numpy() for name, array in record.items()}
        before = self._rounds.with_dtypes(read, self._task)
        changed = {name: array for name, array in before.items() if array is not read[name]}
        return ArrayRecord({**record, **arrays_of(changed)}) if changed else record

    def _common_model(self, messages: list[Message]) -> tuple[str, dict[str, npt.NDArray[Any]]]:
        """Return the model that all messages hold, with its original dtypes.

        Strategies multiply every tensor by floats, so integers and booleans return as floats.
        """
        first = messages[0].content
        if any(len(message.content.array_records) != 1 for message in messages):
            raise InvalidParameters("a training message must have one array record, the model; the strategy sends more")
        key, record = next(iter(first.array_records.items()))
        read = {name: array.numpy() for name, array in record.items()}
        digest = model_digest(read)
        for message in messages[1:]:
            other = next(iter(message.content.array_records.values()))
            if other is not record and model_digest({n: a.numpy() for n, a in other.items()}) != digest:
                raise InvalidParameters(
                    "the strategy sends different models to different clients, so updates do not add up"
                )
        before = self._rounds.restored(read, self._task)
        if any(before[name] is not array for name, array in read.items()):
            replaced = arrays_of(before)
            for message in messages:
                message.content = RecordDict({**message.content, key: replaced})
        return key, before

    # --- Other messages: the inner grid-----------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- whatever the inner grid has
        return getattr(self._inner, name)

    def set_run(self, run: Any) -> None:  # noqa: ANN401 -- Flower's run; nothing of it is read
        self._inner.set_run(run)

    @property
    def run(self) -> Any:  # noqa: ANN401 -- Flower's run
        return self._inner.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:  # noqa: ANN401
        return self._inner.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        return self._inner.get_node_ids()

    def get_nodes(self) -> Any:  # noqa: ANN401 -- of whichever version
        return self._inner.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pass messages to the inner grid; refuse those whose answers must be summed, not sent in the clear."""
        listed = list(messages)
        summed = {MessageType.TRAIN, *([MessageType.EVALUATE] if self.settings.evaluated_names else [])}
        if any(message.metadata.message_type.partition(".")[0] in summed for message in listed):
            raise Misuse("push summed values with send_and_receive; single messages would be in the clear")
        return self._inner.push_messages(listed)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._inner.pull_messages(message_ids)


def _legacy_content(key: str, model: ArrayRecord, metrics: Mapping[str, float], examples: int) -> RecordDict:
    return RecordDict(
        {
            key.replace("fitins", "fitres"): model,
            "fitres.num_examples": MetricRecord({"num_examples": examples}),
            "fitres.metrics": ConfigRecord(dict(metrics)),
            "fitres.status": ConfigRecord({"code": 0, "message": "secure aggregation"}),
        }
    )


# --- The legacy API ---------------------------------------------------------------------------------------------------


class SecAggFitWorkflow:
    """One fit round of the legacy API; the strategy gets one result, the mean."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 -- of the settings' own types
        """Take settings as keywords with underscores; the run's ``secagg-`` keys set the others."""
        self._given = settings
        self._grid: SecAggGrid | None = None
        self._round, self._is_stopped = 0, False
        self._plain: Any = DefaultWorkflow().fit_workflow

    def __call__(self, grid: Grid, context: Context) -> None:
        strategy: object = getattr(context, "strategy", None)
        if strategy is None:
            raise Misuse(f"expected a LegacyContext, which has a strategy; got {type(context).__name__}")
        if self._grid is None:
            settings = SecAggSettings.of(self._given) if self._given else None
            self._grid = SecAggGrid(grid, context, settings=settings, strategy=strategy)
        self._round += 1
        try:
            if not self._is_stopped:
                self._plain(self._grid, context)
                return
        except FAILURES as error:
            self._is_stopped = not self._grid.failed.is_skipped(error)
        history: Any = getattr(context, "history", None)
        history.add_metrics_distributed_fit(server_round=self._round, metrics={SKIPPED: 1})
