"""The host: an untrusted relay that sums masked vectors and carries sealed uploads to the enclave.

It is trusted with nothing. Whatever it drops, delays, repeats or reorders, it gets one sum of at least the minimum
cohort for each buffer, or none.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock
from types import MappingProxyType
from typing import Protocol

import numpy as np

from secagg.blame import unverified
from secagg.contract import Aggregate
from secagg.contract.layout import RingSegment
from secagg.crypto.ring import RingVector, add_into, low_bits
from secagg.errors import (
    UNDECIDED,
    AuthenticationFailed,
    MalformedMessage,
    Misuse,
    PeerMisbehaved,
    Reason,
    UnexpectedMessage,
)
from secagg.identifiers import ClientId
from secagg.session.certificates import Certificate
from secagg.wire import MessageKind, Reader

from .client import VECTOR_NONCE_BYTES, Upload, vector_digest
from .short_upload import KnownToHost, completed, read_vectors
from .trusted.configuration import EnclaveConfiguration
from .trusted.messages import BufferRelease, ModelStamp, Receipt, SealedUpload


class EnclaveConnection(Protocol):
    """An enclave as its host reaches it: in the same process, or behind a socket."""

    def open_buffer(self, version: int, model_digest: bytes) -> None:
        """Begin to collect updates for a model."""
        ...

    def announce_model(self, version: int, model_digest: bytes) -> None:
        """Fix the digest of an older model whose updates count in the open buffer."""
        ...

    def receive(self, message: bytes) -> int:
        """Take the sealed part of an upload, and return the weight of its age."""
        ...

    def release(self) -> bytes:
        """Release the open buffer, or return again what was released."""
        ...

    def give_up_buffer(self) -> None:
        """Discard the open buffer."""
        ...


@dataclass(frozen=True, slots=True)
class ReadUpload:
    """An upload as a host reads it."""

    sealed: bytes = field(repr=False)
    """The enclave's part, which commits to the vectors."""
    vectors: list[RingVector] = field(repr=False)

    @property
    def digest(self) -> bytes:
        """What the upload is known by."""
        return hashlib.sha256(self.sealed).digest()


class Host:
    """One server in front of one enclave, with memory for one model."""

    def __init__(
        self,
        configuration: EnclaveConfiguration,
        enclave: EnclaveConnection,
        *,
        epoch: bytes = b"",
        certificates: Mapping[ClientId, Certificate] = MappingProxyType({}),
    ) -> None:
        """Stand in front of an enclave that runs this configuration.

        Args:
            epoch: the enclave's, where uploads may be short.
            certificates: of the clients whose uploads may be.
        """
        self.configuration = configuration
        self._enclave = enclave
        self._epoch, self._certificates = epoch, certificates
        self._known: KnownToHost | None = None
        self._sums: list[RingVector] | None = None
        self._roundings = 0
        """How often a client's rounding counts in the sum: as often as the age of its upload says."""
        self._lock = RLock()
        """What the enclave has taken and what is added here are one step, from whichever thread uploads come."""

    def open_buffer(self, version: int, model_digest: bytes) -> None:
        """Begin to collect updates for a model, which every client of that version has to have."""
        with self._lock:
            model = ModelStamp(version=version, digest=model_digest)
            self._enclave.open_buffer(version, model_digest)
            self._known = KnownToHost(epoch=self._epoch, model=model, certificates=self._certificates)
            self._sums = [segment.ring.zeros(segment.length) for segment in self.configuration.ring_segments]
            self._roundings = 0

    def announce_model(self, version: int, model_digest: bytes) -> None:
        """Fix the digest of an older model, before anybody is asked for an update of it."""
        self._enclave.announce_model(version, model_digest)

    def receive(self, message: bytes, sender: ClientId | None = None) -> bytes:
        """Take an upload, relay its sealed part, and add the masked vectors once the enclave has taken it.

        Args:
            sender: who handed it over, where that is known.
        Returns:
            What it is known by.
        Raises:
            PeerError: the upload does not decode or is not its sender's, its vectors are not those that its client
                committed to, or the enclave does not take it; nothing has changed.
            Misuse: no buffer is open.
        """
        read = self.read(message, sender)
        self.add(read)
        return read.digest

    def read(self, message: bytes, sender: ClientId | None = None) -> ReadUpload:
        """Check what a host can check of an upload; nothing changes.

        Raises:
            PeerError: as for ``receive``.
        """
        sealed, certified, packed = self._whole(message)
        if sender is not None and certified != sender:
            raise PeerMisbehaved(
                f"{sender} hands over an upload of {certified}",
                reason=Reason.NOT_ELIGIBLE,
                culprits=unverified(sender),
            )
        return ReadUpload(sealed, self._unpacked(packed))

    def add(self, upload: ReadUpload) -> None:
        """Relay the sealed part of an upload, and add its masked vectors once the enclave has taken it.

        Raises:
            PeerError: the enclave does not take it; nothing has changed.
            Misuse: no buffer is open.
        """
        with self._lock:
            sums = self._open_sums()
            age_weight = self._enclave.receive(upload.sealed)
            for segment, total, vector in zip(self.configuration.ring_segments, sums, upload.vectors, strict=True):
                if age_weight != 1:
                    # In place: nothing may fail between the enclave's taking an upload and its being added.
                    np.multiply(
                        vector, segment.ring.word.type(age_weight & low_bits(segment.ring.modulus_bits)), out=vector
                    )
                add_into(total, vector)
            self._roundings += age_weight

    def _unpacked(self, packed: memoryview) -> list[RingVector]:
        vectors, at = list[RingVector](), 0
        for segment in self.configuration.ring_segments:
            vectors.append(segment.unpack_sent(packed[at : at + segment.payload_bytes]))
            at += segment.payload_bytes
        return vectors

    def _whole(self, message: bytes) -> tuple[bytes, ClientId, memoryview]:
        """Return the enclave's part of an upload, whose it says that it is, and the packed vectors."""
        if self._known is not None and self._certificates:
            try:
                upload, packed = completed(message, self.configuration, self._known)
            except UnexpectedMessage:
                pass  # It is long.
            else:
                return upload.encode(), upload.header.certificate.client, packed
        return split_upload(message, self.configuration)

    def relay(self, upload: Upload) -> None:
        """Relay the sealed part of an upload whose masked vectors another protocol sums.

        Raises:
            PeerError: the enclave does not take it.
            Misuse: no buffer is open, or uploads of some age count more than once, which the other protocol's sum would
                not know.
        """
        self._open_sums()
        if set(self.configuration.staleness_weights) != {1}:
            raise Misuse("another protocol sums every vector once; configure staleness_weights of 1 for two layers")
        self._roundings += self._enclave.receive(upload.sealed.encode())

    def release(self, sums: Sequence[RingVector] | None = None) -> tuple[Aggregate, Receipt]:
        """Close the buffer, and return its sum with the enclave's receipt.

        Args:
            sums: of the masked vectors, where another protocol has summed them.
        Raises:
            ThresholdNotMet: the buffer holds fewer uploads than the minimum cohort.
            PeerMisbehaved: one weight dominates the buffer, which is given up.
        """
        with self._lock:
            return self._released(sums)

    def _released(self, sums: Sequence[RingVector] | None) -> tuple[Aggregate, Receipt]:
        configuration = self.configuration
        release = BufferRelease.decode(self._enclave.release())
        if hashlib.sha256(release.aggregate).digest() != release.receipt.released_digest:
            raise MalformedMessage("what was released is not what its receipt is for", reason=Reason.NOT_CANONICAL)
        released = Aggregate.decode(release.aggregate, configuration.released)
        masked = iter(self._open_sums() if sums is None else sums)
        values, parts = list(released.values), _parts_of(configuration)
        for segment, position in zip(configuration.layout.segments, parts, strict=True):
            if isinstance(segment, RingSegment):
                unmasked = segment.ring.subtract(next(masked), released.values[position])
                values[position] = segment.unbiased(unmasked, self._roundings)
        self._end()
        return (
            Aggregate(configuration.released, tuple(values), released.contributors, released.total_weight),
            release.receipt,
        )

    def give_up_buffer(self) -> None:
        """Discard the open buffer; its uploads are lost."""
        with self._lock:
            try:
                self._enclave.give_up_buffer()
            finally:
                self._end()

    def _end(self) -> None:
        self._sums = None

    def _open_sums(self) -> list[RingVector]:
        if self._sums is None:
            raise Misuse("no buffer is open; call open_buffer first")
        return self._sums


def split_upload(message: bytes, configuration: EnclaveConfiguration) -> tuple[bytes, ClientId, memoryview]:
    """Take an upload apart into what is the enclave's, whose it says that it is, and the host's packed vectors.

    Raises:
        MalformedMessage: it is not of the configuration's lengths.
        UnexpectedMessage: the enclave's part is no sealed upload.
        AuthenticationFailed: the vectors are not those of the commitment in the enclave's part, which the enclave
            checks; they may have been altered on the way.
    """
    reader = Reader(message, MessageKind.ENCLAVE_UPLOAD)
    sealed = bytes(reader.view(reader.integer(8)))
    # Relayed unread, a client's bytes could be another request, which only the host may make.
    header = SealedUpload.decode(sealed, configuration).header
    nonce, packed = reader.fixed(VECTOR_NONCE_BYTES), read_vectors(reader, configuration)
    if not hmac.compare_digest(vector_digest(nonce, (packed,)), header.vector_digest):
        raise AuthenticationFailed(culprits=UNDECIDED)
    return sealed, header.certificate.client, packed


def _parts_of(configuration: EnclaveConfiguration) -> list[int]:
    """Return where in the released layout each segment of the upload's layout begins."""
    positions, position, counted = list[int](), 0, 0
    for segment in configuration.layout.segments:
        positions.append(position)
        if isinstance(segment, RingSegment) or not configuration.tables:
            position += 1
        else:
            position += len(configuration.tables[counted])
            counted += 1
    return positions
