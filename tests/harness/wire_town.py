"""A deployment in separate processes: our commands, forked from a process that has already imported them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np

SECONDS: Final = 240.0
"""Timeout of all waits, for slow machines."""
VALUES: Final = 8
FORKS: Final = get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "secagg.cli.contribute",
        "secagg.cli.serve",
        "secagg.platforms.enclave_plug",
        "secagg.platforms.plugs",
        "secagg.quick.model_session",
        "secagg.transport.client",
        "secagg.transport.listener",
        "secagg.transport.server",
    ]
)


def child(arguments: list[str], environment: dict[str, str], log: Path, stops: Connection | None) -> None:
    """Run a command; with stops, a client waits around each answer, and a server around its last steps."""
    from secagg.cli import main  # noqa: PLC0415 -- in the child

    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    if stops is not None:
        pause(stops)
    status = main(arguments)
    sys.stdout.flush()
    os._exit(status)


def pause(stops: Connection) -> None:
    """Let a client of this process wait before and after each answer, and a server around its writes and messages."""
    from secagg.cli import serve as server  # noqa: PLC0415 -- in the child
    from secagg.transport import client, keeping  # noqa: PLC0415 -- in the child

    part: Any = vars(client)["_Part"]  # Point where a client would be killed.
    answered = part._answered  # noqa: SLF001

    async def stopping(self: Any, description: Any, before: Any, number: int, message: bytes) -> Any:
        await stop(f"asked {number}")
        progress = await answered(self, description, before, number, message)
        await stop(f"stored {number}")
        return progress

    async def stop(where: str) -> None:
        await asyncio.to_thread(stand, where)

    def stand(where: str) -> None:
        os.write(1, f"{where}\n".encode())
        stops.recv()

    part._answered = stopping  # noqa: SLF001
    kept: Any = keeping.ServerStore
    commands: Any = server
    write, put, erase = commands._write, kept.put, kept.erase  # noqa: SLF001

    def written(*arguments: Any) -> Any:
        stand("to write")
        said = write(*arguments)
        stand("written")
        return said

    def recorded(self: Any, record: Any) -> None:
        put(self, record)
        if record.ending:
            stand("recorded")

    def erased(self: Any) -> None:
        stand("to erase")
        erase(self)
        stand("erased")

    commands._write = written  # noqa: SLF001
    kept.put, kept.erase = recorded, erased


class Process:
    """A running command, and its output."""

    def __init__(self, arguments: list[str], environment: dict[str, str], log: Path, *, is_paused: bool) -> None:
        self.log, self._seen = log, 0
        self._ours, theirs = FORKS.Pipe()
        stops = theirs if is_paused else None
        # Not a daemon: a server may have workers, which end with it.
        self._process = FORKS.Process(target=child, args=(arguments, environment, log, stops))
        self._process.start()
        theirs.close()

    @property
    def number(self) -> int:
        """Process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def text(self) -> str:
        """All its output."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def wait_for(self, text: str) -> str:
        """Return the next line that contains a text."""
        deadline = time.monotonic() + SECONDS
        while True:
            is_over = not self._process.is_alive() or time.monotonic() > deadline
            said = self.text
            lines = said[self._seen : said.rfind("\n") + 1].splitlines(keepends=True)
            for line in lines:
                self._seen += len(line)
                if text in line:
                    return line.strip()
            assert not is_over, f"{text!r} was never printed, but:\n{said}"
            time.sleep(0.01)

    def wait_for_stage(self) -> tuple[str, int]:
        """Return the name and number of the next stage that a server opens."""
        opened = json.loads(self.wait_for('"stage opened"'))
        return opened["stage"], opened["number"]

    def go_on(self) -> None:
        """Let a stopped client continue."""
        self._ours.send(None)

    def kill(self) -> None:
        """Kill it, as a crash would."""
        os.kill(self.number, signal.SIGKILL)
        self.ended()

    def hang_up(self) -> None:
        """Signal that files were renewed."""
        os.kill(self.number, signal.SIGHUP)

    def terminate(self) -> int:
        """Ask it to end."""
        self._process.terminate()
        return self.ended()

    def ended(self) -> int:
        """Wait for its end, and return its status."""
        self._process.join(SECONDS)
        assert self._process.exitcode is not None, f"it has not ended, but printed:\n{self.text}"
        return self._process.exitcode

    def close(self) -> None:
        """End it if it is running."""
        self._process.kill()
        self._process.join(SECONDS)
        self._ours.close()


class Town:
    """A folder of keys, updates and states, and the processes that use it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, list[Process]()
        self.environment = {"SECAGG_LEDGER_DIRECTORY": str(folder / "ledgers")}
        self.port, self.url = 0, "http://127.0.0.1"

    def command(self, *arguments: str, is_paused: bool = False) -> Process:
        """Start one of our commands."""
        log = self.folder / f"{len(self.processes)}.log"
        process = Process(list(arguments), self.environment, log, is_paused=is_paused)
        self.processes.append(process)
        return process

    def make_keys(self) -> str:
        """Make an authority's key, and one for each of five clients; return the roster's path."""
        assert self.command("keys", "--clients", "5", "--out", str(self.folder / "keys")).ended() == 0
        return str(self.folder / "keys" / "roster.txt")

    def serve(self, *arguments: str, is_paused: bool = False) -> Process:
        """Start a server, at the same port as the one before, and wait until it listens."""
        server = self.command(
            "serve",
            *("--values", str(VALUES), "--clip", "1", "--listen", f"127.0.0.1:{self.port}"),
            *("--exchange-seconds", "600", "--out", str(self.folder / "mean.npy")),
            *("--state", str(self.folder / "server"), *arguments),
            is_paused=is_paused,
        )
        found = re.search(r":(\d+),", server.wait_for("listening at "))
        assert found is not None
        self.port = int(found[1])
        return server

    def contribute(
        self, number: int, *arguments: str, is_paused: bool = False, values: int = VALUES, turn: int = 0
    ) -> Process:
        """Start a client, whose values are a hundredth of its number, and more in a later turn."""
        update = self.folder / f"update-{number}.npy"
        np.save(update, np.full(values, number / 100 + turn / 10))
        key = self.folder / "keys" / f"client-{number}.key"
        who = ("--identity", str(key)) if key.exists() else ("--client", str(number))
        state = self.folder / f"state-{number}"
        return self.command(
            "contribute",
            f"{self.url}:{self.port}",
            *("--update", str(update), "--state", str(state), *who, *arguments),
            is_paused=is_paused,
        )

    def mean(self) -> float:
        """Return the resulting mean."""
        return float(np.load(self.folder / "mean.npy", allow_pickle=False)[0])

    def close(self) -> None:
        """End every process."""
        for process in self.processes:
            process.close()
