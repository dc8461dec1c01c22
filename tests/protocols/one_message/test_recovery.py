"""What a server makes of the holders' answers, where one number is the last that counts."""

from __future__ import annotations

from dataclasses import replace
from math import comb
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.protocols.one_message.decoding import MOST_SUBSETS, Recovered, recovered
from secagg.protocols.one_message.masks import epoch_ring
from secagg.protocols.one_message.opening import Opening, WrongSecret, largest_entry
from secagg.protocols.one_message.parameters import FIELD, Parameters
from secagg.protocols.one_message.sharing import (
    WORD,
    challenge_weights,
    holder_point,
    multiply,
    slot_points,
    transfer_matrix,
)
from tests.harness.one_message_sums import COINS, InsecureSum, SumSetup, recover

COLUMNS, LARGEST = 20, 900


@pytest.fixture(scope="module")
def parameters() -> Parameters:
    """Return those of a sum, but that three of seven answers are enough, and four can be spared."""
    return replace(InsecureSum(SumSetup(holders=7)).offer().agree().parameters, threshold=3, packing=1)


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


def test_liars_in_columns_of_their_own_are_found_where_there_are_too_many_sets_to_leave_out() -> None:
    """One combination of all columns finds them; a column alone would show one of them."""
    count, threshold, liars = 40, 20, range(0, 24, 3)
    assert comb(count, len(liars)) > MOST_SUBSETS
    parameters = SimpleNamespace(
        threshold=threshold, corrupted=len(liars), packing=1, secret_columns=COLUMNS, degree=COLUMNS
    )
    generator = np.random.default_rng(1)
    short = generator.integers(-LARGEST, LARGEST + 1, (1, COLUMNS))
    values = np.concatenate([short % FIELD, generator.integers(0, FIELD, (threshold - 1, COLUMNS))])
    sources = (*slot_points(1), *map(holder_point, range(threshold - 1)))
    words = multiply(transfer_matrix(sources, tuple(map(holder_point, range(count)))), values)
    for index, liar in enumerate(liars):
        words[liar, index] += 1
    answers = {position: (row % FIELD).astype(WORD).tobytes() for position, row in enumerate(words)}
    found = next(recovered(cast("Parameters", parameters), answers, LARGEST, COINS))
    assert np.array_equal(found.sum_secret, short[0])
    assert (found.suspects, found.is_proven) == (frozenset(liars), True)


@given(data=st.data(), corrupted=st.integers(1, 3), spare=st.integers(0, 6), rank=st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_planned_liars_neither_hide_the_sum_nor_frame_a_holder(
    data: st.DataObject, corrupted: int, spare: int, rank: int
) -> None:
    """For any threshold, number of liars and rank of their errors; those of rank 0 lie in a column of their own."""
    packing = data.draw(st.sampled_from([1, 2]))
    threshold = data.draw(st.integers(corrupted + packing, corrupted + packing + 4))
    count = threshold + data.draw(st.integers(0, spare))
    liars = data.draw(st.permutations(range(count)))[: data.draw(st.integers(0, min(corrupted, count - threshold)))]
    generator = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    parameters = SimpleNamespace(
        threshold=threshold, corrupted=corrupted, packing=packing, secret_columns=COLUMNS, degree=COLUMNS * packing
    )
    short = generator.integers(-LARGEST, LARGEST + 1, (packing, COLUMNS))
    values = np.concatenate([short % FIELD, generator.integers(0, FIELD, (threshold - packing, COLUMNS))])
    sources = (*slot_points(packing), *map(holder_point, range(threshold - packing)))
    words = multiply(transfer_matrix(sources, tuple(map(holder_point, range(count)))), values)
    for index, liar in enumerate(liars):
        if rank:
            basis = np.random.default_rng(rank).integers(0, FIELD, (rank, COLUMNS))
            words[liar] += generator.integers(1, FIELD, rank) @ basis
        else:
            words[liar, index] += generator.integers(1, FIELD)
    answers = {position: (row % FIELD).astype(WORD).tobytes() for position, row in enumerate(words)}
    found = list(recovered(cast("Parameters", parameters), answers, LARGEST, COINS))
    right = [one for one in found if np.array_equal(one.sum_secret.reshape(packing, COLUMNS), short)]
    assert len(right) == 1
    assert right[0].suspects == frozenset(liars)
    assert right[0].is_proven is (count - len(liars) >= threshold + corrupted)
    assert not [one for one in found if one.is_proven and one is not right[0]]


# --- Liars who choose what they say -----------------------------------------------------------------------------------


def words_of(threshold: int, count: int, short: np.ndarray) -> np.ndarray:
    """Return what honest holders answer; the polynomials are random but for their values at the slot."""
    values = np.concatenate([short % FIELD, np.random.default_rng(2).integers(0, FIELD, (threshold - 1, COLUMNS))])
    sources = (*slot_points(1), *map(holder_point, range(threshold - 1)))
    return multiply(transfer_matrix(sources, tuple(map(holder_point, range(count)))), values)


def found_in(words: np.ndarray, threshold: int, corrupted: int) -> list[Recovered]:
    parameters = SimpleNamespace(
        threshold=threshold, corrupted=corrupted, packing=1, secret_columns=COLUMNS, degree=COLUMNS
    )
    answers = {position: (row % FIELD).astype(WORD).tobytes() for position, row in enumerate(words)}
    return list(recovered(cast("Parameters", parameters), answers, LARGEST, COINS))


def test_as_many_answers_as_hold_enough_honest_ones_convict_the_holder_that_is_off() -> None:
    """Of T + c answers that agree c may be lies, and the other T give the polynomial."""
    words = words_of(4, 6, np.full((1, COLUMNS), 3))
    words[2] += 1
    (found,) = found_in(words, 4, 1)
    assert (found.suspects, found.is_proven) == (frozenset({2}), True)


def test_two_liars_who_make_an_honest_holder_the_odd_one_out_do_not_hide_the_sum(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five of six answers lie on one polynomial, which proves nothing; the short sum is that of the other four."""
    generator = np.random.default_rng(3)
    short = generator.integers(-LARGEST, LARGEST + 1, (1, COLUMNS))
    words, away = words_of(4, 6, short), generator.integers(1, FIELD, COLUMNS)
    for liar in (0, 1):
        words[liar] += away * (np.prod([liar - honest for honest in (2, 3, 4)]) % FIELD)
    for most in (MOST_SUBSETS, comb(6, 2)):
        monkeypatch.setattr("secagg.protocols.one_message.decoding.MOST_SUBSETS", most)
        wrong, right = found_in(words, 4, 2)
        assert wrong.suspects == {5}
        assert not wrong.is_proven
        assert np.array_equal(right.sum_secret, short[0])
        assert right.suspects == {0, 1}


def test_a_set_with_a_liar_is_not_tried_because_it_would_give_zeros() -> None:
    """The entries of the right sum are as large as they may be, and those of the other set lie on no polynomial."""
    short = np.where(np.arange(COLUMNS) % 2, LARGEST, -LARGEST)[None]
    words, others = words_of(3, 6, short), (2, 3, 4)
    weights = transfer_matrix(tuple(map(holder_point, (0, *others))), slot_points(1))[0].astype(np.int64)
    words[0] = -(weights[1:] @ words[list(others)]) * pow(int(weights[0]), -1, FIELD) % FIELD
    words[1] = np.random.default_rng(4).integers(0, FIELD, COLUMNS)
    (right,) = found_in(words, 3, 2)
    assert np.array_equal(right.sum_secret, short[0])
    assert right.suspects == {0, 1}


def test_a_combination_in_which_nobody_lies_leaves_the_others_to_find_the_liars(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There are too many sets to leave out one after the other."""
    count, threshold, liars = 40, 20, range(0, 24, 3)
    short = np.full((1, COLUMNS), 5)
    words = words_of(threshold, count, short)
    for index, liar in enumerate(liars):
        words[liar, index] += 1

    def weights(parameters: Parameters, challenge: bytes) -> np.ndarray:
        made = challenge_weights(parameters, challenge)
        made[:, 0] = 0
        return made

    monkeypatch.setattr("secagg.protocols.one_message.decoding.challenge_weights", weights)
    found = found_in(words, threshold, len(liars))[0]
    assert np.array_equal(found.sum_secret, short[0])
    assert found.suspects == frozenset(liars)


def test_a_sum_of_secrets_may_have_the_largest_entry_of_one_secret_and_none_beyond() -> None:
    agreement = InsecureSum().offer().agree()
    opening = Opening(epoch_ring(agreement.parameters, agreement.epoch.seed))
    secret = np.zeros(agreement.parameters.degree, np.int32)
    secret[0] = -int(largest_entry(1))
    opening.require_plausible(secret, 1)
    secret[0] -= 1
    with pytest.raises(WrongSecret, match="an entry is too large"):
        opening.require_plausible(secret, 1)
