"""The laws of sums: linearity, weights, capacity and the error of a round trip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hypothesis import strategies as st

from secagg.contract import MAXIMUM_WEIGHT, IndexSegment, Payload, RingSegment
from secagg.crypto.ring import RingVector
from secagg.errors import CapacityExceeded, ContractViolation, InvalidParameters

from .candidate import Candidate
from .refusals import require_refused
from .trees import require_identical, require_weighted_sum, require_within
from .trial import Decoder, Trial, aggregate, decode, decode_alone, draw_seed, encode

MOST_CLIENTS: Final = 5
MOST_WEIGHT: Final = 40


def linearity(trial: Trial) -> None:
    """Compare the decoded sum of several clients with the sum of what they decode to."""

    def holds(data: st.DataObject) -> None:
        decoder = trial.candidate.make()
        most = min(decoder.capacity, MOST_CLIENTS)
        payloads = [encode(decoder, update, draw_seed(data)) for update in trial.clients(data, most)]
        together = decode(decoder, aggregate(decoder, payloads))
        alone = [decode_alone(decoder, payload) for payload in payloads]
        require_weighted_sum(together, alone, [1] * len(alone), trial.candidate.ulps)

    trial.search(holds, "linearity")


def weights(trial: Trial) -> None:
    """Compare a weighted sum with the sum of as many clients, and with the weighted sum of the decoded."""

    def holds(data: st.DataObject) -> None:
        decoder = trial.candidate.make()
        updates = trial.clients(data, most=3)
        most = min(decoder.capacity // len(updates), MOST_WEIGHT)
        counts = [data.draw(st.integers(1, most), label="weight") for _ in updates]
        payloads = [encode(decoder, update, draw_seed(data)) for update in updates]
        weighted = decode(decoder, aggregate(decoder, payloads, counts))
        clients = [payload for payload, count in zip(payloads, counts, strict=True) for _ in range(count)]
        repeated = decode(decoder, aggregate(decoder, clients))
        require_identical(weighted, repeated, "the decoded sum of weighted clients and of as many alike")
        alone = [decode_alone(decoder, payload) for payload in payloads]
        require_weighted_sum(weighted, alone, counts, trial.candidate.ulps)

    trial.search(holds, "weights")


def capacity(trial: Trial) -> None:
    """Fill the capacity with each extreme and with a drawn update, and then go one beyond."""
    candidate = trial.candidate
    decoder = candidate.make()
    if type(decoder.capacity) is not int:
        raise ContractViolation(f"the capacity is an integer; got {decoder.capacity!r}")
    for update in candidate.extremes:
        _fill(candidate, decoder, encode(decoder, update))
    _require_telling_extremes(candidate, decoder)

    def holds(data: st.DataObject) -> None:
        decoder = candidate.make()
        _fill(candidate, decoder, encode(decoder, trial.update(data), draw_seed(data)))

    trial.search(holds, "capacity")


def round_trip(trial: Trial) -> None:
    """Compare one decoded update with what is expected of it; extremes may be clipped and are no examples of it."""
    candidate = trial.candidate

    def holds(data: st.DataObject) -> None:
        decoder = candidate.make()
        update = trial.update(data)
        decoded = decode_alone(decoder, encode(decoder, update, draw_seed(data)))
        error = candidate.error(update) if callable(candidate.error) else candidate.error
        require_within(decoded, candidate.expected(update), error, candidate.ulps)

    trial.search(holds, "round_trip")


def _fill(candidate: Candidate, decoder: Decoder, payload: Payload) -> None:
    full = min(decoder.capacity, MAXIMUM_WEIGHT)
    filled = decode(decoder, aggregate(decoder, [payload], [full]))
    require_weighted_sum(filled, [decode_alone(decoder, payload)], [full], candidate.ulps)
    # No aggregate weighs more than the maximum; the contract itself refuses the next one.
    if full < MAXIMUM_WEIGHT:
        over = aggregate(decoder, [payload], [full + 1])
        what = f"one more than the capacity of {decoder.capacity}"
        require_refused(what, decoder.decode, over, by=(CapacityExceeded,), done="decoded")


def _require_telling_extremes(candidate: Candidate, decoder: Decoder) -> None:
    """Demand that the extremes would leave a ring at one more than the capacity: else filling it showed nothing."""
    if all(isinstance(segment, IndexSegment) for segment in decoder.layout.segments):
        return
    if not candidate.extremes:
        raise InvalidParameters(f"{candidate} has rings: name updates that reach both ends of its codes in `extremes`")
    payloads = [encode(decoder, update) for update in candidate.extremes]
    if candidate.tight_capacity and decoder.capacity < MAXIMUM_WEIGHT and not _leaves_a_ring(decoder, payloads):
        raise ContractViolation(
            f"one more than the capacity of {decoder.capacity} leaves no ring, with all at any of the extremes: the "
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
    """Return the least and the greatest code of a payload, with what rounding may add to them."""
    codes = segment.ring.lift(vector)
    return int(codes.min()) - segment.head_room, int(codes.max()) + segment.head_room
