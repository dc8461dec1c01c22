"""A site's script: adds its number in sixteenths. Site 5 is killed in a round, if the job names one."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np
import nvflare.client as flare
from nvflare.client.tracking import SummaryWriter

MARKER = "a marker in the clear".replace(" ", "-")  # never whole in the source, which a job uploads


def train(fatal_round: int) -> None:
    """Train until the job ends."""
    flare.init()
    number = int(flare.get_site_name().rpartition("-")[2])
    writer = SummaryWriter()
    while flare.is_running():
        model = flare.receive()
        if (number, model.current_round) == (5, fatal_round):
            # Also kill the parent process, which would report it to the server, so that NVFlare would end the job.
            os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        writer.add_scalar(MARKER, number, model.current_round)
        params = {name: values + np.float32(number / 16) for name, values in model.params.items()}
        # Between a quarter of 1,024 and 1,024, and a multiple of a sixteenth: it is not rounded.
        meta = {"NUM_STEPS_CURRENT_ROUND": 128 * (1 + number)}
        flare.send(flare.FLModel(params=params, metrics={"accuracy": 0.1 * number}, meta=meta))


if __name__ == "__main__":
    train(int(sys.argv[1]))
