"""Sums that a run's server tells its clients in place of the model, and what each client receives then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.compression.joined_rotation import Floats, Gains, JoinedRotation
from secagg.compression.told import HeldModel, Sums

_SCALE_BYTES: Final = 4


class ToldSums:
    """Model that server and clients hold alike, and who holds it since when.

    A client of a round receives the sums since the round that it took part in last, or the model where that is
    shorter. Here the server itself takes its next model out of the message that it tells.
    """

    def __init__(self, model: HeldModel, rounds: Iterable[Sequence[int]] = (), sizes: Sequence[int] = ()) -> None:
        """Begin a run, or continue one.

        Args:
            rounds: the clients of the rounds so far.
            sizes: bytes of the sums of these rounds.
        """
        self.model = model
        self._sizes = list(sizes)
        self._last = dict[int, int]()
        for number, clients in enumerate(rounds):
            self.seen(number, clients)

    def seen(self, number: int, clients: Sequence[int]) -> None:
        """Note that these clients hold the model that a round began with."""
        self._last.update(dict.fromkeys(clients, number))

    def model_bytes(self, clients: Sequence[int]) -> float:
        """Return what a client of the next round receives in place of the model, on average."""
        # A client that was away may have missed lengths of tensors too.
        whole = len(self.model.encode()) + _SCALE_BYTES * len(self.model.sizes)
        sums = [sum(self._sizes[self._last[one] :]) if one in self._last else whole for one in clients]
        return sum(min(whole, told) for told in sums) / max(1, len(clients))

    def tell(self, number: int, sums: Sums, rotation: JoinedRotation, gains: Gains) -> Floats:
        """Tell the sum of a round, and return the model that results at a client."""
        _, message = self.model.told(number, sums, rotation.scales, gains)
        self._sizes.append(len(message))
        self.model = self.model.after(message)
        return self.model.values

    def skip(self) -> None:
        """Note a round that released nothing."""
        self._sizes.append(0)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what a resumed run needs."""
        return {"model": np.frombuffer(self.model.encode(), np.uint8), "sizes": np.array(self._sizes, np.int64)}

    @classmethod
    def restored(
        cls, stored: Mapping[str, npt.NDArray[Any]], like: HeldModel, rounds: Iterable[Sequence[int]]
    ) -> ToldSums:
        """Take back what ``state`` returned."""
        model = HeldModel.decode(stored["model"].tobytes(), seed=like.seed, name=like.name, sizes=like.sizes)
        return cls(model, rounds, stored["sizes"].tolist())
