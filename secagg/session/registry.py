"""Registry of secure aggregation protocols: one entry for each, imported on first use.

A consumer (a command, a training driver, a platform's plug-in) only needs a protocol's name:

    entry = find("enclave")
    settings = entry.settings(minimum_cohort=3)
    with closing(entry.simulate(settings, coins=SystemCoins(), clock=now)) as world:
        session = world.open(subject, invited)
        client = world.member(client_id).join(subject, update)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Protocol

from secagg.errors import InvalidParameters, Misuse
from secagg.options import Options, declared, option, spelled, suggestion
from secagg.parameters import LEAST_COHORT, Suite
from secagg.wire import FORMS

if TYPE_CHECKING:
    from datetime import datetime

    from secagg.contract.layout import Layout, Segment
    from secagg.crypto.entropy import Coins
    from secagg.identifiers import ClientId

    from .roles import Member, ServerSession, Stage, Subject
    from .run import Costs

ProtocolName = Literal["pairwise", "enclave", "two-servers", "one-message", "lightsecagg"]
"""Names of this library's protocols."""
Clock = Callable[[], "datetime"]
"""Returns the current time, with a time zone."""


class Simulation(Protocol):
    """A protocol's server, helpers and clients in one process, across sessions. It protects nobody."""

    def open(self, subject: Subject, invited: frozenset[ClientId] | None) -> ServerSession:
        """Open a session; ``None`` invites everybody."""
        ...

    def member(self, client: ClientId) -> Member:
        """Return a client, always with the same keys and ledger; its policy just accepts the settings."""
        ...

    @property
    def bytes_between(self) -> int:
        """Bytes exchanged between the server and its helpers so far; for ``Measured``."""
        ...

    def close(self) -> None:
        """End and wipe what outlives sessions."""


class Simulate(Protocol):
    """Creates a simulation."""

    def __call__(self, settings: Any, *, coins: Coins, clock: Clock, threads: int = 1) -> Simulation:  # noqa: ANN401 -- the protocol's own class
        """Draw the keys of all parties except clients."""
        ...


OF_FORM: Final = option("form of messages; excludes clients without it", minimum=FORMS[0], maximum=FORMS[-1])


@dataclass(frozen=True, kw_only=True)
class ProtocolOptions(Options):
    """Options of one protocol. Those that depend on the cohort are None until a cohort is planned for."""

    protocol: ClassVar[str] = ""
    """Name of the protocol that has these options."""
    suite: Annotated[Suite, option("key agreement and ciphers")] = Suite.CLASSIC
    message_form: Annotated[int, OF_FORM] = FORMS[0]
    minimum_cohort: Annotated[
        int | None, option("minimum number of clients in a released sum", minimum=LEAST_COHORT, maximum=(1 << 32) - 1)
    ] = None

    @property
    def least_cohort(self) -> int:
        """Minimum cohort, even if no cohort was planned for."""
        return LEAST_COHORT if self.minimum_cohort is None else self.minimum_cohort


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolEntry:
    """One protocol, as its consumers see it."""

    name: str
    summary: str
    """One line, for a table of choices."""
    settings: type[Any]
    """A frozen dataclass of the options that a planner or user chooses; its defaults are safe."""
    segments: frozenset[type[Segment]]
    """Kinds of segments that its sums can contain."""
    rounds: bool = False
    """Whether it rounds masked values, so that segments may have fine bits."""
    stages: tuple[Stage, ...]
    """All stages that a session may have, in order; settings may omit some."""
    open_session: Callable[..., ServerSession]
    """``open_session(subject, settings, invited, helpers)``."""
    helpers: type[Any]
    """The server's resources: coins, keys, connections."""
    simulate: Simulate
    keeps: frozenset[str] = frozenset()
    """Names in a client's policy that it enforces; a client with a stricter value of another name refuses it."""
    restore: Callable[..., ServerSession] | None = None
    """``restore(snapshot, invited)`` resumes a session, if supported; its clients can then be suspended too."""
    describe: Callable[[Any], tuple[str, ...]] = field(default=lambda _: ())
    """Notes for an open session's operator, one line each."""
    takes: Callable[[Any, int], bool] = field(default=lambda _, __: True)
    """Whether a session of this many clients is possible with these settings."""
    simulate_cheater: Callable[[Any, ClientId], Member] | None = None
    """Returns a simulated client that breaks the rules, if other parties would notice."""
    costs: Callable[..., Iterable[Costs]] | None = None
    """``costs(layout, clients, suite)``: its forms for a layout and a cohort. A planner skips protocols without it. If
    settings have ``dropped``, it takes that too."""
    trust: str = ""
    """Parties that a client must trust, for a table of choices."""
    is_certified: bool = False
    """Whether clients always need keys that an authority certified."""
    is_suspended: bool = True
    """Whether a client's process may end between two messages, as in Flower."""
    connect: Callable[[Any], ServerSession] | None = None
    """On platforms: opens the session of a ``platforms.plugs.ServerSide``; without it, the protocol is simulated."""
    member: Callable[[Any], Member] | None = None
    """On platforms: creates the client of a ``platforms.plugs.NodeSide``; required together with ``connect``."""

    def __post_init__(self) -> None:
        if (self.connect is None) != (self.member is None):
            raise Misuse(f"the protocol {self.name!r} has only one of connect and member; set both, or neither")

    def require_segments(self, layout: Layout) -> None:
        """Refuse a layout that this protocol cannot sum.

        Raises:
            InvalidParameters: names the segment.
        """
        for position, segment in enumerate(layout.segments):
            if type(segment) not in self.segments:
                raise InvalidParameters(
                    f"{self.name} does not support {type(segment).__name__} (segment {position} of the layout); choose "
                    "another protocol, or a scheme without it"
                )
        if not self.rounds:
            layout.require_whole_steps()


ChosenProtocol = ProtocolName | ProtocolOptions | ProtocolEntry
"""A protocol by name, by its options, or as an entry, which need not be registered."""
_FACTS: Final = ("population", "corrupted", "dropped")
_REGISTERED: Final[dict[str, str | ProtocolEntry]] = {
    "pairwise": "secagg.protocols.pairwise_mask.simulation",
    "enclave": "secagg.protocols.enclave.simulation",
    "two-servers": "secagg.protocols.two_servers.simulation",
    "one-message": "secagg.protocols.one_message.simulation",
    "lightsecagg": "secagg.protocols.light_secagg.simulation",
}
"""Entries by name: each an entry, or the module whose ``ENTRY`` it is."""
_PAIRWISE: Final = ("secagg", "secagg+", "secaggplus", "secureaggregation", "pairwisemask", "pairwisemasks", "bonawitz")
_ELSEWHERE: Final = dict.fromkeys(_PAIRWISE, "pairwise") | {"tee": "enclave"}
"""Other names of these protocols, in papers, other libraries and our folders."""


def given_in(protocol: ChosenProtocol) -> dict[str, Any]:
    """Return the options that differ from their defaults, if a protocol is given by its options.

    Raises:
        InvalidParameters: one of them is a fact about the cohort.
    """
    if not isinstance(protocol, ProtocolOptions):
        return {}
    values = {name: (getattr(protocol, name), each.default) for name, each in declared(type(protocol)).items()}
    given = {name: own for name, (own, default) in values.items() if own != default}
    if facts := [name for name in _FACTS if name in given]:
        raise InvalidParameters(
            f"{facts[0]} of {type(protocol).__name__} is a fact about the clients; pass it to the call, as clients=, "
            "corrupted=, dropped= or drop="
        )
    return given


def names() -> tuple[str, ...]:
    """Return all registered names, without importing the protocols."""
    return tuple(_REGISTERED)


def find(name: ChosenProtocol | str) -> ProtocolEntry:
    """Return a protocol's entry, by name or by its options; an entry is returned unchanged.

    Raises:
        InvalidParameters: no protocol has this name.
    """
    if isinstance(name, ProtocolEntry):
        return name
    if isinstance(name, ProtocolOptions):
        name = name.protocol
    found = _REGISTERED[require_name(name)]
    if isinstance(found, ProtocolEntry):
        return found
    entry = import_module(found).ENTRY
    if not isinstance(entry, ProtocolEntry) or entry.name != name:
        raise Misuse(f"{found}.ENTRY is not a ProtocolEntry named {name!r}")
    _REGISTERED[name] = entry
    return entry


def require_name(name: str) -> str:
    """Return a protocol's name, or refuse it with a suggestion."""
    if name in _REGISTERED:
        return name
    written = name.lower().replace("_", "-")
    meant = _ELSEWHERE.get(written.replace("-", ""), written)
    raise InvalidParameters(f"there is no protocol {name!r}; {suggestion(meant, _REGISTERED)}")


def register(protocol: ProtocolEntry) -> None:
    """Register a custom protocol.

    Raises:
        Misuse: the name is taken.
    """
    if protocol.name in _REGISTERED:
        raise Misuse(f"a protocol {protocol.name!r} is already registered; choose another name")
    _REGISTERED[protocol.name] = protocol


def unregister(name: str) -> None:
    """Remove a protocol; for tests."""
    _REGISTERED.pop(name, None)


# --- Settings as text -------------------------------------------------------------------------------------------------


def planned_settings(
    entry: ProtocolEntry,
    facts: Mapping[str, Any],
    given: Mapping[str, Any] = MappingProxyType({}),
    assigned: Iterable[str] = (),
    *,
    called: str = "settings",
) -> Any:  # noqa: ANN401 -- the protocol's own class
    """Return a protocol's settings: the user's values, and for the rest those that follow from the cohort.

    Args:
        facts: values derived from the cohort, by setting; a protocol ignores those that it does not have.
        given: the user's values, by setting, as values or text.
        assigned: ``name=value`` as text; these override both.
        called: the caller's name for these assignments, for errors.
    Raises:
        InvalidParameters: this protocol does not have a setting, or cannot use its value.
    """
    known = declared(entry.settings)

    def require_known(name: str) -> None:
        if name not in known:
            raise InvalidParameters(f"{entry.name} has no setting {name!r}; {suggestion(name, known)}")

    for name in given:
        require_known(name)
    chosen = {name: value for name, value in {**facts, **given}.items() if name in known}
    made = {name: known[name].parsed(value) if type(value) is str else value for name, value in chosen.items()}
    for assignment in assigned:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise InvalidParameters(f"{called} must be name=value; the settings of {entry.name} are {', '.join(known)}")
        require_known(name)
        with spelled(f"{called} {name}"):
            made[name] = known[name].parsed(text)
    return entry.settings(**made)
