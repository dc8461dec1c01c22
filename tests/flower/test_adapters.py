"""The example with Flower and PEFT, with nodes in this process: PEFT's own models, in bfloat16."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from secagg.adapters import with_middle
from secagg.platforms.client_node import DIRECTORY_VARIABLE

pytestmark = [
    pytest.mark.flower_torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


class Nodes:
    """A grid whose nodes answer immediately, each with its own app."""

    def __init__(self, flwr: Any, answer: Callable[[int, Any, Any], Any], clients: int) -> None:
        self.flwr, self.answer, self.run = flwr, answer, SimpleNamespace(run_id=hash(self) & 0xFFFF)
        self.contexts = [
            flwr.Context(self.run.run_id, 100 + node, {"partition-id": node}, flwr.RecordDict(), {})
            for node in range(clients)
        ]
        self.replies, self.sent, self.bytes_up = dict[str, Any](), 0, 0

    def get_node_ids(self) -> list[int]:
        return [100 + node for node in range(len(self.contexts))]

    def push_messages(self, messages: Any) -> list[str]:
        pushed = list[str]()
        for message in messages:
            self.sent += 1
            identity, node = f"message {self.sent}", message.metadata.dst_node_id - 100
            message.metadata.__dict__["_message_id"] = identity
            records = {name: type(record)(dict(record.items())) for name, record in message.content.items()}
            copy = self.flwr.Message(
                self.flwr.RecordDict(records), message.metadata.dst_node_id, message.metadata.message_type
            )
            copy.metadata.__dict__["_message_id"] = identity
            self.replies[identity] = self.answer(node, copy, self.contexts[node])
            pushed.append(identity)
        return pushed

    def pull_messages(self, identities: Any) -> list[Any]:
        return [self.replies.pop(one) for one in sorted(identities) if one in self.replies]

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Any]:
        del timeout
        return self.pull_messages(self.push_messages(messages))


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    monkeypatch.setenv("SECAGG_STATE_DIRECTORY", str(tmp_path / "states"))
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "ledgers"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from flwr.supercore.task_identity import TaskIdentity  # noqa: PLC0415 -- needs Flower

    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(logging.getLogger("secagg.platforms"), "propagate", True)
    caplog.set_level(logging.INFO, "secagg.platforms")
    path = Path(__file__).resolve().parents[2] / "examples" / "adapters" / "flower_peft.py"
    spec = importlib.util.spec_from_file_location("flower_peft", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def started(app: Any, answer: Callable[[int, Any, Any], Any]) -> dict[str, Any]:
    import flwr.app as flwr  # noqa: PLC0415 -- needs Flower

    result = app.run(Nodes(flwr, answer, app.CLIENTS))
    return {name: array.numpy() for name, array in result.arrays.items()}


@pytest.mark.parametrize("method", ["fedit", "ffa", "alternate", "sb"])
def test_adapters_in_bfloat16_end_near_those_of_plain_fedavg(
    app: Any, method: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if method == "sb":
        made = app.make_model
        monkeypatch.setattr(app, "make_model", lambda: with_middle(made()))
    app.plan = app.AdapterPlan.of(app.make_model(), method)
    mod, before = app.SecAggMod(adapter=app.plan.fingerprint), app.plan.arrays(app.make_model())
    secured = started(app, lambda _, message, context: mod(message, context, app.train))
    monkeypatch.setattr(app, "SecAggGrid", lambda grid, **_: grid)
    plain = started(app, lambda _, message, context: app.train(message, context))
    assert plain.keys() == secured.keys() == before.keys()
    moved = {name for name in before if not np.array_equal(before[name], secured[name])}
    assert moved == {name for turn in range(app.ROUNDS) for name in app.plan.names(turn)}
    change = np.concatenate([(plain[name] - before[name]).ravel() for name in before])
    away = np.concatenate([(plain[name] - secured[name]).ravel() for name in before])
    assert np.linalg.norm(away) < 0.1 * np.linalg.norm(change)
    assert {values.dtype for values in secured.values()} == {np.dtype(np.float32)}
    assert caplog.text.count("sum: 8 clients") == app.ROUNDS


def test_a_client_with_another_rank_leaves_before_it_trains(app: Any, caplog: pytest.LogCaptureFixture) -> None:
    other, trained = app.AdapterPlan.of(app.make_model(rank=4), "fedit").fingerprint, set[int]()

    def answer(node: int, message: Any, context: Any) -> Any:
        def train(message: Any, context: Any) -> Any:
            trained.add(node)
            return app.train(message, context)

        return app.SecAggMod(adapter=app.plan.fingerprint if node else other)(message, context, train)

    started(app, answer)
    assert trained == {*range(1, 8)}
    assert "rank 4, but the server's has 8" in caplog.text
    assert "terms" in caplog.text
    assert caplog.text.count("sum: 7 clients") == app.ROUNDS
