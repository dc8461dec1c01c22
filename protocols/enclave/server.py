"""The server's side of one buffer: an untrusted relay that sums masked vectors and carries sealed uploads.

It is trusted with nothing. Whatever it drops, delays, repeats or reorders, it gets one sum of at least the minimum
cohort for each buffer, or none.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

from secagg.blame import unverified
from secagg.contract import Aggregate
from secagg.contract.layout import RingSegment, RowSegment
from secagg.crypto.ring import RingVector, add_into
from secagg.errors import (
    UNDECIDED,
    AuthenticationFailed,
    MalformedMessage,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    SecAggError,
)
from secagg.identifiers import ClientId
from secagg.session.certificates import Certificate
from secagg.session.roles import Released, Stage, Subject
from secagg.session.stages import Checked, StagedServerSession
from secagg.wire import MessageKind, message_kind

from .client import VECTOR_NONCE_BYTES, Invitation, ShortUpload, Upload, stamp_of, vector_digest
from .trusted.configuration import EnclaveConfiguration
from .trusted.messages import BufferRelease, ModelStamp, Receipt, SealedUpload, UploadHeader

STAGE: Final = Stage(name="sealed upload", takes_update=True)


class EnclaveConnection(Protocol):
    """An enclave as its host reaches it: in the same process, or behind a socket."""

    def open_buffer(self, version: int, model_digest: bytes) -> None: ...

    def announce_model(self, version: int, model_digest: bytes) -> None: ...

    def receive(self, message: bytes) -> None: ...

    def release(self) -> bytes: ...

    def give_up_buffer(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ReadUpload:
    """An upload as a host reads it."""

    sealed: bytes = field(repr=False)
    vectors: list[RingVector] = field(repr=False)

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.sealed).digest()


class Server(StagedServerSession[ReadUpload]):
    """The host's side of one buffer."""

    def __init__(  # noqa: PLR0913 -- all but three have defaults
        self,
        configuration: EnclaveConfiguration,
        enclave: EnclaveConnection,
        model: ModelStamp,
        *,
        attested: bytes = b"",
        collateral: bytes = b"",
        invited: frozenset[ClientId] | None = None,
        epoch: bytes = b"",
        certificates: Mapping[ClientId, Certificate] = MappingProxyType({}),
    ) -> None:
        """Open a buffer of an enclave that runs this configuration.

        Args:
            attested: the epoch's offer with its evidence.
            collateral: what clients verify that with, as ``encode_collateral`` has it.
            invited: who may upload; None for anybody.
            epoch: the enclave's, where uploads may be short.
            certificates: of the clients whose uploads may be.
        """
        self._attested, self._collateral = attested, collateral
        invitation = self._inviting(configuration, model, is_short=bool(certificates))
        super().__init__(STAGE, invitation, invited, configuration.minimum_cohort)
        self.configuration = configuration
        """Configuration of the epoch."""
        self.is_simulated = False
        """Whether the evidence is nobody's; clients see it themselves."""
        self._enclave, self._model = enclave, model
        self._epoch, self._certificates = epoch, certificates
        enclave.open_buffer(model.version, model.digest)
        self._sums: list[RingVector] | None = [
            segment.ring.zeros(segment.length) for segment in configuration.masked_segments
        ]

    @property
    def deviations(self) -> tuple[float, ...]:
        """Deviations of the enclave's noise in each released segment, in steps; empty without noise."""
        noise = self.configuration.noise
        return () if noise is None else tuple(math.sqrt(variance) for variance in noise.variances)

    def invitation_for(self, subject: Subject) -> bytes:
        """Announce the model that an asynchronous client started from, and return the client's invitation."""
        model = stamp_of(subject, subject.model_digest)
        self._enclave.announce_model(model.version, model.digest)
        # The model may not be that of the buffer, which the host would put back.
        return self._inviting(self.configuration, model, is_short=False)

    def _inviting(self, configuration: EnclaveConfiguration, model: ModelStamp, *, is_short: bool) -> bytes:
        encoded = configuration.encode()
        return Invitation(encoded, self._attested, self._collateral, model.version, model.digest, is_short).encode()

    # --- The session --------------------------------------------------------------------------------------------------

    def _digest(self, sender: ClientId, message: bytes) -> bytes:
        # Reading digests the vectors, and the enclave's part commits to them: the first upload is not digested twice.
        if sender in self._heard:
            with suppress(PeerError):
                return self.read(message).digest
        return b""

    def _check(self, sender: ClientId, message: bytes) -> Checked[ReadUpload]:
        upload = self.read(message, sender)
        return Checked(upload, upload.digest)

    def _take(self, sender: ClientId, content: ReadUpload) -> None:
        del sender  # The enclave has it from the client's certificate.
        self.add(content)

    def _sum(self, progress: Callable[[int, int], None] | None) -> Released:
        del progress  # One step.
        aggregate, receipt = self.unmasked()
        counted = frozenset(self._said)
        return Released(
            aggregate=aggregate,
            counted=counted,
            left_out={},
            revealed=frozenset({counted}),
            # Indices are in range, one for each block; ring elements are summed under masks, and nobody sees them,
            # unless the enclave adds them itself.
            unbounded=tuple(
                position
                for place, position in enumerate(self.configuration.layout.ring_positions)
                if not any(self.configuration.max_norms[place : place + 1])
            ),
            receipt=receipt.encode(),
        )

    def _wipe(self) -> None:
        if self._sums is None:
            return
        self._sums = None
        try:
            self._enclave.give_up_buffer()
        except (SecAggError, ConnectionError):
            # An enclave that is lost, or that gave the buffer up itself, holds nothing more of it.
            return

    # --- The relay ----------------------------------------------------------------------------------------------------

    def read(self, message: bytes, sender: ClientId | None = None) -> ReadUpload:
        """Check what a host can check of an upload; nothing changes."""
        sealed, packed = self._whole(message)
        certified = sealed.header.certificate.client
        if sender is not None and certified != sender:
            raise PeerMisbehaved(
                f"{sender} hands over an upload of {certified}",
                reason=Reason.NOT_ELIGIBLE,
                culprits=unverified(sender),
            )
        return ReadUpload(sealed.encode(), self._unpacked(packed))

    def add(self, upload: ReadUpload) -> None:
        """Relay the sealed part of an upload, and add its masked vectors once the enclave has taken it."""
        with self._lock:
            sums = self._open_sums()
            self._enclave.receive(upload.sealed)
            for total, vector in zip(sums, upload.vectors, strict=True):
                add_into(total, vector)

    def _unpacked(self, packed: memoryview) -> list[RingVector]:
        vectors, at = list[RingVector](), 0
        for segment in self.configuration.masked_segments:
            vectors.append(segment.unpack_sent(packed[at : at + segment.payload_bytes]))
            at += segment.payload_bytes
        return vectors

    def _whole(self, message: bytes) -> tuple[SealedUpload, memoryview]:
        """Return the enclave's part of an upload, and the packed vectors."""
        if self._certificates and message_kind(message) is MessageKind.SHORT_UPLOAD:
            return self._completed(ShortUpload.decode(message, self.configuration))
        return split_upload(message, self.configuration)

    def _completed(self, upload: ShortUpload) -> tuple[SealedUpload, memoryview]:
        """Put back what a short upload leaves out: the epoch, the model of the buffer, and the client's certificate.

        Nothing here is evidence: the enclave opens the seal, which is bound to all that was put back.
        """
        if (certificate := self._certificates.get(upload.client)) is None:
            raise PeerMisbehaved(
                f"{upload.client} is on no roster of this host, so its upload cannot be completed",
                reason=Reason.NOT_ELIGIBLE,
                culprits=UNDECIDED,
            )
        header = UploadHeader(
            epoch=self._epoch,
            certificate=certificate,
            model=self._model,
            vector_digest=vector_digest(upload.nonce or bytes(VECTOR_NONCE_BYTES), upload.packed),
        )
        sealed = SealedUpload(header=header, sealed_seed=upload.sealed_seed, sealed_indices=upload.sealed_indices)
        return sealed, memoryview(upload.packed[0])

    def unmasked(self) -> tuple[Aggregate, Receipt]:
        """Have the enclave release the buffer, and return its sum with the enclave's receipt."""
        with self._lock:
            configuration, masked = self.configuration, iter(self._open_sums())
            release = BufferRelease.decode(self._enclave.release())
            if hashlib.sha256(release.aggregate).digest() != release.receipt.released_digest:
                raise MalformedMessage("the release is not the one of its receipt", reason=Reason.NOT_CANONICAL)
            released = Aggregate.decode(release.aggregate, configuration.released)
            values, parts = list(released.values), _parts_of(configuration)
            for segment, position in zip(configuration.layout.segments, parts, strict=True):
                if isinstance(segment, RingSegment) and not configuration.max_norms:
                    unmasked = segment.ring.subtract(next(masked), released.values[position])
                    values[position] = segment.unbiased(unmasked, released.contributors)
                elif isinstance(segment, RowSegment):
                    values[position - 1].reshape(segment.blocks, -1)[values[position] == 0] = 0  # Still masked.
            self._sums = None
            return (
                Aggregate(configuration.released, tuple(values), released.contributors),
                release.receipt,
            )

    def _open_sums(self) -> list[RingVector]:
        if self._sums is None:
            raise Misuse("the session has ended; another buffer is another session")
        return self._sums


def split_upload(message: bytes, configuration: EnclaveConfiguration) -> tuple[SealedUpload, memoryview]:
    """Take an upload apart into the enclave's part and the host's packed vectors.

    Raises:
        AuthenticationFailed: the vectors are not those of the commitment, perhaps altered on the way.
    """
    # Relayed unread, a client's bytes could be another request, which only the host may make.
    upload = Upload.decode(message, configuration)
    if not hmac.compare_digest(vector_digest(upload.nonce, upload.packed), upload.sealed.header.vector_digest):
        raise AuthenticationFailed(culprits=UNDECIDED)
    return upload.sealed, memoryview(upload.packed[0])


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
