"""One sum in pieces on one page, in this process: ``python -m secagg.scale.run``.

The mask is a number that every client adds to all of its words, and opening takes the sum of those numbers off; what
is real is who reads what, what is verified before it is added, and what a client that stores a wrong piece gets.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

import numpy as np

from secagg.contract.pieces import Sums, piece_digests
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.ring import add_into, subtract_into
from secagg.identifiers import ClientId

from .spread import SpreadSettings, SpreadSum
from .store import open_store, piece_name
from .workers import InProcess

WORDS = 4


@dataclass(frozen=True)
class ToyCut:
    """Three pieces of four words."""

    context: bytes = bytes(32)
    lengths: tuple[int, ...] = (8 * WORDS,) * 3

    def zeros(self, number: int, *, is_open: bool = False) -> Sums:
        """Return four words."""
        del number, is_open
        return [np.zeros(WORDS, np.uint64)]

    def check(self, number: int, piece: bytes) -> None:
        """Take anything."""

    def add(self, total: Sums, number: int, piece: bytes) -> None:
        """Add them."""
        del number
        add_into(total[0], np.frombuffer(piece, np.uint64))

    def open(self, total: Sums, number: int, key: bytes) -> Sums:
        """Take the sum of the masks off."""
        del number
        subtract_into(total[0], np.uint64(int.from_bytes(key, "big")))
        return total


def main() -> None:
    """Add the vectors of five clients, of whom one stores another piece than it signed."""
    cut, masks = ToyCut(), {ClientId(number): 1_000 * number for number in range(1, 6)}
    with tempfile.TemporaryDirectory() as folder:
        total = SpreadSum(cut, InProcess(), SpreadSettings(storage=folder, clients_in_a_batch=2), coins=SystemCoins())
        for client, mask in masks.items():
            vector = (np.full(3 * WORDS, client.value, np.uint64) + np.uint64(mask)).tobytes()
            digests = piece_digests(cut.context, client, cut.lengths, vector)
            total.add(client, digests, total.keep(client, digests, vector))
            if client.value == 4:  # noqa: PLR2004 -- the one that cheats
                open_store(folder).put(piece_name(cut.context, client, digests[1]), bytes(8 * WORDS))
        left_out = total.settle()
        key = sum(mask for client, mask in masks.items() if client not in left_out)
        words = np.concatenate([piece[0] for piece in total.open(key.to_bytes(8, "big"))])
        print(*left_out.values(), sep="\n")  # noqa: T201 -- it shows
        print("the sum of the others:", words.tolist())  # noqa: T201
        total.end()


if __name__ == "__main__":
    main()
