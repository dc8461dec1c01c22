"""Runs the requested kinds one after another, such as ``model:semi_honest``; a test reads the results."""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from federated.lab_app import CHAOS_FILE
from federated.lab_truth import initial_model
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, FedAvgM

from secagg.errors import SecAggError
from secagg.flower import SecAggGrid, SecAggSettings, ask, server_grid
from secagg.flower.server_grid import GridRound
from tests.harness.town_of_sites import declared

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run each kind."""
    given = context.run_config
    for way in str(given["ways"]).split():
        deadline = time.monotonic() + float(given["training-timeout"])
        while (found := len(list(grid.get_node_ids()))) != int(given["nodes"]):
            if time.monotonic() > deadline:
                raise SystemExit(f"{found} nodes are there")
            time.sleep(0.5)
        what, _, mode = way.partition(":")
        settings = SecAggSettings.from_run_config({**given, **({"secagg-mode": mode} if mode else {})})
        result = asked(grid, context, settings) if what == "statistics" else WAYS[what](grid, given, settings)
        print("RESULT", json.dumps(result), flush=True)  # noqa: T201 -- the test reads it
        if "error" in result:
            raise SystemExit(1)


def asked(grid: Grid, context: Context, settings: SecAggSettings) -> dict[str, Any]:
    """Ask every node for statistics."""
    began = time.monotonic()
    try:
        results = ask(grid, context, declared(), settings=settings)
    except SecAggError as error:
        return {"error": str(error)}
    return {**results.record, "seconds": time.monotonic() - began}


def trained(grid: Grid, given: Any, settings: SecAggSettings) -> dict[str, Any]:
    """Train with every node, and return the model and each stage's messages."""
    nodes, rounds, began = int(given["nodes"]), int(given["rounds"]), time.monotonic()
    used = SecAggGrid(grid, settings=settings)
    try:
        result = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes).start(
            grid=used,
            initial_arrays=ArrayRecord({name: Array(np.asarray(values)) for name, values in initial_model().items()}),
            num_rounds=rounds,
            timeout=float(given["training-timeout"]),
        )
    except SecAggError as error:
        return {"error": str(error), "stages": stages(used)}
    return {
        **{name: result.arrays[name].numpy().astype(float).ravel()[:1000].tolist() for name in initial_model()},
        "loss": result.train_metrics_clientapp[rounds]["loss"],
        "stages": stages(used),
        "seconds": time.monotonic() - began,
    }


def tell(chaos: dict[int, dict[str, Any]]) -> None:
    """Send clients their behaviour for the following rounds."""
    Path(os.environ[CHAOS_FILE]).write_text(json.dumps(chaos), encoding="utf-8")


def phase(used: SecAggGrid, given: Any, strategy: FedAvg, rounds: int, model: dict[str, Any]) -> tuple[Any, Any]:
    """Return the model after some rounds, and the metrics of each."""
    result = strategy.start(
        grid=used,
        initial_arrays=ArrayRecord({name: Array(np.asarray(values)) for name, values in model.items()}),
        num_rounds=rounds,
        timeout=float(given["training-timeout"]),
    )
    arrays = {name: array.numpy() for name, array in result.arrays.items()}
    return arrays, [dict(record) for record in result.train_metrics_clientapp.values()]


def failing(grid: Grid, given: Any, settings: SecAggSettings) -> dict[str, Any]:
    """Fail two trainings in round 2 and lose two nodes in round 3; then another phase; then no client trains."""
    nodes = range(int(given["nodes"]))
    failed, lost = {"do": "fail", "rounds": [2]}, {"at": "TRAIN", "do": "raise", "rounds": [3]}
    tell({0: failed, 1: failed, 3: lost, 4: lost})
    averaging = {"fraction_evaluate": 0.0, "min_available_nodes": len(nodes)}
    first, metrics = phase(SecAggGrid(grid, settings=settings), given, FedAvg(**averaging), 3, initial_model())
    tell({})
    # Many strategies return it like this.
    floats = {**first, "steps": first["steps"].astype(np.float64)}
    second, more = phase(SecAggGrid(grid, settings=settings), given, FedAvgM(**averaging), 1, floats)
    tell({p: {"do": "fail"} for p in nodes})
    found = {
        "metrics": [*metrics, *more],
        "types": [str(model["steps"].dtype) for model in (first, second)],
        "steps": [int(model["steps"]) for model in (first, second)],
        "layers": [model["layer"].astype(float).ravel()[:1000].tolist() for model in (first, second)],
    }
    print("RESULT", json.dumps(found), flush=True)  # noqa: T201 -- what follows ends the run
    phase(SecAggGrid(grid, settings=settings), given, FedAvg(**averaging), 2, second)
    return {}


class Patient(GridRound):
    """Waits only as long as for the others, so that no test needs a timeout that suits every machine."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._training_patience = 1.0


class Releasing(FedAvg):
    """Ends the slow training of the first round when the second round begins."""

    def configure_train(self, server_round: int, *args: Any, **kwargs: Any) -> Any:
        """Do the same as FedAvg."""
        if server_round > 1:
            Path(os.environ[CHAOS_FILE]).with_suffix(".over").touch()
        return super().configure_train(server_round, *args, **kwargs)


def overlapping(grid: Grid, given: Any, settings: SecAggSettings) -> dict[str, Any]:
    """Let one training outlive its session while its node is invited to the next one."""
    tell({int(given["nodes"]) - 1: {"do": "slow", "rounds": [1]}})
    strategy = Releasing(fraction_evaluate=0.0, min_available_nodes=int(given["nodes"]))
    vars(server_grid)["GridRound"] = Patient
    used = SecAggGrid(grid, settings=settings)
    model, metrics = phase(used, given, strategy, 2, initial_model())
    return {"metrics": metrics, "layer": model["layer"].astype(float).ravel()[:1000].tolist(), "stages": stages(used)}


WAYS = {"model": trained, "failing": failing, "overlapping": overlapping}


def stages(grid: SecAggGrid) -> list[list[object]]:
    """Return the messages of each stage of the last round."""
    return [[name, count.sent, count.received, count.failed] for name, count in grid.stages]
