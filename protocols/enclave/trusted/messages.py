"""Messages across the enclave's boundary, as bytes with one encoding, and the strings that everything is bound to.

The host carries all of it and is trusted with none of it: an upload is sealed by its client, in a way that only that
client and the enclave can, an offer is vouched for by hardware, a receipt is signed by the enclave.

A client seals one seed, from which follow the mask of its vector and the key of its indices. A seed belongs to one
upload. Everything that is derived from it is bound to the configuration, to the epoch, to the
client and to the model, so that a seed that is sealed twice still gives no stream twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.contract.layout import RingSegment
from secagg.crypto.hpke import sealing_sizes
from secagg.crypto.key_derivation import expand
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Secret, overwrite
from secagg.errors import UNDECIDED, AuthenticationFailed, Misuse
from secagg.identifiers import CLIENT_ID_BYTES, CONTEXT_BYTES, AttemptContext, ClientId, Party
from secagg.parameters import Suite
from secagg.session.certificates import IDENTITY_KEY_BYTES, SIGNATURE_BYTES, Certificate, SigningKey
from secagg.wire import HEADER_BYTES, MessageKind, Reader, Writer

from .bounded import packed_bytes
from .configuration import EnclaveConfiguration

EPOCH_BYTES: Final = 32
DIGEST_BYTES: Final = 32
SEED_BYTES: Final = 32
MAXIMUM_RECEIPT_BYTES: Final = 1 << 10
MAXIMUM_KEY_BYTES: Final = 1 << 12
MOST_SEALED_INDICES: Final = 1 << 12
"""Packed indices and bounded values of up to so many bytes are sealed with HPKE themselves, where there is no mask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclaveOffer:
    """An enclave's description of itself, for its evidence to vouch for."""

    context: AttemptContext
    epoch: bytes
    """32 random bytes that its keys live and die with."""
    sealing_key: bytes
    receipt_key: bytes
    """Signs receipts, and agrees with each client's key on the proof in what that client seals."""

    @property
    def binding(self) -> bytes:
        """The 64 bytes that the evidence holds: report_data of a quote or a report, user_data of a document."""
        statement = bind(Label.ENCLAVE_BINDING, self.context.digest, self.epoch, self.sealing_key, self.receipt_key)
        return hashlib.sha512(statement).digest()

    def encode(self) -> bytes:
        writer = Writer(MessageKind.ENCLAVE_OFFER).fixed(self.context.digest, CONTEXT_BYTES)
        writer.fixed(self.epoch, EPOCH_BYTES).variable(self.sealing_key, MAXIMUM_KEY_BYTES)
        return writer.fixed(self.receipt_key, IDENTITY_KEY_BYTES).finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStamp:
    """Which model an update was trained from: its number, and its digest as the client has it."""

    version: int
    digest: bytes

    def __post_init__(self) -> None:
        if type(self.version) is not int or not 0 <= self.version < 1 << 64:
            raise Misuse(f"a model's version is an integer in 0..2^64 - 1; got {self.version!r}")
        if type(self.digest) is not bytes or len(self.digest) != DIGEST_BYTES:
            raise Misuse(f"a model's digest has {DIGEST_BYTES} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadHeader:
    """Header of an upload, with its sender and purpose: the part in the clear, which is bound to the sealed part."""

    epoch: bytes
    certificate: Certificate
    model: ModelStamp
    vector_digest: bytes
    """The client's commitment to its masked vector, which the host compares; the enclave never sees the vector."""

    def digest(self, context: AttemptContext) -> bytes:
        """Return the digest of all of it, and of the configuration, that ciphertexts are bound to."""
        statement = bind(
            Label.ENCLAVE_UPLOAD_HEADER,
            context.digest,
            self.epoch,
            self.certificate.client.encode(),
            self.certificate.public_key,
            self.model.version.to_bytes(8, "big"),
            self.model.digest,
            self.vector_digest,
        )
        return hashlib.sha256(statement).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedUpload:
    """The part of an upload that the enclave takes; the masked vector stays with the host."""

    header: UploadHeader
    sealed_seed: bytes
    """Sealed with HPKE: a proof; a seed, or the packed indices themselves."""
    sealed_indices: memoryview | bytes = field(repr=False)
    """The packed indices and bounded values under AES-256-GCM; nothing where there are none, or HPKE seals them."""

    @property
    def upload_id(self) -> bytes:
        """No two seals are alike."""
        return hashlib.sha256(self.sealed_seed).digest()

    def pieces(self) -> tuple[bytes, bytes | memoryview]:
        """Return the canonical encoding in two pieces, so that indices are not copied to be sent."""
        header, certificate = self.header, self.header.certificate
        writer = Writer(MessageKind.SEALED_UPLOAD).fixed(header.epoch, EPOCH_BYTES)
        writer.fixed(certificate.client.encode(), CLIENT_ID_BYTES)
        writer.fixed(certificate.public_key, IDENTITY_KEY_BYTES).fixed(certificate.signature, SIGNATURE_BYTES)
        writer.integer(header.model.version, 8).fixed(header.model.digest, DIGEST_BYTES)
        writer.fixed(header.vector_digest, DIGEST_BYTES).fixed(self.sealed_seed, len(self.sealed_seed))
        return writer.finish(), self.sealed_indices

    def encode(self) -> bytes:
        return b"".join(self.pieces())

    @classmethod
    def decode(cls, message: bytes, configuration: EnclaveConfiguration) -> SealedUpload:
        """Read the canonical encoding, whose lengths follow from the configuration."""
        reader = Reader(message, MessageKind.SEALED_UPLOAD)
        epoch = reader.fixed(EPOCH_BYTES)
        certificate = Certificate(
            ClientId(reader.integer(CLIENT_ID_BYTES)), reader.fixed(IDENTITY_KEY_BYTES), reader.fixed(SIGNATURE_BYTES)
        )
        header = UploadHeader(
            epoch=epoch,
            certificate=certificate,
            model=ModelStamp(version=reader.integer(8), digest=reader.fixed(DIGEST_BYTES)),
            vector_digest=reader.fixed(DIGEST_BYTES),
        )
        upload = cls(
            header=header,
            sealed_seed=reader.fixed(sealed_secret_bytes(configuration)),
            sealed_indices=reader.view(sealed_indices_bytes(configuration)),
        )
        reader.finish()
        return upload


def sealed_upload_bytes(configuration: EnclaveConfiguration) -> int:
    """Return how long the sealed part of each upload is."""
    fixed = EPOCH_BYTES + CLIENT_ID_BYTES + IDENTITY_KEY_BYTES + SIGNATURE_BYTES
    fixed += 8 + 2 * DIGEST_BYTES + sealed_secret_bytes(configuration)
    return HEADER_BYTES + fixed + sealed_indices_bytes(configuration)


def has_one_seal(configuration: EnclaveConfiguration) -> bool:
    """Whether an upload's indices are sealed with HPKE themselves: there is no mask, and they are few."""
    return not configuration.masked_segments and _packed_bytes(configuration) <= MOST_SEALED_INDICES


def secret_bytes(configuration: EnclaveConfiguration) -> int:
    """Return how long what a client seals with HPKE is: a proof, and a seed or all indices."""
    body = _packed_bytes(configuration) if has_one_seal(configuration) else SEED_BYTES
    return PROOF_BYTES + body


def sealed_secret_bytes(configuration: EnclaveConfiguration) -> int:
    """Return how long the same is once it is sealed."""
    return secret_bytes(configuration) + sealing_sizes(configuration.suite)[1]


def sealed_indices_bytes(configuration: EnclaveConfiguration) -> int:
    """Return the bytes of one client's indices outside that seal, under a key of the seed."""
    packed = _packed_bytes(configuration)
    return packed + TAG_BYTES if packed and not has_one_seal(configuration) else 0


def _packed_bytes(configuration: EnclaveConfiguration) -> int:
    indices = sum(segment.payload_bytes for segment in configuration.index_segments)
    return indices + sum(map(packed_bytes, bounded_segments(configuration)))


def bounded_segments(configuration: EnclaveConfiguration) -> tuple[RingSegment, ...]:
    """Return the ring segments whose values are sealed, after all indices."""
    return configuration.ring_segments if configuration.max_norms else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Receipt of a release, signed by the enclave: one for each buffer."""

    context: AttemptContext
    epoch: bytes
    buffer: int
    """The number of its model."""
    uploads_digest: bytes
    """Over the sorted upload ids: a client can see whether its own is among those that a host publishes."""
    contributors: int
    releases: int
    """Number of releases of the epoch, including this one."""
    released_digest: bytes
    signature: bytes = b""

    def signed_parts(self) -> tuple[bytes, ...]:
        numbers = (self.buffer, self.contributors, self.releases)
        encoded = b"".join(number.to_bytes(8, "big") for number in numbers)
        return self.context.digest, self.epoch, self.uploads_digest, encoded, self.released_digest

    def signed_with(self, signing_key: SigningKey) -> Receipt:
        return replace(self, signature=signing_key.sign(Label.ENCLAVE_RECEIPT, *self.signed_parts()))

    def encode(self) -> bytes:
        writer = Writer(MessageKind.RELEASE_RECEIPT).fixed(self.context.digest, CONTEXT_BYTES)
        writer.fixed(self.epoch, EPOCH_BYTES).integer(self.buffer, 8).fixed(self.uploads_digest, DIGEST_BYTES)
        writer.integer(self.contributors, 8).integer(self.releases, 8)
        return writer.fixed(self.released_digest, DIGEST_BYTES).fixed(self.signature, SIGNATURE_BYTES).finish()


def uploads_digest(upload_ids: list[bytes]) -> bytes:
    """Return the digest of a set of uploads that a receipt holds."""
    return hashlib.sha256(bind(Label.ENCLAVE_UPLOAD_LIST, *sorted(upload_ids))).digest()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BufferRelease:
    """Output of the enclave for one buffer.

    A ring segment of the aggregate is the sum of the masks, less the noise, for the host to take from its sum
    of masked vectors; with ``max_norms`` it is the sum itself. The others are the enclave's decoded sums or counts,
    with their noise.
    """

    receipt: Receipt
    aggregate: bytes = field(repr=False)
    """Encoded, as the receipt's digest has it."""

    def encode(self) -> bytes:
        writer = Writer(MessageKind.BUFFER_RELEASE).variable(self.receipt.encode(), MAXIMUM_RECEIPT_BYTES)
        return writer.borrowed(self.aggregate).finish()


# --- What one seed and the two signing keys give ----------------------------------------------------------------------

PROOF_BYTES: Final = 16
TAG_BYTES: Final = 16
_KEY_BYTES: Final = 32
GCM_NONCE_BYTES: Final = 12


def mask_key(  # noqa: PLR0913, PLR0917 -- what a mask is bound to
    seed: Secret, suite: Suite, context: AttemptContext, epoch: bytes, client: ClientId, version: int
) -> Secret:
    """Return the key that expands into the mask of an upload's ring segments."""
    parts = (context.digest, epoch, client.encode(), version.to_bytes(8, "big"))
    return expand("mask_key", suite.mask_key_bytes, seed, Label.ENCLAVE_MASK_KEY, *parts)


def sealing_info(header_digest: bytes) -> bytes:
    """Return what the sealed seed is bound to."""
    return bind(Label.ENCLAVE_SEALING, header_digest)


def proof_of(
    own_key: SigningKey, peer_key: bytes, header_digest: bytes, *, culprits: Iterable[Party] = UNDECIDED
) -> Secret:
    """Return what only the client and the enclave of a header can make, and a client seals with its seed.

    It takes the place of a signature, and is nobody's evidence: the enclave could have made it too. It is of one
    header, so that knowing it is worth nothing for another one.
    """
    return own_key.agreed(peer_key, PROOF_BYTES, Label.ENCLAVE_PROOF, header_digest, culprits=culprits)


def open_indices(
    seed: Secret, header_digest: bytes, sealed: bytes | memoryview, *, culprits: Iterable[Party]
) -> bytearray:
    """Decrypt packed indices; the caller overwrites it.

    Implements: [SP 800-38D] §7.2.
    Raises:
        AuthenticationFailed: the indices were altered, or belong to another upload.
    """
    opened = bytearray(len(sealed) - TAG_BYTES)
    try:
        with indices_key(seed, header_digest) as key:
            AESGCM(key.expose()).decrypt_into(bytes(GCM_NONCE_BYTES), sealed, header_digest, opened)
    except InvalidTag:
        overwrite(opened)
        raise AuthenticationFailed(culprits=culprits) from None
    return opened


def indices_key(seed: Secret, header_digest: bytes) -> Secret:
    """Return the key of an upload's indices, where they are not in its one seal."""
    return expand("indices_key", _KEY_BYTES, seed, Label.ENCLAVE_INDICES_KEY, header_digest)
