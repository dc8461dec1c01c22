"""The latch against two restores, tested on its own: increasing numbers, whole names, private and synced folders."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from secagg.errors import InvalidParameters, Misuse, Reason
from secagg.session.sealed_state import NAME_BYTES, Latch, MemoryLatch
from secagg.session.store import Store

NAME, OTHER = b"n" * NAME_BYTES, b"o" * NAME_BYTES


@pytest.fixture(params=["in memory", "in a folder"])
def latch(request: pytest.FixtureRequest, tmp_path: Path) -> Latch:
    return MemoryLatch() if request.param == "in memory" else Store(tmp_path / "latch")


def test_a_number_is_claimed_once_and_in_order(latch: Latch) -> None:
    latch.begin(NAME)
    latch.begin(OTHER)
    for number in range(3):
        for wrong in {0, 1, 2, 3} - {number}:
            with pytest.raises(Misuse, match="not the newest") as refused:
                latch.claim(NAME, wrong)
            assert refused.value.reason is Reason.ALREADY_SPENT
        latch.claim(NAME, number)
    latch.claim(OTHER, 0)


def test_a_name_begins_once_and_is_gone_after_its_end(latch: Latch) -> None:
    latch.end(NAME)
    latch.begin(NAME)
    with pytest.raises(Misuse, match="already suspended"):
        latch.begin(NAME)
    latch.begin(OTHER)
    latch.end(NAME)
    with pytest.raises(Misuse, match="session is over"):
        latch.claim(NAME, 0)
    latch.claim(OTHER, 0)
    with pytest.raises(Misuse):
        latch.begin(OTHER)


@pytest.mark.parametrize("wrong", [b"", NAME[:-1], NAME + b"n", NAME.hex(), bytearray(NAME), None])
def test_a_session_is_named_by_a_bytes_object(tmp_path: Path, wrong: Any) -> None:
    latch = Store(tmp_path / "latch")
    with pytest.raises(InvalidParameters, match="16 bytes"):
        latch.begin(wrong)
    with pytest.raises(InvalidParameters, match="16 bytes"):
        latch.claim(wrong, 0)


def test_a_folder_that_others_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latch").mkdir(mode=0o755)
    with pytest.raises(InvalidParameters, match="private to this user"):
        Store(tmp_path / "latch")


def test_only_one_of_many_processes_resumes_a_record(tmp_path: Path) -> None:
    latch = Store(tmp_path / "latch")
    latch.begin(bytes(16))
    won = list[int]()

    def claim(turn: int) -> None:
        with suppress(Misuse):
            Store.at(tmp_path / "latch").claim(bytes(16), 0)
            won.append(turn)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(claim, range(32)))
    assert len(won) == 1
    latch.claim(bytes(16), 1)
    latch.end(bytes(16))
    with pytest.raises(Misuse):
        latch.claim(bytes(16), 2)
