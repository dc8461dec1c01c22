"""The next character of Python's own standard library: a client is a module.

The data are made when they are asked for, from the sources of the Python that runs. Sources differ between versions of
Python, and so do examples; ``data_digest`` of a run says which they were.
"""

from __future__ import annotations

import sysconfig
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from secagg.errors import InvalidParameters
from secagg.training.datasets.prepared import Indices
from secagg.training.settings.parts import Stream, generator, seed_of

from .prepared import PreparedData, Split, as_tokens

CONTEXT: Final = 12
"""Number of characters that the next one is told from."""
CHARACTERS: Final = 97
"""Those of ASCII that can be printed, the end of a line, and one number for all others."""
_LEAST_BYTES: Final = 2000
"""Size of a module from which on it is a client."""
_HELD_OUT: Final = 0.1
"""The share of each module, its end, that test examples come from."""
_POSITIONS: Final = 60
"""One training example for so many characters."""
_FEWEST, _MOST = 20, 400
_TESTED_OF_A_MODULE: Final = 40
_TESTED: Final = 4000
_FIRST, _END, _NEW_LINE = 32, 127, 10


def stdlib_characters(root: Path | None = None, *, clients: int | None = None) -> PreparedData:
    """Return examples of the modules of a folder, by default of the standard library."""
    folder = Path(sysconfig.get_path("stdlib")) if root is None else root
    modules = sorted(path for path in folder.glob("*.py") if path.stat().st_size > _LEAST_BYTES)[:clients]
    if not modules:
        raise InvalidParameters(
            f"{folder} has no Python sources of more than {_LEAST_BYTES} bytes; name a folder that has as data.root"
        )
    coins = generator(seed_of(0, Stream.PARTITION))
    train, test = list[tuple[npt.NDArray[np.int64], Indices]](), list[tuple[npt.NDArray[np.int64], Indices]]()
    for module in modules:
        text = tokens(module.read_bytes())
        cut = int(len(text) * (1 - _HELD_OUT))
        count = min(_MOST, max(_FEWEST, cut // _POSITIONS))
        train.append((text, coins.choice(cut - CONTEXT, count, replace=False)))
        ends = np.arange(cut, len(text) - CONTEXT)
        test.append((text, coins.choice(ends, min(_TESTED_OF_A_MODULE, len(ends)), replace=False)))
    held_out = _split(test)
    kept = generator(seed_of(0, Stream.VALIDATION)).permutation(len(held_out.labels))[:_TESTED]
    edges = np.cumsum([0, *(len(at) for _, at in train)])
    return PreparedData(
        name="stdlib-chars",
        classes=CHARACTERS,
        shape=(CONTEXT,),
        train=_split(train),
        parts=[np.arange(first, last, dtype=np.int64) for first, last in pairwise(edges.tolist())],
        held_out=Split(rows=held_out.rows[kept], labels=held_out.labels[kept]),
        transform=as_tokens,
        vocabulary=CHARACTERS,
    )


def tokens(text: bytes) -> npt.NDArray[np.int64]:
    """Return a number for each byte: 0 for those that are not printed, and the last for the end of a line."""
    found = np.frombuffer(text, dtype=np.uint8).astype(np.int64)
    printed = (found >= _FIRST) & (found < _END)
    return np.where(printed, found - _FIRST + 1, np.where(found == _NEW_LINE, CHARACTERS - 1, 0))


def _split(positions: list[tuple[npt.NDArray[np.int64], Indices]]) -> Split:
    around = np.arange(CONTEXT + 1)
    rows = np.concatenate([text[at[:, np.newaxis] + around] for text, at in positions])
    return Split(rows=rows[:, :CONTEXT].astype(np.uint8), labels=rows[:, CONTEXT])
