"""What crosses the enclave's boundary: one encoding each, of exactly its length, and what it is bound to."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from secagg.choices import ReleaseForm
from secagg.contract import IndexSegment, Layout, RingSegment
from secagg.crypto.aead import TAG_BYTES
from secagg.crypto.hpke import sealing_sizes
from secagg.crypto.secret import Secret
from secagg.errors import MalformedMessage, Misuse, PeerError
from secagg.identifiers import AttemptContext, ClientId
from secagg.parameters import Suite
from secagg.protocols.enclave.trusted.configuration import EnclaveConfiguration
from secagg.protocols.enclave.trusted.messages import (
    MOST_SEALED_INDICES,
    PROOF_BYTES,
    SEED_BYTES,
    BufferRelease,
    EnclaveOffer,
    ModelStamp,
    Receipt,
    SealedUpload,
    UploadHeader,
    proof_of,
    sealed_indices_bytes,
    secret_bytes,
    uploads_digest,
)
from secagg.session.certificates import Certificate, SigningKey
from secagg.wire import MessageKind, Writer

CONTEXT = AttemptContext(bytes(range(32)))


def configuration(suite: Suite = Suite.CLASSIC, *, has_indices: bool = True) -> EnclaveConfiguration:
    segments = (RingSegment(20, 6), IndexSegment(8, 5), IndexSegment(3, 9)) if has_indices else (RingSegment(20, 6),)
    return EnclaveConfiguration(
        task=b"a task",
        suite=suite,
        authority=b"a" * 32,
        layout=Layout(segments),
        form=ReleaseForm.HISTOGRAM,
        minimum_cohort=2,
        maximum_cohort=4,
        expiry=1 << 31,
    )


CONFIGURATION = configuration()
OFFER = EnclaveOffer(context=CONTEXT, epoch=b"e" * 32, sealing_key=b"k" * 32, receipt_key=b"r" * 32)
HEADER = UploadHeader(
    epoch=b"e" * 32,
    certificate=Certificate(ClientId(7), b"p" * 32, b"c" * 72),
    model=ModelStamp(version=3, digest=b"m" * 32),
    vector_digest=b"v" * 32,
)
RECEIPT = Receipt(
    context=CONTEXT,
    epoch=b"e" * 32,
    buffer=3,
    uploads_digest=b"u" * 32,
    contributors=5,
    releases=2,
    released_digest=b"d" * 32,
    signature=b"s" * 64,
)


def upload(made: EnclaveConfiguration = CONFIGURATION) -> SealedUpload:
    sealed_seed = b"c" * (48 + sealing_sizes(made.suite)[1])
    indices = b"i" * sealed_indices_bytes(made)
    return SealedUpload(header=HEADER, sealed_seed=sealed_seed, sealed_indices=indices)


RELEASE = BufferRelease(receipt=RECEIPT, aggregate=b"an aggregate").encode()


def test_a_release_holds_one_whole_receipt() -> None:
    for length in range(len(RELEASE) - len(b"an aggregate")):
        with pytest.raises(MalformedMessage):
            BufferRelease.decode(RELEASE[:length])
    for receipt in (RECEIPT.encode() + b"\0", RECEIPT.encode()[:-1], b"r" * 1025):
        message = Writer(MessageKind.BUFFER_RELEASE).variable(receipt, 2000).finish()
        with pytest.raises(PeerError):
            BufferRelease.decode(message)


@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize("has_indices", [True, False])
def test_lengths_follow_from_the_configuration(suite: Suite, has_indices: bool) -> None:  # noqa: FBT001
    made = configuration(suite, has_indices=has_indices)
    overhead = {Suite.CLASSIC: 48, Suite.HYBRID: 1136}[suite]
    indices = 2 + 3 + TAG_BYTES if has_indices else 0
    assert sealed_indices_bytes(made) == indices
    assert len(upload(made).encode()) == 7 + 32 + 8 + 32 + 72 + 8 + 32 + 32 + 48 + overhead + indices


def test_one_seal_holds_its_maximum_of_indices_and_not_one_more() -> None:
    most = MOST_SEALED_INDICES
    for blocks, sealed, beside in ((most, most, 0), (most + 1, SEED_BYTES, most + 1 + TAG_BYTES)):
        made = replace(CONFIGURATION, layout=Layout((IndexSegment(256, blocks),)))
        assert (secret_bytes(made), sealed_indices_bytes(made)) == (PROOF_BYTES + sealed, beside)


def test_an_upload_of_one_suite_is_none_of_the_other() -> None:
    for mine, other in ((Suite.CLASSIC, Suite.HYBRID), (Suite.HYBRID, Suite.CLASSIC)):
        with pytest.raises(MalformedMessage):
            SealedUpload.decode(upload(configuration(mine)).encode(), configuration(other))


# --- What they are bound to -------------------------------------------------------------------------------------------


def framed(label: bytes, *parts: bytes) -> bytes:
    return label + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def test_the_binding_is_the_documented_digest_of_all_of_an_offer() -> None:
    statement = framed(b"secagg/1/enclave-binding", CONTEXT.digest, b"e" * 32, b"k" * 32, b"r" * 32)
    assert OFFER.binding == hashlib.sha512(statement).digest()
    changes: list[dict[str, Any]] = [
        {"context": AttemptContext(bytes(32))},
        {"epoch": b"f" * 32},
        {"sealing_key": b"k" * 31 + b"l"},
        {"sealing_key": b"k" * 33, "receipt_key": b"r" * 31},
        {"receipt_key": b"q" * 32},
    ]
    assert len({OFFER.binding, *(replace(OFFER, **change).binding for change in changes)}) == 6


HEADERS: dict[str, dict[str, Any]] = {
    "epoch": {"epoch": b"f" * 32},
    "client": {"certificate": replace(HEADER.certificate, client=ClientId(8))},
    "key": {"certificate": replace(HEADER.certificate, public_key=b"q" * 32)},
    "version": {"model": ModelStamp(version=4, digest=b"m" * 32)},
    "model": {"model": ModelStamp(version=3, digest=b"n" * 32)},
    "vector": {"vector_digest": b"w" * 32},
}


@pytest.mark.parametrize("changes", HEADERS.values(), ids=HEADERS.keys())
def test_the_digest_of_a_header_covers_every_field(changes: dict[str, Any]) -> None:
    assert replace(HEADER, **changes).digest(CONTEXT) != HEADER.digest(CONTEXT)


def test_the_digest_of_a_header_is_the_documented_one() -> None:
    numbers = (7).to_bytes(8, "big"), (3).to_bytes(8, "big")
    parts = (CONTEXT.digest, b"e" * 32, numbers[0], b"p" * 32, numbers[1], b"m" * 32, b"v" * 32)
    statement = framed(b"secagg/1/enclave-upload-header", *parts)
    assert HEADER.digest(CONTEXT) == hashlib.sha256(statement).digest()
    assert HEADER.digest(CONTEXT) != HEADER.digest(AttemptContext(bytes(32)))


def signing_key(number: int = 7) -> SigningKey:
    with Secret("signing key", bytes([number]) * 32) as seed:
        return SigningKey(seed)


def test_client_and_enclave_make_one_proof_and_another_for_each_header() -> None:
    one, other = signing_key(7), signing_key(8)
    digests = HEADER.digest(CONTEXT), HEADER.digest(AttemptContext(bytes(32)))
    proofs = [
        [bytes(proof_of(own, peer.public_key, digest).expose()) for digest in digests]
        for own, peer in ((one, other), (other, one), (one, signing_key(9)))
    ]
    assert proofs[0] == proofs[1]
    assert len({*proofs[0], *proofs[2]}) == 4
    assert {len(proof) for proof in proofs[0]} == {16}


def test_a_list_of_uploads_is_a_set_of_whole_ids() -> None:
    one, other = b"a" * 16, b"b" * 16
    assert uploads_digest([one, other]) == uploads_digest([other, one])
    assert uploads_digest([one, other]) == hashlib.sha256(framed(b"secagg/1/enclave-upload-list", one, other)).digest()
    different = [[one], [other], [], [one, one, other], [one + other], [b"a" * 15, b"a" + other]]
    assert len({uploads_digest(ids) for ids in [*different, [one, other]]}) == len(different) + 1


@pytest.mark.parametrize("version", [-1, 1 << 64, True, 1.0])
def test_the_version_of_a_model_is_an_integer_of_64_bits(version: Any) -> None:
    with pytest.raises(Misuse):
        ModelStamp(version=version, digest=bytes(32))


@pytest.mark.parametrize("digest", [b"", bytes(31), bytes(33), bytearray(32), None])
def test_the_digest_of_a_model_has_32_bytes(digest: Any) -> None:
    with pytest.raises(Misuse):
        ModelStamp(version=0, digest=digest)


def test_nothing_stands_behind_an_offer() -> None:
    assert EnclaveOffer.decode(OFFER.encode()) == OFFER
    with pytest.raises(MalformedMessage):
        EnclaveOffer.decode(OFFER.encode() + b"\0")
