"""Files of named tensors, ``.npz`` and ``.safetensors``: read strictly, and written in the same format.

Reading either format runs no code. A file may be hostile: its declared sizes are compared with its content before
memory of that size is allocated.
"""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import numpy as np
import numpy.typing as npt

from secagg.errors import InvalidParameters
from secagg.session.durable import PUBLIC, replacing

_MOST_BYTES: Final = 1 << 34
_MOST_HEADER: Final = 1 << 24
_LENGTH_BYTES: Final = 8
_ARCHIVE: Final = b"PK"
_METADATA: Final = "__metadata__"
_BFLOAT: Final = "BF16"
_KINDS: Final = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    _BFLOAT: "<u2",
    "BOOL": "|b1",
    **{
        f"{name}{8 * size}": f"{'<' if size > 1 else '|'}{name.lower()}{size}" for name in "IU" for size in (1, 2, 4, 8)
    },
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items() if name != _BFLOAT}
_FAULTS: Final = (ValueError, TypeError, AttributeError, LookupError, EOFError, MemoryError, RuntimeError)
"""Errors of NumPy, ``zipfile`` and ``json`` for a damaged, encrypted or hostile file."""
_OF_TORCH: Final = (
    """, which this makes of PyTorch's: python -c 'import numpy, torch; numpy.savez("{1}", """
    """**{{name: each.numpy() for name, each in torch.load("{0}", weights_only=True).items()}})'"""
)
Model = dict[str, npt.NDArray[Any]]


def read_model(path: Path) -> Model:
    """Return the tensors of a file by name; bfloat16, which NumPy lacks, becomes float32.

    Raises:
        InvalidParameters: the file cannot be read or does not match its format.
    """
    read = _form(path)[0]
    try:
        with path.open("rb") as file:
            if (size := file.seek(0, 2)) > _MOST_BYTES:
                raise ValueError(f"it has {size:,} bytes; the limit is {_MOST_BYTES:,}")
            file.seek(0)
            model = read(file, size)
        if strange := [name for name in model if not name.isprintable() or not name]:
            raise ValueError(f"a tensor has the name {strange[0]!r:.40}")
    except OSError as error:
        raise InvalidParameters(f"{path} cannot be read ({error.strerror or error})") from None
    except (*_FAULTS, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidParameters(f"{path} is not a file of named tensors ({error}); write it again") from None
    if not model:
        raise InvalidParameters(f"{path} contains no tensor")
    return model


def write_model(path: Path, model: Mapping[str, npt.NDArray[Any]], like: Path | None = None) -> None:
    """Write tensors in the format of the file's name, with the metadata of another file of that format.

    The file is durable when this returns; an existing file stays until then.
    """
    write = _form(path)[1]
    with replacing(path, PUBLIC) as file:
        write(cast("BinaryIO", file), model, like)


def require_form(path: Path) -> None:
    """Refuse a file name of unknown format."""
    _form(path)


# --- Private ----------------------------------------------------------------------------------------------------------


def _form(path: Path) -> tuple[Callable[[BinaryIO, int], Model], Callable[[BinaryIO, Any, Path | None], None]]:
    forms = {".npz": (_read_npz, _write_npz), ".safetensors": (_read_safetensors, _write_safetensors)}
    if (form := forms.get(path.suffix)) is None:
        raise InvalidParameters(
            f"{path} is neither .npz nor .safetensors; name a file of named tensors"
            + (_OF_TORCH.format(path, path.with_suffix(".npz")) if path.suffix in {".pt", ".pth", ".bin"} else "")
        )
    return form


def _read_npz(file: BinaryIO, _: int) -> Model:
    if file.read(len(_ARCHIVE)) != _ARCHIVE:
        raise ValueError("it is not an archive of numpy.savez")
    file.seek(0)
    with np.load(file, allow_pickle=False) as loaded:
        infos = cast("zipfile.ZipFile", loaded.zip).infolist()
        if len({info.filename for info in infos}) < len(infos):
            raise ValueError("two tensors have the same name")
        if sum(info.file_size for info in infos) > _MOST_BYTES:
            raise ValueError(f"it expands to more than {_MOST_BYTES:,} bytes")
        model: Model = {name: loaded[name] for name in loaded.files}
    if strange := [name for name, array in model.items() if not isinstance(cast("object", array), np.ndarray)]:
        raise ValueError(f"{strange[0]!r} is not an array")
    return model


def _write_npz(file: BinaryIO, model: Mapping[str, npt.NDArray[Any]], _: Path | None) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        # Like numpy.savez, whose keywords cannot have arbitrary names.
        for name, array in model.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _read_safetensors(file: BinaryIO, size: int) -> Model:
    header, start = _header(file, size)
    header.pop(_METADATA, None)
    model, end = Model(), 0
    for name, entry in sorted(header.items(), key=lambda item: cast("list[int]", item[1]["data_offsets"])):
        if entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"{name!r} is not described by dtype, shape and data_offsets")
        kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if kind not in _KINDS:
            raise ValueError(f"{name!r} has dtype {kind!r:.20}; it must be one of {', '.join(_KINDS)}")
        if any(type(each) is not int or not 0 <= each < 1 << 40 for each in (*shape, *offsets)):
            raise ValueError(f"{name!r} has a shape or offsets that are not a list of sizes")
        dtype, begin = np.dtype(_KINDS[kind]), end
        end = begin + math.prod(shape) * dtype.itemsize
        if offsets != [begin, end] or start + end > size:
            raise ValueError(f"{name!r} does not start where the previous tensor ends, or is longer than the file")
        array = np.frombuffer(file.read(end - begin), np.uint8) if end > begin else np.empty(0, np.uint8)
        if dtype.kind == "b" and (array > 1).any():
            raise ValueError(f"{name!r} has booleans that are neither 0 nor 1")
        model[name] = array.view(dtype).reshape(shape)
        if kind == _BFLOAT:
            model[name] = (model[name].astype(np.uint32) << 16).view(np.float32)
    if start + end != size:
        raise ValueError("it has data after its last tensor")
    return model


def _write_safetensors(file: BinaryIO, model: Mapping[str, npt.NDArray[Any]], like: Path | None) -> None:
    header, end = dict[str, Any](), 0
    if like is not None and like.suffix == ".safetensors":
        with like.open("rb") as other:
            known, _ = _header(other, like.stat().st_size)
        header |= {_METADATA: known[_METADATA]} if _METADATA in known else {}
    arrays = {name: array.astype(array.dtype.newbyteorder("<")) for name, array in model.items()}
    for name, array in arrays.items():
        header[name] = {
            "dtype": _NAMES[array.dtype.str],
            "shape": list(array.shape),
            "data_offsets": [end, end := end + array.nbytes],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
    for array in arrays.values():
        file.write(array.tobytes())


def _header(file: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    """Return the description of the tensors, and their offset."""
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if length > min(_MOST_HEADER, size - _LENGTH_BYTES):
        raise ValueError("its header is longer than the file or the limit")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("two tensors have the same name")
        return dict(pairs)

    header: dict[str, Any] = json.loads(file.read(length), object_pairs_hook=unique)
    return header, _LENGTH_BYTES + length
