"""Generates parts of pages from code and results; a page includes one by a line ``{{ name arguments }}``."""

from __future__ import annotations

import argparse
import ast
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from posixpath import dirname, relpath
from textwrap import fill, indent
from typing import Any, Final, cast
from unittest.mock import patch

from docs import machines
from docs.included import ROOT, document
from secagg import cli
from secagg.cli.figures import in_bytes, in_seconds
from secagg.crypto.labels import Label
from secagg.options import rows
from secagg.planning.costs import PlanRequest, Scheme, compare
from secagg.planning.seconds import Network, seconds_of
from secagg.session.registry import find, names
from tests.harness.closure import closure
from tests.harness.documents import blocks_of, run_python
from tests.harness.house import shipped_modules

RESULTS: Final = ROOT / "benchmarks" / "results"
_PLACE = re.compile(r"^(?P<margin> *)\{\{ (?P<name>[a-z_]+)(?P<arguments>(?: [^ }]+)*) \}\}$", re.MULTILINE)
_SITE = re.compile(r"\]\(site:([^)]+)\)")
"""Link to a page by its path in the site; made relative when inserted."""
_LABEL = re.compile(r"\bLabel\.([A-Z0-9_]+)")
_COLUMNS: Final = "100"
_WIDTH: Final = 80
_ROW_WEIGHTS: Final = 100
"""Number of values in a row of the matrix that represents a model."""


def filled(page: str, text: str) -> str:
    """Return a page with every requested part inserted.

    Raises:
        ValueError: the page requests an unknown part.
    """
    running = _Running(text)

    def made(place: re.Match[str]) -> str:
        if place["name"] == "printed":
            return running.printed(place.start())
        maker = _MAKERS.get(place["name"])
        if maker is None:
            raise ValueError(f"{page} requests {place['name']!r}; the parts are {', '.join(_MAKERS)}")
        return indent(maker(*place["arguments"].split()), place["margin"])

    beside = dirname(page) or "."
    return _SITE.sub(lambda link: f"]({relpath(link[1], beside)})", _PLACE.sub(made, text))


class _Running:
    """A page's Python code, run up to each requested output."""

    def __init__(self, text: str) -> None:
        self._text, self._place = text, 0
        self._namespace: dict[str, object] = {"__name__": "__main__"}

    def printed(self, place: int) -> str:
        """Return the output of the blocks since the last requested place, as a block."""
        blocks = [block for block in blocks_of(self._text[self._place : place]) if block.language == "python"]
        self._place, said = place, StringIO()
        with redirect_stdout(said):
            run_python(blocks, "a page", self._namespace)
        lines = (fill(line, _WIDTH, break_on_hyphens=False) for line in said.getvalue().splitlines())
        return "```text\n{}\n```".format("\n".join(lines))


# --- Choosing ---------------------------------------------------------------------------------------------------------


def trust() -> str:
    """Return the parties that each protocol's clients trust, according to the registry."""
    rows = [
        (f"[{name}](site:protocols/{name}.md)", entry.trust, str(len(entry.stages)), entry.summary)
        for name, entry in _entries()
    ]
    return table(("protocol", "a client trusts", "round trips", "summary"), rows)


def plan(clients: str, values: str, *only: str) -> str:
    """Return `secagg plan`'s costs of 8-bit updates for all or some protocols, from the same functions."""
    request = PlanRequest(shapes={"w": (int(values) // _ROW_WEIGHTS, _ROW_WEIGHTS)}, clients=int(clients), bits=8)
    comparison, network = compare(request), Network()
    rows = list[Sequence[str]]()
    for name in only or names():
        if (option := comparison.shortest(name, Scheme.SCALAR)) is not None:
            seconds = seconds_of(option, request.suite, network)
            rows.append(
                (
                    f"[{name}](site:protocols/{name}.md)",
                    str(len(option.entry.stages)),
                    in_bytes(option.costs.up_bytes),
                    in_bytes(option.down_bytes),
                    in_bytes(option.costs.between_bytes),
                    in_seconds(seconds.client),
                    in_seconds(seconds.server),
                    in_seconds(seconds.round),
                )
            )
    heads = ("protocol", "round trips", "a client sends", "receives", "with helpers", "client time", "server", "round")
    if only:
        return table(("for one session", ""), [pair for row in rows for pair in zip(heads[1:], row[1:], strict=True)])
    return table(heads, rows)


def _entries() -> Iterator[tuple[str, Any]]:
    return ((name, find(name)) for name in names())


# --- Protocols --------------------------------------------------------------------------------------------------------


def sequence(protocol: str) -> str:
    """Return the diagram of the messages of a session that is run now."""
    return f"```mermaid\n{machines.sequence(protocol)}\n```"


def states(machine: str) -> str:
    """Return the diagram of a state machine."""
    return f"```mermaid\n{machines.states(machine)}\n```"


def settings(protocol: str) -> str:
    """Return the options of a protocol, their defaults and purposes, as declared."""
    listed = rows(find(protocol).settings)
    return table(("option", "default", "purpose"), [(f"`{name}`", f"`{shown}`", said) for name, shown, said in listed])


# --- Reference --------------------------------------------------------------------------------------------------------


def api(module: str) -> str:
    """Return mkdocstrings' directives for every public name of a module."""
    face = import_module(module)
    held = {name: getattr(face, name) for name in cast("list[str]", face.__all__)}
    found = [f"{value.__module__}.{name}" for name, value in held.items() if hasattr(value, "__module__")]
    return "\n\n".join(f"::: {name}" for name in found if name.startswith("secagg."))


def modules(*names: str) -> str:
    """Return mkdocstrings' directives for whole modules, under their full names."""
    return "\n\n".join(f"::: secagg.{name}\n    options:\n      show_root_full_path: true" for name in names)


def labels() -> str:
    """Return every label's text, and the files that use it."""
    users: dict[str, list[str]] = {label.name: [] for label in Label}
    for module in shipped_modules(ROOT).values():
        path = module.file.relative_to(ROOT).as_posix()
        for name in sorted({found[1] for found in _LABEL.finditer(document(path))} & users.keys()):
            users[name].append(f"[{path.removesuffix('.py')}](/{path})")
    return table(("label", "used in"), [(f"`{label.value.decode()}`", ", ".join(users[label.name])) for label in Label])


def commands() -> str:
    """Return the help of every command."""
    parsers = list[argparse.ArgumentParser]()

    def kept(parser: argparse.ArgumentParser, arguments: Any = None) -> argparse.Namespace:  # noqa: ANN401
        del arguments
        parsers.append(parser)
        return argparse.Namespace()

    asked = argparse.ArgumentParser
    with patch.object(asked, "parse_args", kept), patch.object(asked, "print_help"):
        cli.main([])
    with patch.dict("os.environ", {"COLUMNS": _COLUMNS}):
        return "\n\n".join(
            f"## {parser.prog}\n\n```text\n{parser.format_help().rstrip()}\n```" for parser in _all_of(parsers[0])
        )


def _all_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:  # noqa: SLF001 -- argparse has no public list
        choices: Any = action.choices
        if isinstance(choices, dict):
            below: argparse.ArgumentParser
            for below in cast("dict[str, argparse.ArgumentParser]", choices).values():
                yield from _all_of(below)


def file(path: str, name: str = "") -> str:
    """Return a file of the repository as a block to save, under its own name or another."""
    language = {".py": "python", ".toml": "toml"}[Path(path).suffix]
    return f'```{language} title="{name or path}"\n{document(path).rstrip()}\n```'


def typed(path: str) -> str:
    """Return the first block of commands in a document of the repository."""
    commands = document(path).partition("\n```\n")[2].partition("```\n")[0]
    return f"```console\n{indent(commands, '$ ')}```"


def said(path: str) -> str:
    """Return the second block of a document of the repository: its commands' output."""
    return f"```text\n{[block for block in blocks_of(document(path)) if not block.language][1].body}```"


# --- Evidence ---------------------------------------------------------------------------------------------------------


def threats() -> str:
    """Return the attacks at each boundary, why they fail, and the tests that show it."""
    boundaries = tomllib.loads(document("tests/threats.toml"))["boundary"]
    heads = ("an attacker tries", "it fails because", "shown by")
    return "\n\n".join(
        f"## {each['name']}\n\n"
        + table(
            heads,
            [
                (threat["attack"], threat["defence"], ", ".join(f"`{name}`" for name in threat["tests"]))
                for threat in each["threat"]
            ],
        )
        for each in boundaries
    )


def claims() -> str:
    """Return the ledger of claims, each with its evidence, assumptions and limits."""
    ledger = tomllib.loads(document("proofs/claims.toml"))["claim"]
    return "\n\n".join(_claim(claim) for claim in ledger)


def _claim(claim: Mapping[str, Any]) -> str:
    lines = [f"## {claim['id']}", "", f"**{claim['claim']}**", ""]
    for key, values in claim.items():
        if key in {"id", "claim"} or not values:
            continue
        listed = [values] if isinstance(values, str) else values
        marked = [_marked(key, str(value)) for value in listed]
        lines.append(f"- *{key.replace('_', ' ')}*: {'; '.join(marked)}")
    return "\n".join(lines)


def _marked(key: str, value: str) -> str:
    if key in {"assumes", "does_not_say"}:
        return value
    return f"`{value}`"


_HANDED: Final = ("session.roles", "session.client_policy", "session.ledger", "privacy.client_noise")
_SUSPENDED: Final = {"pairwise_mask": ("session.sealed_state", "protocols.pairwise_mask.client_record")}
"""Modules of values that an application passes to a client, and of a suspended client's state."""


def review(protocol: str) -> str:
    """Return the files that importing a protocol's client executes, in reading order: each after those it uses.

    A second table has the values that an application passes to the client, and their imports.
    """
    client = f"secagg.protocols.{protocol}.client"
    handed = [f"secagg.{module}" for module in (*_HANDED, *_SUSPENDED.get(protocol, ()))]
    read, more = closure(ROOT, client), closure(ROOT, ", ".join([client, *handed]))
    apart = {name: lines for name, lines in more.items() if name not in read}
    return "\n\n".join(
        [
            _files("{} files, {:,} lines of code.", read),
            _files("With the values that an application passes: {} files, {:,} lines.", apart),
        ]
    )


def _files(sentence: str, read: Mapping[str, int]) -> str:
    files, rows = shipped_modules(ROOT), list[Sequence[str]]()
    for name, lines in read.items():
        if lines:
            path = files[name].file.relative_to(ROOT).as_posix()
            about = (ast.get_docstring(ast.parse(document(path))) or "").partition("\n")[0]
            rows.append((f"[`{path}`](/{path})", str(lines), about.replace("|", "\\|")))
    return sentence.format(len(rows), sum(read.values())) + "\n\n" + table(("file", "lines", "about"), rows)


def scoreboard() -> str:
    """Return the verdicts of attacks on other libraries and on this one, with each script's findings."""
    # The page has the title.
    verdicts = (RESULTS / "scoreboard.md").read_text(encoding="utf-8").partition("\n")[2].strip()
    verdicts = verdicts.replace("](scoreboard.json)", "](/benchmarks/results/scoreboard.json)")
    record = json.loads((RESULTS / "scoreboard.json").read_text(encoding="utf-8"))
    return "\n\n".join([verdicts, *(_found(record, attack, what) for attack, what in record["attacks"].items())])


def _found(record: Mapping[str, Any], attack: str, what: str) -> str:
    found = dict[tuple[str, str], list[str]]()
    for library in record["libraries"]:
        why, mode = library["attacks"][attack]["why"], library["what"].partition(" (")[0].rpartition(", ")[2]
        found.setdefault((library["package"], f"{why[0].upper()}{why[1:].rstrip('.')}."), []).append(mode)
    names = [package for package, _ in found]
    # A library whose modes have different results has a line for each.
    said = [
        f"- {package}{f', {modes[0]}' if names.count(package) > 1 else ''}: {sentence}"
        for (package, sentence), modes in found.items()
    ]
    return "\n".join([f"## {attack.capitalize()}", "", what, "", *said])


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


_MAKERS: Final[Mapping[str, Callable[..., str]]] = {
    made.__name__: made
    for made in (
        trust,
        plan,
        sequence,
        states,
        settings,
        api,
        modules,
        labels,
        commands,
        file,
        typed,
        said,
        claims,
        threats,
        review,
        scoreboard,
    )
}
