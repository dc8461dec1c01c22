"""Bundled and installed data, and rated texts."""

import gzip
import io
import tarfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch

from secagg.errors import InvalidParameters
from secagg.training.datasets import federated_data
from secagg.training.datasets.prepared import LENGTH, commonest, listed
from secagg.training.datasets.sources import Bytes, bundled, packed, tokens, unpacked
from secagg.training.parts import FederatedData

HALVES = {"train": 60, "t10k": 20}


def write_idx(path: Path, array: Bytes) -> None:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(length.to_bytes(4) for length in array.shape)
    path.write_bytes(gzip.compress(head + array.tobytes()))


@pytest.fixture
def full_set(tmp_path: Path) -> Path:
    coins = np.random.default_rng(0)
    for half, count in HALVES.items():
        write_idx(tmp_path / f"{half}-images-idx3-ubyte.gz", coins.integers(0, 256, (count, 28, 28), dtype=np.uint8))
        write_idx(tmp_path / f"{half}-labels-idx1-ubyte.gz", (np.arange(count) % 10).astype(np.uint8))
    return tmp_path


def test_the_bundled_subset_is_what_it_says() -> None:
    train, test = bundled()
    assert train.rows.shape == (12_000, 1, 28, 28)
    assert test.rows.shape == (2_000, 1, 28, 28)
    assert np.bincount(train.labels).min() > 1_100
    assert np.bincount(test.labels).min() > 150
    assert set(np.unique(train.rows).tolist()) == set(range(0, 256, 17))


def test_the_notice_lies_beside_the_subset() -> None:
    folder = resources.files("secagg.training.datasets")
    assert "MIT License" in (folder / "FASHION_MNIST_LICENSE.txt").read_text(encoding="utf-8")
    assert "Zalando SE" in (folder / "FASHION_MNIST_LICENSE.txt").read_text(encoding="utf-8")


def test_clients_images_are_normalised_and_theirs_alone() -> None:
    data: FederatedData = federated_data("fashion", clients=100, seed=1)
    clients = [data.client(number) for number in range(100)]
    assert [len(examples) for examples in clients] == data.sizes.tolist()
    assert clients[0].inputs.shape[1:] == (1, 28, 28)
    everything = torch.cat([examples.inputs for examples in clients])
    assert abs(everything.mean().item()) < 0.02
    assert abs(everything.std().item() - 1) < 0.02
    assert torch.equal(data.client(7).inputs, clients[7].inputs)
    assert len(data.test()) == 2_000


def test_a_client_who_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidParameters, match="0 to 49"):
        federated_data("fashion", clients=50).client(50)


def test_four_bits_keep_an_image_to_half_a_level() -> None:
    images = np.arange(256, dtype=np.uint8).repeat(49).reshape(16, 28, 28)
    assert np.abs(unpacked(packed(images))[:, 0].astype(int) - images).max() <= 8


def test_the_full_set_is_read_from_its_folder(full_set: Path) -> None:
    data = federated_data("fashion-full", root=full_set, clients=5)
    assert (data.name, len(data.test()), data.classes) == ("fashion-full", 20, 10)
    assert sum(data.sizes) <= 60


def test_a_missing_full_set_names_the_package(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameters, match="apt install dataset-fashion-mnist"):
        federated_data("fashion-full", root=tmp_path)


SPOILS: tuple[Callable[[bytes], bytes], ...] = (
    lambda raw: raw[:-1],
    lambda raw: raw[: len(raw) // 2],
    lambda raw: b"no archive" + raw,
    lambda raw: gzip.compress(raw[:3]),
    lambda raw: gzip.compress(gzip.decompress(raw)[:-1]),
    lambda raw: gzip.compress(raw[:0]),
)


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_damaged_file_is_named(full_set: Path, spoil: Callable[[bytes], bytes]) -> None:
    path = full_set / "train-images-idx3-ubyte.gz"
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(InvalidParameters, match=r"train-images-idx3-ubyte\.gz"):
        federated_data("fashion-full", root=full_set)


def test_images_without_labels_are_refused(full_set: Path) -> None:
    write_idx(full_set / "t10k-labels-idx1-ubyte.gz", np.zeros(19, dtype=np.uint8))
    with pytest.raises(InvalidParameters, match="19 labels"):
        federated_data("fashion-full", root=full_set)


def test_an_unknown_set_is_refused_with_those_that_exist() -> None:
    with pytest.raises(InvalidParameters, match="fashion, fashion-full, vader, stdlib-chars, femnist, celeba, sent140"):
        federated_data("cifar")


def test_the_next_character_is_told_from_those_before_it(tmp_path: Path) -> None:
    text = "".join(chr(32 + place % 95) for place in range(4000))
    for name in ("a.py", "b.py", "notes.txt"):
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "short.py").write_text("x = 1\n", encoding="utf-8")
    data = federated_data("stdlib-chars", root=tmp_path)
    assert len(data.sizes) == 2, "a module that is large enough is a client, and nothing else"
    assert data.sizes.tolist() == [60, 60]
    for examples in (data.client(0), data.test()):
        rows = torch.cat([examples.inputs, examples.targets[:, None]], dim=1)
        assert ((rows[:, 1:] - rows[:, :-1]) % 95 == 1).all()
    again = federated_data("stdlib-chars", root=tmp_path)
    assert torch.equal(again.client(1).inputs, data.client(1).inputs)
    assert federated_data("stdlib-chars", root=tmp_path, clients=1).sizes.tolist() == [60]


def test_test_examples_are_of_the_end_of_each_module(tmp_path: Path) -> None:
    """The last tenth has characters that no training example contains."""
    (tmp_path / "a.py").write_text("a" * 3600 + "z" * 400, encoding="utf-8")
    data = federated_data("stdlib-chars", root=tmp_path)
    trained, tested = data.client(0).targets.numpy(), data.test().targets.numpy()
    assert np.unique(trained).tolist() == [ord("a") - 31]
    assert np.unique(tested).tolist() == [ord("z") - 31]


def test_bytes_that_are_not_printed_share_a_number() -> None:
    assert tokens(b"\x00\xff\t ~\n").tolist() == [0, 0, 0, 1, 95, 96]


def test_a_folder_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameters, match=r"no Python sources .* data\.root"):
        federated_data("stdlib-chars", root=tmp_path)


def ratings(count: int) -> bytes:
    lines = [
        f"{i}\t{(-1) ** i * (0.4 + i % 3)}\tText {i}, it is {'good' if i % 2 == 0 else 'BAD'}!" for i in range(count)
    ]
    return "\r\n".join([*lines, ""]).encode()


def tar(files: dict[str, bytes]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return raw.getvalue()


@pytest.fixture
def inner() -> bytes:
    sources = ("tweets", "movieReviewSnippets", "amazonReviewSnippets", "nytEditorialSnippets")
    return tar({f"hutto_ICWSM_2014/{source}_GroundTruth.txt": ratings(60) for source in sources})


def test_rated_texts_come_from_the_distribution_or_its_inner_archive(tmp_path: Path, inner: bytes) -> None:
    (tmp_path / "inner.tar.gz").write_bytes(inner)
    name = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
    (tmp_path / "outer.tar.gz").write_bytes(tar({"setup.py": b"", name: inner}))
    first, second = (
        federated_data("vader", root=tmp_path / f"{name}.tar.gz", clients=6) for name in ("inner", "outer")
    )
    # Two in three texts are not neutral; one in ten of these is held out.
    assert (len(first.train.labels), len(first.test())) == (108, 12)
    assert np.array_equal(first.train.rows, second.train.rows)
    assert first.client(0).inputs.dtype == torch.int64
    assert first.client(0).inputs.shape[1:] == (LENGTH,)
    assert first.vocabulary is not None
    assert 0 <= first.train.rows.min() <= first.train.rows.max() < first.vocabulary


def test_the_mood_of_a_text_is_its_label(tmp_path: Path, inner: bytes) -> None:
    (tmp_path / "inner.tar.gz").write_bytes(inner)
    data = federated_data("vader", root=tmp_path / "inner.tar.gz", clients=6)
    texts = np.array(["good" if label else "bad" for label in data.train.labels])
    columns = data.train.rows[:, 5]  # "text i , it is good !"
    assert len(set(zip(texts.tolist(), columns.tolist(), strict=True))) == 2


@pytest.mark.parametrize("content", [b"", b"no archive", tar({"other.txt": b"1"})], ids=["empty", "text", "other"])
def test_another_file_than_the_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "archive.tar.gz"
    path.write_bytes(content)
    with pytest.raises(InvalidParameters, match="neither the source distribution"):
        federated_data("vader", root=path)


@pytest.mark.parametrize("root", [None, Path("nowhere.tar.gz")])
def test_missing_texts_name_the_command_that_fetches_them(root: Path | None) -> None:
    with pytest.raises(InvalidParameters, match="pip download"):
        federated_data("vader", root=root)


def test_a_vocabulary_knows_the_commonest_words() -> None:
    vocabulary = commonest(["b a", "a c", "b"], 2)
    assert vocabulary.size == 4
    assert vocabulary.row("c b a").tolist() == [2, 1, 0, *[3] * (LENGTH - 3)]
    assert listed(["x", "y"]).row("y z " * 30).tolist() == [1, 2] * 12 + [1]
    assert listed(["x", "y"]).size == 3
