"""A run's state in one file, which is always whole: it is written beside its place and renamed into it.

Generators have no state to store, since everything random follows from the run's seed, the round and the client. What
is stored are arrays and one JSON text; nothing in the file is executed when it is read.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from secagg.errors import InvalidParameters
from secagg.training.settings.configuration import Configuration, to_tree

FILE_NAME: Final = "checkpoint.npz"
_TEXT: Final = "text"
_FORMAT: Final = 1
_MAY_CHANGE: Final = frozenset({"name", "rounds", "workers", "engine", "checkpoint_every", "secagg.threads"})
"""What a resumed run may have otherwise, since no result depends on it but by float rounding of another engine; but a
rate that falls does so towards the last of the rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Everything that the next round depends on."""

    next_round: int
    configuration: dict[str, Any]
    counters: dict[str, Any] = field(default_factory=dict[str, Any])
    arrays: dict[str, dict[str, npt.NDArray[Any]]] = field(default_factory=dict[str, dict[str, npt.NDArray[Any]]])
    """By part of the run, and by name."""

    def write(self, folder: Path) -> Path:
        """Write the file, all of it or none."""
        text = json.dumps(
            {
                "format": _FORMAT,
                "next_round": self.next_round,
                "configuration": self.configuration,
                "counters": self.counters,
            }
        )
        flat = {_TEXT: np.frombuffer(text.encode(), dtype=np.uint8)}
        for part, arrays in self.arrays.items():
            flat.update({f"{part}:{name}": value for name, value in arrays.items()})
        return write_arrays(folder / FILE_NAME, flat)

    @classmethod
    def read(cls, folder: Path) -> Checkpoint | None:
        """Read the file of a folder; None if there is none.

        Raises:
            InvalidParameters: it is no checkpoint.
        """
        file = folder / FILE_NAME
        if not file.exists():
            return None
        try:
            with file.open("rb") as opened, np.load(opened, allow_pickle=False) as stored:
                flat = {name: stored[name] for name in stored.files}
            text = json.loads(flat.pop(_TEXT).tobytes())
            if text["format"] != _FORMAT:
                found = f"it has format {text['format']}, and this version reads {_FORMAT}"
                raise ValueError(found)  # noqa: TRY301 -- said below
            arrays = dict[str, dict[str, npt.NDArray[Any]]]()
            for key, value in flat.items():
                part, _, name = key.partition(":")
                arrays.setdefault(part, {})[name] = value
            return cls(
                next_round=text["next_round"],
                configuration=text["configuration"],
                counters=text["counters"],
                arrays=arrays,
            )
        # What a damaged archive raises is whatever its damage looks like: a password, another compression, its end.
        except (OSError, EOFError, ValueError, KeyError, TypeError, RuntimeError, zipfile.BadZipFile) as error:
            raise InvalidParameters(f"{file} is no checkpoint ({error}); remove it, and start anew") from None

    def require_same(self, configuration: Configuration) -> None:
        """Refuse a configuration under which the run would not be the one that was begun.

        Raises:
            InvalidParameters: naming what differs.
        """
        may_change = _MAY_CHANGE - ({"rounds"} if configuration.server.falling else set[str]())
        found = sorted(_differences(self.configuration, to_tree(configuration)) - may_change)
        if found:
            raise InvalidParameters(
                f"the run was begun with another {', '.join(found)}; resume it as it was begun, or name another folder"
            )

    def require_about(self, about: Mapping[str, str]) -> None:
        """Refuse other data and another model than the run was begun with.

        Raises:
            InvalidParameters: naming which.
        """
        stored = self.counters.get("about", {})
        if found := [name for name, digest in about.items() if stored.get(name) != digest]:
            raise InvalidParameters(
                f"the run was begun with other {' and '.join(found)}; resume it as it was begun, or name another folder"
            )


def write_arrays(file: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> Path:
    """Write arrays to one file, all of it or none."""
    named: dict[str, Any] = {name: np.asarray(value) for name, value in arrays.items()}
    with _replacing(file) as temporary, temporary.open("wb") as opened:
        np.savez(opened, **named)
        opened.flush()
        os.fsync(opened.fileno())
    return file


def write_text(file: Path, text: str) -> None:
    """Write a text file, all of it or none."""
    with _replacing(file) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def _replacing(file: Path) -> Generator[Path]:
    """Name a file to write, which takes the place of the one that is meant once it is whole."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> set[str]:
    found = set[str]()
    for key in before.keys() | now.keys():
        one, other = before.get(key), now.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            trees = cast("tuple[dict[str, Any], dict[str, Any]]", (one, other))
            found |= _differences(*trees, f"{path}{key}.")
        elif one != other:
            found.add(path + key)
    return found
