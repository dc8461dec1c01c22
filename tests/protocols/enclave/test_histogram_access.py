"""The oblivious form touches the same memory in the same order, whatever the indices are.

Every array of an addition is replaced by one that writes down where each operation reads and writes, and that refuses
to reveal a value, to be an address or to be a condition. What remains is the whole trace of the addition, and it is
compared between clients. Planted faults, the direct form among them, show what the observer catches.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Generator
from contextlib import contextmanager
from inspect import getsource
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.choices import Accumulation
from secagg.contract import IndexSegment
from secagg.crypto.ring import Ring
from secagg.errors import MalformedMessage, Reason
from secagg.protocols.enclave.trusted import histogram as module
from secagg.protocols.enclave.trusted.histogram import HistogramAccumulator

SEGMENT = IndexSegment(5, 21)
"""Three chunks of blocks and three steps of codewords, as ``observed`` cuts them; the last of each is short."""

Step = tuple[object, ...]


class DataDependenceError(Exception):
    """An addition asked an array for its values, or used them as addresses or as a condition."""


class Observed(np.ndarray[Any, Any]):
    """An array that writes down each use of it, and refuses those that reveal a value; results are observed too.

    Only the truth of a single value can be asked for. The answer is written down as well, so that a trace holds all
    that a program learned.
    """

    steps: list[Step]
    origin: tuple[int, int]
    """The number of the array that this one is a part of, and the address where that begins."""

    @classmethod
    def of(cls, array: npt.NDArray[Any], steps: list[Step], number: int) -> Observed:
        view = array.view(cls)
        view.steps, view.origin = steps, (number, array.ctypes.data)
        return view

    def __array_finalize__(self, source: object) -> None:
        if isinstance(source, Observed):
            self.steps, self.origin = source.steps, source.origin

    @property
    def bare(self) -> npt.NDArray[Any]:
        return self.view(np.ndarray)

    @property
    def place(self) -> Step:
        number, address = self.origin
        return number, self.ctypes.data - address, self.shape, self.strides, self.dtype.str

    def __array_ufunc__(self, ufunc: np.ufunc, method: Any, *inputs: Any, **kwargs: Any) -> Any:
        out = kwargs.pop("out", ())
        if method not in ("__call__", "reduce") or kwargs:
            raise DataDependenceError(f"{ufunc.__name__}.{method} with {sorted(kwargs)}")
        self.steps.append((ufunc.__name__, method, *(placed(operand) for operand in (*inputs, *out))))
        operands = [operand.bare if isinstance(operand, Observed) else operand for operand in inputs]
        if out:
            getattr(ufunc, method)(*operands, out=out[0].bare)
            return out[0]
        return Observed.of(np.asarray(getattr(ufunc, method)(*operands)), self.steps, -1)

    def __array_function__(self, function: Any, _types: Any, arguments: Any, options: Any) -> Any:
        if function is not np.max or options:
            raise DataDependenceError(function.__name__)
        return np.maximum.reduce(*arguments)

    def __getitem__(self, key: Any) -> Any:
        require_public(key)
        return Observed.of(np.asarray(self.bare[key]), self.steps, -1) if type(key) is int else super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        require_public(key)
        self.steps.append(("set", self.place, repr(key), placed(value)))
        self.bare[key] = value

    def __bool__(self) -> bool:
        answer = bool(self.bare)
        self.steps.append(("asked", answer))
        return answer


def refuse(*_: Any, **__: Any) -> NoReturn:
    raise DataDependenceError("a value was asked for, or an array was rearranged by its values")


for revealing in (
    *("__int__", "__index__", "__float__", "__complex__", "__iter__", "__contains__", "__str__", "__repr__"),
    *("item", "tolist", "tobytes", "nonzero", "argmax", "argmin", "argsort", "sort", "partition", "searchsorted"),
    *("take", "put", "compress", "choose", "repeat"),
):
    setattr(Observed, revealing, refuse)


def require_public(key: Any) -> None:
    # What is no slice has none of its parts and stands for itself.
    parts = [getattr(key, name, key) for name in ("start", "stop", "step")]
    if any(type(part) not in (int, type(None)) for part in parts):
        raise DataDependenceError(f"an address made from {[type(part).__name__ for part in parts]}")


def placed(operand: object) -> object:
    return operand.place if isinstance(operand, Observed) else type(operand).__name__


class ObservedNumpy:
    """What the module calls numpy; what it allocates is observed."""

    def __init__(self, observe: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self.empty, self.zeros, self.arange = observe(np.empty), observe(np.zeros), observe(np.arange)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@contextmanager
def observed() -> Generator[list[Step]]:
    """Observe all arrays that are made inside, in chunks of few blocks and steps of few codewords."""
    trace, count = list[Step](), iter(range(1 << 20))

    def observe(make: Callable[..., npt.NDArray[Any]]) -> Callable[..., Observed]:
        return lambda *arguments, **options: Observed.of(make(*arguments, **options), trace, next(count))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK_BLOCKS", 8)
        patch.setattr(module, "_SCRATCH_COUNTERS", 2 * 8)
        patch.setattr(Ring, "zeros", observe(Ring.zeros))
        patch.setattr(Ring, "unpack", observe(Ring.unpack))
        patch.setattr(module, "np", ObservedNumpy(observe))
        yield trace


def packed(indices: list[int]) -> memoryview:
    return memoryview(SEGMENT.ring.pack(np.array(indices, dtype=np.uint8)))


def trace_of_addition(indices: list[int], form: Accumulation = Accumulation.OBLIVIOUS) -> list[Step]:
    data = packed(indices)
    with observed() as trace:
        HistogramAccumulator(SEGMENT, 1000, form).add(data)
    return trace


def trace_of_check(indices: list[int], form: Accumulation) -> list[Step]:
    """Return the trace of a check of indices that are out of range somewhere."""
    data = packed(indices)
    with observed() as trace:
        accumulator = HistogramAccumulator(SEGMENT, 1000, form)
        with pytest.raises(MalformedMessage) as refused:
            accumulator.check(data)
        assert refused.value.reason is Reason.INPUT_OUT_OF_RANGE
    return trace


VECTORS = st.lists(st.integers(0, SEGMENT.codewords - 1), min_size=SEGMENT.blocks, max_size=SEGMENT.blocks)
ZEROS = [0] * SEGMENT.blocks


@given(VECTORS)
def test_an_oblivious_addition_takes_the_same_steps_whatever_it_adds(indices: list[int]) -> None:
    trace = trace_of_addition(indices)
    assert trace == trace_of_addition(ZEROS)
    assert [step for step in trace if step[0] == "asked"] == [("asked", True)]


def test_an_oblivious_addition_reads_and_writes_every_counter_once() -> None:
    touched = list[int]()
    for step in trace_of_addition(ZEROS):
        # The counters are the first array that is made. What their place is not an operand of cannot touch them.
        places: list[Any] = [operand for operand in step if type(operand) is tuple and operand[0] == 0]
        if places:
            _, offset, (rows, columns), strides, word = places[0]
            assert step[:2] == ("add", "__call__")
            assert places == [places[0]] * 2, "a sum is written where its summand was read"
            touched += [
                (offset + row * strides[0] + column * strides[1]) // np.dtype(word).itemsize
                for row in range(rows)
                for column in range(columns)
            ]
    assert sorted(touched) == list(range(SEGMENT.blocks * SEGMENT.codewords))


@pytest.mark.parametrize("form", list(Accumulation), ids=lambda form: form.name.lower())
@given(bad=st.sets(st.integers(0, SEGMENT.blocks - 1), min_size=1), indices=VECTORS, greatest=st.integers(5, 7))
def test_a_range_check_tells_its_outcome_alone(
    form: Accumulation, bad: set[int], indices: list[int], greatest: int
) -> None:
    wrong = [greatest if block in bad else index for block, index in enumerate(indices)]
    trace = trace_of_check(wrong, form)
    assert trace == trace_of_check([5, *ZEROS[1:]], form)
    # Up to the question it is the check of a client whose indices are in range; all chunks come before the question.
    before = trace.index(("asked", False))
    assert trace[:before] == trace_of_addition(indices)[:before]
    assert sum(step[:2] == ("maximum", "reduce") for step in trace[:before]) == 3


# --- What the observer catches ----------------------------------------------------------------------------------------


def test_the_direct_form_uses_indices_as_addresses() -> None:
    with pytest.raises(DataDependenceError):
        trace_of_addition(ZEROS, Accumulation.DIRECT)


def compares_if_it_must(hits: Any, indices: Any, numbers: Any) -> None:
    if int(np.max(indices)) >= 0:
        np.equal(indices, numbers, out=hits)


def compares_by_scattering(hits: Any, indices: Any, _: Any) -> None:
    hits[indices] = 1


def adds_under_a_mask(counters: Any, hits: Any) -> None:
    np.add(counters, 1, out=counters, where=hits != 0)


def finds_the_greatest_in_python(greatest: Any, indices: Any) -> None:
    greatest[0] = max(indices.tolist())


PLANTED: list[tuple[str, Callable[..., None]]] = [
    ("compare_into", compares_if_it_must),
    ("compare_into", compares_by_scattering),
    ("add_hits_into", adds_under_a_mask),
    ("raise_to", finds_the_greatest_in_python),
]


@pytest.mark.parametrize(("name", "planted"), PLANTED)
def test_a_planted_kernel_that_depends_on_data_is_caught(
    name: str, planted: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, planted)
    with pytest.raises(DataDependenceError):
        trace_of_addition(ZEROS)


def test_a_planted_kernel_that_leaves_out_what_is_absent_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    original = module.add_hits_into

    def adds_if_any(counters: Any, hits: Any) -> None:
        if np.maximum.reduce(np.maximum.reduce(hits)):
            original(counters, hits)

    monkeypatch.setattr(module, "add_hits_into", adds_if_any)
    assert trace_of_addition(ZEROS) != trace_of_addition([4] * SEGMENT.blocks)


# --- The source -------------------------------------------------------------------------------------------------------

BRANCHES = (ast.If, ast.IfExp, ast.While, ast.For, ast.BoolOp, ast.Compare, ast.Match, ast.Assert, ast.comprehension)
DTYPES = {"dtype", "astype", "view", "bool_", "uint8", "uint16", "uint32", "uint64", "intp", "where"}


@pytest.mark.parametrize("kernel", [module.raise_to, module.add_at, module.compare_into, module.add_hits_into])
def test_a_kernel_neither_branches_nor_indexes_nor_names_a_dtype(kernel: Callable[..., None]) -> None:
    nodes = list(ast.walk(ast.parse(getsource(kernel))))
    assert not [node for node in nodes if isinstance(node, (*BRANCHES, ast.Subscript))]
    assert not {node.attr for node in nodes if isinstance(node, ast.Attribute)} & DTYPES
    assert not {node.arg for node in nodes if isinstance(node, ast.keyword)} & DTYPES
