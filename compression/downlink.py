"""Compressed downlink: the server sends decoded sums in few bits, and clients apply them to the model they hold.

Integers around zero, such as sums of signs, nearly follow a Skellam distribution. One number describes it: the variance
V, which is N / d for a sum of peaks. The sender sends V in two bytes and codes the values with interleaved range coders
(rANS) [Dud13]. Both ends compute the table from V in integer arithmetic, so every byte is the same on every machine.
Values outside the table are sent in four bytes each. Low bits of widely spread values are sent uncoded; if all values
have one parity, their halves are coded.

The encoding of a list of values is unique, and ``decode_sums`` refuses any other. No message makes a decoder reserve
more memory than its expected number of values needs.

A client needs only the sums that were decoded since it received the model. All values of a held model are whole steps,
with one step size for each run of 1,024 values: 127 steps to the largest. After every round both sides round to these
steps with the same public coins, at random and without bias. Rounding errors are not carried over: a client that joins
later would not know them.

Results are equal on all machines: sums are rotated back as whole numbers, which are exact in any order while no sum of
a rotation's block is above 2^24, and everything else is one float32 operation per value. A digest of the model is sent
with the sum; a client whose model has another digest asks for the model.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from secagg.contract import DIGEST_BYTES
from secagg.crypto.labels import Label, bind
from secagg.crypto.ring import Ring
from secagg.declared import At, Field, MessageIn, fixed, sized, unsigned
from secagg.errors import UNDECIDED, MalformedMessage, Misuse, PeerMisbehaved, Reason
from secagg.parameters import require_integer
from secagg.wire import MessageKind, Reader

from .common import LARGEST, PublicStream, finite, require_floats
from .peak import block_size_for
from .rotation import Floats, Gains, JoinedRotation, padded_size

# --- Coded sums -------------------------------------------------------------------------------------------------------

Sums = npt.NDArray[np.int32]
MOST_VALUES: Final = 1 << 32
GREATEST: Final = 1 << 24
"""Maximum magnitude of a value; sums up to here are exact in float32."""
_LEVEL: Final = struct.Struct(">H")
LEVELS: Final = 8 * 59 + 1
_PARITY: Final = 14
"""Number of bits of a level; the bits above are the parity of all values."""
_FINEST: Final = 14
"""Variances are (8 + k % 8) 2^(k // 8) in units of 2^-14."""
_WIDEST: Final = 8
"""Values with a larger variance lose low bits until it is below this."""
_EVEN: Final = 1
_ODD: Final = 2
_TOTAL_BITS: Final = 16
_TOTAL: Final = 1 << _TOTAL_BITS
_TOP: Final = 512
"""Start of the table's recurrence: 32 standard deviations of the widest."""
_LEAST: Final = 1 << 16
"""Between two values, a state is at least this and below 2^32."""
_VALUES_OF_A_LANE: Final = 2048
_MOST_LANES: Final = 4096
_PIECE: Final = 1 << 14
"""Number of values whose sum of squares fits 64 bits."""


@dataclass(frozen=True, slots=True)
class Table:
    """Frequencies, 2^16 in total, of the values -greatest..greatest and of an escape for all others."""

    low_bits: int
    greatest: int
    frequencies: npt.NDArray[np.uint32]
    starts: npt.NDArray[np.uint32]

    @property
    def beyond(self) -> int:
        return 2 * self.greatest + 1


def encode_sums(sums: npt.NDArray[Any]) -> bytes:
    """Return the encoding of integers; the receiver knows their number."""
    given: Any = sums
    if type(given) is not np.ndarray or given.dtype.kind != "i" or given.ndim != 1:
        raise Misuse("sums must be a vector of signed integers")
    if len(given) and max(int(given.max()), -int(given.min())) > GREATEST:
        raise Misuse("a sum must be at most 2^24 in magnitude")
    whole: Sums = given.astype(np.int32, copy=False)
    parity = parity_of(whole)
    values = whole >> 1 if parity else whole
    level = level_of(values)
    table, lanes = table_of(level), _lanes(len(values))
    high, low = _parted(values, table.low_bits)
    symbols = np.full(-(-len(values) // lanes) * lanes, table.greatest, np.uint16)
    np.copyto(symbols[: len(values)], np.clip(high, -table.greatest - 1, table.greatest + 1) + table.greatest, "unsafe")
    outside = np.abs(high) > table.greatest
    symbols[: len(values)][outside] = table.beyond
    states, words = pushed(symbols.reshape(-1, lanes), table)
    escaped = high[outside].astype(">i4").tobytes()
    return (
        _LEVEL.pack(parity << _PARITY | level)
        + low
        + states.astype(">u4").tobytes()
        + words.astype(">u2").tobytes()
        + escaped
    )


def decode_sums(data: bytes, count: int) -> Sums:
    """Return the integers that ``encode_sums`` was given.

    Raises:
        MalformedMessage: the bytes are not an encoding of ``count`` values.
    """
    require_integer("count", count, 0, MOST_VALUES)
    lanes = _lanes(count)
    if len(data) < _LEVEL.size + 4 * lanes:
        raise MalformedMessage("coded sums end before their coders' states", reason=Reason.TRUNCATED)
    if len(data) > longest(count):
        raise MalformedMessage(f"{count} sums take at most {longest(count)} bytes", reason=Reason.TRAILING_BYTES)
    (head,) = _LEVEL.unpack_from(data)
    parity, level = divmod(head, 1 << _PARITY)
    if level >= LEVELS:
        raise MalformedMessage(f"the variance of coded sums must be below level {LEVELS}", reason=Reason.NOT_CANONICAL)
    table = table_of(level)
    first = _LEVEL.size + (count * table.low_bits + 7) // 8
    symbols, end = _pulled(data, first, (-(-count // lanes), lanes), table)
    high = symbols[:count].astype(np.int64)
    high -= table.greatest
    outside, rest = np.flatnonzero(symbols[:count] == table.beyond), data[end:]
    if np.any(symbols[count:] != table.greatest) or len(rest) != 4 * outside.size:
        raise _other()
    high[outside] = escaped = np.frombuffer(rest.ljust(4, b"\0"), ">i4")[: outside.size].astype(np.int64)
    if np.any(np.abs(escaped) <= table.greatest):
        raise _other()
    high <<= table.low_bits
    if table.low_bits:
        high += Ring(table.low_bits).unpack(data[_LEVEL.size : first], count).astype(np.int64)
    whole = 2 * high + (parity == _ODD) if parity else high
    if int(np.abs(whole).max(initial=0)) > GREATEST or level_of(high.astype(np.int32)) != level:
        raise _other()
    if parity_of(values := whole.astype(np.int32)) != parity:
        raise _other()
    return values


def longest(count: int) -> int:
    """Return the maximum length of an encoding of ``count`` values."""
    lanes = _lanes(count)
    padded = -(-count // lanes) * lanes
    # A word for each symbol, four bytes for each value beyond the table, and 20 low bits.
    return _LEVEL.size + 4 * lanes + 2 * padded + 7 * count


def parity_of(values: Sums) -> int:
    """Return 1 if all values are even, 2 if all are odd, and 0 otherwise."""
    odd = int(np.count_nonzero(values & 1))
    if odd == 0:
        return _EVEN
    return _ODD if odd == len(values) else 0


# --- The model --------------------------------------------------------------------------------------------------------


def level_of(values: Sums) -> int:
    """Return the lowest level with at least the variance of the values."""
    squares = 0
    for first in range(0, len(values), _PIECE):
        piece = values[first : first + _PIECE].astype(np.int64)
        squares += int(piece @ piece)
    wanted = max(8, -(-(squares << _FINEST) // max(1, len(values))))
    shift = max(0, (wanted - 1).bit_length() - 4)
    return 8 * (shift - 1) - (-wanted >> shift)


@lru_cache(maxsize=64)
def table_of(level: int) -> Table:
    """Return the table of a level: scaled Bessel functions by downward recurrence, in whole numbers."""
    mantissa, power = 8 + level % 8, level // 8 - _FINEST
    low_bits = max(0, (power + 4 - _WIDEST) // 2)
    power -= 2 * low_bits
    above, below = mantissa << max(0, power), 1 << max(0, -power)
    # I(v - 1) = I(v + 1) + 2 v / V I(v), starting where I vanishes.
    weights = [0, 1 << 64]
    for place in range(_TOP, 0, -1):
        weights.append(weights[-2] + 2 * place * weights[-1] * below // above)
    weights.reverse()
    total = 2 * sum(weights) - weights[0]
    half = [weight * (_TOTAL - 1) // total for weight in weights]
    greatest = max(place for place, some in enumerate(half) if some)
    counted = np.array([*half[greatest:0:-1], *half[: greatest + 1], 0], np.uint32)
    counted[-1] = _TOTAL - int(counted.sum())
    starts = np.cumsum(counted, dtype=np.uint32) - counted
    return Table(low_bits, greatest, counted, starts)


# --- The coders -------------------------------------------------------------------------------------------------------


def _lanes(count: int) -> int:
    """Return the number of interleaved coders; each costs two bytes."""
    return max(1, min(_MOST_LANES, count // _VALUES_OF_A_LANE))


def pushed(symbols: npt.NDArray[np.uint16], table: Table) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint16]]:
    """Code rows of symbols, last row first; return the states and the words in reading order."""
    states = np.full(symbols.shape[1], _LEAST, np.uint32)
    words = list[npt.NDArray[np.uint16]]()
    for row in symbols[::-1]:
        frequency = table.frequencies[row]
        full = (states >> _TOTAL_BITS) >= frequency
        over = states[full]
        if over.size:
            words.append(over.astype(np.uint16))
            states[full] = over >> 16
        quotient = states // frequency
        states += quotient * (_TOTAL - frequency)
        states += table.starts[row]
    return states, np.concatenate(words[::-1]) if words else np.empty(0, np.uint16)


def _pulled(data: bytes, first: int, shape: tuple[int, int], table: Table) -> tuple[npt.NDArray[np.uint16], int]:
    rows, lanes = shape
    begin = first + 4 * lanes
    if len(data) < begin:
        raise MalformedMessage("coded sums end before their coders' states", reason=Reason.TRUNCATED)
    states = np.frombuffer(data[first:begin], ">u4").astype(np.uint32)
    words = np.frombuffer(data[begin : begin + (len(data) - begin) // 2 * 2], ">u2").astype(np.uint32)
    slots = np.repeat(np.arange(len(table.frequencies), dtype=np.uint16), table.frequencies.astype(np.int64))
    symbols, taken = np.empty((rows, lanes), np.uint16), 0
    if np.any(states < _LEAST):
        raise _other()
    for row in symbols:
        slot = states & (_TOTAL - 1)
        slots.take(slot, out=row)
        slot -= table.starts[row]
        states >>= _TOTAL_BITS
        states *= table.frequencies[row]
        states += slot
        empty = np.flatnonzero(states < _LEAST)
        if empty.size:
            read = words[taken : taken + empty.size]
            if read.size < empty.size:
                raise MalformedMessage("coded sums end before their last value", reason=Reason.TRUNCATED)
            states[empty] = (states[empty] << 16) | read
            taken += empty.size
    # Any other final state means that the encoder would have written other bytes.
    if np.any(states != _LEAST):
        raise _other()
    return symbols.reshape(-1), begin + 2 * taken


def _parted(values: Sums, low_bits: int) -> tuple[Sums, bytes]:
    if not low_bits:
        return values, b""
    ring = Ring(low_bits)
    low = (values & ((1 << low_bits) - 1)).astype(ring.word)
    return values >> low_bits, bytes(ring.pack(low))


def _other() -> MalformedMessage:
    return MalformedMessage("coded sums are not canonically encoded", reason=Reason.NOT_CANONICAL)


# --- Held models ------------------------------------------------------------------------------------------------------

RUN: Final = 1024
"""Number of values that share one step."""
_STEPS: Final = 127
_LEAST_STEP: Final = 2.0**-100
"""Runs of smaller values are zero."""
_ROUND_BYTES: Final = 8
_MOST_SCALES: Final = 1 << 20


def _read_scales(reader: Reader, _: object) -> tuple[float, ...]:
    scales = _floats(reader.variable(4 * _MOST_SCALES))
    if np.any(scales < 2.0**-60) or np.any(scales > 2.0**60):
        raise MalformedMessage("scales must be in 2^-60..2^60", reason=Reason.NOT_CANONICAL)
    return tuple(scales.tolist())


def _read_gains(reader: Reader, at: At) -> Gains:
    gain, last_gain = _floats(reader.fixed(8)).tolist()
    if (last := reader.integer(4)) > at.place:
        raise MalformedMessage("the last block has more values than exist", reason=Reason.NOT_CANONICAL)
    return Gains(gain, last, last_gain)


_SCALES: Final = Field(
    lambda writer, scales: writer.variable(_encoded(scales), 4 * _MOST_SCALES), _read_scales, "4 + 4 for each"
)
_GAINS: Final = Field(
    lambda writer, gains: writer.fixed(_encoded([gains.gain, gains.last_gain]), 8).integer(gains.last, 4),
    _read_gains,
    "4, 4, 4",
)
_SUMS: Final = Field(
    lambda writer, sums: writer.borrowed(encode_sums(sums)),
    lambda reader, at: decode_sums(bytes(reader.rest()), at.place),
    "coded sums",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DownlinkSum(MessageIn[int]):
    """Sum of a round; decoded and added to the held model, it gives the next model before rounding."""

    kind: ClassVar = MessageKind.DOWNLINK_SUM
    round_number: Annotated[int, unsigned(_ROUND_BYTES)]
    """Round whose updates were summed."""
    scales: Annotated[tuple[float, ...], _SCALES]
    """Scales of the tensors in the round's rotation."""
    gains: Annotated[Gains, _GAINS]
    """Factors of the sums; they include the server's rate, the updates' length and the number of uploads."""
    digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    """Digest of the resulting model."""
    sums: Annotated[Sums, _SUMS] = field(repr=False)
    """Their number follows from the message's place."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldModel:
    """All values of a model as whole steps, before the round with this number."""

    seed: bytes
    """32 public bytes of the run; rotations and roundings are derived from them."""
    name: str
    """Name of the vector in public streams."""
    sizes: tuple[int, ...]
    """Number of values of each tensor, in their order."""
    round_number: int
    steps: Floats
    """Step size of each run."""
    codes: npt.NDArray[np.int8]

    @classmethod
    def rounded(cls, values: Floats, *, seed: bytes, name: str, sizes: tuple[int, ...], round_number: int) -> HeldModel:
        """Round a model; the coins follow from seed, name and round."""
        require_floats(values, (sum(sizes),))
        runs = np.zeros((-(-len(values) // RUN), RUN), np.float32)
        runs.reshape(-1)[: len(values)] = finite(values, LARGEST)
        steps = np.abs(runs).max(axis=1) / np.float32(_STEPS)
        steps[steps < _LEAST_STEP] = 1
        stream = PublicStream(seed=seed, round_number=round_number, tensor_name=name, shape=(len(values),))
        drawn = np.frombuffer(stream.read(Label.MODEL_ROUNDING, len(values)), np.uint8)
        runs /= steps[:, np.newaxis]
        codes = runs.reshape(-1)[: len(values)]
        # Coins are the middles of 256 cells, so whole steps do not change.
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
        return _Values(self.round_number, self.steps.astype(">f4").tobytes(), self.codes).encode()

    @classmethod
    def decode(cls, message: bytes, *, seed: bytes, name: str, sizes: tuple[int, ...]) -> HeldModel:
        """Decode a message for a model of these sizes.

        Raises:
            MalformedMessage, UnexpectedMessage: the message is not a valid model.
        """
        read = _Values.decode(message, sum(sizes))
        steps, codes = _floats(read.steps), read.codes
        if np.any(steps < _LEAST_STEP) or np.any(steps > LARGEST) or int(np.abs(codes).max(initial=0)) > _STEPS:
            raise MalformedMessage(
                f"a model's values must be at most {_STEPS} steps, each in 2^-100..2^100", reason=Reason.NOT_CANONICAL
            )
        narrow = codes.astype(np.int8)
        return cls(seed=seed, name=name, sizes=sizes, round_number=read.round_number, steps=steps, codes=narrow)

    def advanced(
        self, round_number: int, sums: Sums, scales: tuple[float, ...], gains: Gains
    ) -> tuple[HeldModel, bytes]:
        """Return the model after a round, and the message that takes clients from this model to it."""
        narrow = np.array([gains.gain, gains.last_gain], np.float32).tolist()
        exact = Gains(narrow[0], gains.last, narrow[1])
        model = self._moved(round_number, sums, scales, exact)
        told = DownlinkSum(round_number=round_number, scales=scales, gains=exact, digest=model.digest, sums=sums)
        return model, told.encode()

    def after(self, message: bytes) -> HeldModel:
        """Return the model of the next round.

        Raises:
            MalformedMessage, UnexpectedMessage: the message is not a downlink sum of this model's size.
            PeerMisbehaved: it is for another round, or results in another model; ask for the model.
        """
        told = DownlinkSum.decode(message, self._padded)
        is_later = self.round_number <= told.round_number < (1 << 64) - 1 and len(told.scales) == len(self.sizes)
        model = self._moved(told.round_number, told.sums, told.scales, told.gains) if is_later else None
        if model is None or model.digest != told.digest:
            raise PeerMisbehaved(
                f"the model before round {self.round_number} and the sum of round {told.round_number} do not give the "
                "server's next model; request that model",
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


@dataclass(frozen=True, slots=True, eq=False)
class _Values(MessageIn[int]):
    """A held model without the fields that both ends know."""

    kind: ClassVar = MessageKind.HELD_MODEL
    round_number: Annotated[int, unsigned(_ROUND_BYTES)]
    steps: Annotated[bytes, sized(lambda count: 4 * -(-count // RUN), "4 for each run")]
    codes: Annotated[Any, _SUMS]


def _encoded(values: Sequence[float]) -> bytes:
    return np.array(values, ">f4").tobytes()


def _floats(data: bytes) -> Floats:
    """Read finite numbers."""
    values = np.frombuffer(data, ">f4").astype(np.float32) if data else np.empty(0, np.float32)
    if not np.isfinite(values).all():
        raise MalformedMessage("a number of a held model is not finite", reason=Reason.NOT_CANONICAL)
    return values
