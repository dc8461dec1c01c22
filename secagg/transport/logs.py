"""Structured logs, of names, numbers and sentences; never bytes of a message or a proof."""

from __future__ import annotations

import logging
from typing import Final

_LOG: Final = logging.getLogger("secagg.transport")


def say(event: str, level: int = logging.INFO, **fields: str | float) -> None:
    """Log an event with its fields."""
    _LOG.log(level, event, extra={"fields": fields})
