"""Rounds of real mods and a real grid without a simulation: messages are passed within this process."""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import numpy as np
import pytest

import secagg.flower as plugin
from secagg import wire
from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, Misuse, SecAggError, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.platforms import round_task, server_round
from secagg.platforms.client_node import DIRECTORY_VARIABLE
from secagg.platforms.round_task import RoundTask
from secagg.platforms.settings import SecAggSettings
from secagg.platforms.terms import message_in, record_of
from secagg.session import registry
from secagg.session.identities import make_identities
from tests.harness.plain_sum import ENTRY
from tests.harness.tutorial import tutorial_scheme

pytestmark = [pytest.mark.flower, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
CLIENTS = 5
RUN = 7
Train = Callable[[Any, int], dict[str, Any]]
"""Training: maps the sent model and the client to arrays by name, and metrics."""


class MemoryGrid:
    """A grid whose nodes answer immediately, with a mod around a function; it drops settings of a single node."""

    def __init__(self, mod: plugin.SecAggMod, train: Train, clients: int = CLIENTS, run: int = RUN) -> None:
        flwr = pytest.importorskip("flwr.app")
        self.flwr, self.mod, self.train, self.clients = flwr, mod, train, clients
        self.run = SimpleNamespace(run_id=run)
        self.contexts = [self.context(node) for node in range(clients)]
        self.replies = dict[str, Any]()
        self.sent = list[Any]()

    def context(self, node: int) -> Any:
        return self.flwr.Context(self.run.run_id, 100 + node, {"partition-id": node}, self.flwr.RecordDict(), {})

    def call(self, message: Any, context: Any) -> Any:
        """Act as the app's function."""
        flwr = self.flwr
        arrays = {n: a.numpy() for record in message.content.array_records.values() for n, a in record.items()}
        returned = self.train(arrays, context.node_config["partition-id"])
        metrics = {"num-examples": 10, **returned.pop("metrics", {})}
        content = flwr.RecordDict({"metrics": flwr.MetricRecord(metrics)})
        if returned:
            content["arrays"] = flwr.ArrayRecord({n: flwr.Array(np.asarray(v)) for n, v in returned.items()})
        return flwr.Message(content, reply_to=message)

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        pushed = list[str]()
        for message in messages:
            identity = f"message {len(self.sent)}"
            message.metadata.__dict__["_message_id"] = identity
            self.sent.append(message)
            node = message.metadata.dst_node_id - 100
            # As through a SuperLink: no two parties share a record.
            records = {name: type(record)(dict(record.items())) for name, record in message.content.items()}
            copy = self.flwr.Message(
                self.flwr.RecordDict(records), message.metadata.dst_node_id, message.metadata.message_type
            )
            copy.metadata.__dict__["_message_id"] = identity
            self.replies[identity] = self.mod(copy, self.contexts[node], self.call)
            pushed.append(identity)
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        return [self.replies.pop(identity) for identity in sorted(message_ids) if identity in self.replies]

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
        del timeout
        return self.pull_messages(self.push_messages(messages))

    def messages(self, model: dict[str, Any], kind: str = "train") -> list[Any]:
        flwr = self.flwr
        arrays = flwr.ArrayRecord({n: flwr.Array(np.asarray(v)) for n, v in model.items()})
        return [flwr.Message(flwr.RecordDict({"arrays": arrays}), 100 + node, kind) for node in range(self.clients)]

    def round(self, grid: Any, model: dict[str, Any], kind: str = "train") -> tuple[dict[str, Any], dict[str, Any]]:
        """Run a round, and return the arrays and metrics that a strategy receives."""
        reply = next(iter(grid.send_and_receive(self.messages(model, kind), timeout=60)))
        arrays = {n: a.numpy() for record in reply.content.array_records.values() for n, a in record.items()}
        return arrays, dict(reply.content.metric_records["metrics"].items())


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SECAGG_STATE_DIRECTORY", str(tmp_path / "states"))
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "ledgers"))
    from flwr.supercore.task_identity import TaskIdentity  # noqa: PLC0415 -- needs Flower

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    # The server's process counts the rounds of a run, and remembers the types of its models.
    from secagg.flower import server_grid  # noqa: PLC0415 -- needs Flower

    monkeypatch.setattr(server_grid, "_ROUNDS", dict[int, int]())
    monkeypatch.setattr(round_task, "_DTYPES", dict[Any, Any]())
    make_identities(tmp_path / "keys", map(ClientId, range(CLIENTS)), SystemCoins())
    return tmp_path


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logging.getLogger("secagg.platforms"), "propagate", True)
    caplog.set_level(logging.DEBUG, "secagg.platforms")
    return caplog


@pytest.fixture
def plain() -> Iterator[None]:
    registry.register(ENTRY)
    yield
    registry.unregister(ENTRY.name)


def adding(by: float) -> Train:
    return lambda model, node: {name: values + by * (node + 1) for name, values in model.items()}


Nodes = TypeVar("Nodes", bound=MemoryGrid)


def settings_of(folder: Path, protocol: str, **changes: Any) -> SecAggSettings:
    certified = {} if protocol in ("pairwise", "plain") else {"roster": str(folder / "keys" / "roster.txt")}
    return SecAggSettings(protocol=protocol, weighting="uniform", **{**certified, **changes})


def lenient(folder: Path, **changes: Any) -> plugin.SecAggMod:
    given: dict[str, Any] = {
        "identity": str(folder / "keys"),
        "allow_simulated_enclave": True,
        "allow_simulated_second_server": True,
        "protocols": ("pairwise", "enclave", "two-servers", "plain"),
        **changes,
    }
    return plugin.SecAggMod(**given)


def grid_of(inner: MemoryGrid, settings: SecAggSettings) -> Any:
    return plugin.SecAggGrid(inner, settings=settings)  # type: ignore[arg-type]


def begun(inner: Nodes, settings: SecAggSettings) -> tuple[Nodes, Any]:
    return inner, grid_of(inner, settings)


MODEL: dict[str, Any] = {"w": np.zeros((4, 3), dtype=np.float32), "b": np.ones(2, dtype=np.float64)}


def test_garbage_in_another_clients_name_excludes_nobody_but_its_sender(folders: Path, log: Any) -> None:
    from secagg.flower.client import record_in, with_record  # noqa: PLC0415 -- needs Flower

    # So that one of five may be missing.
    honest = lenient(folders, assumed_corrupted=0)

    def mod(message: Any, context: Any, call_next: Any) -> Any:
        reply = honest(message, context, call_next)
        if context.node_config["partition-id"] == 0 and not reply.has_error():
            answer = message_in(record_in(reply.content))[:-1]
            reply.content = with_record(record_of(answer, ClientId(4), signature=bytes(64)))
        return reply

    inner = MemoryGrid(cast("plugin.SecAggMod", mod), adding(0.125))
    roster = str(folders / "keys" / "roster.txt")
    settings = settings_of(folders, "pairwise", mode="active", corrupted=0, roster=roster)
    grid = grid_of(inner, settings)
    arrays, _ = inner.round(grid, MODEL)
    # Those of partitions 1 to 4, whose mean is 3.5 steps.
    assert np.allclose(arrays["w"], 3.5 * 0.125, atol=2**-16)
    assert "node 100 is excluded" in log.text


def test_a_node_of_an_earlier_form_is_left_out_and_nobody_follows_it(folders: Path, log: Any) -> None:
    honest = lenient(folders, assumed_corrupted=0)

    def mod(message: Any, context: Any, call_next: Any) -> Any:
        with pytest.MonkeyPatch.context() as version:
            if context.node_config["partition-id"] == 0:
                version.setattr(wire, "FORMS", range(2, 3))
            return honest(message, context, call_next)

    inner = MemoryGrid(cast("plugin.SecAggMod", mod), adding(0.125))
    arrays, _ = inner.round(grid_of(inner, settings_of(folders, "pairwise", corrupted=0)), MODEL)
    assert np.allclose(arrays["w"], 3.5 * 0.125, atol=2**-16)
    assert (
        "1 clients left with code 'version': they do not support the round's form of messages (secagg-form)" in log.text
    )
    assert "the session has form 3 of secagg's messages, but this version supports form 2" in log.text
    assert "clients by the newest form of messages that they support: 3: 4" in log.text


@pytest.mark.parametrize("protocol", ["pairwise", "enclave", "two-servers", "plain"])
def test_one_round_gives_the_mean_whichever_protocol_it_is(folders: Path, protocol: str, plain: None) -> None:
    del plain
    inner, grid = begun(MemoryGrid(lenient(folders), adding(0.125)), settings_of(folders, protocol))
    arrays, metrics = inner.round(grid, MODEL)
    assert np.allclose(arrays["w"], 0.375, atol=2**-16)
    assert metrics["num-examples"] == CLIENTS


def test_a_registered_protocol_that_a_client_does_not_name_gets_nothing(folders: Path, plain: None, log: Any) -> None:
    del plain
    inner, grid = begun(
        MemoryGrid(lenient(folders, protocols=("pairwise",)), adding(0.125)), settings_of(folders, "plain")
    )
    with pytest.raises(ThresholdNotMet):
        inner.round(grid, MODEL)
    assert "the server asks for plain, but this client accepts pairwise" in log.text
    assert "5 clients left with code 'terms'" in log.text


@pytest.fixture
def custom(tmp_path: Path) -> str:
    """Return the name of the tutorial's scheme, in a file outside any package."""
    (tmp_path / "my_scheme.py").write_text(tutorial_scheme(), encoding="utf-8")
    return f"{tmp_path / 'my_scheme.py'}:Ternary"


def moving(sizes: dict[str, float], seed: int = 1) -> Train:
    """Change every client's tensors by random values of these sizes, around a common change half as large."""

    def train(sent: Any, node: int) -> dict[str, Any]:
        drawn, common = np.random.default_rng([seed, node]), np.random.default_rng(seed)
        return {
            name: values + (size * (drawn.standard_normal(values.shape) + common.standard_normal(values.shape) / 2))
            if (size := sizes.get(name, 0.0))
            else values
            for name, values in sent.items()
        }

    return train


@pytest.mark.parametrize("protocol", ["pairwise", "enclave", "plain"])
def test_the_scheme_of_the_tutorial_sums_in_flower(folders: Path, protocol: str, custom: str, plain: None) -> None:
    del plain
    model: dict[str, Any] = {
        "w": np.zeros((150, 100), dtype=np.float32),
        "steps": np.array(7),
        "b": np.ones(2, dtype=np.float64),
    }

    def train(sent: Any, node: int) -> dict[str, Any]:
        return {n: v + (node if n == "steps" else 0.125) for n, v in sent.items()}

    inner, grid = begun(
        MemoryGrid(lenient(folders, scheme=custom), train), settings_of(folders, protocol, compression=custom)
    )
    arrays, _ = inner.round(grid, model)
    assert {name: array.dtype for name, array in arrays.items()} == {n: a.dtype for n, a in model.items()}
    assert arrays["steps"] == 7 + 2
    # Half of the values of 1 quarter, by five clients each.
    assert set(np.unique(np.rint(arrays["w"] * 20))) == set(range(6))
    assert float(arrays["w"].mean()) == pytest.approx(0.125, abs=0.125 / np.sqrt(5 * 15_000) * 6)
    assert np.abs(arrays["b"] - 1.125).max() <= 0.125 + 1e-6


def test_clients_refuse_a_scheme_that_their_own_app_does_not_name(folders: Path, custom: str, log: Any) -> None:
    inner, grid = begun(
        MemoryGrid(lenient(folders), adding(0.125)), settings_of(folders, "pairwise", compression=custom)
    )
    with pytest.raises(SecAggError):
        inner.round(grid, MODEL)
    assert "is custom, but this side has none" in log.text


def test_a_server_names_no_scheme_that_it_cannot_import(folders: Path) -> None:
    inner = MemoryGrid(lenient(folders), adding(0.125))
    with pytest.raises(InvalidParameters, match="the scheme 'absent:Scheme' cannot be imported"):
        grid_of(inner, settings_of(folders, "pairwise", compression="absent:Scheme"))


@pytest.mark.parametrize(("protocol", "compression"), [("pairwise", "scalar-6"), ("enclave", "pq-64x4")])
def test_scales_follow_what_clients_tell_and_not_the_mean_which_is_smaller(
    folders: Path, protocol: str, compression: str, log: Any
) -> None:
    """Clients that hardly agree have a mean much shorter than their updates; scales from the mean would clip them."""
    sizes = {"w": 0.01}
    inner, grid = begun(
        MemoryGrid(lenient(folders), moving(sizes)), settings_of(folders, protocol, compression=compression)
    )
    model, exact = {"w": np.zeros((64, 32), dtype=np.float32)}, MemoryGrid(lenient(folders), moving(sizes), run=RUN + 1)
    first, _ = inner.round(grid, model)
    inner.train = exact.train = moving(sizes, seed=2)
    second, _ = inner.round(grid, first)
    wanted, _ = exact.round(grid_of(exact, settings_of(folders, "pairwise")), first)
    error = np.linalg.norm(second["w"] - wanted["w"]) / np.linalg.norm(wanted["w"] - first["w"])
    assert error < (0.05 if protocol == "pairwise" else 0.38)
    assert "were clipped" not in log.text


class MuteGrid(MemoryGrid):
    """A grid whose first node never answers, and a clock that advances with every poll."""

    now = 0.0

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        self.now += 1.0
        return [reply for reply in super().pull_messages(message_ids) if reply.metadata.src_node_id != 100]


@pytest.mark.parametrize("protocol", ["enclave", "two-servers"])
def test_a_node_that_is_silent_costs_the_timeout_and_is_in_no_sum(
    folders: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = MuteGrid(lenient(folders), adding(0.125))
    monkeypatch.setattr(server_round, "time", SimpleNamespace(monotonic=lambda: inner.now))
    grid = grid_of(inner, settings_of(folders, protocol))
    (reply,) = grid.send_and_receive(inner.messages(MODEL), timeout=5.0)
    assert np.allclose(reply.content.array_records["arrays"]["w"].numpy(), 3.5 * 0.125, atol=2**-16)
    assert inner.now == 5.0


def run_again(folders: Path, protocol: str, run: int, train: Train, model: Any = MODEL, **policy: Any) -> str:
    """Run a round on nodes that lost their state, and return the error."""
    inner, grid = begun(MemoryGrid(lenient(folders, **policy), train, run=run), settings_of(folders, protocol))
    try:
        inner.round(grid, model)
    except SecAggError as error:
        return type(error).__name__
    return "summed"


@pytest.mark.parametrize("protocol", ["enclave", "two-servers"])
def test_a_server_that_renames_its_task_gets_no_second_sum_of_an_update_or_of_a_model(
    folders: Path, protocol: str, log: Any
) -> None:
    from secagg.flower import server_grid  # noqa: PLC0415 -- needs Flower

    other = {name: values + 1 for name, values in MODEL.items()}
    assert run_again(folders, protocol, 1, adding(0.125)) == "summed"
    # A, B, A: the first task again, with its first round.
    assert run_again(folders, protocol, 2, adding(0.25), other) == "summed"
    vars(server_grid)["_ROUNDS"].clear()
    assert run_again(folders, protocol, 1, adding(0.5), {n: v + 2 for n, v in MODEL.items()}) == "ThresholdNotMet"
    assert "numbers must increase within a task" in log.text
    assert run_again(folders, protocol, 3, adding(0.125)) == "summed"
    assert run_again(folders, protocol, 4, adding(0.5)) == "summed"
    assert run_again(folders, protocol, 6, adding(0.75)) == "ThresholdNotMet"
    assert "3 times for the model" in log.text
    assert run_again(folders, protocol, 5, adding(0.125), allow_repeats=True) == "summed"


def test_a_semi_honest_run_may_begin_with_the_model_of_another(folders: Path) -> None:
    assert run_again(folders, "pairwise", 1, adding(0.125)) == "summed"
    assert run_again(folders, "pairwise", 2, adding(0.125)) == "summed"


def test_what_is_smaller_than_a_step_is_kept_on_average_and_both_ends_are_warned(folders: Path, log: Any) -> None:
    inner, grid = begun(
        MemoryGrid(lenient(folders), lambda model, _: {n: v + np.float32(2**-19) for n, v in model.items()}),
        SecAggSettings(),
    )
    arrays, _ = inner.round(grid, {"w": np.zeros((200, 200), dtype=np.float32)})
    assert float(arrays["w"].mean()) == pytest.approx(2**-19, rel=0.1)
    assert "this update's changes are about 0.1 steps" in log.text
    assert "the mean change is about" in log.text


def test_examples_beyond_the_full_weight_count_as_that(folders: Path, log: Any) -> None:
    inner, grid = begun(
        MemoryGrid(lenient(folders), lambda model, _: {**model, "metrics": {"num-examples": 2_000}}),
        SecAggSettings(full_weight=1_024),
    )
    assert inner.round(grid, MODEL)[1]["num-examples"] == CLIENTS * 1_024
    assert "2000 examples count as 1024, because secagg-full-weight is 1024" in log.text


@pytest.mark.parametrize(
    ("returned", "code"),
    [
        ({"metrics": {"num-examples": 2_000}}, "weight"),
        ({"w": np.full((4, 3), np.nan, dtype=np.float32)}, "range"),
        ({"w": np.zeros(3, dtype=np.float32)}, "training"),
    ],
)
def test_why_clients_left_reaches_the_servers_log_as_a_code_and_no_more(
    folders: Path, returned: dict[str, Any], code: str, log: Any
) -> None:
    inner, grid = begun(
        MemoryGrid(lenient(folders), lambda model, node: {**model, **(returned if node else {})}),
        SecAggSettings(full_weight=1_024),
    )
    inner.round(grid, MODEL)
    assert "clients left with code" not in log.text, code


def test_metrics_that_nobody_names_are_said_to_stay(folders: Path, log: Any) -> None:
    inner = MemoryGrid(lenient(folders), lambda model, _: {**model, "metrics": {"train_loss": 0.5, "acc": 1.0}})
    inner.round(grid_of(inner, SecAggSettings()), MODEL)
    assert "no training metric reaches this server: list the ones to average in secagg-metrics" in log.text
    assert "acc, train_loss stay at this client" in log.text
    log.clear()
    named = grid_of(inner, SecAggSettings(metrics="acc, train_loss"))
    assert inner.round(named, MODEL)[1]["train_loss"] == pytest.approx(0.5, abs=1e-3)
    assert "no training metric" not in log.text
    assert "stay at this client" not in log.text


@pytest.mark.parametrize("protocol", ["pairwise", "enclave", "two-servers"])
def test_a_training_that_fails_is_an_upload_like_any_other(folders: Path, protocol: str) -> None:
    def train(model: Any, node: int) -> dict[str, Any]:
        if node == 1:
            raise RuntimeError("a secret of this node")
        return {name: values + 1 for name, values in model.items()}

    inner, grid = begun(MemoryGrid(lenient(folders), train), settings_of(folders, protocol))
    arrays, _ = inner.round(grid, MODEL)
    assert np.abs(arrays["w"] - MODEL["w"] - 1).max() < 2**-15
    assert not any(count.left for _, count in grid.stages)
    assert all("a secret" not in str(message.content) for message in inner.sent)


def test_booleans_stay_as_they_were_sent(folders: Path) -> None:
    model: dict[str, Any] = {**MODEL, "mask": np.array([True, False])}
    inner, grid = begun(
        MemoryGrid(lenient(folders), lambda m, _: {n: v if n == "mask" else v + 1 for n, v in m.items()}),
        SecAggSettings(),
    )
    arrays, _ = inner.round(grid, model)
    assert (arrays["mask"].dtype, arrays["mask"].tolist()) == (np.dtype(bool), [True, False])
    # A strategy multiplies its inputs by floats.
    arrays, _ = inner.round(grid, {name: values * 1.0 for name, values in arrays.items()})
    assert arrays["mask"].dtype == np.dtype(bool)
    flipping = MemoryGrid(lenient(folders), lambda m, _: {**m, "mask": ~m["mask"]}, run=RUN + 1)
    with pytest.raises(ThresholdNotMet, match="training failed at too many clients"):
        flipping.round(grid_of(flipping, SecAggSettings()), model)


@pytest.mark.parametrize("returned", ["lora.*", "*"])
def test_adapters_alone_are_summed_where_patterns_name_them(folders: Path, returned: str) -> None:
    model: dict[str, Any] = {
        "base": np.ones((8, 8), np.float32),
        "lora.a": np.zeros((8, 2), np.float32),
        "lora.b": np.ones(2),
    }

    def train(sent: Any, _: int) -> dict[str, Any]:
        # A client keeps its changes to the other tensors.
        return {n: v + 0.5 for n, v in sent.items() if fnmatchcase(n, returned)}

    inner = MemoryGrid(lenient(folders), train)
    arrays, _ = inner.round(grid_of(inner, SecAggSettings(tensors="lora.*")), model)
    assert np.array_equal(arrays["base"], model["base"])
    assert np.allclose(arrays["lora.a"], 0.5, atol=2**-16)
    assert np.allclose(arrays["lora.b"], 1.5, atol=2**-16)


@pytest.mark.parametrize("protocol", ["pairwise", "enclave", "two-servers"])
def test_two_clients_are_refused_with_the_way_out(folders: Path, protocol: str) -> None:
    inner, grid = begun(MemoryGrid(lenient(folders), adding(0.1), clients=2), settings_of(folders, protocol))
    with pytest.raises(InvalidParameters, match=r"2 clients are too few.*--num-supernodes 5"):
        inner.round(grid, MODEL)
    assert not inner.sent


@pytest.mark.parametrize("protocol", ["pairwise", "enclave"])
def test_metrics_of_evaluation_are_summed_on_request(folders: Path, protocol: str, log: Any) -> None:
    inner = MemoryGrid(lenient(folders), lambda _, node: {"metrics": {"accuracy": node / 10, "secret": 4711}})
    chosen = settings_of(folders, protocol, evaluation_metrics=("accuracy",))
    grid = grid_of(inner, chosen)
    arrays, metrics = inner.round(grid, MODEL, "evaluate")
    assert not arrays
    counts = {"num-examples": CLIENTS, "secagg-trained": CLIENTS, "secagg-failed": 0}
    assert metrics == {**counts, "accuracy": pytest.approx(0.2, abs=1e-6)}
    assert "evaluation is not aggregated securely" not in log.text
    # Afterwards the same model is trained.
    inner.train = adding(0.1)
    inner.round(grid, MODEL)


def test_what_is_in_the_clear_is_said_once(folders: Path, log: Any) -> None:
    inner, grid = begun(MemoryGrid(lenient(folders), adding(0.125)), SecAggSettings())
    for _ in range(2):
        inner.round(grid, MODEL)
        list(grid.send_and_receive(inner.messages(MODEL, "evaluate")))
    assert log.text.count("this server learns the sums of updates") == 1
    assert log.text.count("evaluation is not aggregated securely") == 1
    assert "nothing else" not in log.text


def test_rounds_take_turns_by_the_number_that_clients_see(folders: Path) -> None:
    settings = SecAggSettings(tensors=";".join(sorted(MODEL)[:2]))
    inner, grid = begun(MemoryGrid(lenient(folders), adding(0.5)), settings)
    with pytest.raises(InvalidParameters, match="which clients take by server-round"):
        inner.round(grid, MODEL)
    for number in (1, 2, 3):
        messages = inner.messages(MODEL)
        for message in messages:
            message.content["config"] = inner.flwr.ConfigRecord({"server-round": number})
        (reply, *_) = grid.send_and_receive(messages, timeout=60)
        arrays = next(iter(reply.content.array_records.values()))
        moved = {name for name, array in arrays.items() if not np.array_equal(array.numpy(), MODEL[name])}
        assert moved == {sorted(MODEL)[(number - 1) % 2]}


def test_a_roster_that_certifies_nobody_is_said(folders: Path, log: Any) -> None:
    settings = SecAggSettings(mode="semi_honest", roster=str(folders / "keys" / "roster.txt"))
    plugin.SecAggGrid(MemoryGrid(lenient(folders), adding(0.125)), settings=settings)  # type: ignore[arg-type]
    assert "secagg-roster has no effect in semi_honest mode" in log.text


def keys_in(folder: Path) -> list[str]:
    """Return the files of the keys to sealed states."""
    return [path.name for path in (folder / "states").iterdir() if path.is_file() and path.name != "swept"]


@pytest.mark.parametrize("broken", ["no record", "no message", "other terms"])
def test_a_client_that_leaves_over_a_message_leaves_no_key_to_its_state(folders: Path, broken: str) -> None:
    mod = lenient(folders)
    inner, grid = begun(MemoryGrid(mod, adding(0.125)), settings_of(folders, "pairwise"))
    pushed = list[Any]()

    def record_first(messages: Iterable[Any]) -> list[str]:
        listed = list(messages)
        pushed.append(listed[0])
        if len(pushed) > 1:
            raise KeyboardInterrupt
        return MemoryGrid.push_messages(inner, listed)

    inner.push_messages = record_first  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        inner.round(grid, MODEL)
    assert len(keys_in(folders)) == CLIENTS
    flwr = inner.flwr
    records = {
        "no record": flwr.RecordDict(),
        "no message": flwr.RecordDict({"secagg": flwr.ConfigRecord()}),
        "other terms": flwr.RecordDict({"secagg": flwr.ConfigRecord({"message": b"x", "terms": "{"})}),
    }
    for context in inner.contexts:
        message = flwr.Message(records[broken], context.node_id, "train")
        message.metadata.__dict__["_message_id"] = "broken"
        assert mod(message, context, inner.call).has_error()
    assert not keys_in(folders)


Alter = Callable[[MemoryGrid, Any, Any], Any]
"""Maps a grid, its message and its reply to the reply that is returned."""


class AlteringGrid(MemoryGrid):
    """A grid whose first node answers as a test requires."""

    def __init__(self, mod: plugin.SecAggMod, alter: Alter) -> None:
        super().__init__(mod, adding(0.125))
        self.alter = alter

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        pushed = super().push_messages(messages)
        for sent in self.sent[len(self.sent) - len(pushed) :]:
            if sent.metadata.dst_node_id == 100:
                identity = sent.metadata.message_id
                self.replies[identity] = self.alter(self, sent, self.replies[identity])
        return pushed


def lost_later(grid: MemoryGrid, sent: Any, reply: Any) -> Any:
    """Lose a node after its first answer, as reported by a SuperLink in its own name."""
    if len(grid.sent) <= CLIENTS:
        return reply
    lost = grid.flwr.Message(grid.flwr.Error(code=3, reason="gone"), reply_to=sent)
    lost.metadata.__dict__["_src_node_id"] = 1
    return lost


def not_invited(_: MemoryGrid, __: Any, reply: Any) -> Any:
    reply.metadata.__dict__["_src_node_id"] = 999
    return reply


def holding(content: Callable[[Any], Any]) -> Alter:
    def alter(grid: MemoryGrid, _: Any, reply: Any) -> Any:
        reply.__dict__["_content"] = content(grid.flwr)
        return reply

    return alter


CONTENTS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda flwr: flwr.RecordDict(),
    "no records": lambda flwr: None,  # noqa: ARG005 -- as the others
    "text": lambda flwr: flwr.RecordDict({"secagg": flwr.ConfigRecord({"message": "a", "client": "b"})}),
    "numbers": lambda flwr: flwr.RecordDict({"secagg": flwr.ConfigRecord({"message": [1, 2], "client": 3})}),
    "arrays": lambda flwr: flwr.RecordDict({"secagg": flwr.ArrayRecord([np.zeros(3)])}),
    "no array": lambda flwr: flwr.RecordDict({"secagg.large": flwr.ArrayRecord([np.zeros(3)])}),
    "a short client": lambda flwr: flwr.RecordDict({"secagg": flwr.ConfigRecord({"message": b"a", "client": b"b"})}),
}


@pytest.mark.parametrize(
    ("alter", "said"),
    [
        (lost_later, "1 left"),
        (not_invited, "node 999 was not asked; a node can only answer for itself"),
        *(
            (holding(content), "code 'foreign'" if name in {"nothing", "arrays"} else "node 100 is excluded")
            for name, content in CONTENTS.items()
        ),
    ],
    ids=["lost later", "not invited", *CONTENTS],
)
def test_whatever_a_node_answers_leaves_it_out_and_nobody_else(
    folders: Path, alter: Alter, said: str, log: Any
) -> None:
    inner, grid = begun(AlteringGrid(lenient(folders), alter), settings_of(folders, "pairwise"))
    model, _ = inner.round(grid, {"w": np.zeros(4, dtype=np.float32)})
    assert np.allclose(model["w"], 0.125 * np.mean(range(2, CLIENTS + 1)), atol=1e-3)
    assert said in log.text


@pytest.mark.parametrize("fails", [True, False], ids=["fails", "answers"])
def test_an_error_of_a_round_whose_clients_lack_the_mod_asks_about_it(folders: Path, *, fails: bool, log: Any) -> None:
    """An app without the mod receives a message without a model: it raises an error, or answers in the clear."""

    def bare(message: Any, context: Any, call_next: Any) -> Any:
        del context, call_next
        flwr = pytest.importorskip("flwr.app")
        if fails:
            return flwr.Message(flwr.Error(2, "KeyError: 'arrays'"), reply_to=message)
        return flwr.Message(flwr.RecordDict({"metrics": flwr.MetricRecord({"num-examples": 1})}), reply_to=message)

    inner, grid = begun(MemoryGrid(cast("Any", bare), adding(0.125)), settings_of(folders, "pairwise"))
    said = "4 must complete the key exchange, 0 did; does the client app use ClientApp(mods=[SecAggMod()])?"
    with pytest.raises(ThresholdNotMet, match=re.escape(said)):
        inner.round(grid, {"w": np.zeros(4, dtype=np.float32)})
    assert "5 clients left with code 'foreign': their app failed, or it answered without secure" in log.text


@pytest.mark.parametrize("gap", [[], [None]])
def test_a_message_that_could_not_be_pushed_is_its_own_nodes_loss(folders: Path, gap: list[None], log: Any) -> None:
    """Grids omit such a message or return no identifier for it; neither must shift the others."""

    class Failing(MemoryGrid):
        def push_messages(self, messages: Iterable[Any]) -> list[str]:
            listed = list(messages)
            pushed = super().push_messages([one for one in listed if one.metadata.dst_node_id != 101])
            place = [one.metadata.dst_node_id for one in listed].index(101) if len(pushed) < len(listed) else 0
            return [*pushed[:place], *gap, *pushed[place:]] if len(pushed) < len(listed) else pushed  # type: ignore[list-item]

        def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
            listed = list(message_ids)
            assert None not in listed
            found = super().pull_messages(listed)
            if self.sent[-1].metadata.dst_node_id == 104 and len(self.sent) == CLIENTS - 1:
                for reply in found:
                    if reply.metadata.src_node_id == 104:
                        # One more node leaves, as Flower's link reports it.
                        reply.__dict__["_content"], reply.__dict__["_error"] = None, self.flwr.Error(3, "gone")
            return found

    inner, grid = begun(
        Failing(lenient(folders, minimum_threshold=2), adding(0.125), clients=8), settings_of(folders, "pairwise")
    )
    model, _ = inner.round(grid, {"w": np.zeros(4, dtype=np.float32)})
    assert "could not send to node 101" in log.text
    assert np.allclose(model["w"], 0.125 * np.mean([1, *range(3, 9)]), atol=1e-3)


def test_an_evaluation_that_is_summed_is_not_pushed_in_the_clear(folders: Path) -> None:
    inner = MemoryGrid(lenient(folders), adding(0.125))
    plain = grid_of(inner, SecAggSettings())
    summed = grid_of(inner, SecAggSettings(evaluation_metrics="loss"))
    assert len(list(plain.push_messages(inner.messages(MODEL, "query")))) == CLIENTS
    for kind, grid in (("train", plain), ("train", summed), ("evaluate", summed), ("evaluate.more", summed)):
        with pytest.raises(Misuse, match="would be in the clear"):
            grid.push_messages(inner.messages(MODEL, kind))


@pytest.mark.parametrize(("kind", "required"), [("train", None), ("evaluate", True), ("query", True), ("query", "yes")])
def test_a_node_that_requires_it_answers_nothing_in_the_clear_and_names_the_run(
    folders: Path, log: Any, kind: str, required: object
) -> None:
    inner = MemoryGrid(lenient(folders), adding(0.125))
    if required is not None:
        (message,) = inner.messages(MODEL, kind)[:1]
        # Without the operator's key an app's other functions are not restricted.
        assert kind == "train" or inner.mod(message, inner.contexts[0], inner.call).has_content()
        inner.contexts[0].node_config["secagg-required"] = required
    (message,) = inner.messages(MODEL, kind)[:1]
    called = list[object]()
    reply = inner.mod(message, inner.contexts[0], lambda *given: called.append(given))  # type: ignore[arg-type]
    assert reply.has_error()
    assert not called
    said = "must be True or False" if required == "yes" else f"run {RUN} asks for {kind!r} in the clear"
    assert said in log.text


def test_a_node_that_requires_it_takes_part_in_what_is_summed(folders: Path) -> None:
    inner, grid = begun(
        MemoryGrid(
            lenient(folders, required=True),
            lambda model, number: {**adding(0.125)(model, number), "metrics": {"loss": 10}},
        ),
        settings_of(folders, "pairwise", evaluation_metrics="loss"),
    )
    inner.round(grid, MODEL)
    _, metrics = inner.round(grid, MODEL, "evaluate")
    assert metrics["loss"] == 10


def test_terms_of_another_run_are_refused(folders: Path, log: Any) -> None:
    inner = MemoryGrid(lenient(folders), adding(0.125))
    inner.run = SimpleNamespace(run_id=RUN * 10 + RUN)
    grid = grid_of(inner, settings_of(folders, "pairwise"))
    with pytest.raises(ThresholdNotMet):
        inner.round(grid, MODEL)
    assert "the server names task 'flower run 77', but this run is 'flower run 7'" in log.text


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_why_clients_left_is_in_the_reply(folders: Path, kind: str) -> None:
    def train(model: Any, node: int) -> dict[str, Any]:
        if node == 2:
            raise RuntimeError("a secret of this client")
        return {"metrics": {"loss": 1.0}, **({} if kind == "evaluate" else model)}

    inner = MemoryGrid(lenient(folders), train)
    chosen = settings_of(folders, "pairwise", evaluation_metrics="loss")
    grid = grid_of(inner, chosen)
    reply = next(iter(grid.send_and_receive(inner.messages(MODEL, kind))))
    told = {name: str(text) for name, text in reply.content.config_records["secagg.left"].items()}
    assert list(told) == ["advertise keys", "share keys", "masked input", "unmasking", "sum"]
    assert all("left" not in text for text in told.values())
    assert "secret" not in str(told)


@pytest.mark.parametrize(("protocol", "stage"), [*(("pairwise", stage) for stage in range(4)), ("two-servers", 0)])
def test_a_run_that_is_stopped_ends_its_round_and_wipes_its_keys(
    folders: Path, protocol: str, stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``flwr stop`` has Flower raise SIGINT in the server's process, whose handler raises SystemExit wherever it is."""
    sessions, plain = list[Any](), RoundTask.opened

    def opened(task: RoundTask, *args: Any, **more: Any) -> Any:
        sessions.append(plain(task, *args, **more))
        return sessions[-1]

    class Stopped(MemoryGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
            if len(self.sent) == (stage + 1) * CLIENTS:
                signal.raise_signal(signal.SIGINT)
            return super().pull_messages(message_ids)

    def handle(*_: Any) -> None:
        raise SystemExit(0)

    monkeypatch.setattr(RoundTask, "opened", opened)
    before = signal.signal(signal.SIGINT, handle)
    try:
        inner = Stopped(lenient(folders), adding(0.125))
        grid = grid_of(inner, settings_of(folders, protocol))
        with pytest.raises(SystemExit):
            inner.round(grid, MODEL)
    finally:
        signal.signal(signal.SIGINT, before)
    (session,) = sessions
    assert session.stage is None
    with pytest.raises(SecAggError):
        session.release()
    # The same nodes take part in the next run; suspended states are not resumed.
    following = MemoryGrid(lenient(folders, allow_repeats=True), adding(0.25), run=RUN + 1)
    other = {name: values + 1 for name, values in MODEL.items()}
    following.round(grid_of(following, settings_of(folders, protocol)), other)
