"""Sets of clients as everybody on a roster writes them: one bit for each position."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters, MalformedMessage, Reason
from secagg.fields import Field, Sizing
from secagg.identifiers import SessionContext
from secagg.wire import Reader, Writer


@dataclass(frozen=True, slots=True)
class ClientSet:
    """Some of the positions 0..population-1; position 0 is the lowest bit of the first byte."""

    population: int
    bits: int
    _flags: bytes = field(init=False, repr=False, compare=False)
    """The bits in bytes: to look up one of them takes as long in a large set as in a small one."""
    _digests: dict[SessionContext, bytes] = field(init=False, repr=False, compare=False)
    """What stands for this set, by the session: every signature on it holds the same."""

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
