"""LEAF's FEMNIST, CelebA and Sent140: people's own characters, pictures and messages, converted once.

``root`` is a set's folder in LEAF, such as ``leaf/data/femnist``, after LEAF's ``preprocess.sh`` has filled it. CelebA
may also lie there as it is published: its pictures, and the two files that say who is on them and who smiles.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import numpy as np
import torch

from secagg.errors import InvalidParameters
from secagg.training.models.partition import natural_partition
from secagg.training.settings.parts import Progress

from .cached import UserRows, key_of, read_cache, write_cache
from .celeba import annotated_users, picture_reader, published_files
from .leaf_files import LeafUser, label_of, leaf_paths, leaf_users
from .prepared import PreparedData, Rows, Transform, normalised
from .vader import as_tokens
from .words import LENGTH, Vocabulary, commonest, listed

_SIDE: Final = 28
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
    "femnist": _LeafSet(62, (1, _SIDE, _SIDE), "-s niid --sf 1.0 -k 0 -t sample", _scaled),
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
    if values.shape != (_SIDE * _SIDE,) or not (values.min() >= 0 and values.max() <= 1):
        raise ValueError(f"a character must have {_SIDE * _SIDE} values from 0 to 1, and has the shape {values.shape}")
    return np.rint(values * 255).astype(np.uint8).reshape(1, _SIDE, _SIDE)


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
