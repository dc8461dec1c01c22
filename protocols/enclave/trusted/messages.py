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
from secagg.wire import HEADER_BYTES, MessageKind

from .configuration import EnclaveConfiguration

EPOCH_BYTES: Final = 32
DIGEST_BYTES: Final = 32
SEED_BYTES: Final = 32
VERSION_BYTES: Final = 8
MAXIMUM_RECEIPT_BYTES: Final = 1 << 10
MAXIMUM_KEY_BYTES: Final = 1 << 12
MOST_SEALED_INDICES: Final = 1 << 12
"""Packed indices and bounded values up to this size are sealed with HPKE directly if there is no mask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnclaveOffer(Message):
    """An enclave's description of itself, for its evidence to vouch for."""

    kind: ClassVar = MessageKind.ENCLAVE_OFFER
    context: Annotated[AttemptContext, CONTEXT]
    epoch: Annotated[bytes, fixed(EPOCH_BYTES)]
    """32 random bytes that its keys live and die with."""
    sealing_key: Annotated[bytes, variable(MAXIMUM_KEY_BYTES)]
    receipt_key: Annotated[bytes, fixed(IDENTITY_KEY_BYTES)]
    """Signs receipts, and agrees with each client's key on the proof in what that client seals."""

    @property
    def binding(self) -> bytes:
        """The 64 bytes that the evidence holds: report_data of a quote or a report, user_data of a document."""
        statement = bind(Label.ENCLAVE_BINDING, self.context.digest, self.epoch, self.sealing_key, self.receipt_key)
        return hashlib.sha512(statement).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStamp:
    """Which model an update was trained from: its number, and its digest as the client has it."""

    version: Annotated[int, unsigned(VERSION_BYTES)]
    digest: Annotated[bytes, fixed(DIGEST_BYTES)]

    def __post_init__(self) -> None:
        if type(self.version) is not int or not 0 <= self.version < 1 << 64:
            raise Misuse(f"a model's version is an integer in 0..2^64 - 1; got {self.version!r}")
        if type(self.digest) is not bytes or len(self.digest) != DIGEST_BYTES:
            raise Misuse(f"a model's digest has {DIGEST_BYTES} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadHeader:
    """Header of an upload, with its sender and purpose: the part in the clear, which is bound to the sealed part."""

    epoch: Annotated[bytes, fixed(EPOCH_BYTES)]
    certificate: Annotated[Certificate, nested(Certificate)]
    model: Annotated[ModelStamp, nested(ModelStamp)]
    vector_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
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


class Seed(Secret):
    """Body of an upload: the keys of its mask and of its indices follow from it."""

    __slots__ = ()


class Packed(Secret):
    """Body of an upload without a mask and with few indices: the indices and bounded values themselves."""

    __slots__ = ()


def has_one_seal(configuration: EnclaveConfiguration) -> bool:
    """Whether an upload's indices are sealed with HPKE themselves: there is no mask, and they are few."""
    return not configuration.masked_segments and configuration.packed_bytes <= MOST_SEALED_INDICES


def secret_bytes(configuration: EnclaveConfiguration) -> int:
    """Return how long what a client seals with HPKE is: a proof, and a seed or all indices."""
    return PROOF_BYTES + (configuration.packed_bytes if has_one_seal(configuration) else SEED_BYTES)


def sealed_secret_bytes(configuration: EnclaveConfiguration) -> int:
    """Return how long the same is once it is sealed."""
    return secret_bytes(configuration) + sealing_sizes(configuration.suite)[1]


def sealed_indices_bytes(configuration: EnclaveConfiguration) -> int:
    """Return the bytes of one client's indices outside that seal, under a key of the seed."""
    return 0 if has_one_seal(configuration) or not (size := configuration.packed_bytes) else size + TAG_BYTES


SEALED_SEED: Final = sized(sealed_secret_bytes, "a proof, and a seed or what is sealed, under HPKE")
SEALED_INDICES: Final = borrowed(sealed_indices_bytes, "the rest under AES-256-GCM")


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedUpload(MessageIn[EnclaveConfiguration]):
    """The part of an upload that the enclave takes; the masked vector stays with the host."""

    kind: ClassVar = MessageKind.SEALED_UPLOAD
    header: Annotated[UploadHeader, nested(UploadHeader)]
    sealed_seed: Annotated[bytes, SEALED_SEED]
    """Sealed with HPKE: a proof; a seed, or the packed indices themselves."""
    sealed_indices: Annotated[memoryview | bytes, SEALED_INDICES] = field(repr=False)
    """The packed indices and bounded values under AES-256-GCM; nothing where there are none, or HPKE seals them."""

    @property
    def upload_id(self) -> bytes:
        """No two seals are alike."""
        return hashlib.sha256(self.sealed_seed).digest()


def sealed_upload_bytes(configuration: EnclaveConfiguration) -> int:
    """Return how long the sealed part of each upload is."""
    fixed = EPOCH_BYTES + CLIENT_ID_BYTES + IDENTITY_KEY_BYTES + GRANT_BYTES
    fixed += 8 + 2 * DIGEST_BYTES + sealed_secret_bytes(configuration)
    return HEADER_BYTES + fixed + sealed_indices_bytes(configuration)


def bounded_segments(configuration: EnclaveConfiguration) -> tuple[RingSegment, ...]:
    """Return the ring segments whose values are sealed, after all indices."""
    return configuration.ring_segments if configuration.max_norms else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt(Message):
    """Receipt of a release, signed by the enclave: one for each buffer."""

    kind: ClassVar = MessageKind.RELEASE_RECEIPT
    context: Annotated[AttemptContext, CONTEXT]
    epoch: Annotated[bytes, fixed(EPOCH_BYTES)]
    buffer: Annotated[int, unsigned(8)]
    """The number of its model."""
    uploads_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    """Over the sorted upload ids: a client can see whether its own is among those that a host publishes."""
    contributors: Annotated[int, unsigned(8)]
    releases: Annotated[int, unsigned(8)]
    """Number of releases of the epoch, including this one."""
    released_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    signature: Annotated[bytes, fixed(SIGNATURE_BYTES)] = b""

    def signed_parts(self) -> tuple[bytes, ...]:
        numbers = (self.buffer, self.contributors, self.releases)
        encoded = b"".join(number.to_bytes(8, "big") for number in numbers)
        return self.context.digest, self.epoch, self.uploads_digest, encoded, self.released_digest

    def signed_with(self, signing_key: SigningKey) -> Receipt:
        return replace(self, signature=signing_key.sign(Label.ENCLAVE_RECEIPT, *self.signed_parts()))


def uploads_digest(upload_ids: list[bytes]) -> bytes:
    """Return the digest of a set of uploads that a receipt holds."""
    return hashlib.sha256(bind(Label.ENCLAVE_UPLOAD_LIST, *sorted(upload_ids))).digest()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BufferRelease(Message):
    """Output of the enclave for one buffer.

    A ring segment of the aggregate is the sum of the masks, less the noise, for the host to take from its sum
    of masked vectors; with ``max_norms`` it is the sum itself. The others are the enclave's decoded sums or counts,
    with their noise.
    """

    kind: ClassVar = MessageKind.BUFFER_RELEASE
    receipt: Annotated[Receipt, encoded(Receipt, MAXIMUM_RECEIPT_BYTES)]
    aggregate: Annotated[bytes, variable((1 << 32) - 1)] = field(repr=False)
    """Encoded, as the receipt's digest has it."""


# --- Requests of the host, and their answers --------------------------------------------------------------------------

MAXIMUM_OFFER_BYTES: Final = 1 << 14
MAXIMUM_WORD_BYTES: Final = 1 << 6
MAXIMUM_DOCUMENT_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class AttestedOffer(Message):
    """An offer with the evidence that vouches for it, as a host relays it to clients."""

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
    """The request to discard it."""

    kind: ClassVar = MessageKind.GIVE_UP_BUFFER


@dataclass(frozen=True, slots=True)
class DestroyEnclave(Message):
    """The request to end the epoch."""

    kind: ClassVar = MessageKind.DESTROY_ENCLAVE


@dataclass(frozen=True, slots=True)
class Done(Message):
    """The answer to a request that has no other."""

    kind: ClassVar = MessageKind.ENCLAVE_DONE


# --- What one seed and the two signing keys give ----------------------------------------------------------------------

PROOF_BYTES: Final = 16
TAG_BYTES: Final = 16
_KEY_BYTES: Final = 32
GCM_NONCE_BYTES: Final = 12


def mask_key(  # noqa: PLR0913, PLR0917 -- what a mask is bound to
    seed: Seed, suite: Suite, context: AttemptContext, epoch: bytes, client: ClientId, version: int
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
    seed: Seed, header_digest: bytes, sealed: bytes | memoryview, *, culprits: Iterable[Party]
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


def indices_key(seed: Seed, header_digest: bytes) -> Secret:
    """Return the key of an upload's indices, where they are not in its one seal."""
    return expand("indices_key", _KEY_BYTES, seed, Label.ENCLAVE_INDICES_KEY, header_digest)
