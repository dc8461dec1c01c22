"""Floors of a client: set in its code, raised by its node's operator, lowered by nobody.

An operator gives a SuperNode ``--node-config 'secagg-minimum-cohort=10 secagg-identity="/etc/secagg/client-3.key"'``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from secagg.compression.model_update import ModelUpdate
from secagg.errors import InvalidParameters, Reason
from secagg.identifiers import ClientId
from secagg.parameters import ATTEMPTS, SecurityMode, Suite
from secagg.privacy.budget import NOT_NOISED, PrivacyBudget
from secagg.privacy.client_noise import USUAL_DELTA, NoiseSettings
from secagg.session.privacy_ledger import PrivacyLedger

from .charges import durable_file
from .keys.identities import ClientIdentity, client_file, load_identity
from .schemes import noise_settings
from .settings import (
    CODED_MASK,
    ENCLAVE,
    MODES,
    NOISED,
    ONE_MESSAGE,
    PAIRWISE,
    PREFIX,
    PROTOCOLS,
    SUITES,
    TWO_SERVERS,
    require_types,
)

PARTITION: Final = "partition-id"
Kind = TypeVar("Kind")
MOST_LENGTH: Final = 1 << 34
"""The longest vector that a client encodes."""
_RAISED: Final = (
    *("minimum_cohort", "minimum_threshold", "minimum_modulus_bits", "assumed_corrupted", "privacy_bits"),
    *("minimum_holders", "assumed_corrupted_holders"),
)
_LOWERED: Final = ("maximum_population", "maximum_weight", "attempts")
_NARROWED: Final = ("protocols", "modes", "suites")
_NAMED: Final = ("identity", "enclave_policy", "servers")
"""Files of the node's own, which take the place of those in the app."""
_NOISE: Final = ("noise", "norm", "epsilon", "delta")
_OF_MASKS: Final = (
    *("minimum_threshold", "minimum_modulus_bits", "maximum_population", "assumed_corrupted", "privacy_bits"),
)
_LACKING: Final[Mapping[str, tuple[str, ...]]] = {
    PAIRWISE: (),
    ENCLAVE: _OF_MASKS,
    TWO_SERVERS: _OF_MASKS,
    ONE_MESSAGE: ("minimum_threshold", "privacy_bits"),
    CODED_MASK: ("minimum_threshold", "privacy_bits", "minimum_holders", "assumed_corrupted_holders"),
}
"""Floors that nothing in a protocol could be held to; one that was registered besides is held to none."""
REQUIRED: Final = "required"
_ALLOWED: Final = ("allow_simulated_enclave", "allow_simulated_second_server", "allow_repeats")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """The floors of one client, by the names of their keys."""

    minimum_cohort: int = 3
    minimum_threshold: int = 2
    modes: tuple[str, ...] = ("semi_honest", "active")
    suites: tuple[str, ...] = ("classic", "hybrid")
    minimum_modulus_bits: int = 4
    maximum_population: int = 10_000
    assumed_corrupted: int = 1
    privacy_bits: int = 40
    identity: str | None = None
    """This client's key file, or a folder of them for simulations, where the partition's number names the client; for
    active mode, the enclave, two servers and one message."""
    protocols: tuple[str, ...] = PROTOCOLS
    """Protocols that this client takes part in; a protocol that the library does not bring has to be named."""
    maximum_weight: int = 1
    """Greatest weight of an update in an enclave; with two servers every client counts once, and masks have no limit.
    """
    allow_simulated_enclave: bool = False
    """Whether to seal to a program that nobody vouches for; for simulations and tests."""
    enclave_policy: str | None = None
    """The measurements that this client accepts, a file; see ``secagg.platforms.keys``."""
    allow_simulated_second_server: bool = False
    """Whether to believe a server that is both servers; for simulations and tests."""
    servers: str | None = None
    """A file with the keys of the two servers that this client believes to be in two hands."""
    minimum_holders: int = 4
    """Least number of holders of a sum of one message."""
    assumed_corrupted_holders: int = 1
    """Number of holders that may work together with the server; 4 holders withstand one that does, 3 holders none."""
    attempts: int = ATTEMPTS
    """Greatest number of updates of one model that this client uploads, in all runs; for rounds that failed."""
    allow_repeats: bool = False
    """Whether updates of one model may be uploaded in any number of runs; for simulations run again."""
    required: bool = False
    """Whether a node of Flower refuses every message that is not the protocol's, evaluation in the clear as well."""
    noise: float = 0.0
    norm: float = 0.0
    """The deviation of the noise that all clients add together, over what one can change, and the largest norm of this
    client's change, to which it is clipped; a session with other noise, or with none, is refused."""
    epsilon: float = 0.0
    delta: float = USUAL_DELTA
    """Privacy cost of all sums together that this client is ever in, at most; 0 for any number of sums."""

    def __post_init__(self) -> None:
        require_types(self)

    def raised_by(self, node_config: Mapping[str, Any]) -> NodeSettings:
        """Return the stricter of these floors and those of the node.

        Raises:
            InvalidParameters: a ``secagg-`` key of the node's that is none, or of another type.
        """
        changed = dict[str, Any]()
        for key, value in node_config.items():
            if not key.startswith(PREFIX):
                continue
            name = key.removeprefix(PREFIX).replace("-", "_")
            if name in _RAISED and type(value) is int:
                changed[name] = max(value, getattr(self, name))
            elif name in _LOWERED and type(value) is int:
                changed[name] = min(value, getattr(self, name))
            elif name in _NARROWED and type(value) is str:
                wanted = [part.strip() for part in value.split(",")]
                changed[name] = tuple(part for part in getattr(self, name) if part in wanted)
            elif name in _NAMED and type(value) is str:
                changed[name] = value
            elif name in _NOISE and type(value) in {int, float}:
                own = float(getattr(self, name))
                # Of all but noise less is stricter, and 0 is none at all. A NaN stays what it is, and is refused.
                least = min((value, own), key=lambda one: one or math.inf)
                changed[name] = max(value, own) if name == "noise" else least
            elif name in _ALLOWED and type(value) is bool:
                changed[name] = value and getattr(self, name)
            elif name == REQUIRED and type(value) is bool:
                changed[name] = value or self.required
            else:
                names = (*_RAISED, *_LOWERED, *_NARROWED, *_ALLOWED, *_NAMED, *_NOISE, REQUIRED)
                known = ", ".join(PREFIX + part.replace("_", "-") for part in names)
                raise InvalidParameters(
                    f"the node's {key} is not a floor, or {value!r} is of another type than it has; there are {known}"
                )
        return replace(self, **changed)

    @property
    def accepted_suites(self) -> frozenset[Suite]:
        """The suites.

        Raises:
            InvalidParameters: one of them is none.
        """
        return frozenset(_member("suites", name, SUITES) for name in self.suites)

    @property
    def accepted_modes(self) -> frozenset[SecurityMode]:
        """The modes of pairwise masks.

        Raises:
            InvalidParameters: one of them is none.
        """
        return frozenset(_member("modes", name, MODES) for name in self.modes)

    def require_protocol(self, protocol: str) -> None:
        """Refuse a protocol that this client does not take part in, or that has not what it insists on.

        Raises:
            InvalidParameters: it does not.
        """
        if protocol not in self.protocols:
            raise InvalidParameters(
                f"the server asks for {protocol}, and this client accepts {', '.join(self.protocols) or 'no protocol'}",
                reason=Reason.BELOW_FLOOR,
            )
        usual, lacking = NodeSettings(), _LACKING.get(protocol, (*_RAISED, *_LOWERED))
        changed = [name for name in lacking if self._is_stricter(name, getattr(usual, name))]
        if changed:
            key = PREFIX + changed[0].replace("_", "-")
            raise InvalidParameters(
                f"this client insists on {key}, which {protocol} does not have, so that it would act nowhere; leave it "
                f"out, or leave {protocol} out of {PREFIX}protocols",
                reason=Reason.BELOW_FLOOR,
            )

    def _is_stricter(self, name: str, usual: int) -> bool:
        own: int = getattr(self, name)
        return own < usual if name in _LOWERED else own > usual

    def noise_for(self, protocol: str, update: ModelUpdate) -> NoiseSettings:
        """Return the noise that this client insists on, for the public parameters of a round.

        Raises:
            InvalidParameters: the protocol's clients add none, or there is something in the round that has no norm.
        """
        if not 0 <= self.noise < math.inf or not 0 <= self.norm < math.inf or bool(self.noise) != bool(self.norm):
            raise InvalidParameters(
                f"a client that adds noise has {PREFIX}noise and {PREFIX}norm above 0; got {self.noise} and {self.norm}"
            )
        if self.noise and protocol not in NOISED:
            raise InvalidParameters(
                f"this client insists on noise of its own, which clients add under {' and '.join(NOISED)}, and the "
                f"server asks for {protocol}",
                reason=Reason.BELOW_FLOOR,
            )
        return noise_settings(self.noise, self.norm, update)

    def privacy_ledger(self, public_key: bytes | None) -> PrivacyLedger | None:
        """Return what this client has spent of its budget, over all runs; None where it has none.

        Args:
            public_key: what the client is known by; None for a node without a key.
        Raises:
            InvalidParameters: the budget is none, there is no noise that it could pay for, or nothing to keep it under.
        """
        if not self.epsilon:
            if self.delta != USUAL_DELTA:
                raise InvalidParameters(f"{PREFIX}delta is of {PREFIX}epsilon, which is 0; set both, or none")
            return None
        budget = PrivacyBudget(epsilon=self.epsilon, delta=self.delta)
        if not self.noise:
            raise InvalidParameters(f"{PREFIX}epsilon is set, with {PREFIX}noise = 0: {NOT_NOISED}")
        if public_key is None:
            raise InvalidParameters(
                f"{PREFIX}epsilon is for all runs that a client is ever in, and this one has no key that it is known "
                f"by: take {PREFIX}mode = 'active' or one message, or take the budget away",
                reason=Reason.BELOW_FLOOR,
            )
        return PrivacyLedger(budget, owner=public_key, path=durable_file(public_key, "privacy"))

    def load_identity(self, node_config: Mapping[str, Any]) -> ClientIdentity:
        """Read this client's key file.

        Raises:
            InvalidParameters: there is none, or it is not readable.
        """
        if self.identity is None:
            raise InvalidParameters(
                "active mode, the enclave, two servers and one message need this client's key; give the node "
                f"{PREFIX}identity, or SecAggMod(identity=...)"
            )
        path = Path(self.identity)
        if path.is_dir():
            path /= client_file(ClientId(int(node_config.get(PARTITION, 0))))
        return load_identity(path)


def _member(what: str, name: str, known: Mapping[str, Kind]) -> Kind:
    if name not in known:
        raise InvalidParameters(f"{PREFIX}{what} are {', '.join(known)}; got {name!r}")
    return known[name]
