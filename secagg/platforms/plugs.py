"""Plugs, one per protocol: turn the settings of a run into a session, and those of a node into a member.

Only plugs know protocols by name; the plugs of masks are in this module. The entry of a custom protocol has ``connect``
and ``member``; without them the protocol runs as in its simulation, which protects nobody. A client only takes part in
a custom protocol if its code names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from typing import Any, Final

from secagg.crypto.entropy import Coins, SystemCoins
from secagg.errors import InvalidParameters, Misuse
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.privacy.client_noise import NO_NOISE, NoiseSettings
from secagg.protocols.light_secagg import LightSecAggHelpers, LightSecAggMember
from secagg.protocols.light_secagg import open_session as open_light_secagg
from secagg.protocols.pairwise_mask import PairwiseHelpers, PairwiseMember, Recorder
from secagg.protocols.pairwise_mask import open_session as open_pairwise_mask
from secagg.session.certificates import NO_STANDING, Certificate, Standing
from secagg.session.identities import ClientIdentity, Roster
from secagg.session.ledger import PrivacyLedger, uncharged
from secagg.session.registry import Clock, ProtocolEntry, find, planned_settings
from secagg.session.roles import Member, ServerSession, Subject
from secagg.session.sealed_state import StateDirectory
from secagg.session.standings import SeenStandings
from secagg.session.store import Store

from .client_node import ClientNode, state_folder
from .settings import ENCLAVE, LIGHT_SECAGG, ONE_MESSAGE, PAIRWISE, PREFIX, PROTOCOLS, TWO_SERVERS, SecAggSettings


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSide:
    """What a server needs for one session."""

    settings: SecAggSettings
    subject: Subject
    population: int
    invited: frozenset[ClientId] | None
    """Client ids, if clients are nodes; None if certificates name them."""
    roster: Roster | None
    bounds: tuple[tuple[int, int] | None, ...]
    """Bounds of one value of each segment of the layout, if known."""
    noise: NoiseSettings = NO_NOISE
    max_norms: tuple[int, ...] = ()
    """Maximum norm of one client's values in each ring segment, in steps, if an enclave bounds them."""
    coins: Coins = field(default_factory=SystemCoins)
    clock: Clock = _now
    resources: ExitStack
    """Closed after the session."""

    @property
    def chosen(self) -> Any:  # noqa: ANN401 -- the protocol's own class
        """The protocol's settings for this session."""
        noise = {"noise_multiplier": self.noise.noise_multiplier, "l2_bounds": self.noise.l2_bounds}
        # Values with noise are unbounded.
        bounds = {"bounds": self.bounds if self.noise.noise_multiplier is None else None}
        facts = self.settings.facts(self.population) | noise | bounds | {"max_norms": self.max_norms}
        return planned_settings(find(self.settings.protocol), facts)

    @property
    def certificates(self) -> Mapping[ClientId, Certificate]:
        return {} if self.roster is None else self.roster.certificates

    @property
    def authority(self) -> bytes:
        if self.roster is None:
            raise InvalidParameters(f"{PREFIX}roster must name the clients; create one with `secagg keys`")
        return self.roster.authority

    @property
    def standing(self) -> Standing:
        return NO_STANDING if self.roster is None else self.roster.standing


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSide:
    """A node's parts of one session."""

    settings: ClientNode
    client: ClientId
    certified: ClientIdentity | None
    """The node's key, if certificates identify clients."""
    states: StateDirectory
    """Folder of state that must outlive the node's process."""
    invitation: bytes = b""
    """The first message of the session; empty for later ones."""
    judge: object | None = None
    """Judge of an enclave's evidence, if the client's code names one."""
    noise: NoiseSettings = NO_NOISE
    """Noise that this client adds to every update, and requires."""
    max_norms: tuple[int, ...] | None = None
    """Norms to which an enclave may bound its values, from the terms of the round; None for any."""
    coins: Coins = field(default_factory=SystemCoins)
    clock: Clock = _now
    privacy: PrivacyLedger | None = field(init=False)
    """Ledger of this client's privacy budget, if it has one."""

    def __post_init__(self) -> None:
        if self.settings.is_keyed and self.certified is not None:
            # The server only says that it uses keys.
            policy = replace(self.settings.policy, modes=frozenset({SecurityMode.ACTIVE}))
            object.__setattr__(self, "settings", replace(self.settings, policy=policy))
        object.__setattr__(self, "privacy", self.settings.privacy_ledger(self.certified))

    @property
    def identity(self) -> ClientIdentity:
        """The node's key; required, because a server may run a protocol of certified clients as if they were nodes."""
        if self.certified is None:
            raise Misuse("the server asks for a client without a key, but this protocol identifies clients by keys")
        return self.certified


@dataclass(frozen=True, slots=True, kw_only=True)
class Plug:
    """One protocol on a platform."""

    open: Callable[[ServerSide], ServerSession]
    member: Callable[[NodeSide], Member]


_MODULES: Final = {
    ENCLAVE: "secagg.platforms.enclave_plug",
    TWO_SERVERS: "secagg.platforms.two_servers_plug",
    ONE_MESSAGE: "secagg.platforms.one_message_plug",
}


def plug_of(protocol: str, *, is_suspended: bool = True) -> Plug:
    """Return a protocol's plug; ``is_suspended`` says whether a client's process may end between two messages."""
    entry = find(protocol)
    if is_suspended and not entry.is_suspended:
        raise InvalidParameters(
            f"{PREFIX}protocol = {protocol!r} cannot run on Flower: its clients resume from memory, but a node's "
            f"process may end between two messages; use {', '.join(repr(name) for name in PROTOCOLS)}"
        )
    if protocol in _MODULES:
        module = import_module(_MODULES[protocol])
        return Plug(open=module.opened, member=module.member)
    if entry.connect is not None and entry.member is not None:
        return Plug(open=entry.connect, member=entry.member)
    return _MASKS.get(protocol) or _simulated(entry)


def _simulated(entry: ProtocolEntry) -> Plug:
    """Return a protocol's simulation as a plug; valid only if clients have no keys and the server has no helpers."""

    def opened(side: ServerSide) -> ServerSession:
        world = entry.simulate(side.chosen, coins=side.coins, clock=side.clock)
        side.resources.callback(world.close)
        return world.open(side.subject, side.invited)

    def member(side: NodeSide) -> Member:
        return entry.simulate(entry.settings(), coins=side.coins, clock=side.clock).member(side.client)

    return Plug(open=opened, member=member)


# --- Masks ------------------------------------------------------------------------------------------------------------


def _open_pairwise(side: ServerSide) -> ServerSession:
    helpers = PairwiseHelpers(coins=side.coins)
    if side.roster is not None:
        helpers = replace(helpers, authority=side.authority, standing=side.standing)
    return open_pairwise_mask(side.subject, side.chosen, side.invited, helpers)


def _pairwise_member(side: NodeSide) -> Member:
    identity = side.certified
    return PairwiseMember(
        side.client,
        policy=side.settings.policy,
        coins=side.coins,
        authority=identity.authority if identity else None,
        signing_key=identity.signing_key if identity else None,
        certificate=identity.certificate if identity else None,
        charge=uncharged,
        recording=partial(Recorder, Store.at(side.states.folder / "state")),
        noise=side.noise,
        privacy=side.privacy,
        standings=Store.at(state_folder()) if identity else SeenStandings(),
        clock=side.clock,
    )


def _open_light_secagg(side: ServerSide) -> ServerSession:
    helpers = LightSecAggHelpers(coins=side.coins)
    return open_light_secagg(side.subject, side.chosen, side.invited, helpers)


def _light_secagg_member(side: NodeSide) -> Member:
    policy = side.settings.policy
    return LightSecAggMember(side.client, policy=policy, coins=side.coins, charge=uncharged)


_MASKS: Final = {
    PAIRWISE: Plug(open=_open_pairwise, member=_pairwise_member),
    LIGHT_SECAGG: Plug(open=_open_light_secagg, member=_light_secagg_member),
}
