"""The laws of sums: linearity, equal clients, capacity and round-trip error."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from secagg.conformance.candidate import (
    Candidate,
    Decoder,
    InsecureCountedCoins,
    Trial,
    Update,
    aggregate,
    decode,
    decode_alone,
    draw_seed,
    encode,
    leaves,
    require_identical,
    require_refused,
    require_sum,
    require_within,
    searched,
)
from secagg.contract import (
    MAXIMUM_CONTRIBUTORS,
    Aggregate,
    IndexedDecoder,
    IndexSegment,
    Layout,
    LinearDecoder,
    Payload,
    RingSegment,
)
from secagg.contract.codewords import Tables, require_tables, sum_of_codewords, summed_layout
from secagg.contract.decoder import has_fine_bits, rounded_payload, unbiased_aggregate
from secagg.crypto.ring import MAXIMUM_MODULUS_BITS, Ring, RingVector
from secagg.errors import CapacityExceeded, ContractViolation, InvalidParameters, Misuse, SecAggError

# --- Sums of payloads -------------------------------------------------------------------------------------------------

MOST_CLIENTS: Final = 5
MOST_ALIKE: Final = 40


@searched
def linearity(trial: Trial, data: st.DataObject) -> None:
    """Compare the decoded sum of several clients with the sum of their decoded payloads."""
    decoder = trial.candidate.make()
    most = min(decoder.capacity, MOST_CLIENTS)
    payloads = [encode(decoder, update, draw_seed(data)) for update in trial.clients(data, most)]
    together = decode(decoder, aggregate(decoder, payloads))
    alone = [decode_alone(decoder, payload) for payload in payloads]
    require_sum(together, alone, [1] * len(alone), trial.candidate.ulps)


@searched
def alike(trial: Trial, data: st.DataObject) -> None:
    """Compare the decoded sum of many equal clients with the multiple of one decoded client."""
    decoder = trial.candidate.make()
    updates = trial.clients(data, most=3)
    most = min(decoder.capacity // len(updates), MOST_ALIKE)
    counts = [data.draw(st.integers(1, most), label="clients") for _ in updates]
    payloads = [encode(decoder, update, draw_seed(data)) for update in updates]
    together = decode(decoder, aggregate(decoder, payloads, counts))
    alone = [decode_alone(decoder, payload) for payload in payloads]
    require_sum(together, alone, counts, trial.candidate.ulps)


def capacity(trial: Trial) -> None:
    """Fill the capacity with each extreme and a drawn update, then add one more."""
    candidate = trial.candidate
    decoder = candidate.make()
    if type(decoder.capacity) is not int:
        raise ContractViolation(f"the capacity must be an integer; got {decoder.capacity!r}")
    for update in candidate.extremes:
        _fill(candidate, decoder, encode(decoder, update))
    _require_telling_extremes(candidate, decoder)

    def holds(data: st.DataObject) -> None:
        decoder = candidate.make()
        _fill(candidate, decoder, encode(decoder, trial.update(data), draw_seed(data)))

    trial.search(holds, "capacity")


@searched
def round_trip(trial: Trial, data: st.DataObject) -> None:
    """Compare one decoded update with the expected one; extremes may be clipped and are not used."""
    candidate = trial.candidate
    decoder = candidate.make()
    update = trial.update(data)
    decoded = decode_alone(decoder, encode(decoder, update, draw_seed(data)))
    error = candidate.error(update) if callable(candidate.error) else candidate.error
    require_within(decoded, candidate.expected(update), error, candidate.ulps)


def _fill(candidate: Candidate, decoder: Decoder, payload: Payload) -> None:
    full = min(decoder.capacity, MAXIMUM_CONTRIBUTORS)
    filled = decode(decoder, aggregate(decoder, [payload], [full]))
    require_sum(filled, [decode_alone(decoder, payload)], [full], candidate.ulps)
    # An aggregate has at most the maximum number of contributors; the contract refuses more.
    if full < MAXIMUM_CONTRIBUTORS:
        over = aggregate(decoder, [payload], [full + 1])
        what = f"one more than the capacity of {decoder.capacity}"
        require_refused(what, decoder.decode, over, by=(CapacityExceeded,), done="decoded")


def _require_telling_extremes(candidate: Candidate, decoder: Decoder) -> None:
    """Require that one client more than the capacity overflows a ring; otherwise filling it tests nothing."""
    if all(isinstance(segment, IndexSegment) for segment in decoder.layout.segments):
        return
    if not candidate.extremes:
        raise InvalidParameters(f"{candidate} has rings: give updates that reach both ends of its codes in `extremes`")
    payloads = [encode(decoder, update) for update in candidate.extremes]
    if candidate.tight_capacity and decoder.capacity < MAXIMUM_CONTRIBUTORS and not _leaves_a_ring(decoder, payloads):
        raise ContractViolation(
            f"one client above the capacity of {decoder.capacity} overflows no ring, with all at any extreme: the "
            "capacity is too low, or the extremes do not reach the ends of the codes (or declare tight_capacity=False)"
        )


def _leaves_a_ring(decoder: Decoder, payloads: Sequence[Payload]) -> bool:
    return any(
        not segment.ring.least <= (decoder.capacity + 1) * end <= segment.ring.greatest
        for payload in payloads
        for segment, vector in zip(decoder.layout.segments, payload.values, strict=True)
        if not isinstance(segment, IndexSegment)
        for end in _ends(segment, vector)
    )


def _ends(segment: RingSegment, vector: RingVector) -> tuple[int, int]:
    """Return the minimum and maximum code of a payload, with the possible rounding errors."""
    codes = segment.ring.lift(vector)
    return int(codes.min()) - segment.head_room, int(codes.max()) + segment.head_room


# --- Decoded sums -----------------------------------------------------------------------------------------------------

_GREATEST_SUM: Final = Ring(MAXIMUM_MODULUS_BITS).greatest
_SEEDS: Final = st.binary(min_size=1, max_size=4)


def summed_aggregate(total: Aggregate, tables: Tables, most_uploads: int) -> Aggregate:
    """Return sums of codewords instead of the histograms of an aggregate: the reference for protocols in tests."""
    layout = summed_layout(total.layout, tables, most_uploads)
    vectors = _summed_values(total, tables)
    # A plain segment is already in its ring, and a sum of codewords is an integer that fits its ring.
    values = tuple(
        vector if vector.dtype.kind == "u" else segment.ring.from_integers(vector)
        for segment, vector in zip(layout.require_rings(), vectors, strict=True)
    )
    return Aggregate(layout, values, total.contributors)


def decoded_sums(trial: Trial) -> None:
    """Decode one total from histograms and from sums of codewords, then tamper with the latter in several ways."""
    candidate = trial.candidate
    # A scheme without both is still a linear decoder.
    if not any(hasattr(type(candidate.make()), member) for member in ("tables", "decode_summed")):
        return
    first, second = (_tables(cast("IndexedDecoder[Any]", candidate.make())) for _ in range(2))
    if _encoded(first) != _encoded(second):
        raise ContractViolation("two objects with the same public parameters have different tables")

    def holds(data: st.DataObject) -> None:
        decoder = cast("IndexedDecoder[Any]", candidate.make())
        tables = _tables(decoder)
        # Sums of large entries overflow all rings long before histograms overflow their counters.
        held = min(
            [MAXIMUM_CONTRIBUTORS, *(_GREATEST_SUM // max(1, table.largest) for some in tables for table in some)]
        )
        capacity = min(decoder.capacity, held)
        updates = trial.clients(data, min(capacity, MOST_CLIENTS))
        payloads = [
            with_any_indices(encode(decoder, update, draw_seed(data)), data.draw(_SEEDS, label="indices"))
            for update in updates
        ]
        most = st.integers(1, capacity // len(payloads))
        times = [data.draw(most, label="clients") for _ in payloads]
        largest = data.draw(st.integers(sum(times), capacity), label="most_uploads")
        total = aggregate(decoder, payloads, times)
        summed = summed_aggregate(total, tables, largest)
        received = summed.encode()
        together = _decode_summed(decoder, summed)
        require_identical(together, decode(decoder, total), "the results of decoding sums of codewords and histograms")
        if summed.encode() != received:
            raise ContractViolation("decode_summed changes the aggregate")
        each = [aggregate(decoder, [payload]) for payload in payloads]
        alone = [_decode_summed(decoder, summed_aggregate(one, tables, 1)) for one in each]
        require_sum(together, alone, times, candidate.ulps)
        full = aggregate(decoder, payloads[:1], [capacity])
        filled = _decode_summed(decoder, summed_aggregate(full, tables, capacity))
        require_sum(filled, alone[:1], [capacity], candidate.ulps)
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
            f"decode_summed refuses an aggregate of {summed.contributors} contributors, capacity {decoder.capacity}: "
            f"{error!r}"
        ) from error


def _spoiled(total: Aggregate, tables: Tables, largest: int) -> Iterator[tuple[str, Aggregate, type[SecAggError]]]:
    summed = summed_aggregate(total, tables, largest)
    other = bytes(byte ^ 255 for byte in summed.layout.version)
    yield "sums of another version", replace(summed, layout=Layout(summed.layout.segments, other)), Misuse
    unlabelled = Layout(summed.layout.segments, total.layout.version)
    yield "sums that are labelled as histograms", replace(summed, layout=unlabelled), Misuse
    if tables:
        yield "an aggregate of histograms", total, Misuse


# --- Norms ------------------------------------------------------------------------------------------------------------


def largest_norm(trial: Trial) -> None:
    """Decode honest payloads, then arbitrary indices; skipped for a scheme without a bound."""
    candidate = trial.candidate
    if not hasattr(candidate.make(), "largest_norm"):
        return
    bound, other = _bound(candidate.make()), _bound(candidate.make())
    if bound != other:
        raise ContractViolation(f"two objects with the same public parameters bound norms by {bound} and by {other}")
    allowed = bound * (1 + candidate.ulps * float(np.finfo(np.float32).eps))

    def require(decoder: Decoder, payload: Payload, what: str) -> None:
        found = norm(decode_alone(decoder, payload))
        if not found <= allowed:
            raise ContractViolation(f"{what} decodes to a norm of {found}, but largest_norm is {bound}")

    for update in candidate.extremes:
        require(candidate.make(), encode(candidate.make(), update), "an extreme update")
    worst = _longest_codewords(candidate.make())
    if worst is not None:
        require(candidate.make(), worst, "the longest codeword of every block")

    def holds(data: st.DataObject) -> None:
        decoder = candidate.make()
        payload = encode(decoder, trial.update(data), draw_seed(data))
        require(decoder, payload, "an update")
        seed = data.draw(st.binary(min_size=1, max_size=4), label="indices")
        require(decoder, with_any_indices(payload, seed), "a client that chooses any codewords")

    trial.search(holds, "largest_norm")


def slack(decoder: LinearDecoder[Any], payloads: Sequence[Payload]) -> float:
    """Return the ratio of the largest norm to the root mean square norm of honest clients.

    Above about 1.1, a check of norms in addition to one codeword per block would limit a dishonest client further.
    """
    if not hasattr(decoder, "largest_norm") or not payloads:
        raise InvalidParameters("slack needs a scheme with largest_norm, and honest payloads")
    squares = [norm(decode_alone(decoder, payload)) ** 2 for payload in payloads]
    return _bound(decoder) / math.sqrt(sum(squares) / len(squares))


def norm(update: Update) -> float:
    """Return the norm of an update, over all its arrays."""
    return math.sqrt(sum(float(np.square(leaf, dtype=np.float64).sum()) for leaf in leaves(update).values()))


def with_any_indices(payload: Payload, seed: bytes) -> Payload:
    """Return the payload with newly drawn indices, because few updates choose every codeword for every block."""
    values = list(payload.values)
    for position, segment in enumerate(payload.layout.segments):
        if isinstance(segment, IndexSegment):
            drawn = hashlib.shake_256(seed + bytes([position % 256])).digest(4 * segment.blocks)
            values[position] = (np.frombuffer(drawn, dtype="<u4") % segment.codewords).astype(segment.ring.word)
    return Payload(payload.layout, tuple(values))


def _bound(decoder: Any) -> float:  # noqa: ANN401 -- any value of a scheme
    bound = decoder.largest_norm
    if type(bound) is not float or not 0 < bound < math.inf:
        raise ContractViolation(f"largest_norm must be a positive float; got {bound!r}")
    return bound


def _longest_codewords(decoder: Any) -> Payload | None:  # noqa: ANN401 -- a decoder that may have tables
    """Return the payload of a client that always chooses the longest codeword, if all segments have tables."""
    segments, kind = decoder.layout.segments, cast("type[object]", type(decoder))
    if not hasattr(kind, "tables") or not all(isinstance(segment, IndexSegment) for segment in segments):
        return None
    values = list[Any]()
    for segment, tables in zip(segments, decoder.tables, strict=True):
        longest = [
            np.full(table.blocks, np.einsum("jd,jd->j", table.entries, table.entries).argmax()) for table in tables
        ]
        values.append(np.concatenate(longest).astype(segment.ring.word))
    return Payload(decoder.layout, tuple(values))


# --- Rounding ---------------------------------------------------------------------------------------------------------

PAIRS: Final = 256
"""Number of pairs of roundings of one update; a pair is unbiased, while one has a bias of half a fine step."""
DEVIATIONS: Final = 6
"""Tolerated deviation of a mean or energy from its expectation. Coins are fixed, so the outcome is deterministic.
"""
_NEARLY: Final = 1e-2
_Flat = npt.NDArray[np.float64]


def masked_rounding(trial: Trial) -> None:
    """Round at the capacity, and many times for each extreme; skipped without fine bits."""
    candidate = trial.candidate
    if not any(map(has_fine_bits, candidate.make().layout.segments)):
        return

    def require_room(decoder: Decoder, payload: Payload) -> None:
        full = min(decoder.capacity, MAXIMUM_CONTRIBUTORS)
        for sign in (1, -1):
            moved = _moved(payload, sign)
            filled = decode(decoder, aggregate(decoder, [moved], [full]))
            require_sum(filled, [decode_alone(decoder, moved)], [full], candidate.ulps)

    for update in candidate.extremes:
        payload = encode(candidate.make(), update)
        require_room(candidate.make(), payload)
        _require_dither(candidate.make(), payload)

    def holds(data: st.DataObject) -> None:
        decoder = candidate.make()
        require_room(decoder, encode(decoder, trial.update(data), draw_seed(data)))

    trial.search(holds, "masked_rounding")


def _require_dither(decoder: Decoder, payload: Payload) -> None:
    """Require that decoded rounding errors have mean zero and the energy of uniform errors."""
    plain = _flat(decode(decoder, aggregate(decoder, [payload, payload])))
    due = 2 * _energy_of_one(decoder, payload, plain)
    coins, errors = InsecureCountedCoins(b"masked rounding"), list[_Flat]()
    for _ in range(PAIRS):
        pair = [rounded_payload(payload, coins) for _ in range(2)]
        errors.append(_flat(decode(decoder, unbiased_aggregate(aggregate(decoder, pair)))) - plain)
    mean = float(np.square(np.sum(errors, axis=0)).sum())
    if mean > DEVIATIONS**2 * PAIRS * due:
        raise ContractViolation(f"the mean rounding error is {(mean / PAIRS**2 / due) ** 0.5:.3f} standard deviations")
    energy = float(np.square(errors).sum()) / PAIRS
    if not abs(energy / due - 1) < DEVIATIONS / PAIRS**0.5:
        raise ContractViolation(
            f"the decoded energy of rounding errors is {energy / due:.3f} times that of uniform errors of one step"
        )


def _energy_of_one(decoder: Decoder, payload: Payload, plain: _Flat) -> float:
    """Return the decoded energy of one client's rounding errors: 1/12 of the squares of decoded single steps."""
    energy = 0.0
    for at, segment in enumerate(payload.layout.segments):
        if not isinstance(segment, RingSegment) or not segment.fine_bits:
            continue
        for place in range(segment.length):
            by_step, by_fine_step = (
                _flat(decode(decoder, aggregate(decoder, [payload, _moved_at(payload, at, place, fine_steps)]))) - plain
                for fine_steps in (1 << segment.fine_bits, 1)
            )
            if np.abs(by_fine_step * (1 << segment.fine_bits) - by_step).max() > _NEARLY * np.abs(by_step).max():
                raise ContractViolation(
                    f"a fine step of coordinate {place} does not decode to 2^-{segment.fine_bits} of a step"
                )
            energy += float(np.square(by_step).sum()) * (1 - 4.0**-segment.fine_bits) / 12
    return energy


def _moved(payload: Payload, sign: int) -> Payload:
    """Return a payload with every rounded value moved by the maximum rounding error."""
    values = list(payload.values)
    for at, segment in enumerate(payload.layout.segments):
        if isinstance(segment, RingSegment) and segment.fine_bits:
            step = np.full(segment.length, sign * segment.head_room % (1 << segment.ring.modulus_bits), np.uint64)
            values[at] = segment.ring.add(values[at], step.astype(segment.ring.word))
    return Payload(payload.layout, tuple(values))


def _moved_at(payload: Payload, at: int, place: int, fine_steps: int) -> Payload:
    """Return a payload with one value moved towards zero, so it stays in its range."""
    segment = payload.layout.segments[at]
    values = list(payload.values)
    moved = values[at].copy()
    step = np.zeros_like(moved)
    step[place] = fine_steps
    is_negative = segment.ring.lift(moved)[place] < 0
    values[at] = segment.ring.add(moved, step) if is_negative else segment.ring.subtract(moved, step)
    return Payload(payload.layout, tuple(values))


def _flat(update: Update) -> _Flat:
    return np.concatenate([leaf.reshape(-1).astype(np.float64) for leaf in leaves(update).values()])
