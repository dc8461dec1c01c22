"""MkDocs hooks: add pages made from documents, code and results to those in ``pages``."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from docs import generated, included, tables

_FOUND: Final = included.Found()
_PACKAGE: Final = included.ROOT / "build" / "site" / "package"
"""Copy of the package with real folders, because the docstring reader follows no links."""

_SECTION = re.compile(r"(?<=[^\n])\n( +(?:Args|Returns|Raises|Yields):\n)")


def on_startup(*, command: str, dirty: bool) -> None:
    """Copy the package in the layout of a wheel."""
    del command, dirty
    shutil.rmtree(_PACKAGE, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.md")
    package = shutil.copytree(included.ROOT / "secagg", _PACKAGE / "secagg", ignore=ignored)
    for room in ("compression", "protocols", "training"):
        Path(package, room, "__init__.py").touch()
    for module in package.rglob("*.py"):
        # Docstring readers need an empty line between sections; docstrings here have none.
        text = module.read_text(encoding="utf-8")
        module.write_text(_SECTION.sub(r"\n\n\1", text), encoding="utf-8")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add examples to the navigation."""
    guides = next(entry["Guides"] for entry in config.nav or () if "Guides" in entry)
    guides.extend(included.EXAMPLES.values())
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add every page that has no file in ``pages``."""
    for path, page in included.PAGES.items():
        files.append(File.generated(config, page, content=_FOUND.linked(included.document(path), page, path)))
    written = {page: generated.filled(page, text) for page, text in _own_pages(files)}
    for page, text in written.items():
        files.remove(files.src_uris[page])
        files.append(File.generated(config, page, content=_FOUND.linked(text, page)))
    for path in sorted(_FOUND.sources):
        files.append(File.generated(config, included.source_page(path), content=included.source(path)))
    for path in sorted(_FOUND.pictures):
        files.append(File.generated(config, path, abs_src_path=str(included.ROOT / path)))
    return files


def on_page_content(html: str, **_: object) -> str:
    """Label each table cell with its column."""
    return tables.labelled(html)


def _own_pages(files: Files) -> list[tuple[str, str]]:
    return [
        (file.src_uri, file.content_string)
        for file in files.documentation_pages()
        if file.src_uri not in included.PAGES.values()
    ]
