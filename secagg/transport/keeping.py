"""What survives a crash: at the server its session as of the last stage, at a client what it answered last."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, Misuse, PeerError
from secagg.fields import CLIENT, FLAG, Message, fixed, nested, repeated, unsigned, variable
from secagg.identifiers import ClientId
from secagg.session.certificates import SIGNATURE_BYTES
from secagg.session.durable import erase, replace, require_own_folder
from secagg.session.sealed_state import OpenState, StateDirectory
from secagg.wire import MessageKind

from .card import CARD_BYTES, NAME_BYTES, Card

_MOST: Final = (1 << 32) - 1
_CLIENTS: Final = 1 << 24
_DIGEST_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Claim:
    """A name that somebody has claimed, and the digest of the proof."""

    client: Annotated[ClientId, CLIENT]
    digest: Annotated[bytes, fixed(_DIGEST_BYTES)]


@dataclass(frozen=True, slots=True)
class ServerRecord(Message):
    """A session as of the stage that was opened last."""

    kind = MessageKind.HTTP_SERVER_RECORD
    card: Annotated[bytes, variable(CARD_BYTES)]
    stage: Annotated[int, unsigned(2)]
    claims: Annotated[tuple[Claim, ...], repeated(nested(Claim), _CLIENTS)]
    snapshot: Annotated[bytes, variable(_MOST)] = field(repr=False)
    """Empty where a session must finish in the process that began it."""


class ServerStore:
    """One file in a folder of this user's alone."""

    def __init__(self, folder: Path) -> None:
        """Use a folder.

        Raises:
            InvalidParameters: others may look into it.
        """
        require_own_folder(folder)
        self._path = folder / "session.record"

    def put(self, record: ServerRecord) -> None:
        """Take the place of what was there; on disk when this returns."""
        replace(self._path, record.encode())

    def get(self) -> ServerRecord | None:
        """Return what was put last; None if that session ended.

        Raises:
            InvalidParameters: the file is none of ours.
        """
        if not self._path.exists():
            return None
        try:
            record = ServerRecord.decode(self._path.read_bytes())
            Card.decode(record.card)
        except PeerError as error:
            raise InvalidParameters(f"{self._path} is no record of a session ({error}); remove it") from None
        return record

    def erase(self) -> None:
        """Overwrite and remove it: the session has ended."""
        erase(self._path)


@dataclass(frozen=True, slots=True)
class ClientProgress(Message):
    """What a client answered last, and what it goes on from."""

    kind = MessageKind.HTTP_CLIENT_RECORD
    session: Annotated[bytes, fixed(NAME_BYTES)]
    proof: Annotated[bytes, fixed(SIGNATURE_BYTES)] = field(repr=False)
    stage: Annotated[int, unsigned(2)]
    answer: Annotated[bytes, variable(_MOST)] = field(repr=False)
    is_last: Annotated[bool, FLAG]
    """Whether nothing is left to do but to see that the answer arrives."""
    suspended: Annotated[bytes, variable(_MOST)] = field(repr=False)


class ClientStore:
    """The progress of one client with one server, sealed; the newest opens, and only once."""

    def __init__(self, states: StateDirectory, url: str, client: ClientId) -> None:
        """Use a folder of keys; what is sealed stands beside them."""
        self._states = states
        self._path = states.beside("wire") / hashlib.sha256(url.encode() + client.encode()).hexdigest()
        self._state: OpenState | None = None

    def put(self, progress: ClientProgress) -> None:
        """Take the place of what was there; on disk when this returns."""
        before, self._state = self._state, self._states.begin()
        with Secret("client progress", progress.encode()) as secret:
            replace(self._path, self._state.seal(secret))
        if before is not None:
            before.destroy()

    def take(self) -> ClientProgress | None:
        """Return what was put last, for this process alone; None if there is nothing to go on from."""
        if not self._path.exists():
            return None
        try:
            self._state, secret = self._states.open(self._path.read_bytes())
        except Misuse:
            return None
        with secret:
            progress = ClientProgress.decode(bytes(secret.expose()))
        self.put(progress)
        return progress

    def erase(self) -> None:
        """Destroy the key: the session has ended."""
        self._path.unlink(missing_ok=True)
        if self._state is not None:
            self._state.destroy()
            self._state = None
