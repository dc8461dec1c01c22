"""LEAF's FEMNIST, CelebA and Sent140, converted once from LEAF's own files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import torch

from secagg.errors import InvalidParameters, Reason
from secagg.training.settings.parts import Progress, Stream, generator, seed_of

from .partition import natural_partition
from .prepared import (
    LENGTH,
    PreparedData,
    Rows,
    Transform,
    UserRows,
    Vocabulary,
    commonest,
    key_of,
    listed,
    normalised,
    read_cache,
    write_cache,
)
from .vader import as_tokens


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


_CHARACTER: Final = 28
_TEXT: Final = 4
"""The place of the text in a row of Sent140."""
_EMBEDDINGS: Final = "embs.json"
_WORDS: Final = 9929
"""Of the vocabulary where there is no embs.json: with all else and padding, the paper's embedding of 9,931 rows."""

Reader = Callable[[object], Rows]
"""Makes a stored row of an item; a ValueError says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class _LeafSet:
    classes: int
    shape: tuple[int, ...]
    recipe: str
    """What LEAF's preprocess.sh is called with."""
    transform: Transform


def _scaled(rows: Rows, client: int | None) -> torch.Tensor:
    del client
    return normalised(rows.astype(np.float32) / np.float32(255), mean=0.5, deviation=0.5)


_SETS: Final[Mapping[str, _LeafSet]] = {
    "femnist": _LeafSet(62, (1, _CHARACTER, _CHARACTER), "-s niid --sf 1.0 -k 0 -t sample", _scaled),
    "celeba": _LeafSet(2, (3, 32, 32), "--sf 1.0 -k 0 --iu 1 -s niid -t user --tf 0.90 --spltseed 1", _scaled),
    "sent140": _LeafSet(2, (LENGTH,), "--sf 0.01 -s niid -t user --tf 0.90 -k 1 --spltseed 1", as_tokens),
}
LEAF_SETS: Final = tuple(_SETS)


def leaf(name: str, root: Path | None, *, clients: int | None = None, cache: Path | None = None) -> PreparedData:
    """Return a set of LEAF, converted if that was not done before; each training user is a client.

    Args:
        clients: how many users there are at most; the first ones are taken.
        cache: where the converted set is kept; by default in ``root``.

    Raises:
        InvalidParameters: files are missing or damaged; the message says which command makes them.
    """
    train, test, vocabulary = read_cache(prepare_leaf(name, root, cache=cache))
    facts = _SETS[name]
    owners = [] if train.owners is None else list[int](train.owners.tolist())
    return PreparedData(
        name=name,
        classes=facts.classes,
        shape=facts.shape,
        train=train,
        parts=natural_partition(owners, least=1)[:clients],
        held_out=test,
        transform=facts.transform,
        vocabulary=vocabulary,
    )


def prepare_leaf(name: str, root: Path | None, *, cache: Path | None = None, progress: Progress | None = None) -> Path:
    """Convert a set into its cache, unless that was done before, and return where it is.

    Raises:
        InvalidParameters: files are missing or damaged; the message says which command makes them.
    """
    recipe = (
        f"run `./preprocess.sh {_SETS[name].recipe}` in LEAF's folder data/{name}, and then "
        f"`secagg data prepare {name} --root LEAF/data/{name}`"
    )
    if root is None or not root.is_dir():
        where = "needs the folder of its files" if root is None else f"is to be read from {root}, which is no folder"
        raise InvalidParameters(f"the data set {name} {where}; {recipe}")
    published = published_files(root) if name == "celeba" else None
    halves = [] if published else [leaf_paths(root, half, recipe) for half in ("train", "test")]
    places = (root / _EMBEDDINGS, root / "data" / _EMBEDDINGS) if name == "sent140" else ()
    beside = [path for path in places if path.is_file()]
    inputs = list(published or [*halves[0], *halves[1], *beside[:1]])
    folder = (cache or root / "secagg-cache") / f"{name}-{key_of(inputs, name, published is not None)}"
    if folder.exists():
        return folder
    if published:
        write_cache(folder, *annotated_users(root, published, progress))
        return folder
    reader, vocabulary = _reader(name, root, halves[0], beside)
    train, test = (
        _converted(paths, reader, _SETS[name].classes, _steps(progress, before, len(halves[0]) + len(halves[1])))
        for paths, before in zip(halves, (0, len(halves[0])), strict=True)
    )
    write_cache(folder, train, test, vocabulary)
    return folder


def _reader(name: str, root: Path, train: Sequence[Path], embeddings: Sequence[Path]) -> tuple[Reader, int | None]:
    """Return what converts an item, and the size of the vocabulary where items are texts."""
    match name:
        case "femnist":
            return _character, None
        case "celeba":
            return picture_reader(root), None
        case _:
            vocabulary = _words(embeddings[0]) if embeddings else _counted_words(train)
            return lambda item: vocabulary.row(_text(item)), vocabulary.size


def _converted(
    paths: Sequence[Path], reader: Reader, classes: int, report: Callable[[int], None]
) -> Iterator[UserRows]:
    for done, path in enumerate(paths, start=1):
        for user in leaf_users(path):
            if user.items:
                yield _converted_user(path, user, reader, classes)
        report(done)


def _converted_user(path: Path, user: LeafUser, reader: Reader, classes: int) -> UserRows:
    rows = list[Rows]()
    for place, item in enumerate(user.items):
        try:
            rows.append(reader(item))
        except ValueError as error:
            raise InvalidParameters(f"{path}: example {place} of the user {user.name!r}: {error}") from error
    labels = [label_of(label, classes, user.name) for label in user.labels]
    return UserRows(user.name, np.stack(rows), np.array(labels, dtype=np.int64))


def _character(item: object) -> Rows:
    try:
        values = np.array(item, dtype=np.float32)
    except TypeError as error:
        raise ValueError("a character must be a list of numbers") from error
    if values.shape != (_CHARACTER * _CHARACTER,) or not (values.min() >= 0 and values.max() <= 1):
        raise ValueError(
            f"a character must have {_CHARACTER * _CHARACTER} values from 0 to 1, and has the shape {values.shape}"
        )
    return np.rint(values * 255).astype(np.uint8).reshape(1, _CHARACTER, _CHARACTER)


def _text(item: object) -> str:
    fields = cast("list[object]", item) if isinstance(item, list) else []
    text = fields[_TEXT] if len(fields) > _TEXT else None
    if not isinstance(text, str):
        raise ValueError("a message must be a row of id, date, query, user and text")  # noqa: TRY004 -- of its form
    return text


def _words(path: Path) -> Vocabulary:
    """Read the list of words that stands beside LEAF's word vectors."""
    try:
        words = cast("object", json.loads(path.read_bytes())["vocab"])
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise InvalidParameters(f"{path} is no JSON object with a list `vocab` ({error})") from error
    if not isinstance(words, list) or not all(isinstance(word, str) for word in cast("list[object]", words)):
        raise InvalidParameters(f"{path}: `vocab` must be a list of words")
    return listed(cast("list[str]", words))


def _counted_words(train: Sequence[Path]) -> Vocabulary:
    def texts() -> Iterator[str]:
        for path in train:
            for user in leaf_users(path):
                for item in user.items:
                    try:
                        yield _text(item)
                    except ValueError as error:
                        raise InvalidParameters(f"{path}: the user {user.name!r}: {error}") from error

    return commonest(texts(), _WORDS)


def _steps(progress: Progress | None, before: int, count: int) -> Callable[[int], None]:
    return lambda done: None if progress is None else progress(before + done, count)
