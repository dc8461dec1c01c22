"""Cost of the one-hot check at a client and each of two servers, against the unavoidable matrix products.

The floor is two products of the whole share, as floats already in one cached chunk, with a column for each lane of an
element: no conversion, no reduction, no hashing. The number of threads of a BLAS is fixed when it is loaded, so the
measurements run in a separate process: ``python one_hot_check.py here`` prints them as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter

import numpy as np

from figures import Figure, best_seconds
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.secret import Secret
from secagg.identifiers import AttemptContext, ClientId, ServerId
from secagg.protocols.two_servers.point_functions.generation import generate_shares
from secagg.protocols.two_servers.point_functions.lanes import LaneField
from secagg.protocols.two_servers.point_functions.one_hot_check import (
    OneHotShare,
    OneHotVerifier,
    RoundChallenges,
    float_type,
)
from secagg.protocols.two_servers.point_functions.one_hot_proof import Assignments, CheckShape, UploadContext, prove
from secagg.protocols.two_servers.point_functions.shape import RUN_BLOCKS, PointFunctionShape

BLOCKS = 100_000
ROUNDS = 7
LARGEST_COUNTS = (126, 8190, 131070)
CHUNK_LANES = 1 << 17
ATTEMPT = AttemptContext(hashlib.sha256(b"benchmark").digest())
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def measure() -> Iterator[Figure]:
    """Prove and check uploads of 100,000 blocks; the BLAS has one thread, and two threads are this library's."""
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, "1")
    command = [sys.executable, str(Path(__file__).resolve()), "here"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)  # noqa: S603 -- this file
    for row in json.loads(done.stdout):
        yield Figure(**row)


def here() -> Iterator[Figure]:
    """Measure in this process."""
    for largest_count in LARGEST_COUNTS:
        yield from _figures(CheckShape.plan(largest_count=largest_count, codewords=32, blocks=BLOCKS))
    yield from _figures(CheckShape.plan(largest_count=126, codewords=256, blocks=BLOCKS))


def _figures(shape: CheckShape) -> Iterator[Figure]:
    coins, client = SystemCoins(), ClientId(1)
    drawn = np.frombuffer(coins.draw(2 * BLOCKS), dtype="<u2")
    assignments: Assignments = (drawn % shape.codewords).astype(np.int64)
    points = PointFunctionShape(codewords=shape.codewords, group=LaneField(shape.modulus), depth=0)
    expanded, explicit = generate_shares(points, assignments, context=ATTEMPT.digest, client=client, coins=coins)
    context = UploadContext(
        attempt=ATTEMPT,
        round_number=1,
        client=client,
        layout_digest=bytes(32),
        segment=0,
        shape=shape,
        correction_digest=bytes(32),
        nonce=expanded.binding.nonce,
    )
    digests, pair_key = (expanded.digest, explicit.digest), Secret.random("pair key", 32, coins)
    proofs = prove(context, assignments, digests, coins)

    def verifier(share: OneHotShare, server: ServerId, threads: int) -> OneHotVerifier:
        challenges = RoundChallenges(pair_key, ATTEMPT, 1)
        return OneHotVerifier(context, share, proofs[server.index], challenges, threads=threads)

    zero, one = verifier(expanded, ServerId(0), 1), verifier(explicit, ServerId(1), 1)
    openings = zero.open(one.commit()), one.open(zero.commit())
    started = perf_counter()
    zero.decide(openings[1])
    deciding = perf_counter() - started
    contenders: dict[str, Callable[[], object]] = {
        "floor": _floor(shape),
        "client": partial(prove, context, assignments, digests, coins),
        "server 0": partial(verifier, expanded, ServerId(0), 1),
        "server 1": partial(verifier, explicit, ServerId(1), 1),
        "lanes 0": partial(_all_lanes, expanded),
        "lanes 1": partial(_all_lanes, explicit),
        "server 0, 2 threads": partial(verifier, expanded, ServerId(0), 2),
        "server 1, 2 threads": partial(verifier, explicit, ServerId(1), 2),
    }
    seconds = best_seconds(contenders, ROUNDS)
    where = f"q={shape.modulus}, k={shape.codewords}, G={shape.columns}"
    sent = sum(len(proof.encode(shape)) for proof in proofs) + 2 * len(context.nonce)
    yield Figure(name=f"client sends, {where}", value=sent, unit="bytes", at_most=1800)
    yield Figure(name=f"each server sends, {where}", value=len(openings[0]) + len(zero.commit()), unit="bytes")
    bound = 120 if shape.codewords <= 32 else None
    for name in ("floor", "client", "server 0", "server 1"):
        at_most = bound if name.startswith("server") else None
        yield Figure(name=f"{name}, {where}", value=1000 * seconds[name], unit="ms", at_most=at_most)
    for name in ("lanes 0", "lanes 1"):
        yield Figure(name=f"of which making {name}, {where}", value=1000 * seconds[name], unit="ms")
    yield Figure(name=f"decision, one, {where}", value=1000 * deciding, unit="ms")
    for name in ("server 0", "server 1"):
        yield Figure(name=f"{name} / floor, {where}", value=seconds[name] / seconds["floor"], unit="ratio")
        value = seconds[name] / seconds[f"{name}, 2 threads"]
        yield Figure(name=f"{name}: one thread / two, {where}", value=value, unit="times")


def _all_lanes(share: OneHotShare) -> None:
    for first in range(0, BLOCKS, RUN_BLOCKS):
        share.lanes(first, min(RUN_BLOCKS, BLOCKS - first))


def _floor(shape: CheckShape) -> Callable[[], None]:
    kind = float_type((shape.modulus - 1) ** 2 // 2)
    width, degree = shape.columns * shape.codewords, shape.field.degree
    rows = max(1, CHUNK_LANES // width)
    chunk = np.ones((rows, width), dtype=kind)
    by_lane, by_row = np.ones((width, degree), dtype=kind), np.ones((rows, degree), dtype=kind)

    def multiply() -> None:
        for _ in range(-(-shape.rows // rows)):
            np.matmul(chunk, by_lane)
            np.matmul(chunk.T, by_row)

    return multiply


if __name__ == "__main__":
    figures = here() if sys.argv[1:] == ["here"] else measure()
    print(json.dumps([asdict(figure) for figure in figures], indent=1))
