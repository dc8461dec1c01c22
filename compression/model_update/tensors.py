"""One tensor of a model with its scheme, and the checks of a tensor, by its name."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from secagg.compression.count_sketch import CountSketch
from secagg.compression.dithered_quantization import DitheredQuantization
from secagg.compression.fixed_point import FixedPoint
from secagg.compression.peak import LevelCode, PeakCode
from secagg.compression.product_quantization import ProductQuantization
from secagg.compression.public_stream import PublicStream, require_shape
from secagg.compression.random_pruning import RandomPruning
from secagg.compression.rotation import RandomRotation
from secagg.compression.scalar_quantization import ScalarQuantization
from secagg.compression.sketch import Sketch
from secagg.contract import IndexedDecoder, LinearDecoder
from secagg.contract.codewords import CodewordTable, Tables, require_tables
from secagg.contract.layout import UNVERSIONED, IndexSegment, RingSegment, Segment
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import RingVector
from secagg.errors import CapacityExceeded, ContractViolation, InvalidParameters, Misuse

Tensor = npt.NDArray[Any]
Tensors = Mapping[str, Tensor]
"""Arrays by the names of the model's tensors."""
Shape = tuple[int, ...]
MAXIMUM_NAME_BYTES: Final = (1 << 16) - 1
_NAMES_SHOWN: Final = 4
_PLAIN_ARRAYS: Final = (np.ndarray, np.memmap)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TensorScheme:
    """One tensor of a model, and the scheme that encodes it.

    A scheme that has a ``length`` takes the tensor as a vector, in row-major order; any other one takes it as it is.
    """

    name: str
    shape: Shape
    scheme: LinearDecoder[Any]

    def __post_init__(self) -> None:
        require_name(self.name)
        with named(self.name):
            require_shape(self.shape)
            if self.scheme.layout.version == UNVERSIONED:
                raise ContractViolation(
                    "its scheme has no version, so a change of its parameters would go unnoticed; give its layout one"
                )

    @property
    def place(self) -> Shape:
        """The shape in which the scheme takes the tensor."""
        return (prod(self.shape),) if hasattr(self.scheme, "length") else self.shape


@contextmanager
def named(name: str) -> Generator[None]:
    """Put a tensor's name before the message of whatever error is raised about it."""
    try:
        yield
    except (CapacityExceeded, ContractViolation, InvalidParameters, Misuse) as error:
        raise type(error)(f"tensor {name!r}: {error}", reason=error.reason) from error


def require_name(name: str) -> None:
    """Refuse what cannot be the name of a tensor."""
    if type(name) is not str:
        raise Misuse(f"a tensor's name is a str; got {name!r}")
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise InvalidParameters("a tensor's name is text that UTF-8 can hold; rename the tensor") from None
    if not 0 < len(encoded) <= MAXIMUM_NAME_BYTES:
        raise InvalidParameters(f"a tensor's name has 1 to {MAXIMUM_NAME_BYTES} bytes; rename {name[:40]!r}")


def require_names(given: Mapping[Any, Any], due: Sequence[str], what: str) -> None:
    """Refuse a value that is not a mapping, missing tensors, and tensors that the model does not have.

    Raises:
        Misuse: any of these; the message lists the names.
    """
    if not _is_mapping(given):
        raise Misuse(f"{what} is a mapping from the names of tensors to arrays; got {type(given).__name__}")
    missing, unknown = [name for name in due if name not in given], [name for name in given if name not in due]
    if missing:
        raise Misuse(f"{what} lacks {listed(missing)}; give every tensor of the model, zeros where nothing changed")
    if unknown:
        raise Misuse(f"{what} has {listed(unknown)}, which the model does not have; leave out what is not aggregated")


def plain_tensor(value: Tensor | np.generic, shape: Shape) -> Tensor:
    """Return an array of the required shape; a numpy scalar comes from arithmetic on arrays without dimensions.

    Raises:
        Misuse: it is another type, such as an array that hides some of its values, or another shape.
    """
    tensor = np.asarray(value) if isinstance(value, np.generic) else value
    if type(tensor) not in _PLAIN_ARRAYS:
        raise Misuse(f"a tensor is a plain numpy array; got {type(tensor).__name__}; convert it")
    if tensor.shape != shape:
        raise Misuse(
            f"expected an array of shape {shape}; got {tensor.shape}; reshape it, or make a plan for this model"
        )
    return tensor


def require_fit(scheme: LinearDecoder[Any], due: PublicStream) -> None:
    """Refuse a scheme that was made for another shape, tensor or epoch, and so for what lies inside it.

    Schemes that are not of this library are asked for their ``length`` alone.
    """
    match scheme:
        case RandomPruning() | RandomRotation():
            stream = scheme.stream
            if (stream.tensor_name, stream.shape) != (due.tensor_name, due.shape):
                raise InvalidParameters(
                    f"its stream is for {stream.tensor_name!r} in shape {stream.shape}; make one for "
                    f"{due.tensor_name!r} in shape {due.shape}"
                )
            if stream.round_number != due.round_number:
                raise InvalidParameters(
                    f"its mask or signs are those of epoch {stream.round_number} and the update is of epoch "
                    f"{due.round_number}; refresh them"
                )
            inner = (scheme.kept if isinstance(scheme, RandomPruning) else scheme.padded,)
            require_fit(scheme.inner, _inside(due, inner))
        case CountSketch():
            _require_shape((scheme.length,), due)
            require_fit(scheme.inner, _inside(due, (scheme.cells,)))
        case ScalarQuantization() | DitheredQuantization() | ProductQuantization():
            _require_shape(scheme.shape, due)
        case PeakCode() | LevelCode() | Sketch():
            _require_shape((scheme.length,), due)
            if (stream := scheme.rotation.stream).round_number != due.round_number:
                raise InvalidParameters(
                    f"its rotation is that of epoch {stream.round_number} and the update is of epoch "
                    f"{due.round_number}; refresh it"
                )
        case _:
            _require_shape((getattr(scheme, "length", prod(due.shape)),), _inside(due, (prod(due.shape),)))


def _inside(due: PublicStream, shape: Shape) -> PublicStream:
    return PublicStream(seed=due.seed, round_number=due.round_number, tensor_name=due.tensor_name, shape=shape)


def _require_shape(shape: Shape, due: PublicStream) -> None:
    if shape != due.shape:
        raise InvalidParameters(f"its scheme is made for shape {shape} and used for {due.shape}; make it for that")


def listed(names: Sequence[Any]) -> str:
    """Return the first few names, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


# --- Joined tensors ---------------------------------------------------------------------------------------------------

_MOST_VALUES: Final = 1 << 15
"""Values of one tensor at most; copying a larger one with others costs more than its calls."""


@dataclass(frozen=True, slots=True)
class Joined:
    """Tensors of one model, in any number, and the scheme that encodes all of them at once where there is one."""

    tensors: tuple[TensorScheme, ...]
    parts: tuple[tuple[Part, ...], ...]
    """Places of the segments of each tensor's scheme."""
    scheme: FixedPoint | None

    @property
    def place(self) -> Part:
        """Place of the values of all tensors, one after another."""
        (segment, first), (_, last) = self.parts[0][0], self.parts[-1][0]
        return segment, slice(first.start, last.stop)

    def encoded(self, update: Tensors, coins: Coins) -> RingVector | None:
        """Return the values of all tensors, or None where each has to be encoded by itself, if only for its error."""
        if self.scheme is None:
            return None
        try:
            flat = [update[tensor.name].reshape(-1) for tensor in self.tensors]
            if any(values.dtype != flat[0].dtype for values in flat):
                return None
            return self.scheme.encode(np.concatenate(flat), coins).values[0]
        except Misuse:
            return None


def joined(tensors: Sequence[TensorScheme], parts: Parts) -> tuple[Joined, ...]:
    """Put together what one scheme can encode: tensors of one fixed-point format whose values lie side by side.

    Everything else stays by itself and in its order. Fixed point draws no coins, so that those of others do not move.
    """
    groups = list[tuple[list[TensorScheme], list[tuple[Part, ...]]]]()
    growing = dict[tuple[int, int, int, float], int]()
    for tensor, own in zip(tensors, parts, strict=True):
        scheme = tensor.scheme
        if type(scheme) is FixedPoint and scheme.length <= _MOST_VALUES:
            segment, place = own[0]
            key = (segment, scheme.modulus_bits, scheme.fraction_bits, scheme.clip)
            at = growing.get(key)
            if at is not None and groups[at][1][-1][0][1].stop == place.start:
                groups[at][0].append(tensor)
                groups[at][1].append(own)
                continue
            growing[key] = len(groups)
        groups.append(([tensor], [own]))
    return tuple(Joined(tuple(some), tuple(places), _scheme_of(some)) for some, places in groups)


def _scheme_of(tensors: Sequence[TensorScheme]) -> FixedPoint | None:
    first = tensors[0].scheme
    if len(tensors) == 1 or not isinstance(first, FixedPoint):
        return None
    return FixedPoint(
        length=sum(tensor.scheme.length for tensor in tensors if isinstance(tensor.scheme, FixedPoint)),
        clip=first.clip,
        fraction_bits=first.fraction_bits,
        modulus_bits=first.modulus_bits,
    )


# --- Merged segments --------------------------------------------------------------------------------------------------

Part = tuple[int, slice]
"""Place in the whole: in which segment, and where there."""
Parts = tuple[tuple[Part, ...], ...]
"""Parts of each tensor's own segments, in order."""
_Kind = tuple[type[Segment], int, int]


def merged(schemes: Sequence[tuple[Segment, ...]]) -> tuple[tuple[Segment, ...], Parts]:
    """Return the segments of the whole, and where those of each scheme lie."""
    lengths = dict[_Kind, int]()
    parts = list[list[tuple[_Kind, slice]]]()
    for segments in schemes:
        parts.append([])
        for segment in segments:
            kind = _kind_of(segment)
            start = lengths.setdefault(kind, 0)
            lengths[kind] += segment.length
            parts[-1].append((kind, slice(start, lengths[kind])))
    kinds = list(lengths)
    whole = tuple(
        RingSegment(size, length, fine) if kind is RingSegment else IndexSegment(size, length)
        for (kind, size, fine), length in lengths.items()
    )
    return whole, tuple(tuple((kinds.index(kind), part) for kind, part in own) for own in parts)


def _kind_of(segment: Segment) -> _Kind:
    if isinstance(segment, RingSegment):
        return RingSegment, segment.modulus_bits, segment.fine_bits
    return IndexSegment, segment.codewords, 0


def tables_of(scheme: LinearDecoder[Any]) -> Tables:
    """Return the tables of a scheme; one that sends no indices has none.

    Raises:
        InvalidParameters: it sends indices and does not say what they stand for, or says it of other segments.
    """
    layout = scheme.layout
    if not any(isinstance(segment, IndexSegment) for segment in layout.segments):
        return ()
    if not hasattr(scheme, "decode_summed"):
        raise InvalidParameters(
            f"its {type(scheme).__name__} sends indices and decodes nothing but histograms; have histograms released, "
            "or give the scheme `tables` and `decode_summed`"
        )
    tables = cast("IndexedDecoder[Any]", scheme).tables
    require_tables(layout, tables)
    return tables


def merged_tables(segments: Sequence[Segment], parts: Parts, tables: Sequence[Tables]) -> Tables:
    """Return the tables of the whole, from those of each tensor's scheme."""
    joined = {at: list[CodewordTable]() for at, segment in enumerate(segments) if isinstance(segment, IndexSegment)}
    for own, given in zip(parts, tables, strict=True):
        indexed = [at for at, _ in own if at in joined]
        for at, some in zip(indexed, given, strict=True):
            joined[at] += some
    return tuple(tuple(some) for some in joined.values())


def summed_parts(segments: Sequence[Segment], parts: Parts, tables: Sequence[Tables]) -> Parts:
    """Return where each tensor's sums lie in a summed layout of the whole, in the order of its own summed layout."""
    remaining = iter(merged_tables(segments, parts, tables))
    is_index = [isinstance(segment, IndexSegment) for segment in segments]
    sizes = [len(next(remaining)) if indexed else 1 for indexed in is_index]
    # Each table is a segment of its own there; tensors take theirs one after the other.
    following = [end - size for end, size in zip(accumulate(sizes), sizes, strict=True)]
    summed = list[tuple[Part, ...]]()
    for own, given in zip(parts, tables, strict=True):
        places, some = list[Part](), iter(given)
        for at, part in own:
            if not is_index[at]:
                places.append((following[at], part))
                continue
            for _ in next(some):
                places.append((following[at], slice(None)))
                following[at] += 1
        summed.append(tuple(places))
    return tuple(summed)
