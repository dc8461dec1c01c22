"""Everything that a server remembers of a session, and its canonical encoding, from which another process goes on.

A record holds what clients sent, as they sent it; the sum of the uploads stands for the uploads. It is not public: with
the answers of the last round in it, it determines what the server would compute. Reading it back checks its form and
not its signatures, which were checked before: keep it where only the server writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from secagg.errors import MalformedMessage, Misuse, Reason
from secagg.identifiers import ClientId
from secagg.wire import MessageKind, Reader, Writer

from .configuration import DIGEST_BYTES, OPENING_BYTES, SessionConfiguration
from .masking import MaskedVector
from .plan import SessionPlan
from .transitions import ServerState

_STATES = tuple(ServerState)
_FINAL_STATES = frozenset({ServerState.COMPLETED, ServerState.ABORTED})
_TABLE_LIMIT: Final = (1 << 32) - 1
_MAXIMUM_OFFER_BYTES: Final = 1 << 22


@dataclass(slots=True)
class ServerRecord:
    """The memory of one server in one session.

    Claim PM-11: the model checker ends a server's process at any time, and goes on from the record that was stored.
    """

    plan: SessionPlan
    state: ServerState = ServerState.AWAITING_KEY_ADVERTISEMENTS
    advertisements: dict[ClientId, bytes] = field(default_factory=dict[ClientId, bytes], repr=False)
    shares: dict[ClientId, bytes] = field(default_factory=dict[ClientId, bytes], repr=False)
    views: dict[ClientId, bytes] = field(default_factory=dict[ClientId, bytes], repr=False)
    """The contributors so far; in active mode with the digest of what each sent and its signature, as evidence."""
    complaints: dict[ClientId, bytes] = field(default_factory=dict[ClientId, bytes], repr=False)
    """What clients sent that left because the seed of an edge was unusable."""
    signatures: dict[ClientId, bytes] = field(default_factory=dict[ClientId, bytes], repr=False)
    answers: dict[ClientId, bytes] = field(default_factory=dict[ClientId, bytes], repr=False)
    seen: dict[ClientId, dict[MessageKind, bytes]] = field(
        default_factory=dict[ClientId, dict[MessageKind, bytes]], repr=False
    )
    """The digest of each message that was accepted, by which one that is sent again is recognised."""
    excluded: set[ClientId] = field(default_factory=set[ClientId])
    """Clients that sent something wrong; they count as dropped from then on."""
    total: MaskedVector | None = field(default=None, repr=False)

    @property
    def heard(self) -> Mapping[ClientId, bytes]:
        """Who has sent the message that is due."""
        match self.state:
            case ServerState.AWAITING_KEY_ADVERTISEMENTS:
                return self.advertisements
            case ServerState.AWAITING_ENCRYPTED_SHARES:
                return self.shares
            case ServerState.AWAITING_MASKED_INPUTS:
                return self.views
            case ServerState.AWAITING_SURVIVOR_SIGNATURES:
                return self.signatures
            case _:
                return self.answers

    @property
    def _tables(self) -> tuple[dict[ClientId, bytes], ...]:
        """What clients sent, in the order of the encoding."""
        return self.advertisements, self.shares, self.views, self.complaints, self.signatures, self.answers

    def encode(self) -> bytes:
        """Return the canonical encoding."""
        if self.state in _FINAL_STATES:
            raise Misuse(f"a session that is {self.state} is not resumed; start another attempt")
        writer = Writer(MessageKind.SERVER_SNAPSHOT).integer(_STATES.index(self.state), 1)
        writer.variable(self.plan.configuration.encode(), _MAXIMUM_OFFER_BYTES).fixed(self.plan.opening, OPENING_BYTES)
        writer.integer(self.plan.corrupted, 8).integer(self.plan.dropped, 8).integer(self.plan.privacy_bits, 2)
        for table in self._tables:
            writer.integer(len(table), 4)
            for client, sent in sorted(table.items()):
                writer.fixed(client.encode(), 8).variable(sent, _TABLE_LIMIT)
        writer.integer(sum(len(kinds) for kinds in self.seen.values()), 4)
        for client, kinds in sorted(self.seen.items()):
            for kind, digest in sorted(kinds.items()):
                writer.fixed(client.encode(), 8).integer(kind, 2).fixed(digest, DIGEST_BYTES)
        writer.integer(len(self.excluded), 4)
        for client in sorted(self.excluded):
            writer.fixed(client.encode(), 8)
        packed = b"" if self.total is None else b"".join(self.total.pack())
        return writer.integer(len(packed), 8).fixed(packed, len(packed)).finish()

    @classmethod
    def decode(cls, snapshot: bytes) -> ServerRecord:
        """Read the canonical encoding back.

        Raises:
            MalformedMessage: anything that ``encode`` would not have written.
        """
        reader = Reader(snapshot, MessageKind.SERVER_SNAPSHOT)
        state = reader.integer(1)
        if state >= len(_STATES) or _STATES[state] in _FINAL_STATES:
            raise MalformedMessage(f"{state} is no state that a server goes on from", reason=Reason.NOT_CANONICAL)
        configuration = SessionConfiguration.decode(reader.variable(_MAXIMUM_OFFER_BYTES))
        opening = reader.fixed(OPENING_BYTES)
        plan = SessionPlan(configuration, opening, reader.integer(8), reader.integer(8), reader.integer(2))
        record = cls(plan, _STATES[state])
        for table in record._tables:
            for key in _increasing(reader, 8):
                table[ClientId(key)] = reader.variable(_TABLE_LIMIT)
        for key in _increasing(reader, 10):
            try:
                kind = MessageKind(key & 0xFFFF)
            except ValueError:
                raise MalformedMessage(f"{key & 0xFFFF} is no kind of message", reason=Reason.NOT_CANONICAL) from None
            record.seen.setdefault(ClientId(key >> 16), {})[kind] = reader.fixed(DIGEST_BYTES)
        record.excluded = {ClientId(key) for key in _increasing(reader, 8)}
        packed = reader.fixed(reader.integer(8))
        reader.finish()
        if packed:
            if len(packed) != configuration.masked_bytes:
                raise MalformedMessage("the sum has another length than the session's", reason=Reason.NOT_CANONICAL)
            record.total = MaskedVector(configuration)
            record.total.add_packed(packed)
        return record


def _increasing(reader: Reader, size: int) -> Iterator[int]:
    """Read the keys of a table, each before what the caller reads for it, and refuse any other order than theirs."""
    previous = -1
    for _ in range(reader.integer(4)):
        key = reader.integer(size)
        if key <= previous:
            raise MalformedMessage("a table of the snapshot is not in increasing order", reason=Reason.NOT_CANONICAL)
        previous = key
        yield key
