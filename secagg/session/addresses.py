"""Addresses of helpers: ``unix:PATH`` on this machine, ``vsock:CONTEXT:PORT`` of a machine within it."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.errors import InvalidParameters

_PARTS: Final = 2
_MOST: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Address:
    """Where a helper listens."""

    family: int
    place: str | tuple[int, int]

    @classmethod
    def of(cls, text: str | Path) -> Address:
        """Read an address; a path is one of a Unix socket.

        Raises:
            InvalidParameters: it is none.
        """
        kind, _, rest = str(text).partition(":")
        if isinstance(text, Path) or kind not in ("unix", "vsock"):
            return cls(socket.AF_UNIX, str(text))
        if kind == "unix" and rest:
            return cls(socket.AF_UNIX, rest)
        numbers = rest.split(":")
        if len(numbers) == _PARTS and all(each.isdecimal() and int(each) < _MOST for each in numbers):
            return cls(getattr(socket, "AF_VSOCK", -1), (int(numbers[0]), int(numbers[1])))
        raise InvalidParameters(f"an address is unix:PATH or vsock:CONTEXT:PORT; got {str(text)!r}")

    def connect(self, timeout: float | None) -> socket.socket:
        """Return a connection.

        Raises:
            OSError: nothing listens there, or this system has no such sockets.
        """
        if self.family < 0:
            raise OSError("this system has no vsock")
        connection = socket.socket(self.family, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout)
            connection.connect(self.place)
        except BaseException:
            connection.close()
            raise
        return connection

    def __str__(self) -> str:
        return self.place if isinstance(self.place, str) else f"vsock:{self.place[0]}:{self.place[1]}"
