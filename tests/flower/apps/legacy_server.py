"""A legacy app with this library's fit workflow; ``python legacy_server.py OUTPUT``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg, FedMedian
from flwr.server.superlink.fleet.vce.backend.backend import BackendConfig
from flwr.server.workflow import DefaultWorkflow
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from lab_truth import SHAPES
from legacy_client import secure

from secagg.errors import InvalidParameters
from secagg.flower import SecAggFitWorkflow

NODES = 6


class Kept(FedAvg):
    """Remembers the model of the last round, which the legacy API does not return."""

    needs_only_the_mean = True

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        parameters, metrics = super().aggregate_fit(server_round, results, failures)
        self.last, self.metrics = parameters, [dict(result.metrics) for _, result in results]
        self.counts = [result.num_examples for _, result in results]
        return parameters, metrics


def strategy(kind: type[FedAvg] = Kept) -> Any:
    model = ndarrays_to_parameters([np.zeros(SHAPES["layer"], np.float32), np.array([4, 5])])
    return kind(
        min_fit_clients=NODES,
        min_available_clients=NODES,
        fraction_evaluate=0.0,
        initial_parameters=model,
        on_fit_config_fn=lambda number: {"round": number},
    )


def run(workflows: dict[str, tuple[Any, Any]]) -> dict[str, Any]:
    found, server = dict[str, Any](), ServerApp()

    @server.main()
    def serve(grid: Grid, context: Any) -> None:
        for name, (chosen, workflow) in workflows.items():
            legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=2), strategy=chosen)
            try:
                DefaultWorkflow(fit_workflow=workflow)(grid, legacy)
            except InvalidParameters as error:
                found[name] = str(error)
                continue
            layer, steps = parameters_to_ndarrays(chosen.last)
            found[name] = {"layer": layer.tolist(), "steps": steps.tolist(), "counts": chosen.counts}
            found[name]["metrics"] = chosen.metrics

    resources: BackendConfig = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app=server, client_app=secure, num_supernodes=NODES, backend_config=resources)
    return found


if __name__ == "__main__":
    outcome = run(
        {
            "secure": (strategy(), SecAggFitWorkflow(metrics="loss")),
            "median": (strategy(FedMedian), SecAggFitWorkflow()),
        }
    )
    Path(sys.argv[1]).write_text(json.dumps(outcome), encoding="utf-8")
