"""The client's side of one buffer: it judges the enclave, seals one update to it, and masks what the host may hold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

from secagg.contract.layout import IndexSegment, Payload
from secagg.crypto.labels import Label, bind
from secagg.crypto.mask_expansion import accumulate, segment_count
from secagg.crypto.ring import low_bits, reduce_into
from secagg.crypto.secret import Secret, draw_exactly, overwrite
from secagg.errors import InvalidParameters, Misuse, Reason
from secagg.fields import FLAG, Message, fixed, unsigned, variable
from secagg.identifiers import CLIENT_ID_BYTES, ServerId
from secagg.privacy.kinds import clip_into
from secagg.session.certificates import Authority
from secagg.session.ledger import Spent
from secagg.session.one_answer import OneStageClientSession
from secagg.wire import MessageKind, Writer

from .floors import EnclaveFloors
from .ledger import SealLedger
from .trusted.configuration import EnclaveConfiguration
from .trusted.messages import (
    DIGEST_BYTES,
    SEED_BYTES,
    WEIGHT_BYTES,
    ModelStamp,
    SealedUpload,
    UploadHeader,
    has_one_seal,
)
from .trusted.upload_keys import PROOF_BYTES, mask_key, proof_of, seal_indices, sealing_info
from .verified_enclave import VerifiedEnclave

if TYPE_CHECKING:
    from secagg.session.roles import LateUpdate, Subject

    from .session import EnclaveMember

VECTOR_NONCE_BYTES: Final = 32
_MOST_BYTES: Final = (1 << 32) - 1
_VERSION_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Invitation(Message):
    """The one message of a buffer to its clients."""

    kind: ClassVar = MessageKind.ENCLAVE_INVITATION
    configuration: Annotated[bytes, variable(_MOST_BYTES)]
    """Without its tables, which a client of the same codec has, and which can be a thousand times its upload."""
    attested: Annotated[bytes, variable(_MOST_BYTES)]
    version: Annotated[int, unsigned(_VERSION_BYTES)]
    model_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    is_short: Annotated[bool, FLAG]


def stamp_of(subject: Subject, model_digest: bytes | None) -> ModelStamp:
    """Return what all uploads of a buffer have in common: the round, the model, and what else clients are told."""
    bound = bind(
        Label.SESSION_MODEL, subject.capacity.to_bytes(8, "big"), model_digest or bytes(DIGEST_BYTES), subject.terms
    )
    return ModelStamp(version=subject.round_number, digest=hashlib.sha256(bound).digest())


@dataclass(frozen=True, slots=True, eq=False)
class Upload:
    """A client's message for one update: a sealed part for the enclave, and masked vectors for the host."""

    sealed: SealedUpload = field(repr=False)
    packed: Sequence[bytes | memoryview] = field(repr=False)
    nonce: bytes = field(repr=False)
    """Nonce of the commitment to the masked vectors."""

    def encode(self) -> bytes:
        pieces = self.sealed.pieces()
        writer = Writer(MessageKind.ENCLAVE_UPLOAD).integer(sum(map(len, pieces)), 8)
        for piece in pieces:
            writer.borrowed(piece)
        writer.fixed(self.nonce, VECTOR_NONCE_BYTES)
        for vector in self.packed:
            writer.borrowed(vector)
        return writer.finish()

    def shortened(self) -> bytes:
        """Return the upload for a host that knows the epoch, the model and the certificate, and puts them back."""
        sealed = self.sealed
        writer = Writer(MessageKind.SHORT_UPLOAD).fixed(sealed.header.certificate.client.encode(), CLIENT_ID_BYTES)
        writer.borrowed(sealed.sealed_seed).borrowed(sealed.sealed_indices)
        if self.packed:
            writer.fixed(self.nonce, VECTOR_NONCE_BYTES)
        for vector in self.packed:
            writer.borrowed(vector)
        return writer.finish()


class Client(OneStageClientSession):
    """A client's side of one buffer.

    Security: each charge is an upload, whether it is sent or not. Another one for the same model is refused, because
        two sums that differ in one client give that client away; ``SealLedger`` says when it is not.
    """

    def __init__(
        self,
        member: EnclaveMember,
        subject: Subject,
        update: LateUpdate | None = None,
        suspended: Secret | None = None,
    ) -> None:
        """Begin, unless the certificate is of another key or authority, or privacy is asked for without a limit."""
        super().__init__(member.certificate.client, subject, update, suspended)
        certificate = member.certificate
        self.ledger = member.ledger(subject.task)
        if type(self.ledger) is not SealLedger or type(member.floors) is not EnclaveFloors:
            raise Misuse("a client has EnclaveFloors and a SealLedger")
        if certificate.public_key != member.signing_key.public_key:
            raise InvalidParameters("the certificate is for another key than the signing key")
        authority = certificate.public_key if member.floors.authority is None else member.floors.authority
        Authority(authority).verify(certificate, culprits={certificate.client})
        if member.floors.privacy is not None and self.ledger.maximum_seals is None:
            raise InvalidParameters(
                "a client that asks for privacy limits its uploads: give its ledger maximum_seals, which epsilon is "
                "computed for"
            )
        self._member = member

    def _upload(self, message: bytes, update: LateUpdate) -> bytes:
        member, subject = self._member, self._subject
        invited = Invitation.decode(message)
        configuration = EnclaveConfiguration.decode(invited.configuration, subject.tables)
        named = ModelStamp(version=invited.version, digest=invited.model_digest)
        if configuration.task != subject.task:
            raise InvalidParameters("the enclave counts for another task than this client's", reason=Reason.BELOW_FLOOR)
        if named.version != subject.round_number:
            raise InvalidParameters("the buffer is of another round than this client's", reason=Reason.BELOW_FLOOR)
        if named != stamp_of(subject, model := update.model_for(subject)):
            raise InvalidParameters(
                "the buffer is about another model, capacity or terms than this client's", reason=Reason.BELOW_FLOOR
            )
        enclave = member.verified(invited.attested, configuration)
        self.admit(enclave, member.clock())
        made = update.take(
            configuration.layout,
            range(1, configuration.maximum_weight + 1),
            charge=lambda: self.charge(configuration, named.version, model),
        )
        upload = self.sealed(made.payload, enclave=enclave, model=named, now=member.clock(), weight=made.weight)
        return upload.shortened() if invited.is_short else upload.encode()

    def admit(self, enclave: VerifiedEnclave, now: datetime) -> None:
        """Refuse an enclave that is below the floors or no longer verified; ``charge`` and ``sealed`` follow."""
        if type(enclave) is not VerifiedEnclave:
            raise Misuse("an update is sealed to a VerifiedEnclave")
        enclave.require_current(now)
        configuration, subject = enclave.configuration, self._subject
        tables = subject.tables if configuration.index_segments else ()
        self._member.floors.admit(
            configuration, layout=subject.layout, tables=tables, maximum_seals=self.ledger.maximum_seals, now=now
        )
        if configuration.maximum_total_weight > subject.capacity:
            raise InvalidParameters(
                f"a buffer may reach a weight of {configuration.maximum_total_weight}, and the codec's capacity is "
                f"{subject.capacity}; use a wider ring, or smaller cohorts and weights"
            )

    def charge(self, configuration: EnclaveConfiguration, version: int, model: bytes) -> None:
        """Spend a model, named by its own digest, before its update is made; durable where the ledger has a file."""
        self.ledger.charge(Spent(configuration.task, version, model), is_noised=configuration.noise is not None)

    def sealed(
        self, payload: Payload, *, enclave: VerifiedEnclave, model: ModelStamp, now: datetime, weight: int = 1
    ) -> Upload:
        """Seal and mask an update that was charged; it is of the enclave's layout and weights.

        Implements: [PGC+22] Algorithm 1, client; [HNM+22] for ring segments.
        Security: with noise, values beyond the bound that the noise was chosen for are scaled down to it, in the same
            time and without a word: a refusal would tell the host the norm, one bound after the other, and no epsilon
            counts that.
        """
        member, configuration = self._member, enclave.configuration
        # Without vectors there is nothing to hide, and nothing to send.
        nonce = bytes(VECTOR_NONCE_BYTES)
        if configuration.ring_segments:
            nonce = bytes(draw_exactly(VECTOR_NONCE_BYTES, member.coins))
        with Secret.random("upload_seed", SEED_BYTES, member.coins) as seed:
            packed = self._masked(payload, enclave, weight, seed, model.version)
            header = UploadHeader(
                epoch=enclave.offer.epoch,
                certificate=member.certificate,
                model=model,
                vector_digest=vector_digest(nonce, packed),
            )
            digest = header.digest(configuration.context)
            indices, is_one = _packed_indices(payload), has_one_seal(configuration)
            with (
                proof_of(member.signing_key, enclave.offer.receipt_key, digest, culprits={ServerId()}) as proof,
                _joined(proof, indices if is_one else seed.expose(), weight) as secret,
            ):
                sealed_seed = enclave.seal(secret, sealing_info(digest), now)
            beside = seal_indices(seed, digest, indices) if len(indices) and not is_one else b""
        sealed = SealedUpload(header=header, sealed_seed=sealed_seed, sealed_indices=beside)
        return Upload(sealed, packed, nonce)

    def _masked(
        self, payload: Payload, enclave: VerifiedEnclave, weight: int, seed: Secret, version: int
    ) -> list[bytes | memoryview]:
        """Return the packed ring segments, each value as often as the weight says, under one mask."""
        configuration, packed, first_segment = enclave.configuration, list[bytes | memoryview](), 0
        threads = self._member.threads
        place = enclave.offer.epoch, self.client, version
        bounds = iter(configuration.noise.l2_bounds if configuration.noise is not None else ())
        with mask_key(seed, configuration.suite, configuration.context, *place) as key:
            for segment, values in zip(configuration.layout.segments, payload.values, strict=True):
                if isinstance(segment, IndexSegment):
                    continue
                vector = values.astype(segment.ring.word)
                if configuration.noise is not None:
                    clip_into(segment.ring, vector, next(bounds))
                if weight != 1:
                    vector *= segment.ring.word.type(weight & low_bits(segment.ring.modulus_bits))
                    reduce_into(vector, segment.ring.modulus_bits)
                accumulate(vector, segment.ring, add=[key], subtract=[], first_segment=first_segment, threads=threads)
                first_segment += segment_count(segment.ring, segment.length)
                packed.append(segment.pack_sent(vector))
        return packed

    def __repr__(self) -> str:
        return f"<Client {self.client}{', done' if self._is_done else ''}, {self.ledger!r}>"


def vector_digest(nonce: bytes, packed: Iterable[bytes | memoryview]) -> bytes:
    """Return the digest of the packed masked vectors under a nonce; their lengths are the configuration's.

    The nonce is not in the sealed part: an enclave that was broken cannot try out updates against the digest.
    """
    hashed = hashlib.sha256(bind(Label.ENCLAVE_VECTOR_DIGEST, nonce))
    for run in packed:
        hashed.update(run)
    return hashed.digest()


def _joined(proof: Secret, body: bytes | memoryview, weight: int) -> Secret:
    joined = bytearray(PROOF_BYTES + len(body) + WEIGHT_BYTES)
    joined[:PROOF_BYTES] = proof.expose()
    joined[PROOF_BYTES:-WEIGHT_BYTES] = body
    joined[-WEIGHT_BYTES:] = weight.to_bytes(WEIGHT_BYTES, "big")
    secret = Secret("upload_secret", joined)
    overwrite(joined)
    return secret


def _packed_indices(payload: Payload) -> bytes | memoryview:
    packed = [
        segment.ring.pack_view(vector)
        for segment, vector in zip(payload.layout.segments, payload.values, strict=True)
        if isinstance(segment, IndexSegment)
    ]
    return packed[0] if len(packed) == 1 else b"".join(packed)
