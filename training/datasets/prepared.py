"""Training data in arrays, partitioned over clients; and LEAF's FEMNIST, CelebA and Sent140, from LEAF's files."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from secagg.errors import InvalidParameters, Reason
from secagg.session.durable import PUBLIC, replace, replacing
from secagg.training.parts import Examples, Progress, Stream, generator, seed_of

try:
    import torch
except ModuleNotFoundError as missing:
    raise ImportError(
        "secagg.training needs torch; install it with: pip install '.[train]' in a checkout", name=missing.name
    ) from missing

Indices = npt.NDArray[np.int64]

LEAST_EXAMPLES: Final = 4
"""Minimum number of examples of a client; with fewer its training is noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealing:
    """How examples without owners are partitioned over clients."""

    clients: int = 200
    alpha: float = 1.0
    """Similarity of the clients' labels; 0.1 gives most clients one or two labels, 100 gives each client all."""
    spread: float = 0.35
    """Standard deviation of the logarithm of the sizes; 0 makes them equal."""
    seed: int = 0


def dirichlet_partition(labels: npt.NDArray[np.int64], dealing: Dealing) -> list[Indices]:
    """Partition examples so that clients differ in size and in their label distribution.

    A client's size follows a log-normal distribution, and its labels a Dirichlet distribution. If a label has run out,
    the client takes the one with the most examples left. No example is used twice.
    """
    clients, alpha, spread = dealing.clients, dealing.alpha, dealing.spread
    if clients < 1 or clients * LEAST_EXAMPLES > len(labels):
        raise InvalidParameters(
            f"{len(labels)} examples cannot be divided among {clients} clients; "
            f"use 1 to {len(labels) // LEAST_EXAMPLES} clients, so that each has at least {LEAST_EXAMPLES}"
        )
    if not alpha > 0 or not spread >= 0:
        raise InvalidParameters(f"alpha must be above 0 and the spread of sizes at least 0; got {alpha} and {spread}")
    coins = generator(seed_of(dealing.seed, Stream.PARTITION))
    count = int(labels.max()) + 1
    pools = [list[int](coins.permutation(np.flatnonzero(labels == label)).tolist()) for label in range(count)]
    left = np.array([len(pool) for pool in pools])
    parts = list[Indices]()
    for size in _sizes(len(labels), clients, spread, coins):
        wanted = coins.choice(count, size, p=coins.dirichlet([alpha] * count))
        part = np.empty(size, dtype=np.int64)
        for place, label in enumerate(wanted.tolist()):
            given = label if left[label] else int(left.argmax())
            part[place] = pools[given].pop()
            left[given] -= 1
        parts.append(part)
    return parts


def _sizes(examples: int, clients: int, spread: float, coins: np.random.Generator) -> list[int]:
    """Draw sizes whose sum is at most the number of examples."""
    shares = coins.lognormal(0.0, spread, clients)
    sizes = np.maximum(LEAST_EXAMPLES, np.floor(shares / shares.sum() * examples)).astype(np.int64)
    while (excess := int(sizes.sum()) - examples) > 0:
        largest = int(sizes.argmax())
        sizes[largest] -= min(excess, int(sizes[largest]) - LEAST_EXAMPLES)
    return list[int](sizes.tolist())


def natural_partition(owners: Sequence[object]) -> list[Indices]:
    """Group examples by owner, in the order of the owners' first examples."""
    by_owner = dict[object, list[int]]()
    for index, owner in enumerate(owners):
        by_owner.setdefault(owner, []).append(index)
    return [np.array(indices, dtype=np.int64) for indices in by_owner.values()]


Rows = npt.NDArray[np.generic]
Transform = Callable[[Rows, int | None], torch.Tensor]
"""Converts stored rows to a model's inputs; the number is the client's, None for test examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Stored examples; ``owners`` has the owner of each, if known."""

    rows: Rows
    labels: npt.NDArray[np.int64]
    owners: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    """A data set as the driver uses it."""

    name: str
    classes: int
    shape: tuple[int, ...]
    """Shape of one input."""
    train: Split
    parts: Sequence[Indices]
    """Rows of each client, by its number."""
    held_out: Split
    transform: Transform
    vocabulary: int | None = None
    """Number of tokens of an embedding, if inputs are tokens."""

    sizes: npt.NDArray[np.int64] = field(init=False)
    """Number of training examples of each client."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", np.array([len(part) for part in self.parts], dtype=np.int64))
        self.sizes.flags.writeable = False

    def client(self, number: int) -> Examples:
        if not 0 <= number < len(self.parts):
            raise InvalidParameters(f"there is no client {number}; clients are numbered 0 to {len(self.parts) - 1}")
        part = self.parts[number]
        return Examples(self.transform(self.train.rows[part], number), torch.as_tensor(self.train.labels[part]))

    def test(self) -> Examples:
        labels = torch.as_tensor(np.array(self.held_out.labels))
        return Examples(self.transform(self.held_out.rows, None), labels)


def normalised(images: npt.NDArray[np.float32], *, mean: float, deviation: float) -> torch.Tensor:
    """Shift and scale values from 0..1 to the range that training expects."""
    return torch.as_tensor((images - np.float32(mean)) / np.float32(deviation))


def as_tokens(rows: Rows, client: int | None) -> torch.Tensor:
    """Return stored numbers as tokens of an embedding."""
    del client
    return torch.as_tensor(rows.astype(np.int64))


_FORMAT: Final = 1
_KEY_DIGITS: Final = 20
_FACTS: Final = "facts.json"


@dataclass(frozen=True, slots=True)
class UserRows:
    """A user's converted examples."""

    user: str
    rows: Rows
    labels: npt.NDArray[np.int64]


def key_of(paths: Iterable[Path], *options: object) -> str:
    """Return the cache key of inputs: it changes with an option, or a file's name, size or modification time."""
    lines = [f"format {_FORMAT}", *map(repr, options)]
    for path in paths:
        state = path.stat()
        lines.append(f"{path.name} {state.st_size} {state.st_mtime_ns}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:_KEY_DIGITS]


def write_cache(
    folder: Path, train: Iterator[UserRows], test: Iterator[UserRows], vocabulary: int | None = None
) -> None:
    """Write both halves, one user at a time, and move the complete folder into place."""
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise InvalidParameters(
            f"the cache {folder} cannot be made ({error}); make its folder writable, or copy the data"
        ) from error
    try:
        for half, users in (("train", train), ("test", test)):
            _write_half(partial, half, users, vocabulary)
        if not folder.exists():
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_half(folder: Path, half: str, users: Iterator[UserRows], vocabulary: int | None) -> None:
    names, owners, labels = dict[str, int](), list[int](), list[npt.NDArray[np.int64]]()
    shape, dtype = list[int](), ""
    with replacing(folder / f"{half}.rows", PUBLIC) as file:
        for found in users:
            owner = names.setdefault(found.user, len(names))
            owners += [owner] * len(found.rows)
            labels.append(found.labels)
            shape, dtype = list(found.rows.shape[1:]), found.rows.dtype.str
            file.write(np.ascontiguousarray(found.rows).tobytes())
    if not owners:
        raise InvalidParameters(f"the {half} half has no examples; check how the set was sampled")
    for name, array in (("labels", np.concatenate(labels)), ("owners", np.array(owners, dtype=np.int64))):
        # Given a path, numpy would write through a buffer and miss a full disk's error on its last bytes.
        with replacing(folder / f"{half}.{name}.npy", PUBLIC) as file:
            np.save(file, array)
    facts = {"shape": shape, "dtype": dtype, "users": list(names), "vocabulary": vocabulary}
    replace(folder / f"{half}.{_FACTS}", json.dumps(facts).encode(), PUBLIC)


def read_cache(folder: Path) -> tuple[Split, Split, int | None]:
    """Map both halves into memory; return them and the vocabulary's size."""
    try:
        train, train_facts = _read_half(folder, "train")
        test, _ = _read_half(folder, "test")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidParameters(f"the cache {folder} is damaged ({error}); remove it to rebuild it") from error
    return train, test, train_facts["vocabulary"]


def _read_half(folder: Path, half: str) -> tuple[Split, dict[str, Any]]:
    facts: dict[str, Any] = json.loads((folder / f"{half}.{_FACTS}").read_text(encoding="utf-8"))
    labels = np.load(folder / f"{half}.labels.npy", allow_pickle=False)
    owners = np.load(folder / f"{half}.owners.npy", allow_pickle=False)
    shape = (len(labels), *facts["shape"])
    rows = np.memmap(folder / f"{half}.rows", dtype=np.dtype(facts["dtype"]), mode="r", shape=shape)
    return Split(rows=rows, labels=labels, owners=owners), facts


LENGTH: Final = 25
"""Number of words read from a text."""
_WORD: Final = re.compile(r"[\w']+|[.,!?;]")


def words_of(text: str) -> list[str]:
    """Split a text into words and punctuation marks."""
    return _WORD.findall(text)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words with a number each; all unknown words share one number, and padding has one."""

    numbers: Mapping[str, int]
    unknown: int
    padding: int

    @property
    def size(self) -> int:
        return max(self.unknown, self.padding) + 1

    def row(self, text: str) -> npt.NDArray[np.int32]:
        found = [self.numbers.get(word, self.unknown) for word in words_of(text)[:LENGTH]]
        return np.array(found + [self.padding] * (LENGTH - len(found)), dtype=np.int32)


def commonest(texts: Iterable[str], count: int) -> Vocabulary:
    """Return the most frequent words; equally frequent ones in alphabetical order."""
    found = Counter(word for text in texts for word in words_of(text))
    words = sorted(found, key=lambda word: (-found[word], word))[:count]
    return Vocabulary({word: number for number, word in enumerate(words)}, len(words), len(words) + 1)


def listed(words: Sequence[str]) -> Vocabulary:
    """Return the vocabulary of a list, as in LEAF: one more number is for unknown words and padding."""
    return Vocabulary({word: number for number, word in enumerate(words)}, len(words), len(words))


@dataclass(frozen=True, slots=True)
class LeafUser:
    """One user's part of one file."""

    name: str
    items: list[object]
    labels: list[object]


def leaf_paths(root: Path, half: str, recipe: str) -> list[Path]:
    """Return the JSON files of the ``train`` or the ``test`` half.

    Args:
        recipe: the command that makes the files, for the error.
    """
    folders = [folder for folder in (root / "data" / half, root / half) if folder.is_dir()]
    paths = sorted(path for folder in folders[:1] for path in folder.glob("*.json"))
    if not paths:
        where = folders[0] if folders else root / "data" / half
        raise InvalidParameters(f"there is no JSON of LEAF in {where}; {recipe}")
    return paths


def leaf_users(path: Path) -> Iterator[LeafUser]:
    """Yield the users of one file, in its order."""
    try:
        loaded: object = json.loads(path.read_bytes())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidParameters(f"{path} is not JSON ({error}); make it again with LEAF's preprocess.sh") from error
    whole = _table(loaded, path, "the file")
    users, data = whole.get("users"), _table(whole.get("user_data"), path, "`user_data`")
    if not isinstance(users, list):
        raise InvalidParameters(f"{path}: `users` must be a list of names; make it again with LEAF's preprocess.sh")
    counts = whole.get("num_samples")
    for place, user in enumerate(cast("list[object]", users)):
        if not isinstance(user, str) or user not in data:
            raise InvalidParameters(f"{path}: `user_data` has no entry of the listed user {user!r}")
        own = _table(data[user], path, f"the entry of {user!r}")
        items, labels = own.get("x"), own.get("y")
        if not isinstance(items, list) or not isinstance(labels, list) or len(items) != len(labels):  # pyright: ignore[reportUnknownArgumentType]
            raise InvalidParameters(f"{path}: `x` and `y` of the user {user!r} must be lists of one length")
        found = LeafUser(user, cast("list[object]", items), cast("list[object]", labels))
        if isinstance(counts, list) and cast("list[object]", counts)[place : place + 1] != [len(found.items)]:
            raise InvalidParameters(f"{path}: `num_samples` of {user!r} does not match its {len(found.items)} examples")
        yield found


def label_of(value: object, classes: int, user: str) -> int:
    """Return a label as a number."""
    if isinstance(value, int | float) and value in range(classes):
        return int(value)
    raise InvalidParameters(f"the label {value!r} of the user {user!r} is not between 0 and {classes - 1}")


def _table(value: object, path: Path, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InvalidParameters(f"{path}: {what} must be a JSON object; make it again with LEAF's preprocess.sh")
    return cast("dict[str, object]", value)


_SIDE: Final = 32

Picture = npt.NDArray[np.uint8]


def picture_reader(root: Path) -> Callable[[object], Picture]:
    """Return a function that reads a picture by its file name."""
    try:
        image: Any = import_module("PIL.Image")
    except ImportError as error:
        raise InvalidParameters(
            "reading CelebA's pictures needs Pillow; install it with `pip install '.[leaf]'` in a checkout",
            reason=Reason.BACKEND_MISSING,
        ) from error
    folder = _raw(root) / "img_align_celeba"

    def read(name: object) -> Picture:
        if not isinstance(name, str) or Path(name).name != name:
            raise ValueError(f"{name!r} is not a file name")
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


def _raw(root: Path) -> Path:
    return next((folder for folder in (root / "data" / "raw", root / "raw") if folder.is_dir()), root / "data" / "raw")


_CHARACTER: Final = 28
_TEXT: Final = 4
"""Index of the text in a row of Sent140."""
_EMBEDDINGS: Final = "embs.json"
_WORDS: Final = 9929
"""Words of the vocabulary without embs.json: with the unknown word and padding, the paper's embedding of 9,931 rows.
"""

Reader = Callable[[object], Rows]
"""Converts an item to a stored row; raises ValueError for a faulty item."""


@dataclass(frozen=True, slots=True)
class _LeafSet:
    classes: int
    shape: tuple[int, ...]
    recipe: str
    """Arguments of LEAF's preprocess.sh."""
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


def leaf(name: str, root: Path | None, *, clients: int | None = None) -> PreparedData:
    """Return a set of LEAF, converted on first use; each training user is a client.

    Args:
        clients: maximum number of users; the first ones are used.
    """
    train, test, vocabulary = read_cache(prepare_leaf(name, root))
    facts = _SETS[name]
    owners = [] if train.owners is None else list[int](train.owners.tolist())
    return PreparedData(
        name=name,
        classes=facts.classes,
        shape=facts.shape,
        train=train,
        parts=natural_partition(owners)[:clients],
        held_out=test,
        transform=facts.transform,
        vocabulary=vocabulary,
    )


def prepare_leaf(name: str, root: Path | None, *, progress: Progress | None = None) -> Path:
    """Convert a set into its cache, unless it exists, and return its path."""
    recipe = (
        f"run `./preprocess.sh {_SETS[name].recipe}` in LEAF's folder data/{name}, and then "
        f"`secagg train data prepare {name} --root LEAF/data/{name}`"
    )
    if root is None or not root.is_dir():
        where = "needs the folder of its files" if root is None else f"is read from {root}, which is not a folder"
        raise InvalidParameters(f"the data set {name} {where}; {recipe}")
    halves = [leaf_paths(root, half, recipe) for half in ("train", "test")]
    places = (root / _EMBEDDINGS, root / "data" / _EMBEDDINGS) if name == "sent140" else ()
    embeddings = [path for path in places if path.is_file()]
    inputs = [*halves[0], *halves[1], *embeddings[:1]]
    folder = root / "secagg-cache" / f"{name}-{key_of(inputs, name)}"
    if folder.exists():
        return folder
    reader, vocabulary = _reader(name, root, halves[0], embeddings)
    train, test = (
        _converted(paths, reader, _SETS[name].classes, _steps(progress, before, len(halves[0]) + len(halves[1])))
        for paths, before in zip(halves, (0, len(halves[0])), strict=True)
    )
    write_cache(folder, train, test, vocabulary)
    return folder


def _reader(name: str, root: Path, train: Sequence[Path], embeddings: Sequence[Path]) -> tuple[Reader, int | None]:
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
    """Read the list of words next to LEAF's word vectors."""
    try:
        words = cast("object", json.loads(path.read_bytes())["vocab"])
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise InvalidParameters(f"{path} is not a JSON object with a list `vocab` ({error})") from error
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
