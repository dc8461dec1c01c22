"""What one attempt at one sum agrees on before anybody advertises a key, and what a client insists on.

The digest of a configuration (T0) is in every key, ciphertext and signature of the attempt, so two clients that were
offered different sessions cannot agree on anything. A retry is another attempt, with another configuration.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, ClassVar, Final, cast

from secagg.contract.layout import MAXIMUM_WEIGHT, Layout, RingSegment
from secagg.crypto.labels import Label, bind
from secagg.crypto.mask_expansion import KEY_LIMIT_BYTES, SEGMENT_BYTES, segment_count
from secagg.crypto.ring import MAXIMUM_MODULUS_BITS, Ring, require_capacity
from secagg.crypto.shamir import MAX_HOLDERS
from secagg.errors import InvalidParameters, Misuse, Reason
from secagg.fields import Message, choice, encoded, fixed, unsigned, variable
from secagg.identifiers import AttemptContext
from secagg.parameters import LEAST_COHORT, LEAST_THRESHOLD, SecurityMode, Suite, usual_corrupted
from secagg.session.certificates import IDENTITY_KEY_BYTES
from secagg.wire import MessageKind

from .graph import LEAST_DEGREE, MAXIMUM_POPULATION, Topology
from .thresholds import CURIOUS_PRIVACY_BITS, least_privacy_bits, least_threshold, require_committee

USUAL_LENGTH: Final = 1 << 28
USUAL_DEGREE: Final = 1024
"""As many neighbours as plans of 10^4 clients take with room to spare; sharing among them takes a tenth of a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFloors:
    """What a client insists on, whatever a server offers.

    A server chooses the parameters of a session; without floors of its own a client would follow it to a cohort of
    one, a threshold of one or a ring that wraps.
    """

    suites: frozenset[Suite]
    modes: frozenset[SecurityMode]
    minimum_cohort: int
    minimum_threshold: int
    minimum_modulus_bits: int
    maximum_length: int
    maximum_population: int
    assumed_corrupted: int
    """How many clients, counted absolutely, the adversary is assumed to hold among all that could ever be invited; a
    fraction of the invited would let a server raise it by leaving honest clients out."""
    privacy_bits: int
    """The chance that one random graph betrays a client is at most 2^-privacy_bits. In ``active`` mode it is at most
    2^-100 whatever stands here, because the server may try many (``thresholds``)."""
    topologies: frozenset[Topology] = frozenset(Topology)
    maximum_degree: int = USUAL_DEGREE
    """The most neighbours: sharing costs their number times the threshold, seconds for some thousands and minutes for
    tens of thousands. In a full graph everybody else is a neighbour, whatever ``maximum_population`` allows."""

    @classmethod
    def usual(  # noqa: PLR0913 -- one for each floor that an application may have a reason to set
        cls,
        clients: int,
        mode: SecurityMode = SecurityMode.ACTIVE,
        *,
        corrupted: int | None = None,
        minimum_cohort: int | None = None,
        maximum_length: int = USUAL_LENGTH,
        suites: frozenset[Suite] = frozenset(Suite),
        privacy_bits: int = CURIOUS_PRIVACY_BITS,
    ) -> ClientFloors:
        """Return floors for an application that knows how many clients it has, and has no reason for others.

        Args:
            clients: how many clients could ever be invited.
            mode: the one mode that is accepted.
            corrupted: how many of them the adversary may hold; one in ten by default.
            minimum_cohort: the least number of contributors whose sum is released; half of the clients by default.

        The threshold and the ring's width have no floor of their own here: both are compared with what the assumed
        corruption and the capacity of the client's decoder need.
        """
        _require_integers(clients)
        return cls(
            suites=suites,
            modes=frozenset({mode}),
            minimum_cohort=max(LEAST_COHORT, clients // 2) if minimum_cohort is None else minimum_cohort,
            minimum_threshold=LEAST_THRESHOLD,
            minimum_modulus_bits=1,
            maximum_length=maximum_length,
            maximum_population=clients,
            assumed_corrupted=usual_corrupted(clients) if corrupted is None else corrupted,
            privacy_bits=privacy_bits,
        )

    def __post_init__(self) -> None:
        _require_integers(
            self.minimum_cohort,
            self.minimum_threshold,
            self.minimum_modulus_bits,
            self.maximum_length,
            self.maximum_population,
            self.assumed_corrupted,
            self.privacy_bits,
            self.maximum_degree,
        )
        _require_members("topologies", self.topologies, Topology)
        _require_members("suites", self.suites, Suite)
        _require_members("modes", self.modes, SecurityMode)
        for unsafe, sentence in (
            (
                self.minimum_cohort < LEAST_COHORT,
                f"minimum_cohort is {self.minimum_cohort}; a sum of fewer than {LEAST_COHORT} is one client's input",
            ),
            (
                self.minimum_threshold < LEAST_THRESHOLD,
                f"minimum_threshold is {self.minimum_threshold}; below {LEAST_THRESHOLD} a share is the secret itself",
            ),
            (
                not 1 <= self.minimum_modulus_bits <= MAXIMUM_MODULUS_BITS,
                f"minimum_modulus_bits is {self.minimum_modulus_bits}; it lies in 1..{MAXIMUM_MODULUS_BITS}",
            ),
            (self.maximum_length < 1, f"maximum_length is {self.maximum_length}; it is at least 1"),
            (
                self.maximum_population < self.minimum_cohort,
                f"maximum_population is {self.maximum_population}, below minimum_cohort {self.minimum_cohort}",
            ),
            (self.maximum_degree < 1, f"maximum_degree is {self.maximum_degree}; a client has a neighbour"),
            (self.assumed_corrupted < 0, f"assumed_corrupted is {self.assumed_corrupted}; it is not negative"),
            (
                self.privacy_bits < CURIOUS_PRIVACY_BITS,
                f"privacy_bits is {self.privacy_bits}; below {CURIOUS_PRIVACY_BITS} a random graph protects nobody",
            ),
        ):
            if unsafe:
                raise InvalidParameters(sentence)

    def privacy_bits_in(self, mode: SecurityMode) -> int:
        """Return what the client insists on in a mode, which is never less than that mode's least."""
        return max(self.privacy_bits, least_privacy_bits(mode))

    def admit(  # noqa: PLR0913 -- one for each floor
        self,
        *,
        suite: Suite,
        mode: SecurityMode,
        cohort: int,
        threshold: int,
        modulus_bits: int,
        length: int,
        population: int,
        topology: Topology,
        degree: int,
    ) -> None:
        """Refuse an offer that is weaker than these floors.

        Raises:
            InvalidParameters: with reason ``below_floor``, naming the value and the floor.
        """
        _require_integers(cohort, threshold, modulus_bits, length, population, degree)
        for weak, sentence in (
            (suite not in self.suites, f"suite {suite} is not among {_names(self.suites)}"),
            (mode not in self.modes, f"mode {mode} is not among {_names(self.modes)}"),
            (topology not in self.topologies, f"a {topology} graph is not among {_names(self.topologies)}"),
            (degree > self.maximum_degree, f"a degree of {degree} exceeds {self.maximum_degree}"),
            (cohort < self.minimum_cohort, f"a cohort of {cohort} is below {self.minimum_cohort}"),
            (threshold < self.minimum_threshold, f"a threshold of {threshold} is below {self.minimum_threshold}"),
            (
                modulus_bits < self.minimum_modulus_bits,
                f"a ring of {modulus_bits} bits is below {self.minimum_modulus_bits}",
            ),
            (length > self.maximum_length, f"a vector of {length} is longer than {self.maximum_length}"),
            (population > self.maximum_population, f"a population of {population} exceeds {self.maximum_population}"),
            (population < cohort, f"a population of {population} cannot hold a cohort of {cohort}"),
            (threshold > population, f"a threshold of {threshold} cannot be met by a population of {population}"),
            (modulus_bits > MAXIMUM_MODULUS_BITS, f"no ring has {modulus_bits} bits"),
            (length < 1, f"no vector has a length of {length}"),
        ):
            if weak:
                raise InvalidParameters(
                    f"the offered session is refused: {sentence}; change the offer or this client's floors",
                    reason=Reason.BELOW_FLOOR,
                )


def _require_integers(*values: object) -> None:
    """Refuse anything else first: a NaN, which a parser of JSON may hand over, is below no floor."""
    for value in values:
        if type(value) is not int:
            raise InvalidParameters(f"cohorts, thresholds, widths and lengths are integers; got {value!r}")


def _require_members(name: str, members: object, kind: type[StrEnum]) -> None:
    """Refuse a plain string, in which every part of it would be found."""
    if type(members) is not frozenset or not members or {type(m) for m in cast("frozenset[object]", members)} != {kind}:
        raise InvalidParameters(f"{name} is a frozenset of at least one {kind.__name__} that this client accepts")


def _names(members: frozenset[Suite] | frozenset[SecurityMode] | frozenset[Topology]) -> str:
    return ", ".join(sorted(members))


# --- What the attempt agrees on ---------------------------------------------------------------------------------------


DIGEST_BYTES: Final = 32
OPENING_BYTES: Final = 32
LEAST_CHECK_WORDS: Final = 8
WORST_CASE_CHECK_WORDS: Final = 40
_CHECK_BITS = 64
"""The check words of a segment have at least this many bits together, so that a wrong seed does not pass by luck."""
FORMAT_VERSION: Final = 2
"""Of the messages of this protocol: 2 since uploads and answers are signed and clients complain."""
_MAXIMUM_TASK_BYTES = 256
_MAXIMUM_LAYOUT_BYTES = 1 << 21
NO_DIGEST: Final = bytes(DIGEST_BYTES)
NO_AUTHORITY: Final = bytes(IDENTITY_KEY_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfiguration(Message):
    """Everything that the parties of one attempt agree on; make one with ``plan_session``."""

    kind: ClassVar = MessageKind.SESSION_OFFER
    form: ClassVar = FORMAT_VERSION
    task: Annotated[bytes, variable(_MAXIMUM_TASK_BYTES)]
    """What is being trained, as the platform names it."""
    model_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    """The digest of the model that every client trains from; different models for different clients do not add up."""
    round_number: Annotated[int, unsigned(8)]
    attempt: Annotated[int, unsigned(4)]
    mode: Annotated[SecurityMode, choice(tuple(SecurityMode))]
    suite: Annotated[Suite, choice(tuple(Suite))]
    topology: Annotated[Topology, choice(tuple(Topology))]
    degree: Annotated[int, unsigned(4)]
    """How many neighbours a client has in a sparse graph; 0 in a full one, where everybody is one."""
    threshold: Annotated[int, unsigned(4)]
    committee_size: Annotated[int, unsigned(4)]
    """How many clients certify the survivors in ``active`` mode, 0 for everyone; 0 in ``semi_honest`` mode."""
    quorum: Annotated[int, unsigned(4)]
    """How many of them must sign; 0 in ``semi_honest`` mode."""
    minimum_cohort: Annotated[int, unsigned(4)]
    maximum_population: Annotated[int, unsigned(4)]
    maximum_weight: Annotated[int, unsigned(4)]
    layout: Annotated[Layout, encoded(Layout, _MAXIMUM_LAYOUT_BYTES)]
    check_words: Annotated[int, unsigned(1)]
    application_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    """The digest of what else the platform binds: noise, deadlines, the rules of participation."""
    authority: Annotated[bytes, fixed(IDENTITY_KEY_BYTES)]
    """The public key of the authority that certifies identities; zeros in ``semi_honest`` mode, which has none."""
    graph_commitment: Annotated[bytes, fixed(DIGEST_BYTES)]
    """A commitment to the server's share in the seed of the graph."""
    server_nonce: Annotated[bytes, fixed(DIGEST_BYTES)]
    context: AttemptContext = field(init=False, repr=False, compare=False)
    """The digest of this configuration (T0), which everything in the attempt is bound to."""

    def __post_init__(self) -> None:
        self._check_types()
        require_range("round_number", self.round_number, 0, (1 << 64) - 1)
        require_range("attempt", self.attempt, 0, (1 << 32) - 1)
        require_range("maximum_population", self.maximum_population, LEAST_COHORT, MAXIMUM_POPULATION)
        require_range("minimum_cohort", self.minimum_cohort, LEAST_COHORT, self.maximum_population)
        require_range("maximum_weight", self.maximum_weight, 1, (1 << 32) - 1)
        require_range("check_words", self.check_words, LEAST_CHECK_WORDS, _CHECK_BITS)
        require_capacity(self.maximum_total_weight, MAXIMUM_WEIGHT)
        most = self.maximum_population - 1
        match self.topology:
            case Topology.FULL:
                require_range("degree of a full graph", self.degree, 0, 0)
                require_range("maximum_population of a full graph", self.maximum_population, LEAST_COHORT, MAX_HOLDERS)
            case Topology.SPARSE:
                require_range("degree", self.degree, LEAST_DEGREE, min(most, MAX_HOLDERS))
                if self.degree % 2:
                    raise InvalidParameters(f"the degree of a sparse graph is even; got {self.degree}")
                most = self.degree
        require_range("threshold", self.threshold, LEAST_THRESHOLD, most)
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
                raise InvalidParameters(f"{name} has {size} bytes")
        if type(self.task) is not bytes or not 1 <= len(self.task) <= _MAXIMUM_TASK_BYTES:
            raise InvalidParameters(f"task is 1 to {_MAXIMUM_TASK_BYTES} bytes that name what is trained")
        kinds = (type(self.mode), type(self.suite), type(self.topology), type(self.layout))
        if kinds != (SecurityMode, Suite, Topology, Layout):
            raise Misuse("mode, suite, topology and layout are a SecurityMode, a Suite, a Topology and a Layout")
        self.layout.require_rings()

    def _check_certification(self) -> None:
        match self.mode:
            case SecurityMode.SEMI_HONEST:
                require_range("committee_size in semi_honest mode", self.committee_size, 0, 0)
                require_range("quorum in semi_honest mode", self.quorum, 0, 0)
                if self.authority != NO_AUTHORITY:
                    raise InvalidParameters("semi_honest mode has no authority; leave it zero, or use active mode")
            case SecurityMode.ACTIVE:
                require_range("committee_size", self.committee_size, 0, self.maximum_population)
                require_range("quorum", self.quorum, 1, self.committee_size or self.maximum_population)
                if self.authority == NO_AUTHORITY:
                    raise InvalidParameters(
                        "active mode needs an authority that the server does not control; without one the server can "
                        "invent every client but one"
                    )

    def _check_streams(self) -> None:
        """Refuse a layout whose masks one key cannot give, before anybody masks."""
        used = sum(segment_count(s.ring, s.length + self.check_words_of(s)) for s in self.segments)
        if used > KEY_LIMIT_BYTES // SEGMENT_BYTES:
            raise InvalidParameters(
                f"the layout takes {used} parts of a mask's stream, each segment at least one, and a key has "
                f"{KEY_LIMIT_BYTES // SEGMENT_BYTES}; merge segments of one width, or send less"
            )

    @property
    def is_active(self) -> bool:
        """Whether clients are certified and sign what they send."""
        return self.mode is SecurityMode.ACTIVE

    @property
    def maximum_total_weight(self) -> int:
        """The largest sum of weights that a session can reach."""
        return self.maximum_population * self.maximum_weight

    @property
    def weight_ring(self) -> Ring:
        """The ring that holds any sum of weights; weights travel inside the masked sum."""
        return Ring(self.maximum_total_weight.bit_length())

    @property
    def segments(self) -> tuple[RingSegment, ...]:
        """What is masked: the segments of the layout, and the weight."""
        return (*self.layout.require_rings(), RingSegment(self.weight_ring.modulus_bits, 1))

    def check_words_of(self, segment: RingSegment) -> int:
        """Return how many check words follow a segment."""
        return max(self.check_words, -(-_CHECK_BITS // segment.modulus_bits))

    @property
    def masked_bytes(self) -> int:
        """How many bytes the masked vector of one client has on the wire."""
        return sum(map(self.sent_bytes, self.segments))

    def sent_bytes(self, segment: RingSegment) -> int:
        """Return how many bytes a segment and its check words have on the wire; rounded values are packed apart."""
        words = self.check_words_of(segment)
        if segment.fine_bits:
            return segment.payload_bytes + segment.ring.packed_bytes(words)
        return segment.ring.packed_bytes(segment.length + words)

    def degree_among(self, population: int) -> int:
        """Return how many neighbours a client has when this many advertised."""
        return population - 1 if self.topology is Topology.FULL else self.degree

    def committee_among(self, population: int) -> int:
        """Return how many clients are on the committee when this many advertised."""
        return self.committee_size or population

    def require_population(self, population: int, *, corrupted: int, privacy_bits: int, dropped: int = 0) -> None:
        """Refuse a number of advertisers for which these parameters are not safe.

        Args:
            corrupted: how many clients whoever asks assumes to be corrupted, counted absolutely.
            privacy_bits: the logarithm of the chance of a bad graph that whoever asks accepts.
            dropped: how many may drop out; it matters to a sparse ``semi_honest`` session, which they could cut apart.
        Raises:
            InvalidParameters: too few or too many clients, a threshold or a quorum that does not protect them.
        """
        require_range("population", population, self.minimum_cohort, self.maximum_population)
        degree = self.degree_among(population)
        if degree >= population:
            raise InvalidParameters(f"{population} clients cannot have {degree} neighbours each; plan for fewer")
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
                f"lie in {least}..{degree}",
                reason=Reason.BELOW_FLOOR,
            )
        if self.mode is SecurityMode.ACTIVE:
            size = self.committee_among(population)
            if not self.quorum <= size <= population:
                raise InvalidParameters(
                    f"{population} clients have no committee of {size} with a quorum of {self.quorum}"
                )
            require_committee(population, corrupted, size, self.quorum, privacy_bits)

    def require_floors(self, floors: ClientFloors) -> None:
        """Refuse a configuration that goes below what a client insists on, whatever the number of advertisers.

        Raises:
            InvalidParameters: with reason ``below_floor``.
        """
        floors.admit(
            suite=self.suite,
            mode=self.mode,
            cohort=self.minimum_cohort,
            threshold=self.threshold,
            modulus_bits=min(segment.modulus_bits for segment in self.layout.require_rings()),
            length=sum(segment.length for segment in self.layout.segments),
            population=self.maximum_population,
            topology=self.topology,
            degree=self.degree_among(self.maximum_population),
        )


def commit_to_opening(opening: bytes) -> bytes:
    """Return the commitment that stands in a configuration for the server's share in the graph seed."""
    return hashlib.sha256(bind(Label.GRAPH_OPENING, opening)).digest()


def require_range(name: str, value: object, least: int, greatest: int) -> None:
    """Refuse what is no integer in a range."""
    if type(value) is not int or not least <= value <= greatest:
        raise InvalidParameters(f"{name} is an integer in {least}..{greatest}; got {value!r}")
