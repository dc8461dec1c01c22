"""Public parameters that the server broadcasts when they are refreshed, as canonical bytes.

Each message has, after its header, the epoch (8 bytes), the source (1), the number of tensors (4), and the tensors:
name (length in 4 bytes, then UTF-8), number of dimensions (1), dimensions (8 each), scheme. Shapes, names and epochs of
schemes follow from the tensor and are not repeated. A scheme is its tag (1) and:

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
10. a custom scheme: its name (length in 4 bytes, then UTF-8), cohort (8), seed (32);
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
from dataclasses import replace
from enum import IntEnum
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final

from secagg.compression.byte_accounting import Accounting
from secagg.compression.common import SEED_BYTES, PublicStream
from secagg.compression.count_sketch import CountSketch
from secagg.compression.custom import MAXIMUM_NAME_BYTES as MAXIMUM_SCHEME_NAME_BYTES
from secagg.compression.custom import CustomScheme, Factory
from secagg.compression.fixed_point import FixedPoint, Identity
from secagg.compression.peak import MOST_SUMMED_PLACES, LevelCode, PeakCode, is_votes, level_votes
from secagg.compression.product_quantization import Codebook, ProductQuantization
from secagg.compression.random_pruning import RandomPruning
from secagg.compression.rotation import JoinedRotation, RandomRotation, Sketch, padded_size
from secagg.compression.scalar_quantization import DitheredQuantization, Rounding, ScalarQuantization
from secagg.contract import LinearDecoder
from secagg.errors import CapacityExceeded, InvalidParameters, MalformedMessage, Misuse, Reason
from secagg.wire import MessageKind, Reader, Writer

from .codec import MAXIMUM_NAME_BYTES, CalibrationSource, ModelUpdate, TensorScheme, named

MAXIMUM_ELEMENTS: Final = 1 << 30
MAXIMUM_DEPTH: Final = 8
"""Maximum depth of nested schemes."""
MAXIMUM_CODEBOOK_BYTES: Final = (1 << 32) - 1
MOST_FILLED: Final = 1 << 16
"""Maximum number of values that a scheme may add for its inner one; a rotation pads with fewer."""
MOST_SIGNS: Final = 2 * MOST_SUMMED_PLACES**2
"""Maximum total entries of all peak codes' tables: as many as one code of the largest summable size has."""
SCALE_BYTES: Final = 4

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
    CUSTOM = 10
    DITHERED_QUANTIZATION = 11
    LEVELS = 12
    VOTES = 13


# --- Size -------------------------------------------------------------------------------------------------------------


def downlink_bytes(update: ModelUpdate, accounting: Accounting) -> int:
    """Return the size of a broadcast of the public parameters.

    The accounting "paper" counts the values of codebooks and scales, 4 bytes each, and zero points if there are any;
    masks, signs and hashes come from seeds and are free. "wire" is the length of ``encode_parameters``.
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
            # Levels are relative to a client's own length; the other codes use one length for all clients.
            return SCALE_BYTES * (len(scheme.rotation.scales) + (not isinstance(scheme, LevelCode)))
        case _:
            return 0


# --- Encoding ---------------------------------------------------------------------------------------------------------


def encode_parameters(update: ModelUpdate) -> bytes:
    """Return the canonical encoding of everything needed to encode and to decode.

    Raises:
        InvalidParameters: a scheme is not from this library.
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
    """Write a scheme without its shape, name and epoch, which follow from its place."""
    _require_depth(depth)
    match scheme:
        case FixedPoint():
            _put(writer, _Tag.FIXED_POINT, ">dBB", scheme.clip, scheme.fraction_bits, scheme.modulus_bits)
        case Identity():
            _put(writer, _Tag.IDENTITY, ">QB", scheme.bound, scheme.modulus_bits)
        case ScalarQuantization() | DitheredQuantization():
            _write_scalar_codes(writer, scheme)
        case ProductQuantization():
            _write_codebooks(writer, scheme)
        case RandomPruning():
            _put(writer, _Tag.RANDOM_PRUNING, ">32sQ", scheme.stream.seed, scheme.kept)
            _write(writer, scheme.inner, depth + 1)
        case RandomRotation():
            _put(writer, _Tag.ROTATION, ">32sI", scheme.stream.seed, scheme.block_size)
            _write(writer, scheme.inner, depth + 1)
        case CountSketch():
            _put(writer, _Tag.COUNT_SKETCH, ">32sBI", scheme.seed, scheme.rows, scheme.columns)
            _write(writer, scheme.inner, depth + 1)
        case PeakCode() | LevelCode() | Sketch():
            _write_whole_update(writer, scheme)
        case CustomScheme():
            writer.integer(_Tag.CUSTOM, 1).variable(scheme.name.encode(), MAXIMUM_SCHEME_NAME_BYTES)
            writer.integer(scheme.cohort, 8).fixed(scheme.seed, SEED_BYTES)
        case _:
            raise InvalidParameters(
                f"the parameters of {type(scheme).__name__} have no encoding here; create it from a factory with "
                "CustomScheme, or send them in your own message"
            )


def _put(writer: Writer, tag: _Tag, form: str, *values: float | bytes) -> None:
    packed = struct.pack(form, *values)
    writer.integer(tag, 1).fixed(packed, len(packed))


def _write_codebooks(writer: Writer, scheme: ProductQuantization) -> None:
    if is_votes(scheme):
        writer.integer(_Tag.VOTES, 1)
        return
    writer.integer(_Tag.PRODUCT_QUANTIZATION, 1).integer(len(scheme.codebooks), 1)
    for codebook in scheme.codebooks:
        writer.variable(codebook.encode(), MAXIMUM_CODEBOOK_BYTES)


def _write_whole_update(writer: Writer, scheme: PeakCode | LevelCode | Sketch) -> None:
    rotation, count = scheme.rotation, len(scheme.rotation.sizes)
    head = f">32sII{count}Q{count}f"
    given: tuple[float | bytes, ...] = (
        rotation.stream.seed,
        rotation.block_size,
        count,
        *rotation.sizes,
        *rotation.scales,
    )
    match scheme:
        case PeakCode():
            _put(writer, _Tag.PEAK, head + "Id", *given, scheme.places, scheme.unit)
        case LevelCode():
            _put(writer, _Tag.LEVELS, head + "I", *given, scheme.levels)
        case Sketch():
            own = (scheme.kept, scheme.bits, scheme.modulus_bits, scheme.unit)
            _put(writer, _Tag.SKETCH, head + "QBBd", *given, *own)


def _write_scalar_codes(writer: Writer, scheme: ScalarQuantization | DitheredQuantization) -> None:
    if isinstance(scheme, DitheredQuantization):
        own = (scheme.bits, scheme.modulus_bits, scheme.fine_bits, scheme.scale)
        _put(writer, _Tag.DITHERED_QUANTIZATION, ">BBBd", *own)
        return
    count, zeros = len(scheme.scales), () if scheme.is_symmetric else scheme.zero_points
    codes = (scheme.bits, scheme.modulus_bits, scheme.rounding.value, scheme.wrapping_weight or 0, bool(zeros), count)
    form = f">BBBQBI{count}f{len(zeros)}h"
    _put(writer, _Tag.SCALAR_QUANTIZATION, form, *codes, *scheme.scales, *zeros)


# --- Decoding ---------------------------------------------------------------------------------------------------------


def decode_parameters(
    message: bytes, *, maximum_elements: int = MAXIMUM_ELEMENTS, custom: Mapping[str, Factory] = _NO_FACTORIES
) -> ModelUpdate:
    """Decode a broadcast; the result has the layout and version of the encoded update.

    Args:
        maximum_elements: maximum total elements of the tensors, padded or sketched.
        custom: factories that the reader chose, by name; other custom schemes are refused. A message never imports
        code.

    Raises:
        MalformedMessage: anything that ``encode_parameters`` would not have written, or too many elements.
    """
    reader = Reader(message, MessageKind.PUBLIC_PARAMETERS)
    try:
        update = _Parameters(reader, maximum_elements, custom).read()
        reader.finish()
        is_canonical = encode_parameters(update) == bytes(message)
    except (InvalidParameters, CapacityExceeded, Misuse) as error:
        raise MalformedMessage(f"the parameters are invalid: {error}", reason=Reason.NOT_CANONICAL) from None
    if not is_canonical:
        raise MalformedMessage("the parameters are not canonically encoded", reason=Reason.NOT_CANONICAL)
    return update


class _Parameters:
    """Decodes schemes, and counts elements and signs before it allocates them."""

    __slots__ = ("_custom", "_has_votes", "_left", "_reader", "_signs_left")

    def __init__(self, reader: Reader, maximum_elements: int, custom: Mapping[str, Factory]) -> None:
        self._reader, self._custom = reader, custom
        self._left, self._signs_left, self._has_votes = maximum_elements, MOST_SIGNS, False

    def read(self) -> ModelUpdate:
        epoch, number, count = (self._reader.integer(size) for size in (8, 1, 4))
        try:
            source = CalibrationSource(number)
        except ValueError:
            raise InvalidParameters(f"{number} is not a calibration source") from None
        return ModelUpdate(tensors=tuple(self._tensor(epoch) for _ in range(count)), epoch=epoch, source=source)

    def _tensor(self, epoch: int) -> TensorScheme:
        try:
            name = self._reader.variable(MAXIMUM_NAME_BYTES).decode()
        except UnicodeDecodeError:
            raise InvalidParameters("a tensor's name is not UTF-8") from None
        shape = tuple(self._reader.integer(8) for _ in range(self._reader.integer(1)))
        # Placeholder: each scheme has its own seed.
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
                clip, fraction_bits, modulus_bits = self._take(">dBB")
                return FixedPoint(length=place.size, clip=clip, fraction_bits=fraction_bits, modulus_bits=modulus_bits)
            case _Tag.IDENTITY:
                bound, modulus_bits = self._take(">QB")
                return Identity(length=place.size, bound=bound, modulus_bits=modulus_bits)
            case _Tag.SCALAR_QUANTIZATION | _Tag.DITHERED_QUANTIZATION:
                return self._scalar_codes(tag, place)
            case _Tag.PRODUCT_QUANTIZATION | _Tag.VOTES:
                return self._codebooks(tag, place)
            case _Tag.RANDOM_PRUNING | _Tag.ROTATION | _Tag.COUNT_SKETCH:
                return self._nesting(tag, place, depth + 1)
            case _Tag.PEAK | _Tag.LEVELS | _Tag.SKETCH | _Tag.CUSTOM:
                return self._made_custom(place) if tag == _Tag.CUSTOM else self._whole_update(tag, place)
            case _:
                raise InvalidParameters(f"{tag} is not a scheme's tag")

    def _take(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self._reader.fixed(struct.calcsize(form)))

    def _whole_update(self, tag: int, place: PublicStream) -> _Scheme:
        seed, block_size, count = self._take(">32sII")
        numbers = self._take(f">{count}Q{count}f")
        rotation = JoinedRotation(
            stream=replace(place, seed=seed, shape=(place.size,)),
            sizes=numbers[:count],
            scales=numbers[count:],
            block_size=block_size,
        )
        if tag == _Tag.LEVELS:
            return LevelCode(rotation=rotation, levels=self._reader.integer(4))
        if tag == _Tag.SKETCH:
            kept, bits, modulus_bits, unit = self._take(">QBBd")
            return Sketch(rotation=rotation, kept=kept, bits=bits, modulus_bits=modulus_bits, unit=unit)
        places, unit = self._take(">Id")
        # Codes with more places have no table.
        self._signs_left -= 2 * places**2 if places <= MOST_SUMMED_PLACES else 0
        if self._signs_left < 0:
            raise InvalidParameters("the tables of the peak codes take too much memory; use one for all tensors")
        return PeakCode(rotation=rotation, places=places, unit=unit)

    def _codebooks(self, tag: int, place: PublicStream) -> ProductQuantization:
        if tag == _Tag.PRODUCT_QUANTIZATION:
            stages = self._reader.integer(1)
            encoded = [self._reader.variable(MAXIMUM_CODEBOOK_BYTES) for _ in range(stages)]
            return ProductQuantization(shape=place.shape, codebooks=tuple(map(Codebook.decode, encoded)))
        if self._has_votes or len(place.shape) != 2:  # noqa: PLR2004 -- a row for each length
            raise InvalidParameters("votes for all lengths must be one tensor with a row for each length")
        self._has_votes = True
        return level_votes(place.shape[0])

    def _made_custom(self, place: PublicStream) -> _Scheme:
        encoded = self._reader.variable(MAXIMUM_SCHEME_NAME_BYTES)
        cohort, seed = self._reader.integer(8), self._reader.fixed(SEED_BYTES)
        factory = self._custom.get(name := encoded.decode(errors="replace"))
        if factory is None:
            raise InvalidParameters(
                f"its scheme {name!r} is custom, but this side has {', '.join(self._custom) or 'none'}; name the same "
                "scheme at both ends"
            )
        return CustomScheme(
            name=name, values=place.size, cohort=cohort, seed=seed, epoch=place.round_number, factory=factory
        )

    def _scalar_codes(self, tag: int, place: PublicStream) -> ScalarQuantization | DitheredQuantization:
        if tag == _Tag.DITHERED_QUANTIZATION:
            bits, modulus_bits, fine_bits, scale = self._take(">BBBd")
            return DitheredQuantization(
                shape=place.shape, bits=bits, modulus_bits=modulus_bits, scale=scale, fine_bits=fine_bits
            )
        bits, modulus_bits, rounding, wrapping_weight, is_affine, count = self._take(">BBBQBI")
        scales, zero_points = self._take(f">{count}f"), self._take(f">{count if is_affine else 0}h")
        try:
            known = Rounding(rounding)
        except ValueError:
            raise InvalidParameters(f"{rounding} is not a rounding mode") from None
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
        if tag == _Tag.RANDOM_PRUNING:
            seed, kept = self._take(">32sQ")
            inner = self._inside(place, kept, depth)
            sparsity = Fraction(place.size - kept, place.size)
            return RandomPruning(stream=replace(place, seed=seed), sparsity=sparsity, inner=inner)
        if tag == _Tag.ROTATION:
            seed, size = self._take(">32sI")
            inner = self._inside(place, padded_size(place.size, size), depth)
            return RandomRotation(stream=replace(place, seed=seed), block_size=size, inner=inner)
        seed, rows, columns = self._take(">32sBI")
        inner = self._inside(place, rows * columns, depth)
        return CountSketch(length=place.size, rows=rows, columns=columns, seed=seed, inner=inner)

    def _inside(self, place: PublicStream, size: int, depth: int) -> _Scheme:
        if size > place.size + MOST_FILLED:
            raise InvalidParameters(f"{place.size} values become {size}, which saves nothing; use a smaller sketch")
        return self._scheme(replace(place, shape=(size,)), depth)


def _require_depth(depth: int) -> None:
    if depth > MAXIMUM_DEPTH:
        raise InvalidParameters(f"more than {MAXIMUM_DEPTH} schemes are nested; nest fewer")
