"""One task: add one piece of some clients, or some partial sums of it, and store the sum under a name of its own.

A task keeps nothing. It adds the very buffers whose tags it has checked, and stores all of its sum or nothing, so it
may run twice, at once or again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np

from secagg.crypto.ring import RingVector, add_into
from secagg.protocols.one_message import OneMessageCut

from .storage import TAG_BYTES, Lost, Store, open_store, put_object, read_object

Sums = list[RingVector]
"""The sums of one piece, plane by plane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What is added: objects of one folder, whose names and key authenticate them."""

    storage: str
    folder: str
    """Of the sum."""
    key: bytes = field(repr=False)
    cut: OneMessageCut
    piece: int
    inputs: tuple[str, ...]
    is_merge: bool = False
    """Whether the inputs are partial sums."""

    @property
    def output(self) -> str:
        """The name of the sum, which follows from what is added."""
        parts = (str(self.piece), str(self.is_merge), *self.inputs)
        return f"sums/{sha256(' '.join(parts).encode()).hexdigest()}"


def add(task: Task) -> None:
    """Add, unless it was done before.

    Raises:
        Lost: an input is not there, or not what was written; nothing was stored.
        OSError: the storage fails.
    """
    store, total, length = open_store(task.storage), task.cut.zeros(task.piece), task.cut.lengths[task.piece]
    buffer = memoryview(bytearray(TAG_BYTES + max(length, sum(words.nbytes for words in total))))
    try:
        read_sum(store, task, task.output, total, buffer)
    except Lost:
        pass
    else:
        return
    for name in task.inputs:
        if task.is_merge:
            _merge(total, read_sum(store, task, name, total, buffer))
        else:
            task.cut.add(total, task.piece, read_object(store, task.key, task.folder, name, length, buffer))
    del buffer
    put_object(store, task.key, task.folder, task.output, encode(total), lasts=False)


def _merge(total: Sums, more: Sums) -> None:
    for words, others in zip(total, more, strict=True):
        add_into(words, others)


def read_sum(store: Store, task: Task, name: str, like: Sums, into: memoryview | None = None) -> Sums:
    """Return views of the words of a partial sum, which has the form of another one.

    Raises:
        Lost: it is not there, or not what was written.
        OSError: the storage fails.
    """
    size = sum(words.nbytes for words in like)
    data, sums, at = read_object(store, task.key, task.folder, name, size, into), Sums(), 0
    for words in like:
        sums.append(np.frombuffer(data, words.dtype, words.size, at))
        at += words.nbytes
    return sums


def encode(total: Sums) -> bytes:
    """Return the words of a partial sum; their form follows from the cut."""
    return b"".join(words.data.cast("B") for words in total)
