"""Runs of real strategies with failing rounds: the kept state, the reported result, and no repeated updates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from secagg.errors import InvalidParameters, Misuse, SecAggError, ThresholdNotMet
from secagg.platforms.failed_rounds import SKIPPED
from secagg.platforms.settings import SecAggSettings

from .test_rounds_in_memory import CLIENTS, MODEL, MemoryGrid, Train, adding, folders, grid_of, lenient, log

__all__ = ["folders", "log"]
pytestmark = [pytest.mark.flower, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
STEP = 2.0**-15


class Nodes(MemoryGrid):
    """Nodes; the fourth and later ones are lost at the first message or at training, in some rounds."""

    def __init__(
        self, folder: Path, train: Train | None = None, *, at: str = "train", lost: Callable[[int], bool]
    ) -> None:
        honest = lenient(folder)

        def mod(message: Any, context: Any, call_next: Any) -> Any:
            config = message.content.config_records.get("config", {})
            is_first = "terms" in message.content.config_records.get("secagg", {})
            if message.content.array_records:
                self.number = int(config["server-round"])
                self.models.setdefault(self.number, {n: a.numpy() for n, a in message.content["arrays"].items()})
                self.trained.append(self.number)
            place = context.node_config["partition-id"]
            self.begun[place] += is_first
            is_due = bool(message.content.array_records) if at == "train" else is_first
            if is_due and place >= 3 and lost(self.number if at == "train" else self.begun[place]):
                return self.flwr.Message(self.flwr.Error(3, "gone"), reply_to=message)
            return honest(message, context, call_next)

        super().__init__(mod, train or adding(0.125))  # type: ignore[arg-type]
        self.number, self.begun = 0, [0] * self.clients
        self.models, self.trained = dict[int, dict[str, Any]](), list[int]()
        """The model sent in each round, and the rounds of all requests for updates."""

    @property
    def sessions(self) -> int:
        return self.begun[0]

    def get_node_ids(self) -> list[int]:
        return [100 + node for node in range(self.clients)]


def settings(**changes: Any) -> SecAggSettings:
    return SecAggSettings(**{"weighting": "uniform", **changes})


def strategy(name: str = "FedAvg", **more: Any) -> Any:
    kinds = pytest.importorskip("flwr.serverapp.strategy")
    return getattr(kinds, name)(fraction_evaluate=0.0, min_available_nodes=CLIENTS, **more)


def started(inner: MemoryGrid, chosen: Any, rounds: int, given: SecAggSettings, model: Any = MODEL) -> Any:
    return again(inner, grid_of(inner, given), chosen, rounds, model)


def again(inner: MemoryGrid, grid: Any, chosen: Any, rounds: int, model: Any = MODEL) -> Any:
    arrays = inner.flwr.ArrayRecord({n: inner.flwr.Array(np.asarray(v)) for n, v in model.items()})
    return chosen.start(grid=grid, initial_arrays=arrays, num_rounds=rounds, timeout=60)


def arrays_of(result: Any) -> dict[str, Any]:
    return {name: array.numpy() for name, array in result.arrays.items()}


def private() -> Any:
    kinds = pytest.importorskip("flwr.serverapp.strategy")
    return kinds.DifferentialPrivacyClientSideFixedClipping(
        strategy(), noise_multiplier=1e-9, clipping_norm=1.0, num_sampled_clients=CLIENTS
    )


@pytest.mark.parametrize(
    "make",
    [
        strategy,
        lambda: strategy("FedAvgM", server_momentum=0.9),
        lambda: strategy("FedAdam"),
        lambda: strategy("FedProx", proximal_mu=0.1),
        private,
    ],
    ids=["FedAvg", "FedAvgM", "FedAdam", "FedProx", "private"],
)
def test_a_failed_round_keeps_the_model_and_is_in_the_result(folders: Path, make: Callable[[], Any], log: Any) -> None:
    inner = Nodes(folders, lost=lambda number: number == 2)
    result = started(inner, make(), 4, settings())
    metrics = {number: dict(record) for number, record in result.train_metrics_clientapp.items()}
    assert [number for number, record in metrics.items() if SKIPPED in record] == [2]
    assert list(metrics) == [1, 2, 3, 4]
    # Neither the model nor the strategy's state changed.
    for name, values in inner.models[2].items():
        assert np.array_equal(inner.models[3][name], values)
        assert not np.array_equal(inner.models[4][name], values)
    assert "round 2 failed, and the server learned nothing" in log.text
    assert "this round is skipped; the next one starts from the last good model (1 of at most 2" in log.text


@pytest.mark.parametrize(("given", "asked"), [({"failed_rounds": 1}, 3), ({"on_failure": "stop"}, 2)])
def test_a_run_that_stops_returns_the_last_good_model_and_asks_nobody_any_more(
    folders: Path, given: dict[str, Any], asked: int, log: Any
) -> None:
    inner, chosen = Nodes(folders, lost=lambda number: number > 1), strategy()
    grid = grid_of(inner, settings(**given))
    result = again(inner, grid, chosen, 9)
    assert np.abs(arrays_of(result)["w"] - MODEL["w"] - 0.375).max() < STEP
    skipped = {number for number, record in result.train_metrics_clientapp.items() if SKIPPED in record}
    assert skipped == set(range(2, 10))
    assert max(inner.trained) == asked
    assert "the run stops with the last good model" in log.text
    # The strategy's next run is not stopped.
    inner.trained.clear()
    later = again(inner, grid, chosen, 1, arrays_of(result))
    assert inner.trained == [1] * CLIENTS
    assert np.abs(arrays_of(later)["w"] - MODEL["w"] - 0.75).max() < 2 * STEP


def test_a_run_without_any_result_ends_with_the_error(folders: Path) -> None:
    inner = Nodes(folders, lost=lambda number: number == 1)
    with pytest.raises(ThresholdNotMet):
        started(inner, strategy(), 3, settings())
    assert set(inner.trained) == {1}


def test_what_the_calling_code_does_wrong_is_not_skipped(folders: Path) -> None:
    inner = Nodes(folders, lost=lambda _: False)
    grid = grid_of(inner, settings())
    first = again(inner, grid, strategy(), 1)
    with pytest.raises(Misuse, match="several types at once"):
        grid.send_and_receive([*inner.messages(arrays_of(first)), *inner.messages(MODEL, "train.other")])


@pytest.mark.parametrize(("on_failure", "sessions"), [("retry", 3), ("skip", 2)])
def test_a_round_begins_again_only_where_nobody_was_asked_for_an_update(
    folders: Path, on_failure: str, sessions: int, log: Any
) -> None:
    # The second session loses two nodes at its first message.
    inner = Nodes(folders, at="first", lost=lambda number: number == 2)
    result = started(inner, strategy(), 2, settings(on_failure=on_failure))
    assert inner.sessions == sessions
    assert (SKIPPED in result.train_metrics_clientapp[2]) is (on_failure == "skip")
    assert ("so the round starts again (1 of 2)" in log.text) is (on_failure == "retry")


def test_after_an_upload_left_no_second_sum_of_the_round_is_made(folders: Path) -> None:
    """The difference of two sums of the same training, over different clients, would be an update."""
    inner = Nodes(folders, lost=lambda number: number == 2)
    result = started(inner, strategy(), 3, settings(on_failure="retry"))
    assert [inner.trained.count(number) for number in (1, 2, 3)] == [CLIENTS] * 3
    assert SKIPPED in result.train_metrics_clientapp[2]


def test_attempts_to_begin_a_round_again_are_limited(folders: Path) -> None:
    inner = Nodes(folders, at="first", lost=lambda number: number > 1)
    result = started(inner, strategy(), 4, settings(on_failure="retry", failed_rounds=2))
    # Three rounds with three attempts each.
    assert inner.sessions == 1 + 3 * 3
    assert np.abs(arrays_of(result)["w"] - MODEL["w"] - 0.375).max() < STEP


def test_a_failed_evaluation_is_in_the_result(folders: Path) -> None:
    def train(model: Any, node: int) -> dict[str, Any]:
        return {**adding(0.125)(model, node), "metrics": {"loss": 0.5}}

    class Evaluated(Nodes):
        def push_messages(self, messages: Any) -> list[str]:
            listed = list(messages)
            if self.number == 2 and listed and listed[0].metadata.message_type == "evaluate":
                listed = listed[:2]
            return super().push_messages(listed)

    inner = Evaluated(folders, train, lost=lambda _: False)
    chosen = strategy()
    chosen.fraction_evaluate = 1.0
    result = started(inner, chosen, 3, settings(evaluation_metrics="loss"))
    found = {number: dict(record) for number, record in result.evaluate_metrics_clientapp.items()}
    assert [SKIPPED in found[number] for number in (1, 2, 3)] == [False, True, False]
    assert not any(SKIPPED in record for record in result.train_metrics_clientapp.values())


# --- Tensors of integers ----------------------------------------------------------------------------------------------

COUNTED: dict[str, Any] = {"w": np.zeros((4, 3), np.float32), "steps": np.array(7, np.int64)}


def counting(model: Any, node: int) -> dict[str, Any]:
    """Train like PyTorch, whose counters are integers whatever is loaded into them."""
    return {"w": model["w"] + np.float32(0.125 * (node + 1)), "steps": np.asarray(model["steps"]).astype(np.int64) + 50}


def test_a_second_phase_trains_a_model_with_counters(folders: Path) -> None:
    inner = Nodes(folders, counting, lost=lambda _: False)
    first = started(inner, strategy(), 2, settings(), COUNTED)
    steps = arrays_of(first)["steps"]
    assert (steps.dtype, int(steps)) == (np.dtype(np.int64), 107)
    # With another grid and strategy; a custom loop may have turned them into floats.
    second = started(inner, strategy("FedAvgM", server_momentum=0.5), 1, settings(), arrays_of(first))
    third = started(inner, strategy(), 1, settings(), {n: v * 1.0 for n, v in arrays_of(second).items()})
    assert (arrays_of(third)["steps"].dtype, int(arrays_of(third)["steps"])) == (np.dtype(np.int64), 207)
    assert np.abs(arrays_of(third)["w"] - 4 * 0.375).max() < 4 * STEP


def test_a_resumed_run_takes_whole_floats_for_counters(folders: Path) -> None:
    # A process that never saw the original model, and a file whose counters are floats.
    saved = {"w": COUNTED["w"], "steps": np.array(107.0)}
    inner = Nodes(folders, counting, lost=lambda _: False)
    result = started(inner, strategy(), 1, settings(clip=64.0), saved)
    assert np.abs(arrays_of(result)["w"] - 0.375).max() < STEP
    assert float(arrays_of(result)["steps"]) == 157


# --- Strategies that aggregate by themselves --------------------------------------------------------------------------


def own(base: str, method: str, **attributes: Any) -> Any:
    """Return a subclass that uses single results for more than averaging."""
    kinds = pytest.importorskip("flwr.serverapp.strategy")
    plain = getattr(kinds, base)
    kind = type("Mine", (plain,), {method: getattr(plain, method), **attributes})
    return kind(fraction_evaluate=1.0 if method == "aggregate_evaluate" else 0.0, min_available_nodes=CLIENTS)


@pytest.mark.parametrize(
    ("method", "given"), [("aggregate_train", {}), ("aggregate_evaluate", {"evaluation_metrics": "loss"})]
)
def test_a_strategy_with_its_own_aggregation_is_refused_unless_it_opts_in(
    folders: Path, method: str, given: dict[str, Any]
) -> None:
    inner = Nodes(folders, lambda *given: {**adding(0.125)(*given), "metrics": {"loss": 1.0}}, lost=lambda _: False)
    with pytest.raises(InvalidParameters, match=f"Mine has its own {method} .* set needs_only_the_mean = True"):
        started(inner, own("FedAvg", method), 1, settings(**given))
    assert not inner.sent
    result = started(inner, own("FedAvg", method, needs_only_the_mean=True), 1, settings(**given))
    assert np.abs(arrays_of(result)["w"] - MODEL["w"] - 0.375).max() < STEP


def test_an_evaluation_in_the_clear_may_be_aggregated_by_ones_own_method(folders: Path) -> None:
    inner = Nodes(folders, lost=lambda _: False)
    chosen = own("FedAdam", "aggregate_evaluate")
    chosen.fraction_evaluate = 0.0
    started(inner, chosen, 1, settings())


def test_a_legacy_strategy_with_its_own_aggregation_is_refused() -> None:
    legacy = pytest.importorskip("flwr.server.strategy")
    from secagg.flower.strategies import require_sum_suffices  # noqa: PLC0415 -- needs Flower

    kind = type("Mine", (legacy.FedAvg,), {"aggregate_fit": lambda *_: (None, {})})
    with pytest.raises(InvalidParameters, match="Mine has its own aggregate_fit"):
        require_sum_suffices(kind())
    require_sum_suffices(legacy.FedAvgM())


def test_a_failed_round_of_the_legacy_workflow_is_skipped_and_in_its_history(folders: Path) -> None:
    legacy, history = pytest.importorskip("flwr.server.strategy"), pytest.importorskip("flwr.server.history")
    from secagg.flower import SecAggFitWorkflow  # noqa: PLC0415 -- needs Flower

    rounds = list[int]()

    def workflow(grid: Any, _: Any) -> None:
        rounds.append(len(rounds) + 1)
        if rounds[-1] not in (1, 3):
            raise ThresholdNotMet(needed=4, present=3, what="contributors")
        grid.failed.succeeded()

    context = SimpleNamespace(strategy=legacy.FedAvg(), history=history.History(), run_config={})
    chosen = SecAggFitWorkflow(weighting="uniform", failed_rounds=1)
    chosen._plain = workflow  # noqa: SLF001 -- in the place of Flower's
    for _ in range(7):
        chosen(MemoryGrid(lenient(folders), adding(0.125)), context)  # type: ignore[arg-type]
    # The fifth is the second in a row, after which no client is asked.
    assert rounds == [1, 2, 3, 4, 5]
    assert context.history.metrics_distributed_fit == {SKIPPED: [(2, 1), (4, 1), (5, 1), (6, 1), (7, 1)]}


def test_functions_of_single_metrics_are_named_in_the_log(folders: Path, log: Any) -> None:
    inner = Nodes(folders, lost=lambda _: False)
    function: Any = lambda records, _: records[0]["metrics"]  # noqa: E731 -- as a user writes it
    started(inner, strategy(train_metrics_aggr_fn=function), 2, settings())
    assert log.text.count("train_metrics_aggr_fn receives one record, the means of all clients") == 1


# --- Clamps -----------------------------------------------------------------------------------------------------------


def test_a_metric_beyond_its_bound_is_said_at_both_ends_with_the_setting(folders: Path, log: Any) -> None:
    def train(model: Any, node: int) -> dict[str, Any]:
        return {**model, "w": model["w"] + 0.125, "metrics": {"perplexity": 4096.0 + node, "loss": 1.0}}

    inner = Nodes(folders, train, lost=lambda _: False)
    result = started(inner, strategy(), 1, settings(metrics="perplexity,loss"))
    assert result.train_metrics_clientapp[1]["perplexity"] == 1024.0
    assert (
        "the metric 'perplexity' is 4096 here and counts as the bound of 1024; the server's secagg-metric" in log.text
    )
    assert "the mean of perplexity is at the bound of 1024" in log.text
    assert "the metric 'loss'" not in log.text


def test_the_error_of_a_caller_without_a_strategy_is_its_own(folders: Path) -> None:
    inner = Nodes(folders, at="first", lost=lambda number: number > 1)
    grid = grid_of(inner, settings())
    inner.number, messages = 1, inner.messages(MODEL)
    for message in messages:
        message.content["config"] = inner.flwr.ConfigRecord({"server-round": 1})
    list(grid.send_and_receive(messages, timeout=60))
    with pytest.raises(SecAggError):
        grid.send_and_receive(inner.messages(MODEL), timeout=60)


# --- Trainings that fail ----------------------------------------------------------------------------------------------


def failing(nodes: range, from_round: int = 1) -> Train:
    """Return training that fails at some nodes, like an app that returns part of the model."""
    rounds = [0] * CLIENTS

    def train(model: Any, node: int) -> dict[str, Any]:
        rounds[node] += 1
        trained = {**adding(0.125)(model, node), "metrics": {"loss": 1.0}}
        return {"w": trained["w"]} if node in nodes and rounds[node] >= from_round else trained

    return train


@pytest.mark.parametrize("given", [{}, {"weighting": "examples", "full_weight": 10}])
def test_failed_trainings_are_in_no_mean_and_in_the_result(folders: Path, given: dict[str, Any], log: Any) -> None:
    inner = Nodes(folders, failing(range(3, 5)), lost=lambda _: False)
    result = started(inner, strategy(), 1, settings(metrics="loss", **given))
    # The mean over the clients that trained, not three fifths of it.
    assert np.abs(arrays_of(result)["w"] - MODEL["w"] - 0.25).max() < STEP
    (metrics,) = result.train_metrics_clientapp.values()
    assert metrics["loss"] == pytest.approx(1.0, abs=1e-3)
    assert (metrics["secagg-trained"], metrics["secagg-failed"]) == (3, 2)
    assert "training failed at 2 of 5 clients; their own logs say why" in log.text


def test_the_reply_says_how_many_trained(folders: Path) -> None:
    inner = Nodes(folders, failing(range(3, 5)), lost=lambda _: False)
    messages = inner.messages(MODEL)
    for message in messages:
        message.content["config"] = inner.flwr.ConfigRecord({"server-round": 1})
    (reply,) = grid_of(inner, settings()).send_and_receive(messages, timeout=60)
    assert reply.content.config_records["secagg.left"]["sum"] == "5 clients, 3 trained"


def test_a_round_in_which_nobody_trained_fails_the_run(folders: Path) -> None:
    inner = Nodes(folders, failing(range(5)), lost=lambda _: False)
    with pytest.raises(ThresholdNotMet, match="training failed at too many clients: of 5 uploads 0 trained"):
        started(inner, strategy(), 3, settings())
    assert set(inner.trained) == {1}


@pytest.mark.parametrize("on_failure", ["skip", "retry"])
@pytest.mark.parametrize(("least", "nodes"), [(1, range(5)), (4, range(3, 5))])
def test_a_model_at_which_too_many_fail_is_not_sent_again_and_the_last_good_one_is_the_result(
    folders: Path, on_failure: str, least: int, nodes: range, log: Any
) -> None:
    """A second sum of that model, over other clients, would reveal an update."""
    inner = Nodes(folders, failing(nodes, 2), lost=lambda _: False)
    result = started(inner, strategy(), 5, settings(on_failure=on_failure, minimum_trained=least))
    assert max(inner.trained) == 2
    assert inner.trained.count(2) == CLIENTS
    assert np.abs(arrays_of(result)["w"] - MODEL["w"] - 0.375).max() < STEP
    assert {n for n, record in result.train_metrics_clientapp.items() if SKIPPED in record} == {2, 3, 4, 5}
    assert "the run stops with the last good model, because training failed at too many clients" in log.text
