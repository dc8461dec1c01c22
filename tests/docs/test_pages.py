"""Every code block of the documentation site runs, page by page, as a reader would run it."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

from docs.generated import filled
from docs.included import EXAMPLES, PAGES, ROOT, SHOWN_IN
from tests.harness.documents import blocks_of, run_page

FOLDER = ROOT / "docs" / "pages"
ELSEWHERE = {"tutorials/flower.md": "examples/flower_torch/README.md"}
"""Pages that need another environment, with the document whose commands a test runs there."""
ONE_LINE = "tutorials/nvflare.md"
"""Its files are those of the example, which `make nvflare` runs."""
WRITTEN = {page.relative_to(FOLDER).as_posix(): page.read_text(encoding="utf-8") for page in FOLDER.rglob("*.md")}
OUTPUT = re.compile(r"^\{\{ (printed|said [^ }]+) \}\}$", re.MULTILINE)
LONGEST = 100
LONGEST_CODE = 80


def has_code(text: str) -> bool:
    """Whether a page has a block to run, written or requested."""
    return any(block.language in {"python", "console"} for block in blocks_of(text)) or "{{ file " in text


RUN = sorted(name for name, text in WRITTEN.items() if has_code(text) and name not in {*ELSEWHERE, ONE_LINE})


@pytest.mark.site
@pytest.mark.parametrize("name", RUN)
def test_every_block_of_a_page_runs(name: str, tmp_path: Path) -> None:
    # Parts generated only from code have no block to run, and take time.
    text = re.sub(
        r"^ *\{\{ (?:plan|trust|sequence|states|settings|printed) .*\}\}$", "", WRITTEN[name], flags=re.MULTILINE
    )
    assert run_page(filled(name, text), name, tmp_path)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_page_for_another_environment_has_no_code_of_its_own(name: str, repository: Path) -> None:
    """It has the example's files, and the commands that `tests/flower/test_torch_app.py` runs."""
    assert {block.language for block in blocks_of(WRITTEN[name])} <= {"diff", "text"}
    asked = re.sub(r"^\{\{ said .*\}\}$", "", WRITTEN[name], flags=re.MULTILINE)
    shown = [block for block in blocks_of(filled(name, asked)) if block.language not in {"diff", "text"}]
    files, commands = shown[:-1], shown[-1].commands
    assert all(block.body == (repository / block.title).read_text(encoding="utf-8") for block in files)
    assert f"```\n{commands}\n```" in (repository / ELSEWHERE[name]).read_text(encoding="utf-8")


def test_what_a_page_adds_to_a_recipe_is_what_its_guide_adds(repository: Path) -> None:
    """`make nvflare` runs jobs; the page has only the added line to run."""
    (block,) = blocks_of(WRITTEN[ONE_LINE])
    added = [line[1:] for line in block.body.splitlines() if line.startswith("+")]
    guide = (repository / "secagg" / "nvflare" / "README.md").read_text(encoding="utf-8").splitlines()
    assert added
    assert set(added) <= set(guide)


def test_names_that_pages_import_exist() -> None:
    """`make site` runs the pages too, but takes longer."""
    missing = [
        f"{name}: {node.module}.{alias.name}"
        for name, text in WRITTEN.items()
        for block in blocks_of(text)
        if block.language == "python"
        for node in ast.walk(ast.parse(block.body))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("secagg")
        for alias in node.names
        if not hasattr(import_module(node.module), alias.name)
    ]
    assert not missing, ", ".join(missing)


def test_tutorials_have_code() -> None:
    tutorials = {name for name in WRITTEN if name.startswith("tutorials/") and not name.endswith("index.md")}
    assert tutorials <= {*RUN, *ELSEWHERE, ONE_LINE}


def test_lines_are_short_enough() -> None:
    long = [
        f"{name}:{number}"
        for name, text in WRITTEN.items()
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > LONGEST and not line.startswith(("|", "[![", "!["))
    ]
    assert not long, f"more than {LONGEST} columns: {', '.join(long)}"


def test_lines_of_code_are_short_enough() -> None:
    long = [
        f"{name}:{block.line + number}"
        for name, text in WRITTEN.items()
        for block in blocks_of(text)
        for number, line in enumerate(block.body.splitlines(), 1)
        if len(line) > LONGEST_CODE
    ]
    assert not long, f"code of more than {LONGEST_CODE} columns: {', '.join(long)}"


def test_each_tutorial_shows_its_output() -> None:
    silent = [
        name
        for name, text in WRITTEN.items()
        if name.startswith("tutorials/") and not name.endswith("index.md") and name != ONE_LINE
        if not any(block.language == "text" for block in blocks_of(text)) and not OUTPUT.search(text)
    ]
    assert not silent, f"show what the code prints, in a block of `text`: {', '.join(silent)}"


def test_every_document_at_the_root_and_of_a_room_has_a_page(repository: Path) -> None:
    rooms = ("compression", "interop", "protocols", "training", "proofs", "benchmarks", "examples", "secagg", "tests")
    found = {*repository.glob("*.md"), *(file for room in rooms for file in (repository / room).rglob("*.md"))}
    paths = {file.relative_to(repository).as_posix() for file in found if "build" not in file.parts}
    linked = {
        path for path in paths if path.startswith(("secagg/compression/", "secagg/protocols/", "secagg/training/"))
    }
    assert paths - linked == {*PAGES, *SHOWN_IN}, (
        "give each document a page in docs/included.py, and a place in docs/mkdocs.yml"
    )


def test_every_page_has_a_place(repository: Path) -> None:
    """The build checks this too, but takes longer."""
    navigation = (repository / "docs" / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    placed = set(re.findall(r"(\S+\.md)$", navigation, re.MULTILINE))
    assert {*WRITTEN, *PAGES.values()} == placed | set(EXAMPLES.values())
