"""Common parts of plug-ins for federated-learning platforms: settings, policies, schemes, keys, ledgers and rounds.

This module has their log, which never contains a secret, and the codes that tell the server why a client left.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from secagg.errors import InvalidParameters, Reason, SecAggError
from secagg.lazy import public_names


def needing(
    platform: str, package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Like ``lazy``, for a plug-in whose platform may be missing; the error then names the extra.

    Args:
        platform: name of the platform's package.
    """
    load, listed, public = public_names(package, names)

    def loaded(name: str) -> object:
        try:
            return load(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != platform:
                raise
            extra = package.rpartition(".")[2]
            sentence = f"{name} needs {platform}; install it with: pip install '.[{extra}]' in a checkout"
            raise InvalidParameters(sentence, reason=Reason.BACKEND_MISSING) from None

    return loaded, listed, public


# --- Leaving ----------------------------------------------------------------------------------------------------------

LOG: Final = logging.getLogger("secagg.platforms")
"""Log with one INFO line per stage; each platform sets its handlers."""
_KILO: Final = 1000


class Left(StrEnum):
    """Code that tells the server why a client left; independent of the client's data."""

    TERMS = "terms"
    VERSION = "version"
    LEFT = "left"
    FOREIGN = "foreign"
    """The reply does not belong to this protocol."""


ADVICE: Final[Mapping[Left, str]] = {
    Left.TERMS: "the session is weaker than their policy accepts, or not what they expected; their own logs say why",
    Left.VERSION: "they do not support the round's form of messages (secagg-form); install a newer secagg there",
    Left.LEFT: "their own logs say why",
    Left.FOREIGN: "their app failed, or it answered without secure aggregation",
}
"""Meaning of each code, for a server's log."""


def code_of(error: Exception) -> Left:
    """Return the code that the server receives for an error; ``terms`` errors are raised before data are read."""
    match error.reason if isinstance(error, SecAggError) else None:
        case Reason.WRONG_VERSION:
            return Left.VERSION
        case Reason.BELOW_FLOOR | Reason.LAYOUT_MISMATCH | Reason.PARAMETER_OUT_OF_RANGE:
            return Left.TERMS
        case _:
            return Left.LEFT


def log_leaving(error: Exception) -> None:
    """Log why a client leaves, only at the client."""
    if isinstance(error, SecAggError | OSError):
        LOG.warning("this client left the round: %s", str(error))
    else:
        LOG.error("this client left the round: a message could not be read", exc_info=error)


def code_said(said: object) -> Left:
    """Return the code that a client sent; any other value maps to the last code."""
    return next((code for code in Left if code == said), Left.LEFT)


def stages_said(stages: Iterable[tuple[str, StageCount]]) -> dict[str, str]:
    """Return a summary of each stage's messages, and why clients left."""
    return {name: str(count) for name, count in stages}


@dataclass(slots=True)
class StageCount:
    """Counts of messages and departures of one stage."""

    sent: int = 0
    received: int = 0
    refused: int = 0
    """Number of answers that the protocol refused."""
    left: Counter[Left] = field(default_factory=Counter[Left])
    """Clients that left or failed, by the code that they sent."""
    bytes_down: int = 0
    bytes_up: int = 0
    largest_up: int = 0
    seconds: float = 0.0

    @property
    def failed(self) -> int:
        return self.left.total()

    @property
    def late(self) -> int:
        return self.sent - self.received - self.refused - self.failed

    @property
    def advice(self) -> list[str]:
        return [f"{self.left[code]} clients left with code {str(code)!r}: {ADVICE[code]}" for code in sorted(self.left)]

    def took(self, size: int) -> None:
        self.bytes_up += size
        self.largest_up = max(self.largest_up, size)

    def __str__(self) -> str:
        dropped = self.sent - self.received
        text = (
            f"sent {self.sent} ({self.bytes_down / _KILO:.1f} kB), received {self.received} "
            f"({self.bytes_up / _KILO:.1f} kB), dropped {dropped}, in {self.seconds:.1f} s"
        )
        reasons = [f"{count} left: {code}" for code, count in sorted(self.left.items())]
        reasons += [f"{count} {name}" for name, count in (("refused", self.refused), ("silent", self.late)) if count]
        return f"{text} ({', '.join(reasons)})" if reasons else text
