"""The client's side of one buffer: it judges the enclave, seals one update to it, and masks what the host may hold.

A client keeps a ledger of its seals across epochs, because an enclave that starts again has forgotten them. An update
that is sealed to a second epoch can be summed twice, with and without another client, and the difference is that
client's. A privacy budget that the enclave alone counts is full again after every restart.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from math import isqrt
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secagg.blame import from_server
from secagg.contract.codewords import Tables, tables_digest
from secagg.contract.layout import IndexSegment, Layout, Payload, RingSegment
from secagg.crypto.labels import Label, bind
from secagg.crypto.mask_expansion import accumulate, segment_count
from secagg.crypto.ring import RingVector, low_bits, pack_group
from secagg.crypto.secret import Secret, draw_exactly, overwrite
from secagg.declared import CLIENT, FLAG, Message, MessageIn, buffers, encoded, fixed, sized, unsigned, variable
from secagg.errors import NOBODY, InvalidParameters, Misuse, Reason
from secagg.identifiers import ClientId
from secagg.privacy.kinds import clip_into, squared_norm
from secagg.session.certificates import Authority
from secagg.session.ledger import Spent
from secagg.session.one_answer import OneStageClientSession
from secagg.session.standings import require_standing
from secagg.wire import MessageKind

from .seal_ledger import SealLedger
from .trusted.bounded import LANES, WORD, runs
from .trusted.configuration import EnclaveConfiguration
from .trusted.messages import (
    DIGEST_BYTES,
    GCM_NONCE_BYTES,
    PROOF_BYTES,
    SEALED_INDICES,
    SEALED_SEED,
    SEED_BYTES,
    TAG_BYTES,
    VERSION_BYTES,
    ModelStamp,
    SealedUpload,
    Seed,
    UploadHeader,
    has_one_seal,
    indices_key,
    mask_key,
    proof_of,
    sealing_info,
)
from .verified_enclave import VerifiedEnclave, weaker

if TYPE_CHECKING:
    from secagg.session.client_policy import ClientPolicy, Compared
    from secagg.session.roles import LazyUpdate, Subject

    from .member import MemberParts
    from .release_privacy import PrivacyLimit

VECTOR_NONCE_BYTES: Final = 32
_LOG: Final = logging.getLogger("secagg.protocols.enclave")
_MOST_BYTES: Final = (1 << 32) - 1
MOST_COLLATERAL_BYTES: Final = 1 << 18
"""Limit on what a host relays for the verification of its evidence."""


@dataclass(frozen=True, slots=True)
class Invitation(Message):
    """The one message of a buffer to its clients."""

    kind: ClassVar = MessageKind.ENCLAVE_INVITATION
    configuration: Annotated[bytes, variable(_MOST_BYTES)]
    """Without its tables, which a client of the same codec has, and which can be a thousand times its upload."""
    attested: Annotated[bytes, variable(_MOST_BYTES)]
    collateral: Annotated[bytes, variable(MOST_COLLATERAL_BYTES)]
    """What the evidence is verified with, where the host relays it."""
    version: Annotated[int, unsigned(VERSION_BYTES)]
    model_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    is_short: Annotated[bool, FLAG]


def stamp_of(subject: Subject, model_digest: bytes | None) -> ModelStamp:
    """Return what all uploads of a buffer have in common: the round, the model, and what else clients are told."""
    bound = bind(
        Label.SESSION_MODEL, subject.capacity.to_bytes(8, "big"), model_digest or bytes(DIGEST_BYTES), subject.terms
    )
    return ModelStamp(version=subject.round_number, digest=hashlib.sha256(bound).digest())


def _vector_bytes(configuration: EnclaveConfiguration) -> int:
    return sum(segment.payload_bytes for segment in configuration.masked_segments)


_PACKED: Final = buffers(_vector_bytes, "the masked vectors")


@dataclass(frozen=True, slots=True, eq=False)
class Upload(MessageIn[EnclaveConfiguration]):
    """A client's message for one update: a sealed part for the enclave, and masked vectors for the host."""

    kind: ClassVar = MessageKind.ENCLAVE_UPLOAD
    sealed: Annotated[SealedUpload, encoded(SealedUpload, _MOST_BYTES)] = field(repr=False)
    nonce: Annotated[bytes, fixed(VECTOR_NONCE_BYTES)] = field(repr=False)
    """Nonce of the commitment to the masked vectors."""
    packed: Annotated[Sequence[bytes | memoryview], _PACKED] = field(repr=False)

    def shortened(self) -> bytes:
        """Return the upload for a host that knows the epoch, the model and the certificate, and puts them back."""
        sealed, nonce = self.sealed, self.nonce if self.packed else b""
        client = sealed.header.certificate.client
        return ShortUpload(client, sealed.sealed_seed, sealed.sealed_indices, nonce, self.packed).encode()


@dataclass(frozen=True, slots=True, eq=False)
class ShortUpload(MessageIn[EnclaveConfiguration]):
    """An upload without what the host has."""

    kind: ClassVar = MessageKind.SHORT_UPLOAD
    client: Annotated[ClientId, CLIENT]
    sealed_seed: Annotated[bytes, SEALED_SEED]
    sealed_indices: Annotated[memoryview | bytes, SEALED_INDICES] = field(repr=False)
    nonce: Annotated[
        bytes, sized(lambda made: VECTOR_NONCE_BYTES if made.masked_segments else 0, "32 where vectors are masked")
    ] = field(repr=False)
    packed: Annotated[Sequence[bytes | memoryview], _PACKED] = field(repr=False)


def require_accepted(  # noqa: PLR0913 -- what a client has, and what it is offered
    policy: ClientPolicy,
    privacy: PrivacyLimit | None,
    configuration: EnclaveConfiguration,
    *,
    layout: Layout,
    tables: Tables,
    maximum_seals: int | None,
    now: datetime,
    max_norms: tuple[int, ...] | None = None,
) -> None:
    """Refuse a configuration that is weaker than a client accepts, or made for another codec; the slow checks last.

    Args:
        layout: of the client's own codec, as are the tables.
        maximum_seals: the client's own limit on uploads for the task.
        max_norms: bounds of the client's task, where it knows them; a server that changes them bisects norms.
    Raises:
        InvalidParameters: with reason ``below_floor``, naming the weak value.
    """
    has_authority = policy.authority is not None or privacy is None
    policy.admit("this enclave", KEEPS, compared(configuration, now, has_authority=has_authority))
    if max_norms not in {None, configuration.max_norms}:
        raise weaker("its max_norms are not those of this client's task")
    if configuration.layout != layout:
        raise weaker("its layout or codebooks, or minimum of rows, are not those of this client")
    if configuration.tables and tables_digest(configuration.tables) != tables_digest(tables):
        raise weaker("its codebooks are not those that this client encodes with")
    if privacy is not None:
        privacy.require(configuration, maximum_seals)


KEEPS: Final = frozenset(
    (
        *("suites", "modes", "minimum_cohort", "authority", "maximum_length", "forms", "accumulations"),
        *("maximum_codeword_bits", "maximum_released_bits", "minimum_codeword_bound", "minimum_root_mean_square"),
        *("sealed_vectors_accepted", "maximum_key_lifetime", "maximum_standing_age"),
    )
)
"""Names in a client's policy that this protocol keeps, the last one not by ``compared``; it trusts no server, so every
mode is kept.
"""


def compared(configuration: EnclaveConfiguration, now: datetime, *, has_authority: bool) -> Iterator[Compared]:
    """Yield what a client's policy is compared with, the slow ones last.

    Args:
        has_authority: False for a client that trusts no authority and asks for noise instead.
    """
    yield "suites", configuration.suite, "suite {offered} is not accepted"
    yield "minimum_cohort", configuration.minimum_cohort, "a cohort of {offered} is below {own}"
    if has_authority:
        yield "authority", configuration.authority, "clients are certified by another authority than this client's"
    length = sum(segment.length for segment in configuration.layout.segments)
    yield "maximum_length", length, "its vectors are longer than {own}"
    if configuration.index_segments:
        yield "forms", configuration.form, "it releases histograms, which reveal more than a decoded sum"
        sentence = "it counts in direct form, whose memory accesses reveal indices in part"
        yield "accumulations", configuration.accumulation, sentence
    entries = [table for run in configuration.tables for table in run]
    widest = max((table.largest.bit_length() + 1 for table in entries), default=0)
    yield "maximum_codeword_bits", widest, "an entry of a codebook has more than {own} bits"
    widest = max(segment.ring.modulus_bits for segment in configuration.released.segments)
    yield "maximum_released_bits", widest, "a released element has more than {own} bits"
    if configuration.codeword_bound:
        sentence = "choices over a norm of {offered} count as the least codewords"
        yield "minimum_codeword_bound", configuration.codeword_bound, sentence
    is_seen = bool(configuration.max_norms)
    yield "sealed_vectors_accepted", is_seen, "its program sees every client's values, to bound their norm (max_norms)"
    norms = configuration.max_norms or (configuration.noise.l2_bounds if configuration.noise is not None else ())
    for bound, segment in zip(norms, configuration.ring_segments, strict=bool(norms)):
        if bound > 0:
            sentence = "an L2 bound leaves values less than {own} steps on average"
            yield "minimum_root_mean_square", isqrt(bound * bound // segment.length), sentence
    left = configuration.expiry - now.timestamp()
    yield "maximum_key_lifetime", left, "its keys last {offered:.0f} s, and at most {own} are accepted"


class Client(OneStageClientSession):
    """A client's side of one buffer.

    Security: each charge is an upload, whether it is sent or not. Another one for the same model is refused, because
        two sums that differ in one client give that client away; ``SealLedger`` says when it is not.
    """

    def __init__(
        self,
        member: MemberParts,
        subject: Subject,
        update: LazyUpdate | None = None,
        suspended: Secret | None = None,
    ) -> None:
        """Begin, unless the certificate is of another key or authority, or privacy is asked for without a limit."""
        super().__init__(member.certificate.client, subject, update, suspended)
        certificate = member.certificate
        self.ledger = member.ledger(subject.task)
        if type(self.ledger) is not SealLedger:
            raise Misuse("a client has a SealLedger")
        if member.policy.authority is None and member.privacy is None:
            raise InvalidParameters(
                "without an authority a host can invent every other client, and only noise protects this one; name an "
                "authority in its policy, or ask for privacy"
            )
        if certificate.public_key != member.signing_key.public_key:
            raise InvalidParameters("the certificate is for another key than the signing key")
        authority = member.policy.authority or certificate.public_key
        Authority(authority).verify(certificate, culprits=NOBODY)
        if member.privacy is not None and self.ledger.maximum_seals is None:
            raise InvalidParameters(
                "a client that asks for privacy limits its uploads: give its ledger maximum_seals, which epsilon is "
                "computed for"
            )
        if self.ledger.repeats_allowed and member.privacy is None:
            raise InvalidParameters(
                "repeats are for sums whose noise protects each release, and without EnclaveMember(privacy=...) the "
                "host chooses how much noise there is: ask for privacy, or leave repeats_allowed out"
            )
        self._member = member

    def _upload(self, message: bytes, update: LazyUpdate) -> bytes:
        member, subject = self._member, self._subject
        invited = Invitation.decode(message)
        configuration = EnclaveConfiguration.decode(invited.configuration, subject.tables)
        named = ModelStamp(version=invited.version, digest=invited.model_digest)
        if configuration.task != subject.task:
            raise InvalidParameters("the enclave counts for another task than this client's", reason=Reason.BELOW_FLOOR)
        if named.version != subject.round_number:
            raise InvalidParameters("the buffer is of another round than this client's", reason=Reason.BELOW_FLOOR)
        if named != stamp_of(subject, update.model_for(subject)):
            raise InvalidParameters(
                "the buffer is about another model, capacity or terms than this client's", reason=Reason.BELOW_FLOOR
            )
        enclave = member.verified(invited.attested, invited.collateral, configuration)
        self.admit(enclave, member.clock())
        member.signing_key.require_usable()
        if member.policy.authority is not None:
            require_standing(configuration.standing, member, configuration.authority)
        # The last check of the evidence's validity is before the charge: training may outlast it, and a refusal after
        # that would tell the host how long training took.
        made = update.take(configuration.layout, charge=partial(self.charge, update.spent(subject), configuration))
        upload = self.sealed(made.payload, enclave=enclave, model=named)
        return upload.shortened() if invited.is_short else upload.encode()

    def admit(self, enclave: VerifiedEnclave, now: datetime) -> None:
        """Refuse an enclave that is weaker than the policy or no longer verified; ``charge`` and ``sealed`` follow."""
        if type(enclave) is not VerifiedEnclave:
            raise Misuse("an update is sealed to a VerifiedEnclave")
        enclave.require_current(now)
        configuration, subject = enclave.configuration, self._subject
        tables = subject.tables if configuration.index_segments else ()
        member, most = self._member, self.ledger.maximum_seals
        require_accepted(
            member.policy,
            member.privacy,
            configuration,
            layout=subject.layout,
            tables=tables,
            maximum_seals=most,
            now=now,
            max_norms=member.max_norms,
        )
        if configuration.max_norms and configuration.zero_points != subject.zero_points:
            raise InvalidParameters(
                "this enclave is refused: it measures norms about other zero points than those of this client's codec; "
                "take its zero_points from the codec",
                reason=Reason.BELOW_FLOOR,
            )
        if configuration.maximum_cohort > subject.capacity:
            raise InvalidParameters(
                f"a buffer may hold {configuration.maximum_cohort} uploads, and the codec's capacity is "
                f"{subject.capacity}; use a wider ring, or a smaller maximum_cohort"
            )

    def charge(self, spent: Spent, configuration: EnclaveConfiguration) -> None:
        """Spend a model, named by its own digest, before its update is made; durable where the ledger has a file."""
        self.ledger.charge(spent, is_noised=configuration.noise is not None, bounds=_bounds_of(configuration))

    def sealed(self, payload: Payload, *, enclave: VerifiedEnclave, model: ModelStamp) -> Upload:
        """Seal and mask an update that was charged; it is of the enclave's layout.

        Implements: [PGC+22] Algorithm 1, client; [HNM+22] for ring segments.
        Security: with noise, values beyond the bound that the noise was chosen for are scaled down to it, in the same
            time and without a word: a refusal would tell the host the norm, one bound after the other, and no epsilon
            counts that.
        """
        member, configuration = self._member, enclave.configuration
        # Without vectors there is nothing to hide, and nothing to send.
        nonce = bytes(VECTOR_NONCE_BYTES)
        if configuration.masked_segments:
            nonce = bytes(draw_exactly(VECTOR_NONCE_BYTES, member.coins))
        with Seed.random("upload_seed", SEED_BYTES, member.coins) as seed:
            packed = self._masked(payload, enclave, seed, model.version) if configuration.masked_segments else []
            header = UploadHeader(
                epoch=enclave.offer.epoch,
                certificate=member.certificate,
                model=model,
                vector_digest=vector_digest(nonce, packed),
            )
            digest = header.digest(configuration.context)
            indices, is_one = packed_in(configuration, payload), has_one_seal(configuration)
            with (
                proof_of(member.signing_key, enclave.offer.receipt_key, digest, culprits=from_server()) as proof,
                _joined(proof, indices if is_one else seed.expose()) as secret,
            ):
                sealed_seed = enclave.seal(secret, sealing_info(digest))
            beside = seal_indices(seed, digest, indices) if len(indices) and not is_one else b""
        sealed = SealedUpload(header=header, sealed_seed=sealed_seed, sealed_indices=beside)
        return Upload(sealed, nonce, packed)

    def _masked(self, payload: Payload, enclave: VerifiedEnclave, seed: Seed, version: int) -> list[bytes | memoryview]:
        """Return the packed ring segments under one mask."""
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
                accumulate(vector, segment.ring, add=[key], subtract=[], first_segment=first_segment, threads=threads)
                first_segment += segment_count(segment.ring, segment.length)
                packed.append(segment.pack_sent(vector))
        return packed

    def __repr__(self) -> str:
        return f"<Client {self.client}{', done' if self._is_done else ''}, {self.ledger!r}>"


def _bounds_of(configuration: EnclaveConfiguration) -> dict[str, str]:
    """Return what a server could sweep from sum to sum, to bisect a norm."""
    noised = configuration.noise.l2_bounds if configuration.noise is not None else ()
    norms = configuration.max_norms or noised
    bounds = {"max_norms": norms, "codeword_bound": configuration.codeword_bound}
    return {name: str(bound) for name, bound in bounds.items() if bound}


def vector_digest(nonce: bytes, packed: Iterable[bytes | memoryview]) -> bytes:
    """Return the digest of the packed masked vectors under a nonce; their lengths are the configuration's.

    The nonce is not in the sealed part: an enclave that was broken cannot try out updates against the digest.
    """
    hashed = hashlib.sha256(bind(Label.ENCLAVE_VECTOR_DIGEST, nonce))
    for run in packed:
        hashed.update(run)
    return hashed.digest()


def seal_indices(seed: Seed, header_digest: bytes, packed: bytes | memoryview) -> memoryview:
    """Encrypt packed indices under a key that follows from the sealed seed; bound to the header like the seed itself.

    Implements: [SP 800-38D] §7.1.
    """
    sealed = np.empty(len(packed) + TAG_BYTES, dtype=np.uint8).data
    with indices_key(seed, header_digest) as key:
        # Safe because: the nonce is fixed, and the key follows from the seed and the header of one upload.
        AESGCM(key.expose()).encrypt_into(bytes(GCM_NONCE_BYTES), packed, header_digest, sealed)
    return sealed


def _joined(proof: Secret, body: bytes | memoryview) -> Secret:
    joined = bytearray(PROOF_BYTES + len(body))
    joined[:PROOF_BYTES] = proof.expose()
    joined[PROOF_BYTES:] = body
    secret = Secret("upload_secret", joined)
    overwrite(joined)
    return secret


def packed_in(configuration: EnclaveConfiguration, payload: Payload) -> bytes | memoryview:
    """Return all that is sealed in one piece: the packed indices, and then the values whose norm is bounded."""
    pairs = list(zip(payload.layout.segments, payload.values, strict=True))
    packed = [segment.ring.pack_view(vector) for segment, vector in pairs if isinstance(segment, IndexSegment)]
    rings = [(segment, vector) for segment, vector in pairs if isinstance(segment, RingSegment)]
    zeros = configuration.zero_points or (0,) * len(rings)
    if configuration.max_norms:
        for (segment, vector), norm, zero in zip(rings, configuration.max_norms, zeros, strict=True):
            packed += side_by_side(segment, _scaled(segment, vector, norm, zero))
    return packed[0] if len(packed) == 1 else b"".join(packed)


def _scaled(segment: RingSegment, values: RingVector, norm: int, zero: int) -> RingVector:
    """Return the values scaled down to a norm; the enclave does so as well, and only a client can say it in its log."""
    ring, centre = segment.ring, values.dtype.type(zero & low_bits(segment.modulus_bits))
    vector = ring.subtract(values.astype(ring.word), np.full_like(values, centre))
    if norm:
        if squared_norm(ring, vector) > norm**2:
            _LOG.warning("this update is longer than max_norm, of %d steps of its code, and is scaled down", norm)
        clip_into(ring, vector, norm)
    return ring.add(vector, np.full_like(vector, centre))


def side_by_side(segment: RingSegment, values: RingVector) -> Iterator[memoryview]:
    """Return the words of a vector whose lanes are runs of consecutive values, block by block."""
    for block, run in runs(segment.length):
        lanes = np.zeros(LANES * run, WORD)
        lanes[: block.stop - block.start] = values[block]
        for words in pack_group(list(lanes.reshape(LANES, run)), segment.modulus_bits, 8 * WORD.itemsize):
            yield words.view(np.uint8).data
