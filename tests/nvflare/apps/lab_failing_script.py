"""A site's script: adds 1 to the weights and 2 to an integer counter, and fails when the job requests it."""

from __future__ import annotations

import json
import sys

import numpy as np
import nvflare.client as flare


def train(half_fails: int, all_fail: int) -> None:
    """Train until the job ends; in one round half of the sites fail, each differently, and in another one all."""
    flare.init()
    number = int(flare.get_site_name().rpartition("-")[2])
    while flare.is_running():
        model = flare.receive()
        if model.current_round == all_fail:
            raise RuntimeError("the data of this site are gone")
        count = model.params["count"].astype(np.int64) + 2
        params, loss = {"w": model.params["w"] + np.float32(1.0), "count": count}, 0.99
        if model.current_round == half_fails and number == 3:
            del params["count"]
        if model.current_round == half_fails and number == 4:
            loss = float("nan")
        flare.send(flare.FLModel(params=params, metrics={"loss": loss}))


if __name__ == "__main__":
    train(*json.loads(sys.argv[1]))
