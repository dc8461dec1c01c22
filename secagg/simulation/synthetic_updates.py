"""Model updates for any number of clients in the memory of one, and a codec that is calibrated on other data.

The model has one compressed matrix and a few plain biases. Updates are windows of one public stream of normal values:
they differ, and are not real data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import ceil, isqrt, sqrt
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from secagg.compression.cohort_bits import COHORT_BITS, places_for
from secagg.compression.common import PublicStream
from secagg.compression.model_update import (
    Calibration,
    CalibrationSource,
    Codebooks,
    Dithered,
    ModelUpdate,
    Plain,
    Pruned,
    Quantized,
    Recipe,
    TensorScheme,
    UpdatePlan,
)
from secagg.compression.peak import MOST_SUMMED_PLACES, PeakCode, block_size_for, norm_levels
from secagg.compression.rotation import JoinedRotation
from secagg.compression.scalar_quantization import dithered_ring
from secagg.contract import Aggregate, Histogram, IndexSegment, Layout, Payload, RingSegment
from secagg.contract.codewords import Tables, sum_of_codewords
from secagg.contract.decoder import capacity
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.mask_expansion import expand
from secagg.crypto.ring import MAXIMUM_MODULUS_BITS, Ring, RingVector, SignedVector, add_into, reduce_into
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters
from secagg.identifiers import ClientId
from secagg.privacy.client_noise import is_near
from secagg.privacy.kinds import squared_norm

_COLUMNS: Final = 144
"""Row length, divisible by blocks of 2, 3, 4, 6, 8, 9, 12, 16 and 18 values."""
_BIASES: Final = 16
_SEED_BYTES: Final = 16
_WHOLE: Final = "update"
_LENGTHS: Final = "lengths"
_PLAIN: Final = Plain(clip=8.0, fraction_bits=16)


class Compression(StrEnum):
    """Compression of the model's matrix."""

    SCALAR = "sq"
    """To 8 bits."""
    PRUNING = "pruning"
    """One coordinate in ten, under a common mask, in fixed point."""
    PRODUCT = "pq"
    PEAK = "peak"
    """Positions and signs of peaks of the whole rotated update, and its length in public levels."""
    DITHER = "dither"
    """Dithered quantization to 8 bits: the protocol rounds masked values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSetting:
    """Shape, distribution and compression of updates."""

    clients: int
    dimension: int
    compression: Compression = Compression.PRODUCT
    codewords: int = 64
    block_size: int = 9
    seed: str = ""


class SyntheticUpdates:
    """The codec of a model, and each client's update, encoded on demand."""

    def __init__(self, setting: UpdateSetting) -> None:
        """Draw the stream, and calibrate the codec on a window that no client has."""
        if setting.dimension < 2 * _COLUMNS:
            raise InvalidParameters(f"a model of {setting.dimension} values is too small; use {2 * _COLUMNS} or more")
        self.setting = setting
        self._shape = (setting.dimension // _COLUMNS, _COLUMNS)
        size = self._shape[0] * _COLUMNS + _BIASES
        generator = np.random.default_rng(list(setting.seed.encode()))
        self._stream = generator.standard_normal(size + setting.clients + 2, dtype=np.float32) * np.float32(0.01)
        self.codec: ModelUpdate = self._joined() if setting.compression is Compression.PEAK else self._planned()
        self.layout, self.capacity = self.codec.layout, self.codec.capacity
        has_indices = any(isinstance(segment, IndexSegment) for segment in self.layout.segments)
        self.tables: Tables = self.codec.tables if has_indices else ()

    def _planned(self) -> ModelUpdate:
        plan = UpdatePlan(
            shapes={"matrix": self._shape, "biases": (_BIASES,)},
            plain=_PLAIN,
            compressed=self._recipe(),
            seed=bytes(32),
        )
        calibration = Calibration(CalibrationSource.PUBLIC_BATCH, self.update_of(self.setting.clients + 1))
        return plan.parameters(calibration=calibration)

    def _joined(self) -> ModelUpdate:
        stream = PublicStream(seed=bytes(32), round_number=0, tensor_name=_WHOLE, shape=(self.values,))
        code = PeakCode(
            rotation=JoinedRotation(stream=stream, block_size=block_size_for(self.values)),
            places=min(places_for(self.setting.clients, COHORT_BITS), MOST_SUMMED_PLACES),
        )
        lengths = TensorScheme(name=_LENGTHS, shape=(1, 1), scheme=norm_levels(1, references=False))
        return ModelUpdate(tensors=(TensorScheme(name=_WHOLE, shape=(self.values,), scheme=code), lengths))

    def _recipe(self) -> Recipe:
        match self.setting.compression:
            case Compression.SCALAR:
                return Quantized(bits=8, modulus_bits=8 + self.setting.clients.bit_length())
            case Compression.DITHER:
                return Dithered(bits=8, modulus_bits=dithered_ring(8, self.setting.clients))
            case Compression.PRUNING:
                return Pruned(sparsity=Fraction(9, 10), inner=_PLAIN)
            case Compression.PRODUCT:
                return Codebooks(block_size=self.setting.block_size, codewords=self.setting.codewords)
            case Compression.PEAK:
                raise InvalidParameters("the peak code is for a whole update, and no tensor has a recipe of it")

    @property
    def values(self) -> int:
        return self._shape[0] * _COLUMNS + _BIASES

    def update_of(self, number: int) -> dict[str, npt.NDArray[np.float32]]:
        """Return a read-only view: the update of one client."""
        window = self._stream[number : number + self.values]
        if self.setting.compression is Compression.PEAK:
            return {_WHOLE: window, _LENGTHS: np.array([[np.linalg.norm(window)]], dtype=np.float32)}
        return {"matrix": window[:-_BIASES].reshape(self._shape), "biases": window[-_BIASES:]}

    @property
    def bounds(self) -> dict[str, float | None]:
        """Maximum length of one client's part in a decoded sum, by tensor; None for tensors sent in rings."""
        return {
            tensor.name: None if tensor.scheme.layout.ring_positions else getattr(tensor.scheme, "largest_norm", None)
            for tensor in self.codec.tensors
        }

    def payload_of(self, number: int) -> Payload:
        return self.codec.encode(self.update_of(number), SystemCoins())

    def ideal(self, contributors: Iterable[ClientId]) -> Aggregate:
        """Return the aggregate of these clients, summed in the clear in the memory of one."""
        sums = list[RingVector | Histogram]()
        for segment in self.codec.layout.segments:
            match segment:
                case RingSegment():
                    sums.append(segment.ring.zeros(segment.length))
                case IndexSegment():
                    sums.append(np.zeros((segment.blocks, segment.codewords), dtype=np.uint64))
        count = 0
        for client in contributors:
            payload, count = self.payload_of(client.value), count + 1
            for segment, total, values in zip(self.codec.layout.segments, sums, payload.values, strict=True):
                match segment:
                    case RingSegment():
                        reduce_into(add_into(total, values), segment.ring.modulus_bits)
                    case IndexSegment():
                        total[np.arange(segment.blocks), values] += np.uint64(1)
        return Aggregate(self.codec.layout, tuple(sums), count)

    def is_sum_of(
        self, aggregate: Aggregate, contributors: Iterable[ClientId], deviations: Sequence[float] = ()
    ) -> bool:
        """Whether a sum equals that of these clients in the clear, to the last bit of every decoded value.

        Values rounded under a mask may differ by the rounding of all clients.
        """
        ideal = self.ideal(contributors)
        if deviations:
            return is_near(aggregate, self._released(ideal, aggregate.layout), deviations)
        if self.setting.compression is Compression.DITHER:
            pairs = zip(self.layout.require_rings(), _errors(aggregate, ideal), strict=True)
            return all(np.abs(errors).max() <= ideal.contributors * segment.head_room for segment, errors in pairs)
        if aggregate.layout == self.layout:
            decoded = self.codec.decode(aggregate)
            is_same = all(np.array_equal(*pair) for pair in zip(aggregate.values, ideal.values, strict=True))
        else:
            decoded, is_same = self.codec.decode_summed(aggregate), True
        expected = self.codec.decode(ideal)
        return is_same and all(np.array_equal(expected[name], decoded[name]) for name in expected)

    @property
    def l2_bounds(self) -> tuple[int, ...]:
        rings = [segment for segment in self.layout.segments if isinstance(segment, RingSegment)]
        return tuple(ceil(_PLAIN.clip * (1 << _PLAIN.fraction_bits) * sqrt(segment.length)) for segment in rings)

    def _released(self, plain: Aggregate, layout: Layout) -> Aggregate:
        """Return a plain aggregate as sums of codewords, if those were released."""
        values, segments, tables = list[RingVector](), iter(layout.require_rings()), iter(self.tables)
        for segment, total in zip(self.layout.segments, plain.values, strict=True):
            if isinstance(segment, RingSegment):
                next(segments)
                values.append(total)
                continue
            first = 0
            for table in next(tables):
                histogram = total[first : first + table.blocks]
                values.append(next(segments).ring.from_integers(sum_of_codewords(histogram, table)))
                first += table.blocks
        return Aggregate(layout, tuple(values), plain.contributors)

    def rounding_error(self, aggregate: Aggregate, contributors: Iterable[ClientId]) -> float | None:
        """Return the root mean square error, in steps, of rounding under masks; None without rounding."""
        if self.setting.compression is not Compression.DITHER:
            return None
        pairs = zip(self.layout.require_rings(), _errors(aggregate, self.ideal(contributors)), strict=True)
        errors, segment = next((errors, segment) for segment, errors in pairs if segment.fine_bits)
        return float(np.sqrt(np.square(errors.astype(np.float64)).mean())) / (1 << segment.fine_bits)


def _errors(aggregate: Aggregate, ideal: Aggregate) -> Iterator[SignedVector]:
    """Return the difference of each ring segment of a sum from the ideal one, in fine steps."""
    for segment, mine, due in zip(ideal.layout.require_rings(), aggregate.values, ideal.values, strict=True):
        yield segment.ring.lift(segment.ring.subtract(mine, due))


class WindowedInputs:
    """Inputs for any number of clients in the memory of one: each is a window of one public stream.

    The values of each are uniform over the integers of ``input_bits`` bits. The ring is the narrowest that no sum
    overflows.
    """

    tables: Tables = ()
    bounds: Mapping[str, float | None] = MappingProxyType({"inputs": None})
    """A client may send any ring elements."""

    def __init__(self, *, input_bits: int, length: int, clients: int, seed: bytes, spare_bits: int = 0) -> None:
        """Draw the stream from a public seed; noise needs spare bits."""
        modulus_bits = input_bits + (clients - 1).bit_length() + spare_bits
        if modulus_bits > MAXIMUM_MODULUS_BITS:
            raise InvalidParameters(
                f"the sum of {clients} inputs of {input_bits} bits takes {modulus_bits}, and no ring has more than "
                f"{MAXIMUM_MODULUS_BITS}; use fewer clients or fewer bits"
            )
        self.layout = Layout((RingSegment(modulus_bits, length),))
        self.capacity = capacity(input_bits, modulus_bits)
        self.values = length
        self._ring = Ring(modulus_bits)
        with Secret("public seed", seed[:_SEED_BYTES].ljust(_SEED_BYTES, b"\0")) as key:
            drawn = expand(key, Ring(input_bits), length + clients + 1)
        self._stream = self._ring.from_integers(Ring(input_bits).lift(drawn))

    def payload_of(self, number: int) -> Payload:
        return Payload(self.layout, (self._stream[number : number + self.values],))

    def is_sum_of(
        self, aggregate: Aggregate, contributors: Iterable[ClientId], deviations: Sequence[float] = ()
    ) -> bool:
        clients = [*contributors]
        total = self._ring.sum((self.payload_of(client.value).values[0] for client in clients), self.values)
        if deviations:
            return is_near(aggregate, Aggregate(self.layout, (total,), len(clients)), deviations)
        return bool((total == aggregate.values[0]).all())

    @property
    def l2_bounds(self) -> tuple[int, ...]:
        return (isqrt(squared_norm(self._ring, self._stream)) + 1,)
