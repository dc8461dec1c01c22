"""Checks every link of the built site, and that pages load nothing from other hosts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

_FETCHED: Final = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}
_NOT_FETCHED: Final = frozenset({"canonical", "next", "prev", "alternate"})


def main() -> None:
    """Check a folder, and exit with all faults."""
    folder = Path(sys.argv[1])
    faults = list(faults_of(folder)) if (folder / "index.html").exists() else [f"{folder} contains no site; build it"]
    if faults:
        sys.exit("\n".join(["repair these links of the site:", *faults]))
    print(f"{sum(1 for _ in folder.rglob('*.html'))} pages; every link works")


def faults_of(folder: Path) -> Iterator[str]:
    """Yield a sentence for each broken link, and for each resource loaded from another host."""
    pages = {page.resolve(): _read(page) for page in sorted(folder.rglob("*.html"))}
    for page, read in pages.items():
        name = page.relative_to(folder.resolve())
        for target, is_fetched in read.targets:
            parts = urlsplit(target)
            if parts.scheme in {"mailto", "data"}:
                continue
            if parts.scheme or parts.netloc:
                if is_fetched:
                    yield f"{name}: {target} is loaded from another host; keep it in the site"
                continue
            base = folder.resolve() / parts.path.lstrip("/") if parts.path.startswith("/") else page.parent / parts.path
            led = page if not parts.path else Path(unquote(str(base))).resolve()
            led = led / "index.html" if led.is_dir() else led
            if not led.exists():
                yield f"{name}: {target} does not exist"
            elif parts.fragment and led in pages and unquote(parts.fragment) not in pages[led].names:
                yield f"{name}: {target} has no such anchor"


@dataclass(slots=True)
class _Read:
    """Anchors and links of a page."""

    targets: list[tuple[str, bool]] = field(default_factory=list[tuple[str, bool]])
    """Targets of its links, and whether a browser loads each automatically."""
    names: set[str] = field(default_factory=set[str])


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.read = _Read()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        for name in ("id", "name"):
            if (value := given.get(name)) is not None:
                self.read.names.add(value)
        for attribute in ("href", "src"):
            if (value := given.get(attribute)) is not None:
                relation = set((given.get("rel") or "").split())
                self.read.targets.append((value, (tag, attribute) in _FETCHED and not relation & _NOT_FETCHED))


def _read(page: Path) -> _Read:
    reader = _Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    return reader.read


if __name__ == "__main__":
    main()
