"""One model in each mode, from the same beginning; what came out is printed for the test that reads it."""

import json
import time
from typing import Any

import numpy as np
from federated.lab_truth import initial_model
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from secagg.errors import SecAggError
from secagg.flower import SecAggGrid, SecAggSettings

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run in each of the modes."""
    given = context.run_config
    for way in str(given["ways"]).split():
        deadline = time.monotonic() + float(given["training-timeout"])
        while (found := len(list(grid.get_node_ids()))) != int(given["nodes"]):
            if time.monotonic() > deadline:
                raise SystemExit(f"{found} nodes are there")
            time.sleep(0.5)
        result = run(grid, given, way)
        print("RESULT", json.dumps(result), flush=True)  # noqa: T201 -- the test reads it
        if "error" in result:
            raise SystemExit(1)


def run(grid: Grid, given: Any, way: str) -> dict[str, Any]:
    """Train with every node that there is, and return the model and what each stage carried."""
    nodes, rounds = int(given["nodes"]), int(given["rounds"])
    used = SecAggGrid(grid, settings=SecAggSettings.from_run_config({**given, "secagg-mode": way}))
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
    }


def stages(grid: SecAggGrid) -> list[list[object]]:
    """Return what each stage of the last round carried."""
    return [[name, count.sent, count.received, count.failed] for name, count in grid.stages]
