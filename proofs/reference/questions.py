"""A question to the reference, with the library's answer."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

EDGES_ONE_IN = 16


def as_given(line: str) -> str:
    """Compare the whole line."""
    return line


@dataclass(frozen=True, slots=True)
class Question:
    """Lines for the reference, and the expected answers: one for each input."""

    what: str
    asked: Sequence[str]
    due: Sequence[str]
    compared: Callable[[str], str] = field(default=as_given)
    """The part of an answer that the library gives too."""

    @property
    def text(self) -> str:
        """The lines in the format of the reference."""
        return "".join(f"{line}\n" for line in self.asked)


def listed(numbers: Iterable[int]) -> str:
    """Return numbers in the format of the reference."""
    return " ".join([f"{number:x}" for number in numbers])


def element(chance: random.Random, modulus: int) -> int:
    """Draw an element; edge values are drawn more often than by chance."""
    if not chance.randrange(EDGES_ONE_IN):
        return chance.choice((0, 1, modulus // 2, modulus - 1))
    return chance.randrange(modulus)


def values_at(coefficients: Sequence[int], points: Iterable[int], modulus: int) -> list[int]:
    """Evaluate a polynomial, lowest coefficient first."""
    found = list[int]()
    for point in points:
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * point + coefficient) % modulus
        found.append(value)
    return found


def received(chance: random.Random, points: Sequence[int], threshold: int, modulus: int) -> list[int]:
    """Return values of a polynomial with any number of errors: random, hardest to detect, or on another polynomial."""
    count, wrong = len(points), chance.randrange(len(points) - threshold + 2)
    first = [element(chance, modulus) for _ in range(threshold)]
    values = values_at(first, points, modulus)
    places, how = chance.sample(range(count), wrong), chance.randrange(3)
    if how == 0:
        others = values_at(_meeting(chance, first, points, modulus), points, modulus)
        return [others[place] if place in places else values[place] for place in range(count)]
    offsets = {place: chance.randrange(1, modulus) for place in places}
    if how == 1 and wrong > 1:
        # The first syndrome is then zero, as if there were no errors.
        scales = {place: _syndrome_scale(points, place, modulus) for place in places}
        *others_wrong, last = places
        due = -sum(offsets[place] * scales[place] for place in others_wrong)
        offsets[last] = due * pow(scales[last], -1, modulus) % modulus
    return [(value + offsets.get(place, 0)) % modulus for place, value in enumerate(values)]


def _meeting(chance: random.Random, first: Sequence[int], points: Sequence[int], modulus: int) -> list[int]:
    """Return another polynomial of the same length that agrees in one value fewer than two different ones can."""
    factors = [1]
    for point in chance.sample(points, len(first) - 1):
        below, above = [-point * factor for factor in factors] + [0], [0, *factors]
        factors = [(low + high) % modulus for low, high in zip(below, above, strict=True)]
    return [(a + b) % modulus for a, b in zip(first, factors, strict=True)]


def _syndrome_scale(points: Sequence[int], place: int, modulus: int) -> int:
    """Return the factor of an offset in the first syndrome."""
    others = (points[place] - point for index, point in enumerate(points) if index != place)
    return pow(math.prod(others), -1, modulus)
