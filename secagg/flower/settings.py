"""What an app configures: kebab-case keys of ``[tool.flwr.app.config]``, checked by name before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Final, cast

from secagg.errors import InvalidParameters
from secagg.parameters import LEAST_COHORT, SecurityMode, Suite
from secagg.protocols.pairwise_mask import Topology

PREFIX: Final = "secagg-"
PROTOCOLS: Final = ("pairwise",)
"""Those that carry sums of vectors through Flower; what counts indices will be added here."""
MODES: Final = {str(mode): mode for mode in SecurityMode}
GRAPHS: Final = {"full": Topology.FULL, "sparse": Topology.SPARSE}
SUITES: Final = {"classic": Suite.CLASSIC, "hybrid": Suite.HYBRID}
WEIGHTINGS: Final = ("examples", "uniform")
FIXED_POINT: Final = "fixed-point"
SCALAR_BITS: Final = range(2, 17)
_INDEX_SCHEMES: Final = ("product-quantization",)
_LEAST_RING, _GREATEST_RING = 8, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SecAggSettings:
    """The settings of a run; each field is the key of the same name, with ``secagg-`` before it and hyphens in it."""

    protocol: str = "pairwise"
    mode: str = "semi_honest"
    graph: str = "full"
    suite: str = "classic"
    threshold: float = 0.0
    """The part of the invited clients that has to stay to the end; 0 means as few as the graph allows."""
    minimum_cohort: int = 0
    """The least number of clients whose sum is released; 0 means what the threshold leaves."""
    corrupted: int = 1
    """How many clients may work together with the server."""
    privacy_bits: int = 40
    compression: str = FIXED_POINT
    """``fixed-point``, or ``scalar-8`` and the like for codes of that many bits."""
    modulus_bits: int = 32
    """The ring of fixed-point values."""
    clip: float = 4.0
    """The largest change of one value that fixed point can carry."""
    weighting: str = "examples"
    maximum_weight: int = 1000
    weight_unit: int = 1
    """How many examples count as a weight of 1."""
    metrics: str = ""
    """The metrics that are summed, separated by commas; no others leave a client."""
    metric_bound: float = 1024.0
    stage_timeout: float = 120.0
    """Seconds to wait for the answers of one protocol stage; training has the strategy's own timeout."""
    stage_patience: float = 2.0
    """Once enough have answered a stage, the others get so many times as long as that took, 5 seconds at least."""
    roster: str = ""
    """The file that ``secagg flower keys`` wrote; for active mode."""
    metric_names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        for name, choices in (
            ("protocol", PROTOCOLS),
            ("mode", MODES),
            ("graph", GRAPHS),
            ("suite", SUITES),
            ("weighting", WEIGHTINGS),
        ):
            if getattr(self, name) not in choices:
                raise _invalid(name, f"is one of {', '.join(choices)}; got {getattr(self, name)!r}")
        for name, is_valid, rule in _RULES:
            if not is_valid(getattr(self, name)):
                raise _invalid(name, f"{rule}; got {getattr(self, name)!r}")
        self._check_compression()
        names = tuple(part.strip() for part in self.metrics.split(",") if part.strip())
        if len(set(names)) < len(names):
            raise _invalid("metrics", "names a metric twice")
        object.__setattr__(self, "metric_names", names)
        if self.mode == SecurityMode.ACTIVE and not self.roster:
            raise _invalid("roster", "names the roster file in active mode; make one with `secagg flower keys`")

    def _check_compression(self) -> None:
        if self.compression in _INDEX_SCHEMES:
            raise _invalid(
                "compression",
                f"is {self.compression}, which sends indices, and {PREFIX}protocol = {self.protocol!r} sums vectors "
                "alone; use fixed-point or scalar-8",
            )
        if self.compression != FIXED_POINT and self.scalar_bits not in SCALAR_BITS:
            raise _invalid(
                "compression",
                f"is {FIXED_POINT}, or scalar-2 to scalar-16 for codes of so many bits; got {self.compression!r}",
            )

    @property
    def scalar_bits(self) -> int:
        """The bits of a code; 0 for fixed point."""
        scheme, _, bits = self.compression.partition("-")
        return int(bits) if scheme == "scalar" and bits.isdecimal() else 0

    @classmethod
    def from_run_config(cls, run_config: Mapping[str, Any]) -> SecAggSettings:
        """Read the keys that begin with ``secagg-``; an app's other keys are its own.

        Raises:
            InvalidParameters: naming the key, and what it should be.
        """
        known, given = {_key(item.name): item for item in fields(cls) if item.init}, dict[str, Any]()
        for key, value in run_config.items():
            if not key.startswith(PREFIX):
                continue
            item = known.get(key)
            if item is None:
                near = get_close_matches(key, known, n=1)
                advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                raise InvalidParameters(f"{key} is no setting of secure aggregation; {advice}")
            default: object = cast("object", item.default)
            given[item.name] = _converted(key, value, type(default))
        return cls(**given)

    def tolerated_dropouts(self, invited: int) -> int:
        """Return how many of the invited may drop out.

        Raises:
            InvalidParameters: so many cannot, or there are too few clients for a sum at all.
        """
        if self.graph == "sparse":
            return invited - math.ceil((self.threshold or 0.9) * invited)
        colluding = self.corrupted if self.mode == SecurityMode.ACTIVE else 0
        shares = max(LEAST_COHORT, (invited + colluding) // 2 + 1, self.corrupted + 1)
        most = invited - 1 - shares
        if most < 0:
            raise InvalidParameters(
                f"{invited} clients are too few for a session in which {self.corrupted} may be corrupted; let the "
                f"strategy sample more, or lower {PREFIX}corrupted"
            )
        if not self.threshold:
            return most
        wanted = invited - math.ceil(self.threshold * invited)
        if wanted > most:
            raise _invalid(
                "threshold",
                f"is {self.threshold}, so {wanted} of {invited} clients might drop out; at most {most} may in a full "
                f"graph: raise it to {math.ceil(100 * (invited - most) / invited) / 100}",
            )
        return wanted


def _key(name: str) -> str:
    return PREFIX + name.replace("_", "-")


def _invalid(name: str, sentence: str) -> InvalidParameters:
    return InvalidParameters(f"{_key(name)} {sentence}")


def _converted(key: str, value: object, kind: type[Any]) -> Any:  # noqa: ANN401 -- of the field's type
    """Return a value as its field's type; TOML writes whole floats like integers."""
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        names = {str: "a string", int: "an integer", float: "a number"}
        raise InvalidParameters(f"{key} is {names[kind]}; got {value!r}")
    return value


_RULES: Final[tuple[tuple[str, Callable[[Any], bool], str], ...]] = (
    ("threshold", lambda value: 0.0 <= value <= 1.0, "is a part of the clients, in 0.0..1.0"),
    ("minimum_cohort", lambda value: value == 0 or value >= LEAST_COHORT, f"is 0 or at least {LEAST_COHORT}"),
    ("corrupted", lambda value: value >= 0, "is not negative"),
    ("privacy_bits", lambda value: value >= 40, "is at least 40"),  # noqa: PLR2004 -- the library's own floor
    (
        "modulus_bits",
        lambda value: _LEAST_RING <= value <= _GREATEST_RING,
        f"lies in {_LEAST_RING}..{_GREATEST_RING}",
    ),
    ("clip", lambda value: 0.0 < value < math.inf, "is a positive number"),
    ("metric_bound", lambda value: 0.0 < value < math.inf, "is a positive number"),
    ("maximum_weight", lambda value: 1 <= value < 1 << 32, "is at least 1, and below 2^32"),
    ("weight_unit", lambda value: value >= 1, "is at least 1"),
    ("stage_patience", lambda value: 1.0 <= value < math.inf, "is at least 1.0"),
    ("stage_timeout", lambda value: 0.0 < value < math.inf, "is a positive number of seconds"),
)
