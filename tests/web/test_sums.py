"""Clients in JavaScript take part next to clients in Python, and every sum is within a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.web
STEP = 1.0 / (2**15 - 1)


def update_of(number: int) -> list[float]:
    return [number / 10, -number / 10, 0.5, 0.0, 1.0, -1.0, 0.25, number / 7 - 0.5]


def require_mean(file: Path, numbers: range) -> None:
    expected = np.mean([np.clip(update_of(number), -1, 1) for number in numbers], axis=0)
    assert np.abs(np.load(file) - expected).max() <= STEP


@pytest.mark.parametrize("topology", ["full", "sparse"])
def test_an_active_sum_of_both_kinds_is_exact(town: Any, outcomes: Any, said: Any, topology: str) -> None:
    count = 6 if topology == "full" else 16
    keys, out = town.keys(count), town.folder / "mean.npy"
    given = ("--values", "8", "--clip", "1", "--bits", "16", "--set", f"roster={keys / 'roster.txt'}")
    url = town.serve(*given, "--set", f"topology={topology}", "--out", str(out))
    python = [town.contribute(url, update_of(n), "--identity", str(keys / f"client-{n}.key")) for n in range(2)]
    node = [town.node(url, update_of(n), "--key", str(keys / f"client-{n}.key")) for n in range(2, count)]
    for process in node:
        assert [outcome["isReleased"] for outcome in outcomes(process)] == [True]
    for process in python:
        said(process)
        assert process.returncode == 0
    require_mean(out, range(count))


def test_a_client_that_leaves_after_sharing_costs_no_sum(town: Any, outcomes: Any) -> None:
    out = town.folder / "mean.npy"
    given = ("--values", "8", "--clip", "1", "--bits", "16", "--clients", "6", "--patience", "2")
    url = town.serve(*given, "--exchange-seconds", "60", "--out", str(out))
    staying = [town.node(url, update_of(n), "--seat", str(n)) for n in range(5)]
    leaving = town.node(url, update_of(5), "--seat", "5", "--leave-at", "1")
    assert [outcome["isReleased"] for outcome in outcomes(leaving)] == [False]
    for process in staying:
        assert [outcome["isReleased"] for outcome in outcomes(process)] == [True]
    require_mean(out, range(5))


def test_values_out_of_range_are_clamped_and_counted(town: Any, outcomes: Any) -> None:
    out = town.folder / "mean.npy"
    url = town.serve("--values", "2", "--clip", "1", "--bits", "16", "--clients", "3", "--out", str(out))
    processes = [town.node(url, text, "--seat", str(n)) for n, text in enumerate(["9,-Infinity", "NaN,1", "0,0"])]
    clamped = [outcome["clamped"] for process in processes for outcome in outcomes(process)]
    assert clamped == [2, 1, 0]
    assert np.abs(np.load(out) - np.array([1 / 3, 0.0])).max() <= 2 * STEP


def test_visitors_without_a_number_are_given_seats(town: Any, outcomes: Any) -> None:
    out = town.folder / "mean.npy"
    url = town.serve("--values", "8", "--clip", "1", "--bits", "16", "--clients", "3", "--out", str(out))
    processes = [town.node(url, update_of(n)) for n in range(3)]
    assert all(outcome["isReleased"] for process in processes for outcome in outcomes(process))
    require_mean(out, range(3))
