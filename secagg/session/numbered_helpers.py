"""Numbered helpers behind Unix sockets, asked all at once; those that are lost, slow, or refuse are left out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from secagg.errors import SecAggError

from .frames import encode_refusal
from .sockets import SocketAsk

_LOG: Final = logging.getLogger(__name__)


def _log(number: int, error: Exception) -> None:
    _LOG.warning("helper %d does not answer: %s", number, error)


class NumberedHelpers:
    """Asks helpers at their sockets; each request is a connection of its own, so a killed helper may come back."""

    def __init__(
        self, paths: Mapping[int, Path], patience: float, lost: Callable[[int, Exception], None] = _log
    ) -> None:
        """Connect to nobody yet.

        Args:
            patience: the seconds that a helper may be silent.
            lost: told, from any thread, who does not answer and why.
        """
        self._paths, self._patience, self._lost = dict(paths), patience, lost

    def ask_all(self, requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        """Return the answers that came; of a helper that refuses, the refusal."""
        if not requests:
            return
        with ThreadPoolExecutor(len(requests)) as threads:
            answers = threads.map(self._asked, requests.items())
            yield from (answer for answer in answers if answer is not None)

    def _asked(self, request: tuple[int, bytes]) -> tuple[int, bytes] | None:
        number, message = request
        try:
            with SocketAsk(self._paths[number], timeout=self._patience) as ask:
                return number, ask(message)
        except ConnectionError as error:
            self._lost(number, error)
            return None
        except SecAggError as error:
            self._lost(number, error)
            return number, encode_refusal(error)
