"""A protocol's settings as text: the settings class defines their names and types."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields
from datetime import timedelta
from enum import Enum
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final

from secagg.errors import InvalidParameters

from .registry import ProtocolEntry

_WORDS: Final = {"yes": True, "true": True, "no": False, "false": False}


def known_settings(entry: ProtocolEntry) -> dict[str, Any]:
    """Return the types of a protocol's settings, by name; its own stand before those that it shares with others."""
    hints, own = typing.get_type_hints(entry.settings), entry.settings.__annotations__
    chosen = sorted((field.name for field in fields(entry.settings) if field.init), key=lambda name: name not in own)
    return {name: hints[name] for name in chosen}


def planned_settings(
    entry: ProtocolEntry,
    facts: Mapping[str, Any],
    given: Mapping[str, Any] = MappingProxyType({}),
    assigned: Iterable[str] = (),
    *,
    option: str = "settings",
) -> Any:  # noqa: ANN401 -- the protocol's own class
    """Return a protocol's settings: what its user said, over what follows from the cohort.

    Args:
        facts: by the names of settings; a protocol takes those that it has.
        given: by the same names, as values or as text.
        assigned: ``name=value`` as text, which stands over both.
        option: what the caller calls these assignments, for errors.
    Raises:
        InvalidParameters: a setting that this protocol does not have, or a value that it cannot take.
    """
    known = known_settings(entry)
    if strange := [name for name in given if name not in known]:
        raise InvalidParameters(f"{entry.name} has no setting {strange[0]!r}; it has {', '.join(known)}")
    chosen = {name: value for name, value in {**facts, **given}.items() if name in known}
    made = {name: parsed(name, known[name], value) if type(value) is str else value for name, value in chosen.items()}
    for assignment in assigned:
        name, equals, text = assignment.partition("=")
        if not equals or name not in known:
            raise InvalidParameters(f"{option} takes name=value; the settings of {entry.name} are {', '.join(known)}")
        made[name] = parsed(f"{option} {name}", known[name], text)
    return entry.settings(**made)


def parsed(option: str, hint: Any, text: str) -> Any:  # noqa: ANN401 -- one return for each type
    """Read a value of a type.

    Raises:
        InvalidParameters: the text is not such a value.
    """
    if isinstance(hint, types.UnionType):
        inner = next(each for each in typing.get_args(hint) if each is not type(None))
        return None if text == "none" else parsed(option, inner, text)
    try:
        match hint:
            case _ if isinstance(hint, type) and issubclass(hint, Enum):
                return hint[text.replace("-", "_").upper()]
            case _ if hint is bool:
                return _WORDS[text]
            case _ if hint is timedelta:
                return timedelta(hours=float(text))
            case _ if typing.get_origin(hint) is tuple:
                return tuple(typing.get_args(hint)[0](part) for part in text.split(","))
            case _ if hint in {int, float, str, Fraction}:
                return hint(text)
            case _:
                pass
    except (KeyError, ValueError, ZeroDivisionError):
        raise InvalidParameters(f"{option} is {_choices(hint)}; got {text!r}") from None
    raise InvalidParameters(f"{option} cannot be written as text")


def _choices(hint: Any) -> str:  # noqa: ANN401 -- any type
    words = {
        bool: "yes or no",
        int: "an integer",
        float: "a number",
        Fraction: "a fraction",
        timedelta: "a number of hours",
    }
    if hint in words:
        return words[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " or ".join(member.name.lower().replace("_", "-") for member in hint)
    return "integers with commas between them"
