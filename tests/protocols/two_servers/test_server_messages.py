"""What the servers say: one encoding each, of one round and one server, and what each signature and digest covers."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.choices import SharingMode
from secagg.contract import IndexSegment, Layout, RingSegment
from secagg.crypto.labels import Label
from secagg.crypto.secret import Secret
from secagg.identifiers import AttemptContext, ClientId, ServerId
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.offers import Due, Entry, RoundStamp, ServerOffer
from secagg.protocols.two_servers.server_messages import (
    AcceptedList,
    BatchItem,
    OutputCommitment,
    OutputShare,
    encode_batch,
    entries_digest,
)
from secagg.session.certificates import SigningKey, verify_signature
from secagg.wire import MessageKind
from tests.harness.indexing_rounds import framed, indexing_configuration

BATCH_KINDS = (MessageKind.INDEXING_PROPOSAL, MessageKind.INDEXING_ANSWER, MessageKind.INDEXING_CONCLUSION)
ZERO, ONE = ServerId(0), ServerId(1)


def signing_key(byte: int) -> SigningKey:
    with Secret("signing key", bytes([byte] * 32)) as seed:
        return SigningKey(seed)


KEYS = (signing_key(10), signing_key(11))


configuration = partial(
    indexing_configuration,
    server_keys=(KEYS[0].public_key, KEYS[1].public_key),
    layout=Layout((RingSegment(20, 3), IndexSegment(5, 3), RingSegment(7, 3))),
    maximum_rejections=1,
)


CONFIGURATION = configuration()
UNCHECKED = configuration(mode=SharingMode.UNCHECKED_POINT_FUNCTIONS)


def stamp(server: ServerId = ONE, round_number: int = 7, made: IndexingConfiguration = CONFIGURATION) -> RoundStamp:
    return RoundStamp(context=made.context, round_number=round_number, server=server)


STAMP = stamp()
ENTRIES = [Entry(ClientId(number), bytes([number] * 32)) for number in (5, 2, 9)]
ITEMS: list[BatchItem] = [(b"u" * 32, b"what is said"), (b"v" * 32, b""), (b"w" * 32, None)]
SHARE = OutputShare.of(
    CONFIGURATION,
    STAMP,
    b"n" * 32,
    (
        np.array([1, 1 << 19, 5], dtype=np.uint32),
        np.arange(15, dtype=np.uint8) * 9,
        np.array([127, 0, 1], dtype=np.uint8),
    ),
)
OFFER = ServerOffer.signed(STAMP, b"k" * 32, KEYS[1])
LIST = AcceptedList.signed(STAMP, ENTRIES, KEYS[1])
COMMITMENT = OutputCommitment.to(STAMP, b"d" * 32, b"a share")


def test_the_encodings_are_the_documented_ones() -> None:
    def start(kind: int) -> bytes:
        return b"SAGG\x01" + kind.to_bytes(2, "big") + CONFIGURATION.context.digest + (7).to_bytes(8, "big") + b"\1"

    assert OFFER.encode() == start(68) + b"k" * 32 + OFFER.signature
    said = (3).to_bytes(4, "big") + b"u" * 32 + b"\1" + (12).to_bytes(4, "big") + b"what is said"
    said += b"v" * 32 + b"\1" + bytes(4) + b"w" * 32 + b"\0"
    assert [encode_batch(kind, STAMP, ITEMS) for kind in BATCH_KINDS] == [start(kind) + said for kind in (70, 71, 72)]
    assert LIST.encode() == start(73) + entries_digest(ENTRIES) + (3).to_bytes(4, "big") + LIST.signature
    assert COMMITMENT.encode() == start(74) + COMMITMENT.digest
    ring, lanes, bits = (segment for segment in CONFIGURATION.layout.segments)
    assert (ring.payload_bytes, lanes.length * 5, bits.payload_bytes) == (8, 15, 3)
    assert len(SHARE.encode()) == len(start(75)) + 32 + 8 + (15 * 7 + 7) // 8 + 3


OTHER_STAMPS = {
    "round": stamp(round_number=8),
    "server": stamp(ZERO),
    "configuration": stamp(made=configuration(task=b"b task")),
    "nothing": RoundStamp(context=AttemptContext(bytes(32)), round_number=0, server=ZERO),
}


def test_an_offer_is_signed_over_the_round_and_the_key() -> None:
    parts = *STAMP.parts(), b"k" * 32
    verify_signature(KEYS[1].public_key, OFFER.signature, Label.INDEXING_OFFER, *parts)


def test_the_digest_of_a_list_is_the_documented_one() -> None:
    parts = list[bytes]()
    for entry in sorted(ENTRIES):
        parts += [entry.client.value.to_bytes(8, "big"), entry.upload_id]
    assert entries_digest(ENTRIES) == hashlib.sha256(framed(b"secagg/1/indexing-accepted", *parts)).digest()


def test_a_list_is_signed_over_its_round_digest_and_number() -> None:
    parts = *STAMP.parts(), entries_digest(ENTRIES), (3).to_bytes(4, "big")
    assert LIST.contributors == 3
    verify_signature(KEYS[1].public_key, LIST.signature, Label.INDEXING_SIGNED_LIST, *parts)


def test_a_commitment_is_the_documented_one_and_covers_everything() -> None:
    statement = framed(b"secagg/1/indexing-output", *STAMP.parts(), b"d" * 32)
    assert COMMITMENT.digest == hashlib.sha256(statement + b"a share").digest()
    others = [
        OutputCommitment.to(STAMP, b"d" * 32, b"another share"),
        OutputCommitment.to(STAMP, b"e" * 32, b"a share"),
        *(OutputCommitment.to(other, b"d" * 32, b"a share") for other in OTHER_STAMPS.values()),
    ]
    assert len({one.digest for one in [*others, COMMITMENT]}) == len(others) + 1


@pytest.mark.parametrize("made", [CONFIGURATION, UNCHECKED])
@given(seed=st.integers(0, 1 << 32))
def test_a_share_has_lanes_and_ring_elements_at_exactly_their_bits(made: IndexingConfiguration, seed: int) -> None:
    generator, order = np.random.default_rng(seed), made.group.order
    values: tuple[Any, ...] = (
        generator.integers(0, 1 << 20, 3).astype(np.uint32),
        generator.integers(0, order, 15).astype(made.group.word),
        generator.integers(0, 1 << 7, 3).astype(np.uint8),
    )
    due = stamp(made=made)
    encoded = OutputShare.of(made, due, bytes(32), values).encode()
    assert len(encoded) == 7 + 41 + 32 + 8 + (15 * made.group.bits + 7) // 8 + 3
    again = OutputShare.decode(encoded, Due(due, made))
    for value, expected in zip(again.values(made), values, strict=True):
        assert value.dtype == expected.dtype
        np.testing.assert_array_equal(value, expected)


def test_a_share_of_the_sum_is_not_shown() -> None:
    assert "array" not in repr(SHARE)
    assert "524288" not in repr(SHARE)
