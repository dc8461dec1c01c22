"""A client's node: its policy, its files and allowances, and the ledger of its uploads.

The client's code sets them all; its node's operator can only make them stricter. An operator gives a SuperNode
``--node-config 'secagg-minimum-cohort=10 secagg-identity="/etc/secagg/client-3.key"'``.

Two sums that differ in one client reveal that client's update. So a client uploads once per round of a task, round
numbers increase within a task, and updates of one model go into at most a few sums, whatever names the server gives to
task and round. The ledger belongs to the client's data, which ``secagg-data-name`` names, not to its key or its
authority. If the client has a key or a name for its data, the ledger is stored permanently in
``SECAGG_LEDGER_DIRECTORY`` (by default in ``$XDG_STATE_HOME/secagg`` or ``~/.local/state/secagg``). Any other client is
identified by a number from its platform, and its ledger is lost when the machine restarts.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, cast, get_args, get_type_hints

from secagg.compression.model_update import ModelUpdate
from secagg.errors import InvalidParameters, Reason
from secagg.identifiers import ClientId
from secagg.options import suggestion
from secagg.parameters import ATTEMPTS
from secagg.privacy.accounting import NOT_NOISED, PrivacyBudget
from secagg.privacy.client_noise import USUAL_DELTA, NoiseSettings
from secagg.session import durable
from secagg.session.client_policy import RULES as LIMITS
from secagg.session.client_policy import Accepted, Allowed, ClientPolicy, Pinned, maximum
from secagg.session.identities import ClientIdentity, client_file, load_identity
from secagg.session.ledger import PrivacyLedger, SpentUpdates
from secagg.session.registry import find
from secagg.session.sealed_state import StateDirectory
from secagg.session.store import Store

from . import LOG
from .schemes import noise_settings
from .settings import NOISED, PREFIX, PROTOCOLS

PARTITION: Final = "partition-id"
REQUIRED: Final = "required"


@dataclass(frozen=True, slots=True)
class Named:
    """Option that an operator may replace: a file or a name."""

    purpose: str

    def check(self, name: str, own: object) -> None:
        if own is not None and type(own) is not str:
            raise InvalidParameters(f"{name} must be text; got {own!r}")

    def stricter(self, _: str | None, given: str | None) -> str | None:
        return given


@dataclass(frozen=True, slots=True)
class Chosen:
    """Option with names; an operator may remove some of them."""

    purpose: str

    def check(self, name: str, own: object) -> None:
        if type(own) is not tuple or any(type(one) is not str for one in cast("tuple[object, ...]", own)):
            raise InvalidParameters(f"{name} must be a list of names; got {own!r}")

    def stricter(self, own: tuple[str, ...], given: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(one for one in own if one in given)


@dataclass(frozen=True, slots=True)
class Required:
    """Option that an operator may switch on."""

    purpose: str

    def check(self, name: str, own: object) -> None:
        Allowed(self.purpose).check(name, own)

    def stricter(self, own: bool, given: bool) -> bool:  # noqa: FBT001 -- both are flags
        return own or given


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of at least 0, where 0 means none: noise (larger is stricter) or a bound."""

    purpose: str
    is_minimum: bool = False

    def check(self, name: str, own: object) -> None:
        if type(own) not in (int, float) or not 0 <= cast("float", own) < math.inf:
            raise InvalidParameters(f"{name} must be a number of at least 0; got {own!r}")

    def stricter(self, own: float, given: float) -> float:
        return max(own, given) if self.is_minimum else min(own, given, key=lambda one: one or math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientNode:
    """A client's node; its options are these fields and those of its policy."""

    policy: ClientPolicy = field(default_factory=ClientPolicy)
    is_keyed: bool = False
    """Whether this node only takes part with its key: it has one, and its code or operator set no modes."""
    identity: Annotated[str | None, Named("key file of this client, or a folder of them for simulations")] = None
    """In a folder, the partition's number selects the client. For active mode and protocols with certificates."""
    protocols: Annotated[tuple[str, ...], Chosen("accepted protocols")] = PROTOCOLS
    """A custom protocol must be named."""
    allow_simulated_enclave: Annotated[bool, Allowed("whether to accept an enclave without attestation")] = False
    enclave_policy: Annotated[str | None, Named("file with the measurements that this client accepts")] = None
    """In the format of ``secagg.platforms.enclave_plug.load_judge``."""
    allow_simulated_second_server: Annotated[bool, Allowed("whether one server may simulate the other")] = False
    servers: Annotated[str | None, Named("file with the keys of two non-colluding servers")] = None
    data_name: Annotated[str, Named("name of this client's data, to which uploads and budgets are charged")] = ""
    """Applies under any key and any authority; empty for the client's number. Clients with the same data must use the
    same name."""
    adapter: Annotated[str, Named("fingerprint of the adapter that this client trains; empty: any")] = ""
    attempts: Annotated[int, maximum(1 << 32, "maximum number of uploads for one model, in all runs")] = ATTEMPTS
    allow_repeats: Annotated[bool, Allowed("whether runs may repeat uploads, in simulations")] = False
    required: Annotated[bool, Required("whether a Flower node refuses every message but the protocol's")] = False
    """Also refuses evaluation in the clear."""
    noise: Annotated[float, Amount("deviation of all clients' noise over what one can change", is_minimum=True)] = 0.0
    norm: Annotated[float, Amount("norm to which this client clips its change")] = 0.0
    """A session with other noise, or with none, is refused."""
    epsilon: Annotated[float, Amount("privacy budget of all sums of this client, in all runs; 0: unlimited")] = 0.0
    delta: Annotated[float, Amount("delta of epsilon")] = USUAL_DELTA

    def __post_init__(self) -> None:
        for name, rule in {**RULES, "is_keyed": Allowed("a mark of this class")}.items():
            rule.check(name, getattr(self, name))
        for name in ("noise", "norm", "epsilon", "delta"):
            object.__setattr__(self, name, float(getattr(self, name)))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ClientNode:
        """Return a node from an app's options by name; choices may be text."""
        own, policy = _read(given)
        is_keyed = own.get("identity") is not None and "modes" not in policy
        return cls(policy=ClientPolicy(**policy), is_keyed=is_keyed, **own)

    def raised_by(self, node_config: Mapping[str, Any]) -> ClientNode:
        """Return the stricter of these and an operator's options; ignores keys without the prefix."""
        given = {
            key.removeprefix(PREFIX).replace("-", "_"): value
            for key, value in node_config.items()
            if key.startswith(PREFIX)
        }
        try:
            own, policy = _read(given)
            for name, value in own.items():
                RULES[name].check(name, value)
            stricter = {name: RULES[name].stricter(getattr(self, name), value) for name, value in own.items()}
            is_keyed = "modes" not in policy and (self.is_keyed or own.get("identity") is not None)
            return replace(self, policy=self.policy.raised_by(policy), is_keyed=is_keyed, **stricter)
        except InvalidParameters as error:
            raise InvalidParameters(f"an option of the node, {PREFIX}..., is wrong: {error}") from None

    def require_protocol(self, protocol: str) -> None:
        """Refuse a protocol that this client does not accept, or that cannot enforce its policy."""
        if protocol not in self.protocols:
            raise InvalidParameters(
                f"the server asks for {protocol}, but this client accepts "
                f"{', '.join(self.protocols) or 'no protocol'}; add it to {PREFIX}protocols if you trust its parties",
                reason=Reason.BELOW_FLOOR,
            )
        if unkept := self.policy.unkept(find(protocol).keeps):
            raise InvalidParameters(
                f"this client requires {PREFIX}{unkept[0].replace('_', '-')}, which {protocol} cannot enforce; remove "
                f"it, or leave {protocol} out of {PREFIX}protocols",
                reason=Reason.BELOW_FLOOR,
            )

    def require_keys_used(self, *, is_certified: bool) -> None:
        """Refuse a session without keys if this node has one, unless the modes were named together with the key."""
        # A folder contains the keys of a simulation, in which no key protects anybody.
        if is_certified or not self.is_keyed or Path(str(self.identity)).is_dir():
            return
        raise InvalidParameters(
            f"this node has a key ({PREFIX}identity), but the server asks for a session without keys: give the server "
            f"{PREFIX}roster, or the node {PREFIX}modes = 'semi_honest,active' if you trust the server",
            reason=Reason.BELOW_FLOOR,
        )

    def require_adapter(self, asked: str) -> None:
        """Refuse a session whose adapter differs from this client's."""
        if not self.adapter or asked == self.adapter:
            return
        own, other = _fields(self.adapter), _fields(asked)
        names = [name for name in own if own[name] != other.get(name)]
        found = "; ".join(f"{name} {own[name]!r}, but the server's has {other.get(name)!r}" for name in names)[:500]
        raise InvalidParameters(
            f"this client's adapter has {found or 'another fingerprint'}: a sum of both has no meaning. Give all "
            f"clients one LoraConfig and method, and the server {PREFIX}adapter from an equal plan",
            reason=Reason.BELOW_FLOOR,
        )

    def noise_for(self, protocol: str, update: ModelUpdate) -> NoiseSettings:
        """Return the noise that this client requires, for the public parameters of a round."""
        if bool(self.noise) != bool(self.norm):
            raise InvalidParameters(
                f"clients with noise need {PREFIX}noise and {PREFIX}norm above 0; got {self.noise} and {self.norm}"
            )
        if self.noise and protocol not in NOISED:
            raise InvalidParameters(
                f"this client requires noise, which clients add under {' and '.join(NOISED)}, but the server asks for "
                f"{protocol}",
                reason=Reason.BELOW_FLOOR,
            )
        return noise_settings(self.noise, self.norm, update)

    def data_of(self, identity: ClientIdentity | None, client: ClientId | None = None) -> str:
        """Return the name of a client's data in the permanent ledgers.

        Raises:
            InvalidParameters: the data have no name, and may belong to a client of another authority.
        """
        if identity is None:
            return self.data_name or f"client {client.value if client else 0} without a key"
        data, authority = self.data_name or f"client {identity.client.value}", identity.authority.public_key
        with Store.at(state_folder()).transaction() as rows:
            known = dict(rows.execute("SELECT data, authority FROM names"))
            if not self.data_name and data not in known and {*known.values()} - {authority}:
                raise InvalidParameters(
                    f"{state_folder()} has the uploads of {', '.join(map(repr, sorted(known)[:4]))} under another "
                    f"authority, and the data of {data!r} may be the same: name all of them with {PREFIX}data-name, "
                    f"equal data by one name, or set another folder in {DIRECTORY_VARIABLE}"
                )
            rows.execute("INSERT OR IGNORE INTO names VALUES (?, ?)", (data, authority))
        return data

    def privacy_ledger(self, identity: ClientIdentity | None) -> PrivacyLedger | None:
        """Return the privacy ledger of a client's data, over all runs; None without a budget."""
        if not self.epsilon:
            if self.delta != USUAL_DELTA:
                raise InvalidParameters(f"{PREFIX}delta needs {PREFIX}epsilon, which is 0; set both or neither")
            return None
        budget = PrivacyBudget(epsilon=self.epsilon, delta=self.delta)
        if not self.noise:
            raise InvalidParameters(f"{PREFIX}epsilon is set, with {PREFIX}noise = 0: {NOT_NOISED}")
        if identity is None and not self.data_name:
            raise InvalidParameters(
                f"{PREFIX}epsilon covers all runs of a client, but this client has no key that identifies it: name "
                f"its data with {PREFIX}data-name, use {PREFIX}mode = 'active' or one message, or remove the budget",
                reason=Reason.BELOW_FLOOR,
            )
        return PrivacyLedger(budget, data=self.data_of(identity), folder=state_folder())

    def charges(
        self, identity: ClientIdentity | None, states: StateDirectory, client: ClientId, *, is_one_folder: bool = False
    ) -> SpentUpdates:
        """Return the ledger of a client's uploads.

        Args:
            is_one_folder: whether the folder of its ledger identifies a client without a key.
        """
        attempts, data = None if self.allow_repeats else self.attempts, self.data_of(identity, client)
        if identity is None and not self.data_name and not is_one_folder:
            _say_keyless(client)
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


RULES: Final[Mapping[str, Any]] = MappingProxyType(
    {
        name: get_args(hint)[1]
        for name, hint in get_type_hints(ClientNode, include_extras=True).items()
        if name not in ("policy", "is_keyed")
    }
)


@lru_cache(maxsize=256)
def _say_keyless(client: ClientId) -> None:
    """Warn once per process that the client has no permanent identity."""
    LOG.info(
        "this client has no key and no %sdata-name: its uploads are known by its number %d only, so a server that "
        "gives it another number can ask for another update of the same model",
        *(PREFIX, client.value),
    )


def _read(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a node's options and those of its policy, with choices as members of their enumerations."""
    own, policy = dict[str, Any](), dict[str, Any]()
    limits = {name: rule for name, rule in LIMITS.items() if not isinstance(rule, Pinned)}
    for name, value in given.items():
        if name not in RULES and name not in limits:
            raise InvalidParameters(f"there is no option {name}; {suggestion(name, [*limits, *RULES])}")
        if isinstance(value, list):
            value = tuple(cast("list[object]", value))  # noqa: PLW2901 -- as JSON has tuples
        if isinstance(rule := limits.get(name), Accepted):
            policy[name] = _members(name, value, rule.kind)
        elif name in limits:
            policy[name] = value
        elif isinstance(RULES[name], Chosen) and isinstance(value, str):
            own[name] = tuple(part.strip() for part in value.split(","))
        else:
            own[name] = value
    return own, policy


def _fields(fingerprint: str) -> dict[str, object]:
    try:
        found: object = json.loads(fingerprint)
    except (ValueError, RecursionError):
        found = None
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}


def _members(name: str, value: object, kind: type[Enum]) -> object:
    if not isinstance(value, str | tuple):
        return value
    known = {each.name.lower(): each for each in kind} | {each.name.lower().replace("_", "-"): each for each in kind}
    parts = value.split(",") if isinstance(value, str) else cast("tuple[object, ...]", value)
    members = [known.get(part.strip(), part) if isinstance(part, str) else part for part in parts]
    if strange := [one for one in members if not isinstance(one, kind)]:
        raise InvalidParameters(f"{name} must be some of {', '.join(known)}; got {strange[0]!r}")
    return frozenset(members)


# --- The folder of ledgers --------------------------------------------------------------------------------------------

DIRECTORY_VARIABLE: Final = "SECAGG_LEDGER_DIRECTORY"


def state_folder() -> Path:
    """Return the folder of this user's permanent client state."""
    named, state = (os.environ.get(name) for name in (DIRECTORY_VARIABLE, "XDG_STATE_HOME"))
    folder = Path(named) if named else (Path(state) if state else Path.home() / ".local" / "state") / "secagg"
    if not folder.is_absolute():
        raise InvalidParameters(f"{folder} depends on where clients start; give {DIRECTORY_VARIABLE} an absolute path")
    durable.require_own_folder(folder, DIRECTORY_VARIABLE)
    durable.require_one_layer(folder, DIRECTORY_VARIABLE)
    return folder
