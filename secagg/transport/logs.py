"""Structured logs: one JSON object a line, of names, numbers and sentences; never bytes of a message or a proof."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final

LOG: Final = logging.getLogger("secagg.transport")


def say(event: str, level: int = logging.INFO, **fields: str | float) -> None:
    """Log an event with its fields."""
    LOG.log(level, event, extra={"fields": fields})


class JsonLines(logging.Formatter):
    """Formats any record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)
