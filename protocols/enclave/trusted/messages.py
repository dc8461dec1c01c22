"""What crosses the enclave's boundary, as bytes with one encoding, and the strings that everything is bound to.

The host carries all of it and is trusted with none of it: an upload is sealed and signed by its client, an offer is
vouched for by hardware, a receipt is signed by the enclave.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Final

from secagg.crypto.aead import TAG_BYTES
from secagg.crypto.hpke import sealing_sizes
from secagg.crypto.labels import Label, bind
from secagg.errors import Misuse
from secagg.fields import CONTEXT, Message, Placed, encoded, fixed, nested, rest, shown, sized, unsigned, variable
from secagg.identifiers import CLIENT_ID_BYTES, AttemptContext
from secagg.session.certificates import IDENTITY_KEY_BYTES, SIGNATURE_BYTES, Certificate, SigningKey
from secagg.wire import HEADER_BYTES, MessageKind

from .configuration import EnclaveConfiguration

EPOCH_BYTES: Final = 32
UPLOAD_ID_BYTES: Final = 16
DIGEST_BYTES: Final = 32
NONCE_BYTES: Final = 32
SEED_BYTES: Final = 32
WEIGHT_BYTES: Final = 4
_MAXIMUM_RECEIPT_BYTES: Final = 1 << 10
_MAXIMUM_KEY_BYTES: Final = 1 << 12
MOST_SEALED_INDICES: Final = 1 << 12
"""Packed indices of up to so many bytes are sealed with HPKE themselves, where no mask needs a seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclaveOffer(Message):
    """What an enclave says of itself, for its evidence to vouch for."""

    kind: ClassVar = MessageKind.ENCLAVE_OFFER
    context: Annotated[AttemptContext, CONTEXT]
    """The digest of its configuration (T0)."""
    epoch: Annotated[bytes, fixed(EPOCH_BYTES)]
    """32 random bytes that its keys live and die with."""
    sealing_key: Annotated[bytes, variable(_MAXIMUM_KEY_BYTES)]
    receipt_key: Annotated[bytes, fixed(IDENTITY_KEY_BYTES)]

    @property
    def binding(self) -> bytes:
        """The 64 bytes that the evidence holds: report_data of a quote or a report, user_data of a document."""
        statement = bind(Label.ENCLAVE_BINDING, self.context.digest, self.epoch, self.sealing_key, self.receipt_key)
        return hashlib.sha512(statement).digest()

    def binding_for(self, nonce: bytes | None) -> bytes:
        """Return the 64 bytes of evidence that was made for a nonce; without one, of that made with the keys."""
        if nonce is None:
            return self.binding
        if type(nonce) is not bytes or len(nonce) != NONCE_BYTES:
            raise Misuse(f"a nonce has {NONCE_BYTES} bytes; draw it at random, once for each request")
        return hashlib.sha512(bind(Label.ENCLAVE_FRESH_BINDING, self.binding, nonce)).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStamp:
    """Which model an update was trained from: its number, and its digest as the client has it."""

    version: Annotated[int, unsigned(8)]
    digest: Annotated[bytes, fixed(DIGEST_BYTES)]

    def __post_init__(self) -> None:
        if type(self.version) is not int or not 0 <= self.version < 1 << 64:
            raise Misuse(f"a model's version is an integer in 0..2^64 - 1; got {self.version!r}")
        if type(self.digest) is not bytes or len(self.digest) != DIGEST_BYTES:
            raise Misuse(f"a model's digest has {DIGEST_BYTES} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadHeader:
    """What an upload is, for whom and from whom: all that is in the clear, and bound to all that is not."""

    epoch: Annotated[bytes, fixed(EPOCH_BYTES)]
    upload_id: Annotated[bytes, fixed(UPLOAD_ID_BYTES)]
    certificate: Annotated[Certificate, nested(Certificate)]
    model: Annotated[ModelStamp, nested(ModelStamp)]
    vector_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    """The client's commitment to its masked vector, which the host compares; the enclave never sees the vector."""

    def digest(self, context: AttemptContext) -> bytes:
        """Return the digest of all of it, and of the configuration, that ciphertexts and the signature are bound to."""
        statement = bind(
            Label.ENCLAVE_UPLOAD_HEADER,
            context.digest,
            self.epoch,
            self.upload_id,
            self.certificate.client.encode(),
            self.certificate.public_key,
            self.model.version.to_bytes(8, "big"),
            self.model.digest,
            self.vector_digest,
        )
        return hashlib.sha256(statement).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedUpload(Placed):
    """The part of an upload that the enclave takes; the masked vector stays with the host."""

    kind: ClassVar = MessageKind.SEALED_UPLOAD
    header: Annotated[UploadHeader, nested(UploadHeader)]
    sealed_seed: Annotated[bytes, sized(lambda at: sealed_secret_bytes(at.place), "what is sealed, and its tag")]
    """What the client seals with HPKE: a seed, or the packed indices themselves; then its weight."""
    signature: Annotated[bytes, fixed(SIGNATURE_BYTES)] = bytes(SIGNATURE_BYTES)
    sealed_indices: Annotated[
        memoryview | bytes, shown(lambda at: sealed_indices_bytes(at.place), "packed indices, and a tag")
    ] = field(repr=False)
    """The packed indices under AES-256-GCM; nothing where the layout has none, or they are sealed with HPKE."""

    def signed_parts(self, context: AttemptContext) -> tuple[bytes, bytes]:
        """Return what the client signs; the indices are authenticated under the seed that the signature covers."""
        return self.header.digest(context), hashlib.sha256(self.sealed_seed).digest()

    def signed_with(self, signing_key: SigningKey, context: AttemptContext) -> SealedUpload:
        """Return the upload with its client's signature."""
        return replace(self, signature=signing_key.sign(Label.ENCLAVE_SIGNED_UPLOAD, *self.signed_parts(context)))

    def pieces(self) -> tuple[bytes, bytes | memoryview]:
        """Return the canonical encoding in two pieces, so that indices are not copied to be sent."""
        return replace(self, sealed_indices=b"").encode(), self.sealed_indices

    @classmethod
    def decode(cls, message: bytes, configuration: EnclaveConfiguration) -> SealedUpload:
        """Read the canonical encoding back; lengths follow from the configuration.

        Raises:
            MalformedMessage: anything that ``encode`` would not have written.
        """
        return cls.read_in(configuration, message)


def sealed_upload_bytes(configuration: EnclaveConfiguration) -> int:
    """Return how long the sealed part of each upload is."""
    fixed = EPOCH_BYTES + UPLOAD_ID_BYTES + CLIENT_ID_BYTES + IDENTITY_KEY_BYTES + 2 * SIGNATURE_BYTES
    fixed += 8 + 2 * DIGEST_BYTES + sealed_secret_bytes(configuration)
    return HEADER_BYTES + fixed + sealed_indices_bytes(configuration)


def has_one_seal(configuration: EnclaveConfiguration) -> bool:
    """Whether an upload's indices are sealed with HPKE themselves: there is no mask, and they are few."""
    return not configuration.ring_segments and _packed_bytes(configuration) <= MOST_SEALED_INDICES


def secret_bytes(configuration: EnclaveConfiguration) -> int:
    """Return how long what a client seals with HPKE is: a seed or all indices, and a weight."""
    return (_packed_bytes(configuration) if has_one_seal(configuration) else SEED_BYTES) + WEIGHT_BYTES


def sealed_secret_bytes(configuration: EnclaveConfiguration) -> int:
    """Return how long the same is once it is sealed."""
    return secret_bytes(configuration) + sealing_sizes(configuration.suite)[1]


def sealed_indices_bytes(configuration: EnclaveConfiguration) -> int:
    """Return how many bytes the indices of one client have beside that, under a key of the seed."""
    packed = _packed_bytes(configuration)
    return packed + TAG_BYTES if packed and not has_one_seal(configuration) else 0


def _packed_bytes(configuration: EnclaveConfiguration) -> int:
    return sum(segment.payload_bytes for segment in configuration.index_segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(Message):
    """What an enclave released, signed by it: once for each buffer."""

    kind: ClassVar = MessageKind.RELEASE_RECEIPT
    context: Annotated[AttemptContext, CONTEXT]
    epoch: Annotated[bytes, fixed(EPOCH_BYTES)]
    buffer: Annotated[int, unsigned(8)]
    """The number of the model that the buffer made updates for."""
    uploads_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    """Of the sorted ids of the uploads; a client can see whether its own is among those that a host publishes."""
    contributors: Annotated[int, unsigned(8)]
    total_weight: Annotated[int, unsigned(8)]
    releases: Annotated[int, unsigned(8)]
    """How many releases the epoch has made, with this one."""
    released_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    signature: Annotated[bytes, fixed(SIGNATURE_BYTES)] = b""
    """``VerifiedEnclave.verify_receipt`` says whether it is true."""

    def signed_parts(self) -> tuple[bytes, ...]:
        """Return what the enclave signs."""
        numbers = (self.buffer, self.contributors, self.total_weight, self.releases)
        encoded = b"".join(number.to_bytes(8, "big") for number in numbers)
        return self.context.digest, self.epoch, self.uploads_digest, encoded, self.released_digest

    def signed_with(self, signing_key: SigningKey) -> Receipt:
        """Return the receipt with the enclave's signature."""
        return replace(self, signature=signing_key.sign(Label.ENCLAVE_RECEIPT, *self.signed_parts()))


def uploads_digest(upload_ids: list[bytes]) -> bytes:
    """Return the digest of a set of uploads that a receipt holds."""
    return hashlib.sha256(bind(Label.ENCLAVE_UPLOAD_LIST, *sorted(upload_ids))).digest()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BufferRelease(Message):
    """What leaves the enclave for one buffer.

    A ring segment of the aggregate is the weighted sum of the masks, less the noise, for the host to take from its sum
    of masked vectors. The others are what the enclave decoded or counted, with their noise.
    """

    kind: ClassVar = MessageKind.BUFFER_RELEASE
    receipt: Annotated[Receipt, encoded(Receipt, _MAXIMUM_RECEIPT_BYTES)]
    aggregate: Annotated[bytes, rest("the aggregate in its released layout")] = field(repr=False)
    """Encoded, as the receipt's digest has it."""
