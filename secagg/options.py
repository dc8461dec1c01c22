"""Options declared once: a field's annotation has its purpose and limits for checks, parsing, help and tables.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Enclave(Options):
        minimum_cohort: Annotated[int, option("clients below which nothing is released", minimum=2)] = 3

A front end spells names its own way: ``with spelled("--minimum-cohort"): ...``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import Enum
from fractions import Fraction
from types import UnionType
from typing import Annotated, Any, Final, cast, get_args, get_origin, get_type_hints

from .errors import InvalidParameters

Spelling = Callable[[str], str]
_WORDS: Final = {"yes": True, "true": True, "no": False, "false": False}
_KINDS: Final[Mapping[object, str]] = {
    int: "an integer",
    float: "a number",
    Fraction: "a fraction",
    str: "text",
    bool: "yes or no",
    timedelta: "a number of hours",
}
_TAKEN: Final[Mapping[object, tuple[type, ...]]] = {float: (float, int), Fraction: (Fraction, float, int)}
"""Types that are converted to another; TOML writes whole floats as integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Purpose and limits of one option."""

    purpose: str
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    or_zero: bool = False
    """Whether 0 is accepted below the minimum; it means none, or a planned value."""
    choices: tuple[str, ...] = ()
    only_with: tuple[str, tuple[object, ...]] | None = None
    """Another option, and the values of it that make this one take effect."""
    part: str = ""
    """Topic, for front ends that lack it."""

    def limits(self) -> str:
        """Return the limits of a value, apart from an accepted 0."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.above is not None:
            return f"above {_number(self.above)}" + (
                f" and at most {_number(self.maximum)}" if self.maximum is not None else ""
            )
        if self.minimum is not None and self.maximum is not None:
            return f"between {_number(self.minimum)} and {_number(self.maximum)}"
        return f"of at least {_number(self.minimum)}" if self.minimum is not None else ""

    def admits(self, value: object) -> bool:
        if self.choices:
            return value in self.choices
        if isinstance(value, bool) or not isinstance(value, int | float | Fraction) or (self.or_zero and value == 0):
            return True
        return (
            (isinstance(value, int | Fraction) or math.isfinite(value))
            and (self.minimum is None or value >= self.minimum)
            and (self.maximum is None or value <= self.maximum)
            and (self.above is None or value > self.above)
        )


def option(purpose: str, **limits: Any) -> Option:  # noqa: ANN401 -- of the limits' own types
    """Return the declaration of an option, for its annotation."""
    return Option(purpose=purpose, **limits)


class OptionError(InvalidParameters):
    """A wrong option; its template has names in braces, which the front end spells."""

    def __init__(self, template: str, names: Collection[str], spelling: Spelling = str) -> None:
        self.template, self.names = template, names
        super().__init__(template.format_map({name: spelling(name) for name in names}))


@contextmanager
def spelled(spelling: Spelling | str) -> Generator[None]:
    """Spell names of options in errors as a front end does, or as the one given name."""
    try:
        yield
    except OptionError as error:
        raise OptionError(error.template, error.names, spelling if callable(spelling) else lambda _: spelling) from None


def escaped(value: object) -> str:
    """Return a value in quotes, for a template."""
    return f"{value!r:.80}".replace("{", "{{").replace("}", "}}")


@dataclass(frozen=True, slots=True)
class Declared:
    """One option of a class."""

    name: str
    kind: Any
    is_optional: bool
    is_many: bool
    default: Any
    option: Option

    def described(self) -> str:
        """Return what a value must be."""
        if self.option.choices and not self.is_many:
            return self.option.limits()
        kind = _KINDS.get(self.kind, "of another type")
        if isinstance(self.kind, type) and issubclass(self.kind, Enum):
            kind = "one of " + ", ".join(map(word, self.kind))
        several, zero = " with commas between them" * self.is_many, "0 or " * self.option.or_zero
        return " ".join(filter(None, (zero + kind + several, self.option.limits())))

    def checked(self, value: object) -> Any:  # noqa: ANN401 -- of the option's own type
        """Return a value of this option's type; a NaN, a flag or text never passes as a number.

        Raises:
            OptionError: it has another type, or is out of range.
        """
        if value is None and self.is_optional:
            return value
        if not self.is_many:
            return self._one(value, value)
        if type(value) is str and self.kind is str:
            value = tuple(part.strip() for part in value.split(",") if part.strip())
        parts = tuple(cast("Collection[object]", value)) if type(value) in (tuple, list) else (object(),)
        if not isinstance(self.kind, type) and type(value) in (tuple, list):
            return parts
        if self.kind is str and len({*map(str, parts)}) < len(parts):
            raise OptionError(f"{{{self.name}}} names something twice: {escaped(value)}", (self.name,))
        return tuple(self._one(part, value) for part in parts)

    def _one(self, value: Any, whole: object) -> Any:  # noqa: ANN401 -- any type
        if type(value) not in _TAKEN.get(self.kind, (self.kind,)) or not self.option.admits(value):
            described = self.described()
            if isinstance(self.kind, type) and issubclass(self.kind, Enum):
                described = f"a {self.kind.__name__}: " + ", ".join(f".{each.name}" for each in self.kind)
            raise OptionError(f"{{{self.name}}} must be {described}; got {escaped(whole)}", (self.name,))
        if self.kind is Fraction:
            return Fraction(str(value))
        return float(value) if self.kind is float else value

    def parsed(self, text: str) -> Any:  # noqa: ANN401 -- of the option's own type
        """Read text.

        Raises:
            OptionError: it is not a value of this option's type.
        """
        if self.is_optional and text == "none":
            return None
        if self.is_many:
            return tuple(self._read(part.strip()) for part in text.split(",") if part.strip())
        return self._read(text)

    def _read(self, text: str) -> Any:  # noqa: ANN401 -- of the option's own type
        if self.kind not in _KINDS and not (isinstance(self.kind, type) and issubclass(self.kind, Enum)):
            raise OptionError(f"{{{self.name}}} cannot be written as text", (self.name,))
        try:
            if issubclass(self.kind, Enum):
                return next(each for each in self.kind if text in {each.name, str(each.value), word(each)})
            if self.kind is bool:
                return _WORDS[text]
            return timedelta(hours=float(text)) if self.kind is timedelta else self.kind(text)
        except (KeyError, ValueError, ZeroDivisionError, OverflowError, StopIteration):
            raise OptionError(
                f"{{{self.name}}} must be {self.described()}; got {escaped(text)}", (self.name,)
            ) from None


class Options:
    """Base of option classes; checks every option."""

    __slots__ = ()

    def __post_init__(self) -> None:
        known = declared(type(self))
        for name, each in known.items():
            object.__setattr__(self, name, each.checked(getattr(self, name)))
        for name, is_wrong, sentence in self.rules():
            if is_wrong:
                raise OptionError(f"{{{name}}} {sentence}", known)
        for name, each in known.items():
            if each.option.only_with and getattr(self, name) != each.default:
                other, due = each.option.only_with
                if getattr(self, other) not in due:
                    values = " or ".join(map(escaped, due))
                    raise OptionError(
                        f"{{{name}}} only applies with {{{other}}} = {values}; remove it, or change {{{other}}}", known
                    )

    def rules(self) -> Iterator[tuple[str, bool, str]]:
        """Yield rules across options: a name, whether it is wrong, and the rest of the error's sentence."""
        yield from ()


_DECLARED: Final = dict[type[Any], dict[str, Declared]]()


def declared(cls: type[Any]) -> dict[str, Declared]:
    """Return the options of a dataclass by name, its own before those of its bases."""
    if cls in _DECLARED:
        return _DECLARED[cls]
    hints, own = get_type_hints(cls, include_extras=True), cls.__annotations__
    found = dict[str, Declared]()
    for each in sorted((one for one in fields(cls) if one.init), key=lambda one: one.name not in own):
        hint, metadata = hints[each.name], Option(purpose="")
        if get_origin(hint) is Annotated:
            hint, *more = get_args(hint)
            metadata = next((one for one in more if isinstance(one, Option)), metadata)
        kinds = [one for one in (get_args(hint) if isinstance(hint, UnionType) else (hint,)) if one is not type(None)]
        many = next((one for one in kinds if get_origin(one) is tuple), None)
        kind = get_args(many)[0] if many is not None else Fraction if Fraction in kinds else kinds[0]
        is_optional = isinstance(hint, UnionType) and type(None) in get_args(hint)
        found[each.name] = Declared(each.name, kind, is_optional, many is not None, each.default, metadata)
    return _DECLARED.setdefault(cls, found)


def suggestion(name: str, known: Collection[str], spelling: Spelling = str) -> str:
    """Return a hint for an unknown name: the closest known one, or all of them."""
    from difflib import get_close_matches  # noqa: PLC0415 -- only for errors

    near = get_close_matches(name, known, n=1)
    return f"did you mean {spelling(near[0])}?" if near else f"there are {', '.join(map(spelling, known))}"


def rows(cls: type[Any], spelling: Spelling = str) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of a table: name, default, and purpose with limits."""
    for each in declared(cls).values():
        default = "none" if each.default is None else word(each.default) or "none"
        yield spelling(each.name), default, "; ".join(filter(None, (each.option.purpose, each.option.limits())))


def _number(value: float) -> str:
    return f"{value:,}" if type(value) is int else f"{value:g}"


def word(value: object) -> str:
    """Return a value as text that ``parsed`` reads back."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Enum):
        return value.name.lower().replace("_", "-")
    return ",".join(map(str, cast("tuple[object, ...]", value))) if isinstance(value, tuple) else str(value)
