"""``secagg indexing-server``: one of the two servers in a process of its own, and the keys that both need."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from secagg.crypto.entropy import SystemCoins
from secagg.errors import InvalidParameters, PeerError, SecAggError
from secagg.identifiers import ServerId
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.journal import FileJournal
from secagg.protocols.two_servers.operators.process import serve
from secagg.protocols.two_servers.operators.server_keys import ServerKeys, new_server_keys
from secagg.protocols.two_servers.server import IndexingServer

from .serving import serving

_MOST_FILE_BYTES: Final = 1 << 22
_OWNER_ONLY: Final = 0o600


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetting:
    """Which server this is, of which round, and where its files and sockets are."""

    role: int
    socket_path: Path
    peer_socket_path: Path
    configuration: Path
    keys: Path
    journal: Path
    round_number: int
    threads: int


def make_keys(folder: Path) -> int:
    """Write a key file for each server, for nobody but this user, and print the public keys."""
    folder.mkdir(parents=True, exist_ok=True)
    both = new_server_keys(SystemCoins())
    files = [folder / f"server{keys.server.index}.keys" for keys in both]
    for file in files:
        if file.exists():
            raise InvalidParameters(f"{file} exists; name another --out, or remove the keys that are there")
    for keys, file in zip(both, files, strict=True):
        with keys:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
            with os.fdopen(descriptor, "wb") as opened:
                opened.write(keys.encode())
            print(f"{keys.server}: {keys.signing_key().public_key.hex()}  {file}")
    print("Whoever holds both files can sign for both servers: hand each operator its own, and keep neither.")
    return 0


def erase_journal(path: Path) -> int:
    """Overwrite and remove the journal of a round that is over."""
    if not path.exists():
        raise InvalidParameters(f"there is no journal at {path}; name another --journal")
    FileJournal(path).erase()
    print(f"{path} is overwritten and removed; what the file system keeps of it is beyond reach")
    return 0


def serve_indexing(setting: ServerSetting) -> int:
    """Serve one round until SIGTERM or SIGINT, and return the exit status."""
    if setting.threads < 1:
        raise InvalidParameters(f"--threads is {setting.threads}; at least one thread evaluates")

    def say_ready() -> None:
        print(
            f"secagg indexing-server: server/{setting.role} of round {setting.round_number} is ready at "
            f"{setting.socket_path}. Two servers in one hand protect nobody.",
            flush=True,
        )

    with serving():
        serve(_server(setting), setting.socket_path, setting.peer_socket_path, ready=say_ready)


def _server(setting: ServerSetting) -> IndexingServer:
    """Begin a round, or go on with the one that the journal holds."""
    try:
        configuration = IndexingConfiguration.decode(_content("--configuration", setting.configuration))
    except PeerError as error:
        raise InvalidParameters(f"{setting.configuration} holds no configuration: {error}") from None
    try:
        keys = ServerKeys.decode(_content("--keys", setting.keys, is_secret=True))
    except PeerError as error:
        raise InvalidParameters(f"{setting.keys} holds no keys of a server: {error}") from None
    with keys:
        if keys.server != ServerId(setting.role):
            raise InvalidParameters(f"--role is {setting.role}, and {setting.keys} holds the keys of {keys.server}")
        journal = FileJournal(setting.journal)
        try:
            return IndexingServer(
                configuration,
                keys.server,
                round_number=setting.round_number,
                signing_key=keys.signing_key(),
                pair_key=keys.pair_key,
                journal=journal,
                coins=SystemCoins(),
                threads=setting.threads,
            )
        except SecAggError:
            journal.close()
            raise


def _content(option: str, file: Path, *, is_secret: bool = False) -> bytes:
    try:
        with file.open("rb") as opened:
            if is_secret and os.fstat(opened.fileno()).st_mode & 0o077:
                raise InvalidParameters(f"{file} is readable by others; chmod it to 600")
            content = opened.read(_MOST_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidParameters(f"cannot read {file}: {error.strerror}; name a file with {option}") from None
    if len(content) > _MOST_FILE_BYTES:
        raise InvalidParameters(f"{file} is larger than 4 MiB; {option} names another file")
    return content
