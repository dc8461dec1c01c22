"""What a client sends: one signed header that both servers hold, and for each server an envelope that it alone opens.

The header is all that is in the clear. Its digest is what every ciphertext, key and proof of the upload is bound to,
and the client signs it together with both envelopes' keys. Two servers that hold the same upload id therefore hold
two halves of one upload; a client that sends them halves of two uploads is counted by neither.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Final, NamedTuple

from secagg.contract.layout import IndexSegment
from secagg.crypto.aead import TAG_BYTES
from secagg.crypto.hpke import sealing_sizes
from secagg.crypto.labels import Label, bind
from secagg.errors import MalformedMessage, Reason
from secagg.fields import CLIENT, SERVER, At, Field, Placed, borrowed, fixed, listed, nested, sized, unsigned
from secagg.identifiers import CLIENT_ID_BYTES, ClientId, ServerId
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.one_hot.statement import UploadContext
from secagg.protocols.two_servers.point_functions.tree_hash import NONCE_BYTES, KeyBinding
from secagg.session.certificates import IDENTITY_KEY_BYTES, SIGNATURE_BYTES, Certificate, SigningKey, verify_signature
from secagg.wire import MessageKind, Reader

from .envelope import SEED_BYTES

DIGEST_BYTES: Final = 32
ROUND_BYTES: Final = 8
CERTIFICATE_BYTES: Final = CLIENT_ID_BYTES + IDENTITY_KEY_BYTES + SIGNATURE_BYTES


CERTIFICATE: Final = Field(
    lambda writer, one: writer.fixed(one.client.encode() + one.public_key + one.signature, CERTIFICATE_BYTES),
    lambda reader, at: Certificate(
        CLIENT.read(reader, at), reader.fixed(IDENTITY_KEY_BYTES), reader.fixed(SIGNATURE_BYTES)
    ),
    f"client {CLIENT_ID_BYTES}, key {IDENTITY_KEY_BYTES}, signature {SIGNATURE_BYTES}",
)


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What is public of one index segment's point functions."""

    nonce: Annotated[bytes, fixed(NONCE_BYTES)]
    correction_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    """Of the correction words; 32 zeros where there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadHeader:
    """What an upload is, for which round and from whom."""

    round_number: Annotated[int, unsigned(ROUND_BYTES)]
    certificate: Annotated[Certificate, CERTIFICATE]
    weight: Annotated[int, unsigned(4)]
    segments: Annotated[
        tuple[SegmentHeader, ...],
        listed(
            nested(SegmentHeader),
            lambda at: at.place.configuration.index_segments,
            f"for each index segment: nonce {NONCE_BYTES}, digest {DIGEST_BYTES}",
        ),
    ]
    """One for each index segment."""

    @property
    def client(self) -> ClientId:
        """The client as the authority certifies it."""
        return self.certificate.client

    def digest(self, configuration: IndexingConfiguration) -> bytes:
        """Return the digest of all of it and of the configuration; envelopes and the signature are bound to it."""
        parts = (
            configuration.context.digest,
            self.round_number.to_bytes(ROUND_BYTES, "big"),
            self.client.encode(),
            self.certificate.public_key,
            self.weight.to_bytes(4, "big"),
            *(part for segment in self.segments for part in (segment.nonce, segment.correction_digest)),
        )
        return hashlib.sha256(bind(Label.INDEXING_UPLOAD_HEADER, *parts)).digest()


def _read_own(reader: Reader, at: At) -> ServerId:
    """Read which server a half is for; its length follows from that, so nothing else is read of another's."""
    server: ServerId = SERVER.read(reader, at)
    if server != at.place.server:
        raise MalformedMessage(f"this is not the half for {at.place.server}", reason=Reason.NOT_CANONICAL)
    return server


class _Due(NamedTuple):
    """Under which configuration a half is due, and how long its ends are."""

    configuration: IndexingConfiguration
    server: ServerId
    body_bytes: int
    public_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload(Placed):
    """One server's half of an upload."""

    kind: ClassVar = MessageKind.INDEXING_UPLOAD
    server: Annotated[ServerId, Field(SERVER.write, _read_own, SERVER.row)]
    header: Annotated[UploadHeader, nested(UploadHeader)]
    sealed_seeds: Annotated[
        tuple[bytes, bytes],
        listed(
            sized(lambda at: SEED_BYTES + sealing_sizes(at.place)[1], "a sealed seed"),
            lambda at: [at.place.configuration.suite] * 2,
            "for each server: 80 classic, 1168 hybrid",
        ),
    ]
    """For server 0 and for server 1; both servers hold both, because the signature is on both."""
    signature: Annotated[bytes, fixed(SIGNATURE_BYTES)] = bytes(SIGNATURE_BYTES)
    body: Annotated[
        bytes | memoryview, borrowed(lambda at: at.place.body_bytes + TAG_BYTES, f"the body, sealed; tag {TAG_BYTES}")
    ] = field(repr=False)
    """What this server is sent, under AES-256-GCM."""
    public_part: Annotated[
        bytes | memoryview, borrowed(lambda at: at.place.public_bytes, "server 1: the correction words")
    ] = field(default=b"", repr=False)
    """The correction words of all segments, which server 1 is sent and relays to server 0."""

    def upload_id(self, configuration: IndexingConfiguration) -> bytes:
        """Return what both servers know this upload by."""
        return hashlib.sha256(bind(Label.INDEXING_UPLOAD, *self._signed_parts(configuration))).digest()

    def _signed_parts(self, configuration: IndexingConfiguration) -> tuple[bytes, ...]:
        return (self.header.digest(configuration), *self.sealed_seeds)

    def signature_by(self, signing_key: SigningKey, configuration: IndexingConfiguration) -> bytes:
        """Return the client's signature, which is the same in both halves."""
        return signing_key.sign(Label.INDEXING_SIGNED_UPLOAD, *self._signed_parts(configuration))

    def verify(self, configuration: IndexingConfiguration) -> None:
        """Check the client's signature, under the key that its certificate names.

        Raises:
            AuthenticationFailed: it is another's, or on another upload.
        """
        verify_signature(
            self.header.certificate.public_key,
            self.signature,
            Label.INDEXING_SIGNED_UPLOAD,
            *self._signed_parts(configuration),
            culprits={self.header.client},
        )

    @classmethod
    def decode(
        cls, message: bytes, configuration: IndexingConfiguration, server: ServerId, body_bytes: int, public_bytes: int
    ) -> Upload:
        """Read one server's half back.

        Args:
            body_bytes: how long this server's body is before it is sealed.
            public_bytes: how long the public part is that this server is sent.
        Raises:
            MalformedMessage: anything that ``encode`` would not have written for this server and configuration.
        """
        return cls.read_in(_Due(configuration, server, body_bytes, public_bytes), message)


def key_binding(
    configuration: IndexingConfiguration, round_number: int, number: int, client: ClientId, nonce: bytes
) -> KeyBinding:
    """Return what the point functions of one segment are bound to."""
    return KeyBinding(context=segment_context(configuration, round_number, number), client=client, nonce=nonce)


def segment_context(configuration: IndexingConfiguration, round_number: int, number: int) -> bytes:
    """Return the digest of task, round, layout and segment."""
    parts = (
        configuration.context.digest,
        round_number.to_bytes(ROUND_BYTES, "big"),
        configuration.layout.digest,
        number.to_bytes(4, "big"),
    )
    return hashlib.sha256(bind(Label.INDEXING_SEGMENT, *parts)).digest()


def check_context(
    configuration: IndexingConfiguration, header: UploadHeader, number: int, segment: IndexSegment, place: SegmentHeader
) -> UploadContext:
    """Return what the proof of one segment is bound to."""
    return UploadContext(
        attempt=configuration.context,
        round_number=header.round_number,
        client=header.client,
        layout_digest=configuration.layout.digest,
        segment=number,
        shape=configuration.check_shape(segment),
        weight=header.weight,
        correction_digest=place.correction_digest,
        nonce=place.nonce,
    )
