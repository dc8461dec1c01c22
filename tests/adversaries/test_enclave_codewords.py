"""Attacks on the bound of what a client chooses in an enclave."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.contract import IndexSegment, Layout, Payload, RingSegment
from secagg.contract.codewords import CodewordTable
from secagg.crypto.entropy import SystemCoins
from secagg.errors import CapacityExceeded, InvalidParameters, Reason
from secagg.identifiers import ClientId
from secagg.protocols.enclave.session import EnclaveSettings
from secagg.protocols.enclave.trusted import enclave as trusted
from secagg.protocols.enclave.trusted.configuration import (
    Accumulation,
    EnclaveConfiguration,
    ReleaseForm,
    least_squared,
)
from secagg.protocols.enclave.trusted.enclave import bounded_choices
from secagg.session.registry import find
from secagg.session.roles import LateUpdate, Released, Subject, Update
from secagg.session.run import Measured, run
from tests.harness.enclave_buffers import NOW, EnclaveSetup, InsecureEnclaveSession

MODEL = bytes(32)
ENTRIES = np.array([[0, 0], [1, 0], [3, 4], [30, 40]], dtype=np.int64)
BLOCKS = 7
TABLES = ((CodewordTable(4, ENTRIES), CodewordTable(3, ENTRIES[::-1].copy())), (CodewordTable(5, ENTRIES),))
LAYOUT = Layout((IndexSegment(4, BLOCKS), RingSegment(16, 3), IndexSegment(4, 5)))
SUBJECT = Subject(task=b"bound", round_number=1, layout=LAYOUT, capacity=100, tables=TABLES, model_digest=MODEL)
CLIENTS = tuple(map(ClientId, range(1, 5)))
HONEST = (np.array([1, 1, 1, 1, 2, 2, 2], np.uint8), np.array([1, 0, 1, 0, 1], np.uint8))
LONGEST = (np.array([3, 3, 3, 3, 0, 0, 0], np.uint8), np.full(5, 3, np.uint8))


def test_a_host_gets_no_sum_of_the_one_client_that_keeps_its_bound() -> None:
    """All others count as the least codewords, which everybody knows: what is released is that one's choice."""
    found = released(20, Accumulation.OBLIVIOUS, len(CLIENTS) - 1)
    assert sums(found)[0][:2] == [1, 0], "three of four are over the bound, and the sum is the fourth one's"
    session = InsecureEnclaveSession(EnclaveSetup(layout=LAYOUT, codebooks=TABLES))
    configuration = replace(session.configuration, codeword_bound=20)

    def admit(least: int) -> None:
        accepting = replace(session.floors, minimum_codeword_bound=least)
        accepting.admit(configuration, layout=LAYOUT, tables=TABLES, maximum_seals=None, now=NOW)

    assert session.floors.minimum_codeword_bound == 0
    for least in (0, 21):
        with pytest.raises(InvalidParameters, match="count as the least") as caught:
            admit(least)
        assert caught.value.reason is Reason.BELOW_FLOOR
    admit(20)
    for wrong in (-1, 1 << 40):
        with pytest.raises(InvalidParameters, match="minimum_codeword_bound"):
            admit(wrong)


def payload(choice: tuple[Any, Any]) -> Payload:
    return Payload(LAYOUT, (choice[0], RingSegment(16, 3).ring.from_integers(np.array([1, 2, 3])), choice[1]))


def released(bound: int, accumulation: Accumulation, liars: int) -> Released:
    entry = find("enclave")
    settings = EnclaveSettings(minimum_cohort=3, codeword_bound=bound, accumulation=accumulation)
    with closing(entry.simulate(settings, coins=SystemCoins(), clock=lambda: datetime.now(UTC))) as world:
        session = world.open(SUBJECT, frozenset(CLIENTS))

        def joined(client: ClientId) -> Any:
            chosen = payload(LONGEST if client.value <= liars else HONEST)
            return world.member(client).join(SUBJECT, LateUpdate(lambda: Update(chosen, MODEL)))

        return run(Measured(session), map(joined, CLIENTS))


def sums(found: Released) -> list[list[int]]:
    rings = found.aggregate.layout.require_rings()
    return [ring.ring.lift(v).astype(int).tolist() for ring, v in zip(rings, found.aggregate.values, strict=True)]


@pytest.mark.parametrize("accumulation", Accumulation)
def test_the_longest_codewords_count_as_the_least_and_nobody_is_told(accumulation: Accumulation) -> None:
    plain, bounded = (released(bound, accumulation, 1) for bound in (0, 20))
    honest = released(20, accumulation, 0)
    # Every honest client adds (1, 0) to the first block of each; the least codeword is zeros.
    assert sums(honest)[0][:2] == [4, 0]
    assert sums(bounded)[0][:2] == [3, 0]
    assert sums(plain)[0][:2] == [33, 40]
    assert sums(bounded)[-1][:2] == [3, 0]
    assert bounded.counted == plain.counted == frozenset(CLIENTS)
    assert not bounded.left_out
    assert (bounded.aggregate.contributors, bounded.aggregate.total_weight) == (4, 4)
    assert bounded.unbounded == (1,)


def test_the_choices_that_were_counted_are_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[bytearray]()

    def recording(*args: Any) -> list[bytearray]:
        packed = bounded_choices(*args)
        assert any(map(any, packed))
        made.extend(packed)
        return packed

    monkeypatch.setattr(trusted, "bounded_choices", recording)
    released(20, Accumulation.OBLIVIOUS, 1)
    assert len(made) == 2 * len(CLIENTS)
    assert not any(map(any, made))


def opened(subject: Subject, settings: EnclaveSettings) -> EnclaveConfiguration:
    with closing(find("enclave").simulate(settings, coins=SystemCoins(), clock=lambda: datetime.now(UTC))) as world:
        session: Any = world.open(subject, frozenset(CLIENTS))
        configuration: EnclaveConfiguration = session.configuration
        session.abort()
        return configuration


def test_a_bound_below_the_least_codewords_is_refused_and_the_least_is_named() -> None:
    entries = np.array([[3, 4], [6, 8]], dtype=np.int64)
    subject = replace(SUBJECT, layout=Layout((IndexSegment(2, 9),)), tables=((CodewordTable(9, entries),),))
    with pytest.raises(InvalidParameters, match="norm of 15 steps: take so many at least"):
        opened(subject, EnclaveSettings(codeword_bound=14))
    configuration = opened(subject, EnclaveSettings(codeword_bound=15))
    assert configuration.codeword_bound == 15
    assert EnclaveConfiguration.decode(configuration.encode(), subject.tables).encode() == configuration.encode()


def test_a_bound_needs_codewords_that_the_enclave_decodes() -> None:
    with pytest.raises(InvalidParameters, match="take form = decoded_sum"):
        opened(SUBJECT, EnclaveSettings(codeword_bound=15, form=ReleaseForm.HISTOGRAM))


@given(data=st.data())
def test_what_is_counted_is_within_the_bound_whatever_is_chosen_and_the_choice_where_that_is(
    data: st.DataObject,
) -> None:
    """Over tables, widths and bounds."""
    codewords = data.draw(st.integers(2, 9))
    entry = st.lists(st.integers(-1000, 1000), min_size=2, max_size=2)
    blocks = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    tables = tuple(
        CodewordTable(
            count, np.array(data.draw(st.lists(entry, min_size=codewords, max_size=codewords)), dtype=np.int64)
        )
        for count in blocks
    )
    segment = IndexSegment(codewords, sum(blocks))
    chosen = np.array([data.draw(st.integers(0, codewords - 1)) for _ in range(segment.blocks)], segment.ring.word)
    least = least_squared((tables,))
    bound = data.draw(st.integers(0, 5000))
    bound = max(bound, int(np.ceil(np.sqrt(least))))

    def squared(indices: Any) -> int:
        runs = np.split(np.asarray(indices), np.cumsum(blocks)[:-1])
        return sum(int(np.square(table.entries[run]).sum()) for table, run in zip(tables, runs, strict=True))

    (packed,) = bounded_choices([memoryview(segment.ring.pack(chosen))], [segment], (tables,), bound)
    counted = segment.ring.unpack(packed, segment.blocks)
    if squared(chosen) <= bound**2:
        assert counted.tolist() == chosen.tolist()
    else:
        assert squared(counted) == least <= bound**2


def test_noise_that_a_ring_does_not_hold_names_the_multiplier_that_it_holds() -> None:
    """Nobody is hurt but the model: a sum that wraps with its noise is no sum."""
    subject = replace(SUBJECT, layout=Layout((RingSegment(20, 3),)), tables=())
    settings = EnclaveSettings(noise_multiplier=Fraction(10) ** 40, l2_bounds=(100,), maximum_cohort=10)
    with pytest.raises(CapacityExceeded, match="take noise_multiplier = ") as refused:
        opened(subject, settings)
    named = Fraction(str(refused.value).split("noise_multiplier = ")[1].split()[0])
    assert opened(subject, replace(settings, noise_multiplier=named)).noise is not None
    with pytest.raises(CapacityExceeded):
        opened(subject, replace(settings, noise_multiplier=named * Fraction(102, 100)))
