"""Declared options: accepted values, how text is parsed, and what errors say."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, fields
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import pytest

from secagg.errors import InvalidParameters
from secagg.options import OptionError, Options, declared, option, rows, spelled, word
from secagg.parameters import Suite
from secagg.platforms.settings import SecAggSettings
from secagg.session.client_policy import DEFAULTS
from secagg.session.registry import find, names

WRONG: dict[Any, tuple[object, ...]] = {
    int: (math.nan, 5.0, True, "5", None, b"5"),
    float: (math.nan, math.inf, True, "5", None),
    str: (5, None, True, b"text"),
    bool: (1, 0, "yes", None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Made(Options):
    """Options of every kind."""

    suite: Annotated[Suite, option("ciphers")] = Suite.CLASSIC
    cohort: Annotated[int | None, option("clients", minimum=2, maximum=9)] = None
    share: Annotated[Fraction | float | None, option("a share", above=0)] = None
    clip: Annotated[float, option("a bound", above=0)] = 1.0
    bounds: Annotated[tuple[int, ...], option("bounds", minimum=1)] = ()
    lifetime: Annotated[timedelta, option("lifetime")] = timedelta(hours=12)
    is_checked: Annotated[bool, option("whether it is checked", only_with=("suite", (Suite.CLASSIC,)))] = True


@pytest.mark.parametrize("name", declared(SecAggSettings))
def test_a_setting_must_have_its_own_type(name: str) -> None:
    each = declared(SecAggSettings)[name]
    for wrong in WRONG[each.kind]:
        if (wrong is None and each.is_optional) or (each.is_many and isinstance(wrong, str)):
            continue
        given: Any = {name: wrong}
        with pytest.raises(InvalidParameters, match=f"^secagg-{name.replace('_', '-')} "):
            SecAggSettings(**given)


def test_errors_name_keywords_as_they_were_typed() -> None:
    """On a platform the key is secagg-clip; the caller of a function wrote clip=."""
    for given, said in (
        ({"clip": -1.0}, "clip must be a number above 0; got -1.0"),
        ({"clips": 1.0}, "there is no option clips; did you mean clip?"),
        ({"protocol": "enclave"}, "roster is required in active mode"),
        ({"minimum_cohort": 1}, "minimum_cohort must be 0 or an integer of at least 2"),
    ):
        with pytest.raises(InvalidParameters, match=f"^{re.escape(said)}"):
            SecAggSettings.of(given)


def test_every_setting_has_a_description() -> None:
    assert [each.name for each in declared(SecAggSettings).values() if not each.option.purpose] == []
    assert declared(SecAggSettings).keys() == {each.name for each in fields(SecAggSettings)}
    assert ("clip", "4.0", "maximum change of one fixed-point value; above 0") in rows(SecAggSettings)
    assert [name for name, default, _ in rows(SecAggSettings) if default == "none"][:4] == [
        *("mode", "topology", "suite", "corrupted")
    ]


@pytest.mark.parametrize("protocol", names())
def test_every_option_of_a_protocol_has_a_description(protocol: str) -> None:
    known = declared(find(protocol).settings)
    assert [name for name, each in known.items() if not each.option.purpose] == []
    assert "protocol" not in known


def test_the_guide_lists_exactly_the_settings(repository: Path) -> None:
    guide = (repository / "secagg/flower/README.md").read_text(encoding="utf-8")
    table = guide[guide.index("## Settings") : guide.index("## Strategies")]
    listed = {key for row in table.splitlines() for key in re.findall(r"`secagg-([a-z-]+)`", row.partition(" | ")[0])}
    assert listed == {name.replace("_", "-") for name in declared(SecAggSettings)}


@pytest.mark.parametrize("protocol", names())
def test_a_protocols_default_is_parsed_from_its_text(protocol: str) -> None:
    for each in declared(find(protocol).settings).values():
        if each.kind in WRONG or hasattr(each.kind, "__members__"):
            assert each.parsed("none" if each.default is None else word(each.default)) == each.default


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cohort": 1}, "cohort must be an integer between 2 and 9; got 1"),
        ({"cohort": math.nan}, "cohort must be an integer between 2 and 9; got nan"),
        ({"cohort": True}, "cohort must be an integer"),
        ({"share": math.nan}, "share must be a fraction above 0; got nan"),
        ({"share": math.inf}, "share must be a fraction above 0"),
        ({"share": True}, "share must be a fraction above 0"),
        ({"clip": "1"}, "clip must be a number above 0; got '1'"),
        ({"bounds": (1, True)}, "bounds must be an integer with commas between them of at least 1"),
        ({"bounds": 5}, "bounds must be an integer with commas"),
        ({"suite": "x25519-aes128"}, "suite must be a Suite: .CLASSIC, .HYBRID; got 'x25519-aes128'"),
        ({"lifetime": 5}, "lifetime must be a number of hours"),
        ({"suite": Suite.HYBRID, "is_checked": False}, "is_checked only applies with suite = .*; remove it, or change"),
    ],
)
def test_an_invalid_option_is_refused_with_its_limits(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Made(**given)


def test_values_are_converted_if_nothing_is_lost() -> None:
    made = Made(share=0.1, clip=2, bounds=[3, 4])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert (made.share, made.clip, made.bounds) == (Fraction(1, 10), 2.0, (3, 4))
    assert type(made.clip) is float


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        *(("suite", text, Suite.HYBRID) for text in ("hybrid", "HYBRID", "mlkem768x25519-aes256")),
        *(("cohort", text, value) for text, value in (("5", 5), ("none", None))),
        ("share", "1/3", Fraction(1, 3)),
        ("bounds", "1, 2", (1, 2)),
        ("lifetime", "1.5", timedelta(hours=1.5)),
        ("is_checked", "no", False),
    ],
)
def test_text_is_parsed(name: str, text: str, value: object) -> None:
    assert declared(Made)[name].parsed(text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("suite", "rsa"), ("cohort", "many"), ("cohort", "5.0"), ("share", "1/0"), ("bounds", "x")),
        *(("is_checked", "0"), ("lifetime", "nan"), ("lifetime", "inf"), ("lifetime", "soon")),
    ],
)
def test_invalid_text_is_refused_by_the_name_of_the_front_end(name: str, text: str) -> None:
    with pytest.raises(OptionError, match=rf"^--set {name} must be .*; got '{text}'$"), spelled(f"--set {name}"):
        declared(Made)[name].parsed(text)


def test_values_with_braces_are_quoted_unchanged() -> None:
    with pytest.raises(OptionError, match=r"clip must be a number above 0; got '\{clip\}'"):
        Made(clip="{clip}")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_the_guide_has_the_defaults_of_today(repository: Path) -> None:
    guide = (repository / "secagg/flower/README.md").read_text(encoding="utf-8")
    named = {f"secagg-{name.replace('_', '-')}": each.default for name, each in declared(SecAggSettings).items()}
    compared = 0
    for keys, said in re.findall(r"^\| ((?:`secagg-[a-z-]+`(?:, )?)+) \| ([^|]*) \|", guide, re.MULTILINE):
        values = re.findall(r"`([^`]*)`", said)
        names = re.findall(r"`([^`]*)`", keys)
        if not values:
            continue
        for name, value in zip(names, values if len(values) == len(names) else values * len(names), strict=True):
            default = named[name]
            if default is None:
                continue
            assert json.loads(value) == ("" if default == () else default), name
            compared += 1
    assert compared > 20


@pytest.mark.parametrize(("module", "policy"), [("pairwise.js", "POLICY"), ("one_message.js", "HOLDER_POLICY")])
def test_browsers_have_the_policy_of_other_clients(repository: Path, module: str, policy: str) -> None:
    text = (repository / "clients/web" / module).read_text(encoding="utf-8")
    block = text.split(f"export const {policy} = Object.freeze({{", 1)[1].split("\n});", 1)[0]
    found = dict(re.findall(r"^  ([a-zA-Z]+): ([\d *]+),$", block, re.MULTILINE))
    shorter = {"maximumLength", "maximumCapacity"}
    own = {re.sub(r"([A-Z])", lambda one: f"_{one[1].lower()}", name): name for name in found}
    assert len(found) > 5
    for name, script in own.items():
        value = (
            math.prod(int(each) for each in re.findall(r"\d+", found[script])) if "**" not in found[script] else None
        )
        if script not in shorter:
            assert value == DEFAULTS[name], script
