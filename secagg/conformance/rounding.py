"""The law of masked rounding: a scheme with fine bits decodes what a protocol's rounding leaves, without a bias."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from secagg.contract import MAXIMUM_WEIGHT, Payload, RingSegment
from secagg.contract.rounding import has_fine_bits, rounded_payload, unbiased_aggregate
from secagg.errors import ContractViolation

from .candidate import Update
from .coins import InsecureCountedCoins
from .trees import leaves, require_weighted_sum
from .trial import Decoder, Trial, aggregate, decode, decode_alone, draw_seed, encode

PAIRS: Final = 256
"""Of roundings of one update; together two of them have no bias, and one has half a fine step."""
DEVIATIONS: Final = 6
"""How far a mean or an energy may lie from what is due. The coins repeat, so a scheme passes or fails for good."""
_NEARLY: Final = 1e-2
_Flat = npt.NDArray[np.float64]


def masked_rounding(trial: Trial) -> None:
    """Round at the capacity, and many times over for each extreme; without fine bits nothing is rounded."""
    candidate = trial.candidate
    if not any(map(has_fine_bits, candidate.make().layout.segments)):
        return

    def require_room(decoder: Decoder, payload: Payload) -> None:
        full = min(decoder.capacity, MAXIMUM_WEIGHT)
        for sign in (1, -1):
            moved = _moved(payload, sign)
            filled = decode(decoder, aggregate(decoder, [moved], [full]))
            require_weighted_sum(filled, [decode_alone(decoder, moved)], [full], candidate.ulps)

    for update in candidate.extremes:
        payload = encode(candidate.make(), update)
        require_room(candidate.make(), payload)
        _require_dither(candidate.make(), payload)

    def holds(data: st.DataObject) -> None:
        decoder = candidate.make()
        require_room(decoder, encode(decoder, trial.update(data), draw_seed(data)))

    trial.search(holds, "masked_rounding")


def _require_dither(decoder: Decoder, payload: Payload) -> None:
    """Demand that decoded errors of rounding have the mean zero, and the energy of uniform ones."""
    plain = _flat(decode(decoder, aggregate(decoder, [payload, payload])))
    due = 2 * _energy_of_one(decoder, payload, plain)
    coins, errors = InsecureCountedCoins(b"masked rounding"), list[_Flat]()
    for _ in range(PAIRS):
        pair = [rounded_payload(payload, coins) for _ in range(2)]
        errors.append(_flat(decode(decoder, unbiased_aggregate(aggregate(decoder, pair)))) - plain)
    mean = float(np.square(np.sum(errors, axis=0)).sum())
    if mean > DEVIATIONS**2 * PAIRS * due:
        raise ContractViolation(f"the mean error of rounding is {(mean / PAIRS**2 / due) ** 0.5:.3f} deviations of one")
    energy = float(np.square(errors).sum()) / PAIRS
    if not abs(energy / due - 1) < DEVIATIONS / PAIRS**0.5:
        raise ContractViolation(
            f"rounding leaves {energy / due:.3f} times the energy that uniform errors of a step leave, decoded"
        )


def _energy_of_one(decoder: Decoder, payload: Payload, plain: _Flat) -> float:
    """Return what one client's roundings leave, decoded: 1/12 of the squares of what single steps decode to."""
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
                    f"a fine step of coordinate {place} decodes to something else than 2^-{segment.fine_bits} of a step"
                )
            energy += float(np.square(by_step).sum()) * (1 - 4.0**-segment.fine_bits) / 12
    return energy


def _moved(payload: Payload, sign: int) -> Payload:
    """Return a payload with every value that is rounded moved as far as rounding can."""
    values = list(payload.values)
    for at, segment in enumerate(payload.layout.segments):
        if isinstance(segment, RingSegment) and segment.fine_bits:
            step = np.full(segment.length, sign * segment.head_room % (1 << segment.ring.modulus_bits), np.uint64)
            values[at] = segment.ring.add(values[at], step.astype(segment.ring.word))
    return Payload(payload.layout, tuple(values))


def _moved_at(payload: Payload, at: int, place: int, fine_steps: int) -> Payload:
    """Return a payload with one value moved towards zero, so that it stays in its range."""
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
