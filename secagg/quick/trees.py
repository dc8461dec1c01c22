"""Converts models of the frameworks (nested dictionaries, lists and tuples of arrays) to one vector and back.

A leaf is anything that NumPy reads as an array: arrays of NumPy, torch, JAX or TensorFlow, and Python numbers, which
become floats. A torch module stands for its ``state_dict``, a Keras model for its ``get_weights``.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import itemgetter
from typing import Any, Final, TypeGuard

import numpy as np
import numpy.typing as npt

from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters, Misuse

Tree = Any
"""Nested dictionaries, lists and tuples, with arrays or numbers as leaves."""
Vector = npt.NDArray[np.floating[Any]]
_SHOWN: Final = 4
_NAME: Final = re.compile("[./]")
_LEAST_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Shapes:
    """The summed tensors, by path, in the order of the vector."""

    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @classmethod
    def of(cls, like: Tree, only: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> Shapes:
        """Return the tensors of a model whose paths match shell patterns such as ``"*lora*"``."""
        chosen = {path: (leaf.dtype, leaf.shape) for path, leaf in leaves(like) if _is_summed(path, only, exclude)}
        if strange := [path for path, (dtype, _) in chosen.items() if dtype.kind != "f"]:
            kinds = sorted({str(chosen[path][0]) for path in strange})
            raise InvalidParameters(
                f"only floats can be summed, but {_shown(strange)} has type {', '.join(kinds)}; convert it to floats"
                + (f", or leave it out with exclude={'*' + _NAME.split(strange[0])[-1]!r}" if strange[0] else "")
            )
        shapes = tuple(shape for _, shape in chosen.values())
        if not any(map(math.prod, shapes)):
            named = f"; no path matches {_shown(only)}" if only else ""
            raise InvalidParameters(f"there is nothing to sum in this model{named}")
        return cls(tuple(chosen), shapes, only, exclude)

    @property
    def length(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def digest(self) -> bytes:
        """Digest by which two parties check that they sum the same tensors of a model."""
        named = (f"{path}\0{shape}".encode() for path, shape in zip(self.paths, self.shapes, strict=True))
        return hashlib.sha256(bind(Label.SUMMED_TENSORS, *named)).digest()

    def vector(self, tree: Tree) -> Vector:
        """Return all values as one vector: float64 if a leaf has 64 bits, otherwise float32."""
        vector, start = np.empty(self.length, np.float32), 0
        for piece in self.pieces(tree):
            if (kind := np.result_type(vector, piece)) != vector.dtype:
                vector = np.concatenate([vector[:start], np.empty(self.length - start, kind)], dtype=kind)
            vector[start : start + piece.size] = piece
            start += piece.size
        return vector

    def pieces(self, tree: Tree) -> Iterator[npt.NDArray[Any]]:
        """Yield the summed leaves, flattened; refuse a tree of a different form."""
        found = dict(_leaves(tree))
        more = [path for path in found.keys() - set(self.paths) if _is_summed(path, self.only, self.exclude)]
        if more:
            raise Misuse(f"an update has {_shown(sorted(more))}, which the model lacks; plan for a model that has it")
        for path, shape in zip(self.paths, self.shapes, strict=True):
            leaf = _array_of(path, found[path]) if path in found else None
            if leaf is None or leaf.shape != shape or leaf.dtype.kind not in "fiu":
                held = "nothing" if leaf is None else f"{leaf.dtype} of shape {leaf.shape}"
                raise Misuse(f"an update has {held}{_at(path)}, but the model has floats of shape {shape}")
            yield leaf.reshape(-1)

    def holding(self, marked: npt.NDArray[np.bool_]) -> str:
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
        counts = [int(np.count_nonzero(some)) for some in np.split(marked, ends)]
        found = [
            f"{count} {'value' if count == 1 else 'values'}{_at(path)}"
            for path, count in zip(self.paths, counts, strict=True)
            if count
        ]
        return ", ".join(found[:_SHOWN]) + (" and others" if len(found) > _SHOWN else "")

    def tree(self, vector: Vector, like: Tree) -> Tree:
        """Return a vector in the form of a model, with the type and dtype of each of its leaves.

        Leaves of 16 bits, which are coarser than a step, become 32 bits; leaves whose dtype overflows become 64 bits.
        Tensors that are not summed are missing from dictionaries and ``None`` in lists and tuples.
        """
        ends = np.cumsum([math.prod(shape) for shape in self.shapes])[:-1]
        pieces = dict(zip(self.paths, np.split(vector, ends), strict=True))
        shapes = dict(zip(self.paths, self.shapes, strict=True))

        def made(path: str, leaf: Any) -> Any:  # noqa: ANN401 -- any framework's
            return _in_kind_of(leaf, pieces[path].reshape(shapes[path])) if path in pieces else None

        return _mapped(_plain(like), made, "")


def digest_of(tree: Tree) -> bytes:
    """Return the digest of a model, by which two parties check that they train the same one."""
    digest = hashlib.sha256()
    for path, leaf in leaves(tree):
        header = f"{path}\0{leaf.dtype.str}\0{leaf.shape}".encode()
        digest.update(len(header).to_bytes(8, "big") + header)
        digest.update(leaf.nbytes.to_bytes(8, "big") + np.ascontiguousarray(leaf).tobytes())
    return digest.digest()


def leaves(tree: Tree) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield each leaf as an array with its path (keys and positions joined by slashes), sorted by path.

    Sorting makes the order independent of the order in dictionaries. Leaves are converted one at a time, so that a
    16-bit model is never in memory as a whole with 32 bits.
    """
    return ((path, _array_of(path, leaf)) for path, leaf in _leaves(tree))


def _leaves(tree: Tree) -> list[tuple[str, Any]]:
    found = list[tuple[str, Any]]()

    def collect(path: str, leaf: Any) -> None:  # noqa: ANN401 -- any framework's
        found.append((path, leaf))

    _mapped(_plain(tree), collect, "")
    if len({path for path, _ in found}) < len(found):
        raise InvalidParameters("two tensors have the same path; remove slashes from the keys of dictionaries")
    return sorted(found, key=itemgetter(0))


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a path matches one of the shell patterns."""
    return any(fnmatchcase(path, pattern) for pattern in patterns)


# --- Private ----------------------------------------------------------------------------------------------------------


def _plain(tree: Tree) -> Tree:
    if hasattr(tree, "state_dict"):
        return tree.state_dict()
    return tree.get_weights() if hasattr(tree, "get_weights") else tree


def _mapped(tree: Tree, change: Callable[[str, Any], Any], path: str) -> Tree:
    """Return the tree with each leaf changed; leaves that become ``None`` are removed from dictionaries."""
    join = f"{path}/{{}}".format if path else "{}".format
    if _is_mapping(tree):
        changed = {key: _mapped(tree[key], change, join(key)) for key in tree}
        return {key: value for key, value in changed.items() if value is not None and not _is_empty(value)}
    if _is_sequence(tree):
        items = [_mapped(item, change, join(position)) for position, item in enumerate(tree)]
        form: Callable[..., Tree] = getattr(tree, "_make", type(tree))
        return form(items)
    return change(path, tree)


def _is_mapping(tree: Tree) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(tree, Mapping)


def _is_sequence(tree: Tree) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(tree, list | tuple)


def _is_empty(tree: Tree) -> bool:
    return isinstance(tree, dict) and not tree


def _array_of(path: str, leaf: Any) -> npt.NDArray[Any]:  # noqa: ANN401 -- any framework's
    if type(leaf) is int:
        # An integer too large for a float becomes infinite and is clipped, rather than refused.
        leaf = float(leaf) if abs(leaf) < 1 << 1000 else math.inf * (1 if leaf > 0 else -1)
    if hasattr(leaf, "detach"):
        leaf = leaf.detach().cpu()
        if str(leaf.dtype) == "torch.bfloat16":
            leaf = leaf.float()
    array: npt.NDArray[Any] = np.asarray(leaf)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind == "c":
        raise InvalidParameters(f"{_what(path)} has complex numbers; pass .real and .imag as two arrays")
    if array.dtype.kind not in "fiub":
        kind = array.dtype if isinstance(leaf, np.ndarray) else type(leaf).__name__
        raise InvalidParameters(
            f"{_what(path)} is not an array of numbers but of type {kind}; convert it to floats, or leave it out"
        )
    if isinstance(leaf, np.ma.MaskedArray):
        raise InvalidParameters(f"{_what(path)} is a masked array; fill in its masked values")
    return array


def _in_kind_of(leaf: Any, values: Vector) -> Any:  # noqa: ANN401 -- any framework's
    if isinstance(leaf, int | float):
        return float(values)
    if hasattr(leaf, "new_tensor"):
        wide = leaf.float() if leaf.element_size() < _LEAST_BYTES else leaf
        made = wide.new_tensor(values)
        return made if bool(made.isfinite().all()) else made.double().new_tensor(values)
    dtype = _array_of("", leaf).dtype
    with np.errstate(over="ignore"):
        narrow = values.astype(dtype if dtype.itemsize >= _LEAST_BYTES else np.float32, copy=False)
    return narrow if np.isfinite(narrow).all() else values


def _is_summed(path: str, only: tuple[str, ...], exclude: tuple[str, ...]) -> bool:
    return (not only or matches(path, only)) and not matches(path, exclude)


def _what(path: str) -> str:
    return repr(path) if path else "an update"


def _at(path: str) -> str:
    return f" of {path!r}" if path else ""


def _shown(names: Any) -> str:  # noqa: ANN401 -- any sequence of strings
    listed = list(names)
    if listed == [""]:
        return "the array"
    return ", ".join(map(repr, listed[:_SHOWN])) + (" and others" if len(listed) > _SHOWN else "")
