"""Configuration of one attempt, agreed before any key is advertised, and the roster that later messages depend on.

The digest of a configuration (T0) is bound into every key, ciphertext and signature of the attempt, so clients that
were offered different sessions cannot agree on anything. Clients that see different lists, keys or graphs derive
different contexts. The list is sent whole, because inclusion proofs do not prove that no client is listed twice.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, NamedTuple, TypeVar

from secagg.choices import Topology
from secagg.contract.layout import Layout, RingSegment
from secagg.crypto.labels import Label, bind
from secagg.crypto.mask_expansion import KEY_LIMIT_BYTES, SEGMENT_BYTES, segment_count
from secagg.crypto.shamir import MAX_HOLDERS
from secagg.declared import MESSAGE_FORM, At, Field, Message, Sizing, choice, encoded, fixed, nested, unsigned, variable
from secagg.errors import (
    InternalError,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerMisbehaved,
    Reason,
    ThresholdNotMet,
)
from secagg.identifiers import CLIENT_ID_BYTES, AttemptContext, ClientId, Party, SessionContext
from secagg.parameters import LEAST_COHORT, LEAST_THRESHOLD, SecurityMode, Suite
from secagg.session.certificates import IDENTITY_KEY_BYTES, NO_STANDING, Standing
from secagg.wire import FORMS, MessageKind, Reader

from .graph import (
    LEAST_DEGREE,
    MAXIMUM_POPULATION,
    Graph,
    least_privacy_bits,
    least_threshold,
    require_committee,
    require_number,
)

if TYPE_CHECKING:
    from secagg.privacy.client_noise import ClientNoise, NoiseSettings
    from secagg.session.client_policy import ClientPolicy, Compared

Known = TypeVar("Known")
Place = TypeVar("Place")
DIGEST_BYTES: Final = 32
OPENING_BYTES: Final = 32
LEAST_CHECK_WORDS: Final = 8
_CHECK_BITS = 64
"""Minimum length in bits of a segment's check words together, so that a wrong seed does not pass by chance."""
_MAXIMUM_TASK_BYTES = 256
_MAXIMUM_LAYOUT_BYTES = 1 << 21
NO_DIGEST: Final = bytes(DIGEST_BYTES)
NO_AUTHORITY: Final = bytes(IDENTITY_KEY_BYTES)
ENFORCED: Final = frozenset(
    (
        *("suites", "modes", "topologies", "maximum_degree", "minimum_cohort", "minimum_threshold"),
        *("minimum_modulus_bits", "maximum_length", "maximum_population", "assumed_corrupted", "privacy_bits"),
        *("minimum_form", "maximum_standing_age"),
    )
)
"""Settings of a client's policy that this protocol enforces, in ``compared`` or at clients."""
_GAP_BITS: Final = 7
_MORE: Final = 1 << _GAP_BITS
_CACHED_ROSTERS: Final = 4
_CLIENT_LIMIT: Final = 1 << (8 * CLIENT_ID_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfiguration(Message):
    """Everything that the parties of one attempt agree on; ``plan_session`` creates it."""

    kind: ClassVar = MessageKind.SESSION_OFFER
    message_form: Annotated[int, MESSAGE_FORM] = FORMS[0]
    task: Annotated[bytes, variable(_MAXIMUM_TASK_BYTES)]
    """Training task, as the platform names it."""
    model_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    """Digest of the model that every client trains from; updates of different models must not be added."""
    round_number: Annotated[int, unsigned(8)]
    attempt: Annotated[int, unsigned(4)]
    mode: Annotated[SecurityMode, choice(tuple(SecurityMode))]
    suite: Annotated[Suite, choice(tuple(Suite))]
    topology: Annotated[Topology, choice(tuple(Topology))]
    degree: Annotated[int, unsigned(4)]
    """Number of neighbours of a client in a sparse graph; 0 in a full graph, where all clients are neighbours."""
    threshold: Annotated[int, unsigned(4)]
    committee_size: Annotated[int, unsigned(4)]
    """Number of clients that certify the survivors in ``active`` mode, 0 for all; 0 in ``semi_honest`` mode."""
    quorum: Annotated[int, unsigned(4)]
    """Number of committee members that must sign; 0 in ``semi_honest`` mode."""
    minimum_cohort: Annotated[int, unsigned(4)]
    maximum_population: Annotated[int, unsigned(4)]
    layout: Annotated[Layout, encoded(Layout, _MAXIMUM_LAYOUT_BYTES)]
    check_words: Annotated[int, unsigned(1)]
    application_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    """Digest of other settings that the platform binds, such as noise."""
    authority: Annotated[bytes, fixed(IDENTITY_KEY_BYTES)]
    """Public key of the authority that certifies identities; zeros in ``semi_honest`` mode."""
    standing: Annotated[Standing, nested(Standing)] = NO_STANDING
    """The authority's revocations and their time; all clients judge certificates as of that time."""
    graph_commitment: Annotated[bytes, fixed(DIGEST_BYTES)]
    """Commitment to the server's contribution to the graph seed."""
    server_nonce: Annotated[bytes, fixed(DIGEST_BYTES)]
    context: AttemptContext = field(init=False, repr=False, compare=False)
    """Digest of this configuration (T0); everything in the attempt is bound to it."""

    def __post_init__(self) -> None:
        self._check_types()
        require_number("round_number", self.round_number, 0, (1 << 64) - 1)
        require_number("attempt", self.attempt, 0, (1 << 32) - 1)
        require_number("maximum_population", self.maximum_population, LEAST_COHORT, MAXIMUM_POPULATION)
        require_number("minimum_cohort", self.minimum_cohort, LEAST_COHORT, self.maximum_population)
        require_number("check_words", self.check_words, LEAST_CHECK_WORDS, _CHECK_BITS)
        most = self.maximum_population - 1
        match self.topology:
            case Topology.FULL:
                require_number("degree of a full graph", self.degree, 0, 0)
                require_number("maximum_population of a full graph", self.maximum_population, LEAST_COHORT, MAX_HOLDERS)
            case Topology.SPARSE:
                require_number("degree", self.degree, LEAST_DEGREE, min(most, MAX_HOLDERS))
                if self.degree % 2:
                    raise InvalidParameters(f"the degree of a sparse graph must be even; got {self.degree}")
                most = self.degree
        require_number("threshold", self.threshold, LEAST_THRESHOLD, most)
        self._check_certification()
        self._check_streams()
        digest = hashlib.sha256(bind(Label.CONFIGURATION, self.encode())).digest()
        object.__setattr__(self, "context", AttemptContext(digest))

    def _check_types(self) -> None:
        for name, size in (
            ("model_digest", DIGEST_BYTES),
            ("application_digest", DIGEST_BYTES),
            ("authority", IDENTITY_KEY_BYTES),
            ("graph_commitment", DIGEST_BYTES),
            ("server_nonce", DIGEST_BYTES),
        ):
            value = getattr(self, name)
            if type(value) is not bytes or len(value) != size:
                raise InvalidParameters(f"{name} must be {size} bytes")
        if type(self.task) is not bytes or not 1 <= len(self.task) <= _MAXIMUM_TASK_BYTES:
            raise InvalidParameters(f"task must be 1 to {_MAXIMUM_TASK_BYTES} bytes")
        kinds = tuple(map(type, (self.mode, self.suite, self.topology, self.layout, self.standing)))
        if kinds != (SecurityMode, Suite, Topology, Layout, Standing):
            raise Misuse("mode must be a SecurityMode, suite a Suite, topology a Topology, layout and standing alike")
        self.layout.require_rings()

    def _check_certification(self) -> None:
        match self.mode:
            case SecurityMode.SEMI_HONEST:
                require_number("committee_size in semi_honest mode", self.committee_size, 0, 0)
                require_number("quorum in semi_honest mode", self.quorum, 0, 0)
                if self.authority != NO_AUTHORITY or self.standing != NO_STANDING:
                    raise InvalidParameters("semi_honest mode uses no authority; leave it zero, or use active mode")
            case SecurityMode.ACTIVE:
                require_number("committee_size", self.committee_size, 0, self.maximum_population)
                require_number("quorum", self.quorum, 1, self.committee_size or self.maximum_population)
                if self.authority == NO_AUTHORITY:
                    raise InvalidParameters(
                        "active mode needs an authority that the server does not control; otherwise the server can "
                        "impersonate all clients but one"
                    )

    def _check_streams(self) -> None:
        """Refuse a layout that needs more mask stream than one key provides."""
        used = sum(segment_count(s.ring, s.length + self.check_words_of(s)) for s in self.segments)
        if used > KEY_LIMIT_BYTES // SEGMENT_BYTES:
            raise InvalidParameters(
                f"the layout needs {used} stream segments for its masks, at least one per segment, but a key provides "
                f"{KEY_LIMIT_BYTES // SEGMENT_BYTES}; merge segments of equal width, or send less"
            )

    @property
    def is_active(self) -> bool:
        """Whether clients are certified and sign what they send."""
        return self.mode is SecurityMode.ACTIVE

    @property
    def segments(self) -> tuple[RingSegment, ...]:
        """The masked segments: those of the layout, and a count of 1 per contributor, whose sum cannot wrap around."""
        return (*self.layout.require_rings(), RingSegment(self.maximum_population.bit_length(), 1))

    def check_words_of(self, segment: RingSegment) -> int:
        return max(self.check_words, -(-_CHECK_BITS // segment.modulus_bits))

    @property
    def masked_bytes(self) -> int:
        """Size of one client's masked vector on the wire, in bytes."""
        return sum(map(self.sent_bytes, self.segments))

    def sent_bytes(self, segment: RingSegment) -> int:
        """Return the bytes of a segment and its check words on the wire; rounded values are packed separately."""
        words = self.check_words_of(segment)
        if segment.fine_bits:
            return segment.payload_bytes + segment.ring.packed_bytes(words)
        return segment.ring.packed_bytes(segment.length + words)

    def degree_among(self, population: int) -> int:
        return population - 1 if self.topology is Topology.FULL else self.degree

    def committee_among(self, population: int) -> int:
        return self.committee_size or population

    def require_population(self, population: int, *, corrupted: int, privacy_bits: int, dropped: int = 0) -> None:
        """Refuse a number of advertisers for which these parameters are unsafe.

        Args:
            corrupted: number of clients that the caller assumes to be corrupted, as an absolute count.
            privacy_bits: a bad graph may be drawn with probability at most 2^-privacy_bits, and a bad committee with
                half of it.
            dropped: number of clients that may drop out; only matters to a sparse ``semi_honest`` session.
        Raises:
            InvalidParameters: too few or too many clients, or a threshold or quorum that does not protect them.
        """
        require_number("population", population, self.minimum_cohort, self.maximum_population)
        degree = self.degree_among(population)
        if degree >= population:
            raise InvalidParameters(f"{population} clients cannot have {degree} neighbours each; plan fewer")
        least = least_threshold(
            self.topology,
            self.mode,
            population=population,
            degree=degree,
            corrupted=corrupted,
            dropped=dropped,
            privacy_bits=privacy_bits,
        )
        if not least <= self.threshold <= degree:
            raise InvalidParameters(
                f"the threshold is {self.threshold}; with {population} clients, {corrupted} of them corrupted, it must "
                f"be in {least}..{degree}",
                reason=Reason.BELOW_FLOOR,
            )
        if self.mode is SecurityMode.ACTIVE:
            size = self.committee_among(population)
            if not self.quorum <= size <= population:
                raise InvalidParameters(
                    f"{population} clients cannot form a committee of {size} with a quorum of {self.quorum}"
                )
            require_committee(population, corrupted, size, self.quorum, privacy_bits)

    def compared(self) -> Iterator[Compared]:
        """Yield the settings that are compared with a client's policy, for any number of advertisers."""
        yield "minimum_form", self.message_form, "form {offered} of its messages is below {own}"
        yield "suites", self.suite, "suite {offered} is not among {own}"
        yield "modes", self.mode, "mode {offered} is not among {own}"
        yield "topologies", self.topology, "a {offered} graph is not among {own}"
        yield "maximum_degree", self.degree_among(self.maximum_population), "a degree of {offered} exceeds {own}"
        yield "minimum_cohort", self.minimum_cohort, "a cohort of {offered} is below {own}"
        yield "minimum_threshold", self.threshold, "a threshold of {offered} is below {own}"
        width = min(segment.modulus_bits for segment in self.layout.require_rings())
        yield "minimum_modulus_bits", width, "a ring of {offered} bits is below {own}"
        length = sum(segment.length for segment in self.layout.segments)
        yield "maximum_length", length, "a vector of {offered} is longer than {own}"
        yield "maximum_population", self.maximum_population, "a population of {offered} exceeds {own}"

    def require_accepted(self, policy: ClientPolicy) -> None:
        """Refuse a configuration that is weaker than a client's policy, as ``ClientPolicy.admit`` does."""
        policy.admit("the offered session", ENFORCED, self.compared())

    def require_protected(self, policy: ClientPolicy, population: int) -> None:
        """Refuse a number of advertisers for which these parameters do not protect a client with this policy.

        Raises:
            InvalidParameters: as for ``require_population``.
        """
        bits = max(policy.privacy_bits, least_privacy_bits(self.mode))
        self.require_population(population, corrupted=policy.assumed_corrupted, privacy_bits=bits)


def noise_of(configuration: SessionConfiguration, noise: NoiseSettings | None, corrupted: int) -> ClientNoise | None:
    """Return the noise of a session's clients, if any; clients refuse to unmask fewer contributors than its minimum.

    Raises:
        InvalidParameters, CapacityExceeded: the numbers are incompatible.
    """
    if noise is None:
        return None
    return noise.noise_for(
        configuration.layout,
        minimum_cohort=configuration.minimum_cohort,
        capacity=configuration.maximum_population,
        corrupted=corrupted,
    )


def commit_to_opening(opening: bytes) -> bytes:
    """Return the commitment to the server's contribution to the graph seed, as it appears in a configuration."""
    return hashlib.sha256(bind(Label.GRAPH_OPENING, opening)).digest()


# --- Sets of clients --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClientSet:
    """A set of positions in 0..population-1; position 0 is the lowest bit of the first byte."""

    population: int
    bits: int
    _flags: bytes = field(init=False, repr=False, compare=False)
    """The bits as bytes, so that a lookup takes the same time in a large set as in a small one."""
    _digests: dict[SessionContext, bytes] = field(init=False, repr=False, compare=False)
    """Digests of this set by session, cached because every signature on the set covers the same digest."""

    def __post_init__(self) -> None:
        if self.bits < 0 or self.bits >> self.population:
            raise InvalidParameters(f"a set of {self.population} clients has a bit beyond its last position")
        object.__setattr__(self, "_flags", self.bits.to_bytes(set_bytes(self.population), "little"))
        object.__setattr__(self, "_digests", dict[SessionContext, bytes]())

    @classmethod
    def of(cls, population: int, positions: Iterable[int]) -> ClientSet:
        flags = bytearray(set_bytes(population))
        for position in positions:
            flags[position >> 3] |= 1 << (position & 7)
        return cls(population, int.from_bytes(flags, "little"))

    @classmethod
    def decode(cls, encoded: bytes, population: int) -> ClientSet:
        bits = int.from_bytes(encoded, "little")
        if len(encoded) != set_bytes(population) or bits >> population:
            raise MalformedMessage(f"a set is not one of {population} clients", reason=Reason.NOT_CANONICAL)
        return cls(population, bits)

    def encode(self) -> bytes:
        return self._flags

    def digest(self, context: SessionContext) -> bytes:
        """Return the hash of this set that a session's signatures cover."""
        if (known := self._digests.get(context)) is None:
            size = self.population.to_bytes(4, "big")
            known = hashlib.sha256(bind(Label.CLIENT_SET, context.digest, size, self._flags)).digest()
            self._digests[context] = known
        return known

    def issubset(self, other: ClientSet) -> bool:
        return self.population == other.population and not self.bits & ~other.bits

    def __contains__(self, position: int) -> bool:
        return 0 <= position < self.population and bool(self._flags[position >> 3] >> (position & 7) & 1)

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __iter__(self) -> Iterator[int]:
        flags = self._flags
        return (position for position in range(self.population) if flags[position >> 3] >> (position & 7) & 1)


def client_set(population: Sizing, text: str = "one bit for each position") -> Field:
    """Return the field of a set of clients; the message's place gives the population."""

    def read(reader: Reader, at: At) -> ClientSet:
        return ClientSet.decode(reader.fixed(set_bytes(population(at.place))), population(at.place))

    return Field(lambda writer, value: writer.borrowed(value.encode()), read, text)


def set_bytes(population: int) -> int:
    """Return the size of a set of this many clients on the wire, in bytes."""
    return (population + 7) // 8


# --- The list of clients ----------------------------------------------------------------------------------------------


def encode_clients(clients: Sequence[ClientId]) -> bytes:
    """Encode a strictly increasing list: each gap, minus one, in groups of 7 bits, lowest first (LEB128)."""
    written, previous = bytearray(), -1
    for client in clients:
        gap, previous = client.value - previous - 1, client.value
        while gap >= _MORE:
            written.append(_MORE | gap & (_MORE - 1))
            gap >>= _GAP_BITS
        written.append(gap)
    return bytes(written)


def decode_clients(encoded: bytes, limit: int = MAXIMUM_POPULATION) -> tuple[ClientId, ...]:
    """Decode the list; the result is always strictly increasing.

    Raises:
        MalformedMessage: the list has more clients than the limit; a gap has a non-canonical encoding, does not end, or
            exceeds the range of client ids.
    """
    clients, previous, gap, shift = list[ClientId](), -1, 0, 0
    for byte in encoded:
        gap |= (byte & (_MORE - 1)) << shift
        if byte & _MORE:
            shift += _GAP_BITS
            if shift > 8 * CLIENT_ID_BYTES:
                raise MalformedMessage("a client id in the list is longer than 64 bits", reason=Reason.NOT_CANONICAL)
            continue
        if shift and not byte:
            raise MalformedMessage("a gap in the list of clients ends in zeros", reason=Reason.NOT_CANONICAL)
        previous += gap + 1
        if previous >= _CLIENT_LIMIT:
            raise MalformedMessage("a client id in the list is 2^64 or more", reason=Reason.NOT_CANONICAL)
        if len(clients) == limit:
            raise MalformedMessage(f"the list has more than {limit} clients", reason=Reason.LENGTH_OVER_LIMIT)
        clients.append(ClientId(previous))
        gap = shift = 0
    if shift:
        raise MalformedMessage("the list of clients ends within a gap", reason=Reason.TRUNCATED)
    return tuple(clients)


# --- Rosters ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Roster:
    """The advertisers of an attempt in increasing order, and the values derived from their advertisements."""

    configuration: SessionConfiguration = field(repr=False)
    clients: tuple[ClientId, ...] = field(repr=False)
    root: bytes
    opening: bytes
    context: SessionContext
    graph: Graph

    @property
    def population(self) -> int:
        return len(self.clients)

    @property
    def committee(self) -> tuple[int, ...]:
        """Positions of the clients that certify the survivors."""
        return self.graph.committee(self.configuration.committee_among(self.population))

    def position_of(self, client: ClientId) -> int | None:
        position = bisect_left(self.clients, client)
        return position if position < len(self.clients) and self.clients[position] == client else None

    def set_of(self, positions: Iterable[int]) -> ClientSet:
        return ClientSet.of(self.population, positions)

    def require_cohort(self, members: ClientSet, must: str, of: int | None = None) -> None:
        """Refuse a set with a part below the minimum cohort, because unmasking reveals the sum of each part.

        Args:
            must: what the members must do, for the error message.
            of: only check the part of this position; by default, check all parts.
        Raises:
            ThresholdNotMet: states the size of the smallest part.
        """
        needed, parts = self.configuration.minimum_cohort, self.graph.parts(members)
        smallest = min(len(part) for part in parts if of is None or of in part)
        if smallest < needed:
            why = " in one part of a graph that dropouts have split" if len(parts) > 1 else ""
            raise ThresholdNotMet(needed=needed, present=smallest, what="clients", must=must, why=why)


class Seat(NamedTuple):
    """A client's place on a roster."""

    roster: Roster
    position: int


@lru_cache(maxsize=_CACHED_ROSTERS)
def roster_of(configuration: SessionConfiguration, encoded_clients: bytes, root: bytes, opening: bytes) -> Roster:
    """Derive the roster from a list of advertisers and their advertisements; cached for simulations of many clients.

    Raises:
        MalformedMessage: the list is not canonically encoded.
        InvalidParameters: the list is too short or too long for the session's graph.
    """
    clients, attempt = decode_clients(encoded_clients, configuration.maximum_population), configuration.context.digest
    population = len(clients)
    listed = _hash(Label.CLIENT_LIST, encoded_clients)
    digest = _hash(Label.ROSTER, population.to_bytes(4, "big"), listed, root)
    # Deviation: the graph seed contains no client nonces; the advertised keys, which rho covers, are just as fresh and
    # unpredictable.
    seed = _hash(Label.GRAPH_SEED, attempt, digest, opening)
    context = SessionContext(_hash(Label.SESSION_CONTEXT, attempt, digest, seed))
    graph = Graph(configuration.topology, population, configuration.degree_among(population), seed)
    return Roster(configuration, clients, root, opening, context, graph)


def entry_digest(client: ClientId, entry: bytes) -> bytes:
    """Return the leaf of a client's advertisement."""
    return _hash(Label.ROSTER_ENTRY, client.encode(), entry)


# --- Checks -----------------------------------------------------------------------------------------------------------


def require_context(
    tag: bytes, context: AttemptContext | SessionContext, sentence: str, culprits: Iterable[Party]
) -> None:
    """Refuse a message whose tag belongs to another context.

    Raises:
        PeerMisbehaved: with this sentence.
    """
    if tag != context.tag:
        raise PeerMisbehaved(sentence, reason=Reason.WRONG_SESSION, culprits=culprits)


def certain(value: Known | None) -> Known:
    """Return a value that an earlier round, or the mode of the session, guarantees."""
    if value is None:
        raise InternalError("a round reads a value that no earlier round has set")
    return value


def _hash(label: Label, *parts: bytes) -> bytes:
    return hashlib.sha256(bind(label, *parts)).digest()
