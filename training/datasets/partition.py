"""Examples dealt out to clients, and how one client's images differ from another's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from secagg.errors import InvalidParameters
from secagg.training.settings.parts import Seed, Stream, generator, seed_of

Indices = npt.NDArray[np.int64]
Images = npt.NDArray[np.float32]
"""Values from 0 to 1; the axes are examples, channels, rows and columns."""

LEAST_EXAMPLES: Final = 4
"""Of a client; with fewer its training is noise."""
_LARGEST_SHIFT: Final = 2
_IMAGE_AXES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealing:
    """How examples without owners are dealt out to clients."""

    clients: int = 200
    alpha: float = 1.0
    """How alike the clients' labels are; 0.1 gives most clients one or two labels, 100 gives everybody all."""
    spread: float = 0.35
    """The standard deviation of the logarithm of the sizes; 0 makes them equal."""
    style: bool = False
    """Whether every client's images have a style of their own."""
    seed: int = 0


def dirichlet_partition(labels: npt.NDArray[np.int64], dealing: Dealing) -> list[Indices]:
    """Deal out examples so that clients differ in size, and in how often they see each label.

    A client's size follows a log-normal distribution, and the labels it wants a Dirichlet distribution. Where a label
    has run out, it takes the one of which most are left. No example is dealt twice.

    Raises:
        InvalidParameters: there are too few examples for so many clients, or a parameter is out of its range.
    """
    clients, alpha, spread = dealing.clients, dealing.alpha, dealing.spread
    if clients < 1 or clients * LEAST_EXAMPLES > len(labels):
        raise InvalidParameters(
            f"{len(labels)} examples cannot be dealt out to {clients} clients; "
            f"take from 1 to {len(labels) // LEAST_EXAMPLES} clients, so that each holds {LEAST_EXAMPLES} or more"
        )
    if not alpha > 0 or not spread >= 0:
        raise InvalidParameters(f"alpha must be above 0 and the spread of sizes at least 0; they are {alpha}, {spread}")
    coins = generator(seed_of(dealing.seed, Stream.PARTITION))
    count = int(labels.max()) + 1
    pools = [list[int](coins.permutation(np.flatnonzero(labels == label)).tolist()) for label in range(count)]
    left = np.array([len(pool) for pool in pools])
    parts = list[Indices]()
    for size in _sizes(len(labels), clients, spread, coins):
        wanted = coins.choice(count, size, p=coins.dirichlet([alpha] * count))
        part = np.empty(size, dtype=np.int64)
        for place, label in enumerate(wanted.tolist()):
            given = label if left[label] else int(left.argmax())
            part[place] = pools[given].pop()
            left[given] -= 1
        parts.append(part)
    return parts


def _sizes(examples: int, clients: int, spread: float, coins: np.random.Generator) -> list[int]:
    """Draw sizes whose sum is not above the number of examples."""
    shares = coins.lognormal(0.0, spread, clients)
    sizes = np.maximum(LEAST_EXAMPLES, np.floor(shares / shares.sum() * examples)).astype(np.int64)
    while (excess := int(sizes.sum()) - examples) > 0:
        largest = int(sizes.argmax())
        sizes[largest] -= min(excess, int(sizes[largest]) - LEAST_EXAMPLES)
    return list[int](sizes.tolist())


def natural_partition(owners: Sequence[object], *, least: int = LEAST_EXAMPLES) -> list[Indices]:
    """Group examples by whose they are, in the order of the owners' first examples; leave out whoever has few.

    Raises:
        InvalidParameters: nobody has enough.
    """
    by_owner = dict[object, list[int]]()
    for index, owner in enumerate(owners):
        by_owner.setdefault(owner, []).append(index)
    parts = [np.array(indices, dtype=np.int64) for indices in by_owner.values() if len(indices) >= least]
    if not parts:
        raise InvalidParameters(f"none of {len(by_owner)} clients has {least} examples; lower the least number")
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How one client's images differ from everybody's: as by another camera, hand or habit."""

    gain: float
    gamma: float
    down: int
    right: int
    is_flipped: bool

    def apply(self, images: Images) -> Images:
        """Return the images as this client would have taken them."""
        if images.ndim != _IMAGE_AXES:
            raise InvalidParameters(f"a style changes images of 4 axes, and these have {images.ndim}")
        shown: Images = np.clip(np.float32(self.gain) * images ** np.float32(self.gamma), 0, 1)
        if self.is_flipped:
            shown = shown[..., ::-1]
        moved: Images = np.zeros_like(shown)
        rows, columns = shown.shape[-2:]
        moved[..., _target(self.down, rows), _target(self.right, columns)] = shown[
            ..., _target(-self.down, rows), _target(-self.right, columns)
        ]
        return moved


def style_of(seed: Seed) -> Style:
    """Draw a client's style from its own seed."""
    coins = generator(seed)
    return Style(
        gain=float(coins.uniform(0.7, 1.3)),
        gamma=float(coins.uniform(0.7, 1.4)),
        down=int(coins.integers(-_LARGEST_SHIFT, _LARGEST_SHIFT, endpoint=True)),
        right=int(coins.integers(-_LARGEST_SHIFT, _LARGEST_SHIFT, endpoint=True)),
        is_flipped=bool(coins.integers(2)),
    )


def _target(shift: int, length: int) -> slice:
    """Return where what is shifted lands; the opposite shift says where it came from."""
    return slice(max(shift, 0), length + min(shift, 0))
