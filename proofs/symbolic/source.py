"""The source of the models: shared parts are included, one query is kept, and checks are removed.

A model is one ProVerif file with marks in its comments. A run asks one query, and names the checks that are missing:

    (*# include NAME *)          is replaced by the file NAME.pv
    (*# query "NAME" *)          what follows, up to the next mark, is asked if selected
    (*# check NAME *)            what follows is removed if the check is missing,
    (*# instead CODE *)          and replaced by this code; or
    (*# end *)                   by nothing

No model is copied: every planted defect is the model without something.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
_INCLUDE: Final = re.compile(r"\(\*# include (\w+) \*\)")
_QUERY: Final = re.compile(r'\(\*# query "([^"]+)" \*\)\n(.*?)(?=\(\*# quer)', re.DOTALL)
_CHECK: Final = re.compile(r"\(\*# check ([^*]+) \*\)\n(.*?)\(\*# (?:end \*\)|instead(.*?)\*\))", re.DOTALL)
_LABEL: Final = re.compile(r"\(\*# label (\w+): ([^*]*)\*\)\n *fun (\w+)\(([^)]*)\)")


def read(model: str) -> str:
    """Return a model with its includes."""
    text = (HERE / f"{model}.pv").read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda found: read(found[1]), text)


def queries_of(source: str) -> tuple[str, ...]:
    """Return the names of a model's queries."""
    return tuple(name for name, _ in _QUERY.findall(source))


def checks_of(source: str) -> tuple[str, ...]:
    """Return the names of the checks that can be missing."""
    return tuple(name for name, *_ in _CHECK.findall(source))


def labels_of(source: str) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return for each label the fields that are bound to it, in order, and the secrets used under it."""
    labels = dict[str, tuple[tuple[str, ...], tuple[str, ...]]]()
    for name, declared, function, types in _LABEL.findall(source):
        bound, _, secret = (part.strip() for part in declared.partition(";"))
        fields, secrets = _names(bound), _names(secret)
        if name != function or len(fields) + len(secrets) != len(_names(types)):
            raise ValueError(f"the label {name} is declared with another name or other fields than {function}")
        labels[name] = fields, secrets
    return labels


def variant(source: str, query: str, missing: frozenset[str] = frozenset()) -> str:
    """Return the source with one query, and without some checks."""
    unknown = missing - set(checks_of(source))
    if unknown or query not in queries_of(source):
        raise ValueError(f"the model has no query {query!r} or no check {sorted(unknown)}")
    asked = _QUERY.sub(lambda found: found[2] if found[1] == query else "", source)
    return _CHECK.sub(lambda found: (found[3] or "") if found[1] in missing else found[2], asked)


def _names(listed: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in listed.split(",") if name.strip())
