"""The client: it seals one update to an enclave that it has verified, and masks what the host may hold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from secagg.contract.codewords import Tables
from secagg.contract.layout import IndexSegment, Layout, Payload, RingSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.labels import Label, bind
from secagg.crypto.mask_expansion import accumulate, segment_count
from secagg.crypto.ring import RingVector, low_bits, reduce_into
from secagg.crypto.secret import Confined, Secret, draw_exactly, overwrite
from secagg.errors import InvalidParameters, Misuse
from secagg.identifiers import ClientId, ServerId
from secagg.privacy.norm import clip_into
from secagg.session.certificates import Authority, Certificate, SigningKey
from secagg.session.ledger import Spent
from secagg.wire import MessageKind, Writer

from .floors import EnclaveFloors
from .ledger import SealLedger
from .trusted.configuration import EnclaveConfiguration
from .trusted.messages import (
    SEED_BYTES,
    WEIGHT_BYTES,
    ModelStamp,
    SealedUpload,
    UploadHeader,
    has_one_seal,
)
from .trusted.upload_keys import PROOF_BYTES, mask_key, proof_of, seal_indices, sealing_info
from .verified_enclave import VerifiedEnclave

VECTOR_NONCE_BYTES: Final = 32


@dataclass(frozen=True, slots=True, eq=False)
class Upload:
    """What a client sends for one update: a sealed part for the enclave, and masked vectors for the host."""

    sealed: SealedUpload = field(repr=False)
    segments: tuple[RingSegment, ...]
    masked: tuple[RingVector, ...] = field(repr=False)
    nonce: bytes = field(repr=False)
    """Of the commitment to the masked vectors; it goes with them to the host."""

    @property
    def packed(self) -> list[bytes | memoryview]:
        """The masked vectors as they are sent."""
        return [segment.pack_sent(vector) for segment, vector in zip(self.segments, self.masked, strict=True)]

    def masked_payload(self, layout: Layout) -> Payload:
        """Return the masked vectors as a payload of rings, for a protocol that masks and sums them once more."""
        return Payload(layout, self.masked)

    def encode(self) -> bytes:
        """Return both as the one message that the client sends to the host."""
        pieces = self.sealed.pieces()
        writer = Writer(MessageKind.ENCLAVE_UPLOAD).integer(sum(map(len, pieces)), 8)
        for piece in pieces:
            writer.borrowed(piece)
        writer.fixed(self.nonce, VECTOR_NONCE_BYTES)
        for vector in self.packed:
            writer.borrowed(vector)
        return writer.finish()


class Client(Confined):
    """A client of enclaves, from one epoch to the next.

    Security: each call of ``seal`` is an upload, whether it is sent or not. Sealing the same update again is refused,
        because two sums that differ in one client give that client away; ``SealLedger`` says when it is not.
    """

    def __init__(  # noqa: PLR0913 -- what a client brings
        self,
        *,
        certificate: Certificate,
        signing_key: SigningKey,
        floors: EnclaveFloors,
        layout: Layout,
        tables: Tables = (),
        capacity: int,
        ledger: SealLedger,
        coins: Coins,
        threads: int = 1,
    ) -> None:
        """Prepare to take part.

        Args:
            certificate: the authority's word for the signing key; without an authority, the client's own.
            floors: what the client insists on.
            layout: of the client's own codec, whose version pins its scales and codebooks.
            tables: the codebooks of that codec as integers, where it has any.
            capacity: of that codec; more weight than that is refused.
            ledger: what this client has sealed so far, with ``SpentUpdates`` of a file in production.
            coins: ``SystemCoins()`` in production.
            threads: how many threads expand masks.
        """
        if type(ledger) is not SealLedger or type(floors) is not EnclaveFloors:
            raise Misuse("a client has EnclaveFloors and a SealLedger")
        if floors.privacy is not None and ledger.maximum_seals is None:
            raise InvalidParameters(
                "a client that asks for privacy limits its uploads: give its ledger maximum_seals, which epsilon is "
                "computed for"
            )
        if certificate.public_key != signing_key.public_key:
            raise InvalidParameters("the certificate is for another key than the signing key")
        authority = certificate.public_key if floors.authority is None else floors.authority
        Authority(authority).verify(certificate, culprits={certificate.client})
        self._certificate = certificate
        self._signing_key = signing_key
        self._floors = floors
        self._layout = layout
        self._tables = tables
        self._capacity = capacity
        self._coins = coins
        self._threads = threads
        self._admitted: EnclaveConfiguration | None = None
        """The configuration that was held to the floors last; judging noise anew for each upload would take longer."""
        self._ledger = ledger

    @property
    def ledger(self) -> SealLedger:
        """What this client has sealed."""
        return self._ledger

    @property
    def client(self) -> ClientId:
        """Who this is."""
        return self._certificate.client

    def seal(  # noqa: PLR0913 -- what an upload is about
        self,
        payload: Payload,
        *,
        enclave: VerifiedEnclave,
        model: ModelStamp,
        now: datetime,
        weight: int = 1,
        trained_from: bytes = b"",
    ) -> Upload:
        """Seal and mask one update, for one enclave.

        Implements: [PGC+22] Algorithm 1, client; [HNM+22] for ring segments.
        Args:
            payload: the encoded update.
            enclave: verified by this client; it is checked again.
            model: what the update was trained from.
            now: the client's own time, with a time zone.
            weight: how often the update counts; a positive integer that the configuration allows.
            trained_from: the digest of the model itself, where that of the stamp covers more.
        Raises:
            InvalidParameters: the enclave's configuration goes below this client's floors, or the update does not fit.
            PeerMisbehaved: the enclave's verification has run out, or the ledger refuses another upload.
        Security: what is charged is durable where the ledger has a file. With noise, values beyond the bound that the
            noise was chosen for are scaled down to it, in the same time and without a word: a refusal would tell the
            host the norm, one bound after the other, and no epsilon counts that.
        """
        if type(enclave) is not VerifiedEnclave:
            raise Misuse("an update is sealed to a VerifiedEnclave and to nothing else")
        if type(payload) is not Payload or type(model) is not ModelStamp:
            raise Misuse("an update is a Payload, which a codec encodes, trained from a model with a ModelStamp")
        configuration = enclave.configuration
        enclave.require_current(now)
        self._admit(configuration, now)
        payload.check()
        if payload.layout != configuration.layout:
            raise InvalidParameters("the update has another layout than the enclave counts; encode it with its codec")
        if type(weight) is not int or not 1 <= weight <= configuration.maximum_weight:
            raise InvalidParameters(f"a weight is an integer in 1..{configuration.maximum_weight}; got {weight!r}")
        self.charge(enclave, model, now, trained_from)
        return self.sealed(payload, enclave=enclave, model=model, now=now, weight=weight)

    def charge(self, enclave: VerifiedEnclave, model: ModelStamp, now: datetime, trained_from: bytes = b"") -> None:
        """Check everything that does not depend on an update, and spend its model; ``sealed`` follows, once.

        Raises:
            InvalidParameters, PeerMisbehaved: as for ``seal``.
        """
        configuration = enclave.configuration
        enclave.require_current(now)
        self._admit(configuration, now)
        spent = Spent(configuration.task, model.version, trained_from or model.digest)
        self.ledger.charge(spent, is_noised=configuration.noise is not None)

    def sealed(
        self, payload: Payload, *, enclave: VerifiedEnclave, model: ModelStamp, now: datetime, weight: int
    ) -> Upload:
        """Seal and mask an update that was charged; it is of the enclave's layout and weights.

        Raises:
            PeerMisbehaved: the enclave's verification has run out meanwhile.
        """
        configuration = enclave.configuration
        enclave.require_current(now)
        # Without vectors there is nothing to hide, and nothing to send.
        nonce = bytes(VECTOR_NONCE_BYTES)
        if configuration.ring_segments:
            nonce = bytes(draw_exactly(VECTOR_NONCE_BYTES, self._coins))
        with Secret.random("upload_seed", SEED_BYTES, self._coins) as seed:
            masked = self._masked(payload, enclave, weight, seed, model.version)
            packed = [
                segment.pack_sent(vector) for segment, vector in zip(configuration.ring_segments, masked, strict=True)
            ]
            header = UploadHeader(
                epoch=enclave.offer.epoch,
                certificate=self._certificate,
                model=model,
                vector_digest=vector_digest(nonce, packed),
            )
            digest = header.digest(configuration.context)
            indices, is_one = _packed_indices(payload), has_one_seal(configuration)
            with (
                proof_of(self._signing_key, enclave.offer.receipt_key, digest, culprits={ServerId()}) as proof,
                _joined(proof, indices if is_one else seed.expose(), weight) as secret,
            ):
                sealed_seed = enclave.seal(secret, sealing_info(digest), now)
            beside = seal_indices(seed, digest, indices) if len(indices) and not is_one else b""
        sealed = SealedUpload(header=header, sealed_seed=sealed_seed, sealed_indices=beside)
        return Upload(sealed, configuration.ring_segments, masked, nonce)

    def _admit(self, configuration: EnclaveConfiguration, now: datetime) -> None:
        if self._admitted is not configuration:
            self._floors.admit(
                configuration,
                layout=self._layout,
                tables=self._tables,
                maximum_seals=self.ledger.maximum_seals,
                now=now,
            )
            self._admitted = configuration
        if configuration.maximum_total_weight > self._capacity:
            raise InvalidParameters(
                f"a buffer may reach a weight of {configuration.maximum_total_weight}, and the codec's capacity is "
                f"{self._capacity}; use a wider ring, or smaller cohorts and weights"
            )

    def _masked(
        self, payload: Payload, enclave: VerifiedEnclave, weight: int, seed: Secret, version: int
    ) -> tuple[RingVector, ...]:
        """Return the ring segments, each value as often as the weight says, under one mask."""
        configuration, masked, first_segment = enclave.configuration, list[RingVector](), 0
        place = enclave.offer.epoch, self.client, version
        bounds = iter(configuration.noise.l2_bounds if configuration.noise is not None else ())
        with mask_key(seed, configuration.suite, configuration.context, *place) as key:
            for segment, values in zip(configuration.layout.segments, payload.values, strict=True):
                if isinstance(segment, IndexSegment):
                    continue
                vector = segment.ring.zeros(segment.length)
                vector[:] = values
                if configuration.noise is not None:
                    clip_into(segment.ring, vector, next(bounds))
                if weight != 1:
                    vector *= segment.ring.word.type(weight & low_bits(segment.ring.modulus_bits))
                    reduce_into(vector, segment.ring.modulus_bits)
                accumulate(
                    vector, segment.ring, add=[key], subtract=[], first_segment=first_segment, threads=self._threads
                )
                first_segment += segment_count(segment.ring, segment.length)
                masked.append(segment.rounded(vector) if segment.fine_bits else vector)
        return tuple(masked)

    def __repr__(self) -> str:
        return f"<Client {self.client}, {self.ledger!r}>"


def vector_digest(nonce: bytes, packed: Iterable[bytes | memoryview]) -> bytes:
    """Return the digest of the packed masked vectors under a nonce; their lengths are the configuration's.

    The nonce travels with the vectors. Where another protocol masks and sums them it stays with the client, so that
    nobody can try out updates against the digest.
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
