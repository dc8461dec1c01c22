"""Helpers behind Unix sockets, asked all at once: an ``AskAll`` over the sockets of one machine.

Who serves one answers one connection after the other; who asks leaves out those that are lost, slow, or refuse.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from secagg.errors import MalformedMessage, SecAggError
from secagg.wire import MessageKind, message_kind

from .connection import Helper
from .frames import decode_refusal, encode_refusal, listening, receive_frame, send_frame

_LOG: Final = logging.getLogger(__name__)
MAXIMUM_FRAME_BYTES: Final = 1 << 31
_PATIENCE_OF_A_HELPER: Final = 60.0


def serve_helper(helper: Helper, path: Path, *, ready: Callable[[], None] = lambda: None) -> NoReturn:
    """Answer one connection after the other, until the process is told to end; then remove the socket.

    Args:
        ready: called once, when somebody can connect.
    Raises:
        InvalidParameters: no socket can be made at the path.
    """
    with listening(path, replaces_dead=True) as listener:
        ready()
        while True:
            connection = listener.accept()[0]
            with connection, suppress(OSError, MemoryError):
                connection.settimeout(_PATIENCE_OF_A_HELPER)
                _answer(helper, connection)


def _answer(helper: Helper, connection: socket.socket) -> None:
    while True:
        try:
            request = receive_frame(connection, MAXIMUM_FRAME_BYTES)
        except MalformedMessage as error:
            send_frame(connection, encode_refusal(error))
            return
        send_frame(connection, helper.answer(request))


class NumberedHelpers:
    """Asks helpers at their sockets; each request is a connection of its own, so a killed helper may come back."""

    def __init__(self, paths: Mapping[int, Path], patience: float) -> None:
        """Connect to nobody yet; ``patience`` is the seconds that one answer may take."""
        self._paths, self._patience = dict(paths), patience

    def ask_all(self, requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        """Return the answers that came."""
        if not requests:
            return
        with ThreadPoolExecutor(len(requests)) as threads:
            answers = threads.map(self._asked, requests.items())
            yield from (answer for answer in answers if answer is not None)

    def _asked(self, request: tuple[int, bytes]) -> tuple[int, bytes] | None:
        number, message = request
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(self._patience)
                connection.connect(str(self._paths[number]))
                send_frame(connection, message)
                answer = receive_frame(connection, MAXIMUM_FRAME_BYTES)
            if message_kind(answer) is MessageKind.REFUSAL:
                raise decode_refusal(answer)
        except (OSError, SecAggError) as error:
            _LOG.warning("helper %d does not answer: %s", number, error)
            return None
        return number, answer
