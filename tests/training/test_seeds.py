"""Seeds of a run: two purposes never share numbers, and nothing else affects results."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secagg.errors import InvalidParameters
from secagg.training.parts import Stream, generator, seed_bytes, seed_of, torch_seeded

words = st.integers(0, 2**32 - 1)
seeds = st.tuples(words, words, words, words)


@given(first=seeds, second=seeds)
def test_different_seeds_give_different_bytes(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    assert (seed_bytes(first) == seed_bytes(second)) is (first == second)


def test_streams_rounds_and_clients_have_numbers_of_their_own() -> None:
    made = [seed_of(7, stream, number, client) for stream in Stream for number in range(3) for client in range(3)]
    assert len({generator(seed).bytes(8) for seed in made}) == len(made)


@pytest.mark.parametrize("seed", [(1,), (1, 2, 3), (1, 2, 3, 4, 5), (2**32, 0, 0, 0), (0, 0, 0, -1)])
def test_a_seed_that_another_one_could_be_taken_for_is_refused(seed: tuple[int, ...]) -> None:
    with pytest.raises(InvalidParameters, match="each from 0"):
        generator(seed)


def test_torch_draws_as_before_after_a_seeded_part() -> None:
    before = torch.default_generator.get_state()
    with torch_seeded(seed_of(1, Stream.MODEL)):
        first = torch.rand(3)
    with torch_seeded(seed_of(1, Stream.MODEL)):
        second = torch.rand(3)
    assert np.array_equal(first, second)
    assert torch.equal(torch.default_generator.get_state(), before)
