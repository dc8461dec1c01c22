"""Weights of updates, and the exact counts by which a weighted mean is divided.

A weight is examples / full, at most 1. A client multiplies its values by its weight before it rounds them at random,
and every upload counts once: rings hold uploads, not weights, and a weighted sum reveals about as much as one with
equal weights. If clients multiplied after rounding, a sum of coarse codes could have a single solution, even with
secret weights. The same holds for values with few levels, such as flags: these are rounded to their levels, not to
finer steps.

The denominators are exact integers in the same sum. Integers, metrics and the values behind scales have equal weights:
1 for a client that trained, 0 for one whose training failed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.compression.common import LOG
from secagg.compression.fixed_point import FixedPoint
from secagg.compression.scalar_quantization import ScalarQuantization
from secagg.contract.layout import IndexSegment, Layout
from secagg.crypto.entropy import Coins
from secagg.errors import InvalidParameters

UPDATE: Final = "secagg/update"
"""Name of the vector of all float tensors, joined in order."""
COUNTS: Final = "secagg/counts"
"""Name of the denominators: the examples, at most ``full``, and if needed 1 for having trained."""
_TOLD: Final = "secagg/"
"""Prefix of the names of values that clients report in addition to their update."""
LIGHTEST: Final = Fraction(1, 4)
"""Minimum weight of a client with any examples: among much heavier clients the low bits expose a light one."""
STEPS: Final = 16
"""Numbers of examples are rounded to this fraction of ``full``, as sums over many cohorts reveal exact numbers."""
_LEAST_RING: Final = 8
_OFTEN: Final = 32
"""Minimum number of a tensor's values in one step, or two neighbours, that count as a level."""
_MOST_LEVELS: Final = 256
_MOST_STEPS: Final = 1 << 52
_COARSER: Final = 16
_WIDEST: Final = 2.0**-6
"""Longest step in the search for levels, relative to the largest value; weights are multiples of 1/16."""
_LEAST_STEP: Final = 2.0**-20
"""Initial step, relative to the largest value, for a scheme without a known step."""
Floats = npt.NDArray[np.floating[Any]]


def count_scheme(full: int, clients: int, *, has_trained: bool = False, apart_from: Collection[int] = ()) -> FixedPoint:
    """Return the scheme of a sum's counts: the examples, and optionally the number of clients that trained.

    Args:
        apart_from: bits of other rings, so that counts have their own ring and bound.
    """
    bits = max(_LEAST_RING, (full * clients).bit_length() + 1)
    while bits in apart_from:
        bits += 1
    return FixedPoint(length=2 if has_trained and full > 1 else 1, clip=float(full), fraction_bits=0, modulus_bits=bits)


def count_bounds(counts: FixedPoint) -> tuple[int, int]:
    """Return the centre of a client's counts and the maximum norm around it, so that no client lowers the divisor.

    With only examples the bound leaves 0 to ``full``, and also -1 if ``full`` is odd.
    """
    full = round(counts.clip)
    middle = full // 2
    return middle, math.isqrt(counts.length * (full - middle) ** 2 - 1) + 1


def norms_with_counts(steps: int, layout: Layout, counts: FixedPoint | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the norms and zero points of each ring of an update; the first ring holds the tensors.

    Values other than counts are limited by their ring.
    """
    own = None if counts is None else counts.layout.require_rings()[0]
    middle, norm = (0, 0) if counts is None else count_bounds(counts)
    rest = [segment == own for segment in layout.require_rings()[1:]]
    zeros = (0, *(middle * is_counts for is_counts in rest))
    return (steps, *(norm * is_counts for is_counts in rest)), zeros if any(zeros) else ()


def clamped_examples(examples: float, full: int) -> int:
    """Return the number of examples clamped to a quarter of ``full`` .. ``full``, or 0."""
    if not examples > 0:  # NaN counts as 0 too.
        return 0
    return int(min(max(examples, math.ceil(full * LIGHTEST)), full))


def rounded_examples(examples: int, full: int, word: int) -> int:
    """Return a clamped number of examples in steps of a sixteenth of ``full``, at random and unbiased.

    Args:
        word: 32 random bits, equal whenever a client has the same data and task; otherwise the mean of many sums
        reveals the unrounded number.
    """
    place = min(examples * STEPS // full, STEPS - 1)
    low, high = full * place // STEPS, full * (place + 1) // STEPS
    return high if word * (high - low) < examples - low << 32 else low


def is_weighted(name: str, scheme: object) -> bool:
    """Whether a tensor's values are multiplied by the weight; counts and integers are not."""
    return not _is_told(name) and not (isinstance(scheme, FixedPoint) and not scheme.fraction_bits)


def _is_told(name: str) -> bool:
    return name.startswith(_TOLD) and name != UPDATE


def weighted(
    schemes: Mapping[str, Any], values: Mapping[str, npt.NDArray[Any]], examples: int, coins: Coins
) -> dict[str, npt.NDArray[Any]]:
    """Return a client's values times its weight, and its counts; without examples both are zeros.

    Args:
        schemes: those of the tensors, by name.
        examples: at most ``full``; see ``clamped_examples``.
    """
    if (counts := schemes.get(COUNTS)) is None:
        return dict(values)
    full, found, leveled = round(counts.clip), dict(values), dict[str, float]()
    for name, given in values.items():
        factor = examples / full if is_weighted(name, schemes[name]) else float(examples > 0)
        if factor != 1:
            found[name] = (given * factor).astype(given.dtype)
        if 0 < factor < 1:
            leveled[name] = _round_to_levels(found[name], given, factor, step_of(schemes[name]), coins)
    if coarse := [f"{'the update' if name == UPDATE else name} ({one:.3g})" for name, one in leveled.items() if one]:
        warn_once(
            LOG,
            f"few different values in {', '.join(coarse)}: times a weight below 1 they are rounded at random to "
            "multiples of their distance, since a weighted sum of finer ones can reveal each client's; equal weights "
            "do not add this noise",
        )
    found[COUNTS] = np.array([examples, examples > 0][: counts.length], dtype=np.float64)
    return found


@lru_cache(maxsize=256)
def warn_once(log: logging.Logger, sentence: str) -> None:
    """Log a warning, unless this process logged it recently for another round or simulated client."""
    log.warning("%s", sentence)


def step_of(scheme: object) -> float:
    """Return the distance between neighbouring codes; 0 if the scheme has no known one.

    Rotations and sketches mix levels, but decoding the sum undoes the mixture for all clients.
    """
    scheme = inmost(scheme)
    if isinstance(scheme, FixedPoint):
        return math.ldexp(1.0, -scheme.fraction_bits)
    return min(scheme.scales) if isinstance(scheme, ScalarQuantization) else 0.0


def inmost(scheme: object) -> object:
    """Return the innermost scheme: the one within a pruning, a rotation or a custom scheme."""
    while (inside := getattr(scheme, "inner", None) or getattr(scheme, "scheme", None)) is not None:
        scheme = inside
    return scheme


def _round_to_levels(products: Floats, given: Floats, factor: float, step: float, coins: Coins) -> float:
    """Round products of nearly equal values to multiples of the distance between their levels.

    The search for levels starts with long steps, because a server chooses a code's steps and values of one level differ
    by training's rounding errors. No value is rounded beyond its own size, because it would be clipped.

    Returns:
        The smallest distance; 0, without a change, if no levels are found: values are finely spread, or all equal.
    """
    limit = step * _MOST_STEPS or math.inf
    values = np.clip(np.nan_to_num(given.ravel().astype(np.float64)), -limit, limit)
    if not (reach := float(np.abs(values).max(initial=0.0))):
        return 0.0
    ordered, left, least = np.sort(values), np.ones(values.size, bool), math.inf
    step = step or _LEAST_STEP * reach
    for wider in range(int(math.log(max(1.0, _WIDEST * reach / step), _COARSER)), -1, -1):
        length = step * _COARSER**wider
        lows, highs, gaps = _levels(np.rint(ordered / length))
        if not len(lows):
            continue
        codes: Floats = np.rint(values / length)
        place = np.searchsorted(lows, codes, side="right") - 1
        at = np.flatnonzero(left & (place >= 0) & (codes <= highs[place]))
        size, gap, left[at] = np.abs(values[at]), gaps[place[at]] * length, False
        low = np.floor(size * factor / gap) * gap
        gap = np.minimum(gap, size - low)
        drawn = np.ldexp(np.frombuffer(coins.draw(4 * len(at)), np.uint32).astype(np.float64), -32)
        # An iterator, because non-contiguous arrays have no flat view.
        products.flat[at] = np.copysign(low + gap * (drawn * gap < size * factor - low), values[at])
        least = min(least, float(gaps.min()) * length)
    return least if least < math.inf else 0.0


def _levels(ordered: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the minimum and maximum code of each level except 0, and its distance to the next level or to 0."""
    # Neighbouring steps count as one level, whose values straddle them.
    first = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 2) > 1)
    last = np.append(first[1:], len(ordered)) - 1
    lows, highs = ordered[first], ordered[last]
    is_level = (highs - lows <= 1) & (last - first >= _OFTEN - 1) & ((lows > 0) | (highs < 0))
    if len(first) == 1 or np.count_nonzero(is_level) > _MOST_LEVELS:
        is_level[:] = False
    lows, highs = lows[is_level], highs[is_level]
    middle = (lows + highs) / 2
    zero = int(np.searchsorted(middle, 0.0))
    gaps = np.concatenate([[np.inf], np.diff(np.insert(middle, zero, 0.0)), [np.inf]])
    return lows, highs, np.delete(np.minimum(gaps[1:], gaps[:-1]), zero)


def require_weighable(schemes: Mapping[str, Any]) -> None:
    """Refuse weights if updates are indices or are rounded to nearest."""
    for name, scheme in schemes.items():
        if name != COUNTS and any(isinstance(segment, IndexSegment) for segment in scheme.layout.segments):
            raise InvalidParameters(
                f"{name} sends indices, which are votes that all count once: give all clients equal weights, or use a "
                "scheme without indices"
            )
        if getattr(getattr(inmost(scheme), "rounding", None), "name", "") == "NEAREST_EVEN":
            raise InvalidParameters(
                f"{name} rounds to the nearest code, which loses the updates of light clients; round at random"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The denominators of a sum."""

    contributors: int
    full: int = 1
    examples: int | None = None
    """Total of examples, each client's at most ``full``; where ``full`` is 1 the number of clients that trained."""
    trained: int | None = None
    """Number of clients that trained; None if the sum has no such count."""

    @property
    def is_empty(self) -> bool:
        """Whether no client trained, or a dishonest client made the counts useless as divisors."""
        counts = [count for count in (self.examples, self.trained) if count is not None]
        return min(counts, default=1) < 1

    @property
    def trained_at_least(self) -> int:
        """Number of clients that trained if the sum has it; otherwise the minimum for these examples."""
        found = self.trained
        if found is None:
            found = self.contributors if self.examples is None else -(-self.examples // self.full)
        return max(0, min(found, self.contributors))

    def divisor(self, name: str, scheme: Any) -> float:  # noqa: ANN401 -- of any kind
        """Return the divisor of a decoded sum; every client votes for a length."""
        if self.examples is not None and is_weighted(name, scheme):
            return self.examples / self.full
        is_vote = _is_told(name) and any(isinstance(one, IndexSegment) for one in scheme.layout.segments)
        return self.contributors if self.trained is None or is_vote else self.trained

    @property
    def sentence(self) -> str:
        """Sentence saying how many clients trained."""
        if self.trained is not None:
            trained = f"{self.trained} trained"
        elif self.examples is None:
            return "the number that trained is unknown"
        else:
            trained = f"at least {self.trained_at_least} trained"
        is_unweighted = self.examples is None or self.full == 1
        return trained if is_unweighted else f"{trained}, with {self.examples} examples in all"
