"""Client side of one buffer: verifies the enclave, seals one update to it, and masks the vectors that the host sums.

The client records its uploads across epochs, because an enclave forgets them when it restarts. If an update were sealed
to two epochs, it could be summed with and without another client, and the difference would reveal that client.
Likewise, a restart would reset a privacy budget that only the enclave counts.
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
from secagg.session.one_answer import OneStageClientSession
from secagg.session.standings import require_standing
from secagg.wire import MessageKind

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
    from secagg.session.ledger import Spent
    from secagg.session.roles import LazyUpdate, Subject

    from .member import MemberParts
    from .release_privacy import PrivacyLimit

VECTOR_NONCE_BYTES: Final = 32
_LOG: Final = logging.getLogger("secagg.protocols.enclave")
_MOST_BYTES: Final = (1 << 32) - 1
MOST_COLLATERAL_BYTES: Final = 1 << 18
"""Limit on the collateral that a host relays with its evidence."""


@dataclass(frozen=True, slots=True)
class Invitation(Message):
    """The single message that the host sends to a buffer's clients."""

    kind: ClassVar = MessageKind.ENCLAVE_INVITATION
    configuration: Annotated[bytes, variable(_MOST_BYTES)]
    """Sent without tables: the client's codec has them, and they can be a thousand times as long as an upload."""
    attested: Annotated[bytes, variable(_MOST_BYTES)]
    collateral: Annotated[bytes, variable(MOST_COLLATERAL_BYTES)]
    """Collateral for the evidence; empty if the host relays none."""
    version: Annotated[int, unsigned(VERSION_BYTES)]
    model_digest: Annotated[bytes, fixed(DIGEST_BYTES)]
    is_short: Annotated[bool, FLAG]


def stamp_of(subject: Subject, model_digest: bytes | None) -> ModelStamp:
    """Return the values that all uploads of a buffer share: round, model, capacity and terms."""
    bound = bind(
        Label.SESSION_MODEL, subject.capacity.to_bytes(8, "big"), model_digest or bytes(DIGEST_BYTES), subject.terms
    )
    return ModelStamp(version=subject.round_number, digest=hashlib.sha256(bound).digest())


def _vector_bytes(configuration: EnclaveConfiguration) -> int:
    return sum(segment.payload_bytes for segment in configuration.masked_segments)


_PACKED: Final = buffers(_vector_bytes, "the masked vectors")


@dataclass(frozen=True, slots=True, eq=False)
class Upload(MessageIn[EnclaveConfiguration]):
    """A client's upload: a sealed part for the enclave and masked vectors for the host."""

    kind: ClassVar = MessageKind.ENCLAVE_UPLOAD
    sealed: Annotated[SealedUpload, encoded(SealedUpload, _MOST_BYTES)] = field(repr=False)
    nonce: Annotated[bytes, fixed(VECTOR_NONCE_BYTES)] = field(repr=False)
    """Nonce of the commitment to the masked vectors."""
    packed: Annotated[Sequence[bytes | memoryview], _PACKED] = field(repr=False)

    def shortened(self) -> bytes:
        """Return the upload without the epoch, model and certificate, for a host that fills them in."""
        sealed, nonce = self.sealed, self.nonce if self.packed else b""
        client = sealed.header.certificate.client
        return ShortUpload(client, sealed.sealed_seed, sealed.sealed_indices, nonce, self.packed).encode()


@dataclass(frozen=True, slots=True, eq=False)
class ShortUpload(MessageIn[EnclaveConfiguration]):
    """An upload without the fields that the host fills in."""

    kind: ClassVar = MessageKind.SHORT_UPLOAD
    client: Annotated[ClientId, CLIENT]
    sealed_seed: Annotated[bytes, SEALED_SEED]
    sealed_indices: Annotated[memoryview | bytes, SEALED_INDICES] = field(repr=False)
    nonce: Annotated[
        bytes, sized(lambda made: VECTOR_NONCE_BYTES if made.masked_segments else 0, "32 where vectors are masked")
    ] = field(repr=False)
    packed: Annotated[Sequence[bytes | memoryview], _PACKED] = field(repr=False)


def require_accepted(  # noqa: PLR0913 -- the client's requirements and the offer
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
    """Refuse a configuration that is weaker than the client's policy or made for another codec; slow checks run last.

    Args:
        layout: layout of the client's codec; ``tables`` are its codebooks.
        maximum_seals: the client's limit on uploads for the task.
        max_norms: the task's norms if the client knows them; a server that changes them could bisect a client's norm.
    Raises:
        InvalidParameters: with reason ``below_floor``; the message names the weak value.
    """
    has_authority = policy.authority is not None or privacy is None
    policy.admit("this enclave", ENFORCED, compared(configuration, now, has_authority=has_authority))
    if max_norms not in {None, configuration.max_norms}:
        raise weaker("its max_norms differ from those of this client's task")
    if configuration.layout != layout:
        raise weaker("its layout, codebooks or row minimum differ from this client's")
    if configuration.tables and tables_digest(configuration.tables) != tables_digest(tables):
        raise weaker("its codebooks differ from those that this client encodes with")
    if privacy is not None:
        privacy.require(configuration, maximum_seals)


ENFORCED: Final = frozenset(
    (
        *("suites", "modes", "minimum_cohort", "authority", "maximum_length", "forms", "accumulations", "minimum_form"),
        *("maximum_codeword_bits", "maximum_released_bits", "minimum_codeword_bound", "minimum_root_mean_square"),
        *("sealed_vectors_accepted", "maximum_key_lifetime", "maximum_standing_age"),
    )
)
"""Policy settings that this protocol enforces, all but the last through ``compared``. It trusts no server, so it meets
every mode.
"""


def compared(configuration: EnclaveConfiguration, now: datetime, *, has_authority: bool) -> Iterator[Compared]:
    """Yield the values that a client's policy is compared with, the slow ones last.

    Args:
        has_authority: whether the client trusts an authority; False if it relies on noise instead.
    """
    yield "minimum_form", configuration.message_form, "form {offered} of its messages is below {own}"
    yield "suites", configuration.suite, "suite {offered} is not accepted"
    yield "minimum_cohort", configuration.minimum_cohort, "a cohort of {offered} is below {own}"
    if has_authority:
        yield "authority", configuration.authority, "an authority that this client does not trust certifies its clients"
    length = sum(segment.length for segment in configuration.layout.segments)
    yield "maximum_length", length, "its vectors are longer than {own}"
    if configuration.index_segments:
        yield "forms", configuration.form, "it releases histograms, which reveal more than decoded sums"
        sentence = "it counts in direct form, whose memory accesses partly reveal indices"
        yield "accumulations", configuration.accumulation, sentence
    entries = [table for run in configuration.tables for table in run]
    widest = max((table.largest.bit_length() + 1 for table in entries), default=0)
    yield "maximum_codeword_bits", widest, "an entry of a codebook has more than {own} bits"
    widest = max(segment.ring.modulus_bits for segment in configuration.released.segments)
    yield "maximum_released_bits", widest, "a released element has more than {own} bits"
    if configuration.codeword_bound:
        sentence = "it replaces codewords with a norm above {offered} by the smallest ones"
        yield "minimum_codeword_bound", configuration.codeword_bound, sentence
    is_seen = bool(configuration.max_norms)
    yield "sealed_vectors_accepted", is_seen, "its program sees every client's values to bound their norm (max_norms)"
    norms = configuration.max_norms or (configuration.noise.l2_bounds if configuration.noise is not None else ())
    for bound, segment in zip(norms, configuration.ring_segments, strict=bool(norms)):
        if bound > 0:
            sentence = "an L2 bound leaves values less than {own} steps on average"
            yield "minimum_root_mean_square", isqrt(bound * bound // segment.length), sentence
    left = configuration.expiry - now.timestamp()
    yield "maximum_key_lifetime", left, "its keys last {offered:.0f} s, longer than {own}"


class Client(OneStageClientSession):
    """A client's side of one buffer.

    Security: each charge counts as an upload, sent or not. A second upload for the same model is refused, because two
        sums that differ in one client reveal that client's update; ``SealLedger`` documents the exceptions.
    """

    def __init__(
        self, member: MemberParts, subject: Subject, update: LazyUpdate | None = None, suspended: Secret | None = None
    ) -> None:
        """Begin a session; refuse a certificate for another key, and a client with neither an authority nor noise."""
        super().__init__(member.certificate.client, subject, update, suspended)
        certificate = member.certificate
        self.ledger = member.ledger_of(subject.task)
        if member.policy.authority is None and member.privacy is None:
            raise InvalidParameters(
                "without an authority the host can invent every other client, so only noise protects this one; set "
                "authority= in the client policy, or privacy="
            )
        if certificate.public_key != member.signing_key.public_key:
            raise InvalidParameters("the certificate and the signing key do not match")
        authority = member.policy.authority or certificate.public_key
        Authority(authority).verify(certificate, culprits=NOBODY)
        if member.privacy is not None and self.ledger.maximum_seals is None:
            raise InvalidParameters(
                "epsilon needs a limit on uploads, and this client's ledger has none: set SealLedger(maximum_seals=)"
            )
        if self.ledger.repeats_allowed and member.privacy is None:
            raise InvalidParameters(
                "repeats_allowed requires noise that protects each release; without EnclaveMember(privacy=...) the "
                "host chooses the noise: set privacy=, or remove repeats_allowed"
            )
        self._member = member

    def _upload(self, message: bytes, update: LazyUpdate) -> bytes:
        member, subject = self._member, self._subject
        invited = Invitation.decode(message)
        configuration = EnclaveConfiguration.decode(invited.configuration, subject.tables)
        named = ModelStamp(version=invited.version, digest=invited.model_digest)
        if configuration.task != subject.task:
            raise InvalidParameters("the enclave's task differs from this client's", reason=Reason.BELOW_FLOOR)
        if named.version != subject.round_number:
            raise InvalidParameters("the buffer's round differs from this client's", reason=Reason.BELOW_FLOOR)
        if named != stamp_of(subject, update.model_for(subject)):
            raise InvalidParameters(
                "the buffer's model, capacity or terms differ from this client's", reason=Reason.BELOW_FLOOR
            )
        enclave = member.verified(invited.attested, invited.collateral, configuration)
        self.admit(enclave, member.clock())
        member.signing_key.require_usable()
        if member.policy.authority is not None:
            require_standing(configuration.standing, member, configuration.authority)
        # Expiry is checked for the last time before the charge. Training may outlast the evidence, and a refusal after
        # training would reveal to the host how long it took.
        made = update.take(configuration.layout, charge=partial(self.charge, update.spent(subject), configuration))
        upload = self.sealed(made.payload, enclave=enclave, model=named)
        return upload.shortened() if invited.is_short else upload.encode()

    def admit(self, enclave: VerifiedEnclave, now: datetime) -> None:
        """Refuse an enclave that has expired or is weaker than the policy; call before ``charge`` and ``sealed``."""
        if type(enclave) is not VerifiedEnclave:
            raise Misuse("pass a VerifiedEnclave; an update is sealed only to one")
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
                "this enclave is refused: its zero_points differ from those of this client's codec; configure the "
                "codec's",
                reason=Reason.BELOW_FLOOR,
            )
        if configuration.maximum_cohort > subject.capacity:
            raise InvalidParameters(
                f"maximum_cohort is {configuration.maximum_cohort}, above the codec's capacity of "
                f"{subject.capacity}; use a wider ring or lower maximum_cohort"
            )

    def charge(self, spent: Spent, configuration: EnclaveConfiguration) -> None:
        """Record in the ledger that this model's update is used, before it is computed."""
        self.ledger.charge(spent, is_noised=configuration.noise is not None, bounds=_bounds_of(configuration))

    def sealed(self, payload: Payload, *, enclave: VerifiedEnclave, model: ModelStamp) -> Upload:
        """Seal and mask a charged update; it must have the enclave's layout.

        Implements: [PGC+22] Algorithm 1, client; [HNM+22] for ring segments.
        Security: with noise, longer values are silently scaled down to the L2 bound, in constant time. If the client
            refused them, the host could find the norm by trying bounds, which epsilon does not cover.
        """
        member, configuration = self._member, enclave.configuration
        # Without masked vectors no nonce is needed, and none is sent.
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
        """Return the packed ring segments, masked with one key."""
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
    """Return the bounds that must stay the same in all sums: varying them could bisect a client's norm."""
    noised = configuration.noise.l2_bounds if configuration.noise is not None else ()
    norms = configuration.max_norms or noised
    bounds = {"max_norms": norms, "codeword_bound": configuration.codeword_bound}
    return {name: str(bound) for name, bound in bounds.items() if bound}


def vector_digest(nonce: bytes, packed: Iterable[bytes | memoryview]) -> bytes:
    """Return the commitment to the packed masked vectors; the configuration fixes their lengths.

    The nonce is not in the sealed part, so that a compromised enclave cannot test guesses against the digest.
    """
    hashed = hashlib.sha256(bind(Label.ENCLAVE_VECTOR_DIGEST, nonce))
    for run in packed:
        hashed.update(run)
    return hashed.digest()


def seal_indices(seed: Seed, header_digest: bytes, packed: bytes | memoryview) -> memoryview:
    """Encrypt packed indices with a key derived from the sealed seed; like the seed, they are bound to the header.

    Implements: [SP 800-38D] §7.1.
    """
    sealed = np.empty(len(packed) + TAG_BYTES, dtype=np.uint8).data
    with indices_key(seed, header_digest) as key:
        # Safe because: the fixed nonce is used once per key, which is derived from one upload's seed and header.
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
    """Return the sealed content: the packed indices, then the values whose norm is bounded."""
    pairs = list(zip(payload.layout.segments, payload.values, strict=True))
    packed = [segment.ring.pack_view(vector) for segment, vector in pairs if isinstance(segment, IndexSegment)]
    rings = [(segment, vector) for segment, vector in pairs if isinstance(segment, RingSegment)]
    zeros = configuration.zero_points or (0,) * len(rings)
    if configuration.max_norms:
        for (segment, vector), norm, zero in zip(rings, configuration.max_norms, zeros, strict=True):
            packed += side_by_side(segment, _scaled(segment, vector, norm, zero))
    return packed[0] if len(packed) == 1 else b"".join(packed)


def _scaled(segment: RingSegment, values: RingVector, norm: int, zero: int) -> RingVector:
    """Return the values scaled down to a norm. The enclave also scales them, but only the client may log it."""
    ring, centre = segment.ring, values.dtype.type(zero & low_bits(segment.modulus_bits))
    vector = ring.subtract(values.astype(ring.word), np.full_like(values, centre))
    if norm:
        if squared_norm(ring, vector) > norm**2:
            _LOG.warning("this update exceeds max_norm (%d steps of its code) and was scaled down", norm)
        clip_into(ring, vector, norm)
    return ring.add(vector, np.full_like(vector, centre))


def side_by_side(segment: RingSegment, values: RingVector) -> Iterator[memoryview]:
    """Yield the packed words of a vector block by block; each lane is a run of consecutive values."""
    for block, run in runs(segment.length):
        lanes = np.zeros(LANES * run, WORD)
        lanes[: block.stop - block.start] = values[block]
        for words in pack_group(list(lanes.reshape(LANES, run)), segment.modulus_bits, 8 * WORD.itemsize):
            yield words.view(np.uint8).data
