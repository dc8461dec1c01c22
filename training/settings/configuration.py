"""What a run does, as one value: read from TOML, changed by ``--set``, refused where it makes no sense, written back.

Everything has a default, and a file names what differs. A key that does not exist is refused with the nearest one that
does. What a run really did stands in its folder as ``configuration.toml``, complete, with the versions of what it ran
on.
"""

from __future__ import annotations

import difflib
import platform
import tomllib
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Final, Union, cast, get_args, get_origin, get_type_hints

from secagg.compression.random_pruning import exact_sparsity
from secagg.compression.sketch import MOST_BITS
from secagg.contract import IndexSegment
from secagg.errors import InvalidParameters
from secagg.session.registry import find

from .sections import (
    NOISY_SCHEMES,
    SECURE_SOURCES,
    AsynchronousSettings,
    AttackSettings,
    CompressionSettings,
    DataSettings,
    DropoutSettings,
    EvaluationSettings,
    Lengths,
    LocalTraining,
    Optimizer,
    PrivacySettings,
    Range,
    Scheme,
    ServerSettings,
    Source,
    SumSettings,
    Weighting,
    require_belonging,
    require_codes,
)

FILE_NAME: Final = "configuration.toml"
_VERSIONED: Final = ("secagg", "numpy", "cryptography", "torch")
_SEMI_HONEST: Final = "mode=semi_honest"
_KINDS: Final = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Everything that a run depends on."""

    name: str = "run"
    seed: Annotated[int, Range(0, 2**32 - 1)] = 0
    rounds: Annotated[int, Range(1, 10**7)] = 100
    clients_per_round: Annotated[int, Range(2, 10**6)] = 20
    model: str = "stride"
    model_options: tuple[str, ...] = ()
    """Sizes of the model that are not its usual ones: "name=number"."""
    device: str = "cpu"
    engine: str = "auto"
    """``auto``: threads on a CPU, and on a GPU the fastest that the model permits."""
    workers: Annotated[int, Range(0, 1024)] = 0
    """Threads that train clients; 0 for as many as there are cores."""
    chunk: Annotated[int, Range(0, 1 << 20)] = 0
    """Clients that a stacked engine trains at once; 0 for what suits the device."""
    bf16: bool = False
    checkpoint_every: Annotated[int, Range(1, 10**7)] = 25
    data: DataSettings = field(default_factory=DataSettings)
    local: LocalTraining = field(default_factory=lambda: LocalTraining(batch=20, rate=0.1))
    server: ServerSettings = field(default_factory=ServerSettings)
    compression: CompressionSettings = field(default_factory=CompressionSettings)
    secagg: SumSettings = field(default_factory=SumSettings)
    dropouts: DropoutSettings = field(default_factory=DropoutSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    asynchronous: AsynchronousSettings = field(default_factory=AsynchronousSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    attack: AttackSettings = field(default_factory=AttackSettings)

    def __post_init__(self) -> None:
        _require_within(self)
        _require_sense(self)

    @property
    def model_sizes(self) -> dict[str, float]:
        """The model's options by name."""
        named = [option.partition("=") for option in self.model_options]
        try:
            return {name.strip(): float(value) for name, _, value in named}
        except ValueError:
            raise InvalidParameters(
                f'model_options is a list such as ["width=64"]; got {list(self.model_options)}'
            ) from None

    @property
    def maximum_weight(self) -> int:
        """The largest weight of one client."""
        return self.server.maximum_weight if self.server.weighting is Weighting.EXAMPLES else 1

    @property
    def maximum_total_weight(self) -> int:
        """The largest weight that a round's sum can have."""
        if self.asynchronous.buffer:
            return self.asynchronous.buffer * max(self.asynchronous.age_weights)
        return self.clients_per_round * self.maximum_weight

    @property
    def cohort(self) -> int:
        """How many clients a sum is expected to hold."""
        return self.asynchronous.buffer or self.clients_per_round


# --- Reading and writing ----------------------------------------------------------------------------------------------


def read(file: Path, changes: Iterable[str] = ()) -> Configuration:
    """Read a configuration from TOML, and apply changes of the form ``key=value`` to it.

    Raises:
        InvalidParameters: the file is no TOML, or a key or value is not one that there is.
    """
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidParameters(f"{file} is no configuration: {error}") from None
    tree.pop("versions", None)
    return changed(from_tree(tree), changes)


def changed(configuration: Configuration, changes: Iterable[str]) -> Configuration:
    """Apply changes of the form ``key=value``, where keys of tables are joined by dots and values are those of TOML.

    Raises:
        InvalidParameters: a key or value is not one that there is.
    """
    tree = to_tree(configuration)
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals:
            raise InvalidParameters(f"a change is key=value, such as compression.bits=4; got {change!r}")
        *tables, last = key.strip().split(".")
        place = tree
        for table in tables:
            inner = place.setdefault(table, {})
            if not isinstance(inner, dict):
                raise InvalidParameters(f"{table!r} in {key!r} is a value and has no keys of its own")
            place = cast("dict[str, Any]", inner)
        place[last] = _value(text.strip())
    return from_tree(tree)


def from_tree(tree: Mapping[str, Any]) -> Configuration:
    """Make a configuration of nested dictionaries, as TOML gives them.

    Raises:
        InvalidParameters: a key that does not exist, a value of another type, or one that makes no sense.
    """
    return cast("Configuration", _object(Configuration, tree, ""))


def to_tree(value: object) -> dict[str, Any]:
    """Return nested dictionaries of what TOML can hold; what is None is left out."""
    tree = dict[str, Any]()
    for item in fields(cast("Any", value)):
        current = getattr(value, item.name)
        if current is not None:
            tree[item.name] = to_tree(current) if is_dataclass(current) else _plain(current)
    return tree


def to_toml(configuration: Configuration, versions: Mapping[str, str] | None = None) -> str:
    """Return the configuration as TOML, complete, with the versions of what it ran on where they are given."""
    tree = to_tree(configuration)
    lines = [f"{key} = {_literal(value)}" for key, value in tree.items() if not isinstance(value, dict)]
    tables: dict[str, Any] = {key: value for key, value in tree.items() if isinstance(value, dict)}
    if versions is not None:
        tables["versions"] = dict(versions)
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {_literal(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def versions_here() -> dict[str, str]:
    """Return the versions of what a result depends on."""
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
        tree = {**tree, "scheme": Scheme.OUTSIDE.value, "outside": tree["scheme"]}
    given: dict[str, Any] = {key: _converted(hints[key], value, path + key) for key, value in tree.items()}
    return cls(**given)


def _converted(kind: Any, value: Any, path: str) -> object:  # noqa: ANN401, C901, PLR0911 -- a type hint, a value
    origin = get_origin(kind)
    if origin in {Union, types.UnionType}:
        inner = [option for option in get_args(kind) if option is not type(None)]
        return None if value is None or value == "" else _converted(inner[0], value, path)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise InvalidParameters(f"{path} is a list; got {value!r}")
        return tuple(_converted(get_args(kind)[0], item, path) for item in cast("list[Any]", value))
    if is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise InvalidParameters(f"{path} is a table; got {value!r}")
        return _object(cast("type[Any]", kind), cast("Mapping[str, Any]", value), f"{path}.")
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        try:
            return kind(value)
        except ValueError:
            options = [option.value for option in kind]
            raise InvalidParameters(f"{path} is one of {', '.join(options)}; got {value!r}") from None
    if kind is float and type(value) is int:
        return float(value)
    if kind is str and type(value) in {int, float}:
        return str(value)
    if type(value) is not kind:
        raise InvalidParameters(f"{path} is {_KINDS[kind]}; got {value!r}")
    return value


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


def _ranges(section: object) -> dict[str, Range]:
    hints = get_type_hints(type(section), include_extras=True)
    metadata = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {name: cast("Range", said[0]) for name, said in metadata.items() if said}


def _require_within(section: Any, path: str = "") -> None:  # noqa: ANN401 -- a configuration, or one of its sections
    for name, (least, most) in _ranges(section).items():
        value = getattr(section, name)
        # Written so that NaN is refused too.
        if value is not None and not least <= value <= most:
            raise InvalidParameters(f"{path}{name} is in {least}..{most}; got {value!r}")
    for item in fields(section):
        if is_dataclass(inner := getattr(section, item.name)):
            _require_within(inner, f"{item.name}.")


def _require_sense(run: Configuration) -> None:
    compression = run.compression
    exact_sparsity(compression.sparsity)
    run.model_sizes  # noqa: B018 -- refuses what is no number
    if compression.rotation and compression.rotation & (compression.rotation - 1):
        raise InvalidParameters(f"compression.rotation is a power of two, or 0; got {compression.rotation}")
    source, scheme = compression.calibration, compression.scheme
    if source is Source.STAT and scheme is Scheme.PRODUCT:
        raise InvalidParameters("a codebook of the aggregate collapses: take compression.calibration = 'prior' for pq")
    if compression.vector_bits and compression.source not in SECURE_SOURCES:
        raise InvalidParameters(
            "compression.vector_bits takes scales from what clients add to the secure sum: take compression.scheme = "
            "'sq' or 'pq' with the calibration 'stat' or 'prior', or vector_bits = 0"
        )
    if compression.is_lengthened and compression.source is not Source.PRIOR:
        raise InvalidParameters("compression.is_lengthened is for codebooks of no data: take the calibration 'prior'")
    protocol = find(run.secagg.protocol)
    if scheme in {Scheme.PRODUCT, Scheme.PEAK} and IndexSegment not in protocol.segments:
        raise InvalidParameters(
            f"{protocol.name} adds ring elements, and {scheme.value!r} sends indices: take secagg.protocol = 'enclave' "
            "or 'two-servers'"
        )
    _require_whole_updates(run)
    _require_told_lengths(run)
    _require_ring_for_ages(run)
    require_codes(compression, protocol)
    require_belonging(compression)


def _require_whole_updates(run: Configuration) -> None:
    compression, scheme = run.compression, run.compression.scheme
    if (scheme is Scheme.OUTSIDE) != bool(compression.outside):
        raise InvalidParameters(
            "compression.scheme names a scheme from outside as module:Name, and compression.outside repeats it; set "
            "the former alone"
        )
    if scheme is Scheme.ROTATED and run.local.clip is None:
        raise InvalidParameters("compression.scheme = 'rotated' has steps in proportion to a bound: set local.clip")
    if scheme is Scheme.SKETCH and compression.bits > MOST_BITS:
        raise InvalidParameters(f"a sketch has codes of 1 to {MOST_BITS} bits; got {compression.bits}")
    if scheme in NOISY_SCHEMES and run.server.optimizer is Optimizer.FEDAVGM and run.server.momentum:
        raise InvalidParameters(
            f"server.momentum = {run.server.momentum} makes the noise of {scheme.value!r} "
            f"{1 / max(1 - run.server.momentum, 1e-9) ** 2:.0f} times as large: take server.optimizer = 'fedavg', with "
            "a rate of 1 / (1 - momentum) for steps of the same size"
        )


def _require_told_lengths(run: Configuration) -> None:
    compression, protocol = run.compression, find(run.secagg.protocol)
    has_indices = IndexSegment in protocol.segments
    if compression.scheme not in NOISY_SCHEMES or compression.told is Lengths.FIXED:
        return
    checked = "'median' or 'fixed'" if has_indices else "'fixed'"
    if compression.told is Lengths.MEDIAN:
        if not has_indices:
            raise InvalidParameters(
                f"{protocol.name} adds ring elements, and votes for lengths are indices: take compression.lengths = "
                "'fixed', or secagg.protocol = 'enclave' or 'two-servers'"
            )
    elif compression.scheme is Scheme.SKETCH and _SEMI_HONEST not in run.secagg.settings:
        raise InvalidParameters(
            "the lengths that clients of a sketch tell are ring elements, which nobody checks, and one client could "
            f"scale the model with them: take compression.lengths = {checked}"
            + ("" if has_indices else f", or secagg.settings = ['{_SEMI_HONEST}'] where every client is honest")
        )


def _require_ring_for_ages(run: Configuration) -> None:
    compression, ages = run.compression, run.asynchronous
    if ages.buffer and compression.has_codes and compression.wrap and max(ages.age_weights) > 1:
        widest = compression.bits + (run.maximum_total_weight - 1).bit_length()
        raise InvalidParameters(
            "with weights by age the sums of a buffer leave the ring, and what they wrap to is no sum: take "
            f"compression.wrap = false and compression.modulus_bits = {widest}, or asynchronous.exponent = 0"
        )
