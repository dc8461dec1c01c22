"""Scenarios on a federation in memory or simulated: each runs rounds of a real strategy, and reports the results.

Run as ``python lab_server.py memory|simulation OUTPUT SCENARIO...``; the scenarios share one federation. Scenarios with
sparse graphs use all its nodes, the others the first eight.
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
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.server.superlink.fleet.vce.backend.backend import BackendConfig
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp import strategy as strategies
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from lab_app import CHAOS_FILE, PLAIN_TYPE, kind_of, over
from lab_lies import LIES, terms_for_some
from lab_memory import MemoryGrid
from lab_one_message import ONE_MESSAGE
from lab_statistics import app
from lab_strategies import Lenient, PlainTwin, equal_means
from lab_truth import change, counted, expected, initial_model, mean_loss
from lab_two_servers import TWO_SERVERS, simulated, start_listening

from secagg.contract import Layout, RingSegment
from secagg.crypto.entropy import SystemCoins
from secagg.errors import SecAggError
from secagg.flower import SecAggGrid, SecAggSettings, ask
from secagg.flower.client import record_in, with_record
from secagg.identifiers import ClientId
from secagg.platforms.terms import RECORD, message_in, record_of
from secagg.protocols.pairwise_mask import SessionConfiguration, plan_session
from secagg.protocols.pairwise_mask import plan as pairwise_plan
from secagg.protocols.pairwise_mask.configuration import ClientSet
from secagg.session.identities import make_identities
from secagg.session.sealed_state import DIRECTORY_VARIABLE
from tests.harness.town_of_sites import declared

EIGHT, MANY = 8, 24
FOR_EVER = 600.0
"""More seconds than anything takes, so that no machine is too slow for a scenario."""
Tamper = Callable[[Message], Iterable[Message]]


class Part(Grid):
    """A grid with some of the nodes."""

    def __init__(self, inner: Grid, nodes: list[int]) -> None:
        self.inner, self.nodes = inner, nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self.inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self.inner.pull_messages(message_ids)

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
        return self.nodes


class HostileGrid(Part):
    """A server that changes its messages as a scenario requires, and sees everything that clients send."""

    def __init__(self, inner: Grid, tamper: Tamper | None = None) -> None:
        super().__init__(inner, list(inner.get_node_ids()))
        self.tamper = tamper
        self.seen = list[Message]()
        self.names = dict[int, set[str]]()
        self.open = set[str]()
        """Requests without an answer yet."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        listed = list(messages)
        if self.tamper is not None:
            listed = [altered for message in listed for altered in self.tamper(message)]
        pushed = list(self.inner.push_messages(listed))
        self.open.update(pushed)
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = list(self.inner.pull_messages(message_ids))
        for reply in replies:
            node = reply.metadata.src_node_id
            if not reply.has_error():
                self.names.setdefault(node, set()).update(reply.content.keys())
            self.seen.append(reply)
            self.open.discard(reply.metadata.reply_to_message_id)
        return replies


class Lab:
    """Some nodes of a simulated federation, and helpers for the scenarios."""

    def __init__(self, grid: Grid, nodes: list[int], context: Any) -> None:
        self.grid, self.nodes, self.count, self.context = Part(grid, nodes), sorted(nodes), len(nodes), context

    def start(  # noqa: PLR0913 -- what runs differ in
        self,
        grid: Grid,
        *,
        rounds: int = 1,
        chaos: dict[int, dict[str, Any]] | None = None,
        strategy: Any = None,
        timeout: float = FOR_EVER,
        model: dict[str, Any] | None = None,
    ) -> tuple[dict[str, Any], dict[int, dict[str, float]]]:
        chosen = strategy or FedAvg(fraction_evaluate=0.0, min_available_nodes=self.count)
        Path(os.environ[CHAOS_FILE]).write_text(json.dumps(chaos or {}), encoding="utf-8")
        result = chosen.start(
            grid=grid,
            initial_arrays=ArrayRecord({n: Array(np.asarray(v)) for n, v in (model or initial_model()).items()}),
            num_rounds=rounds,
            timeout=timeout,
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
        timeout: float = FOR_EVER,
        **settings: Any,
    ) -> dict[str, Any]:
        """Run rounds, and compare the model with the mean over the clients that should be in it."""
        hostile = HostileGrid(self.grid, tamper)
        grid = SecAggGrid(
            hostile, settings=SecAggSettings(**{"metrics": "loss", "stage_timeout": FOR_EVER, **settings})
        )
        began = time.monotonic()
        over().unlink(missing_ok=True)
        outcome: dict[str, Any] = {"error": None}
        try:
            arrays, metrics = self.start(grid, rounds=rounds, chaos=chaos, strategy=strategy, timeout=timeout)
        except Exception as error:  # noqa: BLE001 -- whatever ends a run is an outcome
            if not isinstance(error, SecAggError):
                traceback.print_exc()
            outcome["error"] = f"{type(error).__name__}: {error}"
        else:
            who = range(self.count) if present is None else present
            self.arrays = arrays
            outcome |= difference(arrays, expected(who, rounds, weights or {}, chaos or {}))
            outcome["metrics"] = metrics
            outcome["loss"] = mean_loss(who, weights or {}, chaos or {})
        over().touch()
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
        """Return the total bytes of sessions that are left on all nodes."""
        return sum(states(self.grid, "bytes").values())


def states(grid: Grid, name: str) -> dict[int, int]:
    """Return one number from every node's state."""
    queries = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
    replies = grid.send_and_receive(queries, timeout=FOR_EVER)
    return {reply.metadata.src_node_id: int(str(reply.content.metric_records["state"][name])) for reply in replies}


def difference(arrays: dict[str, Any], due: dict[str, Any]) -> dict[str, Any]:
    found = {name: float(np.abs(arrays[name].astype(np.float64) - due[name]).max(initial=0.0)) for name in due}
    return {"difference": found, "steps": float(arrays["steps"])}


def twin(lab: Lab) -> dict[str, Any]:
    """Compare FedAvg with FedAvg."""
    averaging = PlainTwin(fraction_evaluate=0.0, train_metrics_aggr_fn=equal_means)
    plain, metrics = lab.start(lab.grid, rounds=2, strategy=averaging)
    secure = lab.secure(rounds=2)
    floats = [name for name in plain if plain[name].dtype.kind == "f" and name != "steps"]
    secure["twin"] = {n: float(np.abs(plain[n].astype(float) - lab.arrays[n]).max(initial=0.0)) for n in floats}
    secure["twin_loss"] = metrics[2]["loss"]
    secure["state_left"] = lab.state_left()
    # Ledgers and latches are in separate folders, and contain no key.
    secure["keys_left"] = sum(path.stat().st_size for path in Path(os.environ[DIRECTORY_VARIABLE]).glob("*.*"))
    return secure


def failing_rounds(lab: Lab) -> dict[str, Any]:
    """Lose three nodes in the second round and two trainings in the third; then continue; then no client trains."""
    lost = {p: {"at": "TRAIN", "do": "raise", "rounds": [2]} for p in (0, 1, 4)}
    chaos: dict[int, dict[str, Any]] = lost | {p: {"do": "fail", "rounds": [3]} for p in (2, 3)}
    settings = SecAggSettings(metrics="loss", stage_timeout=FOR_EVER, weighting="uniform")
    first, metrics = lab.start(SecAggGrid(lab.grid, settings=settings), rounds=3, chaos=chaos)
    # Another phase has another grid and strategy.
    second, _ = lab.start(
        SecAggGrid(lab.grid, settings=settings), strategy=strategies.FedAvgM(fraction_evaluate=0.0), model=first
    )
    everybody: dict[int, dict[str, Any]] = {p: {"do": "fail"} for p in range(lab.count)}
    error = ""
    try:
        lab.start(SecAggGrid(lab.grid, settings=settings), chaos=everybody, model=second)
    except SecAggError as raised:
        error = str(raised)
    who = (range(lab.count), [p for p in range(lab.count) if p not in (2, 3)], range(lab.count))
    due = initial_model()["layer"].astype(np.float64)
    for number, parties in zip((1, 3, 1), who, strict=True):
        due += np.mean([change(p, number, "layer") for p in parties], axis=0)
    steps = initial_model()["steps"] + sum(round(float(np.mean([counted(p) for p in parties]))) for parties in who)
    return {
        "metrics": metrics,
        "difference": float(np.abs(second["layer"] - due).max()),
        "steps": [str(first["steps"].dtype), int(second["steps"]) - int(steps)],
        "error": error,
    }


def _dropped_at(kind: str, do: str = "raise") -> Callable[[Lab], dict[str, Any]]:
    def scenario(lab: Lab) -> dict[str, Any]:
        # A silent one occupies one of the simulation's two processes.
        told = (1,) if do == "silent" else (1, 4)
        chaos = {p: {"at": kind, "do": do} for p in told}
        gone = told if kind in ("ADVERTISED_KEYS", "TRAIN") and do not in ("fail", "refuse") else ()
        outcome = lab.secure(chaos=chaos, present=[p for p in range(lab.count) if p not in gone], stage_patience=1.0)
        if do != "silent":
            outcome["state_left"] = lab.state_left()
        return outcome

    return scenario


def too_many_gone(lab: Lab) -> dict[str, Any]:
    return lab.secure(chaos={p: {"at": "TRAIN", "do": "raise"} for p in (0, 1, 4)})


def restarted(lab: Lab) -> dict[str, Any]:
    outcome = lab.secure(
        chaos={1: {"at": "ADVERTISED_KEYS", "do": "restart"}, 2: {"at": "TRAIN", "do": "restart"}},
        present=[p for p in range(lab.count) if p not in (1, 2)],
    )
    outcome["again"] = lab.secure()
    return outcome


def rolled_back(lab: Lab) -> dict[str, Any]:
    """Restore the state of two clients from before they answered; they answer nothing more."""
    return lab.secure(
        chaos={1: {"at": "ADVERTISED_KEYS", "do": "roll-back"}, 2: {"at": "TRAIN", "do": "roll-back"}},
        present=[p for p in range(lab.count) if p != 1],
    )


def strategies_that_average(lab: Lab) -> dict[str, Any]:
    outcome = dict[str, Any]()
    common: dict[str, Any] = {"fraction_evaluate": 0.0}
    # A strategy's state between rounds shows in the second one.
    for name, extra, rounds in (
        ("FedAdam", {}, 2),
        ("FedYogi", {}, 1),
        ("FedAdagrad", {}, 1),
        ("FedAvgM", {"server_momentum": 0.9}, 2),
        ("FedProx", {"proximal_mu": 0.1}, 1),
    ):
        kind = getattr(strategies, name)
        floats = {n: v for n, v in initial_model().items() if n in ("layer", "bias")}

        class Plain(kind):  # type: ignore[misc, valid-type]
            def configure_train(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
                for message in super().configure_train(*args, **kwargs):
                    message.metadata.message_type = PLAIN_TYPE
                    yield message

        plain, _ = lab.start(lab.grid, rounds=rounds, strategy=Plain(**common, **extra), model=floats)
        grid = SecAggGrid(lab.grid, settings=SecAggSettings())
        secure, _ = lab.start(grid, rounds=rounds, strategy=kind(**common, **extra), model=floats)
        outcome[name] = max(float(np.abs(plain[n] - secure[n]).max()) for n in floats)
    return outcome


def private(lab: Lab) -> dict[str, Any]:
    """Add almost no noise, with a strategy that clips on the clients."""
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
        chaos={1: {"at": "TRAIN", "do": "raise"}, 2: {"at": "UNMASKING_REQUEST", "do": "raise"}},
        present=[p for p in range(lab.count) if p != 1],
    )


def second_request(lab: Lab) -> dict[str, Any]:
    """Request the shares of both secrets: once with all clients, and once with a victim declared dropped."""

    def tamper(message: Message) -> Iterable[Message]:
        yield message
        if _kind(message) == "UNMASKING_REQUEST":
            request = bytearray(message_in(record_in(message.content)))
            # The set of contributors follows the header and its tag; remove the first position.
            request[7 + 8] ^= 1
            metadata = message.metadata
            yield Message(
                with_record(record_of(bytes(request))), metadata.dst_node_id, "train", group_id=metadata.group_id
            )

    outcome = lab.secure(tamper=tamper)
    while lab.hostile.open:
        list(lab.hostile.pull_messages(lab.hostile.open))
        time.sleep(0.05)
    outcome["left"] = sum(m.has_error() for m in lab.hostile.seen)
    outcome["answers"] = sum(not m.has_error() for m in lab.hostile.seen)
    return outcome


def _offering(**changes: Any) -> Callable[[Lab], dict[str, Any]]:
    """Plan like the library, then offer something weaker without checks."""

    def weaker(*args: Any, **kwargs: Any) -> Any:
        plan = plan_session(*args, **kwargs)
        return replace(plan, configuration=replace(plan.configuration, **changes))

    def scenario(lab: Lab) -> dict[str, Any]:
        replaced = vars(pairwise_plan)
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
    """Open a graph seed other than the committed one."""

    def tamper(message: Message) -> Iterable[Message]:
        if _kind(message) == "ADVERTISED_KEYS":
            shown = bytearray(message_in(record_in(message.content)))
            size = int.from_bytes(shown[15:19], "big")
            shown[19 + size + 32] ^= 1
            message.content = with_record(record_of(bytes(shown)))
        yield message

    return lab.secure(tamper=tamper)


def other_models(lab: Lab, **settings: Any) -> dict[str, Any]:
    """Send half of the clients another model under the same digest."""
    half = set(lab.nodes[::2])

    def tamper(message: Message) -> Iterable[Message]:
        if message.metadata.dst_node_id in half and "arrays" in message.content:
            arrays = {n: Array(np.asarray(a.numpy() * 2)) for n, a in message.content.array_records["arrays"].items()}
            message.content = RecordDict({**message.content, "arrays": ArrayRecord(arrays)})
        yield message

    return lab.secure(tamper=tamper, **settings)


def same_round_again(lab: Lab) -> dict[str, Any]:
    """Request the same round again, for another sum with the same update: unchanged, and of restarted nodes."""
    kept = list[RecordDict]()

    def keep(message: Message) -> Iterable[Message]:
        if _kind(message) == "OFFER":
            kept.append(RecordDict(dict(message.content.items())))
        yield message

    outcome = lab.secure(tamper=keep)
    outcome["again"] = 0
    for told in ({}, {"at": "OFFER", "do": "restart"}):
        everybody = dict.fromkeys(range(lab.count), told)
        Path(os.environ[CHAOS_FILE]).write_text(json.dumps(everybody), encoding="utf-8")
        contents = [RecordDict(dict(content.items())) for content in kept]
        again = [Message(content, node, "train") for content, node in zip(contents, lab.nodes, strict=True)]
        replies = list(lab.grid.send_and_receive(again, timeout=FOR_EVER))
        outcome["again"] += sum(reply.has_content() for reply in replies)
    return outcome


def substituted_keys(lab: Lab) -> dict[str, Any]:
    """Replace a neighbour's keys by the server's own."""

    def tamper(message: Message) -> Iterable[Message]:
        if _kind(message) == "ADVERTISED_KEYS" and message.metadata.dst_node_id in lab.nodes[:2]:
            shown = bytearray(message_in(record_in(message.content)))
            middle = len(shown) // 2
            shown[middle : middle + 32] = SystemCoins().draw(32)
            message.content = with_record(record_of(bytes(shown)))
        yield message

    return lab.secure(tamper=tamper, present=range(2, lab.count))


def two_stories(lab: Lab) -> dict[str, Any]:
    """Report to half of the contributors that one of them dropped out, so that both its secrets are revealed."""
    half = set(lab.nodes[::2])

    def tamper(message: Message) -> Iterable[Message]:
        if message.metadata.dst_node_id in half and _kind(message) in ("UNMASKING_REQUEST", "SURVIVOR_SET"):
            request = bytearray(message_in(record_in(message.content)))
            offset = 7 + 8 + (1 if _kind(message) == "SURVIVOR_SET" else 0)
            members = ClientSet(lab.count, request[offset])
            request[offset] &= ~(1 << next(iter(members)))
            message.content = with_record(record_of(bytes(request)))
        yield message

    return lab.secure(tamper=tamper)


def _kind(message: Message) -> str:
    return kind_of(message) if RECORD in message.content.config_records else "PLAIN"


def wrong_share(lab: Lab) -> dict[str, Any]:
    return lab.secure(chaos={3: {"at": "UNMASKING_REQUEST", "do": "wrong-share"}})


def nan(lab: Lab) -> dict[str, Any]:
    return lab.secure(chaos={2: {"do": "nan"}})


def light(lab: Lab) -> dict[str, Any]:
    """Precision does not depend on clients' total number of examples."""
    outcome = {}
    for weight in (256, 1024):
        weights = dict.fromkeys(range(lab.count), weight)
        chaos = {p: {"examples": weight} for p in range(lab.count)}
        outcome[str(weight)] = lab.secure(chaos=chaos, weights=weights)["difference"]["layer"]
    return outcome


def narrow_ring(lab: Lab) -> dict[str, Any]:
    return lab.secure(modulus_bits=16)


def clipped(lab: Lab) -> dict[str, Any]:
    return lab.secure(chaos={2: {"do": "large"}})


def pruning(lab: Lab) -> dict[str, Any]:
    """Report how many values of the large tensor changed, and the error of those."""
    outcome = lab.secure(compression="pruning-0.75")
    due, before = expected(range(lab.count), 1, {}, {})["layer"], initial_model()["layer"]
    moved = lab.arrays["layer"] != before
    outcome["moved"] = float(moved.mean())
    outcome["off"] = float(np.abs(lab.arrays["layer"] - due)[moved].max())
    return outcome


def enclave(**changes: Any) -> Callable[[Lab], dict[str, Any]]:
    """Return a scenario of the enclave whose clients accept a simulated one."""

    def scenario(lab: Lab) -> dict[str, Any]:
        return lab.secure(**{**_enclave_of(lab), **changes})

    return scenario


def enclave_served(lab: Lab) -> dict[str, Any]:
    """Use an enclave in a separate process."""
    path, log = os.environ["LAB_SOCKET"], Path(os.environ["LAB_KEYS"]).parent / "enclave.log"
    command = [str(Path(sys.executable).parent / "secagg"), "enclave", "serve", "--listen", f"unix:{path}"]
    command += ["--evidence", "simulated"]
    process = start_listening(command, log, path)
    try:
        return lab.secure(**_enclave_of(lab), enclave_socket=path)
    finally:
        process.terminate()
        process.wait()


UNIFORM: dict[str, Any] = {"weighting": "uniform"}


def _enclave_of(lab: Lab) -> dict[str, Any]:
    return {
        "protocol": "enclave",
        "roster": f"{os.environ['LAB_KEYS']}/roster.txt",
        "strategy": Lenient(fraction_evaluate=0.0, min_available_nodes=lab.count),
    }


def enclave_by_default(lab: Lab) -> dict[str, Any]:
    """Use clients with a deployment's policy."""
    return lab.secure(**{**_enclave_of(lab), "strategy": None, **UNIFORM})


def enclave_of_others(lab: Lab) -> dict[str, Any]:
    """Boot the enclave for an authority of the server's own."""
    folder = Path(os.environ["LAB_KEYS"]).parent / "own"
    make_identities(folder, map(ClientId, range(lab.count)), SystemCoins())
    return lab.secure(**{**_enclave_of(lab), "roster": str(folder / "roster.txt")})


def statistics(lab: Lab) -> dict[str, Any]:
    return {"statistics": dict(ask(lab.grid, lab.context, declared()).statistics)}


def enclave_told(lab: Lab) -> dict[str, Any]:
    """Send sums instead of models, and report the bytes sent to each node with its model."""
    down = dict[int, list[int]]()

    def tamper(message: Message) -> Iterable[Message]:
        record, arrays = message.content.config_records[RECORD], message.content.array_records.values()
        if arrays:
            sizes = [len(array.data) for part in arrays for array in part.values()]
            sizes += [len(value) for value in record.values() if isinstance(value, bytes)]
            down.setdefault(message.metadata.dst_node_id, []).append(sum(sizes))
        yield message

    codes = {"compression": "peak-8", "down": "sums", "weighting": "uniform"}
    outcome = lab.secure(**{**_enclave_of(lab), "rounds": 4, **codes}, tamper=tamper)
    return {**outcome, "down": list(down.values())}


SCENARIOS: dict[str, Callable[[Lab], dict[str, Any]]] = {
    "enclave_told": enclave_told,
    **LIES,
    "statistics": statistics,
    **TWO_SERVERS,
    **ONE_MESSAGE,
    "two_other_models": lambda lab: other_models(lab, **simulated(lab, minimum_cohort=4)),
    "twin": twin,
    "failing_rounds": failing_rounds,
    "drop_training": _dropped_at("TRAIN"),
    "fail_training": _dropped_at("TRAIN", "fail"),
    "refuse_training": _dropped_at("TRAIN", "refuse"),
    "drop_survivors": _dropped_at("SURVIVOR_SET"),
    "silent": _dropped_at("ADVERTISED_KEYS", "silent"),
    "too_many_gone": too_many_gone,
    "restarted": restarted,
    "rolled_back": rolled_back,
    "averaging": strategies_that_average,
    "private": private,
    "not_averaging": strategies_that_do_not,
    "hybrid": hybrid,
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
    "light": light,
    "narrow_ring": narrow_ring,
    "clipped": clipped,
    "pruning": pruning,
    "enclave": enclave(rounds=2),
    "enclave_dropped": enclave(
        minimum_cohort=3, chaos={p: {"at": "TRAIN", "do": "raise"} for p in (1, 4)}, present=(0, 2, 3, 5, 6, 7)
    ),
    "enclave_served": enclave_served,
    "enclave_absent": enclave(enclave_socket="/absent/socket"),
    "enclave_by_default": enclave_by_default,
    "enclave_low_cohort": enclave(minimum_cohort=2),
    "enclave_of_others": enclave_of_others,
    "enclave_other_terms": terms_for_some(_enclave_of, weighted_by="another"),
    "enclave_other_task": terms_for_some(_enclave_of, task="{task} again"),
    "enclave_other_models": lambda lab: other_models(lab, **_enclave_of(lab)),
    "sparse": lambda lab: lab.secure(
        topology="sparse", chaos={5: {"at": "TRAIN", "do": "raise"}}, present=[p for p in range(lab.count) if p != 5]
    ),
}


def active(scenario: Callable[[Lab], dict[str, Any]]) -> Callable[[Lab], dict[str, Any]]:
    """Return the same scenario in active mode."""

    def in_active_mode(lab: Lab) -> dict[str, Any]:
        original = lab.secure
        lab.secure = lambda **settings: original(  # type: ignore[method-assign]
            **{
                "mode": "active",
                "roster": f"{os.environ['LAB_KEYS']}/roster.txt",
                **settings,
                "chaos": {p: {**told, "mode": "active"} for p, told in settings.get("chaos", {}).items()},
            }
        )
        try:
            return scenario(lab)
        finally:
            lab.secure = original  # type: ignore[method-assign]

    return in_active_mode


def main() -> None:
    where, output, names = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    if where == "memory":
        serve(MemoryGrid(app, MANY), Context(0, 0, {}, RecordDict(), {}), output, names)
        return
    server = ServerApp()

    @server.main()
    def simulated_server(grid: Grid, context: Any) -> None:
        serve(grid, context, output, names)

    backend: BackendConfig = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app=server, client_app=app, num_supernodes=MANY, backend_config=backend)
    if not math.isfinite(output.stat().st_size):
        raise SystemExit(1)


def serve(grid: Grid, context: Any, output: Path, names: list[str]) -> None:
    """Run scenarios, and write the results."""
    while len(list(grid.get_node_ids())) < MANY:
        time.sleep(0.05)
    partitions = states(grid, "partition")
    nodes = sorted(partitions, key=partitions.__getitem__)
    many, eight = (Lab(grid, nodes[:count], context) for count in (MANY, EIGHT))
    outcomes, log = dict[str, Any](), Path(os.environ["LAB_LOG"])
    for name in names:
        scenario, lab = SCENARIOS[name.removeprefix("active:")], many if "sparse" in name else eight
        before, began = log.stat().st_size if log.exists() else 0, time.monotonic()
        try:
            outcomes[name] = (active(scenario) if name.startswith("active:") else scenario)(lab)
        except Exception:  # noqa: BLE001 -- the other scenarios still run
            outcomes[name] = {"crashed": traceback.format_exc()}
        outcomes[name]["took"] = time.monotonic() - began
        with log.open("rb") as file:
            file.seek(before)
            outcomes[name]["log"] = file.read().decode()
    output.write_text(json.dumps(outcomes, default=str), encoding="utf-8")


if __name__ == "__main__":
    main()
