"""Description of a scheme under test, trials of one law, and updates as trees of arrays."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from secagg.contract import Aggregate, LinearDecoder, Payload, ideal_aggregate
from secagg.crypto.entropy import Coins
from secagg.errors import ContractViolation, InvalidParameters, PeerError

Update = Any
"""An array, or arrays in a dict, tuple or list of any depth."""


def _itself(update: Update) -> Update:
    return update


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A scheme under test, with one choice of its public parameters."""

    name: str
    """Name of the scheme in tests and messages."""
    make: Callable[[], LinearDecoder[Any]]
    """Build the decoder from only public parameters; called often, so make expensive parameters once."""
    updates: SearchStrategy[Update]
    """Valid updates, in every supported dtype; small ones, for speed."""
    error: float | Callable[[Update], Any]
    """Maximum difference of a coordinate of one decoded update from ``expected``: a number, or for each update a number
    or a tree of arrays like it."""
    expected: Callable[[Update], Update] = _itself
    """The decoded update without rounding: clipped, or with zeros at removed coordinates."""
    extremes: Sequence[Update] = ()
    """Updates that drive the codes to both ends of their range; required if the layout has rings."""
    bad_updates: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Updates that the scheme must refuse, by name; NaN, infinity, wrong shapes and wrong types are always tried."""
    others: Mapping[str, Callable[[], LinearDecoder[Any]]] = field(
        default_factory=dict[str, Callable[[], LinearDecoder[Any]]]
    )
    """The scheme with one public parameter changed, by name of the change; one for every parameter."""
    stochastic: bool = False
    """Whether encoding draws coins."""
    tight_capacity: bool = True
    """Whether one client more than the capacity overflows a ring if all are at an extreme; False if another bound is
    smaller, such as the exactness of floats.
    """
    payload_bytes: int | None = None
    """Bytes of one client's values as counted by the author, if given."""
    ulps: float = 8.0
    """Tolerated float error of the decoder, in units in the last place of the largest summand."""

    def __str__(self) -> str:
        return self.name


# --- Coins ------------------------------------------------------------------------------------------------------------


class InsecureCountedCoins:
    """An endless stream of coins, which anyone with the seed can reproduce."""

    def __init__(self, seed: bytes) -> None:
        self.draws = 0
        self._seed = seed

    def draw(self, count: int) -> bytearray:
        self.draws += 1
        return bytearray(hashlib.shake_256(self.draws.to_bytes(8, "big") + self._seed).digest(count))


# --- Refusals ---------------------------------------------------------------------------------------------------------


def require_refused(
    what: str,
    call: Callable[..., object],
    *arguments: object,
    by: tuple[type[Exception], ...] = (PeerError,),
    done: str = "taken",
) -> None:
    """Require that a call raises the right error; ``done`` says what it did instead."""
    try:
        call(*arguments)
    except by:
        return
    except Exception as error:
        names = " or ".join(kind.__name__ for kind in by)
        raise ContractViolation(f"{what} is refused by {error!r} instead of {names}") from error
    raise ContractViolation(f"{what} is {done}")


# --- A trial ----------------------------------------------------------------------------------------------------------

Decoder = LinearDecoder[Any]


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate, and the search settings for trying one law on it."""

    candidate: Candidate
    settings: settings

    def search(self, holds: Callable[[st.DataObject], None], name: str) -> None:
        """Run a property on drawn data until it fails or the settings' limit is reached."""

        def trial(data: st.DataObject) -> None:
            holds(data)

        # Hypothesis shows this name with a counterexample, and stores the example under it.
        trial.__name__ = re.sub(r"\W", "_", f"{name}_of_{self.candidate}")
        try:
            self.settings(given(st.data())(trial))()
        except Flaky as flaky:
            raise ContractViolation(
                "the scheme treats the same update and coins differently the second time"
            ) from flaky

    def update(self, data: st.DataObject) -> Update:
        return data.draw(self.candidate.updates, label="update")

    def clients(self, data: st.DataObject, most: int) -> list[Update]:
        """Draw the updates of one to ``most`` clients, including extremes."""
        extremes = list(self.candidate.extremes)
        one = self.candidate.updates | st.sampled_from(extremes) if extremes else self.candidate.updates
        return data.draw(st.lists(one, min_size=1, max_size=most), label="updates")


def searched(holds: Callable[[Trial, st.DataObject], None]) -> Callable[[Trial], None]:
    """Return a law that searches for a counterexample to a property."""

    @wraps(holds)
    def law(trial: Trial) -> None:
        trial.search(partial(holds, trial), holds.__name__)

    return law


def draw_seed(data: st.DataObject) -> bytes:
    """Draw the seed of one client's coins."""
    return data.draw(st.binary(max_size=4), label="coins")


def encode(decoder: Decoder, update: Update, seed: bytes = b"") -> Payload:
    """Encode a valid update with the coins of a seed."""
    return encode_with(decoder, update, InsecureCountedCoins(seed))


def encode_with(decoder: Decoder, update: Update, coins: Coins) -> Payload:
    """Encode a valid update."""
    try:
        return decoder.encode(update, coins)
    except Exception as error:
        raise ContractViolation(f"encode refuses an update that the candidate declares valid: {error!r}") from error


def aggregate(decoder: Decoder, payloads: Sequence[Payload], times: Sequence[int] | None = None) -> Aggregate:
    """Add payloads as a protocol does, each multiplied by its number of clients."""
    layout = decoder.layout
    if any(payload.layout != layout for payload in payloads):
        raise ContractViolation("encode returns a payload whose layout differs from the declared one")
    return ideal_aggregate(layout, payloads, times)


def decode(decoder: Decoder, total: Aggregate) -> Update:
    """Decode an aggregate within the capacity."""
    try:
        return decoder.decode(total)
    except Exception as error:
        raise ContractViolation(
            f"decode refuses an aggregate of {total.contributors} contributors, capacity {decoder.capacity}: {error!r}"
        ) from error


def decode_alone(decoder: Decoder, payload: Payload) -> Update:
    """Decode one client's payload, which only a test may do."""
    return decode(decoder, aggregate(decoder, [payload]))


# --- Updates as trees of arrays ---------------------------------------------------------------------------------------

Leaf = npt.NDArray[Any]


def children(update: Update) -> dict[Any, Update] | None:
    """Return the parts of a dict, tuple or list by key or position, and ``None`` for an array."""
    if isinstance(update, np.ndarray | np.generic | float | int):
        return None
    if isinstance(update, Mapping):
        return dict(cast("Any", update))
    if isinstance(update, tuple | list):
        return dict(enumerate(cast("Sequence[Update]", update)))
    raise ContractViolation(f"an update must be arrays, or a dict, tuple or list of them; got {type(update).__name__}")


def assembled(like: Update, parts: Mapping[Any, Update]) -> Update:
    """Return the parts as a dict, tuple or list, like ``like``."""
    if isinstance(like, Mapping):
        return dict(parts)
    return tuple(parts.values()) if isinstance(like, tuple) else list(parts.values())


def leaves(update: Update, path: str = "update") -> dict[str, Leaf]:
    """Return the arrays of an update by their place in the tree, in order."""
    parts = children(update)
    if parts is None:
        return {path: np.asarray(update)}
    return {place: leaf for key, part in parts.items() for place, leaf in leaves(part, f"{path}[{key!r}]").items()}


def with_leaves(update: Update, change: Callable[[str, Leaf], Any], path: str = "update") -> Update:
    """Return a tree of the same structure, with arrays that ``change`` makes from places and values."""
    parts = children(update)
    if parts is None:
        return change(path, np.asarray(update))
    return assembled(update, {key: with_leaves(part, change, f"{path}[{key!r}]") for key, part in parts.items()})


def copied(update: Update) -> Update:
    """Return a copy that shares no memory with the update."""
    return with_leaves(update, lambda _, leaf: leaf.copy())


def require_identical(left: Update, right: Update, what: str) -> None:
    """Require the same arrays at the same places, bit for bit."""
    require_same_form(left, right, what)
    for place, leaf in leaves(left).items():
        other = leaves(right)[place]
        if leaf.dtype != other.dtype or leaf.tobytes() != other.tobytes():
            raise ContractViolation(f"{what} differ at {place}: {_shown(leaf)} and {_shown(other)}")


def require_same_form(left: Update, right: Update, what: str) -> None:
    """Require arrays of the same shapes at the same places."""
    shapes, others = ({place: leaf.shape for place, leaf in leaves(tree).items()} for tree in (left, right))
    if shapes != others:
        raise ContractViolation(f"{what} differ in form: {shapes} and {others}")


def require_sum(total: Update, parts: Sequence[Update], times: Sequence[int], ulps: float) -> None:
    """Require that ``total`` is the sum of the parts, each multiplied by its count.

    Integers are compared exactly. Floats may differ by ``ulps`` units in the last place of each part's largest
    magnitude, because every decoded float was rounded once.
    """
    for part in parts:
        require_same_form(total, part, "the decoded sum and a decoded summand")
    for place, leaf in leaves(total).items():
        summands = [leaves(part)[place] for part in parts]
        wide = np.dtype(object) if leaf.dtype.kind in "iu" else np.promote_types(leaf.dtype, np.float64)
        expected = sum(summand.astype(wide) * count for summand, count in zip(summands, times, strict=True))
        magnitudes = [_largest(summand) * count for summand, count in zip(summands, times, strict=True)]
        allowed = _rounding(leaf, sum(magnitudes), ulps)
        _require_close(leaf.astype(wide), expected, allowed, f"the decoded sum, at {place},", "the sum of the decoded")


def require_within(decoded: Update, expected: Update, error: Any, ulps: float) -> None:  # noqa: ANN401 -- a tree
    """Require that every coordinate is within the candidate's declared error."""
    require_same_form(decoded, expected, "the decoded and the expected update")
    everywhere = isinstance(error, int | float | np.generic)
    bounds: dict[str, Leaf] = {} if everywhere else leaves(error)
    if not everywhere and bounds.keys() != leaves(decoded).keys():
        raise InvalidParameters(
            f"the error is bounded only for {sorted(bounds)}; give a bound for every array of the update"
        )
    for place, leaf in leaves(decoded).items():
        wanted = leaves(expected)[place]
        wide = np.promote_types(np.promote_types(leaf.dtype, wanted.dtype), np.float64)
        bound = np.asarray(error if everywhere else bounds[place], dtype=wide)
        allowed = bound + _rounding(leaf, _largest(wanted) + _largest(bound), ulps)
        _require_close(leaf.astype(wide), wanted.astype(wide), allowed, f"the decoded update, at {place},", "expected")


def _require_close(left: Leaf, right: Any, allowed: Any, left_name: str, right_name: str) -> None:  # noqa: ANN401
    distance = np.abs(left - right)
    # A NaN distance is not within any bound.
    outside = ~np.asarray(distance <= allowed, dtype=bool)
    if outside.any():
        where = tuple(int(axis) for axis in np.argwhere(outside)[0])
        bound = np.broadcast_to(np.asarray(allowed), left.shape)[where]
        raise ContractViolation(
            f"{left_name} has {left[where]!s} where {right_name} has {np.asarray(right)[where]!s}, but they may "
            f"only differ by {bound!s} (coordinate {where})"
        )


def _rounding(leaf: Leaf, magnitude: float, ulps: float) -> float:
    """Return the rounding error of this array's dtype at this magnitude."""
    return ulps * float(np.finfo(leaf.dtype).eps) * magnitude if leaf.dtype.kind == "f" else 0.0


def _largest(leaf: Leaf) -> float:
    """Return the largest magnitude, but at least the smallest normal number: smaller floats are rounded like it."""
    least = float(np.finfo(leaf.dtype).smallest_normal) if leaf.dtype.kind == "f" else 0.0
    return max(least, float(np.abs(leaf.astype(np.float64)).max(initial=0.0)))


def _shown(leaf: Leaf) -> str:
    return f"{leaf.dtype} {np.array2string(leaf, threshold=8)}"
