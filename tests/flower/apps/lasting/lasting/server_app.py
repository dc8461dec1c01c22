"""Rounds of an adapter, each with the full number of nodes; it begins with another run's model."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from lasting.adapter import ZEROS, plan

from secagg.flower import SecAggGrid, SecAggSettings

SECONDS = 300
app = ServerApp()


class Waiting(FedAvg):
    """Waits until enough nodes are present, such as a replacement, before each round."""

    def __init__(self, nodes: int) -> None:
        """Sample all nodes."""
        super().__init__(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
        self.nodes = nodes

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        """Wait, and then do the same as FedAvg."""
        deadline = time.monotonic() + SECONDS
        while len(list(grid.get_node_ids())) != self.nodes and time.monotonic() < deadline:
            time.sleep(0.5)
        return super().configure_train(server_round, arrays, config, grid)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and write the model for the next run."""
    given = context.run_config
    nodes, model = int(str(given["nodes"])), ZEROS
    if given["begins"]:
        read = json.loads(Path(str(given["begins"])).read_text(encoding="utf-8"))
        model = {name: np.array(values, np.float32) for name, values in read.items()}
    # One round trip per round, since a node starts a process for each.
    through = {"protocol": "enclave", "roster": given["roster"], "compression": "fixed-point", "metrics": "loss"}
    settings = SecAggSettings(**plan.settings([0.1], clients=nodes, **through))
    used = SecAggGrid(grid, settings=settings)
    initial = ArrayRecord({name: Array(values) for name, values in model.items()})
    rounds = int(str(given["rounds"]))
    result = Waiting(nodes).start(grid=used, initial_arrays=initial, num_rounds=rounds, timeout=SECONDS)
    found = {name: array.numpy().tolist() for name, array in result.arrays.items()}
    Path(str(given["model"])).write_text(json.dumps(found), encoding="utf-8")
    trained = [record["secagg-trained"] for record in result.train_metrics_clientapp.values()]
    print("RESULT", json.dumps({"model": found, "trained": trained}), flush=True)  # noqa: T201 -- the test reads it
