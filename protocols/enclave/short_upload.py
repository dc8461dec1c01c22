"""An upload without what its host knows anyway: the epoch, the model of the buffer, and each client's certificate.

The host puts them back, and the enclave gets the upload byte for byte as it was sealed. A host that puts back anything
else has an upload that does not open. What is left, after the header of every message, is the client (8 bytes), the
sealed secret, the sealed indices, and where there are ring segments the nonce (32) and the packed masked vectors, whose
digest the host computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from secagg.errors import UNDECIDED, PeerMisbehaved, Reason
from secagg.identifiers import CLIENT_ID_BYTES, ClientId
from secagg.session.certificates import Certificate
from secagg.wire import MessageKind, Reader, Writer

from .client import VECTOR_NONCE_BYTES, Upload, vector_digest
from .trusted.configuration import EnclaveConfiguration
from .trusted.messages import (
    ModelStamp,
    SealedUpload,
    UploadHeader,
    sealed_indices_bytes,
    sealed_secret_bytes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownToHost:
    """What the uploads of a buffer have in common, and who its clients are."""

    epoch: bytes
    model: ModelStamp
    certificates: Mapping[ClientId, Certificate]


def shortened(upload: Upload) -> bytes:
    """Return an upload for a host that knows the rest."""
    sealed = upload.sealed
    writer = Writer(MessageKind.SHORT_UPLOAD).fixed(sealed.header.certificate.client.encode(), CLIENT_ID_BYTES)
    writer.borrowed(sealed.sealed_seed).borrowed(sealed.sealed_indices)
    if upload.segments:
        writer.fixed(upload.nonce, VECTOR_NONCE_BYTES)
    for vector in upload.packed:
        writer.borrowed(vector)
    return writer.finish()


def completed(
    message: bytes, configuration: EnclaveConfiguration, known: KnownToHost
) -> tuple[SealedUpload, memoryview]:
    """Return the whole of the enclave's part, and the packed vectors, which are the host's.

    Nothing here is evidence: the enclave opens the seal, which is bound to all that was put back.

    Raises:
        UnexpectedMessage: it is no short upload.
        MalformedMessage: it is not of the configuration's lengths.
        PeerMisbehaved: it is of a client whom this host does not know.
    """
    reader = Reader(message, MessageKind.SHORT_UPLOAD)
    client = ClientId(reader.integer(CLIENT_ID_BYTES))
    sealed_seed = reader.fixed(sealed_secret_bytes(configuration))
    indices = reader.view(sealed_indices_bytes(configuration))
    nonce = reader.fixed(VECTOR_NONCE_BYTES) if configuration.ring_segments else bytes(VECTOR_NONCE_BYTES)
    packed = read_vectors(reader, configuration)
    certificate = known.certificates.get(client)
    if certificate is None:
        raise PeerMisbehaved(
            f"{client} is on no roster of this host, so its upload cannot be completed",
            reason=Reason.NOT_ELIGIBLE,
            culprits=UNDECIDED,
        )
    header = UploadHeader(
        epoch=known.epoch,
        certificate=certificate,
        model=known.model,
        vector_digest=vector_digest(nonce, (packed,)),
    )
    return SealedUpload(header=header, sealed_seed=sealed_seed, sealed_indices=indices), packed


def read_vectors(reader: Reader, configuration: EnclaveConfiguration) -> memoryview:
    """Return the packed vectors, with which a message ends."""
    packed = reader.view(sum(segment.payload_bytes for segment in configuration.ring_segments))
    reader.finish()
    return packed
