"""What a server makes of the holders' answers, where one number is the last that counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from secagg.errors import PeerMisbehaved, Reason
from secagg.protocols.one_message.parameters import Parameters, ThresholdRule
from secagg.protocols.one_message.recovery import recover
from secagg.protocols.one_message.sharing_field import FIELD, WORD
from tests.harness.one_message_sums import InsecureSum, SumSetup


@pytest.fixture(scope="module")
def parameters() -> Parameters:
    """Return those of a sum, but that three of seven answers are enough, and four can be spared."""
    return replace(
        InsecureSum(SumSetup(holders=7, rule=ThresholdRule.CERTIFIED)).offer().agree().parameters,
        threshold=3,
        packing=1,
    )


def answer(parameters: Parameters, element: int, *, wrong: int = 0) -> bytes:
    """Return what every holder answers of a constant polynomial, with so many columns that are not its."""
    words = np.full(parameters.secret_columns, element, np.int64)
    words[:wrong] = (words[:wrong] + 1) % FIELD
    return words.astype(WORD).tobytes()


@pytest.mark.parametrize(("element", "centred"), [(FIELD // 2, FIELD // 2), (FIELD // 2 + 1, -(FIELD // 2)), (0, 0)])
def test_elements_are_centred_around_zero(parameters: Parameters, element: int, centred: int) -> None:
    found = recover(parameters, {place: answer(parameters, element) for place in range(parameters.threshold)})
    assert found.suspects == frozenset()
    assert set(found.sum_secret.tolist()) == {centred}


def test_as_many_liars_as_can_be_told_are_found_and_one_more_are_not(parameters: Parameters) -> None:
    holders = range(7)
    correctable = (len(holders) - parameters.threshold) // 2
    assert correctable >= 1

    def answers(liars: int) -> dict[int, bytes]:
        # Each by another amount, so that no two of them agree.
        return {place: answer(parameters, 5 + (place + 1) * (place < liars)) for place in holders}

    found = recover(parameters, answers(correctable))
    assert found.suspects == frozenset(range(correctable))
    assert set(found.sum_secret.tolist()) == {5}
    with pytest.raises(PeerMisbehaved, match="do not agree") as caught:
        recover(parameters, answers(correctable + 1))
    assert caught.value.reason is Reason.SHARES_IRRECONCILABLE


def test_a_liar_that_is_right_in_other_columns_is_found_by_the_one_that_is_wrong(parameters: Parameters) -> None:
    answers = {place: answer(parameters, 5, wrong=int(place == 3)) for place in range(7)}
    assert recover(parameters, answers).suspects == frozenset({3})
