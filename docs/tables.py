"""Tables that narrow screens show as a list: each cell knows what its column is called."""

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
    """Return the HTML of a page whose cells of tables have the text of their column's head in ``data-label``.

    What a cell holds is one element, so that it can stand beside that text.
    """
    return _TABLE.sub(lambda found: _labelled(found[0]), page)


def _labelled(table: str) -> str:
    heads = cycle([html.escape(html.unescape(_TAG.sub("", head)).strip()) for head in _HEAD.findall(table)] or [""])
    return _CELL.sub(lambda cell: f'<td data-label="{next(heads)}"{cell[1]}><div>{cell[2]}</div></td>', table)
