"""Randomness that every client and the server have in common: bytes from a public seed, a round and a tensor.

The stream of a tensor is SHAKE256 [FIPS 202] of

    label || attempt || seed || round || name || dimensions,

where ``secagg.crypto.labels.bind`` puts the length of each part, as 4 bytes, before it. The attempt has 4 bytes, the
seed 32, the round 8, the name is in UTF-8 and each dimension has 8 bytes; all integers are big-endian.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from math import prod
from typing import Final

from secagg.contract.layout import MAXIMUM_LENGTH
from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters, Misuse
from secagg.parameters import require_integer

SEED_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicStream:
    """Source of one round's public randomness for one tensor; another round, name or shape gives another stream.

    Security: the seed is public. It must not be, or be derived from, a key of the aggregation protocol.
    """

    seed: bytes
    round_number: int
    tensor_name: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        require_seed(self.seed)
        require_integer("round_number", self.round_number, 0, (1 << 64) - 1)
        require_text(self.tensor_name)
        require_shape(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    def encode(self) -> bytes:
        """Return the canonical encoding, which schemes put into their versions; it tells its own length."""
        seed, round_number, name, dimensions = self._parts()
        return seed + round_number + struct.pack(">II", len(name), len(self.shape)) + name + dimensions

    def read(self, label: Label, count: int, attempt: int = 0) -> bytes:
        """Return the first ``count`` bytes of the stream for one use; each attempt of a use has a stream of its own."""
        return hashlib.shake_256(bind(label, attempt.to_bytes(4, "big"), *self._parts())).digest(count)

    def _parts(self) -> tuple[bytes, ...]:
        dimensions = b"".join(dimension.to_bytes(8, "big") for dimension in self.shape)
        return self.seed, self.round_number.to_bytes(8, "big"), self.tensor_name.encode(), dimensions


def require_text(name: str) -> None:
    """Require a tensor's name that has an encoding."""
    if type(name) is not str:
        raise Misuse(f"a tensor's name is a str; got {name!r}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidParameters("a tensor's name is text that UTF-8 can hold; rename the tensor") from None


def require_seed(seed: bytes) -> None:
    """Require the 32 bytes of a public seed."""
    if type(seed) is not bytes or len(seed) != SEED_BYTES:
        raise InvalidParameters(f"a public seed is {SEED_BYTES} bytes; draw one for each session or training run")


def require_shape(shape: tuple[int, ...]) -> None:
    """Require the shape of a tensor with at least one element."""
    if type(shape) is not tuple or any(type(dimension) is not int or dimension < 1 for dimension in shape):
        raise InvalidParameters(f"a shape is a tuple of integers of at least 1; got {shape!r}")
    if prod(shape) > MAXIMUM_LENGTH:
        raise InvalidParameters(f"a tensor has at most 2^40 elements; a shape of {shape} has {prod(shape)}")
