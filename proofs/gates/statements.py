"""The claimed statements, pinned word by word with their sections and the definitions that they use.

The pins contain ``coq/statements.v`` without its proofs, then every definition that a statement reaches by name, with
the variables, hypotheses and notations of its section. Only ``proofs/check pin NAME ...`` changes pins; renewing
digests does not.
"""

from __future__ import annotations

import difflib
import re

from gates.coq_text import THEORIES, check_sources, required_by, sentences
from gates.report import PROOFS, require, say
from gates.reviewed import pin_words

PINNED = PROOFS / "coq" / "statements.pinned"
HEADING = re.compile(r"^== (.*)$", re.MULTILINE)
PREFACE = """What is claimed, word by word: statements.v without its proofs, then what its statements name.
`proofs/check` compares it with the theories; `proofs/check pin NAME ...` takes over what was changed
on purpose, one name after the other. Nothing else writes this file.
"""
WORD = re.compile(r"[A-Za-z_]\w*")


def check_statements() -> None:
    """Compare the current statements with the pinned ones."""
    check_sources()
    derived, pinned = blocks(), read()
    changed = changes(pinned, derived)
    require(not changed, f"{told(changed, pinned, derived)}review them, then run `proofs/check pin NAME ...`")
    theorems = sum(title.startswith("theorem ") for title in derived)
    say(f"statements: {theorems} theorems and {len(derived) - theorems} contexts and definitions as pinned")


def pin(names: list[str]) -> None:
    """Pin the named statements and claims as they are now, and list the others that still differ."""
    if worded := sorted(name for name in names if re.fullmatch(r"[A-Z]{2}-\d+", name)):
        pin_words(worded)
    names = sorted({*names} - {*worded})
    if not names:
        return
    derived, pinned = blocks(), read()
    known = {title.rpartition(" ")[2]: title for title in (*pinned, *derived)}
    strangers = sorted(set(names) - known.keys())
    require(not strangers, f"no pinned or current statement is named {strangers}")
    taken = {known[name] for name in names}
    kept = {
        title: derived[title] if title in taken else pinned[title] for title in derived if title in {*pinned, *taken}
    }
    kept |= {title: text for title, text in pinned.items() if title not in derived and title not in taken}
    body = "\n".join(f"== {title}\n{text}\n" for title, text in kept.items())
    PINNED.write_text(f"{PREFACE}\n{body}", encoding="utf-8")
    left = changes(kept, derived)
    say(f"{len(taken)} statements pinned; say in the commit why they state what is intended")
    require(not left, told(left, kept, derived) + "pin these as well, or restore the theories")


def read() -> dict[str, str]:
    """Return the pinned texts by title."""
    if not PINNED.exists():
        return {}
    parts = HEADING.split(PINNED.read_text(encoding="utf-8"))[1:]
    return {title: text.strip() for title, text in zip(parts[::2], parts[1::2], strict=True)}


def changes(pinned: dict[str, str], derived: dict[str, str]) -> list[str]:
    """Return the titles whose texts differ in more than spaces."""
    before, after = ({title: text.split() for title, text in said.items()} for said in (pinned, derived))
    return sorted(title for title in before.keys() | after.keys() if before.get(title) != after.get(title))


def told(changed: list[str], pinned: dict[str, str], derived: dict[str, str]) -> str:
    """Show the current statements next to the pinned ones."""
    lines = [f"statements differ from their pins: {', '.join(title.rpartition(' ')[2] for title in changed)}"]
    for title in changed:
        before, after = pinned.get(title, "").splitlines(), derived.get(title, "").splitlines()
        lines += difflib.unified_diff(before, after, f"{title}, pinned", f"{title}, now", lineterm="", n=1)
    return "\n".join((*lines, ""))


# --- Current statements -----------------------------------------------------------------------------------------------


def blocks() -> dict[str, str]:
    """Return every statement, context and definition, by a title whose last word is its name."""
    found = dict[str, str]()
    found |= _blocks(THEORIES[-1], None)
    for theory, wanted in named().items():
        found |= _blocks(theory, wanted)
    return found


def _blocks(theory: str, wanted: set[str] | None) -> dict[str, str]:
    """Split one theory into blocks: the whole theory, or the wanted definitions with their sections."""
    found, since = dict[str, str](), list[str]()
    for sentence in sentences(theory) if wanted is None or wanted else ():
        is_wanted = sentence.is_proved if wanted is None else sentence.is_defining and sentence.name in wanted
        if is_wanted:
            name = sentence.name if wanted is None else f"{theory}.{sentence.name}"
            if since:
                found[f"context before.{name}"] = "\n".join(since)
                since = []
            title = f"{'theorem' if wanted is None else 'definition'} {name}"
            require(title not in found, f"proofs/coq/{theory}.v has two sentences named {sentence.name}")
            found[title] = sentence.shown
        elif wanted is None or not (sentence.is_proved or sentence.is_defining):
            since.append(sentence.shown)
    if since and wanted is None:
        found["context after.all"] = "\n".join(since)
    return found


def named() -> dict[str, set[str]]:
    """Return the definitions that the statements use, by theory."""
    whole = {theory: sentences(theory) for theory in THEORIES[:-1]}
    places = {theory: {s.name: at for at, s in enumerate(found) if s.is_defining} for theory, found in whole.items()}
    reached = {theory: set[str]() for theory in whole}

    def reach(theory: str, name: str, above: int) -> None:
        place = places[theory].get(name, above)
        if place >= above or name in reached[theory]:
            return
        reached[theory].add(name)
        among = [s.text for s in whole[theory][:place] if not (s.is_proved or s.is_defining)]
        for word in WORD.findall(" ".join((whole[theory][place].text, *among))):
            reach(theory, word, place)
            for other in required_by(theory):
                reach(other, word, len(whole[other]))

    for sentence in sentences(THEORIES[-1]):
        for theory, name in re.findall(r"\b(\w+)\.(\w+)\b", sentence.text):
            if theory in places:
                reach(theory, name, len(whole[theory]))
    return reached
