"""Encodes a model's tensors as one payload: each by its own scheme, with segments of one kind merged.

Part of a protocol's work grows with the number of segments and would dominate for a model of sixty small tensors.
``merged`` defines which segments are joined.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import accumulate
from math import prod
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from secagg.compression.common import PublicStream, require_shape, require_text
from secagg.compression.count_sketch import CountSketch
from secagg.compression.fixed_point import FixedPoint
from secagg.compression.peak import LevelCode, PeakCode
from secagg.compression.product_quantization import ProductQuantization
from secagg.compression.random_pruning import RandomPruning
from secagg.compression.rotation import RandomRotation, Sketch
from secagg.compression.scalar_quantization import DitheredQuantization, ScalarQuantization
from secagg.contract import (
    Aggregate,
    IndexedDecoder,
    Layout,
    LinearDecoder,
    Payload,
    encode_update,
    public_parameters_digest,
)
from secagg.contract.codewords import CodewordTable, Tables, require_summed, require_tables, summed_layout
from secagg.contract.layout import UNVERSIONED, IndexSegment, RingSegment, Segment
from secagg.crypto.entropy import Coins
from secagg.errors import CapacityExceeded, ContractViolation, InvalidParameters, Misuse, Reason, ThresholdNotMet
from secagg.parameters import require_integer

from .weighting import COUNTS, Counted

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

    A scheme with a ``length`` gets the tensor as a vector in row-major order; any other gets it unchanged.
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
        """Shape of the tensor that the scheme gets."""
        return (prod(self.shape),) if hasattr(self.scheme, "length") else self.shape


@contextmanager
def named(name: str) -> Generator[None]:
    """Prefix the message of any error with the tensor's name."""
    try:
        yield
    except (CapacityExceeded, ContractViolation, InvalidParameters, Misuse) as error:
        raise type(error)(f"tensor {name!r}: {error}", reason=error.reason) from error


def require_name(name: str) -> None:
    """Refuse an invalid name of a tensor."""
    require_text(name)
    if not 0 < len(name.encode()) <= MAXIMUM_NAME_BYTES:
        raise InvalidParameters(f"a tensor's name must be 1 to {MAXIMUM_NAME_BYTES} bytes; rename {name[:40]!r}")


def require_names(given: Mapping[Any, Any], due: Sequence[str], what: str) -> None:
    """Refuse a value that is not a mapping, lacks tensors, or has tensors that the model lacks."""
    if not _is_mapping(given):
        raise Misuse(f"{what} must be a mapping from tensor names to arrays; got {type(given).__name__}")
    missing, unknown = [name for name in due if name not in given], [name for name in given if name not in due]
    if missing:
        raise Misuse(f"{what} lacks {listed(missing)}; give every tensor of the model, as zeros if it did not change")
    if unknown:
        raise Misuse(f"{what} has {listed(unknown)}, which the model lacks; leave out tensors that are not aggregated")


def plain_tensor(value: Tensor | np.generic, shape: Shape) -> Tensor:
    """Return an array of the required shape; a numpy scalar, the result of arithmetic on 0-d arrays, becomes one."""
    tensor = np.asarray(value) if isinstance(value, np.generic) else value
    if type(tensor) not in _PLAIN_ARRAYS:
        raise Misuse(f"a tensor must be a plain numpy array; got {type(tensor).__name__}; convert it")
    if tensor.shape != shape:
        raise Misuse(
            f"expected an array of shape {shape}; got {tensor.shape}; reshape it, or make a plan for this model"
        )
    return tensor


def require_fit(scheme: LinearDecoder[Any], due: PublicStream) -> None:
    """Refuse a scheme, or a nested one, that was made for another shape, tensor or epoch.

    For custom schemes, only ``length`` is checked.
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
                    f"its mask or signs are for epoch {stream.round_number} but the update is for epoch "
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
                    f"its rotation is for epoch {stream.round_number} but the update is for epoch "
                    f"{due.round_number}; refresh it"
                )
        case _:
            _require_shape((getattr(scheme, "length", prod(due.shape)),), _inside(due, (prod(due.shape),)))


def _inside(due: PublicStream, shape: Shape) -> PublicStream:
    return PublicStream(seed=due.seed, round_number=due.round_number, tensor_name=due.tensor_name, shape=shape)


def _require_shape(shape: Shape, due: PublicStream) -> None:
    if shape != due.shape:
        raise InvalidParameters(f"its scheme is for shape {shape}, not {due.shape}; create one for that shape")


def listed(names: Sequence[Any]) -> str:
    """Return the first few names and the number of others."""
    shown = ", ".join(repr(name) for name in names[:_NAMES_SHOWN])
    return shown if len(names) <= _NAMES_SHOWN else f"{shown} and {len(names) - _NAMES_SHOWN} more"


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


# --- Merged segments --------------------------------------------------------------------------------------------------

Part = tuple[int, slice]
"""Place in the merged layout: the segment, and the range in it."""
Parts = tuple[tuple[Part, ...], ...]
"""Parts of each tensor's segments, in order."""
_Kind = tuple[type[Segment], int, int]


def merged(schemes: Sequence[tuple[Segment, ...]]) -> tuple[tuple[Segment, ...], Parts]:
    """Return the merged segments, and where each scheme's segments are in them."""
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
    """Return the tables of a scheme; none if it sends no indices.

    Raises:
        InvalidParameters: it sends indices without tables, or its tables are for other segments.
    """
    layout = scheme.layout
    if not any(isinstance(segment, IndexSegment) for segment in layout.segments):
        return ()
    if not hasattr(scheme, "decode_summed"):
        raise InvalidParameters(
            f"its {type(scheme).__name__} sends indices but only decodes histograms; release histograms, or give the "
            "scheme `tables` and `decode_summed`"
        )
    tables = cast("IndexedDecoder[Any]", scheme).tables
    require_tables(layout, tables)
    return tables


def merged_tables(segments: Sequence[Segment], parts: Parts, tables: Sequence[Tables]) -> Tables:
    """Return the tables of the merged layout, from those of each tensor's scheme."""
    joined = {at: list[CodewordTable]() for at, segment in enumerate(segments) if isinstance(segment, IndexSegment)}
    for own, given in zip(parts, tables, strict=True):
        indexed = [at for at, _ in own if at in joined]
        for at, some in zip(indexed, given, strict=True):
            joined[at] += some
    return tuple(tuple(some) for some in joined.values())


def summed_parts(segments: Sequence[Segment], parts: Parts, tables: Sequence[Tables]) -> Parts:
    """Return the places of each tensor's sums in the merged summed layout, in the order of its own summed layout."""
    remaining = iter(merged_tables(segments, parts, tables))
    is_index = [isinstance(segment, IndexSegment) for segment in segments]
    sizes = [len(next(remaining)) if indexed else 1 for indexed in is_index]
    # Each table is a separate segment there; tensors take theirs in order.
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


# --- The update of a model --------------------------------------------------------------------------------------------

MAXIMUM_EPOCH: Final = (1 << 64) - 1


class CalibrationSource(IntEnum):
    """Origin of scales and codebooks; part of the version, so it cannot be misstated later."""

    NONE = 0
    """Chosen by the user, or there are none."""
    PUBLIC_BATCH = 1
    """The update of a model that was trained on public data."""
    PREVIOUS_AGGREGATE = 2
    """The mean of an earlier round, which the server already knows."""
    LEAKY_MOCK_CLIENT = 3
    """One client's unprotected update: for simulations, and for reproducing the paper."""


Prepare = Callable[[TensorScheme, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelUpdate:
    """A model's tensors as one update, encoded under the public parameters of one epoch.

    An error about a tensor begins with its name. The layout's version covers the epoch, the parameters' source, and
    every tensor's name, shape, position and scheme.
    """

    tensors: tuple[TensorScheme, ...]
    epoch: int = 0
    """Number of refreshes of the parameters, or another counter that grows at each refresh."""
    source: CalibrationSource = CalibrationSource.NONE
    layout: Layout = field(init=False)
    _parts: tuple[tuple[Part, ...], ...] = field(init=False, repr=False)
    """Places of the segments of each tensor's scheme: the segment of the layout, and the range in it."""

    def __post_init__(self) -> None:
        if (
            type(self.tensors) is not tuple
            or not self.tensors
            or any(type(t) is not TensorScheme for t in self.tensors)
        ):
            raise Misuse("a model update needs a tuple of at least one TensorScheme")
        if type(self.source) is not CalibrationSource:
            raise Misuse(f"source must be a CalibrationSource; got {self.source!r}")
        require_integer("epoch", self.epoch, 0, MAXIMUM_EPOCH)
        if len(set(self.names)) < len(self.tensors):
            twice = sorted({name for name in self.names if self.names.count(name) > 1})
            raise InvalidParameters(f"{listed(twice)} appear twice in one model; rename them")
        for tensor in self.tensors:
            with named(tensor.name):
                stream = PublicStream(
                    seed=bytes(32), round_number=self.epoch, tensor_name=tensor.name, shape=tensor.place
                )
                require_fit(tensor.scheme, stream)
        segments, parts = merged([tensor.scheme.layout.segments for tensor in self.tensors])
        object.__setattr__(self, "layout", Layout(segments, public_parameters_digest("model_update", self._encoded())))
        object.__setattr__(self, "_parts", parts)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tensor.name for tensor in self.tensors)

    @property
    def schemes(self) -> dict[str, LinearDecoder[Any]]:
        return {tensor.name: tensor.scheme for tensor in self.tensors}

    @property
    def capacity(self) -> int:
        return min(tensor.scheme.capacity for tensor in self.tensors)

    @property
    def tables(self) -> Tables:
        """Codebooks of each index segment's tensors and their stages, in the order of their blocks.

        Raises:
            InvalidParameters: a tensor's scheme sends indices but only decodes histograms.
        """
        return merged_tables(self.layout.segments, self._parts, self._own_tables())

    def encode(self, update: Tensors, coins: Coins, prepare: Prepare = lambda _, given: given) -> Payload:
        """Encode and prepare tensors one by one, in the order in which coins are drawn."""
        require_names(update, self.names, "an update")
        given = dict[str, Tensor]()
        for tensor in self.tensors:
            with named(tensor.name):
                given[tensor.name] = plain_tensor(update[tensor.name], tensor.shape)
        # Computed only now: another party sent the lengths, which are unverified until a tensor has them.
        vectors = [segment.ring.zeros(segment.length) for segment in self.layout.segments]
        for tensor, parts in zip(self.tensors, self._parts, strict=True):
            with named(tensor.name):
                values = prepare(tensor, given[tensor.name]).reshape(tensor.place)
                payload = encode_update(tensor.scheme, values, coins)
            for (segment, part), encoded in zip(parts, payload.values, strict=True):
                vectors[segment][part] = encoded
        return Payload(self.layout, tuple(vectors))

    def decode(self, aggregate: Aggregate) -> dict[str, Tensor]:
        """Return the weighted sum of the contributors' updates, tensor by tensor."""
        self.require_layout(aggregate.layout)
        total = dict[str, Tensor]()
        for tensor in self.tensors:
            with named(tensor.name):
                decoded = tensor.scheme.decode(self.part(aggregate, tensor.name))
                total[tensor.name] = _in_shape(decoded, tensor)
        return total

    def decode_summed(self, aggregate: Aggregate) -> dict[str, Tensor]:
        """Return the result of ``decode`` from sums of codewords instead of histograms."""
        require_summed(aggregate.layout, self.layout, self.tables, aggregate.contributors)
        total = dict[str, Tensor]()
        for tensor, part in zip(self.tensors, self._summed_parts(aggregate), strict=True):
            with named(tensor.name):
                is_plain = part.layout == tensor.scheme.layout
                scheme = cast("IndexedDecoder[Tensor]", tensor.scheme)
                decoded = tensor.scheme.decode(part) if is_plain else scheme.decode_summed(part)
                total[tensor.name] = _in_shape(decoded, tensor)
        return total

    def mean(self, aggregate: Aggregate) -> dict[str, Tensor]:
        """Return the decoded sum (of histograms or codewords) divided by its denominators, which are removed.

        Raises:
            ThresholdNotMet: no client trained.
        """
        counted = self.counted(aggregate)
        if counted.is_empty:
            raise ThresholdNotMet(needed=1, present=0, what="clients that trained")
        decoded = self.decode_summed(aggregate) if self._is_summed(aggregate) else self.decode(aggregate)
        decoded.pop(COUNTS, None)
        return {name: np.asarray(total / counted.divisor(name, self.schemes[name])) for name, total in decoded.items()}

    def counted(self, aggregate: Aggregate) -> Counted:
        """Return the denominators in a sum."""
        if COUNTS not in self.names:
            return Counted(contributors=aggregate.contributors)
        scheme = cast("FixedPoint", self.schemes[COUNTS])
        examples, *trained = map(round, scheme.decode(self.part(aggregate, COUNTS)).tolist())
        full = round(scheme.clip)
        if full == 1:
            trained = [examples]
        # A dishonest client can inflate this count.
        most = aggregate.contributors
        known = min(trained[0], most) if trained else None
        return Counted(contributors=most, full=full, examples=min(examples, full * most), trained=known)

    def part(self, aggregate: Aggregate, name: str) -> Aggregate:
        """Return one tensor's part of an aggregate of histograms or of sums of codewords."""
        if name not in self.names:
            raise Misuse(f"{listed([name])} is not one of the model's tensors")
        position = self.names.index(name)
        if self._is_summed(aggregate):
            require_summed(aggregate.layout, self.layout, self.tables, aggregate.contributors)
            return self._summed_parts(aggregate)[position]
        self.require_layout(aggregate.layout)
        values = tuple(aggregate.values[segment][part] for segment, part in self._parts[position])
        layout = self.tensors[position].scheme.layout
        return Aggregate(layout, values, aggregate.contributors)

    def require_layout(self, layout: Layout) -> None:
        """Refuse a session, payload or aggregate whose layout is not this codec's."""
        if layout != self.layout:
            what = "public parameters" if layout.segments == self.layout.segments else "tensors or schemes"
            raise Misuse(
                f"the layout does not have the {what} of epoch {self.epoch}; get the parameters of epoch "
                f"{self.epoch} and encode again",
                reason=Reason.LAYOUT_MISMATCH,
            )

    def _is_summed(self, aggregate: Aggregate) -> bool:
        """Whether an aggregate of this layout's indices holds sums of codewords."""
        mine, given = (
            any(isinstance(segment, IndexSegment) for segment in layout.segments)
            for layout in (self.layout, aggregate.layout)
        )
        return mine and not given

    def _summed_parts(self, aggregate: Aggregate) -> list[Aggregate]:
        own = self._own_tables()
        places = summed_parts(self.layout.segments, self._parts, own)
        return [
            _summed_part(tensor.scheme, tables, aggregate, parts)
            for tensor, parts, tables in zip(self.tensors, places, own, strict=True)
        ]

    def _own_tables(self) -> list[Tables]:
        found = list[Tables]()
        for tensor in self.tensors:
            with named(tensor.name):
                found.append(tables_of(tensor.scheme))
        return found

    def _encoded(self) -> bytes:
        encoded = [struct.pack(">QBI", self.epoch, self.source, len(self.tensors))]
        for tensor in self.tensors:
            name, dimensions = tensor.name.encode(), len(tensor.shape)
            encoded.append(struct.pack(f">II{dimensions}Q", len(name), dimensions, *tensor.shape))
            encoded += (name, tensor.scheme.layout.version)
        return b"".join(encoded)


def _in_shape(decoded: Tensor, tensor: TensorScheme) -> Tensor:
    if decoded.shape != tensor.place:
        raise ContractViolation(
            f"its scheme was given shape {tensor.place} but decodes to {decoded.shape}; fix its decode()"
        )
    return decoded.reshape(tensor.shape)


def _summed_part(
    scheme: LinearDecoder[Any], tables: Tables, aggregate: Aggregate, parts: tuple[Part, ...]
) -> Aggregate:
    values = tuple(aggregate.values[at][part] for at, part in parts)
    if not tables:
        return Aggregate(scheme.layout, values, aggregate.contributors)
    rings = aggregate.layout.require_rings()
    segments = tuple(replace(rings[at], length=value.size) for (at, _), value in zip(parts, values, strict=True))
    version = summed_layout(scheme.layout, tables, aggregate.contributors).version
    return Aggregate(Layout(segments, version), values, aggregate.contributors)
