"""Floors of a client, and the ledger of its uploads.

Floors are set in the code of the client, raised by its node's operator, and lowered by nobody. An operator gives a
SuperNode ``--node-config 'secagg-minimum-cohort=10 secagg-identity="/etc/secagg/client-3.key"'``.

Two sums that differ in one client give that client away. So a round of a task is uploaded for once, numbers go up
within a task, and the updates of one model go into a few sums at most, whatever the server calls task and round. The
ledger belongs to the client's data, which ``secagg-data-name`` names, and not to its key or to who certified it. That
of a client with a key or a name for its data is kept for good in ``SECAGG_LEDGER_DIRECTORY`` (by default in
``$XDG_STATE_HOME/secagg`` or ``~/.local/state/secagg``). Any other client is known by a number that its platform gives
it, and its ledger ends with the memory of the machine.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from secagg.compression.model_update import ModelUpdate
from secagg.errors import InvalidParameters, Reason
from secagg.identifiers import ClientId
from secagg.parameters import ATTEMPTS, SecurityMode, Suite
from secagg.privacy.accounting import NOT_NOISED, PrivacyBudget
from secagg.privacy.client_noise import USUAL_DELTA, NoiseSettings
from secagg.session import durable
from secagg.session.ledger import SpentUpdates
from secagg.session.privacy_ledger import PrivacyLedger
from secagg.session.sealed_state import StateDirectory
from secagg.session.store import Store

from . import LOG
from .keys import ClientIdentity, client_file, load_identity
from .schemes import noise_settings
from .settings import (
    ENCLAVE,
    LIGHT_SECAGG,
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
_LOWERED: Final = ("maximum_population", "attempts")
_OF_MASKS: Final = (
    *("minimum_threshold", "minimum_modulus_bits", "maximum_population", "assumed_corrupted", "privacy_bits"),
)
_LACKING: Final[Mapping[str, tuple[str, ...]]] = {
    PAIRWISE: (),
    ENCLAVE: _OF_MASKS,
    TWO_SERVERS: _OF_MASKS,
    ONE_MESSAGE: ("minimum_threshold", "privacy_bits"),
    LIGHT_SECAGG: ("minimum_threshold", "privacy_bits", "minimum_holders", "assumed_corrupted_holders"),
}
"""Floors that nothing in a protocol could be held to; one that was registered besides is held to none."""
REQUIRED: Final = "required"


def _narrowed(given: str, own: tuple[str, ...]) -> tuple[str, ...]:
    wanted = [part.strip() for part in given.split(",")]
    return tuple(part for part in own if part in wanted)


def _least(given: float, own: float) -> float:
    """Return the smaller bound, where 0 is none at all; a NaN stays what it is, and is refused."""
    return min(given, own, key=lambda one: one or math.inf)


_STRICTER: Final[Mapping[str, tuple[set[type], Callable[[Any, Any], Any]]]] = {
    **dict.fromkeys(_RAISED, ({int}, max)),
    **dict.fromkeys(_LOWERED, ({int}, min)),
    **dict.fromkeys(("protocols", "modes", "suites"), ({str}, _narrowed)),
    **dict.fromkeys(
        ("allow_simulated_enclave", "allow_simulated_second_server", "allow_repeats", "sealed_vectors_accepted"),
        ({bool}, lambda given, own: given and own),
    ),
    **dict.fromkeys(("identity", "enclave_policy", "servers", "data_name"), ({str}, lambda given, _: given)),
    "noise": ({int, float}, max),
    **dict.fromkeys(("norm", "epsilon", "delta"), ({int, float}, _least)),
    REQUIRED: ({bool}, lambda given, own: given or own),
}
"""Floors that an operator may set: the types of a value, and the stricter of the node's and the app's."""


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
    allow_simulated_enclave: bool = False
    """Whether to seal to a program that nobody vouches for; for simulations and tests."""
    sealed_vectors_accepted: bool = True
    """Whether an enclave's program may see this client's values, to bound everybody's norm."""
    enclave_policy: str | None = None
    """The measurements that this client accepts: a file, as ``secagg.platforms.enclave_plug.load_judge`` reads it."""
    allow_simulated_second_server: bool = False
    """Whether to believe a server that is both servers; for simulations and tests."""
    servers: str | None = None
    """A file with the keys of the two servers that this client believes to be in two hands."""
    minimum_holders: int = 4
    """Least number of holders of a sum of one message."""
    assumed_corrupted_holders: int = 1
    """Number of holders that may work together with the server; 4 holders withstand one that does, 3 holders none."""
    data_name: str = ""
    """The operator's name of this client's data, to which its uploads and its privacy budget are charged under any key
    and any authority; empty for the client's number. Clients that train on the same data have the same name."""
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
        """Return the stricter of these floors and those of the node, whose other keys are its own."""
        changed = dict[str, Any]()
        for key, value in node_config.items():
            if not key.startswith(PREFIX):
                continue
            name = key.removeprefix(PREFIX).replace("-", "_")
            if name not in _STRICTER or type(value) not in _STRICTER[name][0]:
                known = ", ".join(PREFIX + part.replace("_", "-") for part in _STRICTER)
                raise InvalidParameters(
                    f"the node's {key} is not a floor, or {value!r} is of another type than it has; there are {known}"
                )
            changed[name] = _STRICTER[name][1](value, getattr(self, name))
        return replace(self, **changed)

    @property
    def accepted_suites(self) -> frozenset[Suite]:
        return frozenset(_member("suites", name, SUITES) for name in self.suites)

    @property
    def accepted_modes(self) -> frozenset[SecurityMode]:
        """The modes of pairwise masks."""
        return frozenset(_member("modes", name, MODES) for name in self.modes)

    def require_protocol(self, protocol: str) -> None:
        """Refuse a protocol that this client does not take part in, or that lacks something it insists on."""
        if protocol not in self.protocols:
            raise InvalidParameters(
                f"the server asks for {protocol}, and this client accepts {', '.join(self.protocols) or 'no protocol'}"
                f"; name it in {PREFIX}protocols if you trust whom it trusts",
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
        """Return the noise that this client insists on, for the public parameters of a round."""
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

    def data_of(self, identity: ClientIdentity | None, client: ClientId | None = None) -> str:
        """Return the name of a client's data, in the ledgers that are kept for good.

        Raises:
            InvalidParameters: the data have no name, and may be those of a client of another authority.
        """
        if identity is None:
            return self.data_name or f"client {client.value if client else 0} without a key"
        data, authority = self.data_name or f"client {identity.client.value}", identity.authority.public_key
        with Store.at(state_folder()).transaction() as rows:
            known = dict(rows.execute("SELECT data, authority FROM names"))
            if not self.data_name and data not in known and {*known.values()} - {authority}:
                raise InvalidParameters(
                    f"{state_folder()} holds the uploads of {', '.join(map(repr, sorted(known)[:4]))} under another "
                    f"authority, and the data of {data!r} may be the same: name them with {PREFIX}data-name, alike "
                    f"where they are the same, or name another folder in {DIRECTORY_VARIABLE}"
                )
            rows.execute("INSERT OR IGNORE INTO names VALUES (?, ?)", (data, authority))
        return data

    def privacy_ledger(self, identity: ClientIdentity | None) -> PrivacyLedger | None:
        """Return what was spent of the budget of a client's data, over all runs; None where there is no budget."""
        if not self.epsilon:
            if self.delta != USUAL_DELTA:
                raise InvalidParameters(f"{PREFIX}delta is of {PREFIX}epsilon, which is 0; set both, or none")
            return None
        budget = PrivacyBudget(epsilon=self.epsilon, delta=self.delta)
        if not self.noise:
            raise InvalidParameters(f"{PREFIX}epsilon is set, with {PREFIX}noise = 0: {NOT_NOISED}")
        if identity is None and not self.data_name:
            raise InvalidParameters(
                f"{PREFIX}epsilon is for all runs that a client is ever in, and this one has no key that it is known "
                f"by: name its data with {PREFIX}data-name, take {PREFIX}mode = 'active' or one message, or take the "
                "budget away",
                reason=Reason.BELOW_FLOOR,
            )
        return PrivacyLedger(budget, data=self.data_of(identity), folder=state_folder())

    def charges(
        self, identity: ClientIdentity | None, states: StateDirectory, client: ClientId, *, is_one_folder: bool = False
    ) -> SpentUpdates:
        """Return the ledger of a client's uploads.

        Args:
            is_one_folder: whether a client without a key is known by the folder of its ledger.
        """
        attempts, data = None if self.allow_repeats else self.attempts, self.data_of(identity, client)
        if identity is None and not self.data_name and not is_one_folder:
            LOG.info(
                "this client has no key and no %sdata-name: its uploads are known by its number %d only, so a server "
                "that gives it another number can ask for another update of the same model",
                *(PREFIX, client.value),
            )
            return SpentUpdates(states.folder / "state", data=data, attempts=attempts)
        is_keyless = identity is None
        return SpentUpdates(state_folder(), data=data, attempts=attempts, is_one_folder=is_keyless and is_one_folder)

    def load_identity(self, node_config: Mapping[str, Any]) -> ClientIdentity:
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


# --- The folder of ledgers --------------------------------------------------------------------------------------------

DIRECTORY_VARIABLE: Final = "SECAGG_LEDGER_DIRECTORY"


def state_folder() -> Path:
    """Return where this user's clients keep what they must not forget, over all runs."""
    if named := os.environ.get(DIRECTORY_VARIABLE):
        folder = Path(named)
    else:
        state = os.environ.get("XDG_STATE_HOME")
        folder = (Path(state) if state else Path.home() / ".local" / "state") / "secagg"
    durable.require_own_folder(folder, DIRECTORY_VARIABLE)
    durable.require_one_layer(folder, DIRECTORY_VARIABLE)
    return folder
