"""Training data in arrays, by client, and their cache on disk."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypedDict, cast

import numpy as np
import numpy.typing as npt
import torch

from secagg.errors import InvalidParameters
from secagg.session.durable import PUBLIC, replace, replacing
from secagg.training.settings.parts import Examples

from .partition import Indices

Rows = npt.NDArray[np.generic]
Transform = Callable[[Rows, int | None], torch.Tensor]
"""Makes a model's inputs of stored rows; the number is the client's, and None for test examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Stored examples; ``owners`` says whose each is, where the data say so."""

    rows: Rows
    labels: npt.NDArray[np.int64]
    owners: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    """A data set as the driver takes it."""

    name: str
    classes: int
    shape: tuple[int, ...]
    """Of one input."""
    train: Split
    parts: Sequence[Indices]
    """Which rows are whose, by the client's number."""
    held_out: Split
    transform: Transform
    vocabulary: int | None = None
    """How many tokens an embedding has to know, where inputs are tokens."""

    sizes: npt.NDArray[np.int64] = field(init=False)
    """How many training examples each client has."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", np.array([len(part) for part in self.parts], dtype=np.int64))
        self.sizes.flags.writeable = False

    def client(self, number: int) -> Examples:
        """Return the training examples of a client, in an order that never changes.

        Raises:
            InvalidParameters: there is no such client.
        """
        if not 0 <= number < len(self.parts):
            raise InvalidParameters(f"there is no client {number}; they have the numbers 0 to {len(self.parts) - 1}")
        part = self.parts[number]
        return Examples(self.transform(self.train.rows[part], number), torch.as_tensor(self.train.labels[part]))

    def test(self) -> Examples:
        """Return the test examples."""
        labels = torch.as_tensor(np.array(self.held_out.labels))
        return Examples(self.transform(self.held_out.rows, None), labels)

    def test_clients(self) -> npt.NDArray[np.int64] | None:
        """Return whose each test example is, where the data say so."""
        return self.held_out.owners


def normalised(images: npt.NDArray[np.float32], *, mean: float, deviation: float) -> torch.Tensor:
    """Shift and scale values from 0 to 1 as a model's training expects them."""
    return torch.as_tensor((images - np.float32(mean)) / np.float32(deviation))


_FORMAT: Final = 1
_KEY_DIGITS: Final = 20
_FACTS: Final = "facts.json"


@dataclass(frozen=True, slots=True)
class UserRows:
    """A user's converted examples."""

    user: str
    rows: Rows
    labels: npt.NDArray[np.int64]


class _Facts(TypedDict):
    shape: list[int]
    dtype: str
    users: list[str]
    vocabulary: int | None


def key_of(paths: Iterable[Path], *options: object) -> str:
    """Return the key of inputs: it changes with the name, the size or the time of change of a file, or an option."""
    lines = [f"format {_FORMAT}", *map(repr, options)]
    for path in paths:
        state = path.stat()
        lines.append(f"{path.name} {state.st_size} {state.st_mtime_ns}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:_KEY_DIGITS]


def write_cache(
    folder: Path, train: Iterator[UserRows], test: Iterator[UserRows], vocabulary: int | None = None
) -> None:
    """Write both halves, a user at a time, and put the folder in its place when it is whole.

    Raises:
        InvalidParameters: a half has no rows, or the place cannot be written to.
    """
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise InvalidParameters(f"the cache {folder} cannot be made ({error}); name another place for it") from error
    try:
        for half, users in (("train", train), ("test", test)):
            _write_half(partial, half, users, vocabulary)
        if not folder.exists():
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_half(folder: Path, half: str, users: Iterator[UserRows], vocabulary: int | None) -> None:
    names, owners, labels = dict[str, int](), list[int](), list[npt.NDArray[np.int64]]()
    shape, dtype = list[int](), ""
    with replacing(folder / f"{half}.rows", PUBLIC) as file:
        for found in users:
            owner = names.setdefault(found.user, len(names))
            owners += [owner] * len(found.rows)
            labels.append(found.labels)
            shape, dtype = list(found.rows.shape[1:]), found.rows.dtype.str
            file.write(np.ascontiguousarray(found.rows).tobytes())
    if not owners:
        raise InvalidParameters(f"the {half} half has no examples; check how the set was sampled")
    for name, array in (("labels", np.concatenate(labels)), ("owners", np.array(owners, dtype=np.int64))):
        # To a path numpy would write through a buffer whose last bytes a full disk takes without an error.
        with replacing(folder / f"{half}.{name}.npy", PUBLIC) as file:
            np.save(file, array)
    facts = _Facts(shape=shape, dtype=dtype, users=list(names), vocabulary=vocabulary)
    replace(folder / f"{half}.{_FACTS}", json.dumps(facts).encode(), PUBLIC)


def read_cache(folder: Path) -> tuple[Split, Split, int | None]:
    """Map both halves into memory, and say how large the vocabulary is; a test user who trains keeps that number.

    Raises:
        InvalidParameters: files are missing or damaged.
    """
    try:
        train, train_facts = _read_half(folder, "train")
        test, test_facts = _read_half(folder, "test")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidParameters(f"the cache {folder} is damaged ({error}); remove it, and it is made again") from error
    numbers = {user: number for number, user in enumerate(train_facts["users"])}
    known = np.array([numbers.setdefault(user, len(numbers)) for user in test_facts["users"]], dtype=np.int64)
    held_out = Split(rows=test.rows, labels=test.labels, owners=known[test.owners])
    return train, held_out, train_facts["vocabulary"]


def _read_half(folder: Path, half: str) -> tuple[Split, _Facts]:
    facts = cast("_Facts", json.loads((folder / f"{half}.{_FACTS}").read_text(encoding="utf-8")))
    labels = np.load(folder / f"{half}.labels.npy", allow_pickle=False)
    owners = np.load(folder / f"{half}.owners.npy", allow_pickle=False)
    shape = (len(labels), *facts["shape"])
    rows = np.memmap(folder / f"{half}.rows", dtype=np.dtype(facts["dtype"]), mode="r", shape=shape)
    return Split(rows=rows, labels=labels, owners=owners), facts


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
