"""A site that trains the wide network, and logs the received model."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

import nvflare.client as flare
import torch
from lab_network import Wide
from network import accuracy, load_data, train


def main() -> None:
    """Train until the job ends."""
    flare.init()
    number = int(flare.get_site_name().rpartition("-")[2])
    points, classes = load_data(number, 100)
    model = Wide()
    while flare.is_running():
        received = flare.receive()
        state: dict[str, Any] = {name: torch.as_tensor(values) for name, values in received.params.items()}
        digest = hashlib.sha256(b"".join(state[name].numpy().tobytes() for name in sorted(state))).hexdigest()
        logging.getLogger("lab").info("sent model %s", digest)
        model.load_state_dict(state)
        found = accuracy(model, points, classes)
        train(model, points, classes, 0.05)
        meta = {"NUM_STEPS_CURRENT_ROUND": 10}
        flare.send(flare.FLModel(params=model.state_dict(), metrics={"accuracy": found}, meta=meta))


if __name__ == "__main__":
    main()
