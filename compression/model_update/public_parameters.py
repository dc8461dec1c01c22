"""Public parameters that the server broadcasts when they are refreshed: canonical bytes, and the bytes of a round.

After the header of every message stand the epoch (8 bytes), the source (1), the number of tensors (4), and the tensors:
name (length in 4 bytes, then UTF-8), number of dimensions (1), dimensions (8 each), scheme. Shapes, names and epochs of
schemes follow from their place and are not repeated. A scheme is its tag (1) and:

1. fixed point: clip (float64), fraction bits (1), modulus bits (1);
2. identity: bound (8), modulus bits (1);
3. scalar quantization: bits, modulus bits, rounding (1 each), wrapping weight (8; 0 for none), 1 if affine (1), number
   of scales (4), scales (float32 each), and if affine zero points (2 each, signed);
4. product quantization: number of codebooks (1), and for each its length in 4 bytes and its own encoding;
5. random pruning: seed (32), number of coordinates kept (8), inner scheme;
6. rotation: seed (32), block size (4), inner scheme;
7. count sketch: seed (32), rows (1), columns (4), inner scheme;
8. peak code: joined rotation, places (4), unit (float64);
9. linear sketch: joined rotation, kept (8), bits (1), modulus bits (1), unit (float64);
10. a scheme from outside: its name (length in 4 bytes, then UTF-8), cohort (8), seed (32);
11. dithered quantization: bits, modulus bits, fine bits (1 each), scale (float64);
12. levels: joined rotation, number of levels (4);
13. votes for lengths: nothing more; they are never written as product quantization.

A joined rotation is its seed (32), the size of its blocks (4), the number of tensors (4), their sizes (8 each) and
their scales (float32 each).

Integers and floats are big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final

from secagg.compression.byte_accounting import Accounting, upload_bytes
from secagg.compression.count_sketch import CountSketch
from secagg.compression.dithered_quantization import DitheredQuantization
from secagg.compression.fixed_point import FixedPoint
from secagg.compression.identity import Identity
from secagg.compression.joined_rotation import JoinedRotation
from secagg.compression.outside import MAXIMUM_NAME_BYTES as MAXIMUM_SCHEME_NAME_BYTES
from secagg.compression.outside import Factory, OutsideScheme
from secagg.compression.peak import MOST_SUMMED_PLACES, LevelCode, PeakCode, is_votes, level_votes
from secagg.compression.product_quantization import Codebook, ProductQuantization
from secagg.compression.public_stream import SEED_BYTES, PublicStream
from secagg.compression.random_pruning import RandomPruning
from secagg.compression.rotation import RandomRotation, padded_size
from secagg.compression.scalar_quantization import Rounding, ScalarQuantization
from secagg.compression.sketch import Sketch
from secagg.contract import LinearDecoder
from secagg.errors import CapacityExceeded, InvalidParameters, MalformedMessage, Misuse, Reason
from secagg.wire import MessageKind, Reader, Writer

from .codec import CalibrationSource, ModelUpdate
from .tensors import MAXIMUM_NAME_BYTES, TensorScheme, named

MAXIMUM_ELEMENTS: Final = 1 << 30
MAXIMUM_DEPTH: Final = 8
"""Greatest depth of schemes inside one another."""
MAXIMUM_CODEBOOK_BYTES: Final = (1 << 32) - 1
MOST_FILLED: Final = 1 << 16
"""Greatest number of values that a scheme may add for the one inside it; a rotation fills up fewer."""
MOST_SIGNS: Final = 2 * MOST_SUMMED_PLACES**2
"""Greatest number of entries of the tables of all peak codes together: one of the largest that is summed."""
SCALE_BYTES: Final = 4
ZERO_POINT_BYTES: Final = 2

_Scheme = LinearDecoder[Any]
_NO_FACTORIES: Final[Mapping[str, Factory]] = MappingProxyType({})


class _Tag(IntEnum):
    FIXED_POINT = 1
    IDENTITY = 2
    SCALAR_QUANTIZATION = 3
    PRODUCT_QUANTIZATION = 4
    RANDOM_PRUNING = 5
    ROTATION = 6
    COUNT_SKETCH = 7
    PEAK = 8
    SKETCH = 9
    OUTSIDE = 10
    DITHERED_QUANTIZATION = 11
    LEVELS = 12
    VOTES = 13


# --- What a round costs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundBytes:
    """Bytes that one client sends and receives for its update in one round, apart from the model and the protocol."""

    uplink: Fraction
    downlink: Fraction

    @property
    def total(self) -> Fraction:
        """Both together."""
        return self.uplink + self.downlink


def round_bytes(update: ModelUpdate, accounting: Accounting, *, is_refreshed: bool = True) -> RoundBytes:
    """Return what a round costs one client; between refreshes the server broadcasts no parameters."""
    downlink = Fraction(downlink_bytes(update, accounting)) if is_refreshed else Fraction(0)
    return RoundBytes(uplink=upload_bytes(update.layout, accounting), downlink=downlink)


def downlink_bytes(update: ModelUpdate, accounting: Accounting) -> int:
    """Return what a broadcast of the public parameters costs.

    By the accounting "paper" that is the values of codebooks and scales, 4 bytes each, and zero points where there are
    any; masks, signs and hashes, which seeds give, are free. By "wire" it is the length of ``encode_parameters``.

    Raises:
        InvalidParameters: by "wire", a scheme that is not of this library.
    """
    match accounting:
        case Accounting.PAPER:
            return sum(_paper_bytes(tensor.scheme) for tensor in update.tensors)
        case Accounting.WIRE:
            return len(encode_parameters(update))


def _paper_bytes(scheme: _Scheme) -> int:
    match scheme:
        case ScalarQuantization():
            return len(scheme.scales) * (SCALE_BYTES if scheme.is_symmetric else 2 * SCALE_BYTES)
        case ProductQuantization():
            return scheme.downlink_bytes
        case RandomPruning() | RandomRotation() | CountSketch():
            return _paper_bytes(scheme.inner)
        case DitheredQuantization():
            return SCALE_BYTES
        case PeakCode() | LevelCode() | Sketch():
            # Levels are relative to a client's own length; the others take one length for all.
            return SCALE_BYTES * (len(scheme.rotation.scales) + (not isinstance(scheme, LevelCode)))
        case _:
            return 0


# --- Encoding ---------------------------------------------------------------------------------------------------------


def encode_parameters(update: ModelUpdate) -> bytes:
    """Return the canonical encoding of everything that a client must know to encode, and a server to decode.

    Raises:
        InvalidParameters: a scheme that is not of this library; carry its parameters in a message of your own.
    """
    writer = Writer(MessageKind.PUBLIC_PARAMETERS)
    writer.integer(update.epoch, 8).integer(update.source, 1).integer(len(update.tensors), 4)
    for tensor in update.tensors:
        writer.variable(tensor.name.encode(), MAXIMUM_NAME_BYTES).integer(len(tensor.shape), 1)
        for dimension in tensor.shape:
            writer.integer(dimension, 8)
        with named(tensor.name):
            _write(writer, tensor.scheme)
    return writer.finish()


def _write(writer: Writer, scheme: _Scheme, depth: int = 1) -> None:
    """Write a scheme without its shape, name and epoch, which its place gives."""
    _require_depth(depth)
    match scheme:
        case FixedPoint():
            writer.integer(_Tag.FIXED_POINT, 1).fixed(struct.pack(">d", scheme.clip), 8)
            writer.integer(scheme.fraction_bits, 1).integer(scheme.modulus_bits, 1)
        case Identity():
            writer.integer(_Tag.IDENTITY, 1).integer(scheme.bound, 8).integer(scheme.modulus_bits, 1)
        case ScalarQuantization() | DitheredQuantization():
            _write_scalar_codes(writer, scheme)
        case ProductQuantization():
            _write_codebooks(writer, scheme)
        case RandomPruning():
            writer.integer(_Tag.RANDOM_PRUNING, 1).fixed(scheme.stream.seed, SEED_BYTES).integer(scheme.kept, 8)
            _write(writer, scheme.inner, depth + 1)
        case RandomRotation():
            writer.integer(_Tag.ROTATION, 1).fixed(scheme.stream.seed, SEED_BYTES).integer(scheme.block_size, 4)
            _write(writer, scheme.inner, depth + 1)
        case CountSketch():
            writer.integer(_Tag.COUNT_SKETCH, 1).fixed(scheme.seed, SEED_BYTES)
            writer.integer(scheme.rows, 1).integer(scheme.columns, 4)
            _write(writer, scheme.inner, depth + 1)
        case PeakCode() | LevelCode() | Sketch() | OutsideScheme():
            _write_whole_update(writer, scheme)
        case _:
            raise InvalidParameters(
                f"the parameters of {type(scheme).__name__} have no encoding here; make it from a factory with "
                "OutsideScheme, or send them in a message of your own"
            )


def _write_codebooks(writer: Writer, scheme: ProductQuantization) -> None:
    if is_votes(scheme):
        writer.integer(_Tag.VOTES, 1)
        return
    writer.integer(_Tag.PRODUCT_QUANTIZATION, 1).integer(len(scheme.codebooks), 1)
    for codebook in scheme.codebooks:
        writer.variable(codebook.encode(), MAXIMUM_CODEBOOK_BYTES)


def _write_whole_update(writer: Writer, scheme: PeakCode | LevelCode | Sketch | OutsideScheme) -> None:
    if isinstance(scheme, OutsideScheme):
        writer.integer(_Tag.OUTSIDE, 1).variable(scheme.name.encode(), MAXIMUM_SCHEME_NAME_BYTES)
        writer.integer(scheme.cohort, 8).fixed(scheme.seed, SEED_BYTES)
        return
    rotation, count = scheme.rotation, len(scheme.rotation.sizes)
    is_levels, is_peak = isinstance(scheme, LevelCode), isinstance(scheme, PeakCode)
    writer.integer(_Tag.LEVELS if is_levels else _Tag.PEAK if is_peak else _Tag.SKETCH, 1)
    writer.fixed(rotation.stream.seed, SEED_BYTES).integer(rotation.block_size, 4).integer(count, 4)
    writer.fixed(struct.pack(f">{count}Q{count}f", *rotation.sizes, *rotation.scales), (8 + SCALE_BYTES) * count)
    if isinstance(scheme, LevelCode):
        writer.integer(scheme.levels, 4)
        return
    if isinstance(scheme, PeakCode):
        writer.integer(scheme.places, 4)
    else:
        writer.integer(scheme.kept, 8).integer(scheme.bits, 1).integer(scheme.modulus_bits, 1)
    writer.fixed(struct.pack(">d", scheme.unit), 8)


def _write_scalar_codes(writer: Writer, scheme: ScalarQuantization | DitheredQuantization) -> None:
    if isinstance(scheme, DitheredQuantization):
        writer.integer(_Tag.DITHERED_QUANTIZATION, 1).integer(scheme.bits, 1).integer(scheme.modulus_bits, 1)
        writer.integer(scheme.fine_bits, 1).fixed(struct.pack(">d", scheme.scale), 8)
        return
    count = len(scheme.scales)
    writer.integer(_Tag.SCALAR_QUANTIZATION, 1).integer(scheme.bits, 1).integer(scheme.modulus_bits, 1).integer(
        scheme.rounding.value, 1
    )
    writer.integer(scheme.wrapping_weight or 0, 8).integer(not scheme.is_symmetric, 1).integer(count, 4)
    writer.fixed(struct.pack(f">{count}f", *scheme.scales), SCALE_BYTES * count)
    if not scheme.is_symmetric:
        writer.fixed(struct.pack(f">{count}h", *scheme.zero_points), ZERO_POINT_BYTES * count)


# --- Decoding ---------------------------------------------------------------------------------------------------------


def decode_parameters(
    message: bytes, *, maximum_elements: int = MAXIMUM_ELEMENTS, outside: Mapping[str, Factory] = _NO_FACTORIES
) -> ModelUpdate:
    """Read a broadcast back; its layout, and so its version, is that of the update that was encoded.

    Args:
        maximum_elements: how many the tensors may have in all, with what they are filled or sketched to.
        outside: factories of the reader's own choice, by name; a scheme from outside that is none of these is refused,
            and nothing is imported because a message names it.

    Raises:
        MalformedMessage: anything that ``encode_parameters`` would not have written, or too many elements.
    """
    reader = Reader(message, MessageKind.PUBLIC_PARAMETERS)
    try:
        update = _Parameters(reader, maximum_elements, outside).read()
        reader.finish()
        is_canonical = encode_parameters(update) == bytes(message)
    except (InvalidParameters, CapacityExceeded, Misuse) as error:
        raise MalformedMessage(f"the parameters are invalid: {error}", reason=Reason.NOT_CANONICAL) from None
    if not is_canonical:
        raise MalformedMessage("the parameters have another encoding", reason=Reason.NOT_CANONICAL)
    return update


class _Parameters:
    """Reads schemes into their places, and counts elements and signs before anything is made for them."""

    __slots__ = ("_has_votes", "_left", "_outside", "_reader", "_signs_left")

    def __init__(self, reader: Reader, maximum_elements: int, outside: Mapping[str, Factory]) -> None:
        self._reader, self._outside = reader, outside
        self._left, self._signs_left, self._has_votes = maximum_elements, MOST_SIGNS, False

    def read(self) -> ModelUpdate:
        epoch, number, count = (self._reader.integer(size) for size in (8, 1, 4))
        try:
            source = CalibrationSource(number)
        except ValueError:
            raise InvalidParameters(f"{number} is not a source of a calibration") from None
        return ModelUpdate(tensors=tuple(self._tensor(epoch) for _ in range(count)), epoch=epoch, source=source)

    def _tensor(self, epoch: int) -> TensorScheme:
        try:
            name = self._reader.variable(MAXIMUM_NAME_BYTES).decode()
        except UnicodeDecodeError:
            raise InvalidParameters("a tensor's name is not UTF-8") from None
        shape = tuple(self._reader.integer(8) for _ in range(self._reader.integer(1)))
        # The seed is that of no scheme; each brings its own.
        place = PublicStream(seed=bytes(SEED_BYTES), round_number=epoch, tensor_name=name, shape=shape)
        with named(name):
            return TensorScheme(name=name, shape=shape, scheme=self._scheme(place))

    def _scheme(self, place: PublicStream, depth: int = 1) -> _Scheme:
        _require_depth(depth)
        self._left -= place.size
        if self._left < 0:
            raise InvalidParameters("the model has more elements than the limit; raise maximum_elements if it should")
        tag = self._reader.integer(1)
        match tag:
            case _Tag.FIXED_POINT:
                clip: float = struct.unpack(">d", self._reader.fixed(8))[0]
                fraction_bits, modulus_bits = self._reader.integer(1), self._reader.integer(1)
                return FixedPoint(length=place.size, clip=clip, fraction_bits=fraction_bits, modulus_bits=modulus_bits)
            case _Tag.IDENTITY:
                bound, modulus_bits = self._reader.integer(8), self._reader.integer(1)
                return Identity(length=place.size, bound=bound, modulus_bits=modulus_bits)
            case _Tag.SCALAR_QUANTIZATION | _Tag.DITHERED_QUANTIZATION:
                return self._scalar_codes(tag, place)
            case _Tag.PRODUCT_QUANTIZATION | _Tag.VOTES:
                return self._codebooks(tag, place)
            case _Tag.RANDOM_PRUNING | _Tag.ROTATION | _Tag.COUNT_SKETCH:
                return self._nesting(tag, place, depth + 1)
            case _Tag.PEAK | _Tag.LEVELS | _Tag.SKETCH | _Tag.OUTSIDE:
                return self._whole_update(tag, place)
            case _:
                raise InvalidParameters(f"{tag} is the tag of no scheme")

    def _whole_update(self, tag: int, place: PublicStream) -> _Scheme:
        if tag == _Tag.OUTSIDE:
            return self._made_outside(place)
        seed, block_size, count = self._reader.fixed(SEED_BYTES), self._reader.integer(4), self._reader.integer(4)
        numbers = struct.unpack(f">{count}Q{count}f", self._reader.fixed((8 + SCALE_BYTES) * count))
        rotation = JoinedRotation(
            stream=replace(place, seed=seed, shape=(place.size,)),
            sizes=numbers[:count],
            scales=numbers[count:],
            block_size=block_size,
        )
        if tag == _Tag.LEVELS:
            return LevelCode(rotation=rotation, levels=self._reader.integer(4))
        if tag == _Tag.PEAK:
            places, unit = self._reader.integer(4), struct.unpack(">d", self._reader.fixed(8))[0]
            # More places have no table.
            self._signs_left -= 2 * places**2 if places <= MOST_SUMMED_PLACES else 0
            if self._signs_left < 0:
                raise InvalidParameters("the tables of the peak codes take too much memory; use one for all tensors")
            return PeakCode(rotation=rotation, places=places, unit=unit)
        kept, bits, modulus_bits = (self._reader.integer(size) for size in (8, 1, 1))
        unit = struct.unpack(">d", self._reader.fixed(8))[0]
        return Sketch(rotation=rotation, kept=kept, bits=bits, modulus_bits=modulus_bits, unit=unit)

    def _codebooks(self, tag: int, place: PublicStream) -> ProductQuantization:
        if tag == _Tag.PRODUCT_QUANTIZATION:
            stages = self._reader.integer(1)
            encoded = [self._reader.variable(MAXIMUM_CODEBOOK_BYTES) for _ in range(stages)]
            return ProductQuantization(shape=place.shape, codebooks=tuple(map(Codebook.decode, encoded)))
        if self._has_votes or len(place.shape) != 2:  # noqa: PLR2004 -- a row for each length
            raise InvalidParameters("one tensor, with a row for each length, votes for all lengths")
        self._has_votes = True
        return level_votes(place.shape[0])

    def _made_outside(self, place: PublicStream) -> _Scheme:
        encoded = self._reader.variable(MAXIMUM_SCHEME_NAME_BYTES)
        cohort, seed = self._reader.integer(8), self._reader.fixed(SEED_BYTES)
        factory = self._outside.get(name := encoded.decode(errors="replace"))
        if factory is None:
            raise InvalidParameters(
                f"its scheme {name!r} is from outside, and this side was given "
                f"{', '.join(self._outside) or 'none'}; name the same scheme at both ends"
            )
        return OutsideScheme(
            name=name, values=place.size, cohort=cohort, seed=seed, epoch=place.round_number, factory=factory
        )

    def _scalar_codes(self, tag: int, place: PublicStream) -> ScalarQuantization | DitheredQuantization:
        if tag == _Tag.DITHERED_QUANTIZATION:
            bits, modulus_bits, fine_bits = (self._reader.integer(1) for _ in range(3))
            scale: float = struct.unpack(">d", self._reader.fixed(8))[0]
            return DitheredQuantization(
                shape=place.shape, bits=bits, modulus_bits=modulus_bits, scale=scale, fine_bits=fine_bits
            )
        bits, modulus_bits, rounding = (self._reader.integer(1) for _ in range(3))
        wrapping_weight, is_affine, count = (self._reader.integer(size) for size in (8, 1, 4))
        scales = struct.unpack(f">{count}f", self._reader.fixed(SCALE_BYTES * count))
        zero_points: tuple[int, ...] = ()
        if is_affine:
            zero_points = struct.unpack(f">{count}h", self._reader.fixed(ZERO_POINT_BYTES * count))
        try:
            known = Rounding(rounding)
        except ValueError:
            raise InvalidParameters(f"{rounding} is not a way of rounding") from None
        return ScalarQuantization(
            shape=place.shape,
            bits=bits,
            modulus_bits=modulus_bits,
            scales=scales,
            zero_points=zero_points,
            rounding=known,
            wrapping_weight=wrapping_weight or None,
        )

    def _nesting(self, tag: int, place: PublicStream, depth: int) -> _Scheme:
        seed = self._reader.fixed(SEED_BYTES)
        stream = replace(place, seed=seed)
        match tag:
            case _Tag.RANDOM_PRUNING:
                kept = self._reader.integer(8)
                inner = self._inside(place, kept, depth)
                return RandomPruning(stream=stream, sparsity=Fraction(place.size - kept, place.size), inner=inner)
            case _Tag.ROTATION:
                size = self._reader.integer(4)
                inner = self._inside(place, padded_size(place.size, size), depth)
                return RandomRotation(stream=stream, block_size=size, inner=inner)
            case _:
                rows, columns = self._reader.integer(1), self._reader.integer(4)
                inner = self._inside(place, rows * columns, depth)
                return CountSketch(length=place.size, rows=rows, columns=columns, seed=seed, inner=inner)

    def _inside(self, place: PublicStream, size: int, depth: int) -> _Scheme:
        if size > place.size + MOST_FILLED:
            raise InvalidParameters(f"{place.size} values become {size}, which saves nothing; sketch them in fewer")
        return self._scheme(replace(place, shape=(size,)), depth)


def _require_depth(depth: int) -> None:
    if depth > MAXIMUM_DEPTH:
        raise InvalidParameters(f"more than {MAXIMUM_DEPTH} schemes stand one inside the other; nest fewer")
