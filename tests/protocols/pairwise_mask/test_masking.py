"""Vectors of a session compared with plain integers: framing, check words, and masks that cancel."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.choices import Topology
from secagg.contract import Layout, Payload, RingSegment
from secagg.crypto.labels import Label, bind
from secagg.crypto.ring import Ring
from secagg.crypto.secret import Secret
from secagg.errors import CapacityExceeded, MalformedMessage, Misuse, PeerMisbehaved, Reason
from secagg.identifiers import ClientId, SessionContext
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.pairwise_mask.configuration import SessionConfiguration
from secagg.protocols.pairwise_mask.round2_masked_input import (
    MaskedVector,
    adds_pairwise_mask,
    pairwise_mask_key,
    self_mask_key,
    upload_digest,
)
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.pairwise_sessions import insecure_payload, plan_of

CONTEXT = SessionContext(hashlib.sha256(b"a session").digest())
layouts = st.lists(st.builds(RingSegment, st.integers(1, 64), st.integers(1, 30)), min_size=1, max_size=4).map(
    lambda segments: Layout(tuple(segments))
)
SMALL = Layout((RingSegment(7, 5), RingSegment(20, 3)))


def configuration_of(
    layout: Layout = SMALL, *, check_words: int = 8, suite: Suite = Suite.CLASSIC
) -> SessionConfiguration:
    return plan_of(
        layout,
        InsecureSeededCoins(b"masking"),
        population=5,
        corrupted=0,
        dropped=1,
        mode=SecurityMode.SEMI_HONEST,
        topology=Topology.FULL,
        check_words=check_words,
        suite=suite,
    ).configuration


def input_of(configuration: SessionConfiguration, seed: bytes) -> MaskedVector:
    return MaskedVector.of_input(configuration, CONTEXT, insecure_payload(configuration.layout, seed))


def key(number: int) -> Secret:
    return Secret("mask key", number.to_bytes(16, "big"))


def contents(vector: MaskedVector) -> list[list[int]]:
    return [part.tolist() for part in vector.vectors]


# --- Framing ----------------------------------------------------------------------------------------------------------


@given(layouts, st.binary(max_size=3))
def test_an_input_is_written_once_and_counts_one(layout: Layout, seed: bytes) -> None:
    configuration = configuration_of(layout)
    payload = insecure_payload(layout, seed)
    framed = MaskedVector.of_input(configuration, CONTEXT, payload)
    for values, inputs in zip(payload.values, framed.inputs(), strict=True):
        assert inputs.tolist() == values.tolist()
    assert framed.count == 1
    framed.check(CONTEXT)
    for segment, part in zip(configuration.segments, framed.vectors, strict=True):
        assert part.size == segment.length + max(8, -(-64 // segment.modulus_bits))


def test_the_payload_is_left_as_it_was() -> None:
    payload = insecure_payload(SMALL, b"payload")
    before = [values.copy() for values in payload.values]
    framed = MaskedVector.of_input(configuration_of(), CONTEXT, payload)
    framed.apply([key(1)], [])
    assert all(np.array_equal(*pair) for pair in zip(before, payload.values, strict=True))


def test_an_input_that_was_spoilt_after_it_was_made_is_refused() -> None:
    payload = insecure_payload(SMALL, b"payload")
    payload.values[0][0] = 200
    with pytest.raises(CapacityExceeded):
        MaskedVector.of_input(configuration_of(), CONTEXT, payload)


def test_vectors_of_other_lengths_or_words_are_refused() -> None:
    configuration = configuration_of()
    vectors = MaskedVector(configuration).vectors
    assert MaskedVector(configuration, vectors).vectors == vectors
    for spoilt in (vectors[1:], [*vectors, vectors[0]], [vectors[0][1:], *vectors[1:]], [vectors[1], *vectors[1:]]):
        with pytest.raises((Misuse, ValueError)):
            MaskedVector(configuration, spoilt)


# --- Check words ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check_words", [8, 40])
def test_any_change_of_a_sum_is_noticed(check_words: int) -> None:
    configuration = configuration_of(Layout((RingSegment(16, 5), RingSegment(33, 3))), check_words=check_words)
    for part in range(3):
        for place in range(input_of(configuration, b"sum").vectors[part].size):
            total = input_of(configuration, b"sum")
            total.vectors[part][place] ^= 1
            with pytest.raises(PeerMisbehaved) as caught:
                total.check(CONTEXT)
            assert caught.value.reason is Reason.CHECK_WORDS_MISMATCH
            assert caught.value.culprits == frozenset()


def test_the_words_of_another_session_do_not_fit() -> None:
    total = input_of(configuration_of(), b"sum")
    with pytest.raises(PeerMisbehaved):
        total.check(SessionContext(bytes(32)))


def test_check_words_over_a_vector_longer_than_one_piece() -> None:
    """A segment of the stream has 2^20 elements of 8 bits; the words continue across its end."""
    layout = Layout((RingSegment(8, (1 << 20) + 5),))
    configuration = configuration_of(layout)
    values = np.zeros((1 << 20) + 5, dtype=np.uint8)
    framed = MaskedVector.of_input(configuration, CONTEXT, Payload(layout, (values,)))
    assert contents(framed)[0][values.size :] == [0] * 8
    values[-1] = 1
    framed = MaskedVector.of_input(configuration, CONTEXT, Payload(layout, (values,)))
    words = contents(framed)[0][values.size :]
    assert len(set(words)) > 1
    framed.check(CONTEXT)
    framed.vectors[0][values.size - 1] = 3
    with pytest.raises(PeerMisbehaved):
        framed.check(CONTEXT)


# --- Masks ------------------------------------------------------------------------------------------------------------


@given(layouts, st.integers(2, 6), st.data())
def test_pairwise_masks_cancel_in_the_sum(layout: Layout, population: int, data: st.DataObject) -> None:
    configuration = configuration_of(layout)
    clients = [ClientId(value) for value in data.draw(st.permutations(range(population)))]
    total = MaskedVector(configuration)
    for client in clients:
        keys = [
            (other, key(1 + min(client.value, other.value) * 10 + max(client.value, other.value)))
            for other in clients
            if other != client
        ]
        masked = MaskedVector(configuration)
        masked.apply(
            [shared for other, shared in keys if adds_pairwise_mask(client, other)],
            [shared for other, shared in keys if not adds_pairwise_mask(client, other)],
        )
        assert any(any(part) for part in contents(masked))
        total.add_packed(b"".join(masked.pack()))
    assert not any(any(part) for part in contents(total))


def test_every_segment_has_a_part_of_the_stream_to_itself() -> None:
    """Equal segments with equal inputs have different masks, or their difference would reveal the inputs'."""
    configuration = configuration_of(Layout((RingSegment(32, 30), RingSegment(32, 30))))
    masked = MaskedVector(configuration)
    masked.apply([key(1)], [])
    first, second, count = contents(masked)
    assert len(set(first + second)) > 60
    assert count != first[: len(count)]
    # The first stream segment of a key is the mask of the first segment.
    alone = MaskedVector(configuration_of(Layout((RingSegment(32, 30),))))
    alone.apply([key(1)], [])
    assert contents(alone)[0] == first


def test_keys_differ_between_clients_pairs_sessions_and_uses() -> None:
    configuration, seed = configuration_of(), Secret("seed", b"s" * 32)
    other_context = SessionContext(bytes(32))
    one, two, three = ClientId(1), ClientId(2), ClientId(3)
    keys = [
        self_mask_key(seed, one, CONTEXT, configuration),
        self_mask_key(seed, two, CONTEXT, configuration),
        self_mask_key(seed, one, other_context, configuration),
        pairwise_mask_key(seed, one, two, CONTEXT, configuration),
        pairwise_mask_key(seed, one, three, CONTEXT, configuration),
        pairwise_mask_key(seed, one, two, other_context, configuration),
    ]
    assert len({bytes(derived.expose()) for derived in keys}) == len(keys)
    swapped = pairwise_mask_key(seed, two, one, CONTEXT, configuration)
    assert swapped == keys[3]


@pytest.mark.parametrize("suite", Suite)
def test_the_suite_sets_the_length_of_a_mask_key(suite: Suite) -> None:
    seed = Secret("seed", b"s" * 32)
    derived = self_mask_key(seed, ClientId(1), CONTEXT, configuration_of(suite=suite))
    assert len(derived) == suite.mask_key_bytes == {Suite.CLASSIC: 16, Suite.HYBRID: 32}[suite]


# --- Packing ----------------------------------------------------------------------------------------------------------


def test_what_does_not_unpack_is_not_added() -> None:
    configuration = configuration_of(Layout((RingSegment(7, 5), RingSegment(7, 5))))
    total = input_of(configuration, b"before")
    packed, before = b"".join(input_of(configuration, b"upload").pack()), contents(total)
    size = Ring(7).packed_bytes(13 + 2)
    assert (13 + 2) * 7 % 8
    for spoilt, reason in (
        (packed[:-1], Reason.TRUNCATED),
        (b"", Reason.TRUNCATED),
        (packed + b"\x00", Reason.TRAILING_BYTES),
        # A padding bit of the second segment's last byte, after a valid first segment.
        (packed[: 2 * size - 1] + bytes([packed[2 * size - 1] | 0x80]) + packed[2 * size :], Reason.NOT_CANONICAL),
    ):
        with pytest.raises(MalformedMessage) as caught:
            total.add_packed(spoilt)
        assert caught.value.reason is reason
        assert contents(total) == before


def test_a_wiped_vector_is_zero() -> None:
    vector = input_of(configuration_of(), b"input")
    vector.wipe()
    assert not any(any(part) for part in contents(vector))


def test_the_digest_that_is_signed_is_of_everything_that_is_uploaded() -> None:
    runs = [b"one", b"two"]
    assert upload_digest(runs) == hashlib.sha256(bind(Label.UPLOAD_DIGEST) + b"onetwo").digest()
    assert upload_digest(memoryview(run) for run in runs) == upload_digest(runs)
