"""Which scheme for which tensor, and where its parameters come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from secagg.compression.public_stream import SEED_BYTES, PublicStream, require_shape
from secagg.errors import InvalidParameters, Misuse

from .codec import CalibrationSource, ModelUpdate
from .recipes import Recipe, Scheme
from .tensors import Shape, Tensors, TensorScheme, listed, named, plain_tensor, require_name, require_names


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """An update to take scales and codebooks from, and where it comes from.

    Security: scales and codebooks are broadcast, and tell much of the sample. That of a public batch is public, and a
        previous aggregate is known to whoever decoded it. A mock client's update is protected by nothing: its source is
        called a leak, and is part of the version of everything that is encoded under it.
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

    Tensors of more than one dimension are compressed, and the others, biases and norms, are sent plain; ``chosen`` says
    otherwise by name. Where the compressing recipe does not fit a tensor, it is sent plain as well; a chosen one has to
    fit.
    """

    shapes: Mapping[str, Shape]
    plain: Recipe
    compressed: Recipe
    chosen: Mapping[str, Recipe] = field(default_factory=dict[str, Recipe])
    seed: bytes = field(repr=False)
    """32 public bytes, from which masks, signs, hashes and the starts of codebooks are derived."""

    def __post_init__(self) -> None:
        if type(self.seed) is not bytes or len(self.seed) != SEED_BYTES:
            raise InvalidParameters(f"a public seed is {SEED_BYTES} bytes; draw one for each training run")
        if not self.shapes:
            raise InvalidParameters("a plan is for a model of at least one tensor")
        for name, shape in self.shapes.items():
            require_name(name)
            with named(name):
                require_shape(shape)
        if unknown := [name for name in self.chosen if name not in self.shapes]:
            raise InvalidParameters(f"recipes are chosen for {listed(unknown)}, which the model has not; correct them")
        for name, recipe in self.chosen.items():
            if not recipe.fits(self.shapes[name]):
                with named(name):
                    raise InvalidParameters(
                        f"{recipe} does not fit the shape {self.shapes[name]}; choose another recipe"
                    )
        object.__setattr__(self, "shapes", dict(self.shapes))
        object.__setattr__(self, "chosen", dict(self.chosen))

    def recipe(self, name: str) -> Recipe:
        """Return how a tensor is sent."""
        shape = self.shapes[name]
        default = self.compressed if len(shape) > 1 and self.compressed.fits(shape) else self.plain
        return self.chosen.get(name, default)

    def parameters(
        self, *, epoch: int = 0, calibration: Calibration | None = None, previous: ModelUpdate | None = None
    ) -> ModelUpdate:
        """Return the public parameters of an epoch, ready to encode and decode.

        Args:
            calibration: a sample of every tensor; needed where scales or codebooks are.
            previous: those of the epoch before: codebooks start from them, and what a sample says nothing of stays.

        Raises:
            Misuse: the sample lacks a tensor, has another one, or one of another shape.
            InvalidParameters: the epoch is not after the previous one, or a recipe and a sample do not go together; the
                message begins with the tensor's name.
        """
        if previous is not None and previous.epoch >= epoch:
            raise InvalidParameters(f"epoch {epoch} does not follow epoch {previous.epoch}; count on from there")
        if calibration is not None:
            require_names(calibration.sample, tuple(self.shapes), "a sample")
        former = {} if previous is None else {tensor.name: tensor for tensor in previous.tensors}
        tensors = list[TensorScheme]()
        for name, shape in self.shapes.items():
            before = former.get(name)
            with named(name):
                scheme = self._scheme(
                    PublicStream(seed=self.seed, round_number=epoch, tensor_name=name, shape=shape),
                    calibration,
                    None if before is None or before.shape != shape else before.scheme,
                )
            tensors.append(TensorScheme(name=name, shape=shape, scheme=scheme))
        source = CalibrationSource.NONE if calibration is None else calibration.source
        return ModelUpdate(tensors=tuple(tensors), epoch=epoch, source=source)

    def _scheme(self, place: PublicStream, calibration: Calibration | None, previous: Scheme | None) -> Scheme:
        sample = None
        if calibration is not None:
            sample = plain_tensor(calibration.sample[place.tensor_name], place.shape)
        return self.recipe(place.tensor_name).make(place, sample, previous)
