"""Models as the frameworks hold them: nested dictionaries, lists and tuples of arrays, seen as one vector.

A leaf is anything that NumPy reads as an array: of NumPy, torch, JAX or TensorFlow, and plain numbers. A torch module
stands for its ``state_dict``, and a Keras model for its ``get_weights``.
"""

from __future__ import annotations

import hashlib
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
Vector = npt.NDArray[np.float64]
_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class Shapes:
    """Which tensors are summed, by their paths, in whose order they stand in the vector."""

    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    only: tuple[str, ...] = ()

    @classmethod
    def of(cls, like: Tree, only: tuple[str, ...] = ()) -> Shapes:
        """Return those of a model.

        Args:
            only: patterns of paths, as a shell has them, such as ``"*lora*"``; without one every tensor is summed.
        Raises:
            InvalidParameters: a tensor is not of floats, or there is none.
        """
        chosen = {path: leaf for path, leaf in leaves(like) if not only or _matches(path, only)}
        if strange := [path for path, leaf in chosen.items() if leaf.dtype.kind != "f"]:
            raise InvalidParameters(
                f"{_shown(strange)}: only floats have a mean; name the tensors that are summed with only=, or turn "
                "these into floats"
            )
        if not any(leaf.size for leaf in chosen.values()):
            named = f"; no path matches {_shown(only)}" if only else ""
            raise InvalidParameters(f"there is nothing to sum in this model{named}")
        return cls(tuple(chosen), tuple(leaf.shape for leaf in chosen.values()), only)

    @property
    def length(self) -> int:
        """How many values the vector has."""
        return sum(int(np.prod(shape)) for shape in self.shapes)

    @property
    def digest(self) -> bytes:
        """What two parties compare to know that they sum the same tensors of a model."""
        named = (f"{path}\0{shape}".encode() for path, shape in zip(self.paths, self.shapes, strict=True))
        return hashlib.sha256(bind(Label.SUMMED_TENSORS, *named)).digest()

    def vector(self, tree: Tree) -> Vector:
        """Return these tensors of a model as one vector.

        Raises:
            Misuse: it lacks one of them, one has another shape, or it has one more that would be summed.
        """
        found = dict(leaves(tree))
        more = [path for path in found.keys() - set(self.paths) if not self.only or _matches(path, self.only)]
        if more:
            raise Misuse(f"an update holds {_shown(sorted(more))}, and the model does not; plan for a model that does")
        pieces = list[npt.NDArray[Any]]()
        for path, shape in zip(self.paths, self.shapes, strict=True):
            leaf = found.get(path)
            if leaf is None or leaf.shape != shape or leaf.dtype.kind not in "fiu":
                held = "nothing" if leaf is None else f"{leaf.dtype} of shape {leaf.shape}"
                raise Misuse(f"an update holds {held} at {path!r}, where the model has floats of shape {shape}")
            pieces.append(leaf.reshape(-1))
        return np.concatenate(pieces, dtype=np.float64, casting="unsafe")

    def tree(self, vector: Vector, like: Tree) -> Tree:
        """Return a vector in the form of a model, each leaf of the kind and dtype that the model has there.

        Where that dtype ends before the values do, as float16 does before many a sum, the leaf has 64 bits.
        Tensors that are not summed are missing from dictionaries, and ``None`` in lists and tuples.
        """
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1]
        pieces = dict(zip(self.paths, np.split(vector, ends), strict=True))
        shapes = dict(zip(self.paths, self.shapes, strict=True))

        def made(path: str, leaf: Any) -> Any:  # noqa: ANN401 -- any framework's
            return _in_kind_of(leaf, pieces[path].reshape(shapes[path])) if path in pieces else None

        return _mapped(_plain(like), made, "")


def digest_of(tree: Tree) -> bytes:
    """Return the digest of a model: what two parties compare to know that they train the same one."""
    digest = hashlib.sha256()
    for path, leaf in leaves(tree):
        header = f"{path}\0{leaf.dtype.str}\0{leaf.shape}".encode()
        digest.update(len(header).to_bytes(8, "big") + header)
        digest.update(leaf.nbytes.to_bytes(8, "big") + np.ascontiguousarray(leaf).tobytes())
    return digest.digest()


def leaves(tree: Tree) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield each leaf as an array, with its path: keys and positions with slashes between them, in the order of paths.

    Two parties may hold one model in dictionaries of different order.

    Raises:
        InvalidParameters: a leaf is no array of numbers.
    """
    found = list[tuple[str, npt.NDArray[Any]]]()

    def collect(path: str, leaf: Any) -> None:  # noqa: ANN401 -- any framework's
        found.append((path, _array_of(path, leaf)))

    _mapped(_plain(tree), collect, "")
    paths = [path for path, _ in found]
    if len(set(paths)) < len(paths):
        raise InvalidParameters("two tensors have one path; let no key of a dictionary hold a slash")
    return iter(sorted(found, key=itemgetter(0)))


# --- Private ----------------------------------------------------------------------------------------------------------


def _plain(tree: Tree) -> Tree:
    """Return what a framework's model holds, or the tree itself."""
    if hasattr(tree, "state_dict"):
        return tree.state_dict()
    return tree.get_weights() if hasattr(tree, "get_weights") else tree


def _mapped(tree: Tree, change: Callable[[str, Any], Any], path: str) -> Tree:
    """Return the tree with each leaf changed; what becomes ``None`` leaves its dictionary."""
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
    if hasattr(leaf, "detach"):
        leaf = leaf.detach().cpu()
        if str(leaf.dtype) == "torch.bfloat16":
            leaf = leaf.float()
    array: npt.NDArray[Any] = np.asarray(leaf)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind not in "fiub":
        raise InvalidParameters(f"{path or 'the model'!r} is a {type(leaf).__name__}, and no array of numbers")
    if isinstance(leaf, np.ma.MaskedArray):
        raise InvalidParameters(f"{path or 'the model'!r} hides some of its values; fill them in")
    return array


def _in_kind_of(leaf: Any, values: Vector) -> Any:  # noqa: ANN401 -- any framework's
    if isinstance(leaf, float):
        return float(values)
    if hasattr(leaf, "new_tensor"):
        made = leaf.new_tensor(values)
        return made if bool(made.isfinite().all()) else made.double().new_tensor(values)
    with np.errstate(over="ignore"):
        narrow = values.astype(_array_of("", leaf).dtype)
    return narrow if np.isfinite(narrow).all() else values


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def _shown(names: Any) -> str:  # noqa: ANN401 -- any sequence of strings
    listed = list(names)
    return ", ".join(map(repr, listed[:_SHOWN])) + (" and others" if len(listed) > _SHOWN else "")
