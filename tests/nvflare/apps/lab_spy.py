"""A server that records every message that reaches it, before decoding."""

from __future__ import annotations

import os
import threading
from typing import Any

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.widgets.widget import Widget

VARIABLE = "LAB_REACHED"
_LOCK = threading.Lock()


class Spy(Widget):  # type: ignore[misc] # NVFlare has no types
    """Records everything that NVFlare's cell receives."""

    def __init__(self) -> None:
        """Start recording."""
        super().__init__()
        receive = CoreCell._process_received_msg  # noqa: SLF001 -- the lowest place, below every filter

        def looked(cell: CoreCell, endpoint: Any, connection: Any, message: Any) -> None:
            payload = message.payload
            with _LOCK, open(os.environ[VARIABLE], "ab") as file:  # noqa: PTH123 -- appended to
                file.write(repr(message.headers).encode())
                if isinstance(payload, bytes | bytearray | memoryview):
                    file.write(payload)
            receive(cell, endpoint, connection, message)

        CoreCell._process_received_msg = looked  # noqa: SLF001
