"""The messages of the one-hot check: the client's proof, and what the servers commit to and then open to each other."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, Reason
from secagg.fields import SERVER, Message, fixed
from secagg.identifiers import ServerId
from secagg.protocols.two_servers.lanes.extension_field import Elements
from secagg.wire import HEADER_BYTES, MessageKind, Reader, Writer

from .statement import DIGEST_BYTES, SEED_BYTES, CheckShape, require_seed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OneHotProof:
    """What a client gives one server beside its share: a part of an upload that is sealed to that server.

    Security: ``encode`` returns the seed in the clear. Whoever has both servers' messages and shares has the input.
    """

    server: ServerId
    seed: Secret
    """From which the server's shares of the masks and of the polynomial follow."""
    other_part: bytes
    """What fixes the other server's share and seed."""
    polynomial: Elements = field(repr=False)
    """What server 1 adds to its share: the polynomial less what both seeds give. No values for server 0."""

    def __post_init__(self) -> None:
        require_seed(self.seed)
        if type(self.server) is not ServerId or type(self.other_part) is not bytes:
            raise Misuse("a proof is for a ServerId, and the other server's part is bytes")
        if len(self.other_part) != DIGEST_BYTES:
            raise InvalidParameters(f"the other server's part has {DIGEST_BYTES} bytes")

    def packed_polynomial(self, shape: CheckShape) -> bytes:
        """Return the values as they are sent.

        Raises:
            Misuse: they are not those of a polynomial of this shape, or there are some for server 0.
        """
        due = (_polynomial_values(shape, self.server), shape.field.degree)
        if self.polynomial.shape != due:
            raise Misuse(f"a proof for {self.server} has {due} coefficients; got {self.polynomial.shape}")
        return shape.field.pack(self.polynomial)

    @staticmethod
    def encoded_bytes(shape: CheckShape, server: ServerId) -> int:
        """Return how many bytes ``encode`` gives."""
        packed = shape.field.packed_bytes(_polynomial_values(shape, server))
        return HEADER_BYTES + 1 + SEED_BYTES + DIGEST_BYTES + packed

    def encode(self, shape: CheckShape) -> bytes:
        """Return the canonical encoding, before it is sealed."""
        writer = Writer(MessageKind.ONE_HOT_PROOF).integer(self.server.index, 1)
        writer.fixed(bytes(self.seed.expose()), SEED_BYTES).fixed(self.other_part, DIGEST_BYTES)
        packed = self.packed_polynomial(shape)
        return writer.fixed(packed, len(packed)).finish()

    @classmethod
    def decode(cls, message: bytes, shape: CheckShape) -> OneHotProof:
        """Read the canonical encoding back.

        Raises:
            MalformedMessage: anything that ``encode`` would not have written, such as a lane that is not below q.
        """
        reader = Reader(message, MessageKind.ONE_HOT_PROOF)
        server = _server(reader)
        seed, other_part = Secret("one-hot seed", reader.fixed(SEED_BYTES)), reader.fixed(DIGEST_BYTES)
        values = _polynomial_values(shape, server)
        packed = reader.fixed(shape.field.packed_bytes(values))
        reader.finish()
        polynomial = shape.field.unpack(packed, values)
        return cls(server=server, seed=seed, other_part=other_part, polynomial=polynomial)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneHotCommitment(Message):
    """What a server sends before it has seen any of the other server's values."""

    kind: ClassVar = MessageKind.ONE_HOT_COMMITMENT
    server: Annotated[ServerId, SERVER]
    statement: Annotated[bytes, fixed(DIGEST_BYTES)]
    digest: Annotated[bytes, fixed(DIGEST_BYTES)]

    @classmethod
    def to(cls, server: ServerId, statement: bytes, opening: bytes) -> OneHotCommitment:
        """Commit to the bytes of an opening.

        The opening holds the sums of random masks, which the other server lacks; so the digest hides it without a
        nonce of its own.
        """
        statement_and_server = (statement, bytes([server.index]))
        digest = hashlib.sha256(bind(Label.ONE_HOT_COMMITMENT, *statement_and_server, opening)).digest()
        return cls(server=server, statement=statement, digest=digest)

    @staticmethod
    def encoded_bytes() -> int:
        """Return how many bytes ``encode`` gives."""
        return HEADER_BYTES + 1 + 2 * DIGEST_BYTES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OneHotOpening:
    """One server's shares of everything that is opened for an upload."""

    server: ServerId
    statement: bytes
    joint: bytes
    rows: Elements = field(repr=False)
    """Shares of f_i(tau), one for each row."""
    polynomial: Elements = field(repr=False)
    """The share of p(tau)."""
    linear: Elements = field(repr=False)
    """The share of v, which is zero for an honest client."""

    @staticmethod
    def encoded_bytes(shape: CheckShape) -> int:
        """Return how many bytes ``encode`` gives."""
        return HEADER_BYTES + 1 + 2 * DIGEST_BYTES + _opened_bytes(shape)

    def encode(self, shape: CheckShape) -> bytes:
        """Return the canonical encoding."""
        writer = Writer(MessageKind.ONE_HOT_OPENING).integer(self.server.index, 1)
        writer.fixed(self.statement, DIGEST_BYTES).fixed(self.joint, DIGEST_BYTES)
        packed = b"".join(shape.field.pack(part) for part in (self.rows, self.polynomial, self.linear))
        return writer.fixed(packed, _opened_bytes(shape)).finish()

    @classmethod
    def decode(cls, message: bytes, shape: CheckShape) -> OneHotOpening:
        """Read the canonical encoding back.

        Raises:
            MalformedMessage: anything that ``encode`` would not have written.
        """
        reader = Reader(message, MessageKind.ONE_HOT_OPENING)
        server, statement, joint = _server(reader), reader.fixed(DIGEST_BYTES), reader.fixed(DIGEST_BYTES)
        packed = [reader.fixed(shape.field.packed_bytes(count)) for count in (shape.rows, 1, 1)]
        reader.finish()
        rows = shape.field.unpack(packed[0], shape.rows)
        polynomial, linear = (shape.field.unpack(one, 1)[0] for one in packed[1:])
        return cls(server=server, statement=statement, joint=joint, rows=rows, polynomial=polynomial, linear=linear)


def _polynomial_values(shape: CheckShape, server: ServerId) -> int:
    return shape.proof_points if server.index else 0


def _opened_bytes(shape: CheckShape) -> int:
    return shape.field.packed_bytes(shape.rows) + 2 * shape.field.packed_bytes(1)


def _server(reader: Reader) -> ServerId:
    index = reader.integer(1)
    if index not in (0, 1):
        raise MalformedMessage(f"{index} is the index of no server", reason=Reason.NOT_CANONICAL)
    return ServerId(index)
