"""A scheme as the kit must know it: how it is made, which updates it takes or refuses, and how exact it is."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.strategies import SearchStrategy

from secagg.contract import Aggregate, LinearDecoder, Payload, ideal_aggregate
from secagg.crypto.entropy import Coins
from secagg.errors import ContractViolation, PeerError

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
    """Build the decoder from public parameters alone; called often, so expensive parameters are made once."""
    updates: SearchStrategy[Update]
    """Updates that the scheme takes, in every dtype that it takes; small ones, for speed."""
    error: float | Callable[[Update], Any]
    """The most by which a coordinate, decoded alone, differs from ``expected``: a number, or of each update a number or
    a tree of arrays like it."""
    expected: Callable[[Update], Update] = _itself
    """The decoded update without rounding: clipped, or with zeros where a mask removes a coordinate."""
    extremes: Sequence[Update] = ()
    """Updates that drive the codes to both ends of their range; needed where the layout has rings."""
    bad_updates: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Updates that the scheme must refuse, by name; NaN, infinity, wrong shapes and wrong types are tried in any case.
    """
    others: Mapping[str, Callable[[], LinearDecoder[Any]]] = field(
        default_factory=dict[str, Callable[[], LinearDecoder[Any]]]
    )
    """The scheme with one public parameter changed, by the name of the change; one for every parameter."""
    stochastic: bool = False
    """Whether encoding draws coins."""
    tight_capacity: bool = True
    """Whether one more than the capacity, with all at an extreme, leaves a ring; say False where another bound, such as
    the exactness of floats, is met first."""
    payload_bytes: int | None = None
    """Bytes of one client's values by the author's own count, where there is one."""
    ulps: float = 8.0
    """Tolerated error of the decoder's floats, in units in the last place of the largest summand."""

    def __str__(self) -> str:
        return self.name


# --- Coins ------------------------------------------------------------------------------------------------------------


class InsecureCountedCoins:
    """An endless stream of coins that anybody who knows the seed can repeat."""

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
    """Hold a call to being refused by an error of its kind; ``done`` says what else it did."""
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
    """A candidate, and the search settings under which one law is tried on it."""

    candidate: Candidate
    settings: settings

    def search(self, holds: Callable[[st.DataObject], None], name: str) -> None:
        """Run a property on drawn data until it fails or the settings have enough."""

        def trial(data: st.DataObject) -> None:
            holds(data)

        # Hypothesis shows this name with a counterexample, and files the example under it.
        trial.__name__ = re.sub(r"\W", "_", f"{name}_of_{self.candidate}")
        try:
            self.settings(given(st.data())(trial))()
        except Flaky as flaky:
            raise ContractViolation(
                "the scheme does one thing with an update and its coins once, and another the next time"
            ) from flaky

    def update(self, data: st.DataObject) -> Update:
        return data.draw(self.candidate.updates, label="update")

    def clients(self, data: st.DataObject, most: int) -> list[Update]:
        """Draw the updates of one to ``most`` clients, extremes among them."""
        extremes = list(self.candidate.extremes)
        one = self.candidate.updates | st.sampled_from(extremes) if extremes else self.candidate.updates
        return data.draw(st.lists(one, min_size=1, max_size=most), label="updates")


def searched(holds: Callable[[Trial, st.DataObject], None]) -> Callable[[Trial], None]:
    """Return a law that looks for a counterexample to a property."""

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
        raise ContractViolation(f"encode refuses an update that the candidate calls valid: {error!r}") from error


def aggregate(decoder: Decoder, payloads: Sequence[Payload], weights: Sequence[int] | None = None) -> Aggregate:
    """Add up payloads as a protocol does."""
    layout = decoder.layout
    if any(payload.layout != layout for payload in payloads):
        raise ContractViolation("encode gives a payload of another layout than the scheme declares")
    return ideal_aggregate(layout, payloads, weights)


def decode(decoder: Decoder, total: Aggregate) -> Update:
    """Decode an aggregate that is within the capacity."""
    try:
        return decoder.decode(total)
    except Exception as error:
        raise ContractViolation(
            f"decode refuses an aggregate of weight {total.total_weight}, capacity {decoder.capacity}: {error!r}"
        ) from error


def decode_alone(decoder: Decoder, payload: Payload) -> Update:
    """Decode one client's payload, which only a test may do."""
    return decode(decoder, aggregate(decoder, [payload]))
