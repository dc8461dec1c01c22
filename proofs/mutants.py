"""Changes one token of a kernel at a time and checks that the solver's obligations detect it.

``make mutants`` runs it, and alters decisions too (``mutation/``). An operator is exchanged for another, or a constant
is increased by one; a mutant is killed if an obligation is refuted, or if the kernel no longer runs on terms. A
survivor that ``EXPLAINED`` does not list ends the run with status 1. Defects of the client and of the enclave's rules
are planted by hand, in ``proofs/model``.
"""

from __future__ import annotations

import ast
import copy
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent / "smt"))

import one_message_kernels
import point_function_kernels as tree
import ring_kernels
import terms
from secagg.crypto import ring
from secagg.protocols.one_message import masks
from secagg.protocols.two_servers.point_functions import lanes as lane_field
from secagg.protocols.two_servers.point_functions import shares as point_function
from terms import Answer, Question

WIDTHS: Final = (1, 13, 64)
_MOST_SECONDS: Final = 120
_MOST_BYTES: Final = 6 << 30
_SURVIVED, _KILLED = 0, 1
_SHOWN_EVERY: Final = 20
EXCHANGED: Final[Mapping[type[ast.operator], tuple[type[ast.operator], ...]]] = {
    ast.Add: (ast.Sub, ast.BitOr),
    ast.Sub: (ast.Add,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitOr, ast.BitAnd),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.Mult: (ast.BitAnd,),
}
KERNELS: Final[Mapping[ModuleType, tuple[str, ...]]] = {
    ring: (*ring_kernels.NAMES, "low_bits", "_shifted"),
    point_function: (
        "root_into",
        "control_bits",
        "feed_forward_into",
        "grow_into",
        "correction_of",
        "kept_child",
        "select",
        "masked",
        "spread",
    ),
    lane_field: ("wraps", "reduce_once", "add", "subtract", "reduce", "field_correction", "ring_correction"),
    masks: one_message_kernels.NAMES,
}
EXPLAINED: Final[Mapping[str, str]] = {
    "secagg.crypto.ring.pack_group: Add to BitOr in line 9": (
        "an odd number takes one lane twice, and `or` does not mind"
    ),
    "secagg.crypto.ring._shifted: 0 to 1 in line 2": "a shift by 0 to the right is one to the left",
    "secagg.protocols.two_servers.point_functions.shares.root_into: BitXor to BitOr in line 3": (
        "the bit was cleared before"
    ),
    "secagg.protocols.two_servers.point_functions.shares.correction_of: BitXor to BitOr in line 14": (
        "the lowest bit of the seed was cleared before"
    ),
    "secagg.protocols.two_servers.point_functions.lanes.reduce: 2 to 3 in line 8": "more steps to the same remainder",
    "secagg.protocols.one_message.masks.field_of: Add to BitOr in line 4": (
        "there are two words, and a field that begins in the second one ends there"
    ),
    "secagg.protocols.one_message.masks.field_of: Add to Sub in line 5": ("of two words the last is the second"),
    "secagg.protocols.one_message.masks.field_of: Add to BitOr in line 5": (
        "a field goes on from the first word alone"
    ),
    "secagg.protocols.one_message.masks.round_off: 64 to 65 in line 8": ("64 bits and more are a whole word"),
    "secagg.protocols.one_message.masks.center: 64 to 65 in line 2": (
        "each word takes its own 64 bits of the offset, and what is above all words is taken by none"
    ),
    "secagg.protocols.one_message.masks.center: 64 to 65 in line 4": (
        "the offset is not negative and below 2^64, so that no word takes more"
    ),
}
"""Survivors by name, with the reason why each is no defect."""


@cache
def mutants() -> tuple[tuple[str, ModuleType, str], ...]:
    """Return each mutant's name, its module, and the source of its kernels."""
    made = list[tuple[str, ModuleType, str]]()
    for module, names in KERNELS.items():
        parsed = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
        functions = [node for node in parsed.body if isinstance(node, ast.FunctionDef) and node.name in names]
        for index, function in enumerate(functions):
            for name, altered in _alterations(function):
                kept = [*functions[:index], altered, *functions[index + 1 :]]
                source = "\n\n".join(ast.unparse(node) for node in kept)
                made.append((f"{module.__name__}.{function.name}: {name}", module, source))
    return tuple(made)


def _alterations(function: ast.FunctionDef) -> Iterator[tuple[str, ast.FunctionDef]]:
    for place, node in enumerate(ast.walk(function)):
        changes = list[tuple[str, Callable[[Any], None]]]()
        match node:
            case ast.BinOp() | ast.AugAssign():
                for other in EXCHANGED.get(type(node.op), ()):
                    changes.append((f"{type(node.op).__name__} to {other.__name__}", partial(_exchange, other)))
            case ast.Constant(value=int()) if not isinstance(node.value, bool):
                changes.append((f"{node.value} to {node.value + 1}", _enlarge))
            case _:
                pass
        for name, change in changes:
            altered = copy.deepcopy(function)
            change(list(ast.walk(altered))[place])
            yield f"{name} in line {getattr(node, 'lineno', 0) - function.lineno}", altered


def _exchange(other: type[ast.operator], node: ast.BinOp | ast.AugAssign) -> None:
    node.op = other()


def _enlarge(node: ast.Constant) -> None:
    node.value = int(str(node.value)) + 1


def is_killed(index: int) -> bool:
    """Whether some obligation detects the change."""
    terms.TIME_LIMIT_SECONDS = 10
    _, module, source = mutants()[index]
    names: dict[str, Any] = {**vars(module)}
    try:
        exec("from __future__ import annotations\n" + source, names)  # noqa: S102 -- the library's own source, altered
        return any(ask().decide() is not Answer.PROVED for ask in _questions(module, names))
    except Exception:  # noqa: BLE001 -- it does not run on terms, so it is detected too
        return True


def _questions(module: ModuleType, names: Mapping[str, Any]) -> Iterator[Callable[[], Question]]:
    if module is ring:
        for statements in ring_kernels.STATEMENTS.values():
            for statement in statements:
                for width in WIDTHS:
                    yield partial(statement, names, width)
        return
    if module is masks:
        for cases in one_message_kernels.CASES.values():
            for stated, case in cases:
                yield partial(stated, names, case)
        return
    kernels = {**tree.library(), **{name: names[name] for name in KERNELS[module]}}
    for width in WIDTHS:
        for _, _, ask in tree.statements(range(width, width + 1)):
            yield partial(ask, kernels)


def _is_noticed(index: int) -> bool:
    """Whether a separate process detects the change or fails, because a mutant may take unlimited time and memory."""
    child = multiprocessing.get_context("fork").Process(target=_try, args=(index,))
    child.start()
    child.join(_MOST_SECONDS)
    if child.is_alive():
        child.kill()
        child.join()
    return child.exitcode != _SURVIVED


def _try(index: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    os._exit(_KILLED if is_killed(index) else _SURVIVED)


def main() -> None:
    """Try every mutant, and print the survivors."""
    started = time.perf_counter()
    count, killed = len(mutants()), list[bool]()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for dead in pool.map(_is_noticed, range(count)):
            killed.append(dead)
            if len(killed) % _SHOWN_EVERY == 0:
                sys.stderr.write(f"  {len(killed)} of {count} mutants, {time.perf_counter() - started:.0f} s\n")
    survivors = [name for (name, *_), dead in zip(mutants(), killed, strict=True) if not dead]
    for name in survivors:
        sys.stdout.write(f"  survived: {name}: {EXPLAINED.get(name, 'NOT EXPLAINED')}\n")
    total = time.perf_counter() - started
    sys.stdout.write(f"mutants: {sum(killed)} of {len(killed)} killed, {len(survivors)} survivors, {total:.0f} s\n")
    if set(survivors) - EXPLAINED.keys():
        sys.exit(1)


if __name__ == "__main__":
    main()
