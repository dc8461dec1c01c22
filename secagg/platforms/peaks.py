"""The peak code in a platform: all tensors of floats as one vector, and votes for how long the updates are.

Lengths are told relative to those of the round before, as indices of public levels, and the middle vote counts: fewer
than half of the clients cannot scale the model. See ``secagg.compression.peak``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from secagg.compression.joined_rotation import JoinedRotation
from secagg.compression.model_update import ModelUpdate
from secagg.compression.model_update.recipes import Sample, Scheme
from secagg.compression.model_update.tensors import Shape
from secagg.compression.peak import NORM_LEVELS, KnownLengths, PeakCode, level_votes
from secagg.compression.public_stream import PublicStream
from secagg.errors import MalformedMessage, Reason

from .logs import LOG
from .model_tensors import Arrays

UPDATE: Final = "secagg/update"
"""The name of the vector of all tensors of floats, joined in their order."""
LENGTHS: Final = "secagg/lengths"
"""The name of the clients' votes: for the length of the whole update, and for that of each tensor."""
Values = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Made:
    """A recipe: whatever is made of a tensor's place, which fits every shape."""

    made: Callable[[PublicStream], Scheme]

    def fits(self, shape: Shape) -> bool:  # noqa: ARG002 -- a recipe's
        """Fit every shape."""
        return True

    def make(self, place: PublicStream, sample: Sample | None, previous: Scheme | None) -> Scheme:  # noqa: ARG002
        """Return the scheme."""
        return self.made(place)


def peaks(places: int, known: KnownLengths) -> Made:
    """Return the recipe of a round's peak code, under the scales that follow from known lengths."""
    return Made(lambda place: PeakCode(rotation=known.rotation(place), places=places))


def votes() -> Made:
    """Return the recipe of one vote for each length."""
    return Made(lambda place: level_votes(place.shape[0]))


def known_lengths(sent: Arrays, joined: Sequence[str], lengths: Sequence[float]) -> KnownLengths:
    """Return what a round's lengths say of the joined tensors.

    Raises:
        MalformedMessage: there is not one for the update and one for each tensor, or one is no length.
    """
    if lengths and (len(lengths) != 1 + len(joined) or not all(isfinite(one) and one >= 0 for one in lengths)):
        raise MalformedMessage(
            f"there are {len(lengths)} lengths, and {len(joined)} tensors have {1 + len(joined)}; each is a number "
            "from 0 on",
            reason=Reason.NOT_CANONICAL,
        )
    sizes = tuple(sent[name].size for name in joined)
    return KnownLengths(sizes=sizes, common=lengths[0] if lengths else None, tensors=tuple(lengths[1:]) or None)


def votes_shape(joined: Sequence[str]) -> Shape:
    """Return the shape of a client's votes."""
    return (1 + len(joined), NORM_LEVELS)


def with_votes(
    update: ModelUpdate,
    values: Mapping[str, npt.NDArray[Any]],
    sent: Arrays,
    joined: Sequence[str],
    lengths: Sequence[float],
) -> Values:
    """Return the values with a client's votes, where the update asks for them."""
    found = dict(values)
    if LENGTHS in update.names:
        known = known_lengths(sent, joined, lengths)
        found[LENGTHS] = known.votes(known.told(_rotation_of(update), found[UPDATE], with_tensors=True))
    return found


def take_lengths(
    update: ModelUpdate, mean: Values, sent: Arrays, joined: Sequence[str], lengths: Sequence[float]
) -> tuple[float, ...]:
    """Take the votes out of a mean, give its update the middle length, and return the lengths of the next round."""
    if LENGTHS not in update.names:
        return ()
    known = known_lengths(sent, joined, lengths)
    relative = known.middle(mean.pop(LENGTHS).astype(np.float64))
    if relative[0] >= known.longest:
        LOG.warning(
            "half of the updates or more are longer than the longest level, %.3g times what is known; the model moves "
            "by that level, and the next round knows more",
            known.longest,
        )
    length, after = known.after(relative, _rotation_of(update))
    mean[UPDATE] = mean[UPDATE] * np.float32(length)
    return (after.common or 0.0, *(after.tensors or ()))


def _rotation_of(update: ModelUpdate) -> JoinedRotation:
    return cast("PeakCode", next(tensor.scheme for tensor in update.tensors if tensor.name == UPDATE)).rotation
