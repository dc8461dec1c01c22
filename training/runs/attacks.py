"""Clients that attack, for measuring what one can do to a model: what they train on, and what they send.

Attackers follow the protocol and the codec, as whatever else they sent would be refused or decoded as something that
can be encoded. They know their own updates and no others'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from secagg.training.settings.parts import Assignment, Examples, FederatedData, TrainedClient, Update
from secagg.training.settings.sections import AttackKind, AttackSettings

_FACTORS: Final[Mapping[AttackKind, float]] = {
    AttackKind.SIGN_FLIP: -1.0,
    AttackKind.FLIP_TENFOLD: -10.0,
    AttackKind.SCALE_TENFOLD: 10.0,
}
_SPREADS: Final = 1.5
"""Standard deviations that an update inside the spread lies beside the mean, [BBG19]'s z."""

Train = Callable[[Sequence[Assignment]], Iterable[TrainedClient]]


@dataclass(slots=True)
class Attack:
    """The attackers of one round."""

    kind: AttackKind
    work: list[Assignment]
    """Of everybody, with the labels that attackers give to their examples."""
    attackers: frozenset[int]
    _agreed: Update | None = field(default=None, init=False)
    """What all of them send."""

    @classmethod
    def of(cls, settings: AttackSettings, work: Sequence[Assignment], data: FederatedData) -> Attack:
        """Draw the attackers of a round: the first of the clients, which are in an order drawn from the seed."""
        if not settings.is_on:
            return cls(AttackKind.NONE, list(work), frozenset())
        count = round(settings.share * len(work))
        dishonest, honest = list(work[:count]), list(work[count:])
        if settings.kind is AttackKind.LABEL_FLIP:
            greatest = int(data.test().targets.max())
            dishonest = [replace(one, examples=_relabelled(one.examples, greatest)) for one in dishonest]
        return cls(settings.kind, [*dishonest, *honest], frozenset(one.client for one in dishonest))

    def prepare(self, train: Train) -> None:
        """Let attackers that need each other's updates train once more, before anybody sends."""
        if self.kind is AttackKind.INSIDE_SPREAD and self.attackers:
            of_attackers = train([one for one in self.work if one.client in self.attackers])
            self._agreed = _inside_spread(sorted(of_attackers, key=lambda trained: trained.client))

    def forged(self, trained: TrainedClient) -> TrainedClient:
        """Return what a client sends in place of its update; in any thread."""
        if trained.client not in self.attackers:
            return trained
        if self._agreed is not None:
            return replace(trained, update=self._agreed)
        factor = np.float32(_FACTORS.get(self.kind, 1.0))
        return replace(trained, update={name: value * factor for name, value in trained.update.items()})


def _relabelled(examples: Examples, greatest: int) -> Examples:
    return Examples(examples.inputs, greatest - examples.targets)


def _inside_spread(trained: Sequence[TrainedClient]) -> Update:
    """Return the mean less some standard deviations of each value."""
    agreed = Update()
    for name in trained[0].update:
        values = np.stack([one.update[name] for one in trained]).astype(np.float64)
        agreed[name] = (values.mean(axis=0) - _SPREADS * values.std(axis=0)).astype(np.float32)
    return agreed
