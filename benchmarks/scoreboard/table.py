"""Merge the scripts' reports into one table, as Markdown and as JSON.

`make scoreboard` runs it with the reports of all libraries: table.py OUT.md OUT.json REPORT...
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attacks import ATTACKS

INTRODUCTION = """\
# Attacks on other libraries, and on this one

`make scoreboard` installs each library, runs an honest round with its own code, and then these
attacks. *Succeeded*: the script reached the attack's goal and verified it. *Refused*: the library
stopped it, or the result is useless. *Not applicable*: the attack has no target. *Not shown*: a
defence looks weak, but no attack was run. A verdict applies only to this version and script. Some
attacks exceed a library's promises: APPFL's documentation excludes a malicious server and
dropouts; Flower's SecAgg+ and OpenFL's name no defence against a malicious server. The findings
behind each verdict are in [the record](scoreboard.json) and, on the site, below this table.
"""


def main() -> None:
    """Write the table and its record."""
    table, record, *reports = map(Path, sys.argv[1:])
    read = [json.loads(path.read_text(encoding="utf-8").strip().splitlines()[-1]) for path in reports]
    record.write_text(json.dumps({"attacks": ATTACKS, "libraries": read}, indent=1) + "\n", encoding="utf-8")
    table.write_text("\n".join(lines(read)) + "\n", encoding="utf-8")
    print(table.read_text(encoding="utf-8"))


def lines(read: list[dict[str, Any]]) -> Iterator[str]:
    """Write the verdicts in one table."""
    yield INTRODUCTION
    heads = [f"{one['package']} {one['version']}, {one['what'].partition(' (')[0]}" for one in read]
    yield from ("| attack | " + " | ".join(heads) + " |", "|---" * (len(read) + 1) + "|")
    for attack in ATTACKS:
        verdicts = [one["attacks"][attack]["verdict"] for one in read]
        yield f"| {attack} | " + " | ".join(f"**{v}**" if v == "succeeded" else v for v in verdicts) + " |"


if __name__ == "__main__":
    main()
