"""Options of a protocol: its settings class says which there are, and of which type."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from enum import Enum
from fractions import Fraction
from typing import Any, Final

from secagg.errors import InvalidParameters
from secagg.session.registry import ProtocolEntry, find, names

SHORT: Final[Mapping[str, str]] = {
    "mode": "mode",
    "graph": "topology",
    "corrupted": "corrupted",
    "depth": "depth",
    "release": "form",
    "accumulation": "accumulation",
    "unchecked": "is_checked",
}
"""Options with a name of their own, and the setting that each stands for."""
_WORDS: Final = {"yes": True, "true": True, "no": False, "false": False}


def settings_of(entry: ProtocolEntry, facts: Mapping[str, Any], short: Mapping[str, Any], assigned: list[str]) -> Any:  # noqa: ANN401 -- the protocol's own class
    """Return a protocol's settings.

    Args:
        facts: what a rehearsal knows, by the names of settings; a protocol takes those that it has.
        short: the values of the options in ``SHORT`` that were given.
        assigned: ``name=value``, for every other setting.
    Raises:
        InvalidParameters: an option that this protocol does not have, or a value that it cannot take.
    """
    hints = typing.get_type_hints(entry.settings)
    known = {field.name: hints[field.name] for field in fields(entry.settings) if field.init}
    chosen = {name: value for name, value in facts.items() if name in known}
    for option, text in short.items():
        if SHORT[option] not in known:
            raise InvalidParameters(f"--{option} is not for {entry.name}, but for {_owners(SHORT[option])}")
        chosen[SHORT[option]] = _parsed(f"--{option}", known[SHORT[option]], text)
    for assignment in assigned:
        name, equals, text = assignment.partition("=")
        if not equals or name not in known:
            raise InvalidParameters(f"--set takes name=value; the settings of {entry.name} are {', '.join(known)}")
        chosen[name] = _parsed(f"--set {name}", known[name], text)
    return entry.settings(**chosen)


def _owners(setting: str) -> str:
    return " and ".join(name for name in names() if any(field.name == setting for field in fields(find(name).settings)))


def _parsed(option: str, hint: Any, text: str) -> Any:  # noqa: ANN401 -- one return for each type
    """Read a value of a type."""
    if isinstance(hint, types.UnionType):
        inner = next(each for each in typing.get_args(hint) if each is not type(None))
        return None if text == "none" else _parsed(option, inner, text)
    try:
        match hint:
            case _ if isinstance(hint, type) and issubclass(hint, Enum):
                return hint[text.replace("-", "_").upper()]
            case _ if hint is bool:
                return _WORDS[text]
            case _ if hint is timedelta:
                return timedelta(hours=float(text))
            case _ if typing.get_origin(hint) is tuple:
                return tuple(int(part) for part in text.split(","))
            case _ if hint in {int, Fraction}:
                return hint(text)
    except (KeyError, ValueError, ZeroDivisionError):
        raise InvalidParameters(f"{option} is {_choices(hint)}; got {text!r}") from None
    raise InvalidParameters(f"{option} cannot be written as text")


def _choices(hint: Any) -> str:  # noqa: ANN401 -- any type
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " or ".join(member.name.lower().replace("_", "-") for member in hint)
    return {bool: "yes or no", int: "an integer", Fraction: "a fraction", timedelta: "a number of hours"}.get(
        hint, "integers with commas between them"
    )
