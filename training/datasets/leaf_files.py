"""LEAF's files: JSON by user, as its ``preprocess.sh`` writes it; read one file at a time, and checked.

A set's folder holds ``data/train/*.json`` and ``data/test/*.json``. File names encode how the set was sampled and are
not read; all files of a folder count, in the order of their names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from secagg.errors import InvalidParameters


@dataclass(frozen=True, slots=True)
class LeafUser:
    """What one file holds of one user."""

    name: str
    items: list[object]
    labels: list[object]


def leaf_paths(root: Path, half: str, recipe: str) -> list[Path]:
    """Return the JSON files of the ``train`` or the ``test`` half.

    Args:
        recipe: the command that makes them, for the error.

    Raises:
        InvalidParameters: there are none.
    """
    folders = [folder for folder in (root / "data" / half, root / half) if folder.is_dir()]
    paths = sorted(path for folder in folders[:1] for path in folder.glob("*.json"))
    if not paths:
        where = folders[0] if folders else root / "data" / half
        raise InvalidParameters(f"there is no JSON of LEAF in {where}; {recipe}")
    return paths


def leaf_users(path: Path) -> Iterator[LeafUser]:
    """Yield the users of one file, in the order of its list.

    Raises:
        InvalidParameters: the file is no JSON, or not of LEAF's form; the message says where.
    """
    try:
        loaded: object = json.loads(path.read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidParameters(f"{path} is no JSON ({error}); make it again with LEAF's preprocess.sh") from error
    whole = _table(loaded, path, "the file")
    users, data = whole.get("users"), _table(whole.get("user_data"), path, "`user_data`")
    if not isinstance(users, list):
        raise InvalidParameters(f"{path}: `users` must be a list of names; make it again with LEAF's preprocess.sh")
    counts = whole.get("num_samples")
    for place, user in enumerate(cast("list[object]", users)):
        if not isinstance(user, str) or user not in data:
            raise InvalidParameters(f"{path}: `user_data` has nothing of the user {user!r}, who is listed")
        own = _table(data[user], path, f"the entry of {user!r}")
        items, labels = own.get("x"), own.get("y")
        if not isinstance(items, list) or not isinstance(labels, list) or len(items) != len(labels):  # pyright: ignore[reportUnknownArgumentType]
            raise InvalidParameters(f"{path}: `x` and `y` of the user {user!r} must be lists of one length")
        found = LeafUser(user, cast("list[object]", items), cast("list[object]", labels))
        if isinstance(counts, list) and cast("list[object]", counts)[place : place + 1] != [len(found.items)]:
            raise InvalidParameters(f"{path}: `num_samples` of {user!r} is not the {len(found.items)} that are there")
        yield found


def label_of(value: object, classes: int, user: str) -> int:
    """Return a label as a number.

    Raises:
        InvalidParameters: it is none of the classes.
    """
    if isinstance(value, int | float) and value in range(classes):
        return int(value)
    raise InvalidParameters(f"the label {value!r} of the user {user!r} is none of 0 to {classes - 1}")


def _table(value: object, path: Path, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InvalidParameters(f"{path}: {what} must be a JSON object; make it again with LEAF's preprocess.sh")
    return cast("dict[str, object]", value)
