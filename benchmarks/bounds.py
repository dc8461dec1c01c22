"""Cost of bounding a client's update: peak code with a checked length, and with an unbounded one.

One codeword of norm 1 a block bounds the direction at no cost: the code is the same. A bounded length is one index of
256 public levels; an unbounded one is a value in a 32-bit ring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from time import process_time
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from figures import Figure
from secagg.compression.common import PublicStream
from secagg.compression.fixed_point import FixedPoint
from secagg.compression.model_update import ModelUpdate, TensorScheme
from secagg.compression.peak import NORM_LEVELS, PeakCode, level_votes
from secagg.compression.rotation import JoinedRotation
from secagg.contract import IndexSegment, Payload
from secagg.crypto.entropy import SystemCoins
from secagg.identifiers import ClientId
from secagg.session.registry import find
from secagg.session.roles import ClientSession, LazyUpdate, Subject, Update
from secagg.session.run import Measured, run

VALUES: Final = 100_000
PLACES: Final = 128
CLIENTS: Final = {"enclave": 100, "two-servers": 20}
"""The table of votes takes some milliseconds a round, for any number of clients."""
ROUNDS: Final = 3
_MODEL: Final = bytes(32)
_MOST_BYTES: Final = 1.05
_MOST_SECONDS: Final = 1.1


def measure() -> Iterator[Figure]:
    """Compare a client's bytes, and the total seconds, in both protocols that carry indices."""
    made = {"checked": _codec(is_checked=True), "unbounded": _codec(is_checked=False)}
    drawn = np.random.default_rng(0).standard_normal(VALUES).astype(np.float32)
    payloads = {name: codec.encode(_values(codec, drawn), SystemCoins()) for name, codec in made.items()}
    for protocol in CLIENTS:
        found = _best({name: partial(_round, protocol, codec, payloads[name]) for name, codec in made.items()})
        sent = {name: bytes_up for name, (bytes_up, _) in found.items()}
        seconds = {name: spent for name, (_, spent) in found.items()}
        for name in made:
            yield Figure(name=f"{protocol}, {name} length: a client sends", value=sent[name], unit="B")
            yield Figure(name=f"{protocol}, {name} length: time for a client", value=1e3 * seconds[name], unit="ms")
        yield Figure(
            name=f"{protocol}, checked / unbounded, bytes",
            value=sent["checked"] / sent["unbounded"],
            unit="",
            at_most=_MOST_BYTES,
        )
        yield Figure(
            name=f"{protocol}, checked / unbounded, seconds",
            value=seconds["checked"] / seconds["unbounded"],
            unit="",
            at_most=_MOST_SECONDS,
        )


def _best(contenders: Mapping[str, Callable[[], tuple[float, float]]]) -> dict[str, tuple[float, float]]:
    """Return bytes and the minimum seconds of each, measured in turns."""
    best = dict.fromkeys(contenders, (0.0, float("inf")))
    for _ in range(ROUNDS):
        for name, contender in contenders.items():
            sent, seconds = contender()
            best[name] = sent, min(seconds, best[name][1])
    return best


def _codec(*, is_checked: bool) -> ModelUpdate:
    stream = PublicStream(seed=bytes(32), round_number=0, tensor_name="update", shape=(VALUES,))
    code = PeakCode(rotation=JoinedRotation(stream=stream, block_size=1024), places=PLACES)
    plain = FixedPoint(length=1, clip=100.0, fraction_bits=16, modulus_bits=32)
    shape = (1, NORM_LEVELS if is_checked else 1)
    length = TensorScheme(name="length", shape=shape, scheme=level_votes(1) if is_checked else plain)
    return ModelUpdate(tensors=(TensorScheme(name="update", shape=(VALUES,), scheme=code), length))


def _values(codec: ModelUpdate, drawn: npt.NDArray[np.float32]) -> dict[str, Any]:
    told = np.zeros(codec.tensors[1].shape, dtype=np.float32)
    told[0, 0] = 1.0
    return {"update": drawn, "length": told}


def _round(protocol: str, codec: ModelUpdate, payload: Payload) -> tuple[float, float]:
    """Run a session of clients with one payload; return bytes and seconds for each."""
    entry, count = find(protocol), CLIENTS[protocol]
    clients = [ClientId(number) for number in range(1, count + 1)]
    has_indices = any(isinstance(segment, IndexSegment) for segment in codec.layout.segments)
    subject = Subject(
        task=b"benchmark",
        round_number=1,
        layout=codec.layout,
        capacity=codec.capacity,
        tables=codec.tables if has_indices else (),
        model_digest=_MODEL,
    )
    settings = entry.settings(minimum_cohort=2, maximum_cohort=count)
    with closing(entry.simulate(settings, coins=SystemCoins(), clock=lambda: datetime.now(UTC))) as world:
        session = Measured(world.open(subject, frozenset(clients)))

        def join(client: ClientId) -> ClientSession:
            return world.member(client).join(subject, LazyUpdate(lambda: Update(payload, _MODEL)))

        started = process_time()
        run(session, map(join, clients))
        spent = process_time() - started
    return session.figures[0].bytes_up / count, spent / count
