"""One run of a law on one candidate: Hypothesis searches for a counterexample, and every call is guarded."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from secagg.contract import Aggregate, LinearDecoder, Payload, ideal_aggregate
from secagg.crypto.entropy import Coins
from secagg.errors import ContractViolation

from .candidate import Candidate, Update
from .coins import InsecureCountedCoins

Decoder = LinearDecoder[Any]


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate, and the search settings under which one law is tried on it."""

    candidate: Candidate
    settings: settings

    def search(self, holds: Callable[[st.DataObject], None], name: str) -> None:
        """Run a property on drawn data until it fails or the settings have enough.

        Raises:
            ContractViolation: it failed, or it failed and then passed on the same data.
        """

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
        """Draw a valid update."""
        return data.draw(self.candidate.updates, label="update")

    def clients(self, data: st.DataObject, most: int) -> list[Update]:
        """Draw the updates of one to ``most`` clients, extremes among them."""
        extremes = list(self.candidate.extremes)
        one = self.candidate.updates | st.sampled_from(extremes) if extremes else self.candidate.updates
        return data.draw(st.lists(one, min_size=1, max_size=most), label="updates")


def draw_seed(data: st.DataObject) -> bytes:
    """Draw the seed of one client's coins."""
    return data.draw(st.binary(max_size=4), label="coins")


def encode(decoder: Decoder, update: Update, seed: bytes = b"") -> Payload:
    """Encode a valid update with the coins of a seed."""
    return encode_with(decoder, update, InsecureCountedCoins(seed))


def encode_with(decoder: Decoder, update: Update, coins: Coins) -> Payload:
    """Encode a valid update.

    Raises:
        ContractViolation: the scheme raised an error.
    """
    try:
        return decoder.encode(update, coins)
    except Exception as error:
        raise ContractViolation(f"encode refuses an update that the candidate calls valid: {error!r}") from error


def aggregate(decoder: Decoder, payloads: Sequence[Payload], weights: Sequence[int] | None = None) -> Aggregate:
    """Add up payloads as a protocol does.

    Raises:
        ContractViolation: a payload is not of the layout that the scheme declares.
    """
    layout = decoder.layout
    if any(payload.layout != layout for payload in payloads):
        raise ContractViolation("encode gives a payload of another layout than the scheme declares")
    return ideal_aggregate(layout, payloads, weights)


def decode(decoder: Decoder, total: Aggregate) -> Update:
    """Decode an aggregate that is within the capacity.

    Raises:
        ContractViolation: the scheme raised an error.
    """
    try:
        return decoder.decode(total)
    except Exception as error:
        raise ContractViolation(
            f"decode refuses an aggregate of weight {total.total_weight}, capacity {decoder.capacity}: {error!r}"
        ) from error


def decode_alone(decoder: Decoder, payload: Payload) -> Update:
    """Decode one client's payload, which only a test may do."""
    return decode(decoder, aggregate(decoder, [payload]))
