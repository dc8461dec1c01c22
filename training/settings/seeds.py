"""Where the randomness of an experiment comes from: one seed, a stream for each purpose, a round and a client.

No generator is carried from one step to the next, so that nothing depends on how many threads there are, in which order
clients are trained, or where a run was resumed. These generators repeat, by design: keys and masks of a real protocol
never come from here.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from enum import IntEnum
from typing import Final

import numpy as np

try:
    import torch
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "secagg.training needs torch; install it with: pip install 'secagg[train]'", name=missing.name
    ) from None

from secagg.errors import InvalidParameters

Seed = tuple[int, ...]
"""(run's seed, stream, round, client)."""

_WORD_BITS: Final = 32
_PARTS: Final = 4


class Stream(IntEnum):
    """What randomness is for; two purposes never share a stream, and a number never changes its purpose."""

    MODEL = 0
    """Initial parameters."""
    PARTITION = 1
    """Which client holds which examples."""
    STYLE = 2
    """How a client's images differ from everybody's."""
    SAMPLING = 3
    """Which clients take part in a round."""
    TRAINING = 4
    """The order of a client's batches, and dropout."""
    OPERATORS = 5
    """Masks, codebooks and rotations that everybody shares."""
    ENCODING = 6
    """A client's rounding coins."""
    DROPPING = 7
    """Which clients disappear, and when."""
    ARRIVALS = 8
    """When clients start and finish, where rounds are not synchronous."""
    PROTOCOL = 9
    """The simulated parts of a protocol."""
    NOISE = 10
    """Noise of simulated differential privacy."""
    VALIDATION = 11
    """Which examples are set aside for choosing."""


def seed_of(run: int, stream: Stream, round_number: int = 0, client: int = 0) -> Seed:
    """Return the seed of one purpose.

    Raises:
        InvalidParameters: a part is not an integer of 32 bits, which would make two seeds equal.
    """
    return checked((run, int(stream), round_number, client))


def checked(seed: Seed) -> Seed:
    """Return a seed that no other one is taken for.

    Raises:
        InvalidParameters: it has more or fewer than four parts, or one of them is not an integer of 32 bits.
    """
    # SeedSequence pads with zeros and splits large numbers, so that (1,) and (1, 0), or (2**32,) and (0, 1), are equal.
    if len(seed) != _PARTS or not all(0 <= part < 1 << _WORD_BITS for part in seed):
        raise InvalidParameters(
            f"the seed {seed} must have {_PARTS} parts (run, stream, round, client), each from 0 to 2^{_WORD_BITS} - 1"
        )
    return seed


def generator(seed: Seed) -> np.random.Generator:
    """Start the generator of a seed."""
    return np.random.default_rng(np.random.SeedSequence(checked(seed)))


def torch_seed(seed: Seed) -> int:
    """Return the number that seeds one of torch's generators."""
    return int(np.random.SeedSequence(checked(seed)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def torch_generator(seed: Seed) -> torch.Generator:
    """Start torch's generator of a seed, on the CPU, where it gives the same numbers whatever trains."""
    return torch.Generator().manual_seed(torch_seed(seed))


@contextmanager
def torch_seeded(seed: Seed) -> Generator[None]:
    """Let torch draw from a seed what it draws on the CPU by itself, and restore its generator afterwards."""
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(torch_seed(seed))
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


def seed_bytes(seed: Seed) -> bytes:
    """Return the 32 bytes of a seed, for what expands bytes: an update plan, or repeatable coins."""
    return np.random.SeedSequence(checked(seed)).generate_state(8, np.uint32).astype("<u4").tobytes()
