"""Converted data on disk, mapped into memory: rows as bytes, and whose they are; made once, under a key of its inputs.

A cache is written beside its final place and renamed, so that what is there is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypedDict, cast

import numpy as np
import numpy.typing as npt

from secagg.errors import InvalidParameters

from .prepared import Rows, Split

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
    with (folder / f"{half}.rows").open("wb") as file:
        for found in users:
            owner = names.setdefault(found.user, len(names))
            owners += [owner] * len(found.rows)
            labels.append(found.labels)
            shape, dtype = list(found.rows.shape[1:]), found.rows.dtype.str
            file.write(np.ascontiguousarray(found.rows).tobytes())
    if not owners:
        raise InvalidParameters(f"the {half} half has no examples; check how the set was sampled")
    np.save(folder / f"{half}.labels.npy", np.concatenate(labels))
    np.save(folder / f"{half}.owners.npy", np.array(owners, dtype=np.int64))
    facts = _Facts(shape=shape, dtype=dtype, users=list(names), vocabulary=vocabulary)
    (folder / f"{half}.{_FACTS}").write_text(json.dumps(facts), encoding="utf-8")


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
