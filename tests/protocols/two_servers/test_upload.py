"""What a client sends: one encoding of exactly its length, one digest of a header, and one signature for two halves."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from secagg.choices import SharingMode
from secagg.contract import IndexSegment, Layout, RingSegment
from secagg.crypto.aead import TAG_BYTES
from secagg.crypto.labels import Label
from secagg.crypto.secret import Secret
from secagg.errors import MalformedMessage, PeerError, Reason
from secagg.identifiers import AttemptContext, ClientId, ServerId
from secagg.parameters import Suite
from secagg.protocols.two_servers import client as client_module
from secagg.protocols.two_servers import opened_upload
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.opened_upload import cut, key_binding, open_body
from secagg.protocols.two_servers.upload import (
    SegmentHeader,
    Upload,
    UploadHeader,
    check_context,
    seal_body,
    segment_context,
)
from secagg.session.certificates import Certificate, SigningKey, verify_signature
from tests.harness.indexing_rounds import IndexingSetup, InsecureIndexingRound, framed, indexing_configuration

ZERO, ONE = ServerId(0), ServerId(1)
SEALED_BYTES = {Suite.CLASSIC: 32 + 48, Suite.HYBRID: 32 + 1136}
BODY_BYTES, PUBLIC_BYTES = 40, 24


configuration = partial(
    indexing_configuration,
    layout=Layout((RingSegment(20, 6), IndexSegment(8, 5), IndexSegment(3, 9))),
    maximum_rejections=1,
)


CONFIGURATION = configuration()
KINDS = {
    "classic": CONFIGURATION,
    "hybrid": configuration(suite=Suite.HYBRID),
    "only rings": configuration(layout=Layout((RingSegment(20, 6),))),
    "unchecked": configuration(mode=SharingMode.UNCHECKED_POINT_FUNCTIONS),
}
HEADER = UploadHeader(
    round_number=7,
    certificate=Certificate(ClientId(9), b"p" * 32, b"c" * 72),
    segments=(SegmentHeader(b"n" * 16, b"d" * 32), SegmentHeader(b"m" * 16, bytes(32))),
)


def upload(kind: str = "classic", server: ServerId = ONE, **changes: Any) -> Upload:
    made = KINDS[kind]
    sealed = SEALED_BYTES[made.suite]
    chosen: dict[str, Any] = {
        "header": replace(HEADER, segments=HEADER.segments[: len(made.index_segments)]),
        "server": server,
        "sealed_seeds": (b"s" * sealed, b"t" * sealed),
        "signature": b"g" * 64,
        "body": b"b" * (BODY_BYTES + TAG_BYTES),
        "public_part": b"w" * PUBLIC_BYTES if server == ONE else b"",
    }
    return Upload(**(chosen | changes))


def test_the_encoding_is_the_documented_one() -> None:
    sealed = b"s" * 80 + b"t" * 80
    segments = b"n" * 16 + b"d" * 32 + b"m" * 16 + bytes(32)
    shared = (7).to_bytes(8, "big") + (9).to_bytes(8, "big") + b"p" * 32 + b"c" * 72 + segments
    body = b"b" * (BODY_BYTES + TAG_BYTES)
    start = b"SAGG\x01" + (69).to_bytes(2, "big")
    assert upload(server=ZERO).encode() == start + b"\0" + shared + sealed + b"g" * 64 + body
    assert upload(server=ONE).encode() == start + b"\1" + shared + sealed + b"g" * 64 + body + b"w" * PUBLIC_BYTES


def test_the_digest_of_a_header_is_the_documented_one() -> None:
    numbers = (7).to_bytes(8, "big"), (9).to_bytes(8, "big")
    segments = b"n" * 16, b"d" * 32, b"m" * 16, bytes(32)
    parts = CONFIGURATION.context.digest, numbers[0], numbers[1], b"p" * 32, *segments
    assert HEADER.digest(CONFIGURATION) == hashlib.sha256(framed(b"secagg/1/indexing-header", *parts)).digest()


FIRST, SECOND = HEADER.segments
HEADERS: dict[str, dict[str, Any]] = {
    "round": {"round_number": 8},
    "client": {"certificate": replace(HEADER.certificate, client=ClientId(8))},
    "key": {"certificate": replace(HEADER.certificate, public_key=b"q" * 32)},
    "nonce": {"segments": (replace(FIRST, nonce=b"o" * 16), SECOND)},
    "correction": {"segments": (replace(FIRST, correction_digest=b"e" * 32), SECOND)},
    "last nonce": {"segments": (FIRST, replace(SECOND, nonce=b"o" * 16))},
    "last correction": {"segments": (FIRST, replace(SECOND, correction_digest=b"e" * 32))},
    "order": {"segments": (SECOND, FIRST)},
    "number": {"segments": (FIRST,)},
}


def test_the_digest_of_a_header_covers_every_field() -> None:
    digests = {replace(HEADER, **changes).digest(CONFIGURATION) for changes in HEADERS.values()}
    digests |= {HEADER.digest(made) for made in KINDS.values()}
    assert len(digests) == len(HEADERS) + len(KINDS)
    assert HEADER.client == ClientId(9)


def test_an_uploads_id_covers_the_header_and_both_sealed_seeds() -> None:
    made = upload()
    statement = framed(b"secagg/1/indexing-upload", HEADER.digest(CONFIGURATION), *made.sealed_seeds)
    assert made.upload_id(CONFIGURATION) == hashlib.sha256(statement).digest()
    others = [
        upload(header=replace(HEADER, round_number=6)),
        upload(sealed_seeds=(b"u" * 80, b"t" * 80)),
        upload(sealed_seeds=(b"s" * 80, b"u" * 80)),
        upload(sealed_seeds=(b"t" * 80, b"s" * 80)),
    ]
    ids = {one.upload_id(CONFIGURATION) for one in (made, *others)}
    assert len(ids) == 5
    assert made.upload_id(KINDS["unchecked"]) not in ids


def test_both_halves_have_one_id_whatever_else_differs() -> None:
    zero, one = upload(server=ZERO), upload(server=ONE, body=b"z" * 56, signature=b"h" * 64)
    assert zero.upload_id(CONFIGURATION) == one.upload_id(CONFIGURATION)


def signing_key(byte: int = 7) -> SigningKey:
    with Secret("signing key", bytes([byte] * 32)) as seed:
        return SigningKey(seed)


def signed() -> Upload:
    certificate = replace(HEADER.certificate, public_key=signing_key().public_key)
    made = upload(header=replace(HEADER, certificate=certificate))
    return replace(made, signature=made.signature_by(signing_key(), CONFIGURATION))


def test_a_client_signs_the_header_and_both_sealed_seeds() -> None:
    made = signed()
    made.verify(CONFIGURATION)
    replace(made, server=ZERO, body=b"").verify(CONFIGURATION)
    parts = made.header.digest(CONFIGURATION), *made.sealed_seeds
    verify_signature(signing_key().public_key, made.signature, Label.INDEXING_SIGNED_UPLOAD, *parts)


def test_the_context_of_a_segment_is_the_documented_one() -> None:
    parts = CONFIGURATION.context.digest, (7).to_bytes(8, "big"), CONFIGURATION.layout.digest, (2).to_bytes(4, "big")
    expected = hashlib.sha256(framed(b"secagg/1/indexing-segment", *parts)).digest()
    assert segment_context(CONFIGURATION, 7, 2) == expected
    other = configuration(layout=replace(CONFIGURATION.layout, version=b"v" * 32))
    others = {
        segment_context(CONFIGURATION, 8, 2),
        segment_context(CONFIGURATION, 7, 1),
        segment_context(configuration(task=b"b task"), 7, 2),
        segment_context(other, 7, 2),
    }
    assert len(others - {expected}) == 4


def test_a_key_is_bound_to_segment_client_and_nonce() -> None:
    made = key_binding(CONFIGURATION, 7, 2, ClientId(9), b"n" * 16)
    assert (made.context, made.client, made.nonce) == (segment_context(CONFIGURATION, 7, 2), ClientId(9), b"n" * 16)


def test_a_proof_is_bound_to_everything_about_its_segment() -> None:
    number, segment = CONFIGURATION.index_segments[1]

    def statement(header: UploadHeader, made: IndexingConfiguration = CONFIGURATION, at: int = number) -> bytes:
        return check_context(made, header, at, segment, header.segments[1]).statement

    context = check_context(CONFIGURATION, HEADER, number, segment, SECOND)
    assert (context.attempt, context.round_number, context.client) == (CONFIGURATION.context, 7, ClientId(9))
    assert (context.layout_digest, context.segment) == (CONFIGURATION.layout.digest, number)
    assert (context.correction_digest, context.nonce) == (bytes(32), b"m" * 16)
    assert context.shape == CONFIGURATION.check_shape(segment)
    relevant = ("round", "client", "last nonce", "last correction")
    others = {statement(replace(HEADER, **HEADERS[name])) for name in relevant}
    others |= {statement(HEADER, configuration(task=b"b task")), statement(HEADER, at=1)}
    assert len(others - {statement(HEADER)}) == len(relevant) + 2
    assert context.attempt != AttemptContext(bytes(32))


def test_bytes_are_cut_into_pieces_of_exactly_their_sizes() -> None:
    assert [bytes(piece) for piece in cut(b"abcdef", [2, 0, 3, 1])] == [b"ab", b"", b"cde", b"f"]
    assert list(cut(b"", [])) == []
    data = bytearray(b"abc")
    first, _ = cut(data, [1, 2])
    data[0] = 0
    assert bytes(first) == b"\0", "without a copy"
    for wrong, reason in ((b"ab", Reason.TRUNCATED), (b"abcd", Reason.TRAILING_BYTES)):
        with pytest.raises(MalformedMessage) as caught:
            cut(wrong, [1, 2])
        assert caught.value.reason is reason


def fill(body: bytearray) -> None:
    body[-1] |= 0x80


def other_kind(body: bytearray) -> None:
    body[16 + 6] ^= 1


@pytest.mark.parametrize("change", [fill, other_kind], ids=["a filling bit", "another kind of message"])
def test_what_is_sealed_is_parsed_as_strictly_as_what_is_not_and_then_overwritten(
    change: Callable[[bytearray], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the client's, which sealed and signed it as if nothing were wrong."""
    opened = list[bytearray]()

    def changed(seed: Secret, server: ServerId, digest: bytes, body: bytearray) -> memoryview:
        if server == ONE:
            change(body)
        return seal_body(seed, server, digest, body)

    def recorded(*args: Any) -> bytearray:
        opened.append(open_body(*args))
        return opened[-1]

    layout = Layout((RingSegment(20, 3), IndexSegment(5, 3), RingSegment(7, 2)))
    made = InsecureIndexingRound(IndexingSetup(population=2, layout=layout, depth=1))
    right = made.share(2)[1]
    with monkeypatch.context() as patched:
        patched.setattr(client_module, "seal_body", changed)
        wrong = made.share(1)[1]
    monkeypatch.setattr(opened_upload, "open_body", recorded)
    made.one.receive(right.encode())
    with pytest.raises(PeerError) as caught:
        made.one.receive(wrong.encode())
    assert caught.value.culprits == {ClientId(1)}
    assert len(opened) == 2
    assert not any(any(body) for body in opened)
