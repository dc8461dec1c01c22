"""Models held by a server and its nodes, equal to the last bit: nodes with the last model receive only the later sum.

The tensors of the peak code form one held model (``secagg.compression.downlink``); the others are sent as usual. A node
that did not answer the previous session receives the model. Both ends compare digests, and the session's subject
contains the digest of the whole model.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.compression.common import SEED_BYTES
from secagg.compression.downlink import HeldModel
from secagg.compression.model_update.arrays import Arrays
from secagg.compression.model_update.codec import ModelUpdate
from secagg.compression.model_update.public_parameters import MAXIMUM_ELEMENTS
from secagg.compression.model_update.summed_values import UPDATE, PeakSum, whole_code
from secagg.compression.rotation import Floats
from secagg.errors import UNDECIDED, MalformedMessage, Misuse, PeerMisbehaved, Reason

Forms = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Shapes and types of tensors, by name."""
_HELD, _SUM, _MODEL = "held", "sum", "model"
_ROUNDING: Final = 2.0**-20
"""Relative error of a strategy that multiplies a model by a number and divides by it."""


class HeldModels:
    """A server's held model, and the nodes that have it."""

    def __init__(self, seed: bytes) -> None:
        """Start without a model; ``seed`` is 32 public bytes of the run."""
        self._seed = seed
        self._held: HeldModel | None = None
        self._encoded, self._sum, self._before = b"", b"", -1
        self._nodes = dict[Hashable, int]()

    def hold(self, sent: Arrays, names: tuple[str, ...], number: int) -> tuple[dict[str, npt.NDArray[Any]], bool]:
        """Return a model with its held tensors, and whether the server itself has changed it.

        The coins of rounding are derived from ``number``, that of the next session.
        """
        forms = {name: (sent[name].shape, sent[name].dtype) for name in names}
        is_changed = self._held is not None and not self._is_like(sent, forms)
        if self._held is None or is_changed:
            vector = np.concatenate([sent[name].astype(np.float32).reshape(-1) for name in names])
            sizes = tuple(sent[name].size for name in names)
            self._set(HeldModel.rounded(vector, seed=self._seed, name=UPDATE, sizes=sizes, round_number=number))
            self._nodes.clear()
        return {**sent, **parted(self.held.values, forms)}, is_changed

    @property
    def held(self) -> HeldModel:
        if self._held is None:
            raise Misuse("no model is held yet; call hold() before a session")
        return self._held

    def record(self, node: Hashable) -> dict[str, bytes]:
        """Return the record that replaces a node's tensors; until the node answers, it counts as holding nothing."""
        known, record = self._nodes.pop(node, None), {_HELD: self.held.digest}
        if known == self.held.round_number:
            return record
        if self._sum and known == self._before:
            return {**record, _SUM: self._sum}
        self._encoded = self._encoded or self._seed + self.held.encode()
        return {**record, _MODEL: self._encoded}

    def answered(self, nodes: Iterable[Hashable]) -> None:
        self._nodes.update(dict.fromkeys(nodes, self.held.round_number))

    def move(self, number: int, found: PeakSum) -> Floats:
        before = self.held
        moved, message = before.advanced(number, found.sums, found.rotation.scales, found.gains)
        self._set(moved)
        self._sum, self._before = message, before.round_number
        return moved.values

    def _set(self, held: HeldModel) -> None:
        self._held, self._encoded = held, b""

    def _is_like(self, sent: Arrays, forms: Forms) -> bool:
        own = parted(self.held.values, forms)
        return all(np.allclose(sent[name], own[name], rtol=_ROUNDING, atol=0) for name in own)


def parted(values: Floats, forms: Forms) -> dict[str, npt.NDArray[Any]]:
    """Return the tensors of a vector."""
    edges = np.cumsum([prod(shape) for shape, _ in forms.values()])[:-1].tolist()
    parts = zip(forms.items(), np.split(values, edges), strict=True)
    return {name: part.reshape(shape).astype(dtype) for (name, (shape, dtype)), part in parts}


def stored(held: HeldModel) -> dict[str, npt.NDArray[Any]]:
    """Return a model as arrays, for a node that stores it between two messages."""
    seed, sizes = np.frombuffer(held.seed, np.uint8), np.array(held.sizes)
    return {
        "seed": seed,
        "sizes": sizes,
        "round": np.array(held.round_number),
        "steps": held.steps,
        "codes": held.codes,
    }


def restored(arrays: Arrays) -> HeldModel:
    """Return the model that ``stored`` returned as arrays."""
    return HeldModel(
        seed=arrays["seed"].tobytes(),
        name=UPDATE,
        sizes=tuple(arrays["sizes"].tolist()),
        round_number=int(arrays["round"]),
        steps=arrays["steps"],
        codes=arrays["codes"],
    )


def is_told(record: object) -> bool:
    """Whether a server's record names the model that a client holds, instead of its tensors."""
    return isinstance(record, Mapping) and _HELD in record


def followed(record: Mapping[str, Any], held: HeldModel | None, forms: Forms, update: ModelUpdate) -> HeldModel:
    """Return the model that a client holds after applying a server's record.

    Args:
        forms: shapes and types, as the server named them.
        update: the session's, which the client's policy admitted.
    Raises:
        PeerMisbehaved: the record is about another model; the server sends the whole model next time.
    """
    if any(type(record.get(name, b"")) is not bytes for name in (_HELD, _SUM, _MODEL)):
        raise MalformedMessage("a record of a held model must contain only bytes", reason=Reason.NOT_CANONICAL)
    sizes = tuple(prod(shape) for shape, _ in forms.values())
    # A model of zeros is encoded in few bytes, so bound the reserved memory here. A sum of metrics has no update.
    is_other = UPDATE in update.names and sizes != whole_code(update).rotation.sizes
    if is_other or sum(sizes) > MAXIMUM_ELEMENTS or any(dtype.kind != "f" for _, dtype in forms.values()):
        raise MalformedMessage("only the session's tensors of floats are held", reason=Reason.NOT_CANONICAL)
    if model := record.get(_MODEL):
        held = HeldModel.decode(model[SEED_BYTES:], seed=model[:SEED_BYTES], name=UPDATE, sizes=sizes)
    elif held is not None and (told := record.get(_SUM)):
        held = held.after(told)
    if held is None or held.sizes != sizes or held.digest != record[_HELD]:
        raise PeerMisbehaved(
            "this client does not hold the model that the server's sum updates; the server sends the model next time",
            reason=Reason.MODEL_MISMATCH,
            culprits=UNDECIDED,
        )
    return held
