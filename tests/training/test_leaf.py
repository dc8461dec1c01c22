"""LEAF's sets in LEAF's own formats: small valid and invalid files of each."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from secagg.errors import InvalidParameters
from secagg.training.datasets import LEAF_SETS, federated_data, prepare_leaf
from secagg.training.datasets.prepared import read_cache

USERS = ("f0001_41", "f0002_07", "f0003_12")


def leaf_json(entries: dict[str, tuple[list[Any], list[Any]]]) -> dict[str, Any]:
    return {
        "users": list(entries),
        "num_samples": [len(x) for x, _ in entries.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in entries.items()},
        "hierarchies": [],
    }


def numbers(tensor: torch.Tensor) -> list[int]:
    return [int(value) for value in tensor]


def character(number: int) -> list[float]:
    return [((number + place) % 256) / 255 for place in range(784)]


def message(text: str) -> list[str]:
    return ["1467810369", "Mon Apr 06 22:19:45 PDT 2009", "NO_QUERY", "somebody", text, "training"]


def write(root: Path, half: str, content: dict[str, Any], name: str = "all_data_0_0_keep_0_train_9.json") -> Path:
    folder = root / "data" / half
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder / name


@pytest.fixture
def femnist(tmp_path: Path) -> Path:
    train = {
        user: ([character(i + 10 * k) for i in range(3 + k)], [i + k for i in range(3 + k)])
        for k, user in enumerate(USERS)
    }
    first = {user: train[user] for user in USERS[:2]}
    write(tmp_path, "train", leaf_json({USERS[2]: train[USERS[2]]}), "all_data_1_niid_0_keep_0_train_9.json")
    write(tmp_path, "train", leaf_json(first))
    write(tmp_path, "test", leaf_json({USERS[1]: ([character(7)], [61]), "f0009_99": ([character(8)] * 2, [0, 1])}))
    return tmp_path


@pytest.fixture
def sent140(tmp_path: Path) -> Path:
    train = {f"user{k}": ([message(f"I love this, number {k} !"), message("so sad")], [1, 0]) for k in range(3)}
    write(tmp_path, "train", leaf_json(train))
    write(tmp_path, "test", leaf_json({"other": ([message("sad love")], [0])}))
    return tmp_path


def pictures(root: Path, folder: str = "data/raw") -> dict[str, np.ndarray[Any, np.dtype[np.uint8]]]:
    place = root / folder / "img_align_celeba"
    place.mkdir(parents=True)
    coins, wanted = np.random.default_rng(0), dict[str, np.ndarray[Any, np.dtype[np.uint8]]]()
    for number in range(1, 7):
        smooth = Image.fromarray(coins.integers(0, 256, (6, 5, 3), dtype=np.uint8)).resize((178, 218))
        smooth.save(place / f"{number:06}.jpg")
        with Image.open(place / f"{number:06}.jpg") as opened:
            # The shorter side, 178 pixels, becomes 32, and the longer 39; 4 pixels are cut off above and 3 below.
            small = np.asarray(opened.resize((32, 39), Image.Resampling.BILINEAR))
        wanted[f"{number:06}.jpg"] = small[4:36].transpose(2, 0, 1)
    return wanted


def test_files_are_merged_in_the_order_of_their_names_and_users_keep_theirs(femnist: Path) -> None:
    data = federated_data("femnist", root=femnist)
    assert data.sizes.tolist() == [3, 4, 5]
    assert (data.classes, data.shape, data.vocabulary) == (62, (1, 28, 28), None)
    assert numbers(data.client(1).targets) == [1, 2, 3, 4]
    wanted = torch.tensor(character(11), dtype=torch.float32).reshape(1, 28, 28) * 2 - 1
    torch.testing.assert_close(data.client(1).inputs[1], wanted)


def test_texts_become_words_of_the_list_that_lies_beside_them(sent140: Path) -> None:
    vectors = {"vocab": ["love", "sad", "!"], "emba": [[0.0] * 300] * 4}
    (sent140 / "embs.json").write_text(json.dumps(vectors), encoding="utf-8")
    data = federated_data("sent140", root=sent140)
    assert data.vocabulary == 4
    assert numbers(data.client(2).inputs[0]) == [3, 0, 3, 3, 3, 3, 2, *[3] * 18]
    assert numbers(data.client(2).targets) == [1, 0]
    assert numbers(data.test().inputs[0, :3]) == [1, 0, 3]


def test_without_a_list_the_words_of_the_training_texts_are_counted(sent140: Path) -> None:
    data = federated_data("sent140", root=sent140)
    # 0, 1, 2, I, love, number, sad, so, this, a comma and an exclamation mark; unknown words; padding.
    assert data.vocabulary == 13
    assert data.client(0).inputs.max().item() == 12


def test_pictures_are_resized_as_pillow_does_and_their_centre_is_cut_out(tmp_path: Path) -> None:
    wanted, names = pictures(tmp_path), [f"{number:06}.jpg" for number in range(1, 7)]
    people = {str(2880 + k): (names[2 * k : 2 * k + 2], [0.0, 1.0]) for k in range(3)}
    write(tmp_path, "train", leaf_json({user: people[user] for user in ("2880", "2881")}))
    write(tmp_path, "test", leaf_json({"2882": people["2882"]}))
    data = federated_data("celeba", root=tmp_path)
    assert numbers(data.client(1).targets) == [0, 1]
    for place, name in enumerate(names[2:4]):
        assert np.array_equal(data.train.rows[data.parts[1][place]], wanted[name])
        shown = (data.client(1).inputs[place].numpy() * 0.5 + 0.5) * 255
        np.testing.assert_allclose(shown, wanted[name], atol=1e-3)


def test_a_missing_picture_is_named(tmp_path: Path) -> None:
    pictures(tmp_path)
    write(tmp_path, "train", leaf_json({"2880": (["000001.jpg", "000009.jpg"], [0.0, 1.0])}))
    write(tmp_path, "test", leaf_json({"2881": (["000002.jpg"], [0.0])}))
    with pytest.raises(InvalidParameters, match=r"example 1 of the user '2880'.*000009.jpg"):
        federated_data("celeba", root=tmp_path)


@pytest.mark.parametrize("item", ["../000001.jpg", 7])
def test_a_picture_outside_of_the_folder_is_refused(tmp_path: Path, item: object) -> None:
    pictures(tmp_path)
    write(tmp_path, "train", leaf_json({"2880": ([item], [0.0])}))
    write(tmp_path, "test", leaf_json({"2881": (["000002.jpg"], [0.0])}))
    with pytest.raises(InvalidParameters, match="is not a file name"):
        federated_data("celeba", root=tmp_path)


@pytest.mark.parametrize("name", LEAF_SETS)
def test_a_missing_folder_names_the_commands_that_make_it(name: str, tmp_path: Path) -> None:
    for root in (None, tmp_path / "nowhere", tmp_path):
        with pytest.raises(InvalidParameters, match=rf"preprocess.sh .*secagg train data prepare {name} --root"):
            federated_data(name, root=root)


FIRST = ("user_data", "f0001_41")


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("users",), None, "`users` must be a list"),
        (("users",), [*USERS[:2], 3], "no entry of the listed user 3"),
        (("user_data",), None, "`user_data` must be a JSON object"),
        (("user_data",), {}, "no entry of the listed user 'f0001_41'"),
        ((*FIRST,), [], "the entry of 'f0001_41' must be a JSON object"),
        ((*FIRST, "x"), None, "lists of one length"),
        ((*FIRST, "y"), [1, 2], "lists of one length"),
        (("num_samples",), [4, 3], "`num_samples` of 'f0001_41' does not match its 3 examples"),
        ((*FIRST, "x", 2), character(0)[1:], "example 2 of the user 'f0001_41'"),
        ((*FIRST, "x", 0), [2.0] * 784, "values from 0 to 1"),
        ((*FIRST, "x", 0), [float("nan")] * 784, "values from 0 to 1"),
        ((*FIRST, "x", 0), ["a"] * 784, "example 0"),
        ((*FIRST, "x", 0), {"a": 1}, "example 0"),
        ((*FIRST, "y", 0), 62, "62 of the user 'f0001_41'"),
        ((*FIRST, "y", 0), float("nan"), "is not between 0 and 61"),
        ((*FIRST, "y", 0), "a", "is not between 0 and 61"),
    ],
)
def test_corrupt_json_is_refused_with_its_place(
    femnist: Path, place: tuple[str | int, ...], value: object, message: str
) -> None:
    path = femnist / "data" / "train" / "all_data_0_0_keep_0_train_9.json"
    content: Any = json.loads(path.read_text(encoding="utf-8"))
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(InvalidParameters, match=message):
        federated_data("femnist", root=femnist)
    assert not list((femnist / "secagg-cache").iterdir())


@pytest.mark.parametrize("raw", [b"", b"{", b'{"users": [}', b"\xff\xfe", b"[]"])
def test_a_file_that_is_no_json_is_named(femnist: Path, raw: bytes) -> None:
    (femnist / "data" / "train" / "all_data_0_0_keep_0_train_9.json").write_bytes(raw)
    with pytest.raises(InvalidParameters, match=r"all_data_0_0_keep_0_train_9\.json"):
        federated_data("femnist", root=femnist)


@pytest.mark.parametrize("vectors", ["{", "[]", '{"words": []}', '{"vocab": [1]}'])
def test_word_vectors_without_words_are_refused(sent140: Path, vectors: str) -> None:
    (sent140 / "embs.json").write_text(vectors, encoding="utf-8")
    with pytest.raises(InvalidParameters, match=r"embs.json.*vocab"):
        federated_data("sent140", root=sent140)


@pytest.mark.parametrize("item", ["only a text", ["1", "2"], [1, 2, 3, 4, 5, 6]])
def test_a_message_of_another_form_is_refused(sent140: Path, item: object) -> None:
    write(sent140, "train", leaf_json({"user0": ([item], [0])}))
    with pytest.raises(InvalidParameters, match="must be a row of id"):
        federated_data("sent140", root=sent140)


def test_a_set_is_converted_once_and_mapped_into_memory(femnist: Path) -> None:
    seen = list[tuple[int, int]]()
    folder = prepare_leaf("femnist", femnist, progress=lambda done, count: seen.append((done, count)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert prepare_leaf("femnist", femnist, progress=lambda done, count: seen.append((done, count))) == folder
    assert len(seen) == 3
    train, _, _ = read_cache(folder)
    assert isinstance(train.rows, np.memmap)
    assert train.rows.dtype == np.uint8


def test_changed_files_make_another_cache(femnist: Path) -> None:
    before = prepare_leaf("femnist", femnist)
    write(femnist, "test", leaf_json({"f0007_00": ([character(0)] * 3, [0, 1, 2])}))
    assert prepare_leaf("femnist", femnist) != before
    assert len(federated_data("femnist", root=femnist).test()) == 3


def test_a_damaged_cache_says_that_it_can_be_removed(femnist: Path) -> None:
    folder = prepare_leaf("femnist", femnist)
    for name in ("train.rows", "test.facts.json", "train.labels.npy"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:10])
        with pytest.raises(InvalidParameters, match="remove it"):
            federated_data("femnist", root=femnist)
        (folder / name).write_bytes(whole)


def test_a_cache_that_cannot_be_written_is_refused(femnist: Path) -> None:
    (femnist / "secagg-cache").write_text("", encoding="utf-8")
    with pytest.raises(InvalidParameters, match="make its folder writable"):
        federated_data("femnist", root=femnist)
