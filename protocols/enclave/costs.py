"""What one client of an enclave sends and receives, and what the enclave computes, from message lengths alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from secagg.contract import IndexSegment, Layout
from secagg.crypto.hpke import sealing_sizes
from secagg.identifiers import CLIENT_ID_BYTES, AttemptContext, ClientId
from secagg.parameters import LEAST_COHORT, Suite
from secagg.session.certificates import IDENTITY_KEY_BYTES, SIGNATURE_BYTES, Certificate
from secagg.session.costs import AES_BLOCK_BYTES, Costs, Work, mask_cipher_calls, ring_length

from .client import VECTOR_NONCE_BYTES, Invitation
from .trusted.configuration import EnclaveConfiguration, ReleaseForm
from .trusted.messages import (
    EPOCH_BYTES,
    MOST_SEALED_INDICES,
    SEED_BYTES,
    WEIGHT_BYTES,
    EnclaveOffer,
    ModelStamp,
    SealedUpload,
    UploadHeader,
)
from .trusted.service import SIMULATED, encode_attested_offer
from .trusted.upload_keys import PROOF_BYTES, TAG_BYTES

_DIGEST_BYTES, _HEADER_BYTES = 32, 7
_PASSES: Final = 8
"""How often a masked vector is read beside its mask: packed, hashed by both sides, sent, read and added."""


def costs(layout: Layout, clients: int, suite: Suite) -> Iterator[Costs]:
    """Count; in its default form the enclave touches every counter, so that no address depends on an index."""
    sealing_key_bytes, overhead = sealing_sizes(suite)
    offer = EnclaveOffer(
        context=AttemptContext(bytes(_DIGEST_BYTES)),
        epoch=bytes(EPOCH_BYTES),
        sealing_key=bytes(sealing_key_bytes),
        receipt_key=bytes(IDENTITY_KEY_BYTES),
    )
    indices = [segment for segment in layout.segments if isinstance(segment, IndexSegment)]
    index_bytes = sum(segment.payload_bytes for segment in indices)
    length = ring_length(layout.segments)
    has_one_seal = bool(indices) and not length and index_bytes <= MOST_SEALED_INDICES
    secret = PROOF_BYTES + WEIGHT_BYTES + (index_bytes if has_one_seal else SEED_BYTES) + overhead
    beside = index_bytes + TAG_BYTES if indices and not has_one_seal else 0
    sealed = len(_empty_upload(secret).encode()) + beside
    # The host has the roster, and puts back what it knows.
    short = _HEADER_BYTES + CLIENT_ID_BYTES + secret + beside + (VECTOR_NONCE_BYTES if length else 0)
    calls = mask_cipher_calls(layout.segments) + -(-index_bytes // AES_BLOCK_BYTES)
    counters = sum(segment.blocks * segment.codewords for segment in indices)
    yield Costs(
        plan="between is what enters the enclave; its evidence, some kilobytes, more or less by vendor, comes on top",
        payload_bytes=layout.payload_bytes,
        up_bytes=short + layout.payload_bytes - index_bytes,
        down_bytes=len(_invitation(layout, clients, suite, offer)),
        between_bytes=sealed,
        client=Work(cipher_calls=calls, word_operations=_PASSES * length + sum(segment.blocks for segment in indices)),
        server=Work(cipher_calls=clients * calls, word_operations=clients * (length + counters), steps=clients),
    )


def _invitation(layout: Layout, clients: int, suite: Suite, offer: EnclaveOffer) -> bytes:
    """Return what a client is sent, without evidence; tables it has itself."""
    configuration = EnclaveConfiguration(
        task=b"a plan",
        suite=suite,
        authority=b"\x01" * IDENTITY_KEY_BYTES,
        layout=layout,
        form=ReleaseForm.HISTOGRAM,
        minimum_cohort=LEAST_COHORT,
        maximum_cohort=clients,
        expiry=1,
    )
    model = ModelStamp(version=0, digest=bytes(_DIGEST_BYTES))
    attested = encode_attested_offer(offer, SIMULATED, b"")
    return Invitation(configuration.encode(), attested, model.version, model.digest, True).encode()  # noqa: FBT003 -- is_short


def _empty_upload(sealed: int) -> SealedUpload:
    """Return the enclave's part of an upload without indices beside the seal, of which only the length counts."""
    return SealedUpload(
        header=UploadHeader(
            epoch=bytes(EPOCH_BYTES),
            certificate=Certificate(ClientId(0), bytes(IDENTITY_KEY_BYTES), bytes(SIGNATURE_BYTES)),
            model=ModelStamp(version=0, digest=bytes(_DIGEST_BYTES)),
            vector_digest=bytes(_DIGEST_BYTES),
        ),
        sealed_seed=bytes(sealed),
        sealed_indices=b"",
    )
