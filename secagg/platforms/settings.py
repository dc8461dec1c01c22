"""Settings of an app: kebab-case keys of ``[tool.flwr.app.config]``, checked by name before anything is sent."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from types import NoneType
from typing import Any, Final, cast

from secagg.compression.cohort_bits import COHORT_BITS, places_for
from secagg.compression.peak import MOST_SUMMED_PLACES
from secagg.errors import InvalidParameters
from secagg.parameters import LEAST_COHORT, SecurityMode, Suite, usual_corrupted, usual_dropped
from secagg.protocols.pairwise_mask import CURIOUS_PRIVACY_BITS, PairwiseSettings, Topology
from secagg.session import registry

PREFIX: Final = "secagg-"
PAIRWISE: Final = "pairwise"
ENCLAVE: Final = "enclave"
TWO_SERVERS: Final = "two-servers"
ONE_MESSAGE: Final = "one-message"
LIGHT_SECAGG: Final = "lightsecagg"
PROTOCOLS: Final = (PAIRWISE, ENCLAVE, TWO_SERVERS, ONE_MESSAGE)
"""Protocols that clients accept by default; a run may also name one that is registered."""
MODES: Final = {str(mode): mode for mode in SecurityMode}
TOPOLOGIES: Final = ("full", "sparse")
SUITES: Final = {"classic": Suite.CLASSIC, "hybrid": Suite.HYBRID}
WEIGHTINGS: Final = ("examples", "uniform")
AUTO, SUMS = "auto", "sums"
FIXED_POINT: Final = "fixed-point"
SCALAR_BITS: Final = range(2, 17)
CODEWORDS, BLOCK_SIZE = 64, 8
"""Defaults of ``pq`` without numbers: 6 bits for 8 values."""
_COMPRESSION: Final = re.compile(
    r"fixed-point|scalar-(?P<bits>[0-9]{1,2})|pruning-(?P<sparsity>0\.[0-9]{1,4})|pq(-(?P<codewords>[0-9]{1,5})x(?P<block>[0-9]{1,3}))?"
    r"|peak(-(?P<places>[0-9]{1,4}))?"
)
_LEAST_RING, _GREATEST_RING = 8, 64
_LEAST_NOISE: Final = 0.001
_MOST_COHORT_BITS: Final = 1024.0
_MOST_NOISE: Final = 1e6
NOISED: Final = (PAIRWISE, ONE_MESSAGE)
"""Protocols whose clients add noise here."""
_MOST_FRACTION_BITS: Final = 40
_FULL_WEIGHTS: Final = range(2, (1 << 30) + 1)
LEAST_CLIENTS: Final = 3
"""In a sum of two, each client knows the other's update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecAggSettings:
    """The settings of a run; each field is the key of the same name, with ``secagg-`` before it and hyphens in it."""

    protocol: str = PAIRWISE
    mode: str | None = None
    """Trust in the server, for pairwise masks; by default ``active`` with a roster, and ``semi_honest`` without."""
    topology: str | None = None
    """By default ``sparse``, and ``full`` where few clients have no sparse graph that tolerates the dropouts."""
    suite: str | None = None
    """By default the protocol's: ``hybrid`` for the enclave, the epoch's for one message, otherwise ``classic``."""
    threshold: float = 0.0
    """Share of the invited clients that must stay to the end; 0 plans it (``usual_dropped``)."""
    minimum_cohort: int = 0
    """Minimum number of clients whose sum is released; 0 means what the threshold leaves."""
    corrupted: int | None = None
    """Clients that may work together with the server, in pairwise masks and one message; by default one in ten, and
    with noise 1, because all clients have to use the same number.
    """
    privacy_bits: int = 0
    """The chance that a sparse graph betrays a client is 2^-privacy_bits; 0 means the least of the mode."""
    compression: str = FIXED_POINT
    """``fixed-point``; ``scalar-8`` and the like for codes of so many bits; ``pruning-0.9`` and the like to send what
    is left of every matrix; where indices are counted ``peak`` (or ``peak-128``, in blocks of 128), and ``pq`` (or
    ``pq-64x8``, 64 codewords of 8); ``module:Name`` or ``path/to/file.py:Name`` for a custom scheme."""
    cohort_bits: float = COHORT_BITS
    """Bits for a value with ``peak``, of all clients of a round together."""
    rate: str = "fixed"
    """``auto`` finds the bits of ``peak`` from the clients' loss at the model with noise, every ten rounds; the loss is
    the first of ``evaluation_metrics``."""
    harm: float = 0.001
    """How much the noise of one round may raise that loss, with ``auto``."""
    down: str = "model"
    """``sums`` sends nodes that have the last model the sum since, with ``peak``."""
    fraction_bits: int = 16
    """Fixed-point values have steps of 2^-fraction_bits, whatever the cohort is."""
    modulus_bits: int = 0
    """The ring of fixed-point values; 0 means as wide as clip, step and cohort need it."""
    clip: float = 4.0
    """The largest change of one value that fixed point can carry."""
    tensors: str = ""
    """Patterns of names, separated by commas, such as ``*lora*``: the tensors that are summed; empty for all."""
    exclude: str | tuple[str, ...] = ""
    """Patterns of those that are not, such as ``*norm*``: parts that each client keeps for itself."""
    weighting: str = "examples"
    full_weight: int = 1024
    """Number of examples that count fully: a weight is examples / full_weight, at most 1 and at least a quarter."""
    minimum_trained: int = 1
    """The least number of clients whose training succeeded in a round; the server refuses a round of fewer."""
    metrics: str | tuple[str, ...] = ""
    """The metrics of training that are summed, separated by commas; no others leave a client."""
    evaluation_metrics: str | tuple[str, ...] = ""
    """The metrics of evaluation that are summed; if there are none, evaluation travels in the clear."""
    metric_bound: float = 1024.0
    stage_timeout: float = 120.0
    """Seconds for the answers of one protocol stage; the first, and that of training, have the strategy's timeout."""
    stage_patience: float = 2.0
    """Once enough have answered a stage, the others get so many times as long as that took, 5 seconds at least."""
    on_failure: str = "skip"
    """What follows a failed round once one has succeeded: ``skip`` keeps the last good model and begins the next round,
    ``stop`` ends the run with that model, and ``retry`` begins the round again if no client was asked for its update,
    and otherwise skips it."""
    failed_rounds: int = 2
    """Maximum number of failed rounds in a row, and of attempts to begin a round again; one more stops the run. Clients
    limit their uploads for one model as well (``attempts`` of their own settings, 3)."""
    noise: float = 0.0
    """The deviation of the noise that clients add together, over what one of them can change; 0 for none."""
    norm: float = 0.0
    """Largest norm of one client's change of all tensors, to which it clips; needed with noise."""
    max_norm: float = 0.0
    """Longest change of all tensors that counts as it is: an enclave scales longer ones down, also those of malicious
    clients, and sees each to do so; 0 for any. It is the same in all of a task."""
    max_norm_unenforced: float = 0.0
    """The same under any protocol, and only honest clients scale their changes down."""
    roster: str = ""
    """The file that ``secagg keys`` wrote; for every protocol but pairwise masks, and for active mode."""
    enclave_socket: str = ""
    """Address of ``secagg enclave serve``; without it the enclave is simulated in the server's own process."""
    second_server: str = ""
    """Address of ``secagg two-servers serve``; without it server 1 is simulated in the server's own process."""
    servers: str = ""
    """The file with both servers' public keys, needed with a second server."""
    server_keys: str = ""
    """The key file of server 0, which is this one, needed with a second server."""
    epoch: str = ""
    """The record that ``secagg holder record`` wrote: who holds for one-message sums, and until when."""
    holders: str | tuple[str, ...] = ""
    """Addresses of ``secagg holder serve``, in the record's order, separated by commas; needed with it."""
    metric_names: tuple[str, ...] = field(init=False)
    evaluated_names: tuple[str, ...] = field(init=False)
    tensor_patterns: tuple[str, ...] = field(init=False)
    excluded_patterns: tuple[str, ...] = field(init=False)
    holder_sockets: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        require_types(self)
        for name, parsed in _LISTS:
            object.__setattr__(self, parsed, _listed(name, getattr(self, name)))
            object.__setattr__(self, name, ",".join(getattr(self, parsed)))
        for name, is_wrong, sentence in self._checks():
            if is_wrong:
                raise _invalid(name, sentence)

    def _checks(self) -> Iterator[tuple[str, bool, str]]:
        """Yield what may be wrong, whether it is, and what to say then; what follows relies on what came before."""
        for name, choices in (("protocol", registry.names()), *_CHOICES):
            value = getattr(self, name)
            is_planned = value is None and name in _PLANNED
            yield name, not is_planned and value not in choices, f"is one of {', '.join(choices)}; got {value!r}"
        for name, is_valid, rule in _RULES:
            value = getattr(self, name)
            yield name, not is_valid(value), f"{rule}; got {value!r}"
        yield from self._checks_of_compression()
        yield (
            "roster",
            self.is_certified and not self.roster,
            "names the roster file in active mode, for an enclave, two servers and one message; make one with " + _KEYS,
        )
        for name, usual, *protocols in _BELONGING:
            owners = " or ".join(map(repr, protocols))
            sentence = f"belongs to {PREFIX}protocol = {owners}; leave it out, or change {PREFIX}protocol"
            yield name, getattr(self, name) != usual and self.protocol not in protocols, sentence
        is_full = self.topology == Topology.FULL and self.privacy_bits != 0
        yield "privacy_bits", is_full, f"is for sparse graphs; leave it out, or change {PREFIX}topology"
        for name, unset, other, due in _READ_BESIDE:
            is_ignored = getattr(self, name) != unset and getattr(self, other) != due
            yield name, is_ignored, f"is for {_key(other)} = {due!r}; leave it out, or change {_key(other)}"
        is_one, is_two = self.protocol == ONE_MESSAGE, self.protocol == TWO_SERVERS
        yield "epoch", is_one and not self.epoch, "names the record of who holds; have one signed with " + _RECORD
        yield "holders", is_one and not self.holders, "names where the holders of the record listen, in its order"
        for name in ("servers", "server_keys"):
            is_alone = is_two and bool(getattr(self, name)) != bool(self.second_server)
            yield name, is_alone, f"names a file with {PREFIX}second-server, and is left out where that is simulated"
        yield (
            "norm",
            bool(self.noise) != bool(self.norm),
            f"is the norm that clients clip to where {PREFIX}noise is above 0; set both, or none",
        )
        yield from self._checks_of_norms()
        if self.noise:
            whose = f"is for {PREFIX}protocol = {' or '.join(map(repr, NOISED))}, whose clients add it; change that"
            yield "noise", self.protocol not in NOISED, whose
            yield "weighting", self.weighting != "uniform", "is 'uniform' with noise, which counts of examples lack"
            yield "minimum_trained", self.minimum_trained > 1, "is 1 with noise, which hides how many clients trained"
            is_coded = self.compression != FIXED_POINT
            yield "compression", is_coded, "is fixed-point with noise, which codes have no room for"
            for name in ("metrics", "evaluation_metrics"):
                yield name, bool(getattr(self, name)), "are sums without noise of their own; leave them out"

    def _checks_of_norms(self) -> Iterator[tuple[str, bool, str]]:
        sentence = (
            f"is enforced by an enclave, and nobody sees an update alone under {self.protocol!r}: take "
            f"{PREFIX}protocol = {ENCLAVE!r}, or {PREFIX}max-norm-unenforced, to which only honest clients scale"
        )
        yield "max_norm", bool(self.max_norm) and self.protocol != ENCLAVE, sentence
        for name in ("max_norm", "max_norm_unenforced"):
            is_set = bool(getattr(self, name))
            sentence = f"is for {PREFIX}compression = {FIXED_POINT!r}, where all values have one step; change that"
            yield name, is_set and self.compression != FIXED_POINT, sentence
            sentence = f"is {PREFIX}norm where {PREFIX}noise is above 0; leave it out"
            yield name, is_set and bool(self.noise), sentence

    def _checks_of_compression(self) -> Iterator[tuple[str, bool, str]]:
        if self.custom is not None:
            return
        found = _COMPRESSION.fullmatch(self.compression)
        limits = {"bits": SCALAR_BITS, "places": range(1, MOST_SUMMED_PLACES + 1)}
        is_none = found is None or any(found[part] and int(found[part]) not in limit for part, limit in limits.items())
        sentence = (
            "is fixed-point, scalar-2 to scalar-16 for codes of so many bits, pruning-0.9 and the like, pq or "
            f"pq-64x8 and the like, peak or peak-1 to peak-{MOST_SUMMED_PLACES} where indices are counted, or "
            f"module:Name for a custom scheme; got {self.compression!r}"
        )
        yield "compression", is_none, sentence
        has_indices = self.codebook is not None or self.has_peaks
        sentence = (
            f"is {self.compression}, which sends indices, and {self.protocol} sums vectors alone; change "
            f"{PREFIX}protocol to {ENCLAVE!r} or {TWO_SERVERS!r}, or this to fixed-point, scalar-8 or pruning-0.9"
        )
        yield "compression", has_indices and self.protocol in (PAIRWISE, ONE_MESSAGE), sentence
        is_auto, is_told = self.rate == AUTO, self.down == SUMS
        sentence = f"is for {PREFIX}compression = 'peak'; change that, or leave it out"
        yield "down", is_told and not self.has_peaks, sentence
        sentence = f"is for {PREFIX}rate = 'fixed', as 'auto' sends whole models, too"
        yield "down", is_told and is_auto, sentence
        sentence = f"is found from the loss that {PREFIX}evaluation-metrics names first; name it there"
        yield "rate", is_auto and not self.evaluated_names, sentence
        yield "cohort_bits", is_auto and self.cohort_bits != COHORT_BITS, f"is found by {PREFIX}rate = 'auto'"
        sentence = (
            f"is {self.compression}, whose indices are votes, each counting once: take {PREFIX}weighting = 'uniform', "
            "or scalar-8 and the like"
        )
        yield "compression", has_indices and self.weighting != "uniform", sentence

    @property
    def is_certified(self) -> bool:
        """Whether clients are known by certificates, and not as nodes of Flower."""
        return self.trust is SecurityMode.ACTIVE or self.protocol in (ENCLAVE, TWO_SERVERS, ONE_MESSAGE)

    @property
    def trust(self) -> SecurityMode:
        """Trust in the server, for pairwise masks: clients with certified keys need none."""
        usual = SecurityMode.ACTIVE if self.roster and self.protocol == PAIRWISE else SecurityMode.SEMI_HONEST
        return usual if self.mode is None else SecurityMode(self.mode)

    @property
    def full(self) -> int:
        """Number of examples that count fully; 1 where clients weigh the same."""
        return self.full_weight if self.weighting == "examples" else 1

    def _chosen(self, part: str) -> str | None:
        found = _COMPRESSION.fullmatch(self.compression)
        return found[part] if found else None

    @property
    def scalar_bits(self) -> int:
        """Bits of a code; 0 for other schemes."""
        return int(self._chosen("bits") or 0)

    @property
    def sparsity(self) -> str | None:
        """The part that pruning leaves out, as a decimal number; nothing for other schemes."""
        return self._chosen("sparsity")

    @property
    def codebook(self) -> tuple[int, int] | None:
        """Number and length of codewords; None for other schemes."""
        if not self.compression.startswith("pq"):
            return None
        return int(self._chosen("codewords") or CODEWORDS), int(self._chosen("block") or BLOCK_SIZE)

    @property
    def has_peaks(self) -> bool:
        """Whether the whole update is sent as places of peaks."""
        return self.custom is None and self.compression.startswith("peak")

    def places_for(self, clients: int) -> int:
        """Return the values of a block of the peak code, for so many clients."""
        return int(self._chosen("places") or min(places_for(clients, self.cohort_bits), MOST_SUMMED_PLACES))

    @property
    def custom(self) -> str | None:
        """The name of a custom scheme; nothing for other schemes."""
        return self.compression if ":" in self.compression else None

    @property
    def is_calibrated(self) -> bool:
        """Whether scales are taken from what clients told in the round before."""
        return bool(self.scalar_bits) or self.codebook is not None

    @classmethod
    def from_run_config(cls, run_config: Mapping[str, Any]) -> SecAggSettings:
        """Read the keys that begin with ``secagg-``; an app's other keys are its own."""
        known = {_key(item.name): item.name for item in fields(cls) if item.init}
        given = {key: value for key, value in run_config.items() if key.startswith(PREFIX)}
        for key in given:
            if key not in known:
                near = get_close_matches(key.removeprefix(PREFIX), [name.removeprefix(PREFIX) for name in known], n=1)
                advice = f"did you mean {PREFIX}{near[0]}?" if near else f"there are {', '.join(known)}"
                raise InvalidParameters(f"{key} is not a setting of secure aggregation; {advice}")
        return cls(**{known[key]: value for key, value in given.items()})

    def tolerated_dropouts(self, invited: int) -> int:
        """Return how many of the invited may drop out, or refuse too few clients for a sum."""
        if invited < LEAST_CLIENTS:
            raise InvalidParameters(
                f"{invited} clients are too few: of a sum of two each knows the other's update. Let {LEAST_CLIENTS} or "
                "more take part: in NVFlare by min_clients; in Flower by the strategy's min_train_nodes and "
                "min_available_nodes, and a simulation has them after "
                "`flwr federation simulation-config @none/default local --num-supernodes 5`"
            )
        wanted = invited - math.ceil(self.threshold * invited) if self.threshold else usual_dropped(invited)
        if self.protocol != PAIRWISE:
            return wanted
        corrupted = self.corrupted_of(invited)
        topology = Topology.SPARSE if self.topology is None else Topology(self.topology)
        planned = PairwiseSettings(mode=self.trust, topology=topology, corrupted=corrupted, dropped=wanted)
        if planned.takes(invited):
            return wanted
        most = planned.most_dropped(invited)
        if most is None:
            raise InvalidParameters(
                f"{invited} clients are too few for a session in which {corrupted} may be corrupted; invite "
                f"more{f', or lower {PREFIX}corrupted' if corrupted else ''}"
            )
        if self.threshold:
            raise _invalid(
                "threshold",
                f"is {self.threshold}, so {wanted} of {invited} clients might drop out; at most {most} may: raise it "
                f"to {math.ceil(100 * (invited - most) / invited) / 100}",
            )
        return min(wanted, most)

    def corrupted_of(self, invited: int) -> int:
        """Return how many of the invited may work together with the server."""
        usual = 1 if self.noise else usual_corrupted(invited)
        return usual if self.corrupted is None else self.corrupted

    def facts(self, invited: int) -> dict[str, Any]:
        """Return what follows for so many invited clients, by the names of a protocol's settings."""
        tolerated = self.tolerated_dropouts(invited)
        facts: dict[str, Any] = {
            "population": invited,
            "corrupted": self.corrupted_of(invited),
            "maximum_cohort": invited,
            "capacity": invited,
            "dropped": tolerated,
        }
        if self.protocol == PAIRWISE:
            facts |= {"mode": str(self.trust), "privacy_bits": self.privacy_bits or None}
            facts["minimum_cohort"] = self.minimum_cohort or None
        else:
            facts["minimum_cohort"] = least = self.least_cohort(invited)
            facts["maximum_rejections"] = invited - least
        chosen = {"suite": self.suite, "topology": self.topology}
        return facts | {name: value for name, value in chosen.items() if value is not None}

    def least_cohort(self, invited: int) -> int:
        """Return how many updates a sum has at least, where one exchange settles it."""
        least = max(LEAST_COHORT, invited - self.tolerated_dropouts(invited))
        if (self.minimum_cohort or least) > invited:
            raise _invalid(
                "minimum_cohort",
                f"is {self.minimum_cohort}, and {invited} clients are invited; lower it, or invite more",
            )
        return self.minimum_cohort or least


def _key(name: str) -> str:
    return PREFIX + name.replace("_", "-")


def _invalid(name: str, sentence: str) -> InvalidParameters:
    return InvalidParameters(f"{_key(name)} {sentence}")


def _listed(name: str, given: str | tuple[str, ...]) -> tuple[str, ...]:
    parts = given.split(",") if isinstance(given, str) else given
    names = tuple(part.strip() for part in parts if part.strip())
    if len(set(names)) < len(names):
        raise _invalid(name, "names something twice")
    return names


def require_types(settings: Any) -> None:  # noqa: ANN401 -- a dataclass of settings
    """Refuse values of other types than their fields have; TOML writes whole floats like integers."""
    for item in fields(settings):
        if not item.init:
            continue
        value: object = getattr(settings, item.name)
        kind = type(value)
        if item.type == "float" and type(value) is int:
            object.__setattr__(settings, item.name, float(value))
            continue
        kinds, name = _KINDS[str(item.type)]
        parts = cast("Iterable[object]", value) if isinstance(value, tuple) else ()
        if kind not in kinds or any(type(part) is not str for part in parts):
            raise _invalid(item.name, f"is {name}; got {value!r}")


def _zero_or(least: float, most: float = math.inf) -> tuple[Callable[[Any], bool], str]:
    said = f"is 0 or at least {least}" if most == math.inf else f"is 0 or lies in {least}..{most}"
    return lambda value: value == 0 or least <= value <= most, said


_KINDS: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "str": ((str,), "a string"),
    "int": ((int,), "an integer"),
    "int | None": ((int, NoneType), "an integer"),
    "float": ((float,), "a number"),
    "bool": ((bool,), "true or false"),
    "str | None": ((str, NoneType), "a string"),
    "str | tuple[str, ...]": ((str, tuple), "a string or a tuple of strings"),
    "tuple[str, ...]": ((tuple,), "a tuple of strings"),
}
_LISTS: Final = (
    ("metrics", "metric_names"),
    ("evaluation_metrics", "evaluated_names"),
    ("tensors", "tensor_patterns"),
    ("exclude", "excluded_patterns"),
    ("holders", "holder_sockets"),
)
_KEYS, _RECORD = "`secagg keys`", "`secagg holder record`"
_CHOICES: Final = (
    *(("mode", MODES), ("topology", TOPOLOGIES), ("suite", SUITES), ("weighting", WEIGHTINGS)),
    *(("rate", ("fixed", AUTO)), ("down", ("model", SUMS)), ("on_failure", ("skip", "retry", "stop"))),
)
_PLANNED: Final = ("mode", "topology", "suite")
"""Settings that follow from others where they are left out."""
_READ_BESIDE: Final = (
    ("full_weight", 1024, "weighting", "examples"),
    ("cohort_bits", COHORT_BITS, "compression", "peak"),
    ("rate", "fixed", "compression", "peak"),
    ("harm", 0.001, "rate", AUTO),
)
"""Settings that matter with one value of another setting alone, and their values where they are left out."""
_BELONGING: Final = (
    ("mode", None, PAIRWISE),
    ("topology", None, PAIRWISE),
    ("privacy_bits", 0, PAIRWISE),
    ("corrupted", None, PAIRWISE, ONE_MESSAGE),
    ("enclave_socket", "", ENCLAVE),
    ("second_server", "", TWO_SERVERS),
    ("servers", "", TWO_SERVERS),
    ("server_keys", "", TWO_SERVERS),
    ("epoch", "", ONE_MESSAGE),
    ("holders", "", ONE_MESSAGE),
)
"""Settings of some protocols alone, their values where they are left out, and those protocols."""
_RULES: Final[tuple[tuple[str, Callable[[Any], bool], str], ...]] = (
    ("threshold", lambda value: 0.0 <= value <= 1.0, "is a part of the clients, in 0.0..1.0"),
    ("minimum_cohort", *_zero_or(LEAST_COHORT)),
    ("privacy_bits", *_zero_or(CURIOUS_PRIVACY_BITS)),
    ("modulus_bits", *_zero_or(_LEAST_RING, _GREATEST_RING)),
    ("noise", *_zero_or(_LEAST_NOISE, _MOST_NOISE)),
    ("corrupted", lambda value: value is None or value >= 0, "is not negative"),
    ("fraction_bits", lambda value: 1 <= value <= _MOST_FRACTION_BITS, f"lies in 1..{_MOST_FRACTION_BITS}"),
    ("clip", lambda value: 0.0 < value < math.inf, "is a positive number"),
    ("cohort_bits", lambda value: 0.0 < value <= _MOST_COHORT_BITS, f"is above 0.0, and at most {_MOST_COHORT_BITS}"),
    ("harm", lambda value: 0.0 < value < math.inf, "is a positive number"),
    ("norm", lambda value: 0.0 <= value < math.inf, "is a number from 0 on"),
    ("max_norm", lambda value: 0.0 <= value < math.inf, "is a number from 0 on"),
    ("max_norm_unenforced", lambda value: 0.0 <= value < math.inf, "is a number from 0 on"),
    ("metric_bound", lambda value: 0.0 < value < math.inf, "is a positive number"),
    ("full_weight", lambda value: value in _FULL_WEIGHTS, f"must be between 2 and {_FULL_WEIGHTS[-1]}"),
    ("minimum_trained", lambda value: value >= 1, "is at least 1"),
    ("failed_rounds", lambda value: value >= 1, "is at least 1"),
    ("stage_patience", lambda value: 1.0 <= value < math.inf, "is at least 1.0"),
    ("stage_timeout", lambda value: 0.0 < value < math.inf, "is a positive number of seconds"),
)
