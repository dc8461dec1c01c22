"""Fashion-MNIST: 28x28 images of clothes in ten classes; a subset comes with the package, the full set from Debian.

The subset is 12,000 training and 2,000 test images at 4 bits per pixel, which trains as well as 8 bits do. Both are
under the MIT licence of Zalando SE, which is next to the subset.
"""

from __future__ import annotations

import gzip
import math
import zlib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from secagg.errors import InvalidParameters
from secagg.training.datasets.prepared import Dealing, dirichlet_partition

from .prepared import PreparedData, Rows, Split, normalised

Bytes = npt.NDArray[np.uint8]

SUBSET: Final = "fashion_subset.npz"
INSTALLED: Final = Path("/usr/share/datasets/fashion-mnist")
"""Folder in which Debian's package dataset-fashion-mnist puts the full set."""

_MEAN: Final = 0.2860
_DEVIATION: Final = 0.3530
_SIDE: Final = 28
_CLASSES: Final = 10
_IDX_BYTES: Final = 8
"""The type code of unsigned bytes in an idx file."""


def fashion(dealing: Dealing, root: Path | None = None) -> PreparedData:
    """Return the bundled subset, or the full set where ``root`` holds its four files, dealt out to clients."""
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
    """Read the subset that comes with the package."""
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
            f"{path} is not there; `apt install dataset-fashion-mnist` puts the full set into {INSTALLED}, "
            "and the data set `fashion` comes with the package"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidParameters(f"{path} is not a compressed file ({error}); fetch it again") from error
    axes = raw[3] if raw[:3] == bytes([0, 0, _IDX_BYTES]) and len(raw) > 3 else 0  # noqa: PLR2004 -- the axes' count
    shape = tuple(int.from_bytes(raw[4 + 4 * axis : 8 + 4 * axis]) for axis in range(axes))
    if not axes or len(raw) != 4 + 4 * axes + math.prod(shape):
        raise InvalidParameters(f"{path} is not an idx file of unsigned bytes, or not a whole one; fetch it again")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)


def packed(images: Bytes) -> Bytes:
    """Return images at 4 bits per pixel, two pixels in a byte; the nearest of 16 levels stands for each."""
    levels = ((images.astype(np.uint16) + 8) // 17).astype(np.uint8).reshape(len(images), -1)
    return levels[:, ::2] << np.uint8(4) | levels[:, 1::2]


def unpacked(stored: Bytes) -> Bytes:
    """Undo :func:`packed`, up to the levels."""
    levels = np.stack((stored >> np.uint8(4), stored & np.uint8(15)), axis=-1)
    return (levels * np.uint8(17)).reshape(len(stored), 1, _SIDE, _SIDE)


def _split(stored: Bytes, labels: Bytes) -> Split:
    return Split(rows=unpacked(stored), labels=labels.astype(np.int64))


def _transform(rows: Rows, client: int | None) -> torch.Tensor:
    del client
    return normalised(rows.astype(np.float32) / np.float32(255), mean=_MEAN, deviation=_DEVIATION)
