"""The server's side: a grid that turns a strategy's training messages into one session, and answers with its mean.

``strategy.start(grid=SecAggGrid(grid, context), ...)``. The strategy is given one reply: the model that results, the
metrics' means, and the sum of the examples. There is nothing else to give, so averaging over the replies is exact.
Evaluation is summed in the same way
where ``secagg-evaluation-metrics`` names metrics of it; everything else passes to the grid inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from secagg.compression.outside import outside_factory
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, Misuse
from secagg.flower.keys.identities import Roster, load_roster
from secagg.flower.logs import LOG, write_where_flower_does
from secagg.flower.model_tensors import applied, model_digest, restored
from secagg.flower.schemes import SchemeChoice
from secagg.flower.settings import SecAggSettings
from secagg.flower.strategies import calling_strategy, require_sum_suffices, weight_key
from secagg.session.registry import find

from .records import LEGACY_ARRAYS, metric_record
from .server_round import RoundResult, RoundTask, ServerRound, StageCount

_SEED_BYTES: Final = 32
_ROUNDS: Final = dict[int, int]()
"""How many rounds each run of this process had; a client refuses a number twice, so a run's grids count together."""


class SecAggGrid(Grid):
    """A grid whose training rounds reveal sums alone."""

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
            strategy: whom the replies are for; by default whoever calls.
        Raises:
            InvalidParameters: a setting is wrong (the message names its key), or the strategy needs single updates.
        """
        write_where_flower_does()
        self.settings = settings or SecAggSettings.from_run_config(context.run_config if context else {})
        self.stages = list[tuple[str, StageCount]]()
        """What each stage of the last round carried."""
        self._inner = grid
        self._strategy = strategy
        self._roster: Roster | None = load_roster(Path(self.settings.roster)) if self.settings.roster else None
        if self._roster is not None and not self.settings.is_certified:
            LOG.warning(
                "secagg-roster certifies nobody in semi_honest mode, where every node is a client; take "
                "secagg-mode = 'active' for certified ones"
            )
            self._roster = None
        self._has_said = set[str]()
        self._seed = bytes(SystemCoins().draw(_SEED_BYTES))
        self._factory = outside_factory(self.settings.outside) if self.settings.outside else None
        self._told: Mapping[str, float] | None = None
        self._dtypes = dict[str, np.dtype[Any]]()
        if strategy is not None:
            require_sum_suffices(strategy)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Run a session for training messages; everything else is the inner grid's.

        Raises:
            SecAggError: the round failed; the run ends loudly instead of going on with a model that nobody trained.
        """
        listed = list(messages)
        kinds = {message.metadata.message_type for message in listed}
        families = {kind.partition(".")[0] for kind in kinds}
        is_training = MessageType.TRAIN in families
        if MessageType.EVALUATE in families and not self.settings.evaluated_names:
            self._say_once(
                "evaluation is not aggregated securely: what @app.evaluate returns, metrics and numbers of examples, "
                "is seen client by client; name metrics in secagg-evaluation-metrics, or use fraction_evaluate=0.0"
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
            require_sum_suffices(strategy)
        key, sent = self._common_model(messages)
        is_legacy = key == LEGACY_ARRAYS
        if is_evaluation and is_legacy:
            raise Misuse("the legacy API evaluates in the clear alone; leave secagg-evaluation-metrics out")
        settings, total = self.settings, len(messages) * self.settings.heaviest
        # Refused here, where too few clients are told of what to do, before anything is computed for them.
        settings.tolerated_dropouts(len(messages))
        # A client retains no round of another run, so only rounds of one run are counted together.
        run = self._inner.run.run_id
        _ROUNDS[run] = number = _ROUNDS.get(run, 0) + 1
        weighted_by = "num_examples" if is_legacy else weight_key(strategy)
        choice = SchemeChoice(settings, total, self._factory)
        update = (
            choice.of_metrics()
            if is_evaluation
            else choice.parameters(sent, seed=self._seed, epoch=number, told=self._known_scales())
        )
        task = RoundTask(
            settings=settings,
            roster=self._roster,
            task=f"flower run {run}",
            round_number=number,
            weighted_by=weighted_by,
            metrics=settings.evaluated_names if is_evaluation else settings.metric_names,
            sent=sent,
            update=update,
            joined=() if is_evaluation else choice.joined(sent),
        )
        self._say_what_is_in_the_clear()
        first = messages[0].metadata
        session = ServerRound(task, self._inner, first.message_type, first.group_id, SystemCoins())
        self.stages = session.stages
        result = session.run(messages, timeout)
        examples = result.total_weight * (settings.weight_unit if settings.weighting == "examples" else 1)
        if is_evaluation:
            result.carrier.content = RecordDict({"metrics": metric_record({weighted_by: examples, **result.metrics})})
            return [result.carrier, *result.failures]
        self._told = result.told
        model = ArrayRecord({name: Array(np.asarray(array)) for name, array in applied(sent, result.mean).items()})
        content = _legacy_content if is_legacy else _content
        result.carrier.content = content(key, model, result, weighted_by, examples)
        return [result.carrier, *result.failures]

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._has_said:
            self._has_said.add(sentence)
            LOG.warning("%s", sentence)

    def _say_what_is_in_the_clear(self) -> None:
        weights = "each client's weight" if find(self.settings.protocol).reveals_weights else "their total weight"
        self._say_once(
            "this server learns the sums of updates and of the metrics that are named, who takes part and when each "
            f"leaves, with one of six codes, and {weights}"
        )

    def _common_model(self, messages: list[Message]) -> tuple[str, dict[str, npt.NDArray[Any]]]:
        """Return the one model that all messages hold, with the dtypes that it had at first.

        Strategies multiply every tensor by floats, so integers and booleans come back from them as floats.
        """
        first = messages[0].content
        if any(len(message.content.array_records) != 1 for message in messages):
            raise InvalidParameters(
                "a training message holds one array record, the model; the strategy sends others too"
            )
        key, record = next(iter(first.array_records.items()))
        read = {name: array.numpy() for name, array in record.items()}
        digest = model_digest(read)
        for message in messages[1:]:
            other = next(iter(message.content.array_records.values()))
            if other is not record and model_digest({n: a.numpy() for n, a in other.items()}) != digest:
                raise InvalidParameters(
                    "the strategy sends different models to different clients, whose updates do not add up"
                )
        before = {name: restored(array, self._dtypes.setdefault(name, array.dtype)) for name, array in read.items()}
        if any(before[name] is not array for name, array in read.items()):
            replaced = ArrayRecord({name: Array(np.asarray(array)) for name, array in before.items()})
            for message in messages:
                message.content = RecordDict({**message.content, key: replaced})
        return key, before

    def _known_scales(self) -> Mapping[str, float] | None:
        if self._told is None and self.settings.is_calibrated:
            LOG.info("the first round travels in fixed point; clients tell in it how large their changes are")
        return self._told

    # --- Everything else is the inner grid's --------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- whatever the inner grid has
        return getattr(self._inner, name)

    def set_run(self, run: Any) -> None:  # noqa: ANN401 -- Flower's run, of which nothing is read
        """Pass to the inner grid."""
        self._inner.set_run(run)

    @property
    def run(self) -> Any:  # noqa: ANN401 -- Flower's run
        """The inner grid's."""
        return self._inner.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:  # noqa: ANN401
        """Pass to the inner grid."""
        return self._inner.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        """Pass to the inner grid."""
        return self._inner.get_node_ids()

    def get_nodes(self) -> Any:  # noqa: ANN401 -- of whichever version
        """Pass to the inner grid."""
        return self._inner.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pass to the inner grid, unless it is training, which would be asked for in the clear.

        Raises:
            Misuse: it is.
        """
        listed = list(messages)
        if any(message.metadata.message_type.partition(".")[0] == MessageType.TRAIN for message in listed):
            raise Misuse("push training with send_and_receive; pushed message by message it would be in the clear")
        return self._inner.push_messages(listed)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pass to the inner grid."""
        return self._inner.pull_messages(message_ids)


def _content(key: str, model: ArrayRecord, result: RoundResult, weighted_by: str, examples: int) -> RecordDict:
    return RecordDict({key: model, "metrics": metric_record({weighted_by: examples, **result.metrics})})


def _legacy_content(key: str, model: ArrayRecord, result: RoundResult, weighted_by: str, examples: int) -> RecordDict:
    """Return what ``recorddict_to_fitres`` of the legacy API reads."""
    return RecordDict(
        {
            key.replace("fitins", "fitres"): model,
            "fitres.num_examples": metric_record({weighted_by: examples}),
            "fitres.metrics": ConfigRecord(dict(result.metrics)),
            "fitres.status": ConfigRecord({"code": 0, "message": "secure aggregation"}),
        }
    )
