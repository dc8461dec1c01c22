"""Options that stand for a protocol's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from secagg.errors import InvalidParameters
from secagg.session.registry import ProtocolEntry, find, names
from secagg.session.settings import known_settings, parsed, planned_settings

SHORT: Final[Mapping[str, str]] = {
    "mode": "mode",
    "noise": "noise_multiplier",
    "epsilon": "budget_epsilon",
    "topology": "topology",
    "corrupted": "corrupted",
    "depth": "depth",
    "release": "form",
    "accumulation": "accumulation",
    "unchecked": "is_checked",
}
"""Options with a name of their own, and the setting that each stands for."""


def settings_of(entry: ProtocolEntry, facts: Mapping[str, Any], short: Mapping[str, Any], assigned: list[str]) -> Any:  # noqa: ANN401 -- the protocol's own class
    """Return a protocol's settings.

    Args:
        facts: what a rehearsal knows, by the names of settings; a protocol takes those that it has.
        short: the values of the options in ``SHORT`` that were given.
        assigned: ``name=value``, for every other setting.
    Raises:
        InvalidParameters: an option that this protocol does not have, or a value that it cannot take.
    """
    known = known_settings(entry)
    given = dict[str, Any]()
    for option, text in short.items():
        if SHORT[option] not in known:
            raise InvalidParameters(f"--{option} is not for {entry.name}, but for {_owners(SHORT[option])}")
        given[SHORT[option]] = parsed(f"--{option}", known[SHORT[option]], text)
    return planned_settings(entry, facts, given, assigned, option="--set")


def _owners(setting: str) -> str:
    return " and ".join(name for name in names() if any(field.name == setting for field in fields(find(name).settings)))
