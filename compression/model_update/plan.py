"""Recipes for tensors' schemes: they hold the manual choices; a sample and a public seed supply the rest.

A recipe gets a place: the stream of a tensor, with its name, shape and epoch. Recipes nest like their schemes:
``Pruned`` passes the kept coordinates of the sample to its inner recipe, ``Rotated`` the rotated sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from secagg.compression import product_quantization, scalar_quantization
from secagg.compression.common import PublicStream, require_seed, require_shape
from secagg.compression.count_sketch import CountSketch
from secagg.compression.fixed_point import FixedPoint
from secagg.compression.model_update.codec import (
    CalibrationSource,
    ModelUpdate,
    Shape,
    Tensors,
    TensorScheme,
    listed,
    named,
    plain_tensor,
    require_name,
    require_names,
)
from secagg.compression.product_quantization import ITERATIONS, ProductQuantization, block_geometry, is_quantizable
from secagg.compression.random_pruning import RandomPruning, kept_count, pruning_mask
from secagg.compression.rotation import RandomRotation, padded_size
from secagg.compression.scalar_quantization import (
    DEFAULT_FINE_BITS,
    LEAST_SCALE,
    DitheredQuantization,
    Rounding,
    ScalarQuantization,
)
from secagg.contract import LinearDecoder, public_parameters_digest
from secagg.errors import InvalidParameters, Misuse

# --- Recipes ----------------------------------------------------------------------------------------------------------

Sample = npt.NDArray[np.floating[Any]]
Scheme = LinearDecoder[Any]
_MOST_FILLED: Final = Fraction(9, 8)
_Kind = TypeVar("_Kind", DitheredQuantization, ScalarQuantization, ProductQuantization)


class Recipe(Protocol):
    """Methods that a plan calls on a recipe; any object with both is a recipe."""

    def fits(self, shape: Shape) -> bool:
        """Whether a tensor of this shape can be encoded this way; if not, a plan sends it plain."""
        ...

    def make(self, place: PublicStream, sample: Sample | None, previous: Scheme | None) -> Scheme:
        """Return the scheme for a tensor, calibrated on a sample of its shape.

        Args:
            place: the tensor's name and shape, the epoch, and a public seed.
            sample: an update of this tensor; ``None`` if nothing is calibrated.
            previous: the scheme of the epoch before, if there was one.
        """
        ...


class FitsEvery:
    """Base of recipes for tensors of every shape."""

    __slots__ = ()

    def fits(self, shape: Shape) -> bool:  # noqa: ARG002 -- the protocol's
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain(FitsEvery):
    """Fixed point in a wide ring, with a chosen clip and step."""

    clip: float
    fraction_bits: int
    modulus_bits: int = 32

    def make(self, place: PublicStream, sample: Sample | None, previous: Scheme | None) -> FixedPoint:  # noqa: ARG002
        return FixedPoint(
            length=place.size, clip=self.clip, fraction_bits=self.fraction_bits, modulus_bits=self.modulus_bits
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantized(FitsEvery):
    """Scalar quantization with scales from the sample; a sample of zeros keeps the previous epoch's scales."""

    bits: int
    modulus_bits: int
    affine: bool = False
    per_channel: bool = False
    rounding: Rounding = Rounding.NEAREST_EVEN
    wrapping_weight: int | None = None
    least_scale: float = LEAST_SCALE

    def make(self, place: PublicStream, sample: Sample | None, previous: Scheme | None) -> ScalarQuantization:
        if self.per_channel and len(place.shape) < 2:  # noqa: PLR2004 -- channels, and values in each
            raise InvalidParameters(f"channels need two dimensions, but the shape is {place.shape}; omit per_channel")
        if sample is None or not sample.any():
            return _former(previous, ScalarQuantization, place.shape)
        return scalar_quantization.calibrate(
            sample,
            bits=self.bits,
            modulus_bits=self.modulus_bits,
            affine=self.affine,
            per_channel=self.per_channel,
            rounding=self.rounding,
            wrapping_weight=self.wrapping_weight,
            least_scale=self.least_scale,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dithered(FitsEvery):
    """Dithered quantization up to the sample's largest value, for protocols with masks, which do the rounding."""

    bits: int
    modulus_bits: int
    fine_bits: int = DEFAULT_FINE_BITS

    def make(self, place: PublicStream, sample: Sample | None, previous: Scheme | None) -> DitheredQuantization:
        if sample is None or not sample.any():
            return _former(previous, DitheredQuantization, place.shape)
        return scalar_quantization.calibrate_dithered(
            sample, bits=self.bits, modulus_bits=self.modulus_bits, fine_bits=self.fine_bits
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Codebooks:
    """Product quantization with codebooks learned from the sample, starting from the previous epoch's codebooks."""

    block_size: int
    codewords: int
    stages: int = 1
    iterations: int = ITERATIONS
    keep_zero: bool = True

    def fits(self, shape: Shape) -> bool:
        return is_quantizable(shape, self.block_size)

    def make(self, place: PublicStream, sample: Sample | None, previous: Scheme | None) -> ProductQuantization:
        if sample is None or not sample.any():
            return _former(previous, ProductQuantization, place.shape)
        geometry = block_geometry(place.shape, self.block_size, self.codewords)
        wanted = [(geometry.codewords, geometry.block_size)] * self.stages
        start = previous if isinstance(previous, ProductQuantization) else None
        if start is not None and [book.values.shape for book in start.codebooks] != wanted:
            start = None
        return product_quantization.calibrate(
            sample,
            block_size=self.block_size,
            codewords=self.codewords,
            seed=_seed("codebooks", place),
            stages=self.stages,
            iterations=self.iterations,
            keep_zero=self.keep_zero,
            previous=start,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned(FitsEvery):
    """Keeps the coordinates of a common mask, which changes every epoch."""

    sparsity: Fraction | str
    inner: Recipe

    def make(self, place: PublicStream, sample: Sample | None, previous: Scheme | None) -> RandomPruning:
        kept = sample if sample is None else sample[pruning_mask(place, self.sparsity)]
        inner_place = replace(place, shape=(kept_count(place.size, self.sparsity),))
        before = previous.inner if isinstance(previous, RandomPruning) else None
        return RandomPruning(stream=place, sparsity=self.sparsity, inner=self.inner.make(inner_place, kept, before))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotated(FitsEvery):
    """Rotates at random before the inner scheme; the signs change every epoch.

    Blocks are halved until padding adds at most an eighth to the tensor.
    """

    block_size: int
    inner: Recipe

    def make(self, place: PublicStream, sample: Sample | None, previous: Scheme | None) -> RandomRotation:
        size = self.block_size
        while padded_size(place.size, size) > place.size * _MOST_FILLED and size > 2:  # noqa: PLR2004 -- the least
            size //= 2
        inner_place = replace(place, shape=(padded_size(place.size, size),))
        rotated = None
        if sample is not None:
            # The signs do not depend on the inner scheme, so any will do for rotating a sample.
            anything = FixedPoint(length=inner_place.size, clip=1.0, fraction_bits=0, modulus_bits=2)
            rotated = RandomRotation(stream=place, block_size=size, inner=anything).rotate(sample)
        before = previous.inner if isinstance(previous, RandomRotation) else None
        return RandomRotation(stream=place, block_size=size, inner=self.inner.make(inner_place, rotated, before))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketched(FitsEvery):
    """A count sketch; its hashes never change, because the server's error memory is indexed by them."""

    rows: int
    columns: int
    inner: Recipe

    def make(self, place: PublicStream, sample: Sample | None, previous: Scheme | None) -> CountSketch:
        inner_place = replace(place, shape=(self.rows * self.columns,))
        seed = _seed("count_sketch", replace(place, round_number=0))
        table = None
        if sample is not None:
            anything = FixedPoint(length=inner_place.size, clip=1.0, fraction_bits=0, modulus_bits=2)
            sketch = CountSketch(length=place.size, rows=self.rows, columns=self.columns, seed=seed, inner=anything)
            table = sketch.sketch(sample.reshape(-1)).reshape(-1)
        before = previous.inner if isinstance(previous, CountSketch) else None
        inner = self.inner.make(inner_place, table, before)
        return CountSketch(length=place.size, rows=self.rows, columns=self.columns, seed=seed, inner=inner)


def _former(previous: Scheme | None, kind: type[_Kind], shape: Shape) -> _Kind:
    """Return the previous epoch's scheme, for use without a sample."""
    if isinstance(previous, kind) and previous.shape == shape:
        return previous
    raise InvalidParameters("there is no sample to calibrate on, or it is zero; calibrate on a non-zero update")


def _seed(use: str, place: PublicStream) -> bytes:
    return public_parameters_digest(f"model_update/{use}", place.encode())


# --- The plan of an update --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """An update from which scales and codebooks are calibrated, and its origin.

    Security: scales and codebooks are broadcast and reveal much of the sample. A public batch is public, and a previous
    aggregate is known to anyone who decoded it. Nothing protects a mock client's update: its source is named a leak
    and is part of the version of everything encoded with it.
    """

    source: CalibrationSource
    sample: Tensors = field(repr=False)

    def __post_init__(self) -> None:
        if type(self.source) is not CalibrationSource or self.source is CalibrationSource.NONE:
            sources = ", ".join(source.name for source in CalibrationSource if source is not CalibrationSource.NONE)
            raise Misuse(f"say where the sample comes from: {sources}; got {self.source!r}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UpdatePlan:
    """A model's tensors, and a recipe for each.

    Tensors of more than one dimension are compressed; the others (biases and norms) are sent plain. ``chosen``
    overrides this by name and must fit. A tensor that the compressing recipe does not fit is sent plain too.
    """

    shapes: Mapping[str, Shape]
    plain: Recipe
    compressed: Recipe
    chosen: Mapping[str, Recipe] = field(default_factory=dict[str, Recipe])
    seed: bytes = field(repr=False)
    """32 public bytes, from which masks, signs, hashes and initial codebooks are derived."""

    def __post_init__(self) -> None:
        require_seed(self.seed)
        if not self.shapes:
            raise InvalidParameters("a plan needs a model with at least one tensor")
        for name, shape in self.shapes.items():
            require_name(name)
            with named(name):
                require_shape(shape)
        if unknown := [name for name in self.chosen if name not in self.shapes]:
            raise InvalidParameters(f"recipes name {listed(unknown)}, which the model lacks; correct the names")
        for name, recipe in self.chosen.items():
            if not recipe.fits(self.shapes[name]):
                with named(name):
                    raise InvalidParameters(
                        f"{recipe} does not fit the shape {self.shapes[name]}; choose another recipe"
                    )
        object.__setattr__(self, "shapes", dict(self.shapes))
        object.__setattr__(self, "chosen", dict(self.chosen))

    def recipe(self, name: str) -> Recipe:
        shape = self.shapes[name]
        default = self.compressed if len(shape) > 1 and self.compressed.fits(shape) else self.plain
        return self.chosen.get(name, default)

    def parameters(
        self, *, epoch: int = 0, calibration: Calibration | None = None, previous: ModelUpdate | None = None
    ) -> ModelUpdate:
        """Return the public parameters of an epoch, ready to encode and decode.

        Args:
            calibration: a sample of every tensor; required for scales or codebooks.
            previous: the previous epoch's parameters, from which codebooks start; kept where the sample is zero.
        """
        if previous is not None and previous.epoch >= epoch:
            raise InvalidParameters(f"epoch {epoch} does not follow {previous.epoch}; number epochs consecutively")
        if calibration is not None:
            require_names(calibration.sample, tuple(self.shapes), "a sample")
        former = {} if previous is None else {tensor.name: tensor for tensor in previous.tensors}
        tensors = list[TensorScheme]()
        for name, shape in self.shapes.items():
            before = former.get(name)
            with named(name):
                place = PublicStream(seed=self.seed, round_number=epoch, tensor_name=name, shape=shape)
                sample = None if calibration is None else plain_tensor(calibration.sample[name], shape)
                usable = None if before is None or before.shape != shape else before.scheme
                scheme = self.recipe(name).make(place, sample, usable)
            tensors.append(TensorScheme(name=name, shape=shape, scheme=scheme))
        source = CalibrationSource.NONE if calibration is None else calibration.source
        return ModelUpdate(tensors=tuple(tensors), epoch=epoch, source=source)
