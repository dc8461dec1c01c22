"""Which secure sums there are: one registration for each, and nothing is imported before it is asked for.

A consumer (a command, a training driver, a platform's plug-in) names a protocol and needs nothing deeper:

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
"""Names of the protocols of this library."""
Clock = Callable[[], "datetime"]
"""Returns the time, with a time zone."""


class Simulation(Protocol):
    """A protocol's server, helpers and clients in one process, from one session to the next. It protects nobody."""

    def open(self, subject: Subject, invited: frozenset[ClientId] | None) -> ServerSession:
        """Begin a session; ``None`` invites everybody."""
        ...

    def member(self, client: ClientId) -> Member:
        """Return a client, always with the same keys and ledger; the settings just meet its policy."""
        ...

    @property
    def bytes_between(self) -> int:
        """Bytes exchanged between the server and its helpers so far; for ``Measured``."""
        ...

    def close(self) -> None:
        """End what outlives sessions, and wipe it."""


class Simulate(Protocol):
    """Makes a simulation."""

    def __call__(self, settings: Any, *, coins: Coins, clock: Clock, threads: int = 1) -> Simulation:  # noqa: ANN401 -- the protocol's own class
        """Draw the keys of everybody who is not a client."""
        ...


OF_FORM: Final = option("form of messages; excludes clients without it", minimum=FORMS[0], maximum=FORMS[-1])


@dataclass(frozen=True, kw_only=True)
class ProtocolOptions(Options):
    """Options of one protocol. What follows from the cohort is None, or its facts, until a cohort is planned for."""

    protocol: ClassVar[str] = ""
    """Name of the protocol that has them."""
    suite: Annotated[Suite, option("key agreement and ciphers")] = Suite.CLASSIC
    message_form: Annotated[int, OF_FORM] = FORMS[0]
    minimum_cohort: Annotated[
        int | None, option("clients below which nothing is released", minimum=LEAST_COHORT, maximum=(1 << 32) - 1)
    ] = None

    @property
    def least_cohort(self) -> int:
        """Minimum cohort, also where no cohort was planned for."""
        return LEAST_COHORT if self.minimum_cohort is None else self.minimum_cohort


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolEntry:
    """One protocol, as far as a consumer needs to know it."""

    name: str
    summary: str
    """One line, for a table of choices."""
    settings: type[Any]
    """A frozen dataclass of what a planner or a user chooses; its defaults are safe."""
    segments: frozenset[type[Segment]]
    """Which segments its sums can hold."""
    rounds: bool = False
    """Whether it rounds masked values, so that segments may have fine bits."""
    stages: tuple[Stage, ...]
    """All stages that a session may have, in order; settings may leave some out."""
    open_session: Callable[..., ServerSession]
    """``open_session(subject, settings, invited, helpers)``."""
    helpers: type[Any]
    """Resources of the server: coins, keys, connections."""
    simulate: Simulate
    keeps: frozenset[str] = frozenset()
    """Names in a client's policy that it keeps; a stricter value of another name refuses it."""
    restore: Callable[..., ServerSession] | None = None
    """``restore(snapshot, invited)`` resumes a session, where that is supported; its clients can be suspended too."""
    describe: Callable[[Any], tuple[str, ...]] = field(default=lambda _: ())
    """Notes for the operator of an open session, a line each."""
    takes: Callable[[Any, int], bool] = field(default=lambda _, __: True)
    """Whether this number of clients can have a session with these settings."""
    simulate_cheater: Callable[[Any, ClientId], Member] | None = None
    """Returns a client of a simulation that breaks the rules, where others would notice."""
    costs: Callable[..., Iterable[Costs]] | None = None
    """``costs(layout, clients, suite)``: its forms for a layout and a cohort; a planner leaves out who has none. Where
    settings have ``dropped``, it takes that too."""
    trust: str = ""
    """Parties that a client has to trust, for a table of choices."""
    is_certified: bool = False
    """Whether clients need keys that an authority certified, whatever the settings."""
    is_suspended: bool = True
    """Whether a client's process may end between two messages, as in Flower."""
    connect: Callable[[Any], ServerSession] | None = None
    """On platforms: opens a session of a ``platforms.plugs.ServerSide``; a custom protocol without it is simulated."""
    member: Callable[[Any], Member] | None = None
    """On platforms: a client of a ``platforms.plugs.NodeSide``; needed together with ``connect``."""

    def __post_init__(self) -> None:
        if (self.connect is None) != (self.member is None):
            raise Misuse(f"the protocol {self.name!r} has only one of connect and member; give both, or neither")

    def require_segments(self, layout: Layout) -> None:
        """Refuse a layout that this protocol cannot sum.

        Raises:
            InvalidParameters: naming the segment.
        """
        for position, segment in enumerate(layout.segments):
            if type(segment) not in self.segments:
                raise InvalidParameters(
                    f"{self.name} sums no {type(segment).__name__} (segment {position} of the layout); choose another "
                    "protocol, or a scheme without it"
                )
        if not self.rounds:
            layout.require_whole_steps()


ChosenProtocol = ProtocolName | ProtocolOptions | ProtocolEntry
"""A protocol by its name, by options of its own, or as an entry that need not be registered."""
_FACTS: Final = ("population", "corrupted", "dropped")
_REGISTERED: Final[dict[str, str | ProtocolEntry]] = {
    "pairwise": "secagg.protocols.pairwise_mask.simulation",
    "enclave": "secagg.protocols.enclave.simulation",
    "two-servers": "secagg.protocols.two_servers.simulation",
    "one-message": "secagg.protocols.one_message.simulation",
    "lightsecagg": "secagg.protocols.light_secagg.simulation",
}
"""Entries by name, each an entry or the module whose ``ENTRY`` it is."""
_PAIRWISE: Final = ("secagg", "secagg+", "secaggplus", "secureaggregation", "pairwisemask", "pairwisemasks", "bonawitz")
_ELSEWHERE: Final = dict.fromkeys(_PAIRWISE, "pairwise") | {"tee": "enclave"}
"""What papers, other libraries and our folders call these protocols."""


def given_in(protocol: ChosenProtocol) -> dict[str, Any]:
    """Return the options that differ from their defaults, where a protocol is named by its options.

    Raises:
        InvalidParameters: one of them is a fact about the cohort.
    """
    if not isinstance(protocol, ProtocolOptions):
        return {}
    values = {name: (getattr(protocol, name), each.default) for name, each in declared(type(protocol)).items()}
    given = {name: own for name, (own, default) in values.items() if own != default}
    if facts := [name for name in _FACTS if name in given]:
        raise InvalidParameters(
            f"{facts[0]} of {type(protocol).__name__} is a fact about the clients; say it in the call, by clients=, "
            "corrupted=, dropped= or drop="
        )
    return given


def names() -> tuple[str, ...]:
    """Return what can be found, without importing any of it."""
    return tuple(_REGISTERED)


def find(name: ChosenProtocol | str) -> ProtocolEntry:
    """Return a protocol's entry, also from its options; an entry is its own.

    Raises:
        InvalidParameters: there is none of this name.
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
        raise Misuse(f"{found}.ENTRY is not a ProtocolEntry of the name {name!r}")
    _REGISTERED[name] = entry
    return entry


def require_name(name: str) -> str:
    """Return a protocol's name, or refuse it and say which one may be meant."""
    if name in _REGISTERED:
        return name
    written = name.lower().replace("_", "-")
    meant = _ELSEWHERE.get(written.replace("-", ""), written)
    raise InvalidParameters(f"there is no protocol {name!r}; {suggestion(meant, _REGISTERED)}")


def register(protocol: ProtocolEntry) -> None:
    """Add a protocol of one's own.

    Raises:
        Misuse: the name is taken.
    """
    if protocol.name in _REGISTERED:
        raise Misuse(f"there is a protocol {protocol.name!r} already; give this one another name")
    _REGISTERED[protocol.name] = protocol


def unregister(name: str) -> None:
    """Take a protocol away; for tests."""
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
    """Return a protocol's settings: what its user said, over what follows from the cohort.

    Args:
        facts: by the names of settings; a protocol takes those that it has.
        given: by the same names, as values or as text.
        assigned: ``name=value`` as text, which stands over both.
        called: what the caller calls these assignments, for errors.
    Raises:
        InvalidParameters: a setting that this protocol does not have, or a value that it cannot take.
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
            raise InvalidParameters(f"{called} takes name=value; the settings of {entry.name} are {', '.join(known)}")
        require_known(name)
        with spelled(f"{called} {name}"):
            made[name] = known[name].parsed(text)
    return entry.settings(**made)
