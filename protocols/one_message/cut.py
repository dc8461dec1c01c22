"""Masked vectors in pieces of whole polynomials, which are signed, added and opened by themselves; and who adds them.

``LocalSum`` adds in this process; ``secagg.scale`` adds on many machines, and remembers a sum for the next process.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from secagg.crypto.ring import RingVector
from secagg.errors import SecAggError
from secagg.identifiers import ClientId

from .lattice.masks import epoch_ring
from .lattice.opening import Accumulator, Opening, SumOfSecrets
from .lattice.packing import Word
from .messages import pieces_of
from .parameters import Parameters

if TYPE_CHECKING:
    from .configuration import Agreement
    from .messages import Upload


Sums = list[RingVector]
"""The sums of one piece, as words that wrap: adding two of them word by word adds what is in them."""


@dataclass(frozen=True, slots=True)
class OneMessageCut:
    """The pieces of the vectors of one epoch: public values alone, until it is given the sum of the secrets."""

    context: bytes
    """T0."""
    parameters: Parameters
    seed: bytes

    @classmethod
    def of(cls, agreement: Agreement) -> OneMessageCut:
        """Return the cut of the uploads of a sum."""
        return cls(agreement.t0, agreement.parameters, agreement.epoch.seed)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The bytes of each piece."""
        return self.parameters.piece_bytes

    def zeros(self, number: int) -> Sums:
        """Return the empty planes of a piece."""
        return Accumulator(self.parameters, number).sums

    def check(self, number: int, piece: bytes | memoryview) -> None:
        """Refuse a piece that does not decode.

        Raises:
            MalformedMessage: another length, or bits set that fill a plane.
        """
        Accumulator(self.parameters, number, []).check(piece)

    def add(self, total: Sums, number: int, piece: bytes | memoryview) -> None:
        """Add one client's planes.

        Raises:
            MalformedMessage: as ``check``; nothing was added.
        """
        Accumulator(self.parameters, number, total).add(piece)

    def open(self, total: Sums, number: int, secret: SumOfSecrets) -> Sums:
        """Return the coefficients of a piece, less a S; what is checked of a whole vector is not checked yet."""
        summed = Accumulator(self.parameters, number, total)
        ring = epoch_ring(self.parameters, self.seed)
        return [*Opening(ring).unmasked(summed, secret.astype(np.int32))]


class Adder(Protocol):
    """Where a server's uploads are added, and what an earlier process has left of the sum."""

    def uploads(self) -> Collection[Upload]:
        """Return the uploads that were kept by an earlier process, without their vectors, as they came."""
        ...

    def listed(self) -> bytes | None:
        """Return the list that an earlier process has fixed, if it came so far."""
        ...

    def keep(self, upload: Upload) -> bytes:
        """Keep an upload whose pieces were checked; return what ``add`` is to be given.

        Raises:
            ConnectionError: it cannot be kept.
        """
        ...

    def add(self, client: ClientId, kept: bytes) -> None:
        """Add what was kept, now or later."""

    def settle(self) -> Mapping[ClientId, SecAggError]:
        """Finish the sum, and return whose pieces were lost, and how; nobody is to blame."""
        ...

    def fix(self, upload_list: bytes) -> None:
        """Write down the one list of this sum, before a holder sees it.

        Raises:
            ConnectionError: it cannot be written, or another one was.
        """

    def open(self, secret: SumOfSecrets) -> list[Word]:
        """Return the coefficients of the sum, less a S."""
        ...

    def over(self) -> None:
        """Write down that the sum is about to be released; no later process releases it again."""

    def end(self) -> None:
        """Give up what was added."""


class LocalSum:
    """Adds at once, in this process, and remembers nothing."""

    def __init__(self, cut: OneMessageCut) -> None:
        self._cut = cut
        self._totals = [cut.zeros(number) for number in range(len(cut.lengths))]

    def uploads(self) -> Collection[Upload]:
        """Return none."""
        return ()

    def listed(self) -> bytes | None:
        """Return none."""
        return None

    def keep(self, upload: Upload) -> bytes:
        """Keep the vector."""
        return bytes(upload.vector)

    def add(self, client: ClientId, kept: bytes) -> None:
        """Add every piece."""
        del client
        for number, piece in enumerate(pieces_of(kept, self._cut.lengths)):
            self._cut.add(self._totals[number], number, piece)

    def settle(self) -> Mapping[ClientId, SecAggError]:
        """Return nobody: everything is added."""
        return {}

    def fix(self, upload_list: bytes) -> None:
        """Forget it."""

    def open(self, secret: SumOfSecrets) -> list[Word]:
        """Open every piece."""
        return joined([self._cut.open(total, number, secret) for number, total in enumerate(self._totals)])

    def over(self) -> None:
        """Forget it."""

    def end(self) -> None:
        """Overwrite the sums."""
        for total in self._totals:
            for vector in total:
                vector[:] = 0


def joined(pieces: Sequence[Sums]) -> list[Word]:
    """Put the coefficients of all pieces together."""
    return [np.concatenate(words) for words in zip(*pieces, strict=True)]
