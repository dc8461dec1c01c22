"""The codecs of a run: recipes for tensors, sources of their scales, and schemes for whole updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from secagg.compression.byte_accounting import Accounting
from secagg.compression.cohort_bits import (
    MOST_OF_A_MATRIX,
    AutoRate,
    code_noise,
    code_within,
    deviations,
    kept_for,
    noisiest_matrix,
    places_for,
)
from secagg.compression.common import PublicStream
from secagg.compression.custom import CustomScheme, Factory, custom_factory
from secagg.compression.downlink import HeldModel, Sums
from secagg.compression.fixed_point import FixedPoint
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
    Rotated,
    TensorScheme,
    UpdatePlan,
    decode_parameters,
    downlink_bytes,
    encode_parameters,
)
from secagg.compression.model_update.codec import Shape
from secagg.compression.model_update.scales import (
    STATISTICS,
    ScaledCodebooks,
    encode_scales,
    kept_share,
    length,
    mean_statistics,
    reach,
    reaching_dither,
    reaching_quantizer,
    rotated_reach,
)
from secagg.compression.model_update.summed_values import UPDATE, PeakSum, peak_sum
from secagg.compression.peak import (
    LEAST_ALIKE,
    MOST_SUMMED_PLACES,
    NORM_LEVELS,
    KnownLengths,
    LevelCode,
    PeakCode,
    level_votes,
    norm_levels,
    voted,
)
from secagg.compression.product_quantization import ProductQuantization
from secagg.compression.random_pruning import exact_sparsity
from secagg.compression.rotation import Floats, Gains, JoinedRotation, Sketch, sketch_ring
from secagg.compression.scalar_quantization import Rounding, dithered_ring
from secagg.contract import Aggregate, LinearDecoder, Payload
from secagg.crypto.entropy import Coins
from secagg.errors import InternalError, InvalidParameters
from secagg.training.configuration import SECURE_SOURCES, CompressionSettings, Lengths, Rate, Scheme, Source
from secagg.training.parts import Update
from secagg.training.weights import Arrays, Weights

PLAIN_BITS: Final = 32
LEAST_CLIP: Final = 0.25


class TensorRecipes:
    """Recipes of all tensors."""

    def __init__(self, settings: CompressionSettings, shapes: Mapping[str, Shape], most_uploads: int) -> None:
        self.settings, self.shapes, self.most_uploads = settings, shapes, most_uploads
        self._chosen = dict[str, Recipe | None]()
        # Tensors with their own recipe; None for tensors sent plain.
        for entry in self.settings.layers:
            name, recipe = self._layer(entry)
            if name not in self.shapes:
                raise InvalidParameters(
                    f"compression.layers names {name!r}, but the model's tensors are {', '.join(self.shapes)}"
                )
            if recipe is not None and (len(self.shapes[name]) <= 1 or not recipe.fits(self.shapes[name])):
                raise InvalidParameters(
                    f"compression.layers gives {name!r} codebooks, but its shape {self.shapes[name]} has too few "
                    f"blocks; write {name}=plain, or use smaller blocks"
                )
            self._chosen[name] = recipe
        if self.settings.scheme is not Scheme.NONE and not self.compressed:
            raise InvalidParameters(
                f"compression.scheme {self.settings.scheme.value!r} fits no tensor of the model; use smaller blocks, "
                "another scheme, or none"
            )
        self._require_capacity()

    @cached_property
    def compressed(self) -> tuple[str, ...]:
        """The compressed tensors."""
        recipe = self._recipe(1.0)
        if recipe is None:
            return ()
        return tuple(name for name, shape in self.shapes.items() if self._is_compressed(name, shape, recipe))

    def _is_compressed(self, name: str, shape: Shape, recipe: Recipe) -> bool:
        if len(shape) <= 1:
            return self.settings.vector_bits > 0
        own = self._chosen.get(name, recipe)
        return own is not None and own.fits(shape)

    @property
    def plain(self) -> Plain:
        """Encoding of biases, norms, and tensors that are too small to compress."""
        # Even if the whole cohort is at the clip, the sum fits the ring.
        steps = ((1 << (PLAIN_BITS - 1)) - 1) // self.most_uploads
        return Plain(
            clip=float(steps >> self.settings.fraction_bits or Fraction(steps, 1 << self.settings.fraction_bits)),
            fraction_bits=self.settings.fraction_bits,
            modulus_bits=PLAIN_BITS,
        )

    def of(self, name: str, statistic: float) -> Recipe:
        if len(self.shapes[name]) <= 1:
            bits = self.settings.vector_bits
            return reaching_quantizer(statistic, bits, bits + (self.most_uploads - 1).bit_length())
        match own := self._chosen.get(name):
            case ScaledCodebooks():
                return replace(own, length=statistic)
            case Codebooks():
                return own
            case _:
                return self._recipe(statistic) or self.plain

    # --- Private --------------------------------------------------------------------------------------------------

    def _require_capacity(self) -> None:
        steps = ((1 << (PLAIN_BITS - 1)) - 1) // self.most_uploads
        if steps < LEAST_CLIP * (1 << self.settings.fraction_bits):
            raise InvalidParameters(
                f"a cohort of total weight {self.most_uploads} leaves 32-bit fixed point with "
                f"{self.settings.fraction_bits} fraction bits a range below {LEAST_CLIP}; lower "
                "compression.fraction_bits, or use a smaller cohort"
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
        if not self.settings.wrap and 1 << margin < self.most_uploads:
            raise InvalidParameters(
                f"the capacity of codes of {self.settings.bits} bits in a ring of {self.settings.modulus_bits} is a "
                f"total weight of {1 << margin}, but a round may reach {self.most_uploads}; raise "
                "compression.modulus_bits, lower compression.bits, or allow sums to leave the ring with "
                "compression.wrap = true"
            )

    def _require_room_for_rounding(self) -> None:
        due = dithered_ring(self.settings.bits, self.most_uploads, self.settings.fine_bits)
        if self.settings.modulus_bits < due:
            raise InvalidParameters(
                f"codes of {self.settings.bits} bits, rounded under the mask, need a ring of {due} bits for a total "
                f"weight of {self.most_uploads}; raise compression.modulus_bits to {due} or lower "
                "compression.bits"
            )

    def _codes(self, statistic: float) -> Recipe:
        settings, is_told = self.settings, self.settings.source is Source.STAT
        bits, ring, fine_bits = settings.bits, settings.modulus_bits, settings.fine_bits
        if fine_bits and is_told:
            return reaching_dither(statistic, bits, ring, fine_bits)
        if fine_bits:
            return Dithered(bits=bits, modulus_bits=ring, fine_bits=fine_bits)
        rounding = Rounding.STOCHASTIC if settings.stochastic else Rounding.NEAREST_EVEN
        weight = self.most_uploads if settings.wrap else None
        if is_told:
            return reaching_quantizer(statistic, bits, ring, rounding, weight)
        return Quantized(bits=bits, modulus_bits=ring, rounding=rounding, wrapping_weight=weight)

    def _layer(self, entry: str) -> tuple[str, Recipe | None]:
        name, _, text = entry.rpartition("=")
        if text == "plain":
            return name, None
        codewords, slash, block_size = text.partition("/")
        if not name or not slash or not codewords.isdecimal() or not block_size.isdecimal():
            raise InvalidParameters(f'compression.layers entries must be "name=codewords/block_size"; got {entry!r}')
        recipe = self._product(1.0, int(codewords), int(block_size))
        return name, replace(recipe, is_capped=False) if isinstance(recipe, ScaledCodebooks) else recipe

    def _recipe(self, statistic: float) -> Recipe | None:
        """Return a tensor's recipe, given clients' statistics of it, if any."""
        settings = self.settings
        match settings.scheme:
            case Scheme.NONE:
                return None
            case Scheme.SCALAR:
                inner = self._codes(statistic)
                return Rotated(block_size=settings.rotation, inner=inner) if settings.rotation else inner
            case Scheme.PRUNING:
                return Pruned(sparsity=exact_sparsity(settings.sparsity), inner=self.plain)
            case Scheme.PRODUCT:
                return self._product(statistic, settings.codewords, settings.block_size)
            case _:
                raise InvalidParameters(f"{settings.scheme.value!r} is a scheme for the whole update, not for tensors")

    def _product(self, statistic: float, codewords: int, block_size: int) -> Recipe:
        stages = self.settings.stages
        if self.settings.source is Source.PRIOR:
            return ScaledCodebooks(length=statistic, codewords=codewords, block_size=block_size, stages=stages)
        return Codebooks(block_size=block_size, codewords=codewords, stages=stages)


_LATE_SOURCES: Final = (*SECURE_SOURCES, Source.AGGREGATE)
"""Sources that have no data before the first round, so it is sent uncompressed."""
_SCALE_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCodec:
    """The codec of a round, and its cost to clients."""

    update: ModelUpdate
    is_compressed: bool
    """False in a first round without scales or codebooks, unless nothing is compressed anyway."""
    broadcast_bytes: int
    """Bytes that a client receives for the codec in this round."""
    paper_broadcast_bytes: int


@dataclass(slots=True)
class Operators:
    """The codecs of a run, renewed every few rounds."""

    settings: CompressionSettings
    shapes: Mapping[str, Shape]
    seed: bytes
    """32 public bytes of the run."""
    most_uploads: int
    weights: Weights = field(default_factory=Weights)
    current: ModelUpdate | None = field(default=None, init=False)
    warning: None = field(default=None, init=False)
    """Advice on settings; None, because these codes reveal nothing to base it on."""
    _statistics: list[float] | None = field(default=None, init=False)
    _previous_mean: dict[str, npt.NDArray[Any]] | None = field(default=None, init=False)
    recipes: TensorRecipes = field(init=False)

    def __post_init__(self) -> None:
        self.recipes = TensorRecipes(self.settings, self.shapes, self.most_uploads)

    def epoch(self, round_number: int) -> int:
        """Return the number of renewals up to a round; rounds count from 0."""
        period = self.settings.refresh
        if self.settings.scheme is Scheme.NONE:
            return 0
        if self.settings.source in _LATE_SOURCES:
            return 0 if round_number == 0 else 1 + (round_number - 1) // period
        return round_number // period

    def begin(self, round_number: int, sample: Callable[[], Update]) -> RoundCodec:
        """Return the codec of a round, renewed if the round needs it.

        Args:
            sample: trains a client outside the round, or on public data; called only if the source needs it.
        """
        epoch = self.epoch(round_number)
        is_fresh = self.current is None or (self.current.epoch != epoch and self._is_informed)
        if is_fresh:
            self.current = self.weights.with_counts(self._made(epoch, sample), self.most_uploads)
        codec = self.codec
        wire, paper = self._broadcast(codec)
        return RoundCodec(
            update=codec,
            is_compressed=self.settings.scheme is Scheme.NONE
            or any(not isinstance(tensor.scheme, FixedPoint) for tensor in codec.tensors),
            broadcast_bytes=wire if is_fresh else 0,
            paper_broadcast_bytes=paper if is_fresh else 0,
        )

    @property
    def _is_informed(self) -> bool:
        """Whether there is data to calibrate on; after a failed first round, for instance, there is none."""
        match self.settings.source:
            case Source.STAT | Source.PRIOR:
                return self._statistics is not None
            case Source.AGGREGATE:
                return self._previous_mean is not None
            case _:
                return True

    def planned(self) -> ModelUpdate:
        """Return a codec with the layout of the run's codecs, to check a run before it begins."""
        shapes = self._sent_shapes
        chosen = {
            name: ScaledCodebooks(length=1.0, codewords=own.codewords, block_size=own.block_size, stages=own.stages)
            if isinstance(own := self.recipes.of(name, 1.0), Codebooks)
            else own
            for name in self.recipes.compressed
        }
        plan = UpdatePlan(
            shapes=shapes, plain=self.recipes.plain, compressed=self.recipes.plain, chosen=chosen, seed=self.seed
        )
        sample = {name: np.broadcast_to(np.float32(1), shape) for name, shape in shapes.items()}
        made = plan.parameters(calibration=Calibration(CalibrationSource.PUBLIC_BATCH, sample))
        return self.weights.with_counts(made, self.most_uploads)

    @property
    def _sent_shapes(self) -> dict[str, Shape]:
        shapes = dict(self.shapes)
        if self.settings.source in SECURE_SOURCES:
            shapes[STATISTICS] = (len(self.recipes.compressed),)
        return shapes

    @property
    def codec(self) -> ModelUpdate:
        if self.current is None:
            raise InvalidParameters("no round has begun; call begin() first")
        return self.current

    def encode(self, update: Update, coins: Coins, examples: int = 1) -> Payload:
        return self.weights.encode(self.codec, self.with_statistics(update), examples, coins)

    def with_statistics(self, update: Update) -> Arrays:
        """Return the sent tensors: the update, and the client's statistics of it."""
        if self.settings.source not in SECURE_SOURCES:
            return update
        measure = length
        if self.settings.source is Source.STAT:
            measure = rotated_reach if self.settings.rotation else reach
        statistics = np.array(
            [(reach if update[name].ndim <= 1 else measure)(update[name]) for name in self.recipes.compressed],
            dtype=np.float32,
        )
        return {**update, STATISTICS: statistics}

    def decode(self, aggregate: Aggregate) -> dict[str, npt.NDArray[np.float32]]:
        """Return the mean update, and keep its statistics for the next codec."""
        mean = dict(self.weights.mean(self.codec, aggregate))
        if self.settings.is_lengthened:
            for tensor in self.codec.tensors:
                if isinstance(tensor.scheme, ProductQuantization):
                    books = tensor.scheme.codebooks
                    kept = kept_share(books[0].codewords, tensor.scheme.block_size, len(books))
                    mean[tensor.name] = mean[tensor.name] / kept
        if self.settings.source in SECURE_SOURCES:
            self._statistics = mean_statistics(mean)
        if self.settings.source is Source.AGGREGATE:
            self._previous_mean = {name: mean[name] for name in self.shapes}
        return {name: mean[name].astype(np.float32) for name in self.shapes}

    # --- Storing --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, npt.NDArray[Any]]:
        stored = dict[str, npt.NDArray[Any]]()
        if self.current is not None:
            stored["codec"] = np.frombuffer(encode_parameters(self.current), dtype=np.uint8)
        if self._statistics is not None:
            stored["statistics"] = np.array(self._statistics, dtype=np.float32)
        for name, value in (self._previous_mean or {}).items():
            stored[f"previous/{name}"] = value
        return stored

    def restore(self, stored: Mapping[str, npt.NDArray[Any]]) -> None:
        if "codec" in stored:
            self.current = decode_parameters(stored["codec"].tobytes())
        if "statistics" in stored:
            self._statistics = [float(value) for value in stored["statistics"]]
        previous = {name[len("previous/") :]: stored[name] for name in stored if name.startswith("previous/")}
        self._previous_mean = previous or None

    # --- Private --------------------------------------------------------------------------------------------------

    def _made(self, epoch: int, sample: Callable[[], Update]) -> ModelUpdate:
        source = self.settings.source
        is_first = source in _LATE_SOURCES and not self._is_informed
        names = () if is_first else self.recipes.compressed
        shapes, plain = self._sent_shapes, self.recipes.plain
        known = self._statistics if source in SECURE_SOURCES else None
        chosen = {
            name: self.recipes.of(name, 1.0 if known is None else known[position])
            for position, name in enumerate(names)
        }
        plan = UpdatePlan(shapes=shapes, plain=plain, compressed=plain, chosen=chosen, seed=self.seed)
        if is_first or source in {None, *SECURE_SOURCES}:
            made = plan.parameters(epoch=epoch)
            if is_first or source is None:
                return made
            return ModelUpdate(tensors=made.tensors, epoch=made.epoch, source=CalibrationSource.PREVIOUS_AGGREGATE)
        previous = self.current if self.current is not None and self.current.epoch < epoch else None
        return plan.parameters(epoch=epoch, calibration=self._calibration(sample), previous=previous)

    def _calibration(self, sample: Callable[[], Update]) -> Calibration:
        match self.settings.source:
            case Source.AGGREGATE if self._previous_mean is not None:
                return Calibration(CalibrationSource.PREVIOUS_AGGREGATE, self._previous_mean)
            case Source.PUBLIC:
                return Calibration(CalibrationSource.PUBLIC_BATCH, sample())
            case Source.MOCK:
                return Calibration(CalibrationSource.LEAKY_MOCK_CLIENT, sample())
            case _:
                raise InternalError("a source of scales and codebooks has no statistics")

    def _broadcast(self, codec: ModelUpdate) -> tuple[int, int]:
        if self.settings.source in SECURE_SOURCES:
            scales = self._statistics if codec.epoch and self._statistics else []
            return len(encode_scales(codec.epoch, scales)), _SCALE_BYTES * len(scales)
        return len(encode_parameters(codec)), downlink_bytes(codec, Accounting.PAPER)


NORMS: Final = "secagg/norms"
"""Name of the clients' lengths in an update."""
LOSSES: Final = "secagg/losses"
"""Name of the clients' losses in an update: at the model, and with noise added and subtracted."""
_LOSSES: Final = 3
_FRACTION_BITS: Final = 20
_NINE_OF_TEN: Final = 0.9
_NEARLY: Final = 0.9
"""Share of the longest length; if the mean is above it, almost all clients are."""

Vector = npt.NDArray[np.float32]


@dataclass(slots=True)
class WholeUpdates:
    """The codecs of a run, one for each round; replaces ``Operators`` for whole updates."""

    settings: CompressionSettings
    shapes: Mapping[str, Shape]
    seed: bytes
    """32 public bytes of the run."""
    most_uploads: int
    cohort: int
    """Number of clients of a sum, which determines the rate."""
    made_by: Factory | None = None
    """Makes the scheme of each round, unless it is a peak code or sketch."""
    current: ModelUpdate | None = field(default=None, init=False)
    warning: str | None = field(default=None, init=False)
    """Advice on settings, from the last decoded round."""
    _known: KnownLengths = field(init=False)
    _round: int = field(default=0, init=False)
    _length: float = field(default=1.0, init=False)
    """Length of the updates in the last decoded round."""
    _auto: AutoRate | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.settings.rate is Rate.AUTO:
            self._auto = AutoRate(self.cohort, self.settings.harm)
        if self.settings.scheme is Scheme.CUSTOM:
            self.made_by = custom_factory(self.settings.custom)
        self._known = KnownLengths(sizes=self._sizes)
        self._made(0)

    @property
    def values(self) -> int:
        return sum(self._sizes)

    def begin(self, round_number: int, sample: Callable[[], Update]) -> RoundCodec:  # noqa: ARG002 -- as in Operators
        """Return the codec of a round; no update is used to calibrate it."""
        self._round = round_number
        self.current = self._made(round_number)
        told = [] if self._known.common is None else [self._known.common]
        if round_number % self.settings.refresh == min(1, self.settings.refresh - 1):
            told += self._known.tensors or ()
        return RoundCodec(
            update=self.current,
            is_compressed=True,
            broadcast_bytes=len(encode_scales(round_number, told)),
            paper_broadcast_bytes=_SCALE_BYTES * len(told),
        )

    def planned(self) -> ModelUpdate:
        return self._made(0)

    @property
    def codec(self) -> ModelUpdate:
        if self.current is None:
            raise InvalidParameters("no round has begun; call begin() first")
        return self.current

    @property
    def is_probed(self) -> bool:
        """Whether clients report their losses in the current round."""
        return self._auto is not None and any(tensor.name == LOSSES for tensor in self.codec.tensors)

    @property
    def noise(self) -> float | None:
        """Noise of the current code, in units of one client's energy; None if unknown."""
        code: object = self.codec.tensors[0].scheme
        return code_noise(code, self.cohort) if isinstance(code, PeakCode | LevelCode) else None

    def deviations(self, length: float | None = None) -> dict[str, float]:
        """Return the deviation of the code's noise in each tensor, from public values; none before they are known.

        Args:
            length: length of the updates; by default that of earlier rounds.
        """
        if length is None:
            length = self.settings.length if self._is_fixed else self._known.common
        code: object = self.codec.tensors[0].scheme
        if not isinstance(code, PeakCode | LevelCode) or length is None:
            return {}
        return dict(zip(self.shapes, deviations(code, self.cohort, length), strict=True))

    def encode(self, update: Update, coins: Coins, losses: Vector | None = None) -> Payload:
        """Encode one client's update with its lengths, and with its losses in rounds that ask for them."""
        told = {UPDATE: self._joined(update)} | ({LOSSES: losses} if losses is not None else {})
        vector = told[UPDATE]
        if self.made_by is not None or self._is_fixed:
            return self.codec.encode(told, coins)
        is_refreshed = self._is_refreshed(self._round)
        relative = self._known.told(self._rotation(self._round), vector, with_tensors=is_refreshed)
        norms = self._known.votes(relative) if self._has_votes else relative[:, np.newaxis]
        payload = self.codec.encode(told | {NORMS: norms.astype(np.float32)}, coins)
        longest = self._longest
        return payload if longest is None else voted(payload, self._rotation(self._round).norm(vector) / longest, coins)

    def decode(self, aggregate: Aggregate) -> dict[str, Vector]:
        mean = self.codec.mean(aggregate)
        vector = mean[UPDATE].astype(np.float32)
        if self._auto is not None and LOSSES in mean and self.noise:
            first, added, taken = mean[LOSSES].tolist()
            self._auto = self._auto.after((first, added, taken), self.noise)
        self._length = self.settings.length if self._is_fixed else 1.0
        if not self._is_fixed and self.made_by is None:
            told = mean[NORMS].astype(np.float64)
            share = _NINE_OF_TEN if self.settings.told is Lengths.VOTED else 0.5
            relative = self._known.middle(told, share) if self._has_votes else told[:, 0]
            self.warning = self._warning(float(relative[0])) or (self._bias(told[0]) if self._has_votes else None)
            longest, rotation = self._longest, self._rotation(self._round)
            if longest is None and self._has_votes:
                longest, _ = self._known.after(self._known.middle(told), rotation)
            length, self._known = self._known.after(relative, rotation)
            self._length = length if longest is None else longest
        vector *= np.float32(self._length)
        return self.parted(vector)

    def held(self, parameters: Update) -> HeldModel:
        """Return the initial model as clients hold it under a compressed downlink."""
        vector = self._joined(parameters)
        return HeldModel.rounded(vector, seed=self.seed, name=UPDATE, sizes=self._sizes, round_number=0)

    def signs(self, aggregate: Aggregate) -> PeakSum:
        return peak_sum(self.codec, aggregate, self._length)

    # --- Storing --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, npt.NDArray[Any]]:
        stored = dict[str, npt.NDArray[Any]]()
        if self._known.common is not None:
            stored["common"] = np.array([self._known.common])
        if self._known.tensors is not None:
            stored["norms"] = np.array(self._known.tensors)
        if self._auto is not None and self._auto.slope is not None:
            stored["slope"] = np.array([self._auto.slope])
        return stored

    def restore(self, stored: Mapping[str, npt.NDArray[Any]]) -> None:
        self._known = KnownLengths(
            sizes=self._sizes,
            common=float(stored["common"][0]) if "common" in stored else None,
            tensors=tuple(stored["norms"].tolist()) if "norms" in stored else None,
        )
        if self._auto is not None and "slope" in stored:
            self._auto = replace(self._auto, slope=float(stored["slope"][0]))

    # --- Private --------------------------------------------------------------------------------------------------

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(math.prod(shape) for shape in self.shapes.values())

    @property
    def _has_votes(self) -> bool:
        return self.settings.told in {Lengths.MEDIAN, Lengths.VOTED}

    @property
    def _longest(self) -> float | None:
        """Decoded length of an update that draws no blocks at random; None if all updates get one length."""
        return self._known.common if self.settings.told is Lengths.VOTED else None

    @property
    def _is_fixed(self) -> bool:
        """Whether clients report only their updates."""
        return self.settings.told is Lengths.FIXED and self.made_by is None

    def _is_refreshed(self, round_number: int) -> bool:
        return round_number % self.settings.refresh == 0 or self._known.tensors is None

    def _stream(self, round_number: int) -> PublicStream:
        return PublicStream(seed=self.seed, round_number=round_number, tensor_name=UPDATE, shape=(self.values,))

    def _rotation(self, round_number: int) -> JoinedRotation:
        current = self.current
        if current is not None and current.epoch == round_number:
            scheme = current.tensors[0].scheme
            return cast("PeakCode | LevelCode | Sketch", scheme).rotation
        return self._known.rotation(self._stream(round_number))

    def _made(self, round_number: int) -> ModelUpdate:
        shape = (self.values,)
        if self.made_by is not None:
            given: dict[str, Any] = {
                "values": self.values,
                "cohort": self.most_uploads,
                "seed": self.seed,
                "epoch": round_number,
            }
            named = self.settings.custom
            scheme = CustomScheme(name=named, factory=self.made_by, **given) if named else self.made_by(**given)
            return ModelUpdate(tensors=(TensorScheme(name=UPDATE, shape=shape, scheme=scheme),), epoch=round_number)
        tensors = [TensorScheme(name=UPDATE, shape=shape, scheme=self._direction(round_number))]
        if not self._is_fixed:
            count = 1 + len(self.shapes) * self._is_refreshed(round_number)
            columns = NORM_LEVELS if self._has_votes else 1
            tensors.append(TensorScheme(name=NORMS, shape=(count, columns), scheme=self._norms(count)))
        if self._auto is not None and AutoRate.is_probed(round_number) and (self._is_fixed or self._known.is_informed):
            tensors.append(TensorScheme(name=LOSSES, shape=(_LOSSES,), scheme=self._plain(_LOSSES)))
        return ModelUpdate(
            tensors=tuple(tensors),
            epoch=round_number,
            source=CalibrationSource.NONE if self._known.common is None else CalibrationSource.PREVIOUS_AGGREGATE,
        )

    def _direction(self, round_number: int) -> LinearDecoder[Any]:
        settings, rotation = self.settings, self._rotation(round_number)
        if self._auto is not None:
            return code_within(rotation, self.cohort, self._auto.noise(round_number))
        if settings.scheme is Scheme.PEAK:
            places = settings.places or min(places_for(self.cohort, settings.cohort_bits), MOST_SUMMED_PLACES)
            return PeakCode(rotation=rotation, places=places)
        bits = settings.bits
        kept = settings.kept or kept_for(self.values, self.cohort, settings.cohort_bits, bits)
        ring = sketch_ring(bits, self.most_uploads)
        return Sketch(rotation=rotation, kept=kept, bits=bits, modulus_bits=ring)

    def noise_warning(self, parameters: Arrays, rate: float = 1.0) -> str | None:
        """Warn if a round's noise, scaled by the server's rate, is large for a matrix and its harm is not probed."""
        if self._auto is not None:
            return None
        noise = {name: rate * deviation for name, deviation in self.deviations(self._length).items()}
        name, share = noisiest_matrix(parameters, noise)
        if share <= MOST_OF_A_MATRIX:
            return None
        return (
            f"a round's noise is {share:.2g} of the squared length of {name}; models lost accuracy above "
            f"{MOST_OF_A_MATRIX}: set compression.rate = 'auto', or raise compression.cohort_bits"
        )

    def _warning(self, relative: float) -> str | None:
        """Warn that updates are longer than the levels: the median, or nearly all if a mean is reported."""
        scheme = self.codec.tensors[1].scheme
        longest = scheme.clip if isinstance(scheme, FixedPoint) else self._known.longest
        if relative < longest * (1.0 if self._has_votes else _NEARLY):
            return None
        known = " times those of the rounds before" if self._known.is_informed else ""
        return (
            f"clients' updates are longer than they can report, {longest:.3g}{known}, so the model moves less than "
            "it should until lengths catch up; avoid rounds without training, such as a warm-up, lower local.rate, "
            "or set compression.lengths = 'fixed' and compression.length"
        )

    def _bias(self, shares: Vector) -> str | None:
        """Warn that lengths differ so much that the mean direction times one length is not the mean."""
        alike = self._known.alike(shares)
        if self._longest is not None or alike >= LEAST_ALIKE:
            return None
        return (
            f"clients' updates differ in length: the squared mean is {alike:.2f} of the mean square, so in a mean "
            "of directions times one length, short updates count too much: set compression.lengths = 'voted', or "
            "train clients alike"
        )

    def _norms(self, count: int) -> LinearDecoder[Any]:
        if self._has_votes:
            return level_votes(count)
        if self.settings.scheme is Scheme.PEAK:
            return norm_levels(count, references=self._known.is_informed)
        return self._plain(count)

    def _plain(self, count: int) -> FixedPoint:
        steps = ((1 << (PLAIN_BITS - 1)) - 1) // self.most_uploads
        return FixedPoint(
            length=count, clip=math.ldexp(steps, -_FRACTION_BITS), fraction_bits=_FRACTION_BITS, modulus_bits=PLAIN_BITS
        )

    def _joined(self, update: Update) -> Vector:
        parts = [np.asarray(update[name], dtype=np.float32).reshape(-1) for name in self.shapes]
        return np.concatenate(parts)

    def parted(self, vector: Vector) -> dict[str, Vector]:
        edges = np.cumsum(self._sizes)[:-1].tolist()
        parts = zip(self.shapes.items(), np.split(vector, edges), strict=True)
        return {name: part.reshape(shape) for (name, shape), part in parts}


# --- Compressed downlink ----------------------------------------------------------------------------------------------


class DownlinkSums:
    """The model that server and clients hold, and the round since which each client has held it.

    A client receives the sums since its last round, or the model if that is shorter. The server decodes its own next
    model from the message that it sends.
    """

    def __init__(self, model: HeldModel, rounds: Iterable[Sequence[int]] = (), sizes: Sequence[int] = ()) -> None:
        """Start a run, or continue one.

        Args:
            rounds: clients of each round so far.
            sizes: bytes of the sums of these rounds.
        """
        self.model = model
        self._sizes = list(sizes)
        self._last = dict[int, int]()
        for number, clients in enumerate(rounds):
            self.seen(number, clients)

    def seen(self, number: int, clients: Sequence[int]) -> None:
        """Record that these clients hold the model that a round began with."""
        self._last.update(dict.fromkeys(clients, number))

    def model_bytes(self, clients: Sequence[int]) -> float:
        """Return the average bytes that a client of the next round receives instead of the model."""
        # An absent client may also have missed tensors' lengths.
        whole = len(self.model.encode()) + _SCALE_BYTES * len(self.model.sizes)
        sums = [sum(self._sizes[self._last[one] :]) if one in self._last else whole for one in clients]
        return sum(min(whole, told) for told in sums) / max(1, len(clients))

    def tell(self, number: int, sums: Sums, rotation: JoinedRotation, gains: Gains) -> Floats:
        _, message = self.model.advanced(number, sums, rotation.scales, gains)
        self._sizes.append(len(message))
        self.model = self.model.after(message)
        return self.model.values

    def skip(self) -> None:
        """Record a round that released nothing."""
        self._sizes.append(0)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return {"model": np.frombuffer(self.model.encode(), np.uint8), "sizes": np.array(self._sizes, np.int64)}

    @classmethod
    def restored(
        cls, stored: Mapping[str, npt.NDArray[Any]], like: HeldModel, rounds: Iterable[Sequence[int]]
    ) -> DownlinkSums:
        model = HeldModel.decode(stored["model"].tobytes(), seed=like.seed, name=like.name, sizes=like.sizes)
        return cls(model, rounds, stored["sizes"].tolist())
