"""The lab's model, each client's change, and the expected result of a round."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

SHAPES = {"layer": (160, 125), "bias": (7,), "narrow": (3, 4)}


def initial_model() -> dict[str, np.ndarray[Any, Any]]:
    """Return floats of three widths, a matrix among them, and an integer counter."""
    return {
        "layer": np.linspace(-1, 1, 20_000, dtype=np.float32).reshape(SHAPES["layer"]),
        "bias": np.linspace(5, 6, 7, dtype=np.float64),
        "narrow": np.ones(SHAPES["narrow"], dtype=np.float16),
        "steps": np.array(5, dtype=np.int64),
        "empty": np.zeros((0, 3), dtype=np.float32),
    }


def change(partition: int, number: int, name: str) -> np.ndarray[Any, Any]:
    """Return the change of a tensor by one client's training in a round."""
    generator = np.random.default_rng([partition, number, len(name)])
    return generator.normal(0, 0.05, SHAPES[name])


def counted(partition: int) -> int:
    return 3 * (partition + 1)


def examples(partition: int) -> int:
    """Return a number that clamping and rounding do not change."""
    return 64 * (4 + partition % 13)


def loss(partition: int) -> float:
    return 1.0 / (partition + 1)


def expected(
    who: Iterable[int], rounds: int, weights: dict[int, int], chaos: dict[int, dict[str, Any]]
) -> dict[str, Any]:
    """Return the model after the weighted mean, in float64; a client whose training fails does not count."""
    model = {name: array.astype(np.float64) for name, array in initial_model().items()}
    parties = list(who)
    weights = told_weights(parties, weights, chaos)
    total = sum(weights.values())
    for number in range(1, rounds + 1):
        for name in SHAPES:
            changes = {p: change(p, number, name) for p in parties}
            for p in parties:
                match chaos.get(p, {}).get("do"):
                    case "fail" | "refuse":
                        changes[p][...] = 0
                    case "nan" if name == "layer":
                        changes[p][3, 4] = 0
                    case _:
                        pass
            model[name] += sum(weights[p] * changes[p] for p in parties) / total
        trained = [p for p in parties if not fails(chaos, p)]
        model["steps"] += np.rint(sum(counted(p) for p in trained) / len(trained))
    return model


def mean_loss(who: Iterable[int], weights: dict[int, int], chaos: dict[int, dict[str, Any]]) -> float:
    """Return the mean loss of the clients that trained, with equal weights."""
    del weights
    losses = [loss(p) for p in who if not fails(chaos, p)]
    return sum(losses) / len(losses)


def fails(chaos: dict[int, dict[str, Any]], partition: int) -> bool:
    return chaos.get(partition, {}).get("do") in {"fail", "refuse"}


def told_weights(who: Iterable[int], weights: dict[int, int], chaos: dict[int, dict[str, Any]]) -> dict[int, int]:
    return {p: 0 if fails(chaos, p) else weights.get(p, examples(p)) for p in who}
