"""Checks that every set of culprits in the library comes from the table in ``secagg.blame``.

A set of culprits appears in an argument or a parameter ``culprits``, in ``blaming``, as an error's ``culprits``, or as
the result of a function typed ``frozenset[Party]``. Each must be a call to a function of ``secagg.blame`` or to another
such function, ``NOBODY`` or ``UNDECIDED``, or a name or a union of these. Ways around that, such as aliases of these
functions, ``setattr`` and tables with a key ``culprits``, are faults everywhere.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .house import report, shipped_modules

TABLE = "secagg.blame"
EXEMPT = {TABLE, "secagg.errors", "secagg.session.frames"}
"""Modules that may write sets: the table, the errors, and the decoder of another process's culprits."""
UNNAMED = {"NOBODY", "UNDECIDED"}
CALLED = {"blaming", "named"}
"""Functions of ``secagg.errors`` that take culprits; they may only be called, under these names."""
LOCAL = {"culprits", "named"}
"""Names that variables share with functions: a scope that binds one calls no function of that name."""
PARTIES = {"frozenset[Party]", "Iterable[Party]"}
Function = ast.FunctionDef | ast.AsyncFunctionDef
Place = tuple[int, str]


@dataclass(slots=True)
class Library:
    """The library's functions and parameters with culprits, by bare names."""

    modules: dict[str, tuple[Path, ast.Module]] = field(default_factory=dict[str, tuple[Path, ast.Module]])
    namers: set[str] = field(default_factory=set[str])
    """Functions that return culprits."""
    table: set[str] = field(default_factory=set[str])
    """Functions of ``secagg.blame``, which must be called by their own names."""
    methods: set[str] = field(default_factory=set[str])
    """Methods that return culprits."""
    places: dict[tuple[str, str], Place] = field(default_factory=dict[tuple[str, str], Place])
    """Position and name of the parameter that takes culprits, by the last name of the module and the function's."""


def check_culprits(root: Path) -> None:
    """Find culprits that do not come from evidence."""
    library = read_library(root)
    report(
        f"{file}:{line}: use secagg.blame"
        for name, (file, tree) in library.modules.items()
        if name not in EXEMPT
        for line in literals_in(tree, library)
    )


def read_library(root: Path) -> Library:
    library = Library()
    for module in shipped_modules(root).values():
        tree = ast.parse(module.file.read_text(encoding="utf-8"))
        library.modules[module.name] = module.file.relative_to(root), tree
        for node in ast.walk(tree):
            if isinstance(node, Function) and (module.name == TABLE or _returns_parties(node)):
                library.namers.add(node.name)
                library.table |= {node.name} if module.name == TABLE else set()
            if isinstance(node, ast.ClassDef):
                library.methods |= {
                    each.name for each in node.body if isinstance(each, Function) and _returns_parties(each)
                }
        for function, place in _places_in(tree, is_method=False):
            library.places[module.name.rpartition(".")[2], function] = place
    return library


def is_set(argument: ast.arg) -> bool:
    """Whether a parameter takes culprits."""
    return argument.arg == "culprits" or (
        argument.annotation is not None and ast.unparse(argument.annotation) in PARTIES
    )


def _returns_parties(function: Function) -> bool:
    return function.returns is not None and ast.unparse(function.returns) == "frozenset[Party]"


def _places_in(tree: ast.AST, *, is_method: bool) -> Iterator[tuple[str, Place]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function) and not node.name.startswith("__"):
            for place, each in enumerate((*node.args.posonlyargs, *node.args.args)):
                if is_set(each):
                    yield node.name, (place - is_method, each.arg)
            yield from ((node.name, (sys.maxsize, each.arg)) for each in node.args.kwonlyargs if is_set(each))
        if isinstance(node, ast.ClassDef):
            annotated = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
            fields = [ast.unparse(target) for target in annotated]
            if "culprits" in fields:
                yield node.name, (fields.index("culprits"), "culprits")
        yield from _places_in(node, is_method=isinstance(node, ast.ClassDef))


def _seen_from(tree: ast.Module, library: Library) -> Library:
    """Return the places of the functions that a module defines or imports, and of all methods."""
    places = dict[tuple[str, str], Place]()
    imported = {
        (each.asname or each.name): ((node.module or "").rpartition(".")[2], each.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for each in node.names
    }
    for (_, function), place in library.places.items():
        # A private method of another module is not called here, even if the names are equal.
        if not function.startswith("_"):
            places["method", function] = place
    for local, source in imported.items():
        if source in library.places:
            places["name", local] = library.places[source]
    for function, place in _places_in(tree, is_method=False):
        places["name", function] = places["method", function] = place
    return Library(library.modules, library.namers, library.table, library.methods, places)


def literals_in(tree: ast.Module, library: Library) -> Iterator[int]:
    """Return the lines of a module with culprits that do not come from evidence."""
    seen = _seen_from(tree, library)
    yield from _Scope(tree, seen, None).literals()
    for node in ast.walk(tree):
        if _is_way_around(node, seen):
            yield getattr(node, "lineno", 0)
    yield from _handed_on(tree, seen)


def _handed_on(tree: ast.Module, library: Library) -> Iterator[int]:
    """Find functions with positional culprits that are not called by name, and other assignments."""
    nodes = list(ast.walk(tree))
    callees = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    single = {id(node.targets[0]) for node in nodes if isinstance(node, ast.Assign) and len(node.targets) == 1}
    takers = {name for kind, name in library.places if kind == "name" and not name[0].isupper()} | CALLED - LOCAL
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Load()) if name in takers and id(node) not in callees:
                yield node.lineno
            case ast.Attribute(attr="culprits", ctx=ast.Store()) if id(node) not in single:
                yield node.lineno
            case _:
                pass


def _is_way_around(node: ast.AST, library: Library) -> bool:  # noqa: PLR0911 -- a row for each form
    """Whether a node could set an error's culprits, or rebind a name of the table, undetected."""
    own = (library.table - LOCAL) | UNNAMED | CALLED - LOCAL
    match node:
        case ast.ImportFrom(module=module, names=names):
            guarded = library.table | UNNAMED | CALLED
            return any(
                (each.asname is not None and each.name in guarded)
                or ((each.asname or each.name) in own and module not in EXEMPT)
                for each in names
            )
        case ast.Attribute(attr=name):
            return name in CALLED - LOCAL
        case ast.Constant(value=str(text)):
            return text in CALLED - LOCAL
        case ast.Dict(keys=keys, values=values):
            return any(_says_culprits(key) and not _is_text(value) for key, value in zip(keys, values, strict=True))
        case ast.Subscript(slice=key, ctx=ast.Store()):
            return _says_culprits(key)
        case ast.Call(func=ast.Name(id="setattr") | ast.Attribute(attr="__setattr__"), args=values):
            return any(map(_says_culprits, values))
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return name in own
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return name in library.namers - LOCAL and not _returns_parties(node)
        case ast.ClassDef(body=body):
            return any(map(_sets_culprits, body))
        case _:
            return False


def _says_culprits(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value == "culprits"


def _is_text(node: ast.expr) -> bool:
    return ast.unparse(node).startswith("sorted(map(str, ")


def _sets_culprits(node: ast.stmt) -> bool:
    """Whether a class statement gives all instances the same culprits."""
    match node:
        case ast.FunctionDef(name="culprits"):
            return True
        case ast.AnnAssign(target=ast.Name(id="culprits"), value=ast.expr() as value):
            return not (isinstance(value, ast.Name) and value.id in UNNAMED)
        case ast.Assign(targets=targets):
            return any(isinstance(each, ast.Name) and each.id == "culprits" for each in targets)
        case _:
            return False


class _Scope:
    """A module or a function: its names' values, and the culprits that it writes."""

    def __init__(  # noqa: C901, PLR0912 -- a row for each form
        self, node: ast.Module | Function, library: Library, outer: _Scope | None
    ) -> None:
        self._node, self._library, self._outer = node, library, outer
        self._values = dict[str, list[ast.expr | None]]()
        self._inner = list[Function]()
        self._own = list(self._nodes_of(node))
        if not isinstance(node, ast.Module):
            arguments = node.args
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                self._values[argument.arg] = [] if is_set(argument) else [None]
            for rest in (arguments.vararg, arguments.kwarg):
                if rest is not None:
                    self._values[rest.arg] = [None]
        for each in self._own:
            match each:
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        self._bind(target, value)
                case ast.AnnAssign(target=place, value=ast.expr() as given):
                    self._bind(place, given)
                case ast.AugAssign(target=place, value=given) | ast.NamedExpr(target=place, value=given):
                    self._bind(place, given)
                case ast.For(target=place) | ast.AsyncFor(target=place) | ast.comprehension(target=place):
                    self._hide(place)
                case ast.withitem(optional_vars=ast.expr() as place):
                    self._hide(place)
                case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.ExceptHandler(name=str(name)):
                    self._values.setdefault(name, []).append(None)
                case ast.ImportFrom(module=module, names=imported) if module not in EXEMPT:
                    for each_name in imported:
                        self._values.setdefault(each_name.asname or each_name.name, []).extend(
                            [None] if each_name.name in LOCAL or each_name.asname in LOCAL else []
                        )
                case ast.Nonlocal(names=names) | ast.Global(names=names):
                    self._share(names)
                case _:
                    pass

    def _nodes_of(self, node: ast.AST) -> Iterator[ast.AST]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                self._inner.append(child)
                if not _returns_parties(child):
                    self._values.setdefault(child.name, []).append(None)
                yield from child.decorator_list
                continue
            yield child
            yield from self._nodes_of(child)

    def _hide(self, target: ast.expr) -> None:
        """Treat names as bound to any value."""
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self._values.setdefault(node.id, []).append(None)

    def _share(self, names: list[str]) -> None:
        """Treat names of outer scopes as bound to any value, in both scopes."""
        scope: _Scope | None = self
        while scope is not None:
            for name in names:
                scope._values.setdefault(name, []).append(None)  # noqa: SLF001 -- the same class
            scope = scope._outer  # noqa: SLF001

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._values.setdefault(target.id, []).append(value)
        if isinstance(target, ast.Tuple):
            known = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else None
            for place, each in enumerate(target.elts):
                if isinstance(each, ast.Name):
                    self._values.setdefault(each.id, []).append(known[place] if known else None)

    def literals(self) -> Iterator[int]:
        """Return the lines of culprits without evidence, here and in inner functions."""
        returns = not isinstance(self._node, ast.Module) and _returns_parties(self._node)
        # Before this scope's own: names that an inner scope shares count here.
        inner = [_Scope(each, self._library, self) for each in self._inner]
        signed = [self._node.args] if not isinstance(self._node, ast.Module) else []
        for arguments in (*signed, *(node.args for node in self._own if isinstance(node, ast.Lambda))):
            pairs = [
                *zip(reversed([*arguments.posonlyargs, *arguments.args]), reversed(arguments.defaults), strict=False)
            ]
            pairs += [
                (each, value) for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value
            ]
            yield from (value.lineno for each, value in pairs if is_set(each) and not self._is_evidence(value))
        for node in self._own:
            for value in self._culprits_in(node, returns=returns):
                if not self._is_evidence(value):
                    yield value.lineno
        for each in inner:
            yield from each.literals()

    def _culprits_in(self, node: ast.AST, *, returns: bool) -> Iterator[ast.expr]:
        match node:
            case ast.Return(value=ast.expr() as value) if returns:
                yield value
            case ast.Assign(targets=[ast.Attribute(attr="culprits")], value=value):
                yield value
            case ast.Call(func=ast.Name(id="blaming" | "disputed"), args=values):
                yield from values
            case ast.Call(func=function, args=values, keywords=keywords):
                called = (
                    ("name", function.id)
                    if isinstance(function, ast.Name)
                    else ("method", getattr(function, "attr", ""))
                )
                place, parameter = self._library.places.get(called, (len(values), "culprits"))
                yield from (each.value for each in keywords if each.arg in {"culprits", parameter})
                if place < len(values):
                    yield values[place]
                if called in self._library.places and place < sys.maxsize:
                    yield from (each for each in values[: place + 1] if isinstance(each, ast.Starred))
            case _:
                pass

    def _is_evidence(self, value: ast.expr | None) -> bool:  # noqa: C901, PLR0911 -- a row for each form
        match value:
            case ast.Name(id=name):
                return name in UNNAMED or self.holds_evidence(name)
            case ast.Attribute(attr="culprits"):
                return True
            case ast.Starred(value=ast.GeneratorExp(elt=inner)) | ast.Starred(value=inner):
                return self._is_evidence(inner)
            case ast.NamedExpr(value=inner):
                return self._is_evidence(inner)
            case ast.Call(func=ast.Name(id="named"), args=[inner]):
                return self._is_evidence(inner) and not self._is_bound("named")
            case ast.Call(func=ast.Name(id=name)):
                return name in self._library.namers and not self._is_bound(name)
            case ast.Call(func=ast.Attribute(attr=name)):
                return name in self._library.methods
            case ast.Call(func=ast.Subscript(), args=[]):
                return ast.unparse(value) == "frozenset[Party]()"
            case ast.BoolOp(values=values):
                return all(map(self._is_evidence, values))
            case ast.IfExp(body=body, orelse=other):
                return self._is_evidence(body) and self._is_evidence(other)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self._is_evidence(left) and self._is_evidence(right)
            case _:
                return False

    def _is_bound(self, name: str) -> bool:
        return name in self._values or (self._outer is not None and self._outer._is_bound(name))  # noqa: SLF001

    def holds_evidence(self, name: str) -> bool:
        """Whether all values of a name are evidence."""
        if name in self._values:
            return all(value is not None and self._is_evidence(value) for value in self._values[name])
        return self._outer is not None and self._outer.holds_evidence(name)
