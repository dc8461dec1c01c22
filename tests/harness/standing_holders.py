"""Standing holders of a one-message epoch, each in a separate process, as their operators start them."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from socket import create_server

from secagg.protocols.one_message import EpochRecord


def told(*arguments: str) -> str:
    """Run one of the library's commands in this process, and return its output."""
    # By name: a type checker would follow the commands into training, which some environments are without.
    with redirect_stdout(StringIO()) as said:
        assert import_module("secagg.cli").main([*arguments]) == 0
    return said.getvalue().strip()


class StandingHolders:
    """Holders that may be killed and started again."""

    def __init__(
        self,
        folder: Path,
        authority: Path,
        count: int,
        *record: str,
        serve: tuple[str, ...] = (),
        elsewhere: bool = False,
    ) -> None:
        """Sign the record of the holders with these options, and start all of them with their options.

        If remote, they listen at ports for the server with the key in the file ``server.key``.
        """
        self.folder, self.count, self.serve = folder, count, serve
        self._addresses = [str(folder / f"{number}.socket") for number in range(count)]
        if elsewhere:
            self.serve = (*serve, "--server", told("holder", "keys", "--out", str(folder / "server.key")))
            with ExitStack() as open_ports:
                probes = [open_ports.enter_context(create_server(("127.0.0.1", 0))) for _ in range(count)]
                self._addresses = [f"tcp:127.0.0.1:{probe.getsockname()[1]}" for probe in probes]
        self.keys = [told("holder", "keys", "--out", str(folder / f"holder-{number}")) for number in range(count)]
        listed = [part for key in self.keys for part in ("--holder", key)]
        signed = ["--authority", str(authority), "--number", "1", "--out", str(folder / "record")]
        self.said = told("holder", "record", *signed, *listed, *record)
        self.record = EpochRecord.decode((folder / "record").read_bytes())
        self.processes = dict[int, subprocess.Popen[str]]()
        for number in range(count):
            self.start(number)

    def socket(self, number: int) -> str:
        return self._addresses[number]

    def start(self, number: int) -> None:
        arguments = [
            *("--record", str(self.folder / "record"), "--key", str(self.folder / f"holder-{number}")),
            *("--authority", self.record.authority.hex()),
            *("--listen", self.socket(number), *self.serve),
        ]
        process = subprocess.Popen(  # noqa: S603 -- our own command
            [sys.executable, "-m", "secagg.cli", "holder", "serve", *arguments], stdout=subprocess.PIPE, text=True
        )
        self.processes[number] = process
        assert process.stdout is not None
        assert "is ready" in process.stdout.readline()

    def kill(self, number: int) -> None:
        process = self.processes.pop(number)
        process.kill()
        process.communicate()

    def end(self) -> None:
        for number in list(self.processes):
            self.kill(number)
