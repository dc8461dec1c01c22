"""Cost of the plug-ins' default settings in bits and error: six tasks, a model fine-tuned at 2e-5, and adapters.

Each row is a round of real training by eight clients with equal weights, encoded by the plug-ins' own code: bits per
value, the mean change in steps, and the error of the decoded mean over the length of the mean change. It is measured
with the default settings and with the clip that the warning advises, about the largest change; for adapters also with
a plan.

    PYTHONPATH=. python benchmarks/planned_steps.py benchmarks/results/planned_steps.json --data FOLDER --base FOLDER

``--data`` is the data folder of ``transfer.py``, and ``--base`` the base of ``adapters.py``.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import torch

import adapters
from secagg.adapters import AdapterPlan, Arrays
from secagg.compression.model_update.summed_values import steps_in
from secagg.contract import ideal_aggregate
from secagg.platforms.client_round import Training
from secagg.platforms.round_task import Means, Rounds, RoundTask
from secagg.platforms.schemes import COARSE
from secagg.platforms.settings import SecAggSettings
from secagg.training.driver import pieces_of
from secagg.training.rounds import Run
from transfer import TASKS

CLIENTS: Final = 8
ROUNDS: Final = (1, 10)
SEED: Final = 10
SMALL, USUAL = 2e-5, 1e-2
Models = Sequence[Arrays]


def measured(sent: Arrays, models: Models, settings: Mapping[str, Any], *, is_scaled: bool = False) -> dict[str, Any]:
    """Return the figures of a round.

    Args:
        is_scaled: whether an earlier round reported the ranges of scalar codes.
    """
    given: dict[str, Any] = {"weighting": "uniform", **settings}
    rounds = Rounds(SecAggSettings(**given))
    if is_scaled:
        summed(rounds, sent, models, 1)
    task, means = summed(rounds, sent, models, 2)
    squares = error = 0.0
    for name, first in sent.items():
        due = np.mean([model[name].astype(np.float64) - first for model in models], axis=0)
        squares += float(np.square(due).sum())
        error += float(np.square(means.tensors.get(f"tensor/{name}", 0) - due).sum())
    tensors = [tensor for tensor in task.update.tensors if tensor.name.startswith("tensor/")]
    rings = [tensor.scheme.layout.require_rings()[0] for tensor in tensors]
    bits = sum(ring.length * ring.ring.modulus_bits for ring in rings) / sum(ring.length for ring in rings)
    steps = steps_in(task.update, means.tensors)
    return {
        "bits": round(bits, 1),
        "steps": round(steps, 2) if math.isfinite(steps) else None,
        "warned": bool(steps < COARSE / math.sqrt(len(models))),
        "error": float(f"{math.sqrt(error / squares):.2g}"),
    }


def summed(rounds: Rounds, sent: Arrays, models: Models, number: int) -> tuple[RoundTask, Means]:
    """Run a round with the plug-ins' code and the ideal sum."""
    task = rounds.begun(sent, clients=len(models), task="t", number=number, weighted_by="n")
    payloads = [
        Training(task.terms, task.update, cast("Any", None), sent, adapters.trained(model)).made().payload
        for model in models
    ]
    means = task.means(ideal_aggregate(task.update.layout, payloads))
    rounds.model(task, means)
    return task, means


def advised(sent: Arrays, models: Models) -> dict[str, float]:
    """Return the clip that the warning advises: the largest change, rounded up to a power of two."""
    largest = max(float(np.abs(model[name] - first).max()) for model in models for name, first in sent.items())
    return {"clip": math.ldexp(1.0, math.ceil(math.log2(largest)))}


def compared(what: str, sent: Arrays, models: Models) -> dict[str, Any]:
    """Return a row."""
    changes = np.concatenate([(model[name] - sent[name]).ravel() for model in models for name in sent])
    clip = advised(sent, models)
    return {
        "what": what,
        "values": sum(array.size for array in sent.values()),
        "own_bits": 8 * max(array.itemsize for array in sent.values()),
        "deviation_of_a_change": float(f"{changes.std():.2g}"),
        "default": measured(sent, models, {}),
        "clip": clip["clip"],
        "with_the_clip": measured(sent, models, clip),
    }


def tasks(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield rows of the six tasks of ``transfer.py``."""
    for task in TASKS[:6]:
        configuration = task.configuration(SEED, (), "cpu", folder)
        data = task.data(configuration, folder)
        run = Run(configuration, pieces_of(configuration, data=data, factory=task.factory))
        for number in range(1, max(ROUNDS) + 1):
            chosen = [run.assignment(client, number) for client in run.sample(number)[:CLIENTS]]
            found = list(run.pieces.engine.train(run.tensors(), chosen, configuration.local))
            sent = {name: np.array(value, np.float32) for name, value in run.parameters.items()}
            models = [{name: sent[name] + one.update[name] for name in sent} for one in found]
            if number in ROUNDS:
                yield compared(f"{task.name}, round {number}", sent, models)
            weights = [one.examples for one in found]
            mean = {name: averaged([model[name] - sent[name] for model in models], weights) for name in sent}
            run.parameters = run.optimizer.step(run.parameters, mean)
            run.next_round += 1


def averaged(values: list[npt.NDArray[Any]], weights: list[int]) -> npt.NDArray[np.float32]:
    """Return a weighted mean."""
    return np.average(values, axis=0, weights=weights).astype(np.float32)


def language(base: Path) -> Iterator[dict[str, Any]]:
    """Yield rows of a fully fine-tuned language model, and of its adapters."""
    federation = adapters.Federation(base, 0)
    for what, rate, steps in (
        ("a whole model, one step at 2e-5", SMALL, 1),
        ("a whole model, ten steps at 2e-5", SMALL, 10),
        ("adapters, ten steps at 2e-5", SMALL, 10),
        ("adapters, two steps at 0.01", USUAL, 2),
    ):
        is_whole = what.startswith("a whole")
        model = federation.base if is_whole else federation.model("fedit")
        plan = None if is_whole else AdapterPlan.of(model, "fedit")
        own = dict(model.named_parameters()) if plan is None else None
        sent = plan.arrays(model) if plan is not None else read(own or {})
        models = list[Arrays]()
        for client, tokens in enumerate(federation.train):
            if plan is not None:
                plan.load(model, sent)
            for name, tensor in (own or {}).items():
                tensor.data.copy_(torch.from_numpy(sent[name]))  # pyright: ignore[reportUnknownMemberType]
            due = plan.train_only(model, 0) if plan is not None else list(model.parameters())
            optimizer = torch.optim.AdamW(due, lr=rate, weight_decay=0.0)
            for step in range(steps):
                batch = adapters.windows(tokens, adapters.BATCH, 100 * client + step, adapters.LENGTH)
                adapters.stepped(model, optimizer, batch)
            models.append(plan.arrays(model) if plan is not None else read(own or {}))
        row = compared(what, sent, models)
        for name, tensor in (own or {}).items():
            tensor.data.copy_(torch.from_numpy(sent[name]))  # pyright: ignore[reportUnknownMemberType]
        if plan is not None:
            settings = plan.settings([rate] * steps, clients=CLIENTS)
            row["with_a_plan"] = {
                "first round": measured(sent, models, settings),
                "later": measured(sent, models, settings, is_scaled=True),
            }
        yield row


def read(tensors: Mapping[str, Any]) -> Arrays:
    """Return parameters as NumPy arrays."""
    return {name: tensor.detach().numpy().copy() for name, tensor in tensors.items()}


def main() -> None:
    """Measure every row, and write them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--base", type=Path, required=True)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    rows = list[dict[str, Any]]()
    for row in chain(language(options.base), tasks(options.data)):
        rows.append(row)
        print(json.dumps(row), flush=True)
    options.out.write_text(json.dumps({"clients": CLIENTS, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
