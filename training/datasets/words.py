"""Texts as rows of numbers of one length."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

LENGTH: Final = 25
"""How many words of a text are read."""
_WORD: Final = re.compile(r"[\w']+|[.,!?;]")


def words_of(text: str) -> list[str]:
    """Split a text into words and marks."""
    return _WORD.findall(text)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words that have a number; all others share one, and so does what fills up."""

    numbers: Mapping[str, int]
    unknown: int
    padding: int

    @property
    def size(self) -> int:
        """How many numbers an embedding has to know."""
        return max(self.unknown, self.padding) + 1

    def row(self, text: str) -> npt.NDArray[np.int32]:
        """Return a text's first words as numbers."""
        found = [self.numbers.get(word, self.unknown) for word in words_of(text)[:LENGTH]]
        return np.array(found + [self.padding] * (LENGTH - len(found)), dtype=np.int32)


def commonest(texts: Iterable[str], count: int) -> Vocabulary:
    """Return the words that occur most often; those that occur equally often in alphabetical order."""
    found = Counter(word for text in texts for word in words_of(text))
    words = sorted(found, key=lambda word: (-found[word], word))[:count]
    return Vocabulary({word: number for number, word in enumerate(words)}, len(words), len(words) + 1)


def listed(words: Sequence[str]) -> Vocabulary:
    """Return the vocabulary of a list, as LEAF has it: one more number stands for all else, and fills up."""
    return Vocabulary({word: number for number, word in enumerate(words)}, len(words), len(words))
