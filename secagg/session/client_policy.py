"""Client policy: the weakest session that a client accepts, whatever a server offers. All protocols share the class.

A protocol yields its comparisons as ``(name, offered, sentence)`` and lists the names that it enforces. A client whose
policy is stricter than the default in any other name refuses the protocol, which could not enforce it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from types import MappingProxyType
from typing import Annotated, Any, Final, Self, cast, get_args, get_type_hints

from secagg.choices import Accumulation, ReleaseForm, SharingMode, Topology
from secagg.errors import InvalidParameters, Misuse, Reason
from secagg.parameters import LEAST_COHORT, LEAST_THRESHOLD, SecurityMode, Suite, require_integer
from secagg.wire import CHECKED_FORM, FORM

Compared = tuple[str, Any, str]
"""Name in the policy, offered value, and the error sentence, with ``{offered}`` and ``{own}``."""
_KEY_BYTES: Final = 32
USUAL_BITS: Final = 16
"""Default number of bits of a value in a sum of models."""
_MOST_CLIENTS: Final = (1 << 32) - 1
_MOST_NORM: Final = 1 << 40
_CORRUPTED_IN, _DROPPED_IN = 10, 10
_DROPPED_IN_A_FEW, _DROPPED_OF_A_FEW, _LEAST_WITH_DROPPED = 3, 10, 4


def usual_corrupted(clients: int) -> int:
    """Default number of clients assumed to collude with the server: one in ten, rounded up.

    Plans and client policies share this default, so that a default plan satisfies a default policy.
    """
    return -(-clients // _CORRUPTED_IN)


def usual_dropped(clients: int) -> int:
    """Default number of clients that may drop out: one in three of up to 30, 10 of up to 100, one in ten of more.

    Small cohorts lose a larger share by chance; in large ones each tolerated dropout costs neighbours. A protocol that
    cannot tolerate this number uses its maximum.
    """
    few = min(clients // _DROPPED_IN_A_FEW, _DROPPED_OF_A_FEW) if clients >= _LEAST_WITH_DROPPED else 0
    return max(few, clients // _DROPPED_IN)


def require_members(name: str, members: object, kind: type[Enum]) -> None:
    """Require a frozenset of some members of an enumeration; ``in`` would find any part of a string."""
    if type(members) is not frozenset or not members or {type(m) for m in cast("frozenset[object]", members)} != {kind}:
        raise InvalidParameters(f"{name} must be a frozenset of at least one {kind.__name__}; got {members!r:.60}")


@dataclass(frozen=True, slots=True)
class Limit:
    """An integer with a safe range, and whether larger values are stricter."""

    purpose: str
    minimum: int
    maximum: int | None
    is_minimum: bool

    def check(self, name: str, own: object) -> None:
        require_integer(name, cast("int", own), self.minimum, self.maximum)

    def holds(self, offered: int, own: int) -> bool:
        return offered >= own if self.is_minimum else offered <= own

    def stricter(self, own: int, other: int) -> int:
        return max(own, other) if self.is_minimum else min(own, other)


@dataclass(frozen=True, slots=True)
class Accepted:
    """Members of one enumeration. Checks types too, because members of two enumerations may be equal."""

    purpose: str
    kind: type[Enum]

    def check(self, name: str, own: object) -> None:
        require_members(name, own, self.kind)

    def holds(self, offered: object, own: frozenset[Enum]) -> bool:
        return type(offered) is self.kind and offered in own

    def stricter(self, own: frozenset[Enum], other: frozenset[Enum]) -> frozenset[Enum]:
        return own & other


@dataclass(frozen=True, slots=True)
class Allowed:
    """Something that a client may allow or refuse."""

    purpose: str

    def check(self, name: str, own: object) -> None:
        if type(own) is not bool:
            raise InvalidParameters(f"{name} must be True or False; got {own!r}")

    def holds(self, offered: bool, own: bool) -> bool:  # noqa: FBT001 -- both are flags
        return own or not offered

    def stricter(self, own: bool, other: bool) -> bool:  # noqa: FBT001 -- both are flags
        return own and other


@dataclass(frozen=True, slots=True)
class Pinned:
    """Public keys of other parties. There is no "any": without keys, the client refuses protocols that need them."""

    purpose: str
    count: int

    def check(self, name: str, own: object) -> None:
        keys = (own,) if self.count == 1 else cast("tuple[object, ...]", own)
        if own is not None and not (
            type(keys) is tuple
            and all(type(key) is bytes and len(key) == _KEY_BYTES and any(key) for key in keys)
            and len({*keys}) == len(keys) == self.count
        ):
            many = f"{self.count} different public keys" if self.count > 1 else "a public key"
            raise InvalidParameters(f"{name} must be {many} of {_KEY_BYTES} bytes, not all zeros")

    def holds(self, offered: object, own: object) -> bool:
        return own is not None and type(offered) is type(own) and offered == own

    def stricter(self, own: object, other: object) -> object:
        """Return the pinned party; refuse an operator's different one."""
        if own is not None and other is not None and own != other:
            raise InvalidParameters("another party is already pinned; use the same one, or none")
        return other if own is None else own


def minimum(least: int, purpose: str, most: int | None = None) -> Limit:
    """Return a limit of at least ``least``; larger values are stricter."""
    return Limit(purpose, least, most, is_minimum=True)


def maximum(most: int, purpose: str, least: int = 1) -> Limit:
    """Return a limit of at most ``most``; smaller values are stricter."""
    return Limit(purpose, least, most, is_minimum=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientPolicy:
    """The weakest session that a client accepts.

    Without a policy, a server could lead a client into a cohort of one, a ring that wraps, or a session in which the
    server controls all parties.
    """

    suites: Annotated[frozenset[Suite], Accepted("accepted suites", Suite)] = frozenset(Suite)
    modes: Annotated[frozenset[SecurityMode], Accepted("accepted modes", SecurityMode)] = frozenset(SecurityMode)
    """A client that accepts only ``active`` refuses protocols that trust the server. For a client with a certified key,
    the default means ``active``: otherwise a server could choose the mode in which the key protects nothing."""
    topologies: Annotated[frozenset[Topology], Accepted("accepted graphs", Topology)] = frozenset(Topology)
    sharings: Annotated[frozenset[SharingMode], Accepted("accepted sharings of indices", SharingMode)] = frozenset(
        {SharingMode.CHECKED_POINT_FUNCTIONS}
    )
    forms: Annotated[frozenset[ReleaseForm], Accepted("accepted forms of release", ReleaseForm)] = frozenset(
        {ReleaseForm.DECODED_SUM}
    )
    accumulations: Annotated[frozenset[Accumulation], Accepted("accepted forms of counting", Accumulation)] = frozenset(
        {Accumulation.OBLIVIOUS}
    )
    authority: Annotated[bytes | None, Pinned("public key of the authority that certifies clients", 1)] = None
    server_keys: Annotated[tuple[bytes, bytes] | None, Pinned("public keys of two non-colluding servers", 2)] = None
    minimum_form: Annotated[int, minimum(1, "minimum form of messages", FORM)] = CHECKED_FORM
    """Earlier forms lack a check, and a server or anyone in transit could choose one to avoid it."""
    minimum_cohort: Annotated[int, minimum(LEAST_COHORT, "minimum number of clients in a sum", _MOST_CLIENTS)] = 3
    minimum_threshold: Annotated[int, minimum(LEAST_THRESHOLD, "minimum number of shares that open a secret")] = 2
    minimum_modulus_bits: Annotated[int, minimum(1, "minimum width of a ring, in bits", 64)] = 4
    maximum_length: Annotated[int, maximum(1 << 48, "maximum number of values of an update")] = 1 << 34
    maximum_population: Annotated[int, maximum(_MOST_CLIENTS, "maximum number of invited clients")] = 10_000
    maximum_degree: Annotated[int, maximum(_MOST_CLIENTS, "maximum number of neighbours")] = 1024
    """Sharing costs the degree times the threshold: seconds for some thousand, minutes for tens of thousands."""
    assumed_corrupted: Annotated[int, minimum(0, "number of clients that may collude with the server")] = 1
    """Counted among all clients that could be invited: a server could raise a fraction by inviting fewer."""
    privacy_bits: Annotated[int, minimum(40, "a random graph exposes a client with probability 2^-n")] = 40
    """In ``active`` mode at least 100, because the server may try many graphs."""
    minimum_holders: Annotated[int, minimum(2, "minimum number of holders of an epoch")] = 4
    assumed_corrupted_holders: Annotated[int, minimum(0, "number of holders that may collude with the server")] = 1
    minimum_security_bits: Annotated[int, minimum(1, "minimum security of masks, in bits of our estimate")] = 128
    maximum_key_lifetime: Annotated[int, maximum(24 * 3600, "maximum lifetime of keys of enclaves and holders, s")] = (
        24 * 3600
    )
    """Most evidence contains no time, but keys that live for at most a day are fresh enough without it."""
    maximum_standing_age: Annotated[int, maximum(366 * 24 * 3600, "maximum age of the list of revoked keys, s")] = (
        24 * 3600
    )
    """A server can hide a revocation for this long."""
    maximum_codeword_bits: Annotated[int, maximum(64, "maximum width of an entry of a codebook, in bits", 2)] = 25
    """A wide entry can carry more than its value."""
    maximum_released_bits: Annotated[int, maximum(64, "maximum width of a released element, in bits")] = 64
    minimum_root_mean_square: Annotated[int, minimum(1, "minimum RMS value that an L2 bound leaves, in steps")] = 1
    """With noise a client scales its values down to the bound; a small bound would leave only zeros."""
    minimum_codeword_bound: Annotated[int, minimum(1, "minimum bound on the norm of chosen codewords", _MOST_NORM)] = (
        _MOST_NORM
    )
    """In the steps of the tables; the default accepts no bound. Clients above it count as the least codewords, so a
    bound that only one client meets would give the host that client's update."""
    sealed_vectors_accepted: Annotated[bool, Allowed("whether an enclave may see the values, to bound norms")] = True

    @classmethod
    def among(cls, clients: int, mode: SecurityMode = SecurityMode.ACTIVE) -> Self:
        """Return a policy for pairwise masks, for a client that knows how many clients could be invited.

        It assumes that at least half of them are in a sum, and that one in ten is corrupted.

        Args:
            mode: the only accepted mode.
        """
        require_integer("clients", clients, LEAST_COHORT, _MOST_CLIENTS)
        return cls(
            modes=frozenset({mode}),
            minimum_cohort=max(LEAST_COHORT, clients // 2),
            maximum_population=clients,
            assumed_corrupted=usual_corrupted(clients),
        )

    def __post_init__(self) -> None:
        for name, rule in RULES.items():
            # Exact types only: a JSON parser may return NaN, which is below no limit.
            rule.check(name, getattr(self, name))
        if self.maximum_population < self.minimum_cohort:
            raise InvalidParameters(
                f"maximum_population is {self.maximum_population}, below minimum_cohort {self.minimum_cohort}"
            )

    def admit(self, what: str, keeps: frozenset[str], compared: Iterable[Compared]) -> None:
        """Refuse an offer that is weaker than this policy.

        Args:
            what: name of the offer in errors.
            keeps: names in this policy that the protocol enforces.
            compared: the comparisons, slow ones last.
        Raises:
            InvalidParameters: with reason ``below_floor``; states the value and the limit.
        """
        if unkept := self.unkept(keeps):
            raise _below(f"this client requires {unkept[0]}, which {what} cannot enforce; choose another protocol")
        pinned = {name for name in keeps if isinstance(RULES[name], Pinned) and getattr(self, name) is not None}
        for name, offered, sentence in compared:
            if name not in keeps:
                raise TypeError(f"{name} is compared, but is not among the names that the protocol enforces")
            own = getattr(self, name)
            pinned.discard(name)
            if not RULES[name].holds(offered, own):
                advice = f"set {name}" if own is None else _ADVICE.get(name, "change the offer or the policy")
                raise _below(f"{what} is refused: {sentence.format(offered=offered, own=said(own))}; {advice}")
        if pinned:
            raise _below(f"{what} is refused: it names no {min(pinned)}, but this client requires one")

    def unkept(self, keeps: frozenset[str]) -> list[str]:
        """Return the names of values that are stricter than the default, and that a protocol does not enforce."""
        return [
            name
            for name, default in DEFAULTS.items()
            if name not in keeps
            and (own := getattr(self, name)) != default
            and RULES[name].stricter(own, default) == own
        ]

    def with_keys(self) -> Self:
        """Return the policy of a client with a certified key; set modes to ``semi_honest`` only to trust the server."""
        is_any = self.modes == DEFAULTS["modes"]
        return replace(self, modes=frozenset({SecurityMode.ACTIVE})) if is_any else self

    def raised_by(self, given: Mapping[str, Any]) -> Self:
        """Return the stricter of this policy and an operator's values, by name."""
        stricter = dict[str, Any]()
        for name, value in given.items():
            rule: Any = RULES[name]
            rule.check(name, value)
            stricter[name] = rule.stricter(getattr(self, name), value)
        return replace(self, **stricter)


RULES: Final[Mapping[str, Limit | Accepted | Allowed | Pinned]] = MappingProxyType(
    {name: get_args(hint)[1] for name, hint in get_type_hints(ClientPolicy, include_extras=True).items()}
)
DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType({each.name: each.default for each in fields(ClientPolicy)})
_ADVICE: Final = {"authority": "if the authority has rotated its key, follow it (`secagg keys follow`)"}


def require_policy(policy: object) -> None:
    """Require a policy.

    Raises:
        Misuse: it has another type.
    """
    if type(policy) is not ClientPolicy:
        raise Misuse(f"a client's policy must be a ClientPolicy; got {type(policy).__name__}")


def said(value: object) -> str:
    """Format a policy's value for an error."""
    if isinstance(value, frozenset):
        return ", ".join(sorted(str(each) for each in cast("frozenset[object]", value)))
    return "another" if isinstance(value, (bytes, tuple)) else f"{value}"


def _below(sentence: str) -> InvalidParameters:
    return InvalidParameters(sentence, reason=Reason.BELOW_FLOOR)
