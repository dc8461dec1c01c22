"""How each tensor of a model is compressed, as the settings have it; and that it can be, before anything is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import Final

from secagg.compression.dithered_quantization import dithered_ring
from secagg.compression.model_update import Codebooks, Dithered, Plain, Pruned, Quantized, Recipe, Rotated
from secagg.compression.model_update.tensors import Shape
from secagg.compression.model_update.told_scales import ReachingDither, ReachingQuantizer, ScaledCodebooks
from secagg.compression.random_pruning import exact_sparsity
from secagg.compression.scalar_quantization import Rounding
from secagg.errors import InvalidParameters
from secagg.training.settings.sections import CompressionSettings, Scheme, Source

PLAIN_BITS: Final = 32
LEAST_CLIP: Final = 0.25


class TensorRecipes:
    """What is done with every tensor."""

    def __init__(self, settings: CompressionSettings, shapes: Mapping[str, Shape], maximum_total_weight: int) -> None:
        """Choose for every tensor.

        Raises:
            InvalidParameters: a scheme does not fit a layer, or a cohort does not fit a ring.
        """
        self.settings, self.shapes, self.maximum_total_weight = settings, shapes, maximum_total_weight
        self._chosen = dict[str, Recipe | None]()
        # Tensors with a recipe of their own; None for those that are sent plain.
        for entry in self.settings.layers:
            name, recipe = self._layer(entry)
            if name not in self.shapes:
                raise InvalidParameters(
                    f"compression.layers names {name!r}, and the model has {', '.join(self.shapes)}"
                )
            if recipe is not None and (len(self.shapes[name]) <= 1 or not recipe.fits(self.shapes[name])):
                raise InvalidParameters(
                    f"compression.layers gives {name!r} codebooks, and its shape {self.shapes[name]} has "
                    f"too few blocks; write {name}=plain, or take smaller blocks"
                )
            self._chosen[name] = recipe
        if self.settings.scheme is not Scheme.NONE and not self.compressed:
            raise InvalidParameters(
                f"compression.scheme {self.settings.scheme.value!r} fits no tensor of the model; take smaller blocks, "
                "another scheme, or none"
            )
        self._require_capacity()

    @cached_property
    def compressed(self) -> tuple[str, ...]:
        """The tensors that are not sent plain."""
        recipe = self._recipe(1.0)
        return tuple(
            name
            for name, shape in self.shapes.items()
            if recipe is not None
            and (
                self.settings.vector_bits > 0
                if len(shape) <= 1
                else (self._chosen.get(name, recipe) or _NOTHING).fits(shape)
            )
        )

    @property
    def plain(self) -> Plain:
        """How biases and norms are sent, and whatever is too small to be compressed."""
        # No sum of a cohort at the clip leaves the ring.
        steps = ((1 << (PLAIN_BITS - 1)) - 1) // self.maximum_total_weight
        return Plain(
            clip=float(steps >> self.settings.fraction_bits or Fraction(steps, 1 << self.settings.fraction_bits)),
            fraction_bits=self.settings.fraction_bits,
            modulus_bits=PLAIN_BITS,
        )

    def of(self, name: str, statistic: float) -> Recipe:
        """Return how one tensor is compressed, given what the clients told of it."""
        if len(self.shapes[name]) <= 1:
            bits = self.settings.vector_bits
            return ReachingQuantizer(
                reach=statistic,
                bits=bits,
                modulus_bits=bits + (self.maximum_total_weight - 1).bit_length(),
                rounding=Rounding.NEAREST_EVEN,
                wrapping_weight=None,
            )
        match own := self._chosen.get(name):
            case ScaledCodebooks():
                return replace(own, length=statistic)
            case Codebooks():
                return own
            case _:
                return self._recipe(statistic) or self.plain

    # --- Private --------------------------------------------------------------------------------------------------

    def _require_capacity(self) -> None:
        steps = ((1 << (PLAIN_BITS - 1)) - 1) // self.maximum_total_weight
        if steps < LEAST_CLIP * (1 << self.settings.fraction_bits):
            raise InvalidParameters(
                f"a cohort of total weight {self.maximum_total_weight} leaves fixed point of 32 bits with "
                f"{self.settings.fraction_bits} fraction bits a range below {LEAST_CLIP}; lower "
                "compression.fraction_bits, or take a smaller cohort"
            )
        if not self.settings.has_codes:
            return
        if self.settings.fine_bits:
            self._require_room_for_rounding()
            return
        margin = self.settings.modulus_bits - self.settings.bits
        if margin < 0:
            raise InvalidParameters(
                f"codes of {self.settings.bits} bits do not fit a ring of {self.settings.modulus_bits}; raise "
                "compression.modulus_bits"
            )
        if not self.settings.wrap and 1 << margin < self.maximum_total_weight:
            raise InvalidParameters(
                f"the capacity of codes of {self.settings.bits} bits in a ring of {self.settings.modulus_bits} is a "
                f"total weight of {1 << margin}, and a round may reach {self.maximum_total_weight}; raise "
                "compression.modulus_bits, lower compression.bits, or allow sums to leave the ring with "
                "compression.wrap = true"
            )

    def _require_room_for_rounding(self) -> None:
        due = dithered_ring(self.settings.bits, self.maximum_total_weight, self.settings.fine_bits)
        if self.settings.modulus_bits < due:
            raise InvalidParameters(
                f"codes of {self.settings.bits} bits, rounded under the mask, need a ring of {due} bits for a total "
                f"weight of {self.maximum_total_weight}; raise compression.modulus_bits to {due} or lower "
                "compression.bits"
            )

    def _codes(self, statistic: float) -> Recipe:
        settings = self.settings
        if settings.fine_bits:
            return self._dithered(statistic)
        rounding = Rounding.STOCHASTIC if settings.stochastic else Rounding.NEAREST_EVEN
        weight = self.maximum_total_weight if settings.wrap else None
        if settings.source is Source.STAT:
            return ReachingQuantizer(
                reach=statistic,
                bits=settings.bits,
                modulus_bits=settings.modulus_bits,
                rounding=rounding,
                wrapping_weight=weight,
            )
        return Quantized(
            bits=settings.bits,
            modulus_bits=settings.modulus_bits,
            per_channel=settings.per_channel,
            rounding=rounding,
            wrapping_weight=weight,
        )

    def _dithered(self, statistic: float) -> Recipe:
        bits, modulus_bits, fine_bits = self.settings.bits, self.settings.modulus_bits, self.settings.fine_bits
        if self.settings.source is Source.STAT:
            return ReachingDither(reach=statistic, bits=bits, modulus_bits=modulus_bits, fine_bits=fine_bits)
        return Dithered(bits=bits, modulus_bits=modulus_bits, fine_bits=fine_bits)

    def _layer(self, entry: str) -> tuple[str, Recipe | None]:
        name, _, text = entry.rpartition("=")
        if text == "plain":
            return name, None
        codewords, slash, block_size = text.partition("/")
        if not name or not slash or not codewords.isdecimal() or not block_size.isdecimal():
            raise InvalidParameters(f'an entry of compression.layers is "name=codewords/block_size"; got {entry!r}')
        recipe = self._product(1.0, int(codewords), int(block_size))
        return name, replace(recipe, is_capped=False) if isinstance(recipe, ScaledCodebooks) else recipe

    def _recipe(self, statistic: float) -> Recipe | None:
        """Return how a tensor is compressed, given what the clients told of it where they tell anything."""
        settings = self.settings
        match settings.scheme:
            case Scheme.NONE:
                return None
            case Scheme.SCALAR:
                inner = self._codes(statistic)
                return Rotated(block_size=settings.rotation, inner=inner) if settings.rotation else inner
            case Scheme.PRUNING:
                kept = self._codes(statistic) if settings.is_quantized else self.plain
                return Pruned(sparsity=exact_sparsity(settings.sparsity), inner=kept)
            case Scheme.PRODUCT:
                return self._product(statistic, settings.codewords, settings.block_size)
            case _:
                raise InvalidParameters(f"{settings.scheme.value!r} is a scheme for the whole update, not for tensors")

    def _product(self, statistic: float, codewords: int, block_size: int) -> Recipe:
        stages = self.settings.stages
        if self.settings.source is Source.PRIOR:
            return ScaledCodebooks(length=statistic, codewords=codewords, block_size=block_size, stages=stages)
        return Codebooks(block_size=block_size, codewords=codewords, stages=stages)


class _Nothing:
    def fits(self, shape: Shape) -> bool:  # noqa: ARG002 -- a recipe's
        return False


_NOTHING: Final = _Nothing()
