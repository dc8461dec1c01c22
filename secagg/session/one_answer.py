"""Client sessions of protocols with a single answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from secagg.blame import from_server
from secagg.crypto.secret import Confined, Secret
from secagg.errors import NOBODY, Fault, Misuse, Reason, UnexpectedMessage, blaming
from secagg.identifiers import ClientId

if TYPE_CHECKING:
    from .roles import LazyUpdate, Subject


class OneStageClientSession(Confined, ABC):
    """Base class of client sessions that answer once."""

    faults: tuple[Fault, ...] = ()
    """Always empty: other clients send nothing to this one."""

    def __init__(self, client: ClientId, subject: Subject, update: LazyUpdate | None, suspended: Secret | None) -> None:
        """Prepare to upload once; these sessions cannot be suspended."""
        if suspended is not None:
            raise Misuse("a session with one message cannot be resumed; join without a suspended state")
        self.client, self._subject, self._update, self._is_done = client, subject, update, False

    @abstractmethod
    def _upload(self, message: bytes, update: LazyUpdate) -> bytes:
        """Return the upload: checks, then ledger, then update."""

    def answer(self, message: bytes) -> bytes:
        """Return the upload, once; no copy is kept.

        Raises:
            UnexpectedMessage: it was already returned, or the client left; nothing has changed.
            Misuse: there is no update.
        """
        if self._is_done:
            raise UnexpectedMessage(
                expected="no message; the upload was already returned and not kept, or the client left",
                received="a message",
                reason=Reason.ALREADY_SPENT,
                culprits=NOBODY,
            )
        if self._update is None:
            raise Misuse("there is no update to upload; pass one to join()", reason=Reason.ALREADY_SPENT)
        with blaming(*from_server()):
            upload = self._upload(message, self._update)
        self._is_done = True
        return upload

    def suspend(self) -> Secret | None:
        self._is_done = True
        return None

    def abort(self) -> None:
        self._is_done = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.client}{', done' if self._is_done else ''}>"
