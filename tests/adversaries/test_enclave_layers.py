"""Pairwise masks on top of an enclave's: whoever breaks one layer still sees nothing but the other's masks.

| attack | defence |
|---|---|
| all pairwise secrets are known: of the server, and of every other client | each vector has its enclave mask |
| all seeds are known: the enclave was broken, or never was one | each vector has its pairwise and its own mask |
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
import pytest

from secagg.contract import Aggregate, IndexSegment, Layout, Payload, RingSegment, ideal_aggregate
from secagg.crypto.mask_expansion import expand
from secagg.crypto.ring import RingVector
from secagg.crypto.secret import Secret
from secagg.errors import Misuse
from secagg.protocols.enclave.client import Upload
from secagg.protocols.enclave.trusted.messages import BufferRelease
from secagg.protocols.pairwise_mask.round2_masked_input import MaskedInput
from secagg.wire import MessageKind
from tests.harness.enclave_buffers import EnclaveSetup, InsecureEnclaveSession, model_digest
from tests.harness.pairwise_sessions import InsecurePairwiseSession, SessionSetup

LENGTH = 4096
RINGS = Layout((RingSegment(8, LENGTH), RingSegment(13, 5)))
LAYOUT = Layout((RINGS.segments[0], IndexSegment(8, 5), RINGS.segments[1]))
CLIENTS = 8


def looks_uniform(vector: RingVector) -> bool:
    """Say whether bytes pass a chi-square test that uniform ones fail less than once in a million."""
    counts, freedom = np.bincount(vector, minlength=256), 255
    expected = vector.size / 256
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return statistic < freedom + 2 * sqrt(freedom * 14) + 28


@dataclass
class Layers:
    """A session of each protocol: the enclave's inside, whose masked vectors are the inputs of the pairwise one."""

    inner: InsecureEnclaveSession
    outer: InsecurePairwiseSession
    uploads: list[Upload]
    payloads: list[Payload]

    def outer_vector(self, number: int) -> RingVector:
        """Return what the server holds of a client: the vector under both layers."""
        configuration = self.outer.server.configuration
        client = self.outer.client_ids[number]
        message = MaskedInput.decode(self.outer.sent_by(client, MessageKind.MASKED_INPUT), self.outer.server.roster)
        segment = RINGS.require_rings()[0]
        framed = segment.length + configuration.check_words_of(segment)
        packed = message.packed[0][: segment.ring.packed_bytes(framed)]
        return segment.ring.unpack(packed, framed)[: segment.length]

    def enclave_mask(self, number: int) -> RingVector:
        """Return the mask that whoever has broken the enclave knows."""
        keys: list[Secret] = vars(self.inner.enclave)["_mask_keys"][1]
        return expand(keys[number], RINGS.segments[0].ring, LENGTH)

    def input_of(self, number: int) -> RingVector:
        return self.payloads[number].values[0]


def layers(*, dropped: int | None = None) -> Layers:
    setup = EnclaveSetup(population=CLIENTS, maximum_cohort=CLIENTS, layout=LAYOUT)
    inner = InsecureEnclaveSession(setup)
    inner.host.open_buffer(0, bytes(32))
    payloads = [setup.payload_of(number) for number in range(1, CLIENTS + 1)]
    uploads = [inner.seal(number) for number in range(1, CLIENTS + 1)]
    masked = {client: uploads[place].masked_payload(RINGS) for place, client in enumerate(_ids())}
    outer = InsecurePairwiseSession(SessionSetup(population=CLIENTS, layout=RINGS), payload_of=masked.__getitem__)
    if dropped is not None:
        outer.drop(outer.client_ids[dropped])
    for number, upload in enumerate(uploads):
        if number != dropped:
            inner.host.relay(upload)
    return Layers(inner, outer, uploads, payloads)


def _ids() -> Any:
    return SessionSetup(population=CLIENTS, layout=RINGS).client_ids


def released(both: Layers) -> Aggregate:
    return both.inner.host.release(both.outer.finish().values)[0]


@pytest.mark.parametrize("dropped", [None, 0, 5])
def test_the_sum_under_both_layers_is_the_sum(dropped: int | None) -> None:
    both = layers(dropped=dropped)
    aggregate = released(both)
    chosen = [payload for number, payload in enumerate(both.payloads) if number != dropped]
    ideal = ideal_aggregate(LAYOUT, chosen)
    assert aggregate.contributors == len(chosen)
    for position in (0, -1):
        assert np.array_equal(aggregate.values[position], ideal.values[position])


def test_neither_layer_alone_shows_an_input() -> None:
    both = layers()
    both.outer.finish()
    ring = RINGS.segments[0].ring
    without_pairs, without_enclave = list[RingVector](), list[RingVector]()
    for number in range(CLIENTS):
        outer, inner, plain = both.outer_vector(number), both.uploads[number].masked[0], both.input_of(number)
        assert not looks_uniform(plain), "the test would notice an input"
        assert looks_uniform(outer)
        # All pairwise masks and the client's own are known: what is left is the input under the enclave's mask.
        assert looks_uniform(inner)
        assert looks_uniform(ring.subtract(outer, inner)), "the outer layer is there"
        # The enclave's mask is known: what is left is the input under the pairwise masks.
        assert looks_uniform(ring.subtract(outer, both.enclave_mask(number)))
        # Both are known: what is left is the input, so that the three above removed what they say.
        without_both = ring.subtract(inner, both.enclave_mask(number))
        assert np.array_equal(without_both, plain)
        without_pairs.append(inner)
        without_enclave.append(ring.subtract(outer, both.enclave_mask(number)))
    for vectors in (without_pairs, without_enclave):
        for one in range(CLIENTS):
            for other in range(one):
                assert looks_uniform(ring.subtract(vectors[one], vectors[other])), "no two share a mask"


def test_the_sum_of_the_outer_layer_is_still_masked_by_the_enclave() -> None:
    """Whoever breaks the pairwise layer alone does not even have the sum before the enclave releases it."""
    both = layers()
    sums: Any = both.outer.finish().values
    assert looks_uniform(sums[0])
    ring, total = RINGS.segments[0].ring, ideal_aggregate(LAYOUT, both.payloads)
    masks = ring.sum([both.enclave_mask(number) for number in range(CLIENTS)], LENGTH)
    assert np.array_equal(ring.subtract(sums[0], masks), total.values[0])


@pytest.mark.parametrize("chosen", [(), (0,), (1,), (0, 1), (0, 2), (1, 2), (0, 0, 1), (0, 0, 1, 1, 2)])
def test_what_an_enclave_releases_unmasks_the_whole_sum_and_no_part_of_it(chosen: tuple[int, ...]) -> None:
    """A host adds up whatever masked vectors it likes; the released masks fit those that were counted, each once."""
    session, ring = InsecureEnclaveSession(EnclaveSetup(layout=RINGS)), RINGS.segments[0].ring
    session.host.open_buffer(0, bytes(32))
    uploads = [session.seal(number) for number in (1, 2, 3)]
    for upload in uploads:
        session.host.relay(upload)
    release = BufferRelease.decode(session.enclave.release())
    masks: Any = Aggregate.decode(release.aggregate, session.configuration.released).values[0]
    whole = ring.sum([upload.masked[0] for upload in uploads], LENGTH)
    assert not looks_uniform(ring.subtract(whole, masks)), "the sum is what it is meant to be"
    part = ring.sum([uploads[place].masked[0] for place in chosen], LENGTH)
    assert looks_uniform(ring.subtract(part, masks))


def test_ages_that_the_other_protocol_does_not_know_are_refused() -> None:
    """It sums every vector once; the released masks would fit another sum."""
    session = InsecureEnclaveSession(EnclaveSetup(layout=RINGS, staleness_weights=(3, 1)))
    session.host.open_buffer(1, model_digest(1))
    upload = session.seal(1, version=1)
    with pytest.raises(Misuse, match="two layers"):
        session.host.relay(upload)
    session.host.receive(upload.encode())
