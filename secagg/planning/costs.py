"""Computes the costs of every combination of scheme and protocol, from layouts and the protocols' own formulas.

The layout of each scheme is computed from the shapes of the model's tensors.

Bytes are per client. Downloads count the protocol's messages and the scheme's scales and codebooks, but not the model,
which every client receives in any case.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import prod
from typing import Any, Final

from secagg.compression.byte_accounting import (
    PLAIN_BITS,
    Shape,
    Shapes,
    codebook_bytes,
    parameter_count,
    product_quantization_layout,
    pruning_layout,
    scalar_quantization_layout,
)
from secagg.compression.cohort_bits import COHORT_BITS, kept_for, peak_noise, places_for, sketch_noise
from secagg.compression.common import SEED_BYTES
from secagg.compression.peak import MOST_SUMMED_PLACES, NORM_LEVELS, block_size_for
from secagg.compression.product_quantization import BlockGeometry, block_geometry, is_quantizable
from secagg.compression.rotation import padded_size, sketch_ring
from secagg.compression.scalar_quantization import DEFAULT_FINE_BITS, dithered_ring, modulus_bits_for
from secagg.contract.layout import (
    MAXIMUM_CODEWORDS,
    MAXIMUM_LENGTH,
    MAXIMUM_SEGMENTS,
    IndexSegment,
    Layout,
    RingSegment,
)
from secagg.errors import CapacityExceeded, InvalidParameters
from secagg.options import declared
from secagg.parameters import Suite
from secagg.quick.model_session import planned
from secagg.session.client_policy import usual_dropped
from secagg.session.registry import ProtocolEntry, find, names
from secagg.session.run import Costs

_SCALE_BYTES = 4
_LEAST_COHORT_BITS: Final = 1e-3
_MOST_COHORT_BITS: Final = 1e6
_MOST_CLIENTS: Final = 1 << 20


class Scheme(StrEnum):
    """Content of an upload, before any protection."""

    FIXED_POINT = "fixed point"
    SCALAR = "scalar quantization"
    DITHERED = "dithered quantization"
    """Values with this number of bits, rounded under the mask."""
    PRUNING = "random pruning"
    PRODUCT = "product quantization"
    """Indices of codewords."""
    PEAK = "peak code"
    """Positions and signs of the peaks of the whole rotated update; its length is one more block."""
    SKETCH = "linear sketch"
    """Signs of some values of the whole rotated update, and its length in fixed point."""


INDEXED: Final = frozenset({Scheme.PRODUCT, Scheme.PEAK})
"""Schemes that send indices."""
WHOLE_UPDATES: Final = (Scheme.PEAK, Scheme.SKETCH)
"""Schemes whose rate follows from the cohort."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """A model, the parameters of its compression, and the number of clients."""

    shapes: Shapes
    codewords: int = 64
    block_size: int = 9
    clients: int = 100
    bits: int = 8
    cohort_bits: float = COHORT_BITS
    sparsity: Fraction = Fraction(9, 10)
    suite: Suite = Suite.CLASSIC
    dropped: int | None = None
    """Clients that may drop out; None for the library's default."""

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("codewords", self.codewords, 2, MAXIMUM_CODEWORDS),
            ("block-size", self.block_size, 1, 1 << 16),
            ("clients", self.clients, 2, _MOST_CLIENTS),
            ("bits", self.bits, 2, 16),
            ("dropped", self.most_dropped, 0, max(0, self.clients - 2)),
        ):
            if type(value) is not int or not least <= value <= most:
                raise InvalidParameters(f"--{name} must be between {least} and {most}; got {value}")
        if not _LEAST_COHORT_BITS <= self.cohort_bits <= _MOST_COHORT_BITS:
            raise InvalidParameters(
                f"--cohort-bits must be between {_LEAST_COHORT_BITS} and {_MOST_COHORT_BITS}; got {self.cohort_bits}"
            )
        if not 0 <= self.sparsity < 1:
            raise InvalidParameters(f"--sparsity must be at least 0 and below 1; got {self.sparsity}")
        if not self.shapes or any(not _is_shape(shape) for shape in self.shapes.values()):
            raise InvalidParameters("--model: every tensor needs a shape of integers of at least 1")
        if len(self.shapes) > MAXIMUM_SEGMENTS:
            raise InvalidParameters(
                f"the model has {len(self.shapes)} tensors; a layout can have at most {MAXIMUM_SEGMENTS}; merge some"
            )
        if parameter_count(self.shapes) > MAXIMUM_LENGTH:
            raise InvalidParameters(f"a model of {parameter_count(self.shapes)} values exceeds 2^40; split it")
        if not any(is_quantizable(shape, self.block_size) for shape in self.shapes.values()):
            raise InvalidParameters(
                f"no tensor can be cut into eight blocks of up to {self.block_size} values, so none can use "
                "codebooks; lower --block-size or use a larger model"
            )

    @property
    def weights(self) -> int:
        return parameter_count(self.shapes)

    @property
    def most_dropped(self) -> int:
        return usual_dropped(self.clients) if self.dropped is None else self.dropped

    @property
    def places(self) -> int:
        """Number of values in a block of the peak code."""
        return min(places_for(self.clients, self.cohort_bits), MOST_SUMMED_PLACES)

    @property
    def kept(self) -> int:
        """Number of values that a sketch sends."""
        return kept_for(self.weights, self.clients, self.cohort_bits)

    def noise(self, scheme: Scheme) -> float:
        """Return the energy of a decoded mean's noise, in units of one client's energy; for whole-update schemes."""
        if scheme is Scheme.PEAK:
            return peak_noise(self.places, self.clients)
        return sketch_noise(self.kept / self.weights, 1, self.clients)

    @property
    def tensors(self) -> list[BlockGeometry]:
        """Geometry of the tensors with codebooks, with their numbers of codewords."""
        return [geometry for _, geometry in self._parts() if geometry is not None]

    def layout(self, scheme: Scheme) -> Layout:  # noqa: PLR0911 -- one for each scheme
        match scheme:
            case Scheme.FIXED_POINT:
                return Layout(tuple(RingSegment(PLAIN_BITS, prod(shape)) for shape in self.shapes.values()))
            case Scheme.SCALAR:
                return scalar_quantization_layout(self.shapes, modulus_bits_for(self.bits, self.clients))
            case Scheme.DITHERED:
                width = dithered_ring(self.bits, self.clients)
                return Layout(
                    tuple(
                        RingSegment(width, prod(shape), DEFAULT_FINE_BITS)
                        if len(shape) > 1
                        else RingSegment(PLAIN_BITS, prod(shape))
                        for shape in self.shapes.values()
                    )
                )
            case Scheme.PRUNING:
                return pruning_layout(self.shapes, self.sparsity)
            case Scheme.PRODUCT:
                return product_quantization_layout(self.shapes, self.codewords, self.block_size)
            case Scheme.PEAK:
                blocks = -(-padded_size(self.weights, block_size_for(self.weights)) // self.places)
                return Layout((IndexSegment(2 * self.places, blocks), IndexSegment(NORM_LEVELS, 1)))
            case Scheme.SKETCH:
                ring = RingSegment(sketch_ring(1, self.clients), self.kept)
                return Layout((ring, RingSegment(PLAIN_BITS, 1)))

    def public_bytes(self, scheme: Scheme) -> int:
        """Return the bytes of a scheme's public parameters, which clients download: scales, codebooks, a seed."""
        match scheme:
            case Scheme.FIXED_POINT:
                return 0
            case Scheme.SCALAR | Scheme.DITHERED:
                return _SCALE_BYTES * sum(len(shape) > 1 for shape in self.shapes.values())
            case Scheme.PRUNING:
                return SEED_BYTES
            case Scheme.PRODUCT:
                return codebook_bytes(self.shapes, self.codewords, self.block_size)
            case Scheme.PEAK | Scheme.SKETCH:
                return SEED_BYTES + _SCALE_BYTES

    def describe(self, scheme: Scheme) -> str:
        match scheme:
            case Scheme.FIXED_POINT:
                return f"{scheme}, {PLAIN_BITS} bits"
            case Scheme.SCALAR | Scheme.DITHERED:
                return f"{scheme}, {self.bits} bits"
            case Scheme.PRUNING:
                return f"{scheme}, {float(1 - self.sparsity):.4g} kept"
            case Scheme.PRODUCT:
                return f"{scheme}, {self.codewords} x {self.block_size}"
            case Scheme.PEAK:
                return f"{scheme}, 1 of {self.places}"
            case Scheme.SKETCH:
                return f"{scheme}, {self.kept:,} signs"

    def setting(self, scheme: Scheme) -> str:
        """Return the platform settings that select a scheme; empty if platforms do not support it."""
        match scheme:
            case Scheme.FIXED_POINT:
                return 'secagg-compression = "fixed-point"'
            case Scheme.SCALAR:
                return f'secagg-compression = "scalar-{self.bits}"'
            case Scheme.PRUNING if self.sparsity and (10**4 * self.sparsity).denominator == 1:
                return f'secagg-compression = "pruning-{float(self.sparsity):g}"'
            case Scheme.PRODUCT if self.block_size < 10**3:
                return f'secagg-compression = "pq-{self.codewords}x{self.block_size}", secagg-weighting = "uniform"'
            case Scheme.PEAK:
                places = "" if self.cohort_bits == COHORT_BITS else f"-{self.places}"
                return f'secagg-compression = "peak{places}", secagg-weighting = "uniform"'
            case _:
                return ""

    def _parts(self) -> Iterator[tuple[Shape, BlockGeometry | None]]:
        """Yield every tensor, with its blocks if it is cut into blocks."""
        for shape in self.shapes.values():
            is_cut = is_quantizable(shape, self.block_size)
            yield shape, block_geometry(shape, self.block_size, self.codewords) if is_cut else None


def shapes_of_blocks(blocks: int, block_size: int) -> Shapes:
    """Return a model with one matrix of ``blocks`` blocks."""
    return {"blocks.weight": (blocks, block_size)}


def _is_shape(shape: tuple[Any, ...]) -> bool:
    return type(shape) is tuple and all(type(size) is int and size >= 1 for size in shape)


# --- Options ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One combination of scheme and protocol, with its costs."""

    scheme: Scheme
    entry: ProtocolEntry
    described: str
    """The scheme with its parameters."""
    layout: Layout
    weights: int
    public_bytes: int
    """Bytes of the scheme's public parameters."""
    costs: Costs

    @property
    def protocol(self) -> str:
        return self.entry.name

    @property
    def name(self) -> str:
        return f"{self.protocol}, {self.costs.variant}" if self.costs.variant else self.protocol

    @property
    def down_bytes(self) -> int:
        return self.costs.down_bytes + self.public_bytes

    @property
    def bits_per_weight(self) -> float:
        """Size of the upload divided by the number of the model's values."""
        return 8 * self.costs.up_bytes / self.weights


@dataclass(frozen=True, slots=True)
class Comparison:
    """All combinations, shortest upload first, and the reasons for omitted ones."""

    options: tuple[Option, ...]
    left_out: tuple[str, ...]

    @property
    def protocols(self) -> tuple[str, ...]:
        """Protocols with at least one option, in the registry's order."""
        return tuple(name for name in names() if self.shortest(name) is not None)

    def shortest(self, protocol: str, *schemes: Scheme) -> Option | None:
        """Return the first option of a protocol, among some schemes or all."""
        found = (option for option in self.options if option.protocol == protocol)
        return next((option for option in found if not schemes or option.scheme in schemes), None)


def compare(request: PlanRequest) -> Comparison:
    """Compute the cost of every combination; impossible ones are omitted, with the library's error as the reason."""
    options, left_out = list[Option](), dict[tuple[str, str], list[Scheme]]()
    for entry in map(find, names()):
        for scheme in Scheme:
            try:
                options.extend(_options(request, entry, scheme))
            except (InvalidParameters, CapacityExceeded) as error:
                left_out.setdefault((entry.name, str(error)), []).append(scheme)
    options.sort(key=lambda option: (option.costs.up_bytes, option.down_bytes, option.described, option.name))
    sentences = [f"{name}, {', '.join(schemes)}: {error}" for (name, error), schemes in left_out.items()]
    return Comparison(tuple(options), tuple(sentences))


def _options(request: PlanRequest, entry: ProtocolEntry, scheme: Scheme) -> Iterator[Option]:
    """Yield the variants of a protocol for a scheme; none if the protocol has no costs or cannot take indices."""
    if entry.costs is None or (scheme in INDEXED and IndexSegment not in entry.segments):
        return
    layout = request.layout(scheme)
    # As planned by the quick interface, whose defaults are those of the platforms.
    own = dict[str, int]()
    if "dropped" in declared(entry.settings):
        own["dropped"] = planned(entry, request.clients, settings={}, dropped=request.dropped).dropped
    for costs in entry.costs(layout, request.clients, request.suite, **own):
        yield Option(
            scheme=scheme,
            entry=entry,
            described=request.describe(scheme),
            layout=layout,
            weights=request.weights,
            public_bytes=request.public_bytes(scheme),
            costs=costs,
        )
