"""One round of Flower with 20 simulated clients and a model of 1M weights: plain, SecAgg+, and this library's plug-in.

Training changes every weight at almost no cost, so a round's time is that of transport and protocol. Each contender
runs several rounds in a separate process; the first round, in which the simulation starts, is skipped, and the shortest
other round counts. Processor seconds are totals over a contender's processes; they do not depend on other load of the
machine. Run it with an interpreter that has ``flwr[simulation]``: ``python benchmarks/bench_flower.py --json
build/bench-flower.json``.
"""

# ruff: noqa: ANN401, PLC0415 -- Flower is imported where a contender needs it, and its own types are of either API.

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from secagg.crypto.entropy import SystemCoins
from secagg.identifiers import ClientId
from secagg.platforms.client_node import DIRECTORY_VARIABLE
from secagg.session.identities import AUTHORITY_FILE, load_authority, make_identities

CLIENTS = 20
WEIGHTS = 1_000_000
NEIGHBOURS = 10
CORRUPTED = 7
"""With this many corrupted clients a sparse graph of 20 has about as many neighbours as SecAgg+."""
ROUNDS = 5
KEYS = Path("build/bench-flower-keys")
SETTINGS: dict[str, dict[str, Any]] = {
    "full graph": {},
    "sparse graph": {"topology": "sparse", "corrupted": CORRUPTED},
    "sparse graph, 8 bits": {
        "topology": "sparse",
        "corrupted": CORRUPTED,
        "compression": "scalar-8",
        "weighting": "uniform",
    },
    "enclave": {"protocol": "enclave", "weighting": "uniform"},
    "enclave, 8 bits": {"protocol": "enclave", "weighting": "uniform", "compression": "scalar-8"},
    "enclave, codewords": {"protocol": "enclave", "weighting": "uniform", "compression": "pq"},
    "two servers": {"protocol": "two-servers", "weighting": "uniform"},
    "two servers, codewords": {"protocol": "two-servers", "weighting": "uniform", "compression": "pq"},
    "one message, standing holders": {"protocol": "one-message", "weighting": "uniform"},
}
"""This library's contenders. Holders run in separate processes. Enclaves are simulated, at the cost of a real one
except for its memory; the second of two servers is simulated too, so one process has the work and memory of both."""
HOLDERS = 5
STANDING = "one message, standing holders"
ADDED = {STANDING: 0.02}
"""Limit of a round's additional seconds over FedAvg's."""
CONTENDERS = ("FedAvg", *SETTINGS, "FedAvg, legacy API", "SecAgg+, legacy API")
"""The legacy variant is needed because SecAgg+ works only with the legacy API."""
MARK = "SECAGG_BENCH_FLOWER"
"""Environment of every process of a contender."""
RESOURCES: dict[str, Any] = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}


def main() -> None:
    """Run every contender in a separate process, and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--weights", type=int, default=WEIGHTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=CONTENDERS, metavar="CONTENDER")
    options = parser.parse_args()
    make_identities(KEYS, map(ClientId, range(options.clients)), SystemCoins())
    found = {name: _in_a_process(name, options.clients, options.weights, options.rounds + 1) for name in options.only}
    for name, figures in found.items():
        print(
            f"{name:30} {figures['seconds']:6.2f} s, {figures['cpu']:6.2f} s of the processor, "
            f"{figures['bytes_up'] / 1e6:7.3f} MB up for each client, {figures['peak_mb']:6.0f} MB server at its peak"
        )
    ratios = _ratios(found) if set(found) == set(CONTENDERS) else dict[str, float]()
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f}")
    if "FedAvg" in found:
        for name in ADDED.keys() & found.keys():
            added = found[name]["seconds"] - found["FedAvg"]["seconds"]
            print(f"{name}: FedAvg's round and {added:+.2f} s; {ADDED[name]:+.2f} s is the target")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        report = {"machine": platform.processor() or platform.machine(), "contenders": found, "ratios": ratios}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _ratios(found: dict[str, dict[str, Any]]) -> dict[str, float]:
    plain, legacy, theirs = (found[name] for name in ("FedAvg", "FedAvg, legacy API", "SecAgg+, legacy API"))
    ratios = dict[str, float]()
    for name in SETTINGS:
        ours = found[name]
        for unit, of in (("seconds", ""), ("cpu", ", of the processor")):
            added = ours[unit] - plain[unit]
            ratios[f"{name}: time added by SecAgg+ / by this library{of}"] = (
                (theirs[unit] - legacy[unit]) / added if added > 0 else float("inf")
            )
            ratios[f"{name}: round / FedAvg's{of}"] = ours[unit] / plain[unit]
        ratios[f"{name}: bytes up / SecAgg+'s"] = ours["bytes_up"] / theirs["bytes_up"]
    return ratios


def _in_a_process(name: str, clients: int, weights: int, rounds: int) -> dict[str, Any]:
    # The simulation pickles objects of __main__ by value, which fails for cryptography's modules.
    program = f"import bench_flower; bench_flower.contend({name!r}, {clients}, {weights}, {rounds})"
    places = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "PYTHONPATH": os.pathsep.join(places)}
    environment[MARK] = f"{os.getpid()}/{name}"
    # Every contender trains the same model from the same start, which a ledger would refuse.
    with TemporaryDirectory() as ledgers:
        environment[DIRECTORY_VARIABLE] = ledgers
        done = subprocess.run(  # noqa: S603 -- this very file
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
        )
    results = [line for line in done.stdout.splitlines() if line.startswith("FIGURES ")]
    if not results:
        raise SystemExit(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    figures: dict[str, Any] = json.loads(results[-1].removeprefix("FIGURES "))
    return figures


def _now() -> tuple[float, float]:
    """Return the clock, and the processor seconds of all processes of this contender."""
    mark, ticks = f"{MARK}={os.environ[MARK]}".encode(), 0
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and mark in (folder / "environ").read_bytes().split(b"\0"):
                fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        except OSError:
            continue
    return time.perf_counter(), ticks / os.sysconf("SC_CLK_TCK")


# --- In the process of a contender ------------------------------------------------------------------------------------


def _model(weights: int) -> np.ndarray[Any, Any]:
    return np.zeros((weights // 1000, 1000), dtype=np.float32)


def _change(weights: int) -> np.ndarray[Any, Any]:
    """Return the change that all clients share, distributed as in training, for which codebooks are made."""
    return np.random.default_rng(weights).laplace(0, 0.01, (weights // 1000, 1000))


def _train(message: Any, context: Any) -> Any:
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict

    model = message.content["arrays"]["w"].numpy()
    own = [context.node_config["partition-id"], message.content["config"]["server-round"]]
    # A client never uploads an update twice, so its rounds differ.
    spread = np.random.default_rng(own).uniform(-0.001, 0.001, model.shape)
    values = (model + _change(model.size) + spread).astype(np.float32)
    arrays = ArrayRecord({"w": Array(values)})
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 512})}), reply_to=message)


def _client_fn(context: Any) -> Any:
    from flwr.client import NumPyClient

    class Client(NumPyClient):
        def fit(self, parameters: Any, config: Any) -> tuple[Any, int, dict[str, Any]]:  # noqa: ARG002
            return [parameters[0] + np.float32(0.01 * (context.node_config["partition-id"] + 1))], 100, {}

    return Client().to_client()


def _measuring(inner: Any, uploaded: dict[int, int]) -> Any:
    """Return a grid that counts clients' bytes and otherwise behaves like the inner one."""
    from flwr.serverapp import Grid

    class Measuring(Grid):
        def set_run(self, run: Any) -> None:
            inner.set_run(run)

        @property
        def run(self) -> Any:
            return inner.run

        def create_message(self, *args: Any, **kwargs: Any) -> Any:
            return inner.create_message(*args, **kwargs)

        def get_node_ids(self) -> Iterable[int]:
            node_ids: Iterable[int] = inner.get_node_ids()
            return node_ids

        def push_messages(self, messages: Any) -> Any:
            return inner.push_messages(messages)

        def pull_messages(self, message_ids: Any) -> Any:
            return _counted(inner.pull_messages(message_ids), uploaded)

        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            return _counted(inner.send_and_receive(messages, timeout=timeout), uploaded)

    return Measuring()


def _counted(replies: Any, uploaded: dict[int, int]) -> Any:
    listed = list(replies)
    for reply in listed:
        size = 0
        if reply.has_error():
            continue
        for record in reply.content.config_records.values():
            for value in record.values():
                parts = value if isinstance(value, list) else [value]
                size += sum(len(part) for part in parts if isinstance(part, bytes))
        for record in reply.content.array_records.values():
            size += sum(len(array.data) for array in record.values())
        uploaded[reply.metadata.src_node_id] = uploaded.get(reply.metadata.src_node_id, 0) + size
    return listed


@contextmanager
def _epoch() -> Generator[dict[str, str]]:
    """Sign an epoch for a contender, start its holders, and return its settings."""

    def secagg(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "secagg.cli", "holder", *arguments]

    with TemporaryDirectory() as folder, ExitStack() as running:
        place, numbers = Path(folder), range(HOLDERS)
        signed = ["record", "--authority", str(KEYS / AUTHORITY_FILE), "--number", "1", "--out", f"{place}/record"]
        keys = list[str]()
        for number in numbers:
            made = secagg("keys", "--out", f"{place}/{number}.key")
            keys += ["--holder", subprocess.run(made, check=True, capture_output=True, text=True).stdout.strip()]  # noqa: S603
        subprocess.run(secagg(*signed, *keys), check=True)  # noqa: S603 -- our own command, as all of these
        authority = load_authority(KEYS / AUTHORITY_FILE).public_key.hex()
        for number in numbers:
            serve = ["serve", "--record", f"{place}/record", "--key", f"{place}/{number}.key"]
            serve += ["--authority", authority, "--listen", f"{place}/{number}.sock"]
            process = running.enter_context(subprocess.Popen(secagg(*serve), stdout=subprocess.PIPE))  # noqa: S603
            running.callback(process.kill)
            assert process.stdout is not None
            assert b"is ready" in process.stdout.readline()
        yield {"epoch": f"{place}/record", "holders": ",".join(f"{place}/{number}.sock" for number in numbers)}


def contend(name: str, clients: int, weights: int, rounds: int) -> None:
    """Run one contender, and print its figures."""
    with _epoch() if name in ADDED else nullcontext(dict[str, str]()) as epoch:
        if name in SETTINGS:
            SETTINGS[name] |= epoch
        _contend(name, clients, weights, rounds)


def _contend(name: str, clients: int, weights: int, rounds: int) -> None:
    from flwr.client.mod import secaggplus_mod
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from secagg.flower import SecAggMod

    uploaded, marks, server = dict[int, int](), list[tuple[float, float]](), ServerApp()
    legacy = name.endswith("legacy API")
    if legacy:
        client = ClientApp(_client_fn, mods=[secaggplus_mod] if name.startswith("SecAgg+") else [])
    else:
        mod = SecAggMod(identity=str(KEYS.absolute()), allow_simulated_enclave=True, allow_simulated_second_server=True)
        client = ClientApp(mods=[mod] if name in SETTINGS else [])
        client.train()(_train)

    @server.main()
    def serve(grid: Any, context: Any) -> None:
        serve_with = _serve_legacy if legacy else _serve
        serve_with(name, _measuring(grid, uploaded), context, (marks, uploaded), (clients, weights, rounds))

    run_simulation(server_app=server, client_app=client, num_supernodes=clients, backend_config=RESOURCES)
    pairs = list(zip(marks[2::2], marks[3::2], strict=True))
    seconds, cpu = ([later[unit] - earlier[unit] for earlier, later in pairs] for unit in (0, 1))
    assert len(seconds) == rounds - 1
    figures = {
        "seconds": min(seconds),
        "all_seconds": seconds,
        "cpu": min(cpu),
        "bytes_up": max(uploaded.values()) / (rounds - 1),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
    }
    print("FIGURES", json.dumps(figures), flush=True)


Counts = tuple[list[tuple[float, float]], dict[int, int]]
"""Start and end of each round, and bytes of each node since the second round began."""


def _serve(name: str, grid: Any, _: Any, counts: Counts, sizes: tuple[int, int, int]) -> None:
    from flwr.app import Array, ArrayRecord
    from flwr.serverapp.strategy import FedAvg

    from secagg.flower import SecAggGrid, SecAggSettings

    (marks, uploaded), (clients, weights, rounds) = counts, sizes

    class Marked(FedAvg):
        needs_only_the_mean = True

        def configure_train(self, *args: Any, **kwargs: Any) -> Any:
            messages = list(super().configure_train(*args, **kwargs))
            marks.append(_now())
            if len(marks) == 3:
                uploaded.clear()
            return messages

        def aggregate_train(self, *args: Any, **kwargs: Any) -> Any:
            result = super().aggregate_train(*args, **kwargs)
            marks.append(_now())
            return result

    if name in SETTINGS:
        roster = str(KEYS / "roster.txt")
        grid = SecAggGrid(grid, settings=SecAggSettings(**{"roster": roster, **SETTINGS[name]}))
    strategy = Marked(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
    model = ArrayRecord({"w": Array(_model(weights))})
    result = strategy.start(grid=grid, initial_arrays=model, num_rounds=rounds, timeout=600)
    due = rounds * _change(weights)
    error = np.linalg.norm(result.arrays["w"].numpy() - due) / np.linalg.norm(due)
    limit = 0.6 if SETTINGS.get(name, {}).get("compression") == "pq" else 0.02
    assert error < limit, error


def _serve_legacy(name: str, grid: Any, context: Any, counts: Counts, sizes: tuple[int, int, int]) -> None:
    from flwr.common import ndarrays_to_parameters
    from flwr.server import LegacyContext, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

    (marks, uploaded), (clients, weights, rounds) = counts, sizes

    class Marked(FedAvg):
        needs_only_the_mean = True

        def configure_fit(self, *args: Any, **kwargs: Any) -> Any:
            instructions = super().configure_fit(*args, **kwargs)
            marks.append(_now())
            if len(marks) == 3:
                uploaded.clear()
            return instructions

        def aggregate_fit(self, *args: Any, **kwargs: Any) -> Any:
            result = super().aggregate_fit(*args, **kwargs)
            marks.append(_now())
            return result

    strategy = Marked(
        min_fit_clients=clients,
        min_available_clients=clients,
        fraction_evaluate=0.0,
        initial_parameters=ndarrays_to_parameters([_model(weights)]),
    )
    workflow = None
    if name.startswith("SecAgg+"):
        shares = min(NEIGHBOURS + 1, clients)
        workflow = SecAggPlusWorkflow(num_shares=shares, reconstruction_threshold=shares // 2 + 1, timeout=600)
    config = ServerConfig(num_rounds=rounds)
    DefaultWorkflow(fit_workflow=workflow)(grid, LegacyContext(context=context, config=config, strategy=strategy))


if __name__ == "__main__":
    main()
