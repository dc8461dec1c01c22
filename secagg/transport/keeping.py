"""Stores state that survives a crash: a server's session at its last stage, and a client's last answer."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from secagg.crypto.secret import Secret
from secagg.declared import FLAG, Message, fixed, unsigned, variable
from secagg.errors import InvalidParameters, Misuse, PeerError
from secagg.identifiers import ClientId
from secagg.session.durable import append_whole, claim, erase, finish_erasing, replace, require_own_folder, sync_folder
from secagg.session.sealed_state import OpenState, StateDirectory
from secagg.wire import MessageKind

from .description import DESCRIPTION_BYTES, NAME_BYTES, SessionDescription
from .proof import PROOF_BYTES

_MOST: Final = (1 << 32) - 1
_DIGEST_BYTES: Final = 32
_CLAIM_BYTES: Final = NAME_BYTES + 8 + _DIGEST_BYTES
_NOBODY: Final = bytes(_DIGEST_BYTES)
_SENTENCE_BYTES: Final = 1 << 12


@dataclass(frozen=True, slots=True)
class ServerRecord(Message):
    """A session at its last opened stage."""

    kind = MessageKind.HTTP_SERVER_RECORD
    description: Annotated[bytes, variable(DESCRIPTION_BYTES)]
    stage: Annotated[int, unsigned(2)]
    snapshot: Annotated[bytes, variable(_MOST)] = field(repr=False)
    """Empty if a session must finish in the process that started it."""
    ending: Annotated[bytes, variable(_SENTENCE_BYTES)] = b""
    """Message for clients once the sum is released and stored elsewhere; empty before."""


class ServerStore:
    """Files in a folder: the session, the names that clients without keys have claimed, and others' roster."""

    def __init__(self, folder: Path) -> None:
        require_own_folder(folder)
        finish_erasing(folder)
        self._path, self._claims = folder / "session.record", folder / "session.claims"
        self.roster = folder / "session.roster"
        """The roster at the start of the session; callers write it, because the authority's roster keeps growing."""

    def put(self, record: ServerRecord) -> None:
        """Replace the record; durable when this returns."""
        replace(self._path, record.encode())

    def get(self) -> ServerRecord | None:
        """Return the last record; None if that session ended and its clients know the outcome."""
        if not self._path.exists():
            return None
        try:
            record = ServerRecord.decode(self._path.read_bytes())
            SessionDescription.decode(record.description)
        except PeerError as error:
            raise InvalidParameters(f"{self._path} is not a record of a session ({error}); remove it") from None
        return record

    def claim(self, session: str, client: ClientId, digest: bytes = _NOBODY) -> None:
        """Store the owner of a name in a session, or that it is free again; durable when this returns."""
        descriptor = os.open(self._claims, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            # An incomplete last one, left by a crash, is overwritten.
            os.lseek(descriptor, size - size % _CLAIM_BYTES, os.SEEK_SET)
            append_whole(descriptor, bytes.fromhex(session) + client.encode() + digest)
        finally:
            os.close(descriptor)
        if not size:
            sync_folder(self._claims.parent)

    def claims(self, session: str) -> dict[ClientId, bytes]:
        """Return the claimed names of a session."""
        stored = self._claims.read_bytes() if self._claims.exists() else b""
        found = dict[ClientId, bytes]()
        for start in range(0, len(stored) - _CLAIM_BYTES + 1, _CLAIM_BYTES):
            name, rest = stored[start : start + NAME_BYTES], stored[start + NAME_BYTES : start + _CLAIM_BYTES]
            if name.hex() == session:
                found[ClientId(int.from_bytes(rest[:-_DIGEST_BYTES], "big"))] = rest[-_DIGEST_BYTES:]
        return {client: digest for client, digest in found.items() if digest != _NOBODY}

    def erase(self) -> None:
        """Overwrite and remove the files: the session has ended."""
        erase(self._path)
        erase(self._claims)
        erase(self.roster)


@dataclass(frozen=True, slots=True)
class ClientProgress(Message):
    """A client's last answer, and the state from which it resumes."""

    kind = MessageKind.HTTP_CLIENT_RECORD
    session: Annotated[bytes, fixed(NAME_BYTES)]
    proof: Annotated[bytes, fixed(PROOF_BYTES)] = field(repr=False)
    stage: Annotated[int, unsigned(2)]
    answer: Annotated[bytes, variable(_MOST)] = field(repr=False)
    is_last: Annotated[bool, FLAG]
    """Whether the client only has to deliver its answer."""
    suspended: Annotated[bytes, variable(_MOST)] = field(repr=False)


class ClientStore:
    """Sealed progress of one client with one task of a server; only the newest record opens, and only once."""

    def __init__(self, states: StateDirectory, url: str, client: ClientId, task: str = "") -> None:
        """Use a folder of keys; the sealed state is next to them."""
        self._states = states
        self._path = states.beside("wire") / hashlib.sha256(f"{url}\n{task}\n".encode() + client.encode()).hexdigest()
        self._state: OpenState | None = None

    @contextmanager
    def held(self) -> Generator[None]:
        """Prevent other processes from using this client's progress, and so its place in a sum."""
        descriptor = os.open(self._path.with_suffix(".held"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            claim(descriptor, "another process of this client already takes part in this task; wait until it ends")
            yield
        finally:
            os.close(descriptor)

    def put(self, progress: ClientProgress) -> None:
        """Replace the record; durable when this returns."""
        state = self._states.begin()
        try:
            with Secret("client progress", progress.encode()) as secret:
                replace(self._path, state.seal(secret))
        except BaseException:
            state.destroy()
            raise
        if self._state is not None:
            self._state.destroy()
        self._state = state

    def take(self) -> ClientProgress | None:
        """Return the last record, once and only to this process; None if there is nothing to resume."""
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
