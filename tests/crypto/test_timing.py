"""A branch on a secret is visible in the time; ``make timing`` measures the library's kernels in the same way."""

from __future__ import annotations

import numpy as np
import pytest

from tests.harness.timed_classes import COPIES, LEAKS_ABOVE, judged, timed, welch

ZEROS, ONES = [bytes(32)] * COPIES, [bytes([255]) * 32] * COPIES


def early_exit(secret: bytes) -> int:
    """Count leading zeros, and stop at the first nonzero byte: the planted leak."""
    count = 0
    for byte in secret * 64:
        if byte:
            break
        count += 1
    return count


def test_a_planted_branch_on_the_secret_is_found() -> None:
    found = timed(early_exit, ZEROS, ONES, load=bytes, most=4000)
    assert found.t > LEAKS_ABOVE, found
    assert found.difference > 0
    assert found.verdict == "depends on the input"


def test_the_quicker_class_is_told_by_the_sign() -> None:
    assert timed(early_exit, ONES, ZEROS, load=bytes, most=4000).t < -LEAKS_ABOVE


def test_a_leak_below_interruptions_is_found_in_the_quick_part() -> None:
    """In a plain mean, interruptions of a millisecond hide one nanosecond in a hundred."""
    rng = np.random.default_rng(1)
    noise = [np.where(rng.random(20_000) < 0.05, rng.exponential(1e6, 20_000), 0.0) for _ in range(2)]
    fixed = 101 + rng.standard_normal(20_000) + noise[0]
    random = 100 + rng.standard_normal(20_000) + noise[1]
    assert abs(welch(fixed, random)) < LEAKS_ABOVE
    found = judged(fixed, random)
    assert found.t > LEAKS_ABOVE
    assert found.share < 1
    assert found.difference == pytest.approx(1, abs=0.2)


def test_one_distribution_is_no_leak() -> None:
    rng = np.random.default_rng(2)
    found = judged(rng.exponential(100, 20_000), rng.exponential(100, 20_000))
    assert found.verdict == "nothing seen", found


def test_t_is_the_difference_of_means_in_standard_errors() -> None:
    """Computed by hand: means 2 and 4, variances 1 and 4, three values each."""
    left, right = np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0])
    assert welch(left, right) == pytest.approx(-2 / (5 / 3) ** 0.5)
    assert welch(right, left) == -welch(left, right)
    assert welch(left[:1].repeat(2), left[:1].repeat(2)) == 0
    assert welch(right[:1].repeat(2), left[:1].repeat(2)) == np.inf


def test_every_call_is_one_measurement_of_its_class() -> None:
    """A clock that counts: calls with zeros take three ticks, others one."""
    now, due = [0], list[int]()

    def clock() -> int:
        return now[0]

    def run(cost: int) -> None:
        now[0] += cost
        due.append(cost)

    found = timed(run, [3] * COPIES, [1] * COPIES, load=int, most=1000, clock=clock)
    assert found.measurements == 1000
    assert found.t == np.inf
    assert found.difference == 2
    assert {1, 3} == set(due[-50:]), "classes do not take turns"


def test_classes_of_different_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="the same number of inputs"):
        timed(early_exit, ZEROS, ONES[1:], load=bytes, most=1)
