"""Checks every page of the site in Chromium, at 1280 and 400 pixels, for clipped content and missing pictures.

python -m docs.look build/site/html
"""

from __future__ import annotations

import shutil
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

WIDTHS: Final = (1280, 400)
FAULTS: Final = """() => {
  const width = document.documentElement.clientWidth, found = [];
  if (document.documentElement.scrollWidth > width) found.push("the page is wider than the screen");
  for (const table of document.querySelectorAll(".md-typeset table:not([class])")) {
    const frame = table.closest(".md-typeset__scrollwrap") ?? table.parentElement;
    if (table.offsetParent && table.getBoundingClientRect().width > frame.clientWidth + 1)
      found.push(`a table is cut off: ${table.innerText.slice(0, 60).replace(/\\s+/g, " ")}`);
  }
  for (const picture of document.querySelectorAll(".md-content img")) {
    if (!picture.naturalWidth) found.push(`a picture is missing: ${picture.src}`);
    if (picture.getBoundingClientRect().right > width + 1) found.push(`a picture is cut off: ${picture.src}`);
  }
  return found;
}"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder without logging."""

    def log_message(self, *_: Any) -> None:  # noqa: ANN401 -- as in the base class
        """Log nothing."""


def faults_of(site: Path) -> list[str]:
    """Return clipped or missing content, page by page; pages of source files are skipped."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 -- only `make site-look` has it

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    pages = sorted(path.parent.relative_to(site).as_posix() for path in site.rglob("index.html"))
    found = list[str]()
    with sync_playwright() as playwright:
        # It may run as root, where Chromium has no sandbox.
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for width in WIDTHS:
            opened = browser.new_page(viewport={"width": width, "height": 900})
            for page in pages:
                if page.split("/")[0] != "source":
                    opened.goto(f"http://127.0.0.1:{server.server_port}/{page}/")
                    found += [f"{page} at {width} pixels: {fault}" for fault in opened.evaluate(FAULTS)]
        browser.close()
    server.shutdown()
    return found


def main() -> None:
    """Exit with the faults of the site in the given folder, if it has any."""
    found = faults_of(Path(sys.argv[1]))
    sys.exit("\n".join(found) or 0)


if __name__ == "__main__":
    main()
