"""Models that clients hold and a server moves by told sums, the same to the last bit on both sides.

A client needs only the sums that were decoded since it had the model (``coder``). All values of a held model are whole
steps of their run of 1,024 values, 127 to the largest. Rounding to these steps after every round is at random and
unbiased, with public coins, so that both sides round alike. Its error is not carried to the next round: a client that
comes later could not know it.

Floats do not differ between machines: sums are turned back in whole numbers, which are exact in any order while no sum
of a rotation's block is above 2^24, and everything else is one float32 operation a value. A digest of the model is told
with the sum; a client whose model has another one asks for the model.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from secagg.compression.checks import LARGEST, finite, require_floats
from secagg.compression.joined_rotation import Floats, Gains, JoinedRotation
from secagg.compression.peak import block_size_for
from secagg.compression.public_stream import PublicStream
from secagg.compression.rotation import padded_size
from secagg.contract import DIGEST_BYTES
from secagg.crypto.labels import Label, bind
from secagg.errors import UNDECIDED, MalformedMessage, PeerMisbehaved, Reason
from secagg.wire import MessageKind, Reader, Writer

from .coder import Sums, decode_sums, encode_sums

RUN: Final = 1024
"""Values that have one step."""
_STEPS: Final = 127
_LEAST: Final = 2.0**-100
"""Runs of smaller values are zero."""
_ROUND_BYTES: Final = 8
_MOST_SCALES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ToldSum:
    """The sum of a round: the held model of that round plus its decoding is that of the next, before rounding."""

    round_number: int
    """The round whose updates were added up."""
    scales: tuple[float, ...]
    """Scales of the tensors in the round's rotation."""
    gains: Gains
    """Factors of the sums, with the server's rate, the length of updates and the total weight in them."""
    digest: bytes
    """Digest of the model that results."""
    sums: Sums = field(repr=False)

    def encode(self) -> bytes:
        writer = Writer(MessageKind.TOLD_SUM).integer(self.round_number, _ROUND_BYTES)
        scales = np.array(self.scales, ">f4").tobytes()
        gains = np.array([self.gains.gain, self.gains.last_gain], ">f4").tobytes()
        writer.variable(scales, 4 * _MOST_SCALES).fixed(gains, 8).integer(self.gains.last, 4)
        return writer.fixed(self.digest, DIGEST_BYTES).borrowed(encode_sums(self.sums)).finish()

    @classmethod
    def decode(cls, message: bytes, padded: int) -> ToldSum:
        """Read a message back, of so many values.

        Raises:
            MalformedMessage, UnexpectedMessage: it is none.
        """
        reader = Reader(message, MessageKind.TOLD_SUM)
        round_number = reader.integer(_ROUND_BYTES)
        scales, gains = (_floats(data) for data in (reader.variable(4 * _MOST_SCALES), reader.fixed(8)))
        last, digest = reader.integer(4), reader.fixed(DIGEST_BYTES)
        if last > padded or np.any(scales < 2.0**-60) or np.any(scales > 2.0**60):
            raise MalformedMessage(
                "scales are in 2^-60..2^60, and no more values are last than there are", reason=Reason.NOT_CANONICAL
            )
        sums = decode_sums(bytes(reader.rest()), padded)
        return cls(
            round_number=round_number,
            scales=tuple(scales.tolist()),
            gains=Gains(float(gains[0]), last, float(gains[1])),
            digest=digest,
            sums=sums,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldModel:
    """All values of a model as whole steps, before the round of this number."""

    seed: bytes
    """32 public bytes of the run, from which rotations and roundings follow."""
    name: str
    """The name of the vector in public streams."""
    sizes: tuple[int, ...]
    """Number of values of each tensor, in their order."""
    round_number: int
    steps: Floats
    """Length of a step of each run."""
    codes: npt.NDArray[np.int8]

    @classmethod
    def rounded(cls, values: Floats, *, seed: bytes, name: str, sizes: tuple[int, ...], round_number: int) -> HeldModel:
        """Round a model; the coins follow from seed, name and round."""
        require_floats(values, (sum(sizes),))
        runs = np.zeros((-(-len(values) // RUN), RUN), np.float32)
        runs.reshape(-1)[: len(values)] = finite(values, LARGEST)
        steps = np.abs(runs).max(axis=1) / np.float32(_STEPS)
        steps[steps < _LEAST] = 1
        stream = PublicStream(seed=seed, round_number=round_number, tensor_name=name, shape=(len(values),))
        drawn = np.frombuffer(stream.read(Label.MODEL_ROUNDING, len(values)), np.uint8)
        runs /= steps[:, np.newaxis]
        codes = runs.reshape(-1)[: len(values)]
        # Coins are in the middle of 256 cells, so that whole steps stay as they are.
        codes += (drawn.astype(np.float32) + np.float32(0.5)) / np.float32(256)
        rounded = np.clip(np.floor(codes), -_STEPS, _STEPS).astype(np.int8)
        return cls(seed=seed, name=name, sizes=sizes, round_number=round_number, steps=steps, codes=rounded)

    @property
    def values(self) -> Floats:
        runs = np.zeros((len(self.steps), RUN), np.float32)
        runs.reshape(-1)[: len(self.codes)] = self.codes
        runs *= self.steps[:, np.newaxis]
        return runs.reshape(-1)[: len(self.codes)]

    @cached_property
    def digest(self) -> bytes:
        number = self.round_number.to_bytes(_ROUND_BYTES, "big")
        parts = bind(Label.HELD_MODEL, self.seed, number, self.steps.astype(">f4").tobytes(), self.codes.tobytes())
        return hashlib.sha256(parts).digest()

    def encode(self) -> bytes:
        """Return the message for clients that do not have the model."""
        writer = Writer(MessageKind.HELD_MODEL).integer(self.round_number, _ROUND_BYTES)
        steps = self.steps.astype(">f4").tobytes()
        return writer.fixed(steps, len(steps)).borrowed(encode_sums(self.codes)).finish()

    @classmethod
    def decode(cls, message: bytes, *, seed: bytes, name: str, sizes: tuple[int, ...]) -> HeldModel:
        """Read a message back, of a model of these sizes.

        Raises:
            MalformedMessage, UnexpectedMessage: it is none.
        """
        reader, count = Reader(message, MessageKind.HELD_MODEL), sum(sizes)
        round_number = reader.integer(_ROUND_BYTES)
        steps = _floats(reader.fixed(4 * -(-count // RUN)))
        codes = decode_sums(bytes(reader.rest()), count)
        if np.any(steps < _LEAST) or np.any(steps > LARGEST) or int(np.abs(codes).max(initial=0)) > _STEPS:
            raise MalformedMessage(
                f"values of a model are {_STEPS} steps at most, each in 2^-100..2^100", reason=Reason.NOT_CANONICAL
            )
        narrow = codes.astype(np.int8)
        return cls(seed=seed, name=name, sizes=sizes, round_number=round_number, steps=steps, codes=narrow)

    def told(self, round_number: int, sums: Sums, scales: tuple[float, ...], gains: Gains) -> tuple[HeldModel, bytes]:
        """Return the model after a round, and the message that tells it to clients that hold this one."""
        narrow = np.array([gains.gain, gains.last_gain], np.float32).tolist()
        exact = Gains(narrow[0], gains.last, narrow[1])
        model = self._moved(round_number, sums, scales, exact)
        told = ToldSum(round_number=round_number, scales=scales, gains=exact, digest=model.digest, sums=sums)
        return model, told.encode()

    def after(self, message: bytes) -> HeldModel:
        """Return the model of the next round.

        Raises:
            MalformedMessage, UnexpectedMessage: the message is no told sum of this model's size.
            PeerMisbehaved: it is of another round, or another model results; ask for the model.
        """
        told = ToldSum.decode(message, self._padded)
        is_later = self.round_number <= told.round_number < (1 << 64) - 1 and len(told.scales) == len(self.sizes)
        model = self._moved(told.round_number, told.sums, told.scales, told.gains) if is_later else None
        if model is None or model.digest != told.digest:
            raise PeerMisbehaved(
                f"the model before round {self.round_number} and the sum of round {told.round_number} are not the "
                "server's next model; ask for that",
                reason=Reason.MODEL_MISMATCH,
                culprits=UNDECIDED,
            )
        return model

    @property
    def _padded(self) -> int:
        return padded_size(len(self.codes), block_size_for(len(self.codes)))

    def _moved(self, round_number: int, sums: Sums, scales: tuple[float, ...], gains: Gains) -> HeldModel:
        shape = (len(self.codes),)
        stream = PublicStream(seed=self.seed, round_number=round_number, tensor_name=self.name, shape=shape)
        block = block_size_for(len(self.codes))
        rotation = JoinedRotation(stream=stream, sizes=self.sizes, scales=scales, block_size=block)
        moved = rotation.turned_back(sums.astype(np.float32), gains)
        moved += self.values
        return HeldModel.rounded(moved, seed=self.seed, name=self.name, sizes=self.sizes, round_number=round_number + 1)


def _floats(data: bytes) -> Floats:
    """Read finite numbers."""
    values = np.frombuffer(data, ">f4").astype(np.float32) if data else np.empty(0, np.float32)
    if not np.isfinite(values).all():
        raise MalformedMessage("a number of a told model is not finite", reason=Reason.NOT_CANONICAL)
    return values
