"""Data sets that are bundled, installed with Python or Debian, or downloaded by the user.

Fashion-MNIST has 28x28 images of clothes in ten classes; a subset is bundled, the full set is Debian's.

The subset is 12,000 training and 2,000 test images at 4 bits per pixel, which train as well as 8 bits. Both are under
the MIT licence of Zalando SE, which is next to the subset.

VADER has short texts with human ratings of their sentiment. The source distribution of vaderSentiment 3.3.2 has it
(``pip download --no-binary :all: --no-deps vaderSentiment==3.3.2``), as
``additional_resources/hutto_ICWSM_2014.tar.gz``; either file will do.

The task on Python's standard library is to predict the next character; each client is a module. Sources, and thus
examples, differ between versions of Python; ``data_digest`` of a run identifies them.
"""

from __future__ import annotations

import gzip
import io
import math
import sysconfig
import tarfile
import zlib
from functools import cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from secagg.errors import InvalidParameters
from secagg.training.datasets.prepared import Dealing, Indices, dirichlet_partition
from secagg.training.parts import Stream, generator, seed_of

from .prepared import LENGTH, PreparedData, Rows, Split, as_tokens, commonest, normalised

# --- Fashion-MNIST ----------------------------------------------------------------------------------------------------

Bytes = npt.NDArray[np.uint8]

SUBSET: Final = "fashion_subset.npz"
INSTALLED: Final = Path("/usr/share/datasets/fashion-mnist")
"""Folder of the full set in Debian's package dataset-fashion-mnist."""

_MEAN: Final = 0.2860
_DEVIATION: Final = 0.3530
_SIDE: Final = 28
_CLASSES: Final = 10
_IDX_BYTES: Final = 8
"""The type code of unsigned bytes in an idx file."""


def fashion(dealing: Dealing, root: Path | None = None) -> PreparedData:
    """Return the bundled subset, or the full set if ``root`` has its four files, partitioned over clients."""
    train, test = bundled() if root is None else full(root)
    return PreparedData(
        name="fashion" if root is None else "fashion-full",
        classes=_CLASSES,
        shape=(1, _SIDE, _SIDE),
        train=train,
        parts=dirichlet_partition(train.labels, dealing),
        held_out=test,
        transform=_transform,
    )


@cache
def bundled() -> tuple[Split, Split]:
    """Read the bundled subset."""
    with (
        resources.as_file(resources.files("secagg.training.datasets") / SUBSET) as path,
        np.load(path, allow_pickle=False) as stored,
    ):
        return _split(stored["train"], stored["train_labels"]), _split(stored["test"], stored["test_labels"])


def full(root: Path) -> tuple[Split, Split]:
    """Read the full set from its idx files."""
    halves = list[Split]()
    for half in ("train", "t10k"):
        images = read_idx(root / f"{half}-images-idx3-ubyte.gz")
        labels = read_idx(root / f"{half}-labels-idx1-ubyte.gz")
        if images.shape != (len(labels), _SIDE, _SIDE):
            raise InvalidParameters(
                f"{root}: {half} has images of shape {images.shape} and {len(labels)} labels; install the package again"
            )
        halves.append(Split(rows=images[:, None], labels=labels.astype(np.int64)))
    return halves[0], halves[1]


def read_idx(path: Path) -> Bytes:
    """Read an array of unsigned bytes from a compressed idx file."""
    try:
        with gzip.open(path) as file:
            raw = file.read()
    except FileNotFoundError as error:
        raise InvalidParameters(
            f"{path} does not exist; `apt install dataset-fashion-mnist` puts the full set into {INSTALLED}, "
            "and the data set `fashion` comes with the package"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidParameters(f"{path} is not a compressed file ({error}); fetch it again") from error
    axes = raw[3] if raw[:3] == bytes([0, 0, _IDX_BYTES]) and len(raw) > 3 else 0  # noqa: PLR2004 -- the axes' count
    shape = tuple(int.from_bytes(raw[4 + 4 * axis : 8 + 4 * axis]) for axis in range(axes))
    if not axes or len(raw) != 4 + 4 * axes + math.prod(shape):
        raise InvalidParameters(f"{path} is not an idx file of unsigned bytes, or is truncated; fetch it again")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)


def packed(images: Bytes) -> Bytes:
    """Return images at 4 bits per pixel, two pixels in a byte; each becomes the nearest of 16 levels."""
    levels = ((images.astype(np.uint16) + 8) // 17).astype(np.uint8).reshape(len(images), -1)
    return levels[:, ::2] << np.uint8(4) | levels[:, 1::2]


def unpacked(stored: Bytes) -> Bytes:
    """Undo :func:`packed`, up to rounding."""
    levels = np.stack((stored >> np.uint8(4), stored & np.uint8(15)), axis=-1)
    return (levels * np.uint8(17)).reshape(len(stored), 1, _SIDE, _SIDE)


def _split(stored: Bytes, labels: Bytes) -> Split:
    return Split(rows=unpacked(stored), labels=labels.astype(np.int64))


def _transform(rows: Rows, client: int | None) -> torch.Tensor:
    del client
    return normalised(rows.astype(np.float32) / np.float32(255), mean=_MEAN, deviation=_DEVIATION)


# --- Vader ------------------------------------------------------------------------------------------------------------

_INNER: Final = "hutto_ICWSM_2014.tar.gz"
_SOURCES: Final = ("tweets", "movieReviewSnippets", "amazonReviewSnippets")
_CLEAR: Final = 0.5
"""Minimum distance from neutral of a labelled text's mean rating."""
_WORDS: Final = 5000
_HELD_OUT: Final = 10
"""One text in this many is a test text, for every seed."""
_FIELDS: Final = 3


def vader(archive: Path | None, dealing: Dealing) -> PreparedData:
    """Read the archive, and partition its texts over clients."""
    texts, labels = rated_texts(archive)
    order = generator(seed_of(0, Stream.VALIDATION)).permutation(len(texts))
    is_test = np.zeros(len(texts), dtype=np.bool_)
    is_test[order[: len(texts) // _HELD_OUT]] = True
    vocabulary = commonest((text for text, held_out in zip(texts, is_test, strict=True) if not held_out), _WORDS)
    rows = np.stack([vocabulary.row(text) for text in texts])
    train = Split(rows=rows[~is_test], labels=labels[~is_test])
    return PreparedData(
        name="vader",
        classes=2,
        shape=(LENGTH,),
        train=train,
        parts=dirichlet_partition(train.labels, dealing),
        held_out=Split(rows=rows[is_test], labels=labels[is_test]),
        transform=as_tokens,
        vocabulary=vocabulary.size,
    )


def rated_texts(archive: Path | None) -> tuple[list[str], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Return the texts that are clearly bad (0) or good (1), in lower case."""
    if archive is None or not archive.is_file():
        raise InvalidParameters(
            f"the data set `vader` needs {'a file' if archive is None else f'{archive}, which does not exist'}: "
            "fetch it with `pip download --no-binary :all: --no-deps vaderSentiment==3.3.2`, and set data.root to "
            "the downloaded vaderSentiment-3.3.2.tar.gz"
        )
    try:
        lines = _lines(archive.read_bytes())
    except (tarfile.TarError, OSError, EOFError, KeyError, UnicodeDecodeError) as error:
        raise InvalidParameters(
            f"{archive} is neither the source distribution of vaderSentiment 3.3.2 nor its {_INNER} ({error})"
        ) from error
    texts, labels = list[str](), list[int]()
    for line in lines:
        fields = line.split("\t", _FIELDS - 1)
        if len(fields) != _FIELDS:
            continue
        try:
            rating = float(fields[1])
        except ValueError as error:
            raise InvalidParameters(f"{archive}: {fields[1]!r} is not a rating; the archive is damaged") from error
        if abs(rating) >= _CLEAR:
            texts.append(fields[2].lower())
            labels.append(int(rating > 0))
    return texts, np.array(labels, dtype=np.int64)


def _lines(raw: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(raw)) as archive:
        for name in archive.getnames():
            if name.endswith(_INNER):
                return _lines(_content(archive, name))
        content = (_content(archive, f"hutto_ICWSM_2014/{source}_GroundTruth.txt") for source in _SOURCES)
        return [line for text in content for line in text.decode().splitlines()]


def _content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise KeyError(f"{name} is not a file")
    return file.read()


# --- Characters -------------------------------------------------------------------------------------------------------

CONTEXT: Final = 12
"""Number of characters from which the next one is predicted."""
CHARACTERS: Final = 97
"""Printable ASCII, the end of a line, and one number for all others."""
_LEAST_BYTES: Final = 2000
"""Minimum size of a module that is a client."""
_HELD_OUT_SHARE: Final = 0.1
"""Share of each module, at its end, for test examples."""
_POSITIONS: Final = 60
"""Number of characters of a training example."""
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
            f"{folder} has no Python sources of more than {_LEAST_BYTES} bytes; set data.root to a folder with some"
        )
    coins = generator(seed_of(0, Stream.PARTITION))
    train, test = list[tuple[npt.NDArray[np.int64], Indices]](), list[tuple[npt.NDArray[np.int64], Indices]]()
    for module in modules:
        text = tokens(module.read_bytes())
        cut = int(len(text) * (1 - _HELD_OUT_SHARE))
        count = min(_MOST, max(_FEWEST, cut // _POSITIONS))
        train.append((text, coins.choice(cut - CONTEXT, count, replace=False)))
        ends = np.arange(cut, len(text) - CONTEXT)
        test.append((text, coins.choice(ends, min(_TESTED_OF_A_MODULE, len(ends)), replace=False)))
    held_out = _following(test)
    kept = generator(seed_of(0, Stream.VALIDATION)).permutation(len(held_out.labels))[:_TESTED]
    edges = np.cumsum([0, *(len(at) for _, at in train)])
    return PreparedData(
        name="stdlib-chars",
        classes=CHARACTERS,
        shape=(CONTEXT,),
        train=_following(train),
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


def _following(positions: list[tuple[npt.NDArray[np.int64], Indices]]) -> Split:
    around = np.arange(CONTEXT + 1)
    rows = np.concatenate([text[at[:, np.newaxis] + around] for text, at in positions])
    return Split(rows=rows[:, :CONTEXT].astype(np.uint8), labels=rows[:, CONTEXT])
