"""Mutants: one decision, or one arithmetic token, removed or altered in one function of the library."""

from __future__ import annotations

import ast
import copy
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import CodeType
from typing import Any, Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
MOVED: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
EXCHANGED: Final[Mapping[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
SHOWN_ONLY: Final = frozenset({"__repr__", "__str__", "__rich__"})
"""Methods for display, which decide nothing."""
CHECK: Final = re.compile(r"\b_?(require|verify|check)(_\w+)?\(")
"""Checks that refuse; the order of two adjacent ones only decides which error is raised."""
_DIGEST_LENGTH: Final = 16
_LONGEST: Final = 80


@dataclass(frozen=True, slots=True)
class Mutant:
    """One alteration of one function."""

    path: str
    """Path of the file from the root of the repository."""
    function: str
    """Qualified name of the function."""
    change: str
    digest: str
    """Digest of the function without its docstring, and of the change."""
    first: int
    last: int
    """The lines of the file that a test must reach."""
    place: int
    step: int
    """Index of the node in the function, and of the change at this node."""

    @property
    def name(self) -> str:
        """Name of the mutant: file, function and change."""
        return f"{self.path}: {self.function}: {self.change}"


def mutants(path: str, *, arithmetic: bool, before: Callable[[str], str] = str) -> Iterator[Mutant]:
    """Yield every mutant of a file; ``before`` undoes renames in the text that digests are computed from."""
    for name, function in functions(ast.parse((REPOSITORY / path).read_text(encoding="utf-8"))):
        if function.name in SHOWN_ONLY:
            continue
        source, seen = ast.unparse(_undocumented(function)), Counter[str]()
        for place, node in enumerate(_nodes(function)):
            for step, (change, _) in enumerate(_changes(node, arithmetic=arithmetic)):
                seen[change] += 1
                told = change if seen[change] == 1 else f"{change} ({seen[change]})"
                hashed = before(f"{path}\n{name}\n{source}\n{told}")
                digest = hashlib.sha256(hashed.encode()).hexdigest()[:_DIGEST_LENGTH]
                first, last = _lines(node)
                yield Mutant(path, name, told, digest, first, last, place, step)


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the functions of a module and the methods of its classes, by qualified name."""
    waiting: list[tuple[str, ast.stmt]] = [("", node) for node in tree.body]
    while waiting:
        outer, node = waiting.pop(0)
        if isinstance(node, ast.ClassDef):
            waiting += [(f"{outer}{node.name}.", inner) for inner in node.body]
        elif isinstance(node, ast.FunctionDef):
            yield f"{outer}{node.name}", node


def altered_code(mutant: Mutant, *, arithmetic: bool) -> CodeType:
    """Compile the altered function: its code, with the original line numbers."""
    path = REPOSITORY / mutant.path
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (function,) = (node for name, node in functions(tree) if name == mutant.function and _spans(node, mutant))
    node = _nodes(function)[mutant.place]
    _, change = list(_changes(node, arithmetic=arithmetic))[mutant.step]
    change(node)
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    return code_in(compile(ast.fix_missing_locations(tree), str(path), "exec"), mutant.function, first)


def code_in(code: CodeType, name: str, first: int) -> CodeType:
    """Return the code of one function of a module."""
    waiting = [code]
    while waiting:
        inner = waiting.pop()
        if inner.co_qualname == name and inner.co_firstlineno == first:
            return inner
        waiting += [constant for constant in inner.co_consts if isinstance(constant, CodeType)]
    raise LookupError(f"no code of {name} at line {first}")


def _undocumented(function: ast.FunctionDef) -> ast.FunctionDef:
    """Return the function without its docstring, which decides nothing."""
    bare = copy.deepcopy(function)
    if ast.get_docstring(bare) is not None:
        bare.body = bare.body[1:] or [ast.Pass()]
    return bare


def _nodes(function: ast.FunctionDef) -> list[ast.AST]:
    """Return the function and the nodes that a call of it runs, so no defaults and decorators."""
    return [function, *(node for statement in function.body for node in ast.walk(statement))]


def _spans(function: ast.FunctionDef, mutant: Mutant) -> bool:
    return function.lineno <= mutant.first <= (function.end_lineno or 0)


def _lines(node: ast.AST) -> tuple[int, int]:
    spanned: Any = node.test if isinstance(node, ast.If) else node
    if isinstance(node, ast.match_case):
        return node.body[0].lineno, node.body[-1].end_lineno or 0
    return spanned.lineno, spanned.end_lineno


def _changes(node: ast.AST, *, arithmetic: bool) -> Iterator[tuple[str, Callable[[Any], None]]]:
    match node:
        case ast.If():
            yield f"never `{_short(node.test)}`", _never
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                if other := MOVED.get(type(operator)):
                    yield _told(node, change := partial(_move, index, other)), change
        case ast.BoolOp():
            yield _told(node, _join), _join
        case ast.UnaryOp(op=ast.Not()):
            yield f"without not in `{_short(node)}`", _assert
        case ast.Expr(value=ast.Call()):
            yield f"without `{_short(node)}`", _nothing
        case _:
            pass
    yield from _changes_of_order(node)
    if arithmetic:
        yield from _changes_of_numbers(node)


def _changes_of_order(node: ast.AST) -> Iterator[tuple[str, Callable[[Any], None]]]:
    for block in ("body", "orelse", "finalbody"):
        statements = getattr(node, block, None)
        for index, (one, other) in enumerate(pairwise(statements if isinstance(statements, list) else ())):
            are_checks = CHECK.search(ast.unparse(one)) and CHECK.search(ast.unparse(other))
            if _acts(one) and _acts(other) and (_calls(one) or _calls(other)) and not are_checks:
                yield f"`{_short(other)}` before `{_short(one)}`", partial(_swap, block, index)


def _changes_of_numbers(node: ast.AST) -> Iterator[tuple[str, Callable[[Any], None]]]:
    match node:
        case ast.BinOp() | ast.AugAssign() if type(node.op) in EXCHANGED:
            yield _told(node, _exchange), _exchange
        case ast.Constant(value=int()) if not isinstance(node.value, bool):
            yield f"{node.value} to {node.value + 1}", _enlarge
        case _:
            pass


def _calls(node: ast.AST) -> bool:
    """Whether a statement is only a call for its effect, immediately or under a condition."""
    match node:
        case ast.Expr(value=ast.Call()):
            return True
        case ast.If(orelse=[]):
            return all(_calls(statement) for statement in node.body)
        case _:
            return False


def _acts(node: ast.AST) -> bool:
    """Whether a statement has visible effects, also in another order."""
    kept = (ast.Attribute, ast.Subscript)
    match node:
        case ast.Assign():
            return all(isinstance(target, kept) for target in node.targets)
        case ast.AugAssign():
            return isinstance(node.target, kept)
        case _:
            return _calls(node)


def _told(node: ast.AST, change: Callable[[Any], None]) -> str:
    altered = copy.deepcopy(node)
    change(altered)
    return f"`{_short(node)}` to `{_short(altered)}`"


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


# --- Alterations. Names stay in the function, so its free variables stay the same. -----------------------------------


def _never(node: ast.If) -> None:
    node.test = ast.copy_location(ast.BoolOp(ast.And(), [ast.Constant(value=False), node.test]), node.test)


def _move(index: int, other: type[ast.cmpop], node: ast.Compare) -> None:
    node.ops[index] = other()


def _join(node: ast.BoolOp) -> None:
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()


def _assert(node: ast.UnaryOp) -> None:
    node.operand = ast.copy_location(ast.UnaryOp(ast.Not(), node.operand), node)


def _nothing(node: ast.Expr) -> None:
    node.value = ast.copy_location(ast.BoolOp(ast.And(), [ast.Constant(value=False), node.value]), node)


def _swap(block: str, index: int, node: ast.AST) -> None:
    statements: list[ast.stmt] = getattr(node, block)
    statements[index : index + 2] = statements[index + 1], statements[index]


def _exchange(node: ast.BinOp | ast.AugAssign) -> None:
    node.op = EXCHANGED[type(node.op)]()


def _enlarge(node: ast.Constant) -> None:
    node.value = int(str(node.value)) + 1
