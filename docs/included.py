"""Documents of the repository as pages of the site; read in place, never copied.

A link to a document leads to its page, a link to a source file to a page with that file, and a link to a picture to the
picture. A page of the site links to a repository file by its path from the root: ``](/protocols/README.md)``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_NAMED: Final = {
    "README.md": "project/readme.md",
    "SECURITY.md": "trust/security.md",
    "LIMITATIONS.md": "trust/limitations.md",
    "DECISIONS.md": "project/decisions.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "tests/README.md": "project/tests.md",
    "tests/vectors/README.md": "project/vectors.md",
    "tests/vectors/SCHEMA.md": "project/vectors-schema.md",
    "interop/README.md": "project/interop.md",
    "protocols/README.md": "protocols/rooms.md",
    "protocols/pairwise_mask/README.md": "protocols/pairwise-specification.md",
    "protocols/one_message/README.md": "protocols/one-message-specification.md",
    "protocols/enclave/README.md": "protocols/enclave-specification.md",
    "protocols/two_servers/README.md": "protocols/two-servers-specification.md",
    "protocols/light_secagg/README.md": "protocols/lightsecagg-specification.md",
    "secagg/session/README.md": "guides/session.md",
    "secagg/flower/README.md": "guides/flower.md",
    "secagg/privacy/README.md": "guides/privacy.md",
    "secagg/transport/README.md": "guides/http.md",
    "secagg/nvflare/README.md": "guides/nvflare.md",
    "secagg/scale/README.md": "guides/scale.md",
    "examples/README.md": "guides/examples.md",
    "compression/README.md": "guides/compression.md",
    "training/README.md": "guides/training.md",
    "examples/flower_quickstart/README.md": "guides/flower-quickstart.md",
    "examples/flower_migrate.md": "guides/flower-migrate.md",
    "benchmarks/README.md": "study/benchmarks.md",
    "benchmarks/TRIED.md": "study/tried.md",
    "benchmarks/results/processors.md": "study/processors.md",
    "proofs/mutation/SCORES.md": "trust/mutants.md",
    "proofs/README.md": "trust/proofs.md",
    "proofs/BELIEVE.md": "trust/believe.md",
    "proofs/SOUNDNESS.md": "trust/soundness.md",
    "proofs/REFERENCES.md": "trust/references.md",
    "proofs/argument.md": "trust/argument.md",
}
EXAMPLES: Final = {
    f"examples/{folder.parent.name}/README.md": f"guides/example-{folder.parent.name.replace('_', '-')}.md"
    for folder in sorted((ROOT / "examples").glob("*/README.md"))
    if f"examples/{folder.parent.name}/README.md" not in _NAMED
}
"""Examples with a document that is not listed above; they follow the page of all examples in the navigation."""
PAGES: Final = _NAMED | EXAMPLES
"""Each document, and its page."""
SHOWN_IN: Final = {"benchmarks/results/scoreboard.md": "trust/attacks.md"}
"""Documents included in another page."""
SOURCES: Final = "source"
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_NO_PROSE = re.compile(r"^(?P<mark>```+|~~~+).*?^(?P=mark)\s*$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_PICTURES: Final = (".png", ".svg", ".jpg")
_LANGUAGES: Final = {".py": "python", ".toml": "toml", ".v": "coq", ".ml": "ocaml", ".json": "json"}


class Found:
    """Files that pages link to and that are not pages yet: source files and pictures."""

    def __init__(self) -> None:
        """Start empty."""
        self.sources, self.pictures = set[str](), set[str]()

    def page_of(self, path: str) -> str | None:
        """Return the path of a repository file in the site; None if it is a folder without a document.

        Raises:
            FileNotFoundError: there is no such file.
        """
        file = ROOT / path
        if not file.exists():
            raise FileNotFoundError(f"{path} is linked but does not exist; repair the link, or write the file")
        if file.is_dir():
            document = normpath(join(path, "README.md"))
            return PAGES.get(document)
        if (page := PAGES.get(path) or SHOWN_IN.get(path)) is not None:
            return page
        if file.suffix in _PICTURES:
            self.pictures.add(path)
            return path
        self.sources.add(path)
        return source_page(path)

    def linked(self, text: str, page: str, document: str | None = None) -> str:
        """Return a text with links to repository files changed to their paths in the site.

        Args:
            page: path of the text in the site.
            document: path of the text in the repository; None for a page of the site, whose own links stay.
        """

        def led(found: re.Match[str]) -> str:
            target, mark, anchor = found["target"].partition("#")
            if "://" in target or target.startswith("mailto:") or not target:
                return found[0]
            if target.startswith("/"):
                path = target[1:]
            elif document is not None:
                path = normpath(join(dirname(document), target))
            else:
                return found[0]
            place = self.page_of(path)
            if place is None:
                return f"]({relpath(self.listing(path), dirname(page) or '.')})"
            is_source = place.startswith(f"{SOURCES}/")
            return f"]({relpath(place, dirname(page) or '.')}{'' if is_source else mark + anchor})"

        return outside_code(text, lambda prose: _LINK.sub(led, prose))

    def listing(self, folder: str) -> str:
        """Return the page that lists a folder."""
        self.sources.add(folder)
        return source_page(folder)


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Return a text with everything changed except code."""
    pieces, end = list[str](), 0
    for code in _NO_PROSE.finditer(text):
        pieces += [change(text[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*pieces, change(text[end:])])


def document(path: str) -> str:
    """Return a document of the repository."""
    return (ROOT / path).read_text(encoding="utf-8")


def source_page(path: str) -> str:
    """Return the page of a source file or folder."""
    return f"{SOURCES}/{path}.md"


def source(path: str) -> str:
    """Return the page with a source file, or the list of a folder."""
    front = "---\nsearch:\n  exclude: true\n---\n\n"
    file = ROOT / path
    if file.is_dir():
        names = sorted(each.name for each in file.iterdir() if not each.name.startswith(("_", ".")))
        return f"{front}# {path}/\n\n" + "\n".join(f"- `{name}`" for name in names) + "\n"
    language = _LANGUAGES.get(file.suffix, "text")
    return f"{front}# {path}\n\n``````{language}\n{document(path)}\n``````\n"
