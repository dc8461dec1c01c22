"""Histograms in the enclave: the same sums in both forms, what is refused, and what is overwritten."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from secagg.choices import Accumulation
from secagg.contract import IndexSegment, Layout, Payload, ideal_aggregate
from secagg.crypto.ring import Ring
from secagg.errors import CapacityExceeded, InvalidParameters, MalformedMessage, Misuse, Reason
from secagg.protocols.enclave.trusted import histogram as module
from secagg.protocols.enclave.trusted.histogram import HistogramAccumulator

Client = list[int]
"""One index for each block."""

FORMS = pytest.mark.parametrize("form", list(Accumulation), ids=lambda form: form.name.lower())
CODEWORDS = (2, 3, 5, 16, 63, 64, 65, 100, 128, 255, 256, 257, 4096, 65535, 65536)
TWO_CHUNKS = module._CHUNK_BLOCKS + 5  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]


def packed(segment: IndexSegment, indices: list[int]) -> memoryview:
    return memoryview(segment.ring.pack(np.array(indices, dtype=segment.ring.word)))


def patterned(segment: IndexSegment, step: int) -> list[int]:
    """Return indices without an obvious order, the least and the greatest among them."""
    edges = [0, segment.codewords - 1]
    return [*edges, *((block * step + block // 7) % segment.codewords for block in range(2, segment.blocks))]


def accumulated(segment: IndexSegment, clients: list[Client], form: Accumulation) -> HistogramAccumulator:
    accumulator = HistogramAccumulator(segment, len(clients), form)
    for indices in clients:
        accumulator.add(packed(segment, indices))
    return accumulator


def ideal(segment: IndexSegment, clients: list[Client]) -> npt.NDArray[Any]:
    layout = Layout((segment,))
    payloads = [Payload(layout, (np.array(indices, dtype=segment.ring.word),)) for indices in clients]
    return ideal_aggregate(layout, payloads).values[0]


def counters_of(accumulator: HistogramAccumulator) -> npt.NDArray[Any]:
    return accumulator._counters  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]


@contextmanager
def small_chunks(blocks: int, scratch: int) -> Generator[None]:
    """Let few blocks be many chunks, and few codewords many steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK_BLOCKS", blocks)
        patch.setattr(module, "_SCRATCH_COUNTERS", scratch)
        yield


def attempt(accumulator: HistogramAccumulator, use: str, data: memoryview) -> None:
    if use == "check":
        accumulator.check(data)
    else:
        accumulator.add(data)


# --- Sums -------------------------------------------------------------------------------------------------------------


@st.composite
def cohorts(draw: st.DrawFn) -> tuple[IndexSegment, list[Client]]:
    segment = IndexSegment(draw(st.integers(2, 70)), draw(st.integers(1, 40)))
    index = st.integers(0, segment.codewords - 1)
    indices = st.lists(index, min_size=segment.blocks, max_size=segment.blocks)
    return segment, draw(st.lists(indices, min_size=1, max_size=6))


@given(cohorts(), st.sampled_from([8, 16, 1 << 16]), st.sampled_from([1, 20, 1 << 18]))
@example((IndexSegment(2, 1), [[1]]), 8, 1)
def test_both_forms_give_the_ideal_histogram(
    cohort: tuple[IndexSegment, list[Client]], blocks: int, scratch: int
) -> None:
    segment, clients = cohort
    expected = ideal(segment, clients)
    with small_chunks(blocks, scratch):
        for form in Accumulation:
            result = accumulated(segment, clients, form).histogram(0, segment.blocks)
            assert result.dtype == np.uint64
            assert np.array_equal(result, expected)


@FORMS
@pytest.mark.parametrize("codewords", CODEWORDS)
def test_every_number_of_codewords_counts(form: Accumulation, codewords: int) -> None:
    segment = IndexSegment(codewords, 21)
    clients = [patterned(segment, step) for step in (5, 5, 11, codewords - 1)]
    assert np.array_equal(accumulated(segment, clients, form).histogram(0, 21), ideal(segment, clients))


@FORMS
@pytest.mark.parametrize("codewords", [3, 16])
def test_chunks_of_the_real_size_meet_without_a_gap(form: Accumulation, codewords: int) -> None:
    segment = IndexSegment(codewords, TWO_CHUNKS)
    clients = [patterned(segment, 5), patterned(segment, 7)]
    result = accumulated(segment, clients, form).histogram(0, segment.blocks)
    assert np.array_equal(result, ideal(segment, clients))


@FORMS
def test_any_range_of_blocks_is_a_part_of_the_whole(form: Accumulation) -> None:
    segment = IndexSegment(7, 37)
    with small_chunks(8, 20):
        accumulator = accumulated(segment, [patterned(segment, 3), patterned(segment, 5)], form)
        whole = accumulator.histogram(0, 37)
        for start in range(38):
            for stop in range(start, 38):
                assert np.array_equal(accumulator.histogram(start, stop), whole[start:stop])


# --- The width of a counter, and the limit ----------------------------------------------------------------------------


@FORMS
@pytest.mark.parametrize(
    ("maximum", "word_bytes"),
    [(1, 1), (255, 1), (256, 2), (65535, 2), (65536, 4), (2**32 - 1, 4), (2**32, 8), (2**64 - 1, 8)],
)
def test_counters_are_the_smallest_word_and_hold_the_limit(form: Accumulation, maximum: int, word_bytes: int) -> None:
    segment = IndexSegment(3, 5)
    data = packed(segment, [0, 1, 2, 1, 2])
    accumulator = HistogramAccumulator(segment, maximum, form)
    assert counters_of(accumulator).dtype.itemsize == word_bytes
    # As if all clients but one had been counted.
    vars(module.HistogramAccumulator)["_clients"].__set__(accumulator, maximum - 1)
    counters_of(accumulator).reshape((5, 3) if form is Accumulation.DIRECT else (3, 5))[
        (range(5), [0, 1, 2, 1, 2]) if form is Accumulation.DIRECT else ([0, 1, 2, 1, 2], range(5))
    ] = maximum - 1
    accumulator.add(data)
    with pytest.raises(CapacityExceeded) as refused:
        accumulator.add(data)
    assert refused.value.reason is Reason.CAPACITY_EXCEEDED
    assert accumulator.histogram(0, 5).tolist() == [
        [maximum if index == chosen else 0 for index in range(3)] for chosen in (0, 1, 2, 1, 2)
    ]


# --- What is refused --------------------------------------------------------------------------------------------------


@FORMS
@pytest.mark.parametrize("use", ["check", "add"])
@pytest.mark.parametrize(
    ("missing", "added", "padding", "reason"),
    [
        (1, 0, 0, Reason.TRUNCATED),
        (7, 0, 0, Reason.TRUNCATED),
        (0, 1, 0, Reason.TRAILING_BYTES),
        (0, 0, 0x80, Reason.NOT_CANONICAL),
        (0, 0, 0x08, Reason.NOT_CANONICAL),
    ],
)
def test_bytes_that_are_not_one_vector_of_indices_change_nothing(  # noqa: PLR0913, PLR0917 -- one for each fault
    form: Accumulation, use: str, missing: int, added: int, padding: int, reason: Reason
) -> None:
    # 17 indices of 3 bits leave 5 bits of the last byte to be zero, and are three chunks.
    segment = IndexSegment(8, 17)
    spoilt = bytearray(packed(segment, patterned(segment, 3)))
    spoilt[-1] |= padding
    spoilt = spoilt[: len(spoilt) - missing] + bytes(added)
    with small_chunks(8, 20):
        accumulator = HistogramAccumulator(segment, 2, form)
        accumulator.add(packed(segment, patterned(segment, 5)))
        before = accumulator.histogram(0, 17)
        with pytest.raises(MalformedMessage) as refused:
            attempt(accumulator, use, memoryview(spoilt))
        assert refused.value.reason is reason
        assert refused.value.culprits == frozenset()
        assert np.array_equal(accumulator.histogram(0, 17), before)


@FORMS
@pytest.mark.parametrize("use", ["check", "add"])
@pytest.mark.parametrize("codewords", [3, 255, 257])
@pytest.mark.parametrize("block", [0, 9, 16])
def test_an_index_of_no_codeword_changes_nothing(form: Accumulation, use: str, codewords: int, block: int) -> None:
    segment = IndexSegment(codewords, 17)
    indices = patterned(segment, 3)
    indices[block] = codewords
    with small_chunks(8, 20):
        accumulator = HistogramAccumulator(segment, 1, form)
        with pytest.raises(MalformedMessage) as refused:
            attempt(accumulator, use, packed(segment, indices))
        assert refused.value.reason is Reason.INPUT_OUT_OF_RANGE
        assert refused.value.culprits == frozenset()
        assert not accumulator.histogram(0, 17).any()
        # Its place is not used up either.
        accumulator.add(packed(segment, patterned(segment, 3)))


@FORMS
def test_a_check_counts_nothing(form: Accumulation) -> None:
    segment = IndexSegment(8, 17)
    accumulator = HistogramAccumulator(segment, 1, form)
    accumulator.check(packed(segment, patterned(segment, 3)))
    assert not accumulator.histogram(0, 17).any()


FOUR = IndexSegment(4, 3)


def made(segment: Any = FOUR, maximum: Any = 1, form: Any = Accumulation.DIRECT) -> Any:
    return HistogramAccumulator(segment, maximum, form)


RANGES = ((-1, 2), (0, 4), (2, 1), (4, 4), (0.0, 1), (0, True), (None, None), (0, np.int64(1)))
MISUSES: list[Callable[[], object]] = [
    *(partial(made().histogram, start, stop) for start, stop in RANGES),
    partial(made, Ring(4)),
    partial(made, form=1),
    *(
        partial(made(IndexSegment(256, 4)).check, view)
        for view in (memoryview(bytes(8))[::2], memoryview(bytes(4)).cast("H"))
    ),
]


@pytest.mark.parametrize("misuse", MISUSES)
def test_a_call_out_of_range_or_of_another_type_is_refused(misuse: Callable[[], object]) -> None:
    with pytest.raises((Misuse, InvalidParameters)):
        misuse()


@pytest.mark.parametrize("maximum", [0, -1, 2**64, 1.0, True, None])
def test_a_cohort_that_no_counter_holds_is_refused(maximum: Any) -> None:
    with pytest.raises(InvalidParameters, match=r"maximum_cohort must be between 1 and 2\^64 - 1; got "):
        made(maximum=maximum)


# --- Secrets ----------------------------------------------------------------------------------------------------------


@FORMS
def test_a_wiped_histogram_is_zeros_and_refuses_every_use(form: Accumulation) -> None:
    segment = IndexSegment(4, 3)
    accumulator = accumulated(segment, [[1, 2, 3]], form)
    memory = counters_of(accumulator)
    assert memory.any()
    accumulator.wipe()
    assert not memory.any()
    data = packed(segment, [0, 0, 0])
    for use in (lambda: accumulator.add(data), lambda: accumulator.check(data), lambda: accumulator.histogram(0, 3)):
        with pytest.raises(Misuse) as refused:
            use()
        assert refused.value.reason is Reason.ALREADY_SPENT
    accumulator.wipe()


@FORMS
def test_an_addition_that_breaks_off_leaves_no_part_of_a_client(
    form: Accumulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment, kernel = IndexSegment(4, 20), "add_at" if form is Accumulation.DIRECT else "add_hits_into"
    original, calls = getattr(module, kernel), list[int]()

    def breaks_off_in_the_second_chunk(*operands: Any) -> None:
        calls.append(len(calls))
        if len(calls) == 3:
            raise KeyboardInterrupt
        original(*operands)

    with small_chunks(8, 1 << 18):
        accumulator = HistogramAccumulator(segment, 9, form)
        memory = counters_of(accumulator)
        lent = lent_arrays(monkeypatch)
        monkeypatch.setattr(module, kernel, breaks_off_in_the_second_chunk)
        with pytest.raises(KeyboardInterrupt) as broken:
            accumulator.add(packed(segment, patterned(segment, 3)))
    # While the traceback still holds every frame.
    assert broken.tb is not None
    assert len(calls) == 3
    assert not memory.any()
    assert not any(array.any() for array in lent)
    with pytest.raises(Misuse):
        accumulator.histogram(0, 20)


@FORMS
def test_whatever_held_indices_is_overwritten(form: Accumulation, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = IndexSegment(6, 20)
    wrong = patterned(segment, 3)
    wrong[-1] = 7
    accumulator = HistogramAccumulator(segment, 9, form)
    lent = lent_arrays(monkeypatch)
    accumulator.add(packed(segment, patterned(segment, 3)))
    counted = len(lent)
    accumulator.check(packed(segment, patterned(segment, 5)))
    with pytest.raises(MalformedMessage):
        accumulator.add(packed(segment, wrong))
    # Twice the indices and the greatest of them, and the places of the counters or the hits.
    assert counted == 4
    assert len(lent) == counted + 4
    assert not any(array.any() for array in lent)


def lent_arrays(monkeypatch: pytest.MonkeyPatch) -> list[npt.NDArray[Any]]:
    """Keep hold of every array that is made on the way, but for the numbers of the codewords, which are public."""
    lent = list[npt.NDArray[Any]]()

    def kept(make: Callable[..., npt.NDArray[Any]]) -> Callable[..., npt.NDArray[Any]]:
        def making(*arguments: Any, **options: Any) -> npt.NDArray[Any]:
            made = make(*arguments, **options)
            if len(arguments) != 1 or make is not np.arange:
                lent.append(made)
            return made

        return making

    monkeypatch.setattr(Ring, "unpack", kept(Ring.unpack))
    monkeypatch.setattr(Ring, "zeros", kept(Ring.zeros))
    monkeypatch.setattr(module, "np", NumpyWith(empty=kept(np.empty), arange=kept(np.arange)))
    return lent


class NumpyWith:
    """What the module calls numpy, with some functions replaced."""

    def __init__(self, **replaced: Callable[..., Any]) -> None:
        self._replaced = replaced

    def __getattr__(self, name: str) -> Any:
        return self._replaced.get(name) or getattr(np, name)
