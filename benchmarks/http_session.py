"""A whole session over HTTP: ``secagg serve``, and clients on loopback until each learns of the sum.

    PYTHONPATH=. python benchmarks/http_session.py 1200 5000

Many clients share a process, and each has its own connection, keys and state in memory; they compute all that clients
do, with minimal HTTP. They run on the same machine, so most of a session's time is theirs; processor time and
peak memory are only the server's. Another connection polls ``/health``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np

from figures import machine
from secagg import Session
from secagg.cli.shared import plan_of, subject_of
from secagg.crypto.entropy import SystemCoins
from secagg.identifiers import ClientId
from secagg.platforms.client_node import ClientNode
from secagg.platforms.plugs import NodeSide, plug_of
from secagg.session.ledger import NO_MODEL
from secagg.session.roles import LazyUpdate, Subject, Update
from secagg.session.sealed_state import StateDirectory
from secagg.transport.description import STAGE_HEADER, SessionDescription
from secagg.transport.exchange import Answer
from secagg.transport.proof import Prover, header_of

PROTOCOL = "pairwise"
_RETRIED = {Answer.SLOW.status, Answer.BUSY.status, Answer.STOPPING.status}
TICKS = os.sysconf("SC_CLK_TCK")
PAUSE = 0.25
"""Seconds between two polls of the server."""


@cache
def planned(description: bytes) -> tuple[Session[Any], Subject]:
    """Return the encoding that a process's clients share; elsewhere each client computes it."""
    said = SessionDescription.decode(description)
    plan = plan_of(said.protocol, said.terms)
    return plan, subject_of(plan, said.task, said.round_number, said.terms)


class Requests:
    """One client's requests, over a connection that is reopened after the server closes it."""

    def __init__(self, port: int, number: int) -> None:
        """Connect later."""
        self._port, self._head, self._spread = port, "", 0.5 + number % 97 / 97
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def enter(self, session: str, client: ClientId, proof: bytes) -> None:
        """Use this session for all further requests."""
        self._head = f"authorization: {header_of(client, proof)}\r\n"
        self.path = f"/v1/sessions/{session}"

    async def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, str, bytes]:
        """Return the status, stage and body of an answer; retries until there is one."""
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{self._head}content-length: {len(body)}\r\n\r\n".encode()
        )
        for again in count():
            try:
                if self._streams is None:
                    self._streams = await asyncio.open_connection("127.0.0.1", self._port)
                reader, writer = self._streams
                writer.write(head + body)
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().splitlines()
                named = dict(line.split(": ", 1) for line in lines if line)
                answer = await reader.readexactly(int(named.get("content-length", "0")))
                if named.get("connection") == "close":
                    self.close()
                if (status := int(first.split()[1])) not in _RETRIED:
                    return status, named.get(STAGE_HEADER, ""), answer
            except (OSError, asyncio.IncompleteReadError):
                self.close()
            await asyncio.sleep(min(5.0, 0.05 * 2**again) * self._spread)
        raise AssertionError

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
        self._streams = None


def served(port: int, clients: Sequence[int], values: int) -> int:
    """Run all these clients; return the number that learned of the sum."""

    async def one(number: int) -> bool:
        client, coins, requests = ClientId(number), SystemCoins(), Requests(port, number)
        node = ClientNode.of({"protocols": (PROTOCOL,), "modes": "semi_honest"})
        side = NodeSide(settings=node, client=client, certified=None, states=StateDirectory(None, coins=coins))
        shown = (await requests.ask("GET", "/v1/session"))[2]
        description = SessionDescription.decode(shown)
        requests.enter(description.session, client, Prover(client, coins).proof(shown))
        plan, subject = planned(shown)
        member, update = plug_of(PROTOCOL, is_suspended=False).member(side), np.full(values, number / 10_000)
        model = subject.model_digest or NO_MODEL
        session = member.join(subject, LazyUpdate(lambda: Update(plan.encode(update, coins), model), model))
        while True:
            status, stage, message = await requests.ask("GET", f"{requests.path}/message")
            if status == Answer.AGAIN.status:
                continue
            if not stage:
                requests.close()
                return status == Answer.DONE.status
            answer = await asyncio.to_thread(session.answer, message)
            await requests.ask("POST", f"{requests.path}/answers/{stage}", answer)

    async def everybody() -> int:
        return sum(await asyncio.gather(*map(one, clients)))

    return asyncio.run(everybody())


@dataclass
class Seen:
    """Measurements of a server until it ended."""

    processor_seconds: float = 0.0
    peak_mib: float = 0.0
    health_ms: list[float] = field(default_factory=list[float])

    async def watch(self, server: int, url: str) -> None:
        """Poll a server until it ends."""
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            while self.look(server):
                began = time.perf_counter()
                with suppress(httpx.HTTPError):
                    await http.get(f"{url}/health")
                    self.health_ms.append(1000 * (time.perf_counter() - began))
                await asyncio.sleep(PAUSE)

    def look(self, server: int) -> bool:
        """Read a server's resource use so far, and return whether it runs."""
        try:
            status, spent = (Path(f"/proc/{server}/{name}").read_text(encoding="ascii") for name in ("status", "stat"))
        except OSError:
            return False
        if (peak := re.search(r"VmHWM:\s+(\d+) kB", status)) is None:
            return False  # It has ended, but its parent has not reaped it.
        self.peak_mib = int(peak[1]) / 1024
        self.processor_seconds = sum(map(int, spent.rpartition(")")[2].split()[11:13])) / TICKS
        return True


async def measured(clients: int, values: int, processes: int, log: Path | None) -> dict[str, Any]:
    """Run one session, and return its figures."""
    with TemporaryDirectory() as folder:
        out, said = Path(folder) / "mean.npy", log or Path(folder) / "log"
        command = [sys.executable, "-m", "secagg.cli", "serve", "--clients", str(clients), "--values", str(values)]
        command += ["--clip", "1", "--out", str(out), "--listen", "127.0.0.1:0", "--set", "topology=sparse"]
        command += ["--exchange-seconds", "3600", "--training-seconds", "3600"]
        with said.open("wb") as errors:
            server = await asyncio.to_thread(partial(subprocess.Popen, command, stdout=subprocess.PIPE, stderr=errors))
        try:
            assert server.stdout is not None
            line = await asyncio.to_thread(server.stdout.readline)
            found = re.search(r":(\d+), session", str(line))
            assert found is not None, line
            url, seen, began = f"http://127.0.0.1:{int(found[1])}", Seen(), time.perf_counter()
            watching = asyncio.create_task(seen.watch(server.pid, url))
            loop = asyncio.get_running_loop()
            with ProcessPoolExecutor(processes) as pool:
                parts = [range(first, clients, processes) for first in range(processes)]
                jobs = [loop.run_in_executor(pool, served, int(found[1]), part, values) for part in parts]
                told = sum(await asyncio.gather(*jobs))
            seconds = time.perf_counter() - began
            await watching
            assert await asyncio.to_thread(server.wait) == 0
            wrong = float(np.abs(np.load(out) - (clients - 1) / 20_000).max())
        finally:
            if server.poll() is None:
                server.send_signal(signal.SIGTERM)
                server.wait()
    return {
        "clients": clients,
        "values": values,
        "told of the sum": told,
        "largest error of the mean": round(wrong, 6),
        "seconds": round(seconds, 1),
        "server's processor seconds": round(seen.processor_seconds, 1),
        "server's processor ms a client": round(1000 * seen.processor_seconds / clients, 1),
        "server's peak MiB": round(seen.peak_mib),
        "median ms of /health": round(statistics.median(seen.health_ms), 1),
        "largest ms of /health": round(max(seen.health_ms)),
    }


def main() -> None:
    """Run sessions of each size, and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("sizes", nargs="*", type=int, default=[500, 1_200, 5_000], help="numbers of clients")
    parser.add_argument("--values", type=int, default=1000, help="values of an update (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="processes for clients (default: %(default)s)")
    parser.add_argument("--log", type=Path, help="file for the server's log")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    sessions = list[dict[str, Any]]()
    for clients in options.sizes:
        sessions.append(asyncio.run(measured(clients, options.values, options.processes, options.log)))
        print(json.dumps(sessions[-1], indent=2), flush=True)
        if options.json:
            options.json.write_text(json.dumps({"machine": machine(), "sessions": sessions}, indent=2) + "\n")


if __name__ == "__main__":
    main()
