"""Roster of a session: the advertisers, their advertisements, and the context that binds everything that follows.

rho = H(population, H(list of clients), root of the tree of advertisements in the order of the list)
seed of the graph = H(T0, rho, opening of the server's commitment)
ctx = H(T0, rho, seed of the graph)

The list is sent whole, as gaps between increasing numbers, because proofs of inclusion do not prove that nobody is
listed twice. A client that is shown another list, another key or another graph derives another context, and its keys,
ciphertexts and signatures then fit nobody else's.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

from secagg.crypto.labels import Label, bind
from secagg.errors import InternalError, InvalidParameters, MalformedMessage, PeerMisbehaved, Reason
from secagg.fields import Field, Sizing
from secagg.identifiers import CLIENT_ID_BYTES, AttemptContext, ClientId, Party, SessionContext
from secagg.wire import Reader, Writer

from .configuration import SessionConfiguration
from .graph import MAXIMUM_POPULATION, Graph


@dataclass(frozen=True, slots=True)
class ClientSet:
    """Some of the positions 0..population-1; position 0 is the lowest bit of the first byte."""

    population: int
    bits: int
    _flags: bytes = field(init=False, repr=False, compare=False)
    """The bits in bytes: to look up one of them takes as long in a large set as in a small one."""
    _digests: dict[SessionContext, bytes] = field(init=False, repr=False, compare=False)
    """Digests of this set, by session: every signature on it holds the same."""

    def __post_init__(self) -> None:
        if self.bits < 0 or self.bits >> self.population:
            raise InvalidParameters(f"a set among {self.population} clients has no positions beyond")
        object.__setattr__(self, "_flags", self.bits.to_bytes(set_bytes(self.population), "little"))
        object.__setattr__(self, "_digests", dict[SessionContext, bytes]())

    @classmethod
    def of(cls, population: int, positions: Iterable[int]) -> ClientSet:
        """Make the set of these positions."""
        flags = bytearray(set_bytes(population))
        for position in positions:
            flags[position >> 3] |= 1 << (position & 7)
        return cls(population, int.from_bytes(flags, "little"))

    @classmethod
    def read(cls, reader: Reader, population: int) -> ClientSet:
        """Read a set from a message.

        Raises:
            MalformedMessage: a bit beyond the population is set.
        """
        bits = int.from_bytes(reader.fixed(set_bytes(population)), "little")
        if bits >> population:
            raise MalformedMessage("a set has positions beyond the population", reason=Reason.NOT_CANONICAL)
        return cls(population, bits)

    def encode(self) -> bytes:
        """Return the bits, filled up with zeros to whole bytes."""
        return self._flags

    def digest(self, context: SessionContext) -> bytes:
        """Return the hash that stands for this set in signatures of a session."""
        if (known := self._digests.get(context)) is None:
            size = self.population.to_bytes(4, "big")
            known = hashlib.sha256(bind(Label.CLIENT_SET, context.digest, size, self._flags)).digest()
            self._digests[context] = known
        return known

    def issubset(self, other: ClientSet) -> bool:
        """Whether the other set holds every position of this one."""
        return self.population == other.population and not self.bits & ~other.bits

    def __contains__(self, position: int) -> bool:
        return 0 <= position < self.population and bool(self._flags[position >> 3] >> (position & 7) & 1)

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __iter__(self) -> Iterator[int]:
        flags = self._flags
        return (position for position in range(self.population) if flags[position >> 3] >> (position & 7) & 1)


def client_set(population: Sizing) -> Field:
    """Return the field of a set among so many clients as the place of a message says."""

    def write(writer: Writer, value: ClientSet) -> None:
        writer.borrowed(value.encode())

    return Field(write, lambda reader, at: ClientSet.read(reader, population(at)), "one bit for each position")


def set_bytes(population: int) -> int:
    """Return how many bytes a set among this many clients has on the wire."""
    return (population + 7) // 8


# --- Rosters ----------------------------------------------------------------------------------------------------------


Known = TypeVar("Known")
_GAP_BITS: Final = 7
_MORE: Final = 1 << _GAP_BITS
_CACHED_ROSTERS: Final = 4
_CLIENT_LIMIT: Final = 1 << (8 * CLIENT_ID_BYTES)


@dataclass(frozen=True, slots=True)
class Roster:
    """The advertisers of an attempt in increasing order, and what follows from their advertisements."""

    configuration: SessionConfiguration = field(repr=False)
    clients: tuple[ClientId, ...] = field(repr=False)
    root: bytes
    opening: bytes
    context: SessionContext
    graph: Graph

    @property
    def population(self) -> int:
        """Number of advertisers."""
        return len(self.clients)

    @property
    def committee(self) -> tuple[int, ...]:
        """The positions of those who certify the survivors."""
        return self.graph.committee(self.configuration.committee_among(self.population))

    def position_of(self, client: ClientId) -> int | None:
        """Return where a client stands in the list, if it does."""
        position = bisect_left(self.clients, client)
        return position if position < len(self.clients) and self.clients[position] == client else None

    def set_of(self, positions: Iterable[int]) -> ClientSet:
        """Return the set of these positions."""
        return ClientSet.of(self.population, positions)


class Seat(NamedTuple):
    """Place of a client on a roster."""

    roster: Roster
    position: int


@lru_cache(maxsize=_CACHED_ROSTERS)
def roster_of(configuration: SessionConfiguration, encoded_clients: bytes, root: bytes, opening: bytes) -> Roster:
    """Derive what a list of advertisers and their advertisements determine.

    Everything in it is public. It is cached because a simulation holds thousands of clients that are all shown the same
    list.

    Raises:
        MalformedMessage: the list is not in its one encoding.
        InvalidParameters: the list is too short or too long for the session's graph.
    """
    clients, attempt = decode_clients(encoded_clients, configuration.maximum_population), configuration.context.digest
    population = len(clients)
    listed = _hash(Label.CLIENT_LIST, encoded_clients)
    digest = _hash(Label.ROSTER, population.to_bytes(4, "big"), listed, root)
    # Deviation: no client nonces go into the seed of the graph; the advertised keys, which rho covers, are fresh and as
    # unpredictable.
    seed = _hash(Label.GRAPH_SEED, attempt, digest, opening)
    context = SessionContext(_hash(Label.SESSION_CONTEXT, attempt, digest, seed))
    graph = Graph(configuration.topology, population, configuration.degree_among(population), seed)
    return Roster(configuration, clients, root, opening, context, graph)


def require_context(
    tag: bytes, context: AttemptContext | SessionContext, sentence: str, culprits: Iterable[Party], round_name: str
) -> None:
    """Refuse a message whose tag is that of another context.

    Raises:
        PeerMisbehaved: saying so in the sentence.
    """
    if tag != context.tag:
        raise PeerMisbehaved(sentence, reason=Reason.WRONG_SESSION, culprits=culprits, round_name=round_name)


def certain(value: Known | None) -> Known:
    """Return what an earlier round, or the mode of the session, has made sure of."""
    if value is None:
        raise InternalError("a round reads what no round before it has settled")
    return value


def entry_digest(client: ClientId, entry: bytes) -> bytes:
    """Return the leaf of a client's advertisement."""
    return _hash(Label.ROSTER_ENTRY, client.encode(), entry)


def encode_clients(clients: Sequence[ClientId]) -> bytes:
    """Write a strictly increasing list: each gap, less one, in groups of 7 bits, the lowest first (LEB128)."""
    written, previous = bytearray(), -1
    for client in clients:
        gap, previous = client.value - previous - 1, client.value
        while gap >= _MORE:
            written.append(_MORE | gap & (_MORE - 1))
            gap >>= _GAP_BITS
        written.append(gap)
    return bytes(written)


def decode_clients(encoded: bytes, limit: int = MAXIMUM_POPULATION) -> tuple[ClientId, ...]:
    """Read the list back; whatever decodes is strictly increasing.

    Raises:
        MalformedMessage: there are more clients than the limit; a gap has a second encoding, does not end, or leaves
            the range of client ids.
    """
    clients, previous, gap, shift = list[ClientId](), -1, 0, 0
    for byte in encoded:
        gap |= (byte & (_MORE - 1)) << shift
        if byte & _MORE:
            shift += _GAP_BITS
            if shift > 8 * CLIENT_ID_BYTES:
                raise MalformedMessage("a client id in the list is too long", reason=Reason.NOT_CANONICAL)
            continue
        if shift and not byte:
            raise MalformedMessage("a gap in the list of clients ends in zeros", reason=Reason.NOT_CANONICAL)
        previous += gap + 1
        if previous >= _CLIENT_LIMIT:
            raise MalformedMessage("a client id in the list is not below 2^64", reason=Reason.NOT_CANONICAL)
        if len(clients) == limit:
            raise MalformedMessage(f"the list has more than {limit} clients", reason=Reason.LENGTH_OVER_LIMIT)
        clients.append(ClientId(previous))
        gap = shift = 0
    if shift:
        raise MalformedMessage("the list of clients ends within a gap", reason=Reason.TRUNCATED)
    return tuple(clients)


def _hash(label: Label, *parts: bytes) -> bytes:
    return hashlib.sha256(bind(label, *parts)).digest()
