"""A site's script: trains a linear model on the site's own data."""

from __future__ import annotations

import numpy as np
import nvflare.client as flare

EXAMPLES, RATE, STEPS = 128, 0.1, 20
TRUE = np.array([2.0, -1.0, 0.5], dtype=np.float32)


def data_of(site: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the site's own examples; some sites have more of them."""
    number = int(site.rpartition("-")[2])
    drawn = np.random.default_rng(number)
    inputs = drawn.normal(size=(EXAMPLES * (1 + number), len(TRUE))).astype(np.float32)
    return inputs, inputs @ TRUE + drawn.normal(scale=0.1, size=len(inputs)).astype(np.float32)


def trained(weights: np.ndarray, site: str) -> tuple[np.ndarray, float, int]:
    """Return the weights after some steps, the error before them, and the number of examples."""
    inputs, targets = data_of(site)
    error = float(np.mean((inputs @ weights - targets) ** 2))
    for _ in range(STEPS):
        weights = weights - np.float32(RATE) * (inputs.T @ (inputs @ weights - targets)) / np.float32(len(inputs))
    return weights, error, len(inputs)


def main() -> None:
    """Train each model that the site receives, while the job runs."""
    flare.init()
    while flare.is_running():
        model = flare.receive()
        weights, error, examples = trained(model.params["numpy_key"], flare.get_site_name())
        flare.send(
            flare.FLModel(
                params={"numpy_key": weights}, metrics={"error": error}, meta={"NUM_STEPS_CURRENT_ROUND": examples}
            )
        )


if __name__ == "__main__":
    main()
