"""Tables that narrow screens show as lists: each cell has its column's heading."""

from __future__ import annotations

import html
import re
from itertools import cycle
from typing import Final

_TABLE: Final = re.compile(r"<table>.*?</table>", re.DOTALL)
_HEAD: Final = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_TAG: Final = re.compile(r"<[^>]+>")
_CELL: Final = re.compile(r"<td\b([^>]*)>(.*?)</td>", re.DOTALL)


def labelled(page: str) -> str:
    """Return a page's HTML with each table cell's column heading in ``data-label``.

    A cell's content becomes one element, so that it can be placed next to the heading.
    """
    return _TABLE.sub(lambda found: _labelled(found[0]), page)


def _labelled(table: str) -> str:
    heads = cycle([html.escape(html.unescape(_TAG.sub("", head)).strip()) for head in _HEAD.findall(table)] or [""])
    return _CELL.sub(lambda cell: f'<td data-label="{next(heads)}"{cell[1]}><div>{cell[2]}</div></td>', table)
