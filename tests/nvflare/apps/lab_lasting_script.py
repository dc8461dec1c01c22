"""A closed site's trainer: adds the site's number in sixteenths to the current part of an adapter.

One trainer starts slowly, and one is killed in the second round of a job that requests it.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np
import nvflare.client as flare

SLOW, KILLED = 2, 3


def main(what: str, slow_seconds: str) -> None:
    """Train until the job ends."""
    if what == "killed" and os.getcwd().rstrip("/").find(f"site-{SLOW}") >= 0:  # noqa: PTH109 -- a trainer's folder
        time.sleep(float(slow_seconds))
    flare.init()
    number = int(flare.get_site_name().rpartition("-")[2])
    while flare.is_running():
        model = flare.receive()
        if (what, number, model.current_round) == ("killed", KILLED, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        due = ("lora_B", "lora_A")[model.current_round % 2]
        params = {name: values + np.float32(number / 16 * (due in name)) for name, values in model.params.items()}
        time.sleep(1.0)
        flare.send(flare.FLModel(params=params, metrics={"loss": 1.0 / number}))


if __name__ == "__main__":
    main(*sys.argv[1:3])
