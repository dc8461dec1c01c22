"""The import closure of a module: the executed modules in reading order, with their lines of code."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from tests.harness.house import shipped_modules, typing_only_nodes

_TOLD = """
from importlib.machinery import SourceFileLoader as Loader
run = Loader.exec_module
def told(self, module):
    run(self, module)
    print(module.__name__)
Loader.exec_module = told
"""
"""Prints each module after it was executed, hence after the modules that it imports."""


def closure(root: Path, module: str) -> dict[str, int]:
    """Return the modules of the library that the import of a module executes, and the lines of code of each.

    A module comes after those that it imports.
    """
    command = [sys.executable, "-c", f"{_TOLD}import {module}"]
    child = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)  # noqa: S603 -- fixed command
    names, files = child.stdout.splitlines(), shipped_modules(root)
    return {name: code_lines(files[name].file.read_text(encoding="utf-8")) for name in names if name in files}


def code_lines(source: str) -> int:
    """Count lines of code: not empty, and no comment, docstring, import, or list of names."""
    kept = {number for number, line in enumerate(source.splitlines(), 1) if line.strip()[:1] not in {"", "#"}}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Expr) and not _is_code(node):
            kept -= {*range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    return len(kept)


def late_imports(source: str) -> list[str]:
    """Return the library's imports inside functions, which a closure does not see."""
    tree = ast.parse(source)
    skipped = {id(inner) for node in ast.walk(tree) for inner in typing_only_nodes(node)}
    return [
        ast.unparse(inner)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(function)
        if id(inner) not in skipped
        and (
            (isinstance(inner, ast.ImportFrom) and (inner.level or (inner.module or "").startswith("secagg")))
            or (isinstance(inner, ast.Import) and inner.names[0].name.startswith("secagg"))
        )
    ]


def _is_code(node: ast.Import | ast.ImportFrom | ast.Expr) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return isinstance(node, ast.Expr) and not is_text
