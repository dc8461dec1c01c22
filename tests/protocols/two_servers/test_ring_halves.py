"""Ring segments in two halves: the halves add up, each alone is noise, and what does not fit is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.contract import IndexSegment, Layout, Payload, RingSegment
from secagg.crypto.ring import RingVector
from secagg.crypto.secret import Secret
from secagg.errors import MalformedMessage, Reason
from secagg.identifiers import ServerId
from secagg.parameters import Suite
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.opened_upload import ClassTotals
from secagg.protocols.two_servers.upload import masked_rings, ring_bytes, unpack_rings
from tests.harness.indexing_rounds import indexing_configuration

ZERO = ServerId(0)
WIDTHS = (1, 7, 8, 13, 20, 32, 33, 64)
LONG = Layout((RingSegment(20, 5000), IndexSegment(3, 2), RingSegment(7, 3000), RingSegment(64, 999)))


def configuration(layout: Layout, suite: Suite = Suite.CLASSIC) -> IndexingConfiguration:
    return indexing_configuration(layout=layout, suite=suite)


def key(byte: int = 7, suite: Suite = Suite.CLASSIC) -> Secret:
    return Secret("ring mask key", bytes([byte] * suite.mask_key_bytes))


def payload(layout: Layout, seed: int = 0) -> Payload:
    generator, values = np.random.default_rng(seed), list[RingVector]()
    for segment in layout.segments:
        if isinstance(segment, IndexSegment):
            values.append(np.zeros(segment.blocks, dtype=segment.ring.word))
        else:
            words = generator.integers(0, 1 << 64, segment.length, dtype=np.uint64)
            values.append((words >> np.uint64(64 - segment.modulus_bits)).astype(segment.ring.word))
    return Payload(layout, tuple(values))


def sent(made: IndexingConfiguration, update: Payload, secret: Secret, threads: int = 1) -> bytes:
    return b"".join(masked_rings(made, update, secret, threads=threads))


def expanded(made: IndexingConfiguration, secret: Secret, threads: int = 1) -> list[RingVector]:
    """Return what server 0 adds for a key."""
    totals = ClassTotals(made, ZERO, threads=threads)
    totals.add_masks(1, secret)
    values = totals.weighted([1])
    return [
        value for segment, value in zip(made.layout.segments, values, strict=True) if isinstance(segment, RingSegment)
    ]


rings = st.lists(st.builds(RingSegment, st.sampled_from(WIDTHS), st.integers(1, 40)), min_size=1, max_size=4)


@given(segments=rings, seed=st.integers(0, 1 << 32), suite=st.sampled_from(Suite), place=st.integers(0, 4))
@settings(max_examples=40, deadline=None)
def test_the_halves_add_up_to_the_input(segments: list[RingSegment], seed: int, suite: Suite, place: int) -> None:
    mixed: list[Any] = [*segments[:place], IndexSegment(3, 2), *segments[place:]]
    made = configuration(Layout(tuple(mixed)), suite)
    update, secret = payload(made.layout, seed), key(suite=suite)
    packed = sent(made, update, secret)
    assert len(packed) == ring_bytes(made) == sum(segment.payload_bytes for segment in segments)
    own = [value for value, segment in zip(update.values, mixed, strict=True) if isinstance(segment, RingSegment)]
    for segment, half, mask, value in zip(
        segments, unpack_rings(made, packed), expanded(made, secret), own, strict=True
    ):
        modulus_mask = segment.ring.word.type((1 << segment.modulus_bits) - 1)
        np.testing.assert_array_equal((mask + half) & modulus_mask, value)


def test_any_number_of_threads_gives_the_same_bytes() -> None:
    made = configuration(LONG)
    update = payload(LONG)
    assert sent(made, update, key()) == sent(made, update, key(), threads=2)
    for one, two in zip(expanded(made, key()), expanded(made, key(), threads=2), strict=True):
        np.testing.assert_array_equal(one, two)


def test_the_input_is_not_changed() -> None:
    made = configuration(LONG)
    update = payload(LONG)
    before = update.encode()
    sent(made, update, key())
    assert update.encode() == before


def test_what_one_server_is_sent_is_as_good_as_noise() -> None:
    """Of zeros, the half is the mask: every bit is set about as often as not, and no two segments share a stream."""
    layout = Layout((RingSegment(16, 4000), RingSegment(16, 4000)))
    made = configuration(layout)
    zeros = Payload(layout, (np.zeros(4000, np.uint16), np.zeros(4000, np.uint16)))
    halves = unpack_rings(made, sent(made, zeros, key()))
    for half in halves:
        ones = np.unpackbits(half.view(np.uint8)).mean()
        assert abs(ones - 0.5) < 0.01
    assert (halves[0] == halves[1]).mean() < 0.01
    assert (halves[0] == unpack_rings(made, sent(made, zeros, key(8)))[0]).mean() < 0.01


@pytest.mark.parametrize("change", [-1, 1])
def test_another_number_of_bytes_is_refused(change: int) -> None:
    made = configuration(Layout((RingSegment(20, 3), RingSegment(7, 3))))
    with pytest.raises(MalformedMessage) as caught:
        unpack_rings(made, bytes(ring_bytes(made) + change))
    assert caught.value.reason is (Reason.TRUNCATED if change < 0 else Reason.TRAILING_BYTES)


def test_bits_that_only_fill_a_byte_are_zero() -> None:
    made = configuration(Layout((RingSegment(20, 3), RingSegment(7, 3))))
    unpack_rings(made, bytes(ring_bytes(made)))
    for place in (7, 10):
        packed = bytearray(ring_bytes(made))
        packed[place] = 0x80
        with pytest.raises(MalformedMessage):
            unpack_rings(made, packed)


def test_without_ring_segments_nothing_is_sent() -> None:
    made = configuration(Layout((IndexSegment(3, 2),)))
    assert ring_bytes(made) == 0
    assert list(masked_rings(made, payload(made.layout), key())) == []
    assert unpack_rings(made, b"") == []
