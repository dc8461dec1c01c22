"""Many runs: each cell of a grid with each seed, in several processes, and none of them twice.

A grid is TOML: ``preset`` (or ``config``, a file), ``seeds``, ``set`` (changes for every cell), and cells: each entry
of ``[[cell]]`` has a ``name`` and its own ``set``; each key of ``[axes]`` has a list of values, of which every
combination is a cell. With both, every cell is combined with every combination.
"""

from __future__ import annotations

import json
import multiprocessing
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final, cast

from secagg.errors import InvalidParameters, SecAggError
from secagg.training.records import SUMMARY_NAME, write_text
from secagg.training.settings.configuration import Configuration, changed, read, to_tree
from secagg.training.settings.presets import preset

from .driver import train

RESULTS_NAME: Final = "results.jsonl"
_KEYS: Final = frozenset({"preset", "config", "seeds", "set", "cell", "axes"})


@dataclass(frozen=True, slots=True)
class Cell:
    """One configuration of a grid, for every seed."""

    name: str
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """What a sweep runs."""

    base: Configuration
    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]

    def runs(self) -> Iterator[Configuration]:
        """Yield every run; each is checked before any is trained."""
        for cell in self.cells:
            run = changed(self.base, cell.changes)
            for seed in self.seeds:
                yield replace(run, name=cell.name, seed=seed)


def read_grid(file: Path) -> Grid:
    """Read a grid.

    Raises:
        InvalidParameters: it is none.
    """
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidParameters(f"{file} is no grid: {error}") from None
    if unknown := sorted(tree.keys() - _KEYS):
        raise InvalidParameters(f"a grid has {', '.join(sorted(_KEYS))}; {file} has {', '.join(unknown)} besides")
    if ("preset" in tree) == ("config" in tree):
        raise InvalidParameters(f"{file} names either a preset or a config")
    base = preset(tree["preset"]) if "preset" in tree else read(file.parent / tree["config"])
    base = changed(base, _changes(tree.get("set", [])))
    axes = cast("Mapping[str, Sequence[object]]", tree.get("axes", {}))
    combinations = [
        Cell(
            ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in zip(axes, values, strict=True)),
            tuple(f"{key}={json.dumps(value)}" for key, value in zip(axes, values, strict=True)),
        )
        for values in product(*axes.values())
    ]
    named = [
        Cell(str(cell.get("name", number)), _changes(cell.get("set", [])))
        for number, cell in enumerate(cast("list[dict[str, Any]]", tree.get("cell", [{"name": base.name}])))
    ]
    cells = tuple(
        Cell(", ".join(filter(None, (one.name, other.name))), (*one.changes, *other.changes))
        for one in named
        for other in combinations
    )
    return Grid(base, cells, tuple(tree.get("seeds", [base.seed])))


def sweep(
    grid: Grid,
    out: Path,
    *,
    jobs: int = 1,
    told: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Train what is not finished, and return the summary of every run; a run that fails says why in its own.

    Args:
        jobs: how many processes; each trains one client at a time if there is more than one.
    """
    runs = list(grid.runs())
    folders = [out / f"{_file_name(run.name)}-seed{run.seed}" for run in runs]
    if len(set(folders)) < len(folders):
        raise InvalidParameters("two cells of the grid have one name; give each its own")
    if jobs > 1:
        runs = [replace(run, workers=1) for run in runs]
    out.mkdir(parents=True, exist_ok=True)
    due = [(run, folder) for run, folder in zip(runs, folders, strict=True) if not _is_finished(run, folder)]
    say = told or _silent
    say(f"{len(runs)} runs, {len(runs) - len(due)} of them finished")
    done = 0
    if jobs == 1:
        for run, folder in due:
            _one(run, folder)
            done += 1
            say(f"{done} of {len(due)}: {folder.name}")
    elif due:
        # A fresh interpreter for each process: torch's threads do not survive a fork.
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            futures = {pool.submit(_one, run, folder): folder for run, folder in due}
            for future in as_completed(futures):
                future.result()
                done += 1
                say(f"{done} of {len(due)}: {futures[future].name}")
    results = [_result(run, folder) for run, folder in zip(runs, folders, strict=True)]
    write_text(out / RESULTS_NAME, "".join(json.dumps(result) + "\n" for result in results))
    return results


def table(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each cell: means over its seeds, with their standard deviation."""
    cells = dict[str, list[Mapping[str, Any]]]()
    for result in results:
        cells.setdefault(str(result["name"]), []).append(result)
    width = max((len(name) for name in cells), default=4)
    lines = [f"{'cell':<{width}}  seeds  {'accuracy':>14}  {'KB up':>8}  {'factor':>7}  {'overflow':>9}"]
    for name, rows in cells.items():
        errors = [row["error"] for row in rows if "error" in row]
        finished = [row for row in rows if row.get("final accuracy") is not None]
        if errors:
            lines.append(f"{name:<{width}}  {len(errors)} failed: {errors[0]}")
        if not finished:
            continue
        finals = [100 * float(row["final accuracy"]) for row in finished]
        spread = f" +- {stdev(finals):.1f}" if len(finals) > 1 else ""
        overflow = finished[0].get("overflow")
        lines.append(
            f"{name:<{width}}  {len(finals):>5}  {f'{fmean(finals):.1f}{spread}':>14}  "
            f"{finished[0]['paper bytes'] / 1024:>8.2f}  {finished[0]['factor']:>7.1f}  "
            f"{'-' if overflow is None else f'{100 * overflow:.2f} %':>9}"
        )
    return lines


# --- Private ----------------------------------------------------------------------------------------------------------


def _one(run: Configuration, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "error.txt").unlink(missing_ok=True)
    try:
        train(run, folder, resume=True)
    except SecAggError as error:
        write_text(folder / "error.txt", f"{error}\n")


def _is_finished(run: Configuration, folder: Path) -> bool:
    summary, stored = folder / SUMMARY_NAME, folder / "configuration.toml"
    if not summary.exists():
        return False
    before = read(stored)
    if to_tree(replace(before, workers=run.workers)) != to_tree(run):
        raise InvalidParameters(f"{folder} holds a run of another configuration; name another folder for this sweep")
    return True


def _result(run: Configuration, folder: Path) -> dict[str, Any]:
    identity = {"name": run.name, "seed": run.seed, "folder": folder.name}
    if (folder / "error.txt").exists():
        return {**identity, "error": (folder / "error.txt").read_text(encoding="utf-8").strip()}
    return {**json.loads((folder / SUMMARY_NAME).read_text(encoding="utf-8")), **identity}


def _changes(given: object) -> tuple[str, ...]:
    if isinstance(given, Mapping):
        return tuple(f"{key}={json.dumps(value)}" for key, value in cast("Mapping[str, object]", given).items())
    if not isinstance(given, list) or not all(isinstance(item, str) for item in cast("list[object]", given)):
        raise InvalidParameters(f'set is a list such as ["compression.bits=4"], or a table; got {given!r}')
    return tuple(cast("list[str]", given))


def _file_name(name: str) -> str:
    kept = "".join(character if character.isalnum() or character in "-._" else "-" for character in name)
    return kept.strip("-") or "cell"


def _silent(_: str) -> None:
    pass
