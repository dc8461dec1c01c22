"""Server side of one buffer: an untrusted relay that sums masked vectors and forwards sealed uploads.

Even if it drops, delays, repeats or reorders messages, it learns one sum per buffer, of the minimum cohort or more.
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
    """The host's connection to an enclave, in the same process or behind a socket."""

    def open_buffer(self, version: int, model_digest: bytes) -> None: ...

    def announce_model(self, version: int, model_digest: bytes) -> None: ...

    def receive(self, message: bytes) -> None: ...

    def release(self) -> bytes: ...

    def give_up_buffer(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ReadUpload:
    """A decoded upload: the sealed part and the masked vectors."""

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
            collateral: collateral for the evidence, from ``encode_collateral``.
            invited: clients that may upload; None for any.
            epoch: the enclave's epoch; needed for short uploads.
            certificates: certificates of the clients; if given, uploads are short.
        """
        self._attested, self._collateral = attested, collateral
        invitation = self._inviting(configuration, model, is_short=bool(certificates))
        super().__init__(STAGE, invitation, invited, configuration.minimum_cohort)
        self.configuration = configuration
        """Configuration of the epoch."""
        self.is_simulated = False
        """Whether the evidence is simulated, only to describe the session; clients check the evidence itself."""
        self._enclave, self._model = enclave, model
        self._epoch, self._certificates = epoch, certificates
        enclave.open_buffer(model.version, model.digest)
        self._sums: list[RingVector] | None = [
            segment.ring.zeros(segment.length) for segment in configuration.masked_segments
        ]

    @property
    def deviations(self) -> tuple[float, ...]:
        """Standard deviation of the noise in each released segment, in steps; empty without noise."""
        noise = self.configuration.noise
        return () if noise is None else tuple(math.sqrt(variance) for variance in noise.variances)

    def invitation_for(self, subject: Subject) -> bytes:
        """Announce the model that an asynchronous client started from, and return the client's invitation."""
        model = stamp_of(subject, subject.model_digest)
        self._enclave.announce_model(model.version, model.digest)
        # A short upload would be completed with the buffer's model, which may differ from this client's.
        return self._inviting(self.configuration, model, is_short=False)

    def _inviting(self, configuration: EnclaveConfiguration, model: ModelStamp, *, is_short: bool) -> bytes:
        encoded = configuration.encode()
        return Invitation(encoded, self._attested, self._collateral, model.version, model.digest, is_short).encode()

    # --- The session --------------------------------------------------------------------------------------------------

    def _digest(self, sender: ClientId, message: bytes) -> bytes:
        # Reading hashes the vectors, so a client's first upload is not read here: ``_check`` returns its digest.
        if sender in self._heard:
            with suppress(PeerError):
                return self.read(message).digest
        return b""

    def _check(self, sender: ClientId, message: bytes) -> Checked[ReadUpload]:
        upload = self.read(message, sender)
        return Checked(upload, upload.digest)

    def _take(self, sender: ClientId, content: ReadUpload) -> None:
        del sender  # The enclave takes it from the client's certificate.
        self.add(content)

    def _sum(self, progress: Callable[[int, int], None] | None) -> Released:
        del progress  # There is only one step.
        aggregate, receipt = self.unmasked()
        counted = frozenset(self._said)
        return Released(
            aggregate=aggregate,
            counted=counted,
            left_out={},
            revealed=frozenset({counted}),
            # Indices are checked. Ring elements are summed under masks, where nobody can bound them, unless the
            # enclave adds them itself (max_norms).
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
            # A lost enclave has no buffer any more; it may also have discarded the buffer itself.
            return

    # --- The relay ----------------------------------------------------------------------------------------------------

    def read(self, message: bytes, sender: ClientId | None = None) -> ReadUpload:
        """Decode an upload and check its sender and commitment; nothing changes."""
        sealed, packed = self._whole(message)
        certified = sealed.header.certificate.client
        if sender is not None and certified != sender:
            raise PeerMisbehaved(
                f"{sender} sent an upload with the certificate of {certified}",
                reason=Reason.NOT_ELIGIBLE,
                culprits=unverified(sender),
            )
        return ReadUpload(sealed.encode(), self._unpacked(packed))

    def add(self, upload: ReadUpload) -> None:
        """Relay the sealed part of an upload, and add its masked vectors once the enclave accepts it."""
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
        """Return the sealed part of an upload and the packed vectors."""
        if self._certificates and message_kind(message) is MessageKind.SHORT_UPLOAD:
            return self._completed(ShortUpload.decode(message, self.configuration))
        return split_upload(message, self.configuration)

    def _completed(self, upload: ShortUpload) -> tuple[SealedUpload, memoryview]:
        """Complete a short upload with the epoch, the buffer's model and the client's certificate.

        A wrong value proves nothing against a client: the seal is bound to these values and does not open.
        """
        if (certificate := self._certificates.get(upload.client)) is None:
            raise PeerMisbehaved(
                f"this host has no certificate for {upload.client} and cannot complete its short upload",
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
        """Let the enclave release the buffer, and return the unmasked sum with the enclave's receipt."""
        with self._lock:
            configuration, masked = self.configuration, iter(self._open_sums())
            release = BufferRelease.decode(self._enclave.release())
            if hashlib.sha256(release.aggregate).digest() != release.receipt.released_digest:
                raise MalformedMessage("the release does not match its receipt", reason=Reason.NOT_CANONICAL)
            released = Aggregate.decode(release.aggregate, configuration.released)
            values, parts = list(released.values), _parts_of(configuration)
            for segment, position in zip(configuration.layout.segments, parts, strict=True):
                if isinstance(segment, RingSegment) and not configuration.max_norms:
                    unmasked = segment.ring.subtract(next(masked), released.values[position])
                    values[position] = segment.unbiased(unmasked, released.contributors)
                elif isinstance(segment, RowSegment):
                    values[position - 1].reshape(segment.blocks, -1)[values[position] == 0] = 0  # Still masked.
            self._sums = None
            return (Aggregate(configuration.released, tuple(values), released.contributors), release.receipt)

    def _open_sums(self) -> list[RingVector]:
        if self._sums is None:
            raise Misuse("this session has ended; open another session for another buffer")
        return self._sums


def split_upload(message: bytes, configuration: EnclaveConfiguration) -> tuple[SealedUpload, memoryview]:
    """Split an upload into the sealed part for the enclave and the packed vectors for the host.

    Raises:
        AuthenticationFailed: the vectors do not match the commitment; they may have been altered in transit.
    """
    # Decoded before it is relayed: a client's bytes could otherwise be a request that only the host may make.
    upload = Upload.decode(message, configuration)
    if not hmac.compare_digest(vector_digest(upload.nonce, upload.packed), upload.sealed.header.vector_digest):
        raise AuthenticationFailed(culprits=UNDECIDED)
    return upload.sealed, memoryview(upload.packed[0])


def _parts_of(configuration: EnclaveConfiguration) -> list[int]:
    """Return the position in the released layout at which each segment of the upload's layout begins."""
    positions, position, counted = list[int](), 0, 0
    for segment in configuration.layout.segments:
        positions.append(position)
        if isinstance(segment, RingSegment) or not configuration.tables:
            position += 1
        else:
            position += len(configuration.tables[counted])
            counted += 1
    return positions
