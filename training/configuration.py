"""Configuration of a run: read from TOML, changed by ``--set``, checked for consistency.

Every key has a default; a file lists the others. An unknown key is refused with the nearest known one. A run's folder
has its complete configuration as ``configuration.toml``, with the versions of its software.
"""

from __future__ import annotations

import difflib
import platform
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Final, cast, get_type_hints

from secagg.compression.peak import MAXIMUM_PLACES
from secagg.compression.random_pruning import exact_sparsity
from secagg.compression.rotation import MOST_BITS
from secagg.compression.scalar_quantization import MOST_FINE_BITS
from secagg.contract import IndexSegment
from secagg.errors import InvalidParameters
from secagg.options import Declared, Option, declared, spelled
from secagg.session.registry import ProtocolEntry, find

_MOST_OVER: Final = 2.0


def within(minimum: float, maximum: float) -> Option:
    """Return the limits of a key, for its annotation."""
    return Option(purpose="", minimum=minimum, maximum=maximum)


class Scheme(StrEnum):
    """Compression of the tensors of two or more dimensions; biases and norms are always sent in fixed point."""

    NONE = "none"
    SCALAR = "sq"
    PRUNING = "pruning"
    PRODUCT = "pq"
    PEAK = "peak"
    """The whole update as positions and signs of the peaks of its rotation."""
    SKETCH = "sketch"
    """The whole update as a few values of its rotation."""
    ROTATED = "rotated"
    """The whole update, clipped and rotated, as whole steps with a bounded norm: for noise that clients add."""
    CUSTOM = "custom"
    """The whole update by a scheme that ``custom`` names."""


WHOLE_UPDATES: Final = (Scheme.PEAK, Scheme.SKETCH, Scheme.ROTATED, Scheme.CUSTOM)
"""Schemes for the whole update as one vector; the others encode each tensor."""
NOISY_SCHEMES: Final = (Scheme.PEAK, Scheme.SKETCH)
"""Schemes that add unbiased noise about as large as the mean."""


class Lengths(StrEnum):
    """Length with which updates of peak code and sketch are decoded."""

    OWN = "own"
    """The mean of the clients' reported lengths."""
    MEDIAN = "median"
    """The median of the clients' reported lengths, from the votes for each level: a few clients cannot move it far."""
    VOTED = "voted"
    """A length that nine of ten clients did not exceed; shorter updates randomize a share of their blocks, so that the
    mean of updates of unequal lengths is unbiased."""
    FIXED = "fixed"
    """Always ``length``; clients report none."""


class Rate(StrEnum):
    """Choice of the bits of a peak code."""

    FIXED = "fixed"
    """``cohort_bits`` or ``places``, in every round."""
    AUTO = "auto"
    """By the noise's effect on the clients' losses, which they add to the secure sum every ten rounds."""


class Source(StrEnum):
    """Source of scales and codebooks."""

    STAT = "stat"
    """Scales from the mean of the updates' largest magnitudes, which clients add to the secure sum."""
    PRIOR = "prior"
    """A data-free codebook, times the mean length of the updates, which clients add to the secure sum."""
    MOCK = "mock"
    """One more client's update in the clear, as in the paper's code: a leak, only for simulations."""
    PUBLIC = "public"
    """The update of the model on public data."""
    AGGREGATE = "agg"
    """The previous round's mean, an option of the paper. Unstable: codes saturate and codebooks collapse."""


SECURE_SOURCES: Final = (Source.STAT, Source.PRIOR)
"""Sources that use only secure sums of the clients' data."""


class SumMode(StrEnum):
    """Whether sums run the protocol or are computed in the clear."""

    REAL = "real"
    IDEAL = "ideal"


class Optimizer(StrEnum):
    """The server's way to apply the mean."""

    FEDAVG = "fedavg"
    FEDAVGM = "fedavgm"


class Down(StrEnum):
    """Form in which clients receive the model."""

    MODEL = "model"
    """All of its values, as float32."""
    SUMS = "sums"
    """The decoded sums since their last model, or the model's values in steps of 8 bits."""


class AttackKind(StrEnum):
    """Updates that dishonest clients send instead of their own."""

    NONE = "none"
    SIGN_FLIP = "sign-flip"
    FLIP_TENFOLD = "flip-x10"
    SCALE_TENFOLD = "scale-x10"
    INSIDE_SPREAD = "inside-spread"
    """The mean of the attackers' own updates minus 1.5 standard deviations, per value: not an outlier."""
    LABEL_FLIP = "label-flip"
    """An honest update from examples with reversed labels."""


class Weighting(StrEnum):
    """Weight of a client's update."""

    EQUAL = "equal"
    EXAMPLES = "examples"
    """Examples over ``full``, from 1/4 to 1; values are multiplied by it before they are rounded."""
    AFTER = "after"
    """An integer proportional to its examples, by which its codes are multiplied, as in the paper. Only for studies: a
    sum of codes times weights can reveal every update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """Data set, and its partition over clients."""

    name: str = "fashion"
    root: str | None = None
    """Folder or file of data that are not bundled."""
    clients: Annotated[int, within(0, 10**7)] = 200
    """Number of clients that share the examples; for data with natural users the first ones, 0 for all."""
    alpha: Annotated[float, within(1e-6, 1e6)] = 1.0
    """Parameter of the Dirichlet distribution of labels over clients; unused for data with natural users."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTraining:
    """Settings of a client's training."""

    epochs: Annotated[int, within(1, 10**4)] = 1
    batch: Annotated[int, within(1, 10**6)] = 32
    rate: Annotated[float, within(1e-12, 1e6)] = 0.1
    momentum: Annotated[float, within(0, 1)] = 0.0
    weight_decay: Annotated[float, within(0, 1e6)] = 0.0
    clip: Annotated[float | None, within(1e-12, 1e12)] = None
    """Maximum L2 norm of a client's change, over all parameters; None for no limit."""
    proximal: Annotated[float, within(0, 1e6)] = 0.0
    """FedProx's mu."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The server's step with the decoded mean."""

    optimizer: Optimizer = Optimizer.FEDAVG
    rate: Annotated[float, within(1e-12, 1e6)] = 1.0
    falling: Annotated[float, within(0, 1)] = 0.0
    """Share of the rounds, at the end, over which the rate falls to a twentieth; 0 for none."""
    averaged: Annotated[int, within(0, 10**6)] = 0
    """Approximate number of rounds averaged into the tested and saved model; 0 for the last model."""
    momentum: Annotated[float, within(0, 1)] = 0.9
    """Momentum of FedAvgM."""
    weighting: Weighting = Weighting.EQUAL
    full: Annotated[int, within(0, 1 << 30)] = 0
    """Number of examples with full weight, if weighted by examples; 0 for the largest client's number."""
    maximum_weight: Annotated[int, within(1, 1 << 16)] = 8
    """Weight of the largest client, if weighted after rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionSettings:
    """Encoding of an update."""

    scheme: Scheme = Scheme.NONE
    """Name of a scheme, or "module:Name" or "path/to/file.py:Name" of a custom one."""
    custom: str = ""
    """The value of ``scheme`` if it names a custom scheme."""
    cohort_bits: Annotated[float, within(1e-6, 1e6)] = 1.6
    """Bits per value of peak code or sketch, totalled over a round's clients; sets blocks or sent values."""
    rate: Rate = Rate.FIXED
    """Whether a peak code has fixed bits, or the bits that the loss needs."""
    harm: Annotated[float, within(1e-6, 1)] = 0.001
    """Maximum rise of the training loss from one round's noise, with ``rate = "auto"``."""
    places: Annotated[int, within(0, MAXIMUM_PLACES)] = 0
    """Number of values in a block of the peak code; 0 to use ``cohort_bits``."""
    kept: Annotated[int, within(0, 1 << 40)] = 0
    """Number of values that a sketch sends, in ``bits`` bits each; 0 to use ``cohort_bits``."""
    lengths: Lengths | None = None
    """Default: ``median`` for the peak code, because a few clients cannot move it; ``own`` for a sketch."""
    length: Annotated[float, within(2.0**-40, 2.0**40)] = 1.0
    """Length with which every update is decoded, with ``lengths = "fixed"``."""
    bits: int = 6
    modulus_bits: int = 8
    wrap: bool = False
    """Whether sums may overflow the ring, as in the paper if the margin is below the cohort."""
    stochastic: bool = False
    """Whether scalar quantization rounds at random."""
    fine_bits: Annotated[int, within(0, MOST_FINE_BITS)] = 0
    """Bits of the fine steps within a sent step: a protocol with masks rounds scalar codes under the mask; 0 rounds
    before masking."""
    sparsity: str = "0.9"
    codewords: int = 64
    block_size: int = 4
    stages: Annotated[int, within(1, 8)] = 1
    """Number of codebooks, each for the residual of those before it."""
    rotation: Annotated[int, within(0, 1 << 20)] = 0
    """Block size of a rotation before scalar quantization, a power of two; 0 for none."""
    calibration: Source | None = None
    """By default ``stat`` for scalar and ``prior`` for product quantization."""
    refresh: Annotated[int, within(1, 10**7)] = 1
    """Number of rounds between sets of scales, codebooks or masks."""
    fraction_bits: Annotated[int, within(1, 30)] = 20
    """Fraction bits of fixed-point values, in a ring of 32 bits; the range follows from the cohort."""
    layers: tuple[str, ...] = ()
    """Other codebooks for some tensors: "name=codewords/block_size", or "name=plain". ``prior`` allows more codewords
    than can be learned from a tensor of that size."""
    is_lengthened: bool = False
    """Whether decoded values are scaled up for the energy that codewords lose, under ``prior``."""
    vector_bits: Annotated[int, within(0, 16)] = 0
    """Bits of biases and norms under ``stat`` and ``prior``, quantized in a ring that fits any cohort; 0 sends 32-bit
    fixed point, which may be half of a well-compressed update."""
    down: Down = Down.MODEL

    @property
    def told(self) -> Lengths:
        """Source of lengths, with the default filled in."""
        return self.lengths or (Lengths.MEDIAN if self.scheme is Scheme.PEAK else Lengths.OWN)

    @property
    def has_codes(self) -> bool:
        return self.scheme is Scheme.SCALAR

    @property
    def source(self) -> Source | None:
        """Source of scales and codebooks, with the default filled in; None if there are none."""
        if self.has_codes:
            return self.calibration or Source.STAT
        return self.calibration or Source.PRIOR if self.scheme is Scheme.PRODUCT else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SumSettings:
    """Protocol of the sums, and whether it runs."""

    protocol: str = "pairwise"
    """Name of a registered protocol."""
    mode: SumMode = SumMode.IDEAL
    every: Annotated[int, within(1, 10**7)] = 1
    """In real mode the protocol runs every this many rounds; other sums are computed in the clear."""
    settings: tuple[str, ...] = ()
    """The protocol's own settings: "name=value"."""
    threads: Annotated[int, within(1, 1024)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DropoutSettings:
    """Dropouts among the sampled clients: how many, and in which stages."""

    rate: Annotated[float, within(0, 0.95)] = 0.0
    stages: tuple[str, ...] = ()
    """Stages of the protocol, by name; by default the one that takes the updates and the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """When the model is tested."""

    every: Annotated[int, within(1, 10**7)] = 5
    validation: Annotated[float, within(0, 0.9)] = 0.5
    """Share of the test examples that choose the best model; it is reported on the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacySettings:
    """Noise of the enclave or of clients; off unless ``noise_multiplier`` is above 0. ``local.clip`` bounds updates."""

    noise_multiplier: Annotated[float, within(0, 1e6)] = 0.0
    """Standard deviation of the noise, relative to one client's maximum change."""
    delta: Annotated[float, within(1e-30, 0.5)] = 1e-6
    epsilon: Annotated[float, within(0, 1e9)] = 0.0
    """Limit on the epsilon of the client in the most rounds; 0 for no limit."""
    zero_out: bool = False
    """Whether neighbouring inputs replace a client's update by zeros, not by any other update."""

    @property
    def is_on(self) -> bool:
        return self.noise_multiplier > 0

    @property
    def noise_share(self) -> float:
        """Maximum variance that a ring has room for, over the square of a client's bound.

        Clients beyond a round's minimum, or honest clients that were planned as corrupted, add up to twice the planned
        variance.
        """
        return _MOST_OVER * (self.noise_multiplier * (1 if self.zero_out else 2)) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackSettings:
    """Attack by some clients of every round; off by default."""

    kind: AttackKind = AttackKind.NONE
    share: Annotated[float, within(0, 1)] = 0.2
    """Attackers' share of the clients that upload in a round, rounded; the seed chooses them."""

    @property
    def is_on(self) -> bool:
        return self.kind is not AttackKind.NONE and self.share > 0


_BY_TENSOR: Final = (Scheme.SCALAR, Scheme.PRUNING, Scheme.PRODUCT)
_BELONGING: Final[tuple[tuple[str, tuple[Scheme, ...]], ...]] = (
    ("cohort_bits", NOISY_SCHEMES),
    ("rate", (Scheme.PEAK,)),
    ("harm", (Scheme.PEAK,)),
    ("places", (Scheme.PEAK,)),
    ("kept", (Scheme.SKETCH,)),
    ("lengths", NOISY_SCHEMES),
    ("length", NOISY_SCHEMES),
    ("bits", (Scheme.SCALAR, Scheme.SKETCH)),
    ("modulus_bits", (Scheme.SCALAR, Scheme.ROTATED)),
    ("wrap", (Scheme.SCALAR,)),
    ("stochastic", (Scheme.SCALAR,)),
    ("sparsity", (Scheme.PRUNING,)),
    ("codewords", (Scheme.PRODUCT,)),
    ("block_size", (Scheme.PRODUCT,)),
    ("stages", (Scheme.PRODUCT,)),
    ("rotation", (Scheme.SCALAR,)),
    ("calibration", (Scheme.SCALAR, Scheme.PRODUCT)),
    ("refresh", (*_BY_TENSOR, *NOISY_SCHEMES)),
    ("fraction_bits", (Scheme.NONE, *_BY_TENSOR, Scheme.ROTATED)),
    ("layers", _BY_TENSOR),
    ("down", (Scheme.PEAK,)),
)
"""Settings that only some schemes read; others are checked separately."""
_USUAL: Final = CompressionSettings()


def require_belonging(compression: CompressionSettings) -> None:
    """Refuse settings without effect; a complete file has the default values of other schemes."""
    scheme = compression.scheme
    for name, schemes in _BELONGING:
        value, usual = getattr(compression, name), getattr(_USUAL, name)
        if value == usual or scheme in schemes:
            continue
        owners = " or ".join(repr(one.value) for one in schemes)
        raise InvalidParameters(
            f"compression.{name} = {value} only applies to compression.scheme = {owners}, not to {scheme.value!r}: "
            f"{'remove it' if usual is None else f'set {usual}'}, or change the scheme"
        )
    if compression.length != _USUAL.length and compression.told is not Lengths.FIXED:
        raise InvalidParameters("clients report compression.length here: set compression.lengths = 'fixed'")
    if compression.harm != _USUAL.harm and compression.rate is not Rate.AUTO:
        raise InvalidParameters("compression.harm only applies to an automatic rate: set compression.rate = 'auto'")
    if compression.rate is Rate.AUTO and (compression.places or compression.cohort_bits != _USUAL.cohort_bits):
        raise InvalidParameters(
            "compression.rate = 'auto' finds the bits itself: remove compression.cohort_bits and places"
        )
    if compression.cohort_bits != _USUAL.cohort_bits and (compression.places or compression.kept):
        raise InvalidParameters(
            "compression.cohort_bits sets the number of places or values: remove compression.places and kept"
        )


def _require_codes(compression: CompressionSettings, protocol: ProtocolEntry) -> None:
    if compression.calibration is Source.PRIOR and compression.has_codes:
        raise InvalidParameters("scalar quantization has no prior: set compression.calibration = 'stat'")
    for is_wrong, sentence in (
        (compression.scheme is not Scheme.SCALAR, "codes are scalar: set compression.scheme = 'sq'"),
        (compression.wrap, "sums stay in the ring: set compression.wrap = false"),
        (compression.stochastic, "the mask already rounds at random: set compression.stochastic = false"),
        (not protocol.rounds, f"{protocol.name} does not round: set secagg.protocol = 'pairwise'"),
    ):
        if is_wrong and compression.fine_bits:
            raise InvalidParameters(f"compression.fine_bits is above 0, but {sentence}, or compression.fine_bits = 0")


FILE_NAME: Final = "configuration.toml"
_VERSIONED: Final = ("secagg", "numpy", "cryptography", "torch")
_SEMI_HONEST: Final = "mode=semi_honest"
_LONGEST_STEP: Final = 4.0
"""Maximum effective rate with momentum, under noisy codes; 3 was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """All settings of a run."""

    name: str = "run"
    seed: Annotated[int, within(0, 2**32 - 1)] = 0
    rounds: Annotated[int, within(1, 10**7)] = 100
    clients_per_round: Annotated[int, within(2, 10**6)] = 20
    model: str = "stride"
    model_options: tuple[str, ...] = ()
    """Non-default sizes of the model: "name=number"."""
    device: str = "cpu"
    engine: str = "auto"
    """``auto``: threads on a CPU, and on a GPU the fastest engine that the model permits."""
    workers: Annotated[int, within(0, 1024)] = 0
    """Number of threads that train clients; 0 for the number of cores."""
    chunk: Annotated[int, within(0, 1 << 20)] = 0
    """Number of clients that a stacked engine trains at once; 0 to fit the device."""
    checkpoint_every: Annotated[int, within(1, 10**7)] = 25
    data: DataSettings = field(default_factory=DataSettings)
    local: LocalTraining = field(default_factory=lambda: LocalTraining(batch=20, rate=0.1))
    server: ServerSettings = field(default_factory=ServerSettings)
    compression: CompressionSettings = field(default_factory=CompressionSettings)
    secagg: SumSettings = field(default_factory=SumSettings)
    dropouts: DropoutSettings = field(default_factory=DropoutSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    attack: AttackSettings = field(default_factory=AttackSettings)

    def __post_init__(self) -> None:
        _require_within(self)
        _require_sense(self)

    @property
    def model_sizes(self) -> dict[str, float]:
        named = [option.partition("=") for option in self.model_options]
        try:
            return {name.strip(): float(value) for name, _, value in named}
        except ValueError:
            raise InvalidParameters(
                f'model_options must be a list such as ["width=64"]; got {list(self.model_options)}'
            ) from None

    @property
    def maximum_weight(self) -> int:
        """Maximum weight of one client, in uploads of weight 1."""
        return self.server.maximum_weight if self.server.weighting is Weighting.AFTER else 1

    @property
    def most_uploads(self) -> int:
        """Maximum total weight of a round's sum."""
        return self.clients_per_round * self.maximum_weight


# --- Reading and writing ----------------------------------------------------------------------------------------------


def read(file: Path, changes: Iterable[str] = ()) -> Configuration:
    """Read a configuration from TOML, and apply ``key=value`` changes."""
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidParameters(f"{file} is not a configuration: {error}") from None
    tree.pop("versions", None)
    return changed(from_tree(tree), changes)


def changed(configuration: Configuration, changes: Iterable[str]) -> Configuration:
    """Apply ``key=value`` changes, with dotted keys and TOML values."""
    tree = to_tree(configuration)
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals:
            raise InvalidParameters(f"a change must be key=value, such as compression.bits=4; got {change!r}")
        *tables, last = key.strip().split(".")
        place = tree
        for table in tables:
            inner = place.setdefault(table, {})
            if not isinstance(inner, dict):
                raise InvalidParameters(f"{table!r} in {key!r} is a value without keys")
            place = cast("dict[str, Any]", inner)
        place[last] = _value(text.strip())
    return from_tree(tree)


def from_tree(tree: Mapping[str, Any]) -> Configuration:
    """Make a configuration from nested dictionaries, as read from TOML."""
    return cast("Configuration", _object(Configuration, tree, ""))


def to_tree(value: object) -> dict[str, Any]:
    """Return nested dictionaries of TOML values; None is omitted."""
    tree = dict[str, Any]()
    for item in fields(cast("Any", value)):
        current = getattr(value, item.name)
        if current is not None:
            tree[item.name] = to_tree(current) if is_dataclass(current) else _plain(current)
    return tree


def to_toml(configuration: Configuration, versions: Mapping[str, str] | None = None) -> str:
    """Return the complete configuration as TOML, with the given versions."""
    tree = to_tree(configuration)
    lines = [f"{key} = {_literal(value)}" for key, value in tree.items() if not isinstance(value, dict)]
    tables: dict[str, Any] = {key: value for key, value in tree.items() if isinstance(value, dict)}
    if versions is not None:
        tables["versions"] = dict(versions)
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_literal(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def versions_here() -> dict[str, str]:
    """Return the versions of the software that results depend on."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in _VERSIONED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


# --- Private ----------------------------------------------------------------------------------------------------------


def _object(cls: type[Any], tree: Mapping[str, Any], path: str) -> object:
    hints = get_type_hints(cls)
    names = [item.name for item in fields(cls)]
    for key in tree:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            known = f"the nearest is {path + near[0]!r}" if near else f"the keys are {', '.join(names)}"
            raise InvalidParameters(f"there is no key {path + key!r}; {known}")
    if cls is CompressionSettings and ":" in str(tree.get("scheme", "")):
        tree = {**tree, "scheme": Scheme.CUSTOM.value, "custom": tree["scheme"]}
    keys = declared(cls)
    return cls(**{key: _converted(hints[key], keys[key], value, path + key) for key, value in tree.items()})


def _converted(kind: object, each: Declared, value: Any, path: str) -> Any:  # noqa: ANN401 -- a value of TOML
    if is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise InvalidParameters(f"{path} must be a table; got {value!r}")
        return _object(cast("type[Any]", kind), cast("Mapping[str, Any]", value), f"{path}.")
    if each.is_optional and value == "":
        return None
    if each.kind is str and not each.is_many and type(value) in {int, float}:
        return str(value)
    if issubclass(each.kind, StrEnum):
        values = [one.value for one in each.kind]
        if value not in values:
            raise InvalidParameters(f"{path} must be one of {', '.join(values)}; got {value!r}")
        return each.kind(value)
    with spelled(path):
        return each.checked(value)


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _plain(value: object) -> object:
    if isinstance(value, StrEnum):
        return value.value
    return [_plain(item) for item in cast("tuple[object, ...]", value)] if isinstance(value, tuple) else value


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    if isinstance(value, list):
        return "[" + ", ".join(_literal(item) for item in cast("list[object]", value)) + "]"
    return repr(value)


def _require_within(section: Any, path: str = "") -> None:  # noqa: ANN401 -- a configuration, or one of its sections
    for name, each in declared(section.__class__).items():
        value = getattr(section, name)
        if is_dataclass(value):
            _require_within(value, f"{name}.")
            continue
        with spelled(path + name):
            each.checked(value)


def _require_sense(run: Configuration) -> None:
    compression = run.compression
    exact_sparsity(compression.sparsity)
    run.model_sizes  # noqa: B018 -- refuses what is not a number
    if compression.rotation and compression.rotation & (compression.rotation - 1):
        raise InvalidParameters(f"compression.rotation must be a power of two, or 0; got {compression.rotation}")
    source, scheme = compression.calibration, compression.scheme
    if source is Source.STAT and scheme is Scheme.PRODUCT:
        raise InvalidParameters("a codebook of the aggregate collapses: set compression.calibration = 'prior' for pq")
    if compression.vector_bits and compression.source not in SECURE_SOURCES:
        raise InvalidParameters(
            "compression.vector_bits needs scales from the secure sum: set compression.scheme = "
            "'sq' or 'pq' with the calibration 'stat' or 'prior', or vector_bits = 0"
        )
    if compression.is_lengthened and compression.source is not Source.PRIOR:
        raise InvalidParameters("compression.is_lengthened needs data-free codebooks: set the calibration 'prior'")
    protocol = find(run.secagg.protocol)
    if scheme in {Scheme.PRODUCT, Scheme.PEAK} and IndexSegment not in protocol.segments:
        raise InvalidParameters(
            f"{protocol.name} adds ring elements, but {scheme.value!r} sends indices: set secagg.protocol = "
            "'enclave' or 'two-servers'"
        )
    if run.server.weighting is not Weighting.EQUAL and scheme in {*WHOLE_UPDATES, Scheme.PRODUCT}:
        raise InvalidParameters(
            f"{scheme.value!r} sends votes or directions, which each count once: set server.weighting = 'equal', or "
            "compression.scheme = 'sq', 'pruning' or 'none'"
        )
    _require_whole_updates(run)
    _require_told_lengths(run)
    _require_codes(compression, protocol)
    require_belonging(compression)


def _require_whole_updates(run: Configuration) -> None:
    compression, scheme = run.compression, run.compression.scheme
    if (scheme is Scheme.CUSTOM) != bool(compression.custom):
        raise InvalidParameters(
            "compression.scheme names a custom scheme as module:Name, and compression.custom repeats it; set "
            "only the former"
        )
    if scheme is Scheme.ROTATED and run.local.clip is None:
        raise InvalidParameters("compression.scheme = 'rotated' needs a bound for its steps: set local.clip")
    if scheme is Scheme.SKETCH and compression.bits > MOST_BITS:
        raise InvalidParameters(f"a sketch's codes must have 1 to {MOST_BITS} bits; got {compression.bits}")
    momentum = run.server.momentum if run.server.optimizer is Optimizer.FEDAVGM else 0.0
    if momentum and compression.down is Down.SUMS:
        raise InvalidParameters(
            "a returning client lacks the server's momentum, without which a downlink sum does not give the "
            "next model: set server.optimizer = 'fedavg', or compression.down = 'model'"
        )
    if scheme in NOISY_SCHEMES and momentum and run.server.rate > _LONGEST_STEP * (1 - momentum):
        raise InvalidParameters(
            f"server.momentum = {momentum} multiplies steps, and so the noise of {scheme.value!r}, by "
            f"{1 / max(1 - momentum, 1e-9):.0f}: set server.rate = {3 * (1 - momentum):.3g} or less"
        )


def _require_told_lengths(run: Configuration) -> None:
    compression, protocol = run.compression, find(run.secagg.protocol)
    has_indices = IndexSegment in protocol.segments
    if compression.scheme not in NOISY_SCHEMES or compression.told is Lengths.FIXED:
        return
    checked = "'median' or 'fixed'" if has_indices else "'fixed'"
    if compression.told is Lengths.VOTED and compression.scheme is not Scheme.PEAK:
        raise InvalidParameters(f"voting needs blocks, but 'sketch' has none: set compression.lengths = {checked}")
    if compression.told is Lengths.MEDIAN:
        if not has_indices:
            raise InvalidParameters(
                f"{protocol.name} adds ring elements, but votes for lengths are indices: set compression.lengths = "
                "'fixed', or secagg.protocol = 'enclave' or 'two-servers'"
            )
    elif compression.scheme is Scheme.SKETCH and _SEMI_HONEST not in run.secagg.settings:
        raise InvalidParameters(
            "lengths that clients report with a sketch are not checked, so one client could scale the model: "
            f"set compression.lengths = {checked}"
            + ("" if has_indices else f", or secagg.settings = ['{_SEMI_HONEST}'] if every client is honest")
        )
