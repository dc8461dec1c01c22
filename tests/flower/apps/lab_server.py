"""Scenarios on a simulated federation: each runs rounds of a real strategy, and says what came out.

Run as ``python lab_server.py OUTPUT NODES SCENARIO...``; the scenarios share one simulation, because starting one takes
longer than a round.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from lab_app import CHAOS, PLAIN_TYPE, app
from lab_truth import expected, initial_model, mean_loss

from secagg.contract import Layout, RingSegment
from secagg.entropy import SystemCoins
from secagg.errors import SecAggError
from secagg.flower import SecAggGrid, SecAggSettings, secure_round
from secagg.flower.records import RECORD, message_in, with_message
from secagg.flower.sealed_state import DIRECTORY_VARIABLE
from secagg.protocols.pairwise_mask import SessionConfiguration, plan_session
from secagg.protocols.pairwise_mask.client_set import ClientSet
from secagg.wire import message_kind

Tamper = Callable[[Message], Iterable[Message]]


class HostileGrid(Grid):
    """A server that does to its own messages what a scenario says, and sees everything that clients send."""

    def __init__(self, inner: Grid, tamper: Tamper | None = None) -> None:
        self.inner = inner
        self.tamper = tamper
        self.seen = list[Message]()
        self.names = dict[int, set[str]]()
        self.uploaded = dict[int, list[bytes]]()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        listed = list(messages)
        if self.tamper is not None:
            listed = [altered for message in listed for altered in self.tamper(message)]
        return self.inner.push_messages(listed)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(self.inner.pull_messages(message_ids))
        for reply in replies:
            node = reply.metadata.src_node_id
            if not reply.has_error():
                self.names.setdefault(node, set()).update(reply.content.keys())
                self.uploaded.setdefault(node, []).append(message_in(reply.content))
            self.seen.append(reply)
        return replies

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.inner.send_and_receive(messages, timeout=timeout)

    def set_run(self, run: Any) -> None:
        self.inner.set_run(run)

    @property
    def run(self) -> Any:
        return self.inner.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        return self.inner.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        return self.inner.get_node_ids()


class PlainTwin(FedAvg):
    """The same strategy without secure aggregation."""

    def configure_train(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        for message in super().configure_train(*args, **kwargs):
            message.metadata.message_type = PLAIN_TYPE
            yield message


class Lab:
    """One simulated federation, and what the scenarios need of it."""

    def __init__(self, grid: Grid, count: int) -> None:
        self.grid = grid
        self.count = count
        while len(list(grid.get_node_ids())) < count:
            time.sleep(0.05)
        self.nodes = sorted(grid.get_node_ids())

    def start(
        self,
        grid: Grid,
        *,
        rounds: int = 1,
        chaos: dict[int, dict[str, Any]] | None = None,
        strategy: Any = None,
        model: dict[str, Any] | None = None,
    ) -> tuple[dict[str, Any], dict[int, dict[str, float]]]:
        chosen = strategy or FedAvg(fraction_evaluate=0.0, min_available_nodes=self.count)
        result = chosen.start(
            grid=grid,
            initial_arrays=ArrayRecord({n: Array(np.asarray(v)) for n, v in (model or initial_model()).items()}),
            num_rounds=rounds,
            timeout=120,
            train_config=ConfigRecord({CHAOS: json.dumps(chaos or {})}),
        )
        arrays = {name: array.numpy() for name, array in result.arrays.items()}
        return arrays, {number: dict(record) for number, record in result.train_metrics_clientapp.items()}

    def secure(  # noqa: PLR0913 -- what scenarios differ in
        self,
        *,
        tamper: Tamper | None = None,
        strategy: Any = None,
        rounds: int = 1,
        chaos: dict[int, dict[str, Any]] | None = None,
        present: Iterable[int] | None = None,
        weights: dict[int, int] | None = None,
        **settings: Any,
    ) -> dict[str, Any]:
        """Run rounds, and compare the model with the mean over those that should be in it."""
        hostile = HostileGrid(self.grid, tamper)
        grid = SecAggGrid(hostile, settings=SecAggSettings(**{"metrics": "loss", "stage_timeout": 20.0, **settings}))
        began = time.monotonic()
        outcome: dict[str, Any] = {"error": None}
        try:
            arrays, metrics = self.start(grid, rounds=rounds, chaos=chaos, strategy=strategy)
        except Exception as error:  # noqa: BLE001 -- whatever ends a run is an outcome
            if not isinstance(error, SecAggError):
                traceback.print_exc()
            outcome["error"] = f"{type(error).__name__}: {error}"
        else:
            who = range(self.count) if present is None else present
            outcome |= difference(arrays, expected(who, rounds, weights or {}))
            outcome["metrics"] = metrics
            outcome["loss"] = mean_loss(who, weights or {})
        outcome["seconds"] = time.monotonic() - began
        outcome["stages"] = [
            {"name": name, "sent": c.sent, "received": c.received, "refused": c.refused, "failed": c.failed}
            for name, c in grid.stages
        ]
        outcome["errors"] = sorted({str(m.error.reason) for m in hostile.seen if m.has_error()})
        outcome["left"] = sum(m.has_error() for m in hostile.seen)
        outcome["names"] = sorted(set().union(*hostile.names.values())) if hostile.names else []
        self.hostile = hostile
        return outcome

    def state_left(self) -> int:
        """Return how many bytes of sessions are left on all nodes together."""
        queries = [Message(RecordDict(), node, "query") for node in self.nodes]
        replies = self.grid.send_and_receive(queries, timeout=60)
        return sum(int(str(reply.content.metric_records["state"]["bytes"])) for reply in replies)


def difference(arrays: dict[str, Any], due: dict[str, Any]) -> dict[str, Any]:
    found = {name: float(np.abs(arrays[name].astype(np.float64) - due[name]).max(initial=0.0)) for name in due}
    return {"difference": found, "steps": float(arrays["steps"])}


# --- Scenarios --------------------------------------------------------------------------------------------------------


def twin(lab: Lab) -> dict[str, Any]:
    """FedAvg beside FedAvg."""
    plain, metrics = lab.start(lab.grid, rounds=2, strategy=PlainTwin(fraction_evaluate=0.0))
    secure = lab.secure(rounds=2)
    grid = SecAggGrid(lab.grid, settings=SecAggSettings(metrics="loss"))
    arrays, _ = lab.start(grid, rounds=2)
    floats = [name for name in plain if plain[name].dtype.kind == "f" and name != "steps"]
    secure["twin"] = {n: float(np.abs(plain[n].astype(float) - arrays[n]).max(initial=0.0)) for n in floats}
    secure["twin_loss"] = metrics[2]["loss"]
    secure["state_left"] = lab.state_left()
    secure["files_left"] = len(list(Path(os.environ[DIRECTORY_VARIABLE]).iterdir()))
    return secure


def scalar(lab: Lab) -> dict[str, Any]:
    outcome = lab.secure(rounds=3, compression="scalar-8")
    outcome["upload"] = [max(map(len, messages)) for messages in lab.hostile.uploaded.values()]
    return outcome


def _dropped_at(kind: str, do: str = "raise") -> Callable[[Lab], dict[str, Any]]:
    def scenario(lab: Lab) -> dict[str, Any]:
        # One that is silent holds one of the simulation's two processes.
        told = (1,) if do == "silent" else (1, 4)
        chaos = {p: {"at": kind, "do": do, "seconds": 15} for p in told}
        gone = told if kind in ("TRAIN", "ADVERTISED_KEYS", "DELIVERED_SHARES") else ()
        outcome = lab.secure(chaos=chaos, present=[p for p in range(lab.count) if p not in gone])
        if do != "silent":
            outcome["state_left"] = lab.state_left()
        return outcome

    return scenario


def too_many_gone(lab: Lab) -> dict[str, Any]:
    return lab.secure(chaos={p: {"at": "DELIVERED_SHARES", "do": "raise"} for p in (0, 1, 4)})


def restarted(lab: Lab) -> dict[str, Any]:
    outcome = lab.secure(
        chaos={1: {"at": "ADVERTISED_KEYS", "do": "restart"}, 2: {"at": "DELIVERED_SHARES", "do": "restart"}},
        present=[p for p in range(lab.count) if p not in (1, 2)],
    )
    outcome["again"] = lab.secure()
    return outcome


def rolled_back(lab: Lab) -> dict[str, Any]:
    """Bring back the state of two clients as it was before they answered; they answer nothing more."""
    return lab.secure(
        chaos={1: {"at": "ADVERTISED_KEYS", "do": "roll-back"}, 2: {"at": "DELIVERED_SHARES", "do": "roll-back"}},
        present=[p for p in range(lab.count) if p != 1],
    )


def strategies_that_average(lab: Lab) -> dict[str, Any]:
    outcome = dict[str, Any]()
    common: dict[str, Any] = {"fraction_evaluate": 0.0}
    for name, extra in (
        ("FedAdam", {}),
        ("FedYogi", {}),
        ("FedAdagrad", {}),
        ("FedAvgM", {"server_momentum": 0.9}),
        ("FedProx", {"proximal_mu": 0.1}),
    ):
        kind = getattr(strategies, name)
        floats = {n: v for n, v in initial_model().items() if n in ("layer", "bias")}

        class Plain(kind):  # type: ignore[misc, valid-type]
            def configure_train(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
                for message in super().configure_train(*args, **kwargs):
                    message.metadata.message_type = PLAIN_TYPE
                    yield message

        plain, _ = lab.start(lab.grid, rounds=2, strategy=Plain(**common, **extra), model=floats)
        grid = SecAggGrid(lab.grid, settings=SecAggSettings())
        secure, _ = lab.start(grid, rounds=2, strategy=kind(**common, **extra), model=floats)
        outcome[name] = max(float(np.abs(plain[n] - secure[n]).max()) for n in floats)
    return outcome


def private(lab: Lab) -> dict[str, Any]:
    """Add next to no noise, by a strategy that clips on the clients."""
    wrapped = strategies.DifferentialPrivacyClientSideFixedClipping(
        FedAvg(fraction_evaluate=0.0), noise_multiplier=1e-9, clipping_norm=1.0, num_sampled_clients=lab.count
    )
    return lab.secure(strategy=wrapped)


def strategies_that_do_not(lab: Lab) -> dict[str, Any]:
    outcome = dict[str, Any]()
    for name, extra in (
        ("Krum", {"num_malicious_nodes": 1}),
        ("MultiKrum", {"num_malicious_nodes": 1, "num_nodes_to_select": 3}),
        ("Bulyan", {"num_malicious_nodes": 1}),
        ("FedMedian", {}),
        ("FedTrimmedAvg", {}),
        ("QFedAvg", {"client_learning_rate": 0.1}),
    ):
        outcome[name] = lab.secure(strategy=getattr(strategies, name)(fraction_evaluate=0.0, **extra))["error"]
    wrapped = strategies.DifferentialPrivacyServerSideFixedClipping(
        FedAvg(fraction_evaluate=0.0), noise_multiplier=0.1, clipping_norm=1.0, num_sampled_clients=8
    )
    outcome["DifferentialPrivacyServerSideFixedClipping"] = lab.secure(strategy=wrapped)["error"]
    return outcome


def hybrid(lab: Lab) -> dict[str, Any]:
    return lab.secure(
        suite="hybrid",
        chaos={1: {"at": "DELIVERED_SHARES", "do": "raise"}, 2: {"at": "UNMASKING_REQUEST", "do": "raise"}},
        present=[p for p in range(lab.count) if p != 1],
    )


# --- Attacks by the server --------------------------------------------------------------------------------------------


def unwrapped(lab: Lab) -> dict[str, Any]:
    """Ask for the update as if nothing were."""
    hostile = HostileGrid(lab.grid)
    messages = FedAvg(fraction_evaluate=0.0).configure_train(
        1, ArrayRecord({n: Array(np.asarray(v)) for n, v in initial_model().items()}), ConfigRecord(), lab.grid
    )
    replies = list(hostile.send_and_receive(messages, timeout=60))
    return {"content": sum(reply.has_content() for reply in replies), "replies": len(replies)}


def second_request(lab: Lab) -> dict[str, Any]:
    """Ask for the shares of both secrets: once with everybody, and once with a victim declared dropped."""

    def tamper(message: Message) -> Iterable[Message]:
        yield message
        if _kind(message) == "UNMASKING_REQUEST":
            request = bytearray(message_in(message.content))
            # After the header and the context stands the set of contributors; the first position leaves it.
            request[7 + 32] ^= 1
            metadata = message.metadata
            yield Message(with_message(bytes(request)), metadata.dst_node_id, "train", group_id=metadata.group_id)

    outcome = lab.secure(tamper=tamper)
    answers = [m for m in lab.hostile.seen if not m.has_error()]
    outcome["answers"] = len(answers)
    return outcome


def _offering(**changes: Any) -> Callable[[Lab], dict[str, Any]]:
    """Plan as the library does, then offer something weaker, and check nothing of it."""

    def weaker(*args: Any, **kwargs: Any) -> Any:
        plan = plan_session(*args, **kwargs)
        return replace(plan, configuration=replace(plan.configuration, **changes))

    def scenario(lab: Lab) -> dict[str, Any]:
        replaced = vars(secure_round)
        replaced["plan_session"] = weaker
        check = SessionConfiguration.require_population
        SessionConfiguration.require_population = lambda *_, **__: None  # type: ignore[method-assign]
        try:
            return lab.secure()
        finally:
            replaced["plan_session"] = plan_session
            SessionConfiguration.require_population = check  # type: ignore[method-assign]

    return scenario


def other_graph(lab: Lab) -> dict[str, Any]:
    """Open another seed of the graph than the one that was committed to."""

    def tamper(message: Message) -> Iterable[Message]:
        if _kind(message) == "ADVERTISED_KEYS":
            shown = bytearray(message_in(message.content))
            size = int.from_bytes(shown[39:43], "big")
            shown[43 + size + 32] ^= 1
            message.content = with_message(bytes(shown))
        yield message

    return lab.secure(tamper=tamper)


def other_models(lab: Lab) -> dict[str, Any]:
    """Tell half of the clients another model under the same digest."""
    half = set(lab.nodes[::2])

    def tamper(message: Message) -> Iterable[Message]:
        if message.metadata.dst_node_id in half and "arrays" in message.content:
            arrays = {n: Array(np.asarray(a.numpy() * 2)) for n, a in message.content.array_records["arrays"].items()}
            message.content = RecordDict({**message.content, "arrays": ArrayRecord(arrays)})
        yield message

    return lab.secure(tamper=tamper)


def same_round_again(lab: Lab) -> dict[str, Any]:
    """Ask for the same round once more, for another sum with the same update."""
    kept = list[RecordDict]()

    def keep(message: Message) -> Iterable[Message]:
        if RECORD in message.content and message.content[RECORD]["stage"] == "train":
            kept.append(RecordDict(dict(message.content.items())))
        yield message

    outcome = lab.secure(tamper=keep)
    again = [Message(content, node, "train") for content, node in zip(kept, lab.nodes, strict=True)]
    replies = list(lab.grid.send_and_receive(again, timeout=60))
    outcome["again"] = sum(reply.has_content() for reply in replies)
    return outcome


def substituted_keys(lab: Lab) -> dict[str, Any]:
    """Put keys of the server's own in the place of a neighbour's."""

    def tamper(message: Message) -> Iterable[Message]:
        if _kind(message) == "ADVERTISED_KEYS" and message.metadata.dst_node_id in lab.nodes[:2]:
            shown = bytearray(message_in(message.content))
            middle = len(shown) // 2
            shown[middle : middle + 32] = SystemCoins().draw(32)
            message.content = with_message(bytes(shown))
        yield message

    return lab.secure(tamper=tamper, present=range(2, lab.count))


def two_stories(lab: Lab) -> dict[str, Any]:
    """Tell half of the contributors that one of them dropped out, so that both its secrets are shown."""
    half = set(lab.nodes[::2])

    def tamper(message: Message) -> Iterable[Message]:
        if message.metadata.dst_node_id in half and _kind(message) in ("UNMASKING_REQUEST", "SURVIVOR_SET"):
            request = bytearray(message_in(message.content))
            offset = 7 + 32 + (1 if _kind(message) == "SURVIVOR_SET" else 0)
            members = ClientSet(lab.count, request[offset])
            request[offset] &= ~(1 << next(iter(members)))
            message.content = with_message(bytes(request))
        yield message

    return lab.secure(tamper=tamper)


def _kind(message: Message) -> str:
    record = message.content.config_records.get(RECORD)
    if record is None or record["stage"] == "train":
        return "TRAIN"
    return message_kind(message_in(message.content)).name


# --- Attacks and accidents by clients ---------------------------------------------------------------------------------


def wrong_share(lab: Lab) -> dict[str, Any]:
    return lab.secure(chaos={3: {"at": "UNMASKING_REQUEST", "do": "wrong-share"}})


def nan(lab: Lab) -> dict[str, Any]:
    return lab.secure(chaos={2: {"do": "nan"}}, present=[p for p in range(lab.count) if p != 2])


def heavy(lab: Lab) -> dict[str, Any]:
    return lab.secure(chaos={2: {"examples": 1001}}, present=[p for p in range(lab.count) if p != 2])


def light(lab: Lab) -> dict[str, Any]:
    """Precision does not fall with the weight."""
    outcome = {}
    for weight in (1, 1000):
        weights = dict.fromkeys(range(lab.count), weight)
        chaos = {p: {"examples": weight} for p in range(lab.count)}
        outcome[str(weight)] = lab.secure(chaos=chaos, weights=weights)["difference"]["layer"]
    return outcome


def narrow_ring(lab: Lab) -> dict[str, Any]:
    return lab.secure(modulus_bits=16)


def clipped(lab: Lab) -> dict[str, Any]:
    return lab.secure(chaos={2: {"do": "large"}})


def even_sizes(lab: Lab) -> dict[str, Any]:
    outcome = {}
    for size in (4, 5, 6, 7):
        strategy = FedAvg(fraction_train=size / lab.count + 1e-6, min_train_nodes=size, fraction_evaluate=0.0)
        outcome[str(size)] = lab.secure(strategy=strategy)["error"]
    return outcome


SCENARIOS: dict[str, Callable[[Lab], dict[str, Any]]] = {
    "twin": twin,
    "scalar": scalar,
    "drop_train": _dropped_at("TRAIN"),
    "drop_advertised": _dropped_at("ADVERTISED_KEYS"),
    "drop_delivered": _dropped_at("DELIVERED_SHARES"),
    "drop_survivors": _dropped_at("SURVIVOR_SET"),
    "drop_unmasking": _dropped_at("UNMASKING_REQUEST"),
    "silent": _dropped_at("DELIVERED_SHARES", "silent"),
    "too_many_gone": too_many_gone,
    "restarted": restarted,
    "rolled_back": rolled_back,
    "averaging": strategies_that_average,
    "private": private,
    "not_averaging": strategies_that_do_not,
    "hybrid": hybrid,
    "unwrapped": unwrapped,
    "second_request": second_request,
    "low_cohort": _offering(minimum_cohort=2),
    "low_threshold": _offering(threshold=2),
    "low_ring": _offering(layout=Layout((RingSegment(1, 1000),))),
    "large_population": _offering(maximum_population=20_000),
    "other_graph": other_graph,
    "other_models": other_models,
    "same_round_again": same_round_again,
    "substituted_keys": substituted_keys,
    "two_stories": two_stories,
    "wrong_share": wrong_share,
    "nan": nan,
    "heavy": heavy,
    "light": light,
    "narrow_ring": narrow_ring,
    "clipped": clipped,
    "even_sizes": even_sizes,
    "active": lambda lab: lab.secure(mode="active", roster=f"{os.environ['LAB_KEYS']}/roster.json"),
    "active_sparse": lambda lab: lab.secure(
        mode="active", graph="sparse", roster=f"{os.environ['LAB_KEYS']}/roster.json"
    ),
    "sparse": lambda lab: lab.secure(
        graph="sparse", chaos={5: {"at": "TRAIN", "do": "raise"}}, present=[p for p in range(lab.count) if p != 5]
    ),
}


def active(scenario: Callable[[Lab], dict[str, Any]]) -> Callable[[Lab], dict[str, Any]]:
    """Return the same scenario in active mode."""

    def in_active_mode(lab: Lab) -> dict[str, Any]:
        original = lab.secure
        lab.secure = lambda **settings: original(  # type: ignore[method-assign]
            **{"mode": "active", "roster": f"{os.environ['LAB_KEYS']}/roster.json", **settings}
        )
        try:
            return scenario(lab)
        finally:
            lab.secure = original  # type: ignore[method-assign]

    return in_active_mode


def main() -> None:
    output, nodes, names = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, _: Any) -> None:
        lab, outcomes = Lab(grid, nodes), dict[str, Any]()
        log = Path(os.environ["LAB_LOG"])
        for name in names:
            scenario = SCENARIOS[name.removeprefix("active:")]
            before = log.stat().st_size if log.exists() else 0
            try:
                outcomes[name] = (active(scenario) if name.startswith("active:") else scenario)(lab)
            except Exception:  # noqa: BLE001 -- the other scenarios still run
                outcomes[name] = {"crashed": traceback.format_exc()}
            time.sleep(0.1)
            with log.open("rb") as file:
                file.seek(before)
                outcomes[name]["log"] = file.read().decode()
            output.write_text(json.dumps(outcomes, default=str), encoding="utf-8")

    run_simulation(
        server_app=server,
        client_app=app,
        num_supernodes=nodes,
        backend_config={"client_resources": dict(num_cpus=1, num_gpus=0.0)},
    )
    if not math.isfinite(output.stat().st_size):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
