"""A site's script: moves half of the way to a goal."""

from __future__ import annotations

import numpy as np
import nvflare.client as flare

GOAL = np.random.default_rng(3).normal(size=(60, 200)).astype(np.float32)


def train() -> None:
    """Train until the job ends."""
    flare.init()
    while flare.is_running():
        model = flare.receive()
        params = {name: values + 0.5 * (GOAL - values) for name, values in model.params.items()}
        flare.send(flare.FLModel(params=params, meta={"NUM_STEPS_CURRENT_ROUND": 1}))


if __name__ == "__main__":
    train()
