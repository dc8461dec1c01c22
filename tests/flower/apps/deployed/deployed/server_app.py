"""One round on real SuperNodes; the result is printed for the test that reads it."""

import json

import numpy as np
from deployed.lab_truth import initial_model
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from secagg.errors import SecAggError
from secagg.flower import SecAggGrid

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one round with every node."""
    nodes = int(context.run_config["nodes"])
    model = ArrayRecord({name: Array(np.asarray(values)) for name, values in initial_model().items()})
    secure = SecAggGrid(grid, context)
    try:
        result = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes).start(
            grid=secure,
            initial_arrays=model,
            num_rounds=1,
            timeout=float(context.run_config["training-timeout"]),
        )
    except SecAggError as error:
        print("RESULT", json.dumps({"error": str(error), "stages": _stages(secure)}), flush=True)  # noqa: T201
        raise
    found = {
        "layer": result.arrays["layer"].numpy().astype(float).ravel()[:1000].tolist(),
        "steps": float(result.arrays["steps"].numpy()),
        "loss": result.train_metrics_clientapp[1]["loss"],
        "stages": _stages(secure),
    }
    print("RESULT", json.dumps(found), flush=True)  # noqa: T201 -- the test reads it


def _stages(grid: SecAggGrid) -> list[list[object]]:
    return [[name, count.sent, count.received, count.seconds] for name, count in grid.stages]
