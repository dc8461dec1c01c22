"""Sections of a configuration, and the schemes that each setting belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

from secagg.compression.dithered_quantization import MOST_FINE_BITS
from secagg.compression.peak import MAXIMUM_PLACES
from secagg.errors import InvalidParameters
from secagg.session.registry import ProtocolEntry

_MOST_OVER: Final = 2.0


class Range(NamedTuple):
    """Annotates a key: the least and the greatest value that it takes."""

    least: float
    most: float


class Scheme(StrEnum):
    """What is done with the tensors of two or more dimensions; biases and norms are always sent in fixed point."""

    NONE = "none"
    SCALAR = "sq"
    PRUNING = "pruning"
    PRODUCT = "pq"
    PEAK = "peak"
    """The whole update as places and signs of peaks of its rotation."""
    SKETCH = "sketch"
    """The whole update as a few values of its rotation."""
    ROTATED = "rotated"
    """The whole update, clipped and rotated, as whole steps of a bounded norm: for noise that clients add."""
    OUTSIDE = "outside"
    """The whole update by a scheme that ``outside`` names."""


WHOLE_UPDATES: Final = (Scheme.PEAK, Scheme.SKETCH, Scheme.ROTATED, Scheme.OUTSIDE)
"""Schemes for the whole update as one vector; the others have one for every tensor."""
NOISY_SCHEMES: Final = (Scheme.PEAK, Scheme.SKETCH)
"""Those that add noise, without bias, as large as the mean itself."""


class Lengths(StrEnum):
    """How long decoded updates of peak code and sketch are taken to be."""

    OWN = "own"
    """The mean of what the clients of the round told."""
    COMMON = "common"
    """That of the round before, which no client of this one can change."""
    MEDIAN = "median"
    """The middle one of what the clients of the round told, from how many told each level: a few cannot move it far."""
    FIXED = "fixed"
    """``length``, always: nobody tells one."""


class Source(StrEnum):
    """Where scales and codebooks come from."""

    STAT = "stat"
    """Scales from the mean of what the clients' updates reach to, which they add to the secure sum."""
    PRIOR = "prior"
    """A codebook of no data, times the mean length of the clients' updates, which they add to the secure sum."""
    MOCK = "mock"
    """One more client's update in the clear, as the paper's code has it: a leak, for simulations alone."""
    PUBLIC = "public"
    """The update of the model on public data."""
    AGGREGATE = "agg"
    """The mean of the round before, which the paper offers. It is unstable: codes saturate and codebooks collapse."""


SECURE_SOURCES: Final = (Source.STAT, Source.PRIOR)
"""Those that know the clients by secure sums alone."""


class SumMode(StrEnum):
    """Whether the protocol really runs."""

    REAL = "real"
    IDEAL = "ideal"


class Optimizer(StrEnum):
    """What the server does with the mean."""

    FEDAVG = "fedavg"
    FEDAVGM = "fedavgm"
    FEDADAM = "fedadam"


class AttackKind(StrEnum):
    """What dishonest clients send in place of their updates."""

    NONE = "none"
    SIGN_FLIP = "sign-flip"
    FLIP_TENFOLD = "flip-x10"
    SCALE_TENFOLD = "scale-x10"
    INSIDE_SPREAD = "inside-spread"
    """The mean of the attackers' own updates less 1.5 of their standard deviations, value by value: none stands out."""
    LABEL_FLIP = "label-flip"
    """An honest update, of examples whose labels are turned round."""


class Weighting(StrEnum):
    """How often a client's update counts."""

    EQUAL = "equal"
    EXAMPLES = "examples"
    """In proportion to its examples, as an integer weight that the protocol applies under its masks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """Which data, and how they are dealt out."""

    name: str = "fashion"
    root: str | None = None
    """The folder or file of data that are not bundled."""
    clients: Annotated[int, Range(0, 10**7)] = 200
    """Among how many the examples are dealt out; of data with natural users the first so many, and 0 for all."""
    alpha: Annotated[float, Range(1e-6, 1e6)] = 1.0
    """Of the Dirichlet distribution of labels over clients; data with natural users have no use for it."""
    style: bool = False
    """Whether each client's images are altered in a way of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTraining:
    """How a client trains."""

    epochs: Annotated[int, Range(1, 10**4)] = 1
    batch: Annotated[int, Range(1, 10**6)] = 32
    rate: Annotated[float, Range(1e-12, 1e6)] = 0.1
    momentum: Annotated[float, Range(0, 1)] = 0.0
    weight_decay: Annotated[float, Range(0, 1e6)] = 0.0
    clip: Annotated[float | None, Range(1e-12, 1e12)] = None
    """The largest L2 norm of what a client changed, over all parameters; None for no limit."""
    proximal: Annotated[float, Range(0, 1e6)] = 0.0
    """FedProx's mu."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How the model moves by the decoded mean."""

    optimizer: Optimizer = Optimizer.FEDAVG
    rate: Annotated[float, Range(1e-12, 1e6)] = 1.0
    falling: Annotated[float, Range(0, 1)] = 0.0
    """The share of the rounds, the last ones, over which the rate falls to a twentieth; 0 for none."""
    averaged: Annotated[int, Range(0, 10**6)] = 0
    """Over how many rounds, about, the model is averaged that is tested and kept; 0 for the last one."""
    momentum: Annotated[float, Range(0, 1)] = 0.9
    """Of FedAvgM, and the first of FedAdam."""
    second_momentum: Annotated[float, Range(0, 1)] = 0.99
    adaptivity: Annotated[float, Range(1e-30, 1e6)] = 1e-3
    """What FedAdam adds to the root of the second moment."""
    weighting: Weighting = Weighting.EQUAL
    maximum_weight: Annotated[int, Range(1, 1 << 16)] = 8
    """With weights by examples: the weight of the largest client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionSettings:
    """How an update is sent."""

    scheme: Scheme = Scheme.NONE
    """Its name, or "module:Name" or "path/to/file.py:Name" for one from outside."""
    outside: str = ""
    """What ``scheme`` was set to, where that names a scheme from outside."""
    cohort_bits: Annotated[float, Range(1e-6, 1e6)] = 1.6
    """Bits for a value of peak code or sketch, of all clients of a round together: their blocks or values follow."""
    places: Annotated[int, Range(0, MAXIMUM_PLACES)] = 0
    """Values of a block of the peak code; 0 for as many as ``cohort_bits`` says."""
    kept: Annotated[int, Range(0, 1 << 40)] = 0
    """Values that a sketch sends, in ``bits`` bits; 0 for as many as ``cohort_bits`` says."""
    lengths: Lengths | None = None
    """By default ``median`` under the peak code, which few clients cannot move, and ``own`` under a sketch."""
    length: Annotated[float, Range(2.0**-40, 2.0**40)] = 1.0
    """With ``lengths = "fixed"``: how long every decoded update is taken to be."""
    bits: int = 6
    modulus_bits: int = 8
    wrap: bool = False
    """Whether sums may leave the ring, as they do in the paper wherever the margin is narrower than the cohort."""
    stochastic: bool = False
    """Whether scalar quantization rounds at random."""
    fine_bits: Annotated[int, Range(0, MOST_FINE_BITS)] = 0
    """Bits of a step below what is sent: scalar codes are rounded under the mask, where a protocol masks; 0 rounds
    them before."""
    sparsity: str = "0.9"
    is_quantized: bool = False
    """Under pruning: whether what is kept is sent as scalar codes of ``bits`` bits, not in fixed point."""
    per_channel: bool = False
    """Whether each first index of a tensor has a scale of its own; with the calibrations ``public``, ``mock``, ``agg``.
    """
    codewords: int = 64
    block_size: int = 4
    stages: Annotated[int, Range(1, 8)] = 1
    """How many codebooks, each for what those before it left over."""
    rotation: Annotated[int, Range(0, 1 << 20)] = 0
    """Values of a block that is rotated before scalar quantization, a power of two; 0 for none."""
    calibration: Source | None = None
    """By default ``stat`` for scalar and ``prior`` for product quantization."""
    refresh: Annotated[int, Range(1, 10**7)] = 1
    """Rounds from one set of scales, codebooks or masks to the next."""
    fraction_bits: Annotated[int, Range(1, 30)] = 20
    """Of what is sent in fixed point, in a ring of 32 bits; the range is what a cohort leaves."""
    layers: tuple[str, ...] = ()
    """Other codebooks for some tensors: "name=codewords/block_size", or "name=plain". Under ``prior`` there may be more
    codewords than a tensor of that size could teach."""
    is_lengthened: bool = False
    """Under ``prior``: whether decoded values are multiplied by what makes up for the energy that codewords lose."""
    vector_bits: Annotated[int, Range(0, 16)] = 0
    """Bits of biases and norms under ``stat`` and ``prior``, quantized in a ring that no cohort leaves; 0 sends them in
    fixed point of 32 bits, which may be half of a well compressed update."""

    @property
    def told(self) -> Lengths:
        """How lengths are told, once the default is filled in."""
        return self.lengths or (Lengths.MEDIAN if self.scheme is Scheme.PEAK else Lengths.OWN)

    @property
    def has_codes(self) -> bool:
        """Whether tensors are sent as scalar codes."""
        return self.scheme is Scheme.SCALAR or (self.scheme is Scheme.PRUNING and self.is_quantized)

    @property
    def source(self) -> Source | None:
        """Where scales and codebooks come from, once the default is filled in; None where there are none."""
        if self.has_codes:
            return self.calibration or Source.STAT
        return self.calibration or Source.PRIOR if self.scheme is Scheme.PRODUCT else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SumSettings:
    """Who adds up, and whether it is done for real."""

    protocol: str = "pairwise"
    """One that is registered."""
    mode: SumMode = SumMode.IDEAL
    every: Annotated[int, Range(1, 10**7)] = 1
    """In real mode: every how many rounds the protocol runs; the sums between are computed in the clear."""
    hybrid: bool = False
    """Whether keys are agreed upon in the hybrid suite."""
    settings: tuple[str, ...] = ()
    """The protocol's own settings: "name=value"."""
    threads: Annotated[int, Range(1, 1024)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DropoutSettings:
    """How many of the sampled clients are lost, and where."""

    rate: Annotated[float, Range(0, 0.95)] = 0.0
    stages: tuple[str, ...] = ()
    """Of the protocol, by name; by default the one that takes the updates and the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """When the model is tested."""

    every: Annotated[int, Range(1, 10**7)] = 5
    validation: Annotated[float, Range(0, 0.9)] = 0.5
    """The share of the test examples by which the best model is chosen; it is reported on the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsynchronousSettings:
    """FedBuff; off unless ``buffer`` is above 0."""

    buffer: Annotated[int, Range(0, 10**6)] = 0
    """How many updates a step of the server takes."""
    concurrency: Annotated[float, Range(1, 10**7)] = 40.0
    """How many clients are at work at a time, on average."""
    exponent: Annotated[float, Range(0, 1)] = 0.5
    """An update that is ``a`` steps old counts (1 + a)^-exponent."""
    maximum_staleness: Annotated[int, Range(0, 10**4)] = 20
    levels: Annotated[int, Range(1, 1 << 15)] = 16
    """The weight of a fresh update; older ones have integers below."""
    spread: Annotated[float, Range(0, 1e6)] = 1.0
    """The standard deviation of the half-normal part of a client's duration; its least duration is 1."""

    @property
    def age_weights(self) -> tuple[int, ...]:
        """How often an update counts by its age: ``levels`` (1 + age)^-exponent, as an integer of at least 1."""
        ages = range(self.maximum_staleness + 1)
        if self.exponent == 0:
            return (1,) * len(ages)
        return tuple(max(1, round(self.levels * (1 + age) ** -self.exponent)) for age in ages)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacySettings:
    """Noise of the enclave or of clients; off unless ``noise_multiplier`` is above 0. ``local.clip`` bounds updates."""

    noise_multiplier: Annotated[float, Range(0, 1e6)] = 0.0
    """The standard deviation of the noise, over what one client can change at most."""
    delta: Annotated[float, Range(1e-30, 0.5)] = 1e-6
    epsilon: Annotated[float, Range(0, 1e9)] = 0.0
    """What a run may cost the client that is in most of its rounds; 0 for no limit."""
    zero_out: bool = False
    """Whether a neighbour has zeros in place of a client's update, and not any other update."""

    @property
    def is_on(self) -> bool:
        """Whether noise is added."""
        return self.noise_multiplier > 0

    @property
    def noise_share(self) -> float:
        """The most variance that a ring has room for, over the square of a client's bound.

        Clients that are more than the fewest of a round, or honest where some are not, add up to twice what is due.
        """
        return _MOST_OVER * (self.noise_multiplier * (1 if self.zero_out else 2)) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackSettings:
    """What some clients of every round do instead; off unless ``kind`` says otherwise."""

    kind: AttackKind = AttackKind.NONE
    share: Annotated[float, Range(0, 1)] = 0.2
    """Of the clients that upload in a round, rounded to whole ones; who they are follows from the seed."""

    @property
    def is_on(self) -> bool:
        """Whether anybody attacks."""
        return self.kind is not AttackKind.NONE and self.share > 0


_CODES: Final = (Scheme.SCALAR, Scheme.PRUNING)
_BY_TENSOR: Final = (*_CODES, Scheme.PRODUCT)
_OF_CODES: Final = ("bits", "modulus_bits", "wrap", "stochastic", "calibration")
_BELONGING: Final[tuple[tuple[str, tuple[Scheme, ...]], ...]] = (
    ("cohort_bits", NOISY_SCHEMES),
    ("places", (Scheme.PEAK,)),
    ("kept", (Scheme.SKETCH,)),
    ("lengths", NOISY_SCHEMES),
    ("length", NOISY_SCHEMES),
    ("bits", (*_CODES, Scheme.SKETCH)),
    ("modulus_bits", (*_CODES, Scheme.ROTATED)),
    ("wrap", _CODES),
    ("stochastic", _CODES),
    ("sparsity", (Scheme.PRUNING,)),
    ("codewords", (Scheme.PRODUCT,)),
    ("block_size", (Scheme.PRODUCT,)),
    ("stages", (Scheme.PRODUCT,)),
    ("rotation", (Scheme.SCALAR,)),
    ("calibration", _BY_TENSOR),
    ("refresh", (*_BY_TENSOR, *NOISY_SCHEMES)),
    ("fraction_bits", (Scheme.NONE, *_BY_TENSOR, Scheme.ROTATED)),
    ("layers", _BY_TENSOR),
)
"""What some schemes alone read; others have a check of their own."""
_USUAL: Final = CompressionSettings()


def require_belonging(compression: CompressionSettings) -> None:
    """Refuse what was set and would be read by nobody; a complete file has the usual values of other schemes.

    Raises:
        InvalidParameters: saying which schemes it is for.
    """
    scheme = compression.scheme
    is_plain = scheme is Scheme.PRUNING and not compression.is_quantized
    for name, schemes in _BELONGING:
        value, usual = getattr(compression, name), getattr(_USUAL, name)
        if value == usual or (scheme in schemes and not (is_plain and name in _OF_CODES)):
            continue
        owners = "compression.is_quantized"
        if scheme not in schemes:
            owners = f"compression.scheme = {' or '.join(repr(one.value) for one in schemes)}"
        raise InvalidParameters(
            f"compression.{name} = {value} is for {owners}, and acts nowhere under {scheme.value!r}: "
            f"{'leave it out' if usual is None else f'take {usual}'}, or change the scheme"
        )
    if compression.length != _USUAL.length and compression.told is not Lengths.FIXED:
        raise InvalidParameters("compression.length is told by clients here: take compression.lengths = 'fixed'")
    if compression.cohort_bits != _USUAL.cohort_bits and (compression.places or compression.kept):
        raise InvalidParameters(
            "compression.cohort_bits says how many places or values there are: leave out compression.places and kept"
        )


def require_codes(compression: CompressionSettings, protocol: ProtocolEntry) -> None:
    """Refuse codes beside what they do not go together with.

    Raises:
        InvalidParameters: saying what to take instead.
    """
    if compression.calibration is Source.PRIOR and compression.has_codes:
        raise InvalidParameters("scalar quantization has no prior: take compression.calibration = 'stat'")
    if compression.is_quantized and compression.scheme is not Scheme.PRUNING:
        raise InvalidParameters(
            "compression.is_quantized is for what pruning keeps: take compression.scheme = 'pruning'"
        )
    if compression.rotation and compression.is_quantized:
        raise InvalidParameters("what pruning keeps is not rotated: take compression.rotation = 0")
    is_told = compression.source is Source.STAT or compression.fine_bits > 0 or compression.rotation > 0
    if compression.per_channel and (compression.scheme is not Scheme.SCALAR or is_told):
        raise InvalidParameters(
            "compression.per_channel takes scales from a sample of the tensors themselves: take compression.scheme = "
            "'sq' with the calibration 'public', 'mock' or 'agg', without rotation and fine_bits"
        )
    if compression.fine_bits:
        _require_rounding(compression, protocol)


def _require_rounding(compression: CompressionSettings, protocol: ProtocolEntry) -> None:
    for is_wrong, sentence in (
        (compression.scheme is not Scheme.SCALAR, "codes are scalar: take compression.scheme = 'sq'"),
        (compression.wrap, "sums keep to the ring: take compression.wrap = false"),
        (compression.stochastic, "the mask rounds at random already: take compression.stochastic = false"),
        (not protocol.rounds, f"{protocol.name} does not round: take secagg.protocol = 'pairwise'"),
    ):
        if is_wrong:
            raise InvalidParameters(f"compression.fine_bits is above 0, and {sentence}, or compression.fine_bits = 0")
