"""Take away or alter one decision of the pairwise client at a time and see whether the tests notice.

Run by ``make mutants``. A check's condition never holds, a comparison moves by one, ``and`` becomes ``or``, a ``not``
is left out, or a call whose result nobody uses is not made. Each mutant is written into a copy of the repository and
the tests of the protocol and its adversaries are run there up to the first that fails. A survivor that ``EXPLAINED``
does not list ends the run with status 1.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

REPOSITORY: Final = Path(__file__).resolve().parent.parent
COPIES: Final = REPOSITORY / "build" / "control_mutants"
PROTOCOL: Final = Path("protocols") / "pairwise_mask"
DECISIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "client.py": ("__init__", "receive", "_receive", "abort", "_answer", "_abort"),
    "member.py": ("require", "__init__", "require_fits", "spend"),
    "round0_advertise_keys.py": (
        "advertise_keys",
        "accept_advertised_keys",
        "check_advertisement",
        "_checked_roster",
        "_require_distinct_keys",
    ),
    "round1_share_keys.py": ("share_keys", "verify_delivered_entry"),
    "round2_masked_input.py": (
        "mask_input",
        "_check_sharers",
        "_edge_seed",
        "_apply_masks",
        "_open_shares",
        "_check_shares",
    ),
    "round3_consistency_check.py": ("confirm_survivors", "check_survivors"),
    "round4_unmasking.py": ("by", "reveal_shares", "revealed_secret", "_show", "_verify_certificate", "_verify_views"),
}
KILLERS: Final = (
    "tests/protocols/pairwise_mask/test_rounds.py",
    "tests/protocols/pairwise_mask/test_platforms.py",
    "tests/adversaries/test_liars_at_unmasking.py",
    "tests/adversaries/test_inputs_and_retries.py",
    "tests/adversaries/test_shares_in_transit.py",
    "tests/adversaries/test_offers_below_the_floors.py",
    "tests/adversaries/test_survivor_sets.py",
    "tests/protocols/pairwise_mask/test_recovery.py",
    "tests/protocols/pairwise_mask/test_revealed_sets.py",
    "tests/adversaries/test_rosters.py",
    "tests/adversaries/test_order_and_replays.py",
    "tests/protocols/pairwise_mask/test_transitions.py",
    "tests/protocols/pairwise_mask/test_session.py",
    "tests/protocols/pairwise_mask/test_vectors.py",
)
"""Those that look at clients, the quick ones first."""
_MOST_SECONDS: Final = 300
"""Many times what the tests take; a mutant that waits for ever is noticed too."""
_SHOWN_EVERY: Final = 10
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
EXPLAINED: Final[Mapping[str, str]] = {
    "round1_share_keys.verify_delivered_entry: never `identity is None` in line 9": (
        "no roster of an active session has a client without an identity; the line tells type checkers so"
    ),
    "round4_unmasking._verify_certificate: never `member.authority is None` in line 10": (
        "no active session is begun without an authority; the line tells type checkers so"
    ),
    "round4_unmasking._verify_views: never `identity is None` in line 6": (
        "no roster of an active session has a client without an identity; the line tells type checkers so"
    ),
}
"""Survivors, by their name, and why each is no defect."""


def mutants() -> Iterator[tuple[str, Path, str]]:
    """Yield each mutant's name, its file, and the file's altered source."""
    for name, functions in DECISIONS.items():
        path = PROTOCOL / name
        source = (REPOSITORY / path).read_text(encoding="utf-8")
        lines = source.splitlines(keepends=True)
        for function in ast.walk(ast.parse(source)):
            if not isinstance(function, ast.FunctionDef) or function.name not in functions:
                continue
            for change, altered in _alterations(function):
                indent = " " * function.col_offset
                text = "".join(f"{indent}{line}\n" for line in ast.unparse(altered).splitlines())
                first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
                made = [*lines[: first - 1], text, *lines[function.end_lineno :]]
                yield f"{path.stem}.{function.name}: {change}", path, "".join(made)


def _alterations(function: ast.FunctionDef) -> Iterator[tuple[str, ast.FunctionDef]]:
    for place, node in enumerate(ast.walk(function)):
        for name, change in _changes(node):
            altered = copy.deepcopy(function)
            change(list(ast.walk(altered))[place])
            yield f"{name} in line {getattr(node, 'lineno', 0) - function.lineno}", altered


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable[[Any], None]]]:
    match node:
        case ast.If():
            yield f"never `{ast.unparse(node.test)}`", _never
        case ast.Compare(ops=[only]) if type(only) in MOVED:
            yield f"{type(only).__name__} to {MOVED[type(only)].__name__}", partial(_move, MOVED[type(only)])
        case ast.BoolOp():
            other = ast.Or if isinstance(node.op, ast.And) else ast.And
            yield f"{type(node.op).__name__} to {other.__name__}", partial(_join, other)
        case ast.UnaryOp(op=ast.Not()):
            yield f"without not in `{ast.unparse(node)}`", _assert
        case ast.Expr(value=ast.Call()):
            yield f"without `{ast.unparse(node)}`", _nothing
        case _:
            pass


def _never(node: ast.If) -> None:
    node.test = ast.Constant(value=False)


def _move(other: type[ast.cmpop], node: ast.Compare) -> None:
    node.ops = [other()]


def _join(other: type[ast.boolop], node: ast.BoolOp) -> None:
    node.op = other()


def _assert(node: ast.UnaryOp) -> None:
    node.operand = ast.UnaryOp(op=ast.Not(), operand=node.operand)


def _nothing(node: ast.Expr) -> None:
    node.value = ast.Constant(value=None)


def is_killed(mutant: tuple[str, Path, str], copies: SimpleQueue[Path]) -> bool:
    """Whether some test fails with this mutant in a copy of the repository."""
    _, path, source = mutant
    tree = copies.get()
    kept = (tree / path).read_bytes()
    try:
        (tree / path).write_text(source, encoding="utf-8")
        return not passes(tree)
    finally:
        (tree / path).write_bytes(kept)
        copies.put(tree)


def passes(tree: Path) -> bool:
    """Whether every killer passes in a copy."""
    command = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *KILLERS)
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        child = subprocess.run(  # noqa: S603 -- this interpreter
            command, cwd=tree, env=environment, capture_output=True, timeout=_MOST_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return child.returncode == 0


def copied(number: int) -> Path:
    """Return a copy of what the tests need."""
    tree = COPIES / str(number)
    shutil.rmtree(tree, ignore_errors=True)
    unwanted = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.egg-info")
    shutil.copytree(REPOSITORY, tree, ignore=unwanted, symlinks=True)
    return tree


def main() -> None:
    """Try every mutant, or those whose name has a word in it, and print the survivors."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("word", nargs="?", default="")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    started, copies = time.perf_counter(), SimpleQueue[Path]()
    for number in range(options.jobs):
        copies.put(copied(number))
    sound = copies.get()
    if not passes(sound):
        sys.exit("mutants: the tests fail without any change; see what pytest says of them")
    copies.put(sound)
    chosen = [mutant for mutant in mutants() if options.word in mutant[0]]
    survivors = list[str]()
    with ThreadPoolExecutor(options.jobs) as pool:
        found = zip(chosen, pool.map(partial(is_killed, copies=copies), chosen), strict=True)
        for tried, ((name, *_), dead) in enumerate(found, start=1):
            if tried % _SHOWN_EVERY == 0:
                sys.stderr.write(f"  {tried} of {len(chosen)} mutants, {time.perf_counter() - started:.0f} s\n")
            if not dead:
                survivors.append(name)
                sys.stdout.write(f"  survived: {name}: {EXPLAINED.get(name, 'NOT EXPLAINED')}\n")
                sys.stdout.flush()
    total, killed = time.perf_counter() - started, len(chosen) - len(survivors)
    sys.stdout.write(f"control: {killed} of {len(chosen)} killed, {len(survivors)} survivors, {total:.0f} s\n")
    shutil.rmtree(COPIES, ignore_errors=True)
    if set(survivors) - EXPLAINED.keys():
        sys.exit(1)


if __name__ == "__main__":
    main()
