"""A declaration with a statistic of each kind, and sites with random people for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from secagg.analytics import Declaration

EDGES: Final = [0, 20, 40, 60, 80]
TIMES: Final = [0, 6, 12, 24, 48]
TABLE: Final[dict[str, Any]] = {
    "name": "outcomes",
    "least_count": 0,
    "variables": {
        "age": {"low": 0, "high": 100, "step": 0.25},
        "weight": {"low": 30, "high": 150, "step": 0.5},
        "sex": {"classes": ["f", "m"]},
        "stage": {"classes": ["I", "II", "III"]},
        "months": {"low": 0, "high": 120, "step": 0.1},
        "state": {"classes": ["alive", "dead"]},
    },
    "statistics": {
        "people": {"kind": "count"},
        "aged": {"kind": "count", "of": ["age"]},
        "years": {"kind": "sum", "of": ["age"]},
        "age": {"kind": "mean", "of": ["age"]},
        "weight": {"kind": "variance", "of": ["weight"]},
        "ages": {"kind": "histogram", "of": ["age"], "edges": EDGES, "quantiles": [0.1, 0.5, 0.9]},
        "sexes": {"kind": "table", "of": ["sex"]},
        "stages": {"kind": "table", "of": ["sex", "stage"]},
        "survival": {"kind": "survival", "of": ["months", "state"], "edges": TIMES},
        "related": {"kind": "correlation", "of": ["age", "weight", "months"]},
    },
}
People = dict[str, list[Any]]


def declared(**changed: Any) -> Declaration:
    """Return the declaration, with some changes."""
    return Declaration.of({**TABLE, **changed})


def people(seed: int, count: int) -> People:
    """Draw people, some with missing or out-of-range values."""
    draw = np.random.default_rng(seed)
    age = draw.normal(50, 25, count).round(1).tolist()
    for place in draw.integers(0, max(1, count), count // 8):
        age[place] = [np.nan, "", "unknown", np.inf, -np.inf, 20, 80.0, None][int(draw.integers(8))]
    return {
        "age": age,
        "weight": draw.normal(80, 30, count).tolist(),
        "sex": draw.choice(["f", "m", "", "x"], count, p=[0.45, 0.45, 0.05, 0.05]).tolist(),
        "stage": draw.choice(["I", "II", "III", "IV"], count).tolist(),
        "months": [*draw.exponential(24, count // 2), *draw.choice([-1, 0, 6, 12, 48, 49], count - count // 2)],
        "state": draw.choice(["alive", "dead", "?"], count, p=[0.5, 0.45, 0.05]).tolist(),
    }


def functions(found: People) -> dict[str, Callable[[], Iterable[Any]]]:
    """Return the functions of a site with these people."""
    return {name: partial(list[Any], values) for name, values in found.items()}


def together(sites: Iterable[People]) -> People:
    """Return the people of all sites."""
    listed = list(sites)
    return {name: [value for site in listed for value in site[name]] for name in TABLE["variables"]}


def write_declaration(path: Path, **changed: Any) -> str:
    """Write the declaration as TOML; JSON's strings, numbers and lists are valid TOML."""
    table = {**TABLE, **changed}
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items() if not isinstance(value, dict)]
    for part in ("variables", "statistics"):
        for key, each in table[part].items():
            inner = ", ".join(f"{one} = {json.dumps(value)}" for one, value in each.items())
            lines.append(f"{part}.{key} = {{{inner}}}")
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


def write_people(path: Path, found: People) -> str:
    """Write people as CSV."""
    rows = [",".join(found), *(",".join(map(str, row)) for row in zip(*found.values(), strict=True))]
    path.write_text("\n".join(rows), encoding="utf-8")
    return str(path)
