"""The law of decoded sums: for schemes that decode sums of codewords, these say what the histograms say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, cast

from hypothesis import strategies as st

from secagg.contract import MAXIMUM_WEIGHT, Aggregate, IndexedDecoder, IndexSegment, Layout
from secagg.contract.codewords import Tables, require_tables, sum_of_codewords, summed_layout
from secagg.crypto.ring import MAXIMUM_MODULUS_BITS, Ring, RingVector
from secagg.errors import CapacityExceeded, ContractViolation, Misuse, SecAggError

from .candidate import Update
from .norms import with_any_indices
from .refusals import require_refused
from .sums import MOST_CLIENTS
from .trees import require_identical, require_weighted_sum
from .trial import Trial, aggregate, decode, draw_seed, encode

_GREATEST_SUM: Final = Ring(MAXIMUM_MODULUS_BITS).greatest
_SEEDS: Final = st.binary(min_size=1, max_size=4)


def summed_aggregate(total: Aggregate, tables: Tables, maximum_total_weight: int) -> Aggregate:
    """Return what a protocol must release instead of the histograms of an aggregate: sums of codewords.

    It is the reference that tests compare protocols with; it protects nobody.
    """
    layout = summed_layout(total.layout, tables, maximum_total_weight)
    vectors = _summed_values(total, tables)
    # A plain segment is of its ring already, and a sum of codewords is an integer that fits its own.
    values = tuple(
        vector if vector.dtype.kind == "u" else segment.ring.from_integers(vector)
        for segment, vector in zip(layout.require_rings(), vectors, strict=True)
    )
    return Aggregate(layout, values, total.contributors, total.total_weight)


def decoded_sums(trial: Trial) -> None:
    """Decode one total twice, from histograms and from sums of codewords, and spoil the latter in several ways."""
    candidate = trial.candidate
    # A scheme without either is a linear decoder all the same.
    if not any(hasattr(type(candidate.make()), member) for member in ("tables", "decode_summed")):
        return
    first, second = (_tables(cast("IndexedDecoder[Any]", candidate.make())) for _ in range(2))
    if _encoded(first) != _encoded(second):
        raise ContractViolation("two objects with the same public parameters have two tables")

    def holds(data: st.DataObject) -> None:
        decoder = cast("IndexedDecoder[Any]", candidate.make())
        tables = _tables(decoder)
        # Sums of large entries have no ring long before histograms have no counter.
        held = min([MAXIMUM_WEIGHT, *(_GREATEST_SUM // max(1, table.largest) for some in tables for table in some)])
        capacity = min(decoder.capacity, held)
        updates = trial.clients(data, min(capacity, MOST_CLIENTS))
        payloads = [
            with_any_indices(encode(decoder, update, draw_seed(data)), data.draw(_SEEDS, label="indices"))
            for update in updates
        ]
        most = st.integers(1, capacity // len(payloads))
        weights = [data.draw(most, label="weight") for _ in payloads]
        largest = data.draw(st.integers(sum(weights), capacity), label="maximum_total_weight")
        total = aggregate(decoder, payloads, weights)
        summed = summed_aggregate(total, tables, largest)
        received = summed.encode()
        together = _decode_summed(decoder, summed)
        require_identical(together, decode(decoder, total), "what is decoded from sums of codewords and of histograms")
        if summed.encode() != received:
            raise ContractViolation("decode_summed changes the aggregate")
        each = [aggregate(decoder, [payload]) for payload in payloads]
        alone = [_decode_summed(decoder, summed_aggregate(one, tables, 1)) for one in each]
        require_weighted_sum(together, alone, weights, candidate.ulps)
        full = aggregate(decoder, payloads[:1], [capacity])
        filled = _decode_summed(decoder, summed_aggregate(full, tables, capacity))
        require_weighted_sum(filled, alone[:1], [capacity], candidate.ulps)
        for name, spoiled, error in _spoiled(total, tables, largest):
            require_refused(name, decoder.decode_summed, spoiled, by=(error,), done="decoded by decode_summed")
        if capacity < held:
            over = aggregate(decoder, payloads[:1], [capacity + 1])
            spoiled = summed_aggregate(over, tables, capacity + 1)
            what = "one more than the capacity"
            require_refused(
                what, decoder.decode_summed, spoiled, by=(CapacityExceeded,), done="decoded by decode_summed"
            )

    trial.search(holds, "decoded_sums")


def _tables(decoder: IndexedDecoder[Any]) -> Tables:
    try:
        tables = decoder.tables
        require_tables(decoder.layout, tables)
    except Exception as error:
        raise ContractViolation(f"the tables do not fit the layout: {error!r}") from error
    return tables


def _encoded(tables: Tables) -> list[list[bytes]]:
    return [[table.encode() for table in some] for some in tables]


def _summed_values(total: Aggregate, tables: Tables) -> Iterator[RingVector | Any]:
    remaining = iter(tables)
    for segment, value in zip(total.layout.segments, total.values, strict=True):
        if not isinstance(segment, IndexSegment):
            yield value
            continue
        start = 0
        for table in next(remaining):
            yield sum_of_codewords(value[start : start + table.blocks], table)
            start += table.blocks


def _decode_summed(decoder: IndexedDecoder[Any], summed: Aggregate) -> Update:
    try:
        return decoder.decode_summed(summed)
    except Exception as error:
        raise ContractViolation(
            f"decode_summed refuses a total weight of {summed.total_weight}, capacity {decoder.capacity}: {error!r}"
        ) from error


def _spoiled(total: Aggregate, tables: Tables, largest: int) -> Iterator[tuple[str, Aggregate, type[SecAggError]]]:
    summed = summed_aggregate(total, tables, largest)
    other = bytes(byte ^ 255 for byte in summed.layout.version)
    yield "sums of another version", replace(summed, layout=Layout(summed.layout.segments, other)), Misuse
    unlabelled = Layout(summed.layout.segments, total.layout.version)
    yield "sums that are labelled as histograms", replace(summed, layout=unlabelled), Misuse
    if tables:
        yield "an aggregate of histograms", total, Misuse
