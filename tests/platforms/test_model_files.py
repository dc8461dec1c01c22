"""Files of named tensors: both forms round-trip, and damaged or hostile ones are refused with a reason."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secagg.errors import InvalidParameters
from secagg.platforms.model_files import read_model, write_model

MODEL: dict[str, npt.NDArray[Any]] = {
    "layer.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "file": np.array(1.5),
    "allow_pickle": np.array([[True], [False]]),
    "nothing": np.empty((0, 3), np.float16),
    "batches": np.array(7, np.int64),
    "big": np.array([1.0, 2.0], ">f8"),
}
ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def packed(header: object, data: bytes = bytes(4), *, length: int | None = None) -> bytes:
    """Write a file by hand, as the format's page describes: a length, a JSON text, and values."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def archive(*members: tuple[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members:
            file.writestr(name, data)
    return made.getvalue()


def array(values: npt.NDArray[Any]) -> bytes:
    made = io.BytesIO()
    np.save(made, values)
    return made.getvalue()


def test_a_file_of_pytorch_is_refused_with_the_line_that_converts_it(tmp_path: Path) -> None:
    """The line itself is run, with a stand-in for PyTorch."""
    (tmp_path / "torch.py").write_text(
        "import numpy\nclass Tensor:\n    numpy = lambda self: numpy.ones(3)\n"
        "load = lambda file, weights_only: {'layer.weight': Tensor()} if weights_only else None\n"
    )
    with pytest.raises(
        InvalidParameters, match=r"name a file of named tensors, which this makes of PyTorch's: "
    ) as said:
        read_model(tmp_path / "trained.pt")
    command = str(said.value).partition("PyTorch's: ")[2].replace("python", sys.executable, 1)
    environment = {"PYTHONPATH": str(tmp_path), "PATH": os.environ["PATH"]}
    subprocess.run(["/bin/sh", "-c", command], check=True, env=environment)  # noqa: S603 -- the library's own line
    assert read_model(tmp_path / "trained.npz")["layer.weight"].tolist() == [1, 1, 1]
    with pytest.raises(InvalidParameters, match=r"name a file of named tensors$"):
        read_model(tmp_path / "trained.txt")


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_a_model_comes_back_as_it_was(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"model.{suffix}"
    write_model(path, MODEL)
    found = read_model(path)
    assert found.keys() == MODEL.keys()
    for name, values in MODEL.items():
        assert np.array_equal(found[name], values)
        assert (found[name].shape, found[name].dtype.newbyteorder("=")) == (
            values.shape,
            values.dtype.newbyteorder("="),
        )
    write_model(path, {"one": np.zeros(1)}, path)
    assert list(read_model(path)) == ["one"]


def test_numpy_reads_what_is_written_and_the_other_way_round(tmp_path: Path) -> None:
    write_model(tmp_path / "ours.npz", {"a": np.arange(3), "b/c": np.zeros((1, 2))})
    with np.load(tmp_path / "ours.npz", allow_pickle=False) as loaded:
        assert {name: loaded[name].tolist() for name in loaded} == {"a": [0, 1, 2], "b/c": [[0.0, 0.0]]}
    for write in (np.savez, np.savez_compressed):
        write(tmp_path / "theirs.npz", a=np.arange(3))
        assert read_model(tmp_path / "theirs.npz")["a"].tolist() == [0, 1, 2]


def test_a_file_by_hand_is_read_with_bfloat16_as_float32(tmp_path: Path) -> None:
    header = {"__metadata__": {"format": "pt"}, "b": {"dtype": "BF16", "shape": [2], "data_offsets": [4, 8]}, "a": ONE}
    path = tmp_path / "model.safetensors"
    # 1.0 and -2.0 are 0x3f80 and 0xc000.
    path.write_bytes(packed(header, np.float32(0.5).tobytes() + bytes.fromhex("803f00c0")))
    found = read_model(path)
    assert (found["a"].tolist(), found["b"].tolist()) == ([0.5], [1.0, -2.0])
    assert found["b"].dtype == np.float32
    write_model(tmp_path / "next.safetensors", found, path)
    written = (tmp_path / "next.safetensors").read_bytes()
    assert b'"__metadata__": {"format": "pt"}' in written
    assert (8 + int.from_bytes(written[:8], "little")) % 8 == 0


HOSTILE = {
    "empty": b"",
    "no header": bytes(7),
    "a header beyond the file": packed({"a": ONE}, length=1 << 20),
    "a header of 2^63 bytes": packed({"a": ONE}, length=1 << 63),
    "no JSON": packed(b"{'a': 1}"),
    "deep JSON": packed(b"[" * 100_000),
    "not UTF-8": packed(b'{"\xff": 1}'),
    "a list": packed([ONE]),
    "a number": packed({"a": 1}),
    "one name twice": packed(b'{"a": %s, "a": %s}' % ((json.dumps(ONE).encode(),) * 2)),
    "no place": packed({"a": {"dtype": "F32", "shape": [1]}}),
    "a field more": packed({"a": {**ONE, "more": 1}}),
    "another dtype": packed({"a": {**ONE, "dtype": "F8_E4M3"}}),
    "a list as dtype": packed({"a": {**ONE, "dtype": ["F32"]}}),
    "a negative size": packed({"a": {**ONE, "shape": [-1]}}),
    "a flag as size": packed({"a": {**ONE, "shape": [True]}}),
    "a size of 2^62": packed({"a": {**ONE, "shape": [1 << 62]}}),
    "sizes whose product overflows": packed({"a": {**ONE, "shape": [1 << 32, 1 << 32]}}),
    "floats as place": packed({"a": {**ONE, "data_offsets": [0.0, 4.0]}}),
    "text as place": packed({"a": {**ONE, "data_offsets": "04"}}),
    "places before the file": packed({"a": {**ONE, "data_offsets": [-4, 0]}}),
    "places behind the file": packed({"a": {**ONE, "data_offsets": [0, 4]}}, b""),
    "overlapping places": packed({"a": ONE, "b": {**ONE, "data_offsets": [2, 6]}}, bytes(6)),
    "a hole": packed({"a": ONE, "b": {**ONE, "data_offsets": [8, 12]}}, bytes(12)),
    "bytes behind": packed({"a": ONE}, bytes(5)),
    "a shape of another size": packed({"a": {**ONE, "shape": [2]}}),
    "65 dimensions": packed({"a": {**ONE, "shape": [1] * 65}}),
    "a boolean that is 2": packed({"a": {"dtype": "BOOL", "shape": [4], "data_offsets": [0, 4]}}, b"\0\1\2\0"),
    "a name with an escape": packed({"a\x1b[2J": ONE}),
    "an empty name": packed({"": ONE}),
    "only metadata": packed({"__metadata__": {}}, b""),
}
DAMAGED = {
    "empty": b"",
    "one array": array(np.zeros(3)),
    "a pickle": pickle.dumps({"a": 1}),
    "a pickle within": archive(("a.npy", array(np.array([None], dtype=object)))),
    "no array within": archive(("a.npy", b"text")),
    "one name twice": b"",
    "half": archive(("a.npy", array(np.zeros(100))))[:-40],
    "a flipped byte": b"",
    "more than it holds": archive(("a.npy", array(np.zeros(4)).replace(b"(4,)", b"(9,)"))),
    "2^60 values": archive(("a.npy", array(np.zeros(4)).replace(b"(4,), }" + b" " * 18, b"(1152921504606846976,), }"))),
    "nothing within": archive(),
    "a name with an escape": archive(("a\x1b.npy", array(np.zeros(1)))),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_of_safetensors_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(HOSTILE[what])
    with pytest.raises(
        InvalidParameters, match=r"is not a file of named tensors \(.*\); write it again|contains no tensor"
    ):
        read_model(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_archive_is_refused(tmp_path: Path, what: str) -> None:
    path, data = tmp_path / "model.npz", DAMAGED[what]
    if what == "one name twice":
        data = archive(("a.npy", array(np.zeros(1))), ("a.npy", array(np.ones(1))))
    if what == "a flipped byte":
        whole = bytearray(archive(("a.npy", array(np.random.default_rng(0).random(100)))))
        whole[200] ^= 1
        data = bytes(whole)
    path.write_bytes(data)
    with pytest.raises(
        InvalidParameters, match=r"is not a file of named tensors \(.*\); write it again|contains no tensor"
    ) as it:
        read_model(path)
    assert ("it is not an archive of numpy.savez" in str(it.value)) == (what in {"empty", "one array", "a pickle"})


def test_an_archive_that_expands_beyond_every_model_is_not_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secagg.platforms.model_files._MOST_BYTES", 1 << 20)
    path = tmp_path / "model.npz"
    np.savez_compressed(path, a=np.zeros(1 << 20))
    assert path.stat().st_size < 1 << 14
    with pytest.raises(InvalidParameters, match="expands to more than"):
        read_model(path)
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.truncate((1 << 20) + 1)
    with pytest.raises(InvalidParameters, match="the limit is"):
        read_model(path)


def test_a_name_of_another_form_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    for name in ("model.pt", "model", "model.npy"):
        with pytest.raises(InvalidParameters, match=r"is neither \.npz nor \.safetensors"):
            read_model(tmp_path / name)
    with pytest.raises(InvalidParameters, match=r"model\.npz cannot be read \(No such file"):
        read_model(tmp_path / "model.npz")


def test_a_file_that_cannot_be_written_leaves_the_one_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_model(path, {"a": np.ones(2)})
    with pytest.raises(KeyError):
        write_model(path, {"a": np.ones(2, np.complex128)}, path)
    assert read_model(path)["a"].tolist() == [1.0, 1.0]
    assert [each.name for each in tmp_path.iterdir()] == ["model.safetensors"]
