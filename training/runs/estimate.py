"""What a run will take, before it is started: seconds by a few timed clients, bytes by the layout of its codec."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle, islice
from time import perf_counter
from typing import Final

import torch

from secagg.compression.byte_accounting import Accounting, upload_bytes
from secagg.training.settings.configuration import Configuration
from secagg.training.settings.sections import SumMode
from secagg.training.sums.round_sums import SumRound, Upload
from secagg.training.sums.secure_sums import require_feasible

from .driver import pieces_of
from .rounds import Pieces, Run

_TIMED_CLIENTS: Final = 8
_COPIES_OF_A_MODEL: Final = 8
"""The model, its gradient, the update, the mean, the optimizer's memories, and temporaries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a run will take, roughly."""

    clients_per_second: float
    round_seconds: float
    hours: float
    payload_bytes: int
    paper_bytes: float
    factor: float
    bytes_up_in_all: float
    bytes_down_in_all: float
    memory_bytes: int


def estimate(configuration: Configuration, pieces: Pieces | None = None) -> Estimate:
    """Train, encode and sum a few clients, and multiply.

    Raises:
        InvalidParameters: the run cannot work; the message says why.
    """
    run = Run(configuration, pieces_of(configuration) if pieces is None else pieces)
    codec = run.operators.planned()
    require_feasible(configuration, codec, available=len(run.pieces.data.sizes))
    clients = list(islice(cycle(range(len(run.pieces.data.sizes))), _TIMED_CLIENTS))
    run.operators.current = codec
    start: dict[str, torch.Tensor] = run.tensors()
    list(run.pieces.engine.train(start, [run.assignment(clients[0], 0)], configuration.local))  # It warms up.
    began = perf_counter()
    updates = list(run.pieces.engine.train(start, [run.assignment(c, 0) for c in clients], configuration.local))
    encoded = [run.operators.encode(trained.update, run.coins(trained.client, 0)) for trained in updates]
    per_client = (perf_counter() - began) / len(clients)
    round_seconds = per_client * configuration.clients_per_round
    if configuration.secagg.mode is SumMode.REAL:
        invited = tuple(range(configuration.clients_per_round))
        uploads: list[Upload] = [(client, encoded[client % len(encoded)], 1) for client in invited]
        began = perf_counter()
        run.pieces.sum.run(SumRound(number=0, codec=codec, clients=invited, uploaders=invited), uploads)
        round_seconds += (perf_counter() - began) / configuration.secagg.every
    began = perf_counter()
    run.pieces.evaluate(start)
    round_seconds += (perf_counter() - began) / configuration.evaluation.every
    paper, wire = (float(upload_bytes(codec.layout, a)) for a in (Accounting.PAPER, Accounting.WIRE))
    sent = configuration.rounds * configuration.clients_per_round
    payloads = int(wire) * (configuration.clients_per_round if configuration.secagg.mode is SumMode.REAL else 2)
    return Estimate(
        clients_per_second=1 / per_client,
        round_seconds=round_seconds,
        hours=round_seconds * configuration.rounds / 3600,
        payload_bytes=int(wire),
        paper_bytes=paper,
        factor=4 * run.values / paper,
        bytes_up_in_all=wire * sent,
        bytes_down_in_all=4.0 * run.values * sent,
        memory_bytes=4 * run.values * _COPIES_OF_A_MODEL + payloads,
    )
