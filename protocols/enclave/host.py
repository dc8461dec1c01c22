"""The host: an untrusted relay that sums masked vectors and carries sealed uploads to the enclave.

It is trusted with nothing. Whatever it drops, delays, repeats or reorders, it gets one sum of at least the minimum
cohort for each buffer, or none.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from types import MappingProxyType
from typing import Protocol

import numpy as np

from secagg.contract import Aggregate
from secagg.contract.layout import RingSegment
from secagg.contract.pieces import Cut, Retractable, require_vector
from secagg.contract.ring_cut import RingCut
from secagg.crypto.ring import RingVector, add_into, low_bits
from secagg.errors import (
    AuthenticationFailed,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    UnexpectedMessage,
)
from secagg.identifiers import ClientId, ServerId
from secagg.session.certificates import Certificate
from secagg.wire import MessageKind, Reader

from .client import Upload
from .cut import VECTOR_NONCE_BYTES, SentVectors, cut_of, read_vectors
from .short_upload import KnownToHost, completed
from .trusted.configuration import EnclaveConfiguration
from .trusted.messages import BufferRelease, ModelStamp, Receipt, SealedUpload


class EnclaveConnection(Protocol):
    """An enclave as its host reaches it: in the same process, or behind a socket."""

    def open_buffer(self, version: int, model_digest: bytes) -> None:
        """Begin to collect updates for a model."""
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


class Host:
    """One server in front of one enclave; memory for one model, or where others add, for each client's sealed part."""

    def __init__(
        self,
        configuration: EnclaveConfiguration,
        enclave: EnclaveConnection,
        *,
        epoch: bytes = b"",
        certificates: Mapping[ClientId, Certificate] = MappingProxyType({}),
        adding: Callable[[Cut], Retractable] | None = None,
    ) -> None:
        """Stand in front of an enclave that runs this configuration.

        Args:
            epoch: the enclave's, where uploads may be short, or others add them.
            certificates: of the clients whose uploads may be; of none, if others add: a header has to say what an
                upload is for, since the enclave sees it at the end.
            adding: who adds the masked vectors; None for this process.

        Raises:
            InvalidParameters: others are to add, and cannot.
        """
        if adding is not None:
            _require_addable(configuration)
            certificates = {}
        self.configuration = configuration
        self._enclave = enclave
        self._epoch, self._certificates = epoch, certificates
        self._known: KnownToHost | None = None
        self._sums: list[RingVector] | None = None
        self._roundings = 0
        """How often a client's rounding counts in the sum: as often as the age of its upload says."""
        self._adding, self._cut = adding, RingCut(bytes(32), ())
        self._adder: Retractable | None = None
        self._waiting = dict[ClientId, bytes]()
        """The sealed parts of uploads that others add, which the enclave has not seen."""
        self._is_settled = False
        self._lock = RLock()
        """What the enclave has taken and what is added here are one step, from whichever thread uploads come."""

    def open_buffer(self, version: int, model_digest: bytes) -> None:
        """Begin to collect updates for a model, which every client of that version has to have."""
        with self._lock:
            model = ModelStamp(version=version, digest=model_digest)
            cut = cut_of(self.configuration.context, self.configuration.ring_segments, self._epoch, model)
            # Made first: it may fail, and the enclave is not to collect then.
            adder = None if self._adding is None else self._adding(cut)
            self._enclave.open_buffer(version, model_digest)
            self._known = KnownToHost(epoch=self._epoch, model=model, certificates=self._certificates)
            segments = self.configuration.ring_segments if adder is None else ()
            self._sums = [segment.ring.zeros(segment.length) for segment in segments]
            self._roundings, self._is_settled = 0, False
            self._cut, self._adder = cut, adder

    def receive(self, message: bytes, sender: ClientId | None = None) -> bytes:
        """Take an upload, relay its sealed part, and add the masked vectors once the enclave has taken it.

        Args:
            sender: who handed it over, where that is known; where others add it has to be.
        Returns:
            Its ``digest_of``.
        Raises:
            PeerError: the upload does not decode or is not its sender's, its vectors are not those that its client
                committed to, or the enclave does not take it; nothing has changed.
            Misuse: no buffer is open, or it is settled; or others add, and nobody says whose upload this is.
        """
        if self._adding is not None and sender is None:
            raise Misuse(
                "where others add, an upload takes its client's place long before it is opened: say who sent it"
            )
        sealed, certified, sent = self._whole(message)
        if sender is not None and certified != sender:
            raise PeerMisbehaved(
                f"{sender} hands over an upload of {certified}", reason=Reason.NOT_ELIGIBLE, culprits={sender}
            )
        if self._adding is not None:
            self._keep(certified, sealed, sent)
            return hashlib.sha256(sealed).digest()
        vectors = self._unpacked(certified, sent)
        with self._lock:
            sums = self._open_sums()
            age_weight = self._enclave.receive(sealed)
            for segment, total, vector in zip(self.configuration.ring_segments, sums, vectors, strict=True):
                if age_weight != 1:
                    # In place: nothing may fail between the enclave's taking an upload and its being added.
                    np.multiply(
                        vector, segment.ring.word.type(age_weight & low_bits(segment.ring.modulus_bits)), out=vector
                    )
                add_into(total, vector)
            self._roundings += age_weight
        return hashlib.sha256(sealed).digest()

    def _keep(self, client: ClientId, sealed: bytes, sent: SentVectors) -> None:
        """Have vectors added, and keep the enclave's part until all pieces are found to be good."""
        with self._lock:
            adder = self._unsettled_adder()
            if sent.context != self._cut.context:
                raise PeerMisbehaved(
                    f"{client} sealed its upload to another epoch, or for another model",
                    reason=Reason.WRONG_SESSION,
                    culprits={client},
                )
            if client in self._waiting:
                raise PeerMisbehaved(
                    f"{client} sent a second upload; the first one counts",
                    reason=Reason.ALREADY_ANSWERED,
                    culprits={client},
                )
            adder.add(client, sent.pieces, adder.keep(client, sent.pieces, sent.packed))
            self._waiting[client] = sealed

    def _unpacked(self, client: ClientId, sent: SentVectors) -> list[RingVector]:
        segments, packed, at = self.configuration.ring_segments, sent.packed, 0
        if segments:
            require_vector(client, packed)
        vectors = list[RingVector]()
        for segment in segments:
            vectors.append(segment.unpack_sent(memoryview(packed)[at : at + segment.payload_bytes]))
            at += segment.payload_bytes
        return vectors

    def keep_again(self, message: bytes) -> None:
        """Keep vectors whose client has said before that a storage has their pieces: it may not have had them."""
        _, client, sent = self._whole(message)
        with self._lock:
            if self._adder is not None and sent.packed and client in self._waiting:
                self._adder.keep(client, sent.pieces, sent.packed)

    def settle(self) -> dict[ClientId, PeerError]:
        """Have the enclave take the uploads that others have added, and return whose are not in the sum, and why.

        An enclave forgets no upload that it took, so pieces are found to be good before it sees the sealed part, and
        of an upload that it refuses the pieces are taken out again.

        Raises:
            ConnectionError: the enclave, a worker or the storage is lost, and the buffer with it.
            Misuse: no buffer is open, or it is settled.
        """
        with self._lock:
            if self._adding is None:
                return {}
            adder = self._unsettled_adder()
            try:
                left_out = self._settled(adder)
            except BaseException:
                # The enclave may have taken what is not in the sum; asked again, it would refuse what it took.
                self._end()
                raise
            self._is_settled = True
            return left_out

    def _settled(self, adder: Retractable) -> dict[ClientId, PeerError]:
        left_out, refused = dict(adder.settle()), dict[ClientId, PeerError]()
        for client, error in left_out.items():
            # What a client committed to, the enclave alone can tell.
            error.culprits |= {client, ServerId()}
        for client, sealed in self._waiting.items():
            if client not in left_out:
                try:
                    self._roundings += self._enclave.receive(sealed)
                except PeerError as error:
                    refused[client] = error
        self._waiting.clear()
        if refused:
            adder.take_out(refused)
        return left_out | refused

    def digest_of(self, message: bytes) -> bytes:
        """Return the digest of the enclave's part, which commits to the vectors; raises where those are others."""
        return hashlib.sha256(self._whole(message)[0]).digest()

    def _whole(self, message: bytes) -> tuple[bytes, ClientId, SentVectors]:
        """Return the enclave's part of an upload, whose it says that it is, and the vectors."""
        if self._known is not None and self._certificates:
            try:
                upload, sent = completed(message, self.configuration, self._known)
            except UnexpectedMessage:
                pass  # It is long.
            else:
                return upload.encode(), upload.header.certificate.client, sent
        sealed, sent = split_upload(message, self.configuration)
        return sealed, SealedUpload.decode(sealed, self.configuration).header.certificate.client, sent

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
            if self._adding is not None:
                adder = self._open_adder()
                if not self._is_settled:
                    raise Misuse("others have added uploads that the enclave has not seen; settle first")
                sums = self._cut.whole(adder.open(b""))
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
        self._waiting.clear()
        if self._adder is not None:
            self._adder.end()
            self._adder = None

    def _open_adder(self) -> Retractable:
        if self._adder is None:
            raise Misuse("no buffer is open; call open_buffer first")
        return self._adder

    def _unsettled_adder(self) -> Retractable:
        adder = self._open_adder()
        if self._is_settled:
            raise Misuse("this buffer is settled, and the enclave has seen its uploads; release it, or give it up")
        return adder

    def _open_sums(self) -> list[RingVector]:
        if self._sums is None:
            raise Misuse("no buffer is open; call open_buffer first")
        return self._sums


def split_upload(message: bytes, configuration: EnclaveConfiguration) -> tuple[bytes, SentVectors]:
    """Take an upload apart into what is the enclave's and the vectors, which are the host's.

    Raises:
        MalformedMessage: it is not of the configuration's lengths.
        UnexpectedMessage: the enclave's part is no sealed upload.
        AuthenticationFailed: the vectors are not those of the commitment in the enclave's part, which the enclave
            checks. They may have been altered on the way, so nobody is blamed.
    """
    reader = Reader(message, MessageKind.ENCLAVE_UPLOAD)
    sealed = bytes(reader.view(reader.integer(8)))
    # Relayed unread, a client's bytes could be another request, which only the host may make.
    header = SealedUpload.decode(sealed, configuration).header
    cut = cut_of(configuration.context, configuration.ring_segments, header.epoch, header.model)
    sent = read_vectors(reader, reader.fixed(VECTOR_NONCE_BYTES), cut, header.certificate.client)
    if not hmac.compare_digest(sent.digest, header.vector_digest):
        raise AuthenticationFailed
    return sealed, sent


def _require_addable(configuration: EnclaveConfiguration) -> None:
    """Refuse a configuration under which others cannot add: the sum of vectors is all that leaves the host."""
    if configuration.index_segments or not configuration.ring_segments:
        raise InvalidParameters(
            "others add ring segments, and indices are the enclave's alone; choose a scheme without index segments, or "
            "have the host add"
        )
    if set(configuration.staleness_weights) != {1}:
        raise InvalidParameters("others add every vector once; configure staleness_weights of 1")


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
