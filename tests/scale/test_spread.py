"""What a sum that others add does while uploads come."""

from __future__ import annotations

from pathlib import Path

import pytest

from secagg.scale.storage import FolderStore
from tests.harness.spread_sums import Life, Place


def test_uploads_are_added_while_others_come(tmp_path: Path) -> None:
    """A session hands over four at once; their four tasks are done when the next one comes."""
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
    with pytest.raises(ConnectionError, match="was done 3 times over"):
        life.finish()
