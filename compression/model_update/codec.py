"""A model's tensors as one payload: each by its own scheme, and segments of one kind put together.

A protocol's work has a part that grows with the number of segments, and a model of sixty small tensors would pay for
little else; ``merged_segments`` says how they are put together.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final, cast

import numpy as np

from secagg.compression.public_stream import PublicStream
from secagg.contract import (
    Aggregate,
    IndexedDecoder,
    Layout,
    LinearDecoder,
    Payload,
    encode_update,
    public_parameters_digest,
)
from secagg.contract.codewords import Tables, require_summed, summed_layout
from secagg.contract.layout import IndexSegment
from secagg.crypto.entropy import Coins
from secagg.errors import ContractViolation, InvalidParameters, Misuse, Reason
from secagg.parameters import require_integer

from .tensors import (
    Joined,
    Part,
    Tensor,
    Tensors,
    TensorScheme,
    joined,
    listed,
    merged,
    merged_tables,
    named,
    plain_tensor,
    require_fit,
    require_names,
    summed_parts,
    tables_of,
)

MAXIMUM_EPOCH: Final = (1 << 64) - 1


class CalibrationSource(IntEnum):
    """Origin of scales and codebooks; part of the version, so that nobody can be told another one later."""

    NONE = 0
    """They were chosen, or there are none."""
    PUBLIC_BATCH = 1
    """The update of a model that was trained on public data."""
    PREVIOUS_AGGREGATE = 2
    """The mean of an earlier round, which the server knows anyway."""
    LEAKY_MOCK_CLIENT = 3
    """One client's own update, unprotected: for simulations, and for repeating what the paper did."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelUpdate:
    """A model's tensors as one update, encoded under the public parameters of one epoch.

    An error that concerns a tensor begins with its name. The layout's version covers the epoch, where the parameters
    come from, and every tensor's name, shape, place in the order and scheme.
    """

    tensors: tuple[TensorScheme, ...]
    epoch: int = 0
    """Number of refreshes of the parameters, or any other count that grows when they are refreshed."""
    source: CalibrationSource = CalibrationSource.NONE
    layout: Layout = field(init=False)
    _parts: tuple[tuple[Part, ...], ...] = field(init=False, repr=False)
    """Places of the segments of each tensor's scheme: in which segment of the layout, and where there."""
    _joined: tuple[Joined, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if (
            type(self.tensors) is not tuple
            or not self.tensors
            or any(type(t) is not TensorScheme for t in self.tensors)
        ):
            raise Misuse("a model update is made from a tuple of at least one TensorScheme")
        if type(self.source) is not CalibrationSource:
            raise Misuse(f"source is a CalibrationSource; got {self.source!r}")
        require_integer("epoch", self.epoch, 0, MAXIMUM_EPOCH)
        if len(set(self.names)) < len(self.tensors):
            twice = sorted({name for name in self.names if self.names.count(name) > 1})
            raise InvalidParameters(f"{listed(twice)} stand twice in one model; rename them")
        for tensor in self.tensors:
            with named(tensor.name):
                stream = PublicStream(
                    seed=bytes(32), round_number=self.epoch, tensor_name=tensor.name, shape=tensor.place
                )
                require_fit(tensor.scheme, stream)
        segments, parts = merged([tensor.scheme.layout.segments for tensor in self.tensors])
        object.__setattr__(self, "layout", Layout(segments, public_parameters_digest("model_update", self._encoded())))
        object.__setattr__(self, "_parts", parts)
        object.__setattr__(self, "_joined", joined(self.tensors, parts))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors, in their order."""
        return tuple(tensor.name for tensor in self.tensors)

    @property
    def capacity(self) -> int:
        """The least capacity of any tensor's scheme."""
        return min(tensor.scheme.capacity for tensor in self.tensors)

    @property
    def tables(self) -> Tables:
        """Codebooks of each index segment's tensors and their stages, in the order of their blocks.

        Raises:
            InvalidParameters: the scheme of a tensor sends indices and decodes nothing but histograms.
        """
        return merged_tables(self.layout.segments, self._parts, self._own_tables())

    def encode(self, update: Tensors, coins: Coins) -> Payload:
        """Encode every tensor by its scheme; coins are drawn in the order of the tensors.

        Raises:
            Misuse: a tensor is missing, is none of the model's, or is not of the required type and shape.
        """
        require_names(update, self.names, "an update")
        given = dict[str, Tensor]()
        for tensor in self.tensors:
            with named(tensor.name):
                given[tensor.name] = plain_tensor(update[tensor.name], tensor.shape)
        # Not before: lengths are another party's word until a tensor has them.
        vectors = [segment.ring.zeros(segment.length) for segment in self.layout.segments]
        for joint in self._joined:
            if (together := joint.encoded(given, coins)) is not None:
                segment, part = joint.place
                vectors[segment][part] = together
                continue
            for tensor, parts in zip(joint.tensors, joint.parts, strict=True):
                with named(tensor.name):
                    payload = encode_update(tensor.scheme, given[tensor.name].reshape(tensor.place), coins)
                for (segment, part), encoded in zip(parts, payload.values, strict=True):
                    vectors[segment][part] = encoded
        return Payload(self.layout, tuple(vectors))

    def decode(self, aggregate: Aggregate) -> dict[str, Tensor]:
        """Return the sum of the contributors' updates, tensor by tensor, each as often as its weight says.

        Raises:
            Misuse: the aggregate belongs to another layout: to other tensors, or to the parameters of another epoch.
            CapacityExceeded: the contributors' weight exceeds the capacity of a scheme.
        """
        self.require_layout(aggregate.layout)
        total = dict[str, Tensor]()
        for tensor in self.tensors:
            with named(tensor.name):
                decoded = tensor.scheme.decode(self.part(aggregate, tensor.name))
                total[tensor.name] = _in_shape(decoded, tensor)
        return total

    def decode_summed(self, aggregate: Aggregate) -> dict[str, Tensor]:
        """Return what ``decode`` returns, from sums of codewords instead of histograms; plain segments are as they are.

        Raises:
            Misuse: the aggregate's layout is not the summed layout of this one and of its tables.
            CapacityExceeded: the contributors' weight exceeds the capacity of a scheme, or a ring is too narrow for it.
            InvalidParameters: as for ``tables``.
        """
        require_summed(aggregate.layout, self.layout, self.tables, aggregate.total_weight)
        total = dict[str, Tensor]()
        for tensor, part in zip(self.tensors, self._summed_parts(aggregate), strict=True):
            with named(tensor.name):
                is_plain = part.layout == tensor.scheme.layout
                scheme = cast("IndexedDecoder[Tensor]", tensor.scheme)
                decoded = tensor.scheme.decode(part) if is_plain else scheme.decode_summed(part)
                total[tensor.name] = _in_shape(decoded, tensor)
        return total

    def mean(self, aggregate: Aggregate) -> dict[str, Tensor]:
        """Return the decoded sum, of histograms or of codewords, divided by the total weight.

        Raises:
            Misuse, CapacityExceeded: as for ``decode``, or ``decode_summed``.
        """
        decoded = self.decode_summed(aggregate) if self._is_summed(aggregate) else self.decode(aggregate)
        return {name: np.asarray(total / aggregate.total_weight) for name, total in decoded.items()}

    def part(self, aggregate: Aggregate, name: str) -> Aggregate:
        """Return what the aggregate, of histograms or of sums of codewords, holds of one tensor, for its scheme alone.

        Raises:
            Misuse: the aggregate belongs to another layout, or the model has no such tensor.
        """
        if name not in self.names:
            raise Misuse(f"{listed([name])} is none of the model's tensors")
        position = self.names.index(name)
        if self._is_summed(aggregate):
            require_summed(aggregate.layout, self.layout, self.tables, aggregate.total_weight)
            return self._summed_parts(aggregate)[position]
        self.require_layout(aggregate.layout)
        values = tuple(aggregate.values[segment][part] for segment, part in self._parts[position])
        layout = self.tensors[position].scheme.layout
        return Aggregate(layout, values, aggregate.contributors, aggregate.total_weight)

    def require_layout(self, layout: Layout) -> None:
        """Refuse a layout that is not this one: that of a session, a payload or an aggregate.

        Raises:
            Misuse: it is another layout.
        """
        if layout != self.layout:
            what = "public parameters" if layout.segments == self.layout.segments else "tensors or schemes"
            raise Misuse(
                f"the layout belongs to other {what} than those of epoch {self.epoch}; fetch the parameters of epoch "
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
        """Return what sums of codewords hold of each tensor."""
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
            f"its scheme was given shape {tensor.place} and decodes to {decoded.shape}; repair its decode()"
        )
    return decoded.reshape(tensor.shape)


def _summed_part(
    scheme: LinearDecoder[Any], tables: Tables, aggregate: Aggregate, parts: tuple[Part, ...]
) -> Aggregate:
    """Return what a summed aggregate of the whole holds of a tensor, for its scheme."""
    values = tuple(aggregate.values[at][part] for at, part in parts)
    counts = (aggregate.contributors, aggregate.total_weight)
    if not tables:
        return Aggregate(scheme.layout, values, *counts)
    rings = aggregate.layout.require_rings()
    segments = tuple(replace(rings[at], length=value.size) for (at, _), value in zip(parts, values, strict=True))
    version = summed_layout(scheme.layout, tables, aggregate.total_weight).version
    return Aggregate(Layout(segments, version), values, *counts)
