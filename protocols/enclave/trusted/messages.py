"""Messages across the enclave's boundary, each with one encoding, and the keys and digests that bind them.

The host relays all messages but is not trusted: only the client and the enclave can seal an upload, hardware vouches
for an offer, and the enclave signs a receipt.

A client seals one seed per upload, from which the mask of its vector and the key of its indices are derived. Both are
bound to the configuration, epoch, client and model, so that even a seed that is sealed twice never yields the same
stream twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.contract.layout import RingSegment
from secagg.crypto.hpke import sealing_sizes
from secagg.crypto.key_derivation import expand
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Secret, overwrite
from secagg.declared import CONTEXT, Message, MessageIn, borrowed, encoded, fixed, nested, sized, unsigned, variable
from secagg.errors import UNDECIDED, AuthenticationFailed, Misuse
from secagg.identifiers import CLIENT_ID_BYTES, AttemptContext, ClientId, Party
from secagg.parameters import Suite
from secagg.session.certificates import GRANT_BYTES, IDENTITY_KEY_BYTES, SIGNATURE_BYTES, Certificate, SigningKey
from secagg.session.signing_keys import agreed
from secagg.wire import HEADER_BYTES, MessageKind

from .configuration import EnclaveConfiguration

EPOCH_BYTES: Final = 32
DIGEST_BYTES: Final = 32
SEED_BYTES: Final = 32
VERSION_BYTES: Final = 8
MAXIMUM_RECEIPT_BYTES: Final = 1 << 10
MAXIMUM_KEY_BYTES: Final = 1 << 12
MOST_SEALED_INDICES: Final = 1 << 12
"""Maximum size of packed indices and bounded values that are sealed with HPKE directly; only without masks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclaveOffer(Message):
    """The keys, epoch and configuration of an enclave; its evidence vouches for them."""

    kind: ClassVar = MessageKind.ENCLAVE_OFFER
    context: Annotated[AttemptContext, CONTEXT]
    epoch: Annotated[bytes, fixed(EPOCH_BYTES)]
    """32 random bytes that identify the enclave's keys."""
    sealing_key: Annotated[bytes, variable(MAXIMUM_KEY_BYTES)]
    receipt_key: Annotated[bytes, fixed(IDENTITY_KEY_BYTES)]
    """Signs receipts, and agrees with a client's key on the proof that the client seals."""

    @property
    def binding(self) -> bytes:
        """The 64 bytes in the evidence: report_data of a quote or report, user_data of a Nitro document."""
        statement = bind(Label.ENCLAVE_BINDING, self.context.digest, self.epoch, self.sealing_key, self.receipt_key)
        return hashlib.sha512(statement).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStamp:
    """The model that an update was trained from: its number, and its digest as the client computed it."""

    version: Annotated[int, unsigned(VERSION_BYTES)]
    digest: Annotated[bytes, fixed(DIGEST_BYTES)]

    def __post_init__(self) -> None:
        if type(self.version) is not int or not 0 <= self.version < 1 << 64:
            raise Misuse(f"a model's version must be an integer between 0 and 2^64 - 1; got {self.version!r}")
        if type(self.digest) is not bytes or len(self.digest) != DIGEST_BYTES:
            raise Misuse(f"a model's digest must have {DIGEST_BYTES} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadHeader:
    """Unencrypted header of an upload, with its sender and model; the sealed part is bound to it."""

    epoch: Annotated[bytes, fixed(EPOCH_BYTES)]
    certificate: Annotated[Certificate, nested(Certificate)]
    model: Annotated[ModelStamp, nested(ModelStamp)]
    vector_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    """The client's commitment to its masked vectors; the host checks it, because the enclave never sees the vectors."""

    def digest(self, context: AttemptContext) -> bytes:
        """Return the digest of the header and the configuration, to which ciphertexts are bound."""
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


class Seed(Secret):
    """Sealed body of an upload: the seed from which the keys of its mask and indices are derived."""

    __slots__ = ()


class Packed(Secret):
    """Sealed body of a short upload without a mask: the indices and bounded values themselves."""

    __slots__ = ()


def has_one_seal(configuration: EnclaveConfiguration) -> bool:
    """Return whether indices and bounded values are sealed with HPKE directly: they are short and nothing is masked."""
    return not configuration.masked_segments and configuration.packed_bytes <= MOST_SEALED_INDICES


def secret_bytes(configuration: EnclaveConfiguration) -> int:
    """Return the length of the plaintext that a client seals with HPKE: a proof, and a seed or the packed values."""
    return PROOF_BYTES + (configuration.packed_bytes if has_one_seal(configuration) else SEED_BYTES)


def sealed_secret_bytes(configuration: EnclaveConfiguration) -> int:
    """Return the length of the HPKE ciphertext."""
    return secret_bytes(configuration) + sealing_sizes(configuration.suite)[1]


def sealed_indices_bytes(configuration: EnclaveConfiguration) -> int:
    """Return the length of the indices and values that are encrypted outside the seal, under a key from the seed."""
    return 0 if has_one_seal(configuration) or not (size := configuration.packed_bytes) else size + TAG_BYTES


SEALED_SEED: Final = sized(sealed_secret_bytes, "a proof, and a seed or what is sealed, under HPKE")
SEALED_INDICES: Final = borrowed(sealed_indices_bytes, "the rest under AES-256-GCM")


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedUpload(MessageIn[EnclaveConfiguration]):
    """The part of an upload for the enclave; the masked vectors stay with the host."""

    kind: ClassVar = MessageKind.SEALED_UPLOAD
    header: Annotated[UploadHeader, nested(UploadHeader)]
    sealed_seed: Annotated[bytes, SEALED_SEED]
    """Sealed with HPKE: a proof; a seed, or the packed indices themselves."""
    sealed_indices: Annotated[memoryview | bytes, SEALED_INDICES] = field(repr=False)
    """The packed indices and bounded values under AES-256-GCM; empty if there are none, or if HPKE seals them."""

    @property
    def upload_id(self) -> bytes:
        """Digest of the HPKE ciphertext, which is different for every seal."""
        return hashlib.sha256(self.sealed_seed).digest()


def sealed_upload_bytes(configuration: EnclaveConfiguration) -> int:
    """Return the length of the sealed part of an upload."""
    fixed = EPOCH_BYTES + CLIENT_ID_BYTES + IDENTITY_KEY_BYTES + GRANT_BYTES
    fixed += 8 + 2 * DIGEST_BYTES + sealed_secret_bytes(configuration)
    return HEADER_BYTES + fixed + sealed_indices_bytes(configuration)


def bounded_segments(configuration: EnclaveConfiguration) -> tuple[RingSegment, ...]:
    """Return the ring segments whose values are sealed, following the indices."""
    return configuration.ring_segments if configuration.max_norms else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(Message):
    """The enclave's signed receipt for the release of a buffer."""

    kind: ClassVar = MessageKind.RELEASE_RECEIPT
    context: Annotated[AttemptContext, CONTEXT]
    epoch: Annotated[bytes, fixed(EPOCH_BYTES)]
    buffer: Annotated[int, unsigned(8)]
    """Number of the buffer's model."""
    uploads_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    """Digest of the sorted upload ids; if the host publishes the ids, a client can check that its own is included."""
    contributors: Annotated[int, unsigned(8)]
    releases: Annotated[int, unsigned(8)]
    """Number of releases in the epoch, including this one."""
    released_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    signature: Annotated[bytes, fixed(SIGNATURE_BYTES)] = b""

    def signed_parts(self) -> tuple[bytes, ...]:
        numbers = (self.buffer, self.contributors, self.releases)
        encoded = b"".join(number.to_bytes(8, "big") for number in numbers)
        return self.context.digest, self.epoch, self.uploads_digest, encoded, self.released_digest

    def signed_with(self, signing_key: SigningKey) -> Receipt:
        return replace(self, signature=signing_key.sign(Label.ENCLAVE_RECEIPT, *self.signed_parts()))


def uploads_digest(upload_ids: list[bytes]) -> bytes:
    """Return the digest of a set of upload ids, for the receipt."""
    return hashlib.sha256(bind(Label.ENCLAVE_UPLOAD_LIST, *sorted(upload_ids))).digest()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BufferRelease(Message):
    """Output of the enclave for one buffer.

    A ring segment of the aggregate is the sum of the masks minus the noise, which the host subtracts from its sum of
    masked vectors; with ``max_norms`` it is the sum itself. Other segments are decoded sums or counts, with noise if
    there is any.
    """

    kind: ClassVar = MessageKind.BUFFER_RELEASE
    receipt: Annotated[Receipt, encoded(Receipt, MAXIMUM_RECEIPT_BYTES)]
    aggregate: Annotated[bytes, variable((1 << 32) - 1)] = field(repr=False)
    """The encoded aggregate, whose digest is in the receipt."""


# --- Requests of the host, and their answers --------------------------------------------------------------------------

MAXIMUM_OFFER_BYTES: Final = 1 << 14
MAXIMUM_WORD_BYTES: Final = 1 << 6
MAXIMUM_DOCUMENT_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class AttestedOffer(Message):
    """An offer with its evidence, which the host relays to clients."""

    kind: ClassVar = MessageKind.ATTESTED_OFFER
    offer: Annotated[EnclaveOffer, encoded(EnclaveOffer, MAXIMUM_OFFER_BYTES)]
    form: Annotated[bytes, variable(MAXIMUM_WORD_BYTES)]
    """The value of an ``EvidenceFormat``, or ``SIMULATED``."""
    document: Annotated[bytes, variable(MAXIMUM_DOCUMENT_BYTES)]


@dataclass(frozen=True, slots=True)
class OpenBuffer(Message):
    """The request to collect updates for a model."""

    kind: ClassVar = MessageKind.OPEN_BUFFER
    model: Annotated[ModelStamp, nested(ModelStamp)]


@dataclass(frozen=True, slots=True)
class AnnounceModel(Message):
    """The request to fix the digest of an older model."""

    kind: ClassVar = MessageKind.ANNOUNCE_MODEL
    model: Annotated[ModelStamp, nested(ModelStamp)]


@dataclass(frozen=True, slots=True)
class ReleaseBuffer(Message):
    """The request to release the open buffer."""

    kind: ClassVar = MessageKind.RELEASE_BUFFER


@dataclass(frozen=True, slots=True)
class GiveUpBuffer(Message):
    """The request to discard the open buffer."""

    kind: ClassVar = MessageKind.GIVE_UP_BUFFER


@dataclass(frozen=True, slots=True)
class DestroyEnclave(Message):
    """The request to end the epoch."""

    kind: ClassVar = MessageKind.DESTROY_ENCLAVE


@dataclass(frozen=True, slots=True)
class Done(Message):
    """The answer to a request that returns nothing."""

    kind: ClassVar = MessageKind.ENCLAVE_DONE


# --- Keys derived from the seed and from the two signing keys ---------------------------------------------------------

PROOF_BYTES: Final = 16
TAG_BYTES: Final = 16
_KEY_BYTES: Final = 32
GCM_NONCE_BYTES: Final = 12


def mask_key(  # noqa: PLR0913, PLR0917 -- the values that a mask is bound to
    seed: Seed, suite: Suite, context: AttemptContext, epoch: bytes, client: ClientId, version: int
) -> Secret:
    """Return the key that expands into the mask of an upload's ring segments."""
    parts = (context.digest, epoch, client.encode(), version.to_bytes(8, "big"))
    return expand("mask_key", suite.mask_key_bytes, seed, Label.ENCLAVE_MASK_KEY, *parts)


def sealing_info(header_digest: bytes) -> bytes:
    """Return the HPKE info that binds the sealed seed to the header."""
    return bind(Label.ENCLAVE_SEALING, header_digest)


def proof_of(
    own_key: SigningKey, peer_key: bytes, header_digest: bytes, *, culprits: Iterable[Party] = UNDECIDED
) -> Secret:
    """Return the proof of a header, which only its client and the enclave can compute; the client seals it.

    It replaces a signature, but convinces only the enclave, which could have made it too. It is bound to one header, so
    it is useless for another one.
    """
    return agreed(own_key, peer_key, PROOF_BYTES, Label.ENCLAVE_PROOF, header_digest, culprits=culprits)


def open_indices(
    seed: Seed, header_digest: bytes, sealed: bytes | memoryview, *, culprits: Iterable[Party]
) -> bytearray:
    """Decrypt packed indices; the caller overwrites the result.

    Implements: [SP 800-38D] §7.2.
    Raises:
        AuthenticationFailed: the indices were altered or are from another upload.
    """
    opened = bytearray(len(sealed) - TAG_BYTES)
    try:
        with indices_key(seed, header_digest) as key:
            AESGCM(key.expose()).decrypt_into(bytes(GCM_NONCE_BYTES), sealed, header_digest, opened)
    except InvalidTag:
        overwrite(opened)
        raise AuthenticationFailed(culprits=culprits) from None
    return opened


def indices_key(seed: Seed, header_digest: bytes) -> Secret:
    """Return the key of the indices and values that are encrypted outside the seal."""
    return expand("indices_key", _KEY_BYTES, seed, Label.ENCLAVE_INDICES_KEY, header_digest)
