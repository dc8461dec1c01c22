"""The vectors of one epoch in pieces of whole polynomials: a piece is added, and its a S taken off, by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from secagg.contract.pieces import Sums

from .lattice.masks import EpochRing, SumOfSecrets
from .lattice.packing import Word
from .lattice.planes import Accumulator
from .parameters import Parameters


@dataclass(frozen=True, slots=True)
class OneMessageCut:
    """A ``Cut``: public values alone, until it is given the sum of the secrets."""

    context: bytes
    """T0."""
    parameters: Parameters
    seed: bytes

    @property
    def lengths(self) -> tuple[int, ...]:
        """The bytes of each piece."""
        return self.parameters.piece_bytes

    def zeros(self, number: int, *, is_open: bool = False) -> Sums:
        """Return the empty planes of a piece, or its coefficients."""
        empty = Accumulator(self.parameters, number)
        return [*empty.coefficients()] if is_open else empty.sums

    def check(self, number: int, piece: bytes) -> None:
        """Refuse a piece of another length, or with bits set that fill a plane."""
        Accumulator(self.parameters, number, []).check(piece)

    def add(self, total: Sums, number: int, piece: bytes) -> None:
        """Add one client's planes."""
        Accumulator(self.parameters, number, total).add(piece)

    def open(self, total: Sums, number: int, key: bytes) -> Sums:
        """Return the coefficients of a piece, less a S.

        Args:
            key: the sum of the secrets, as ``key_of`` writes it.
        """
        secret = np.frombuffer(key, "<i4").astype(np.int32)
        summed = Accumulator(self.parameters, number, total)
        return [*epoch_ring(self.parameters, self.seed).unmasked(summed, secret)]


def key_of(secret: SumOfSecrets) -> bytes:
    """Return the sum of the secrets as bytes."""
    return secret.astype("<i4").tobytes()


def joined(pieces: Sequence[Sums]) -> list[Word]:
    """Put the coefficients of all pieces together."""
    return [np.concatenate(words) for words in zip(*pieces, strict=True)]


@lru_cache(maxsize=2)
def epoch_ring(parameters: Parameters, seed: bytes) -> EpochRing:
    """Return the public polynomials of an epoch, which everybody in this process may share."""
    return EpochRing(parameters, seed)
