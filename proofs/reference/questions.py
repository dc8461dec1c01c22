"""A question to the reference, and what the library answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

EDGES_ONE_IN = 16


def as_given(line: str) -> str:
    """Compare the whole line."""
    return line


@dataclass(frozen=True, slots=True)
class Question:
    """Lines for the reference, and the lines that it is due to answer with: one for each input."""

    what: str
    asked: Sequence[str]
    due: Sequence[str]
    compared: Callable[[str], str] = field(default=as_given)
    """What of an answer the library gives too."""

    @property
    def text(self) -> str:
        """The lines as the reference reads them."""
        return "".join(f"{line}\n" for line in self.asked)


def listed(numbers: Iterable[int]) -> str:
    """Return numbers as the reference reads and writes them."""
    return " ".join([f"{number:x}" for number in numbers])


def element(chance: random.Random, modulus: int) -> int:
    """Draw an element, more often than by chance one at an edge."""
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
    """Return values of a polynomial, any number of them wrong: by chance, or all on another polynomial."""
    count, wrong = len(points), chance.randrange(len(points) - threshold + 2)
    first = [element(chance, modulus) for _ in range(threshold)]
    values = values_at(first, points, modulus)
    places = chance.sample(range(count), wrong)
    if chance.randrange(3):
        for place in places:
            values[place] = (values[place] + 1 + element(chance, modulus - 1)) % modulus
        return values
    # Another polynomial that agrees with the first one at as many points as it can.
    factors = [1]
    for point in chance.sample(points, threshold - 1):
        below, above = [-point * factor for factor in factors] + [0], [0, *factors]
        factors = [(low + high) % modulus for low, high in zip(below, above, strict=True)]
    other = [(a + b) % modulus for a, b in zip(first, factors, strict=True)]
    others = values_at(other, points, modulus)
    return [others[place] if place in places else values[place] for place in range(count)]
