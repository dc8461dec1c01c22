"""What a sum that others add does while uploads come."""

from __future__ import annotations

from pathlib import Path

from tests.harness.spread_sums import Life, Place


def test_uploads_are_added_while_others_come(tmp_path: Path) -> None:
    """A session hands over four at once; their four tasks are done when the next one comes."""
    told = list[tuple[int, int]]()
    place = Place(tmp_path / "place")
    life = Life(place, progress=lambda figures: told.append((figures.tasks_done, figures.bytes_kept)))
    life.upload()
    each = life.sum.figures.bytes_kept // len(place.clients)
    assert told == [(4, 5 * each)]
    assert place.is_exact(life.finish())
    assert told[-1] == (6, 6 * each)
