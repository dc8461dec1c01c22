"""CelebA's pictures: opened, made 32 pixels wide and high, and sorted by who is on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from secagg.errors import InvalidParameters, Reason
from secagg.training.settings.parts import Progress
from secagg.training.settings.seeds import Stream, generator, seed_of

from .cached import UserRows

_SIDE: Final = 32
_LEAST: Final = 5
"""How many pictures a person has in LEAF's selection."""
_TEST_SHARE: Final = 10
"""One person in so many is a test person."""
_ATTRIBUTE: Final = "Smiling"
_IDENTITIES: Final = "identity_CelebA.txt"
_ATTRIBUTES: Final = "list_attr_celeba.txt"

Picture = npt.NDArray[np.uint8]


def picture_reader(root: Path) -> Callable[[object], Picture]:
    """Return what reads a picture by its file name.

    Raises:
        InvalidParameters: Pillow is not installed.
    """
    try:
        image: Any = import_module("PIL.Image")
    except ImportError as error:
        raise InvalidParameters(
            "reading CelebA's pictures needs Pillow; install it with `pip install 'secagg[leaf]'`",
            reason=Reason.BACKEND_MISSING,
        ) from error
    folder = _raw(root) / "img_align_celeba"

    def read(name: object) -> Picture:
        if not isinstance(name, str) or Path(name).name != name:
            raise ValueError(f"{name!r} is no file name")
        try:
            with image.open(folder / name) as opened:
                return small(opened, image)
        except OSError as error:
            raise ValueError(f"the picture {folder / name} cannot be read ({error})") from error

    return read


def small(opened: Any, image: Any) -> Picture:  # noqa: ANN401 -- Pillow's, which need not be installed
    """Resize the shorter side to 32 pixels, and cut out the centre."""
    width, height = cast("tuple[int, int]", opened.size)
    shorter = min(width, height)
    size = (_SIDE * width // shorter, _SIDE * height // shorter)
    resized = opened.convert("RGB").resize(size, image.Resampling.BILINEAR)
    left, top = round((size[0] - _SIDE) / 2), round((size[1] - _SIDE) / 2)
    pixels = np.asarray(resized.crop((left, top, left + _SIDE, top + _SIDE)), dtype=np.uint8)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def published_files(root: Path) -> tuple[Path, Path] | None:
    """Return the published files of identities and attributes, where there are no JSON files and both are there."""
    paths = _raw(root) / _IDENTITIES, _raw(root) / _ATTRIBUTES
    has_json = any((root / "data" / "train").glob("*.json")) or any((root / "train").glob("*.json"))
    return paths if not has_json and all(path.is_file() for path in paths) else None


def annotated_users(
    root: Path, paths: tuple[Path, Path], progress: Progress | None
) -> tuple[Iterator[UserRows], Iterator[UserRows]]:
    """Return people with enough pictures, nine in ten of them to train on, chosen at random once and for all.

    Raises:
        InvalidParameters: the files do not have the form in which CelebA is published, or there are too few people.
    """
    smiles = _smiles(paths[1])
    by_person = dict[str, list[str]]()
    for line in paths[0].read_text(encoding="utf-8").splitlines():
        fields = line.split()
        if len(fields) != 2 or fields[0] not in smiles:  # noqa: PLR2004 -- a file name and a person
            raise InvalidParameters(f"{paths[0]}: {line[:40]!r} must be a picture of {paths[1].name}, and a person")
        by_person.setdefault(fields[1], []).append(fields[0])
    people = [person for person, pictures in by_person.items() if len(pictures) >= _LEAST]
    held_out = -(-len(people) // _TEST_SHARE)
    if len(people) <= held_out:
        raise InvalidParameters(f"{paths[0]} has {len(people)} people with {_LEAST} pictures; take all of CelebA")
    places = generator(seed_of(0, Stream.VALIDATION)).permutation(len(people))
    order = [people[int(place)] for place in places]
    read = picture_reader(root)

    def users(chosen: list[str], before: int) -> Iterator[UserRows]:
        for place, person in enumerate(chosen, start=1):
            names = by_person[person]
            try:
                rows = np.stack([read(name) for name in names])
            except ValueError as error:
                raise InvalidParameters(str(error)) from error
            yield UserRows(person, rows, np.array([smiles[name] for name in names], dtype=np.int64))
            if progress is not None:
                progress(before + place, len(people))

    return users(order[held_out:], 0), users(order[:held_out], len(people) - held_out)


def _smiles(path: Path) -> dict[str, int]:
    lines = path.read_text(encoding="utf-8").splitlines()
    names = lines[1].split() if len(lines) > 1 else []
    if _ATTRIBUTE not in names:
        raise InvalidParameters(f"{path}: the second line must name the attributes, {_ATTRIBUTE} among them")
    column = names.index(_ATTRIBUTE) + 1
    found = dict[str, int]()
    for line in lines[2:]:
        fields = line.split()
        if len(fields) != len(names) + 1 or fields[column] not in {"1", "-1"}:
            raise InvalidParameters(f"{path}: {line[:40]!r} must be a picture and {len(names)} times 1 or -1")
        found[fields[0]] = int(fields[column] == "1")
    return found


def _raw(root: Path) -> Path:
    return next((folder for folder in (root / "data" / "raw", root / "raw") if folder.is_dir()), root / "data" / "raw")
