"""Settings of an app: kebab-case keys of ``[tool.flwr.app.config]``, checked by name before anything is sent."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, cast

from secagg.compression.cohort_bits import COHORT_BITS, places_for
from secagg.compression.peak import MOST_SUMMED_PLACES
from secagg.errors import InvalidParameters
from secagg.options import Options, declared, escaped, option, spelled, suggestion
from secagg.parameters import LEAST_COHORT, SecurityMode, Suite
from secagg.protocols.pairwise_mask import CURIOUS_PRIVACY_BITS, PairwiseOptions, Topology
from secagg.session import registry
from secagg.session.client_policy import usual_corrupted, usual_dropped
from secagg.wire import FORMS

PREFIX: Final = "secagg-"
PAIRWISE: Final = "pairwise"
ENCLAVE: Final = "enclave"
TWO_SERVERS: Final = "two-servers"
ONE_MESSAGE: Final = "one-message"
LIGHT_SECAGG: Final = "lightsecagg"
PROTOCOLS: Final = (PAIRWISE, ENCLAVE, TWO_SERVERS, ONE_MESSAGE)
"""Protocols that clients accept by default; a run may also name another registered one."""
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
"""Protocols whose clients add noise on platforms."""
_MOST_FRACTION_BITS: Final = 40
_FULL_WEIGHTS: Final = range(2, (1 << 30) + 1)
LEAST_CLIENTS: Final = 3
"""In a sum of two, each client learns the other's update."""
OF_PAIRWISE: Final = ("protocol", (PAIRWISE,))
OF_TWO_SERVERS: Final = ("protocol", (TWO_SERVERS,))
OF_ONE_MESSAGE: Final = ("protocol", (ONE_MESSAGE,))
OF_PEAK: Final = ("compression", ("peak",))
of_updates, of_rounds = partial(option, part="updates"), partial(option, part="rounds")
_ONE_MATRIX: Final = ("ffa", "alternate")
"""Adapter methods that train one of two matrices in a round."""
_KEYS, _RECORD = "`secagg keys`", "`secagg holder record`"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecAggSettings(Options):
    """Settings of a run; each key is ``secagg-`` and the field's name in kebab case."""

    protocol: Annotated[str, option("aggregation protocol")] = PAIRWISE
    mode: Annotated[str | None, option("trust in the server", choices=tuple(MODES), only_with=OF_PAIRWISE)] = None
    """Default: ``active`` with a roster, ``semi_honest`` without."""
    topology: Annotated[str | None, option("graph of shared masks", choices=TOPOLOGIES, only_with=OF_PAIRWISE)] = None
    """Default: ``sparse``, or ``full`` if no sparse graph of few clients tolerates the dropouts."""
    suite: Annotated[str | None, option("key agreement and ciphers", choices=tuple(SUITES))] = None
    """Default: ``hybrid`` for the enclave, the epoch's suite for one message, otherwise ``classic``."""
    form: Annotated[int, registry.OF_FORM] = FORMS[0]
    threshold: Annotated[float, option("share of clients that must stay; 0: planned", minimum=0, maximum=1)] = 0.0
    """See ``usual_dropped``."""
    minimum_cohort: Annotated[
        int, option("minimum number of clients in a sum; 0: planned", minimum=LEAST_COHORT, or_zero=True)
    ] = 0
    corrupted: Annotated[
        int | None,
        option("clients that may collude with the server", minimum=0, only_with=("protocol", (PAIRWISE, ONE_MESSAGE))),
    ] = None
    """Default: one in ten, and 1 with noise, because all clients must use the same number."""
    privacy_bits: Annotated[
        int,
        option(
            "n for a sparse graph that exposes a client with probability 2^-n; 0: the mode's minimum",
            minimum=CURIOUS_PRIVACY_BITS,
            or_zero=True,
            only_with=OF_PAIRWISE,
        ),
    ] = 0
    compression: Annotated[str, of_updates("encoding of an update")] = FIXED_POINT
    """``fixed-point``; ``scalar-N`` for codes of N bits; ``pruning-0.9`` to send the unpruned values of every matrix;
    with protocols that count indices, ``peak`` (or ``peak-128``, in blocks of 128) and ``pq`` (or ``pq-64x8``, 64
    codewords of length 8); ``module:Name`` or ``path/to/file.py:Name`` for a custom scheme."""
    cohort_bits: Annotated[
        float,
        option(
            "bits per value of all clients together",
            above=0,
            maximum=_MOST_COHORT_BITS,
            only_with=OF_PEAK,
            part="updates",
        ),
    ] = COHORT_BITS
    rate: Annotated[
        str,
        option(
            "whether cohort-bits is fixed, or chosen from the loss",
            choices=("fixed", AUTO),
            only_with=OF_PEAK,
            part="updates",
        ),
    ] = "fixed"
    """``auto`` finds it every ten rounds from the clients' loss for the model with noise; the loss is the first of
    ``evaluation_metrics``."""
    harm: Annotated[
        float,
        option("maximum rise of the loss by one round's noise", above=0, only_with=("rate", (AUTO,)), part="updates"),
    ] = 0.001
    down: Annotated[str, of_updates("message to nodes that have the last model", choices=("model", SUMS))] = "model"
    """``sums`` sends them the sum since that model, with ``peak``."""
    fraction_bits: Annotated[
        int,
        option(
            "n for fixed-point steps of 2^-n; 0: planned from clip",
            minimum=1,
            maximum=_MOST_FRACTION_BITS,
            or_zero=True,
            part="updates",
        ),
    ] = 0
    """Planned steps are 2^-16, or finer for a clip below 4, and coarser if an upload would be longer than the model in
    its own type."""
    modulus_bits: Annotated[
        int,
        option(
            "width of the ring of fixed-point values, in bits; 0: planned",
            minimum=_LEAST_RING,
            maximum=_GREATEST_RING,
            or_zero=True,
            part="updates",
        ),
    ] = 0
    clip: Annotated[float, of_updates("maximum change of one fixed-point value", above=0)] = 4.0
    adapter: Annotated[str, of_updates("fingerprint of the trained LoRA adapter")] = ""
    """From ``secagg.adapters``; a client with another adapter refuses before it trains."""
    tensors: Annotated[str | tuple[str, ...], of_updates("patterns of tensors to sum; none: all")] = ()
    """Rounds take turns with patterns separated by semicolons: ``*lora_B*;*lora_A*``."""
    exclude: Annotated[str | tuple[str, ...], of_updates("patterns of tensors that stay at each client")] = ()
    weighting: Annotated[str, of_updates("weight of an update", choices=WEIGHTINGS)] = "examples"
    full_weight: Annotated[
        int,
        option(
            "number of examples that count fully",
            minimum=_FULL_WEIGHTS[0],
            maximum=_FULL_WEIGHTS[-1],
            only_with=("weighting", ("examples",)),
            part="updates",
        ),
    ] = 1024
    """A weight is examples / full_weight, at most 1 and at least a quarter."""
    minimum_trained: Annotated[int, of_updates("minimum number of clients that trained", minimum=1)] = 1
    """The server refuses a round in which fewer trained."""
    metrics: Annotated[str | tuple[str, ...], of_updates("training metrics to sum")] = ()
    """No other metrics leave a client."""
    evaluation_metrics: Annotated[str | tuple[str, ...], of_updates("evaluation metrics to sum")] = ()
    """Without any, evaluation results are sent in the clear."""
    metric_bound: Annotated[float, of_updates("maximum absolute value of a metric", above=0)] = 1024.0
    stage_timeout: Annotated[float, option("time for the answers of one stage, in seconds", above=0)] = 120.0
    """The first stage and the training stage use the strategy's timeout."""
    stage_patience: Annotated[float, of_rounds("wait for late answers, in multiples of time so far", minimum=1)] = 2.0
    """At least 5 seconds."""
    on_failure: Annotated[str, of_rounds("action after a failed round", choices=("skip", "retry", "stop"))] = "skip"
    """Once a round has succeeded: ``skip`` keeps the last good model and begins the next round, ``stop`` ends the run
    with that model, and ``retry`` repeats the round if no client was asked for its update, and otherwise skips it."""
    failed_rounds: Annotated[int, of_rounds("maximum number of failed rounds in a row, and of retries", minimum=1)] = 2
    """One more stops the run. Clients also limit their uploads per model (``attempts`` of their node, 3)."""
    noise: Annotated[
        float,
        option(
            "standard deviation of the clients' noise, over the sensitivity; 0: none",
            minimum=_LEAST_NOISE,
            maximum=_MOST_NOISE,
            or_zero=True,
            part="updates",
        ),
    ] = 0.0
    norm: Annotated[float, of_updates("norm to which a client clips its change, with noise", minimum=0)] = 0.0
    max_norm: Annotated[float, option("norm to which an enclave scales longer changes; 0: any", minimum=0)] = 0.0
    """Covers all tensors, also of malicious clients; the enclave sees each norm to do so. Constant within a task."""
    max_norm_unenforced: Annotated[float, of_updates("norm to which honest clients scale; 0: any", minimum=0)] = 0.0
    """For any protocol."""
    roster: Annotated[str, option("roster file of `secagg keys`")] = ""
    """Needed in active mode, and for every protocol except pairwise masks."""
    enclave_socket: Annotated[
        str, option("address of `secagg enclave serve`; empty: simulated", only_with=("protocol", (ENCLAVE,)))
    ] = ""
    enclave_collateral: Annotated[
        str, option("folder of the enclave's collateral and endorsement", only_with=("protocol", (ENCLAVE,)))
    ] = ""
    """Read again in each round, so that newer files apply from the next round."""
    second_server: Annotated[
        str, option("address of `secagg server serve`; empty: simulated", only_with=OF_TWO_SERVERS)
    ] = ""
    servers: Annotated[str, option("file with both servers' public keys", only_with=OF_TWO_SERVERS)] = ""
    server_keys: Annotated[
        str,
        option(
            "this server's key file: server 0's, or from `secagg holder keys` for remote holders",
            only_with=("protocol", (TWO_SERVERS, ONE_MESSAGE)),
        ),
    ] = ""
    epoch: Annotated[str, option("record of `secagg holder record`", only_with=OF_ONE_MESSAGE)] = ""
    holders: Annotated[
        str | tuple[str, ...],
        option("addresses of `secagg holder serve`, in the record's order", only_with=OF_ONE_MESSAGE),
    ] = ()

    def __post_init__(self) -> None:
        with spelled(_key):
            Options.__post_init__(self)

    def rules(self) -> Iterator[tuple[str, bool, str]]:
        """Yield rules as (option, whether it is wrong, message); later rules rely on earlier ones."""
        choices = ", ".join(registry.names())
        yield (
            "protocol",
            self.protocol not in registry.names(),
            f"must be one of {choices}; got {escaped(self.protocol)}",
        )
        yield from self._rules_of_compression()
        yield from self._rules_of_adapters()
        sentence = "is required in active mode, for an enclave, two servers and one message; make a roster with "
        yield "roster", self.is_certified and not self.roster, sentence + _KEYS
        is_full = self.topology == Topology.FULL and self.privacy_bits != 0
        yield "privacy_bits", is_full, "only applies to sparse graphs; remove it, or change {topology}"
        is_one, is_two = self.protocol == ONE_MESSAGE, self.protocol == TWO_SERVERS
        yield "epoch", is_one and not self.epoch, "must name the signed record of the holders; make one with " + _RECORD
        yield "holders", is_one and not self.holders, "must list the holders' addresses, in the record's order"
        for name in ("servers", "server_keys"):
            is_alone = is_two and bool(getattr(self, name)) != bool(self.second_server)
            yield name, is_alone, "must be set together with {second_server}; a simulated server needs neither"
        sentence = "is the norm to which clients clip if {noise} is above 0; set both, or neither"
        yield "norm", bool(self.noise) != bool(self.norm), sentence
        yield from self._rules_of_norms()
        if self.noise:
            whose = f"requires {{protocol}} = {' or '.join(map(repr, NOISED))}, whose clients add it; change either"
            yield "noise", self.protocol not in NOISED, whose
            yield "weighting", self.weighting != "uniform", "must be 'uniform' with noise, which would not hide weights"
            yield "minimum_trained", self.minimum_trained > 1, "must be 1 with noise, which hides how many trained"
            is_coded = self.compression != FIXED_POINT
            yield "compression", is_coded, "must be fixed-point with noise, for which other codes have no room"
            for name in ("metrics", "evaluation_metrics"):
                yield name, bool(getattr(self, name)), "cannot be combined with noise, which metrics lack; remove them"

    def _rules_of_norms(self) -> Iterator[tuple[str, bool, str]]:
        sentence = (
            f"is enforced by an enclave; under {self.protocol!r} nobody sees single updates: set "
            f"{{protocol}} = {ENCLAVE!r}, or {{max_norm_unenforced}}, to which only honest clients scale"
        )
        yield "max_norm", bool(self.max_norm) and self.protocol != ENCLAVE, sentence
        for name in ("max_norm", "max_norm_unenforced"):
            is_set = bool(getattr(self, name))
            sentence = f"requires {{compression}} = {FIXED_POINT!r}, where all values have one step; change one of them"
            yield name, is_set and self.compression != FIXED_POINT, sentence
            yield name, is_set and bool(self.noise), "is replaced by {norm} if {noise} is above 0; remove it"

    def _rules_of_adapters(self) -> Iterator[tuple[str, bool, str]]:
        is_empty = any("" in self.tensor_patterns(turn) for turn in range(self.turns))
        yield "tensors", is_empty, "has an empty pattern before or after a semicolon; add a pattern there"
        yield "tensors", self.turns > 1 and self.down == SUMS, "cannot have semicolons with {down} = 'sums'"
        try:
            method: object = json.loads(self.adapter)["method"] if self.adapter else ""
        except (ValueError, LookupError, TypeError, RecursionError):
            method = None
        yield "adapter", type(method) is not str, "is not the fingerprint of a plan of secagg.adapters"
        is_rough = self.has_peaks and self.rate != AUTO and method in _ONE_MATRIX
        sentence = f"must be 'auto' with peak and the method {method}, whose models are much worse with fixed bits"
        yield "rate", is_rough, sentence

    def _rules_of_compression(self) -> Iterator[tuple[str, bool, str]]:
        if self.custom is not None:
            return
        found = _COMPRESSION.fullmatch(self.compression)
        limits = {"bits": SCALAR_BITS, "places": range(1, MOST_SUMMED_PLACES + 1)}
        is_none = found is None or any(found[part] and int(found[part]) not in limit for part, limit in limits.items())
        sentence = (
            "must be fixed-point, scalar-N (N bits, 2 to 16), pruning-N (such as 0.9), pq or pq-NxM (such as 64x8), "
            f"peak or peak-N (N up to {MOST_SUMMED_PLACES}), or module:Name for a custom scheme; "
            f"got {escaped(self.compression)}"
        )
        yield "compression", is_none, sentence
        has_indices = self.codebook is not None or self.has_peaks
        sentence = (
            f"is {self.compression}, which sends indices, but {self.protocol} only sums vectors; change "
            f"{{protocol}} to {ENCLAVE!r} or {TWO_SERVERS!r}, or use fixed-point, scalar-8 or pruning-0.9"
        )
        yield "compression", has_indices and self.protocol in (PAIRWISE, ONE_MESSAGE), sentence
        is_auto, is_told = self.rate == AUTO, self.down == SUMS
        yield "down", is_told and not self.has_peaks, "requires {compression} = 'peak'; change that, or remove it"
        yield "down", is_told and is_auto, "requires {rate} = 'fixed', because 'auto' also sends whole models"
        sentence = "is 'auto', which needs a loss: name it first in {evaluation_metrics}"
        yield "rate", is_auto and not self.evaluated_names, sentence
        yield "cohort_bits", is_auto and self.cohort_bits != COHORT_BITS, "is chosen by {rate} = 'auto'; remove it"
        sentence = (
            f"is {self.compression}, whose indices all count equally: set {{weighting}} = 'uniform', or use a "
            "compression such as scalar-8"
        )
        yield "compression", has_indices and self.weighting != "uniform", sentence

    @property
    def metric_names(self) -> tuple[str, ...]:
        return cast("tuple[str, ...]", self.metrics)

    @property
    def evaluated_names(self) -> tuple[str, ...]:
        return cast("tuple[str, ...]", self.evaluation_metrics)

    @property
    def turns(self) -> int:
        """Number of rounds until the same tensors are summed again."""
        return math.lcm(*(name.count(";") + 1 for name in self.tensors))

    def tensor_patterns(self, turn: int) -> tuple[str, ...]:
        turns = [name.split(";") for name in self.tensors]
        return tuple(names[turn % len(names)].strip() for names in turns)

    @property
    def excluded_patterns(self) -> tuple[str, ...]:
        return cast("tuple[str, ...]", self.exclude)

    @property
    def holder_sockets(self) -> tuple[str, ...]:
        return cast("tuple[str, ...]", self.holders)

    @property
    def is_certified(self) -> bool:
        """Whether certificates identify clients, rather than the platform's nodes."""
        return self.trust is SecurityMode.ACTIVE or registry.find(self.protocol).is_certified

    @property
    def trust(self) -> SecurityMode:
        """Trust in the server, for pairwise masks; clients with certified keys need no trust."""
        usual = SecurityMode.ACTIVE if self.roster and self.protocol == PAIRWISE else SecurityMode.SEMI_HONEST
        return usual if self.mode is None else SecurityMode(self.mode)

    @property
    def full(self) -> int:
        """Number of examples that count fully; 1 with uniform weights."""
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
        """Share that pruning omits, as a decimal number; None for other schemes."""
        return self._chosen("sparsity")

    @property
    def codebook(self) -> tuple[int, int] | None:
        """Number and length of codewords; None for other schemes."""
        if not self.compression.startswith("pq"):
            return None
        return int(self._chosen("codewords") or CODEWORDS), int(self._chosen("block") or BLOCK_SIZE)

    @property
    def has_peaks(self) -> bool:
        """Whether the whole update is sent as positions of peaks."""
        return self.custom is None and self.compression.startswith("peak")

    def places_for(self, clients: int) -> int:
        """Return the block length of the peak code for this number of clients."""
        return int(self._chosen("places") or min(places_for(clients, self.cohort_bits), MOST_SUMMED_PLACES))

    @property
    def custom(self) -> str | None:
        """The name of a custom scheme; None for other schemes."""
        return self.compression if ":" in self.compression else None

    @property
    def is_calibrated(self) -> bool:
        """Whether scales come from the clients' reports of the previous round."""
        return bool(self.scalar_bits) or self.codebook is not None

    @classmethod
    def from_run_config(cls, run_config: Mapping[str, Any]) -> SecAggSettings:
        """Read the keys that begin with ``secagg-``; ignores an app's other keys."""
        known = {_key(name): name for name in declared(cls)}
        given = {key: value for key, value in run_config.items() if key.startswith(PREFIX)}
        for key in given:
            if key not in known:
                short = [name.replace("_", "-") for name in declared(cls)]
                advice = suggestion(key.removeprefix(PREFIX), short, _key)
                raise InvalidParameters(f"{key} is not a setting of secure aggregation; {advice}")
        return cls(**{known[key]: value for key, value in given.items()})

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> SecAggSettings:
        """Read keywords of a function; errors name them as they were typed."""
        for name in keywords.keys() - declared(cls).keys():
            raise InvalidParameters(f"there is no option {name}; {suggestion(name, declared(cls))}")
        with spelled(str):
            return cls(**keywords)

    def tolerated_dropouts(self, invited: int) -> int:
        """Return how many of the invited may drop out; refuses too few clients for a sum."""
        if invited < LEAST_CLIENTS:
            raise InvalidParameters(
                f"{invited} clients are too few: in a sum of two, each learns the other's update. Use at least "
                f"{LEAST_CLIENTS}: in NVFlare with min_clients; in Flower with the strategy's fraction_train, "
                "min_train_nodes and min_available_nodes, and for a simulation with "
                "`flwr federation simulation-config @none/default local --num-supernodes 5`"
            )
        wanted = invited - math.ceil(self.threshold * invited) if self.threshold else usual_dropped(invited)
        if self.protocol != PAIRWISE:
            return wanted
        corrupted = self.corrupted_of(invited)
        topology = Topology.SPARSE if self.topology is None else Topology(self.topology)
        planned = PairwiseOptions(mode=self.trust, topology=topology, corrupted=corrupted, dropped=wanted)
        if planned.takes(invited):
            return wanted
        most = planned.most_dropped(invited)
        if most is None:
            raise InvalidParameters(
                f"{invited} clients are too few for a session with {corrupted} corrupted clients; invite "
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
        """Return how many of the invited may collude with the server."""
        usual = 1 if self.noise else usual_corrupted(invited)
        return usual if self.corrupted is None else self.corrupted

    def facts(self, invited: int) -> dict[str, Any]:
        """Return the settings of the protocol for this number of invited clients."""
        tolerated = self.tolerated_dropouts(invited)
        facts: dict[str, Any] = {
            "message_form": self.form,
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
        """Return the minimum number of updates of a sum, for protocols of one round trip."""
        least = max(LEAST_COHORT, invited - self.tolerated_dropouts(invited))
        if (self.minimum_cohort or least) > invited:
            raise _invalid(
                "minimum_cohort",
                f"is {self.minimum_cohort}, but only {invited} clients are invited; lower it, or invite more",
            )
        return self.minimum_cohort or least


def _key(name: str) -> str:
    return PREFIX + name.replace("_", "-")


def _invalid(name: str, sentence: str) -> InvalidParameters:
    return InvalidParameters(f"{_key(name)} {sentence}")
