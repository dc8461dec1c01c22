"""Partitions of examples over clients."""

import numpy as np
import pytest

from secagg.errors import InvalidParameters
from secagg.training.datasets.prepared import LEAST_EXAMPLES, Dealing, dirichlet_partition, natural_partition

LABELS = np.arange(4000) % 10


def skew(parts: list[np.ndarray[tuple[int], np.dtype[np.int64]]]) -> float:
    """Return the mean share of a client's most common label."""
    return float(np.mean([np.bincount(LABELS[part], minlength=10).max() / len(part) for part in parts]))


@pytest.mark.parametrize("alpha", [0.05, 1.0, 100.0])
def test_no_example_is_dealt_twice_and_every_client_has_some(alpha: float) -> None:
    parts = dirichlet_partition(LABELS, Dealing(clients=100, alpha=alpha))
    dealt = np.concatenate(parts)
    assert len(parts) == 100
    assert min(map(len, parts)) >= LEAST_EXAMPLES
    assert len(np.unique(dealt)) == len(dealt) >= 0.97 * len(LABELS)


def test_a_small_alpha_gives_clients_few_labels() -> None:
    skews = [skew(dirichlet_partition(LABELS, Dealing(clients=100, alpha=alpha))) for alpha in (0.05, 1.0, 100.0)]
    assert skews[0] > 0.6
    assert 0.25 < skews[1] < 0.5
    assert skews[2] < 0.25


def test_sizes_spread_as_asked() -> None:
    sizes = [
        [len(part) for part in dirichlet_partition(LABELS, Dealing(clients=100, spread=spread))] for spread in (0, 0.5)
    ]
    assert set(sizes[0]) == {40}
    assert 0.3 < np.log(sizes[1]).std() < 0.7


def test_as_many_clients_as_there_can_be_are_dealt_to() -> None:
    parts = dirichlet_partition(LABELS, Dealing(clients=1000, spread=1.0))
    assert {len(part) for part in parts} == {LEAST_EXAMPLES}


def test_a_partition_follows_from_its_seed_alone() -> None:
    first, again, other = (dirichlet_partition(LABELS, Dealing(clients=50, seed=seed)) for seed in (3, 3, 4))
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))


@pytest.mark.parametrize("dealing", [Dealing(clients=0), Dealing(clients=1001), Dealing(alpha=0), Dealing(spread=-1)])
def test_a_partition_that_cannot_be_made_is_refused(dealing: Dealing) -> None:
    with pytest.raises(InvalidParameters):
        dirichlet_partition(LABELS, dealing)


def test_owners_keep_their_examples_in_order() -> None:
    parts = natural_partition(["b", "a", "b", "c", "a", "b"])
    assert [part.tolist() for part in parts] == [[0, 2, 5], [1, 4], [3]]
