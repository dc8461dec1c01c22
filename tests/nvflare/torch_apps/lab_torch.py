"""A site of PyTorch recipes: trains, corrects by SCAFFOLD given control variates, and evaluates on request."""

from __future__ import annotations

import copy
from typing import Any

import nvflare.client as flare
import torch
from network import Network, accuracy, load_data
from nvflare.app_opt.pt.scaffold import PTScaffoldHelper

STEPS, RATE, SIZE = 5, 0.05, 100


def train(model: Any, points: Any, classes: Any, helper: PTScaffoldHelper | None, controls: Any) -> dict[str, Any]:
    """Take some steps, and return the report for the server."""
    before = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    if helper is not None:
        helper.load_global_controls(controls)
        terms = helper.get_params()
    model.train()
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(points), classes).backward()
        optimizer.step()
        if helper is not None:
            helper.model_update(model, RATE, *terms)
    if helper is None:
        return {}
    helper.terms_update(model, RATE, *terms, before)
    return {"scaffold_c_diff": helper.get_delta_controls()}


def main() -> None:
    """Do all tasks until the job ends."""
    flare.init()
    number = int(flare.get_site_name().rpartition("-")[2])
    points, classes = load_data(number, SIZE)
    model = Network()
    helper = PTScaffoldHelper()
    helper.init(model)
    while flare.is_running():
        received = flare.receive()
        model.load_state_dict({name: torch.as_tensor(values) for name, values in received.params.items()})
        found = accuracy(model, points, classes)
        meta: dict[str, Any] = {"NUM_STEPS_CURRENT_ROUND": 256 * (1 + number)}
        if flare.is_evaluate():
            flare.send(flare.FLModel(metrics={"accuracy": found}, meta=meta))
            continue
        controls = received.meta.get("scaffold_c_global")
        meta |= train(model, points, classes, helper if controls else None, controls)
        flare.send(flare.FLModel(params=model.state_dict(), metrics={"accuracy": found}, meta=meta))


if __name__ == "__main__":
    main()
