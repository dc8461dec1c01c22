"""A sum that workers add, while uploads arrive."""

from __future__ import annotations

from pathlib import Path

import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters
from secagg.scale.engines import Engine, Result
from secagg.scale.spread import OFFER, State
from secagg.scale.storage import FolderStore
from tests.harness.spread_sums import Life, Place


def test_uploads_are_added_while_others_come(tmp_path: Path) -> None:
    """A session passes on four at once; their four tasks are done when the next one arrives."""
    told = list[tuple[int, int, int]]()
    place = Place(tmp_path / "place")
    life = Life(
        place, progress=lambda figures: told.append((figures.tasks_done, figures.tasks_left, figures.bytes_kept))
    )
    life.upload()
    each = life.sum.figures.bytes_kept // len(place.clients)
    assert told == [(4, 0, 5 * each)]
    assert place.is_exact(life.finish())
    assert told[-1] == (6, 0, 6 * each)


def test_a_storage_that_loses_every_sum_ends_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life, read = Life(Place(tmp_path / "place")), FolderStore.read
    life.upload()

    def losing(self: FolderStore, name: str, size: int) -> memoryview | None:
        return read(self, name, size) if "/pieces/" in name else None

    monkeypatch.setattr(FolderStore, "read", losing)
    with pytest.raises(ConnectionError, match=r"after 3 retries: .* was lost"):
        life.finish()


def test_a_folder_is_let_go_once_everything_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies in between finds the sum again, and no other process begins a second one."""
    place, remove, seen = Place(tmp_path / "place"), FolderStore.remove, list[bool]()
    life = Life(place)
    life.upload()

    def removing(self: FolderStore, name: str) -> None:
        seen.append((place.state / OFFER).exists())
        with pytest.raises(InvalidParameters, match="in use"):
            State(place.state, SystemCoins())
        remove(self, name)

    monkeypatch.setattr(FolderStore, "remove", removing)
    assert place.is_exact(life.finish())
    assert seen
    assert all(seen)


class Idle(Engine):
    """Does nothing."""

    def wait(self, seconds: float) -> list[Result]:
        del seconds
        return []


def test_an_end_keeps_neither_sums_nor_tasks(tmp_path: Path) -> None:
    for number, engine in enumerate((Engine(), Idle())):
        life = Life(Place(tmp_path / str(number)), engine)
        life.upload()
        adder = life.sum
        if number:
            life.session.abort()
        else:
            life.session.close_stage()
            assert adder._sums  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
            life.session.abort()
        assert not adder._sums  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        assert not adder._left  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
