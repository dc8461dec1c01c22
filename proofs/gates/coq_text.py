"""Parses Coq files as far as the gates need: sentences, the statements among them, and their sections."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from gates.report import PROOFS, require, text_of

THEORIES = (
    "masks",
    "shamir",
    "reference",
    "ring",
    "dpf",
    "one_hot",
    "split",
    "quorum",
    "transcripts",
    "one_sum",
    "one_answer",
    "bounded_updates",
    "statements",
)
"""Theories in the order of their dependencies; the last one restates every theorem."""
HOLES = re.compile(r"\b(Admitted|admit|Axioms?|Parameters?|Conjectures?|Unset\s+Guard|bypass_check|Abort)\b")
PROVED = re.compile(r"(?:Theorem|Lemma) ")
DEFINES = re.compile(r"(?:Definition|Fixpoint|Record) ")
ALLOWED = re.compile(
    r"(?:Theorem|Lemma|Definition|Fixpoint|Record|Section|End|Variables?|Hypothes[ie]s|Let|Implicit Types?|Import"
    r"|(?:Local )?Notation|(?:From (?:mathcomp|Coq) )?Require(?! Export)(?: Import)?) "
    r"|Local Open Scope (?:nat|ring)_scope$|Set Implicit Arguments$|Unset Strict Implicit$"
    r"|Unset Printing Implicit Defensive$|Add Ring laws_of_R : "
)
"""Allowed beginnings of sentences outside proofs: no attribute, no command that loads, times or runs another one."""
SECTIONED = re.compile(r"(?:Variables?|Hypothes[ie]s|Let|Implicit Types?|Notation) ")
"""Outside a section these would be axioms, or would change the meaning of later theories."""
COERCES = re.compile(r"Record .*:>")
ENDS = ("Qed",)
"""``Defined`` is not allowed, because no text shows what such a lemma computes."""
BULLETS = re.compile(r"^[-+*{}\s]*")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence; for a theorem or lemma only the statement, without the proof."""

    text: str
    """The text with single spaces."""
    shown: str
    """The text as written."""
    is_proved: bool

    @property
    def name(self) -> str:
        """The name that it defines or states, if any."""
        return self.text.split()[1].rstrip(":") if PROVED.match(self.text) or self.is_defining else ""

    @property
    def is_defining(self) -> bool:
        """Whether it defines a name that a statement may use."""
        return DEFINES.match(self.text) is not None


@cache
def source_of(theory: str) -> str:
    """Return the text of a theory."""
    return text_of("coq", f"{theory}.v")


@cache
def without_comments(source: str) -> str:
    """Remove comments, including nested ones; comment marks inside a string are not comments."""
    kept, depth, place, in_string = list[str](), 0, 0, False
    while place < len(source):
        two, one = source[place : place + 2], source[place]
        if one == '"':
            in_string = not in_string
        if not in_string and two == "(*":
            depth, place = depth + 1, place + 2
        elif not in_string and two == "*)" and depth:
            depth, place = depth - 1, place + 2
            kept.append(" ")
        else:
            if not depth:
                kept.append(one)
            place += 1
    return "".join(kept)


@cache
def sentences(theory: str) -> tuple[Sentence, ...]:
    """Split a theory into sentences, and remove the proofs, which may only contain tactics."""
    require(source_of(theory).isascii(), f"proofs/coq/{theory}.v contains letters outside ASCII; spell them out")
    found, in_proof, depth = list[Sentence](), False, 0
    for part in re.split(r"\.(?=\s|$)", without_comments(source_of(theory))):
        text = " ".join(part.split())
        if not text:
            continue
        if in_proof:
            step = BULLETS.sub("", text)
            in_proof = step not in ENDS
            is_command = step[:1].isupper() or step.startswith("#[")
            allowed = not is_command or step in ENDS or step.split()[0] == "Proof"
            require(allowed, f"proofs/coq/{theory}.v has a command inside a proof, `{step}`: remove it")
            continue
        allowed = ALLOWED.match(text) is not None and text.count('"') % 2 == 0
        require(allowed, f"proofs/coq/{theory}.v has `{text}`, which is not an allowed kind of sentence")
        depth += text.startswith("Section ") - text.startswith("End ")
        require(depth > 0 or not SECTIONED.match(text), f"`{text}` is outside a section in {theory}.v")
        require(not COERCES.match(text), f"`{text}` makes a coercion, which later text hides; write the field out")
        in_proof = PROVED.match(text) is not None
        require(in_proof or not DEFINES.match(text) or ":=" in text, f"`{text}` is defined by a proof; write it out")
        lines = (line.rstrip() for line in part.strip().splitlines())
        shown = "\n".join(line for line in lines if line)
        found.append(Sentence(text, f"{shown}.", in_proof))
    require(not in_proof, f"proofs/coq/{theory}.v ends inside a proof")
    return tuple(found)


def theorems_of(theory: str) -> list[str]:
    """Return the names of the theorems in a theory."""
    return [one.name for one in sentences(theory) if one.text.startswith("Theorem ")]


def stated() -> list[str]:
    """Return the names of the theorems that the last theory restates."""
    return theorems_of(THEORIES[-1])


@cache
def required_by(theory: str) -> frozenset[str]:
    """Return the theories that one requires, directly or indirectly."""
    found = set[str]()
    for words in re.findall(r"\bRequire\s+(?:Import\s+|Export\s+)?([\w\s]+?)\.(?=\s|$)", source_of(theory)):
        for name in set(words.split()) & set(THEORIES):
            found |= {name} | required_by(name)
    return frozenset(found)


def check_sources() -> None:
    """Refuse a theory that is not compiled, an unproved statement, and a theorem that is not restated."""
    strangers = {file.stem for file in (PROOFS / "coq").glob("*.v")} - set(THEORIES)
    require(not strangers, f"add {sorted(strangers)} to THEORIES, or remove the files")
    for name in THEORIES:
        found = HOLES.search(without_comments(source_of(name)))
        require(found is None, f"proofs/coq/{name}.v has `{found and found[0]}`: prove it")
    proved = [theorem for name in THEORIES[:-1] for theorem in theorems_of(name)]
    differing = sorted(set(stated()) ^ set(proved))
    require(not differing, f"statements.v must restate exactly the other theories' theorems; see {differing}")
