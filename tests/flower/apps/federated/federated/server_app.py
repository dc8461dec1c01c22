"""What is asked in one way after another, such as ``model:semi_honest``; a test reads what came out."""

import json
import time
from typing import Any

import numpy as np
from federated.lab_truth import initial_model
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from secagg.errors import SecAggError
from secagg.flower import SecAggGrid, SecAggSettings, ask
from tests.harness.town_of_sites import declared

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run in each of the ways."""
    given = context.run_config
    for way in str(given["ways"]).split():
        deadline = time.monotonic() + float(given["training-timeout"])
        while (found := len(list(grid.get_node_ids()))) != int(given["nodes"]):
            if time.monotonic() > deadline:
                raise SystemExit(f"{found} nodes are there")
            time.sleep(0.5)
        what, _, mode = way.partition(":")
        settings = SecAggSettings.from_run_config({**given, "secagg-mode": mode})
        result = trained(grid, given, settings) if what == "model" else asked(grid, context, settings)
        print("RESULT", json.dumps(result), flush=True)  # noqa: T201 -- the test reads it
        if "error" in result:
            raise SystemExit(1)


def asked(grid: Grid, context: Context, settings: SecAggSettings) -> dict[str, Any]:
    """Ask every node that there is for statistics."""
    began = time.monotonic()
    try:
        results = ask(grid, context, declared(), settings=settings)
    except SecAggError as error:
        return {"error": str(error)}
    return {**results.record, "seconds": time.monotonic() - began}


def trained(grid: Grid, given: Any, settings: SecAggSettings) -> dict[str, Any]:
    """Train with every node that there is, and return the model and what each stage carried."""
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


def stages(grid: SecAggGrid) -> list[list[object]]:
    """Return what each stage of the last round carried."""
    return [[name, count.sent, count.received, count.failed] for name, count in grid.stages]
