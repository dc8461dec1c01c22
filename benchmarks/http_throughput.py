"""Upload throughput of a server over HTTP, against the same server that only stores them; clients on loopback.

    PYTHONPATH=. python benchmarks/http_throughput.py --protocol enclave --clients 500 --bytes 1000000

Uploads are made in advance; clients run in another process, with minimal HTTP requests. Runs alternate, and each ratio
compares two consecutive runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from secagg import Session
from secagg.crypto.entropy import SystemCoins
from secagg.errors import Misuse
from secagg.identifiers import ClientId
from secagg.session.registry import find, names
from secagg.session.roles import Released, ServerSession, Stage, Subject
from secagg.session.run import Limits
from secagg.session.stages import Checked, StagedServerSession
from secagg.transport.description import WireLimits
from secagg.transport.listener import allow_connections, listening
from secagg.transport.proof import header_of
from secagg.transport.server import SumServer

BITS = 16
PROOF = bytes([3]) + bytes(64)


class Stored(StagedServerSession[bytes]):
    """A session that writes each upload into a file, without flushing, and sums nothing."""

    def __init__(self, invited: frozenset[ClientId], folder: Path) -> None:
        """Store nothing yet."""
        super().__init__(Stage(name="stored upload", takes_update=True), b"anything", invited, len(invited))
        self._folder = folder

    def _check(self, sender: ClientId, message: bytes) -> Checked[bytes]:
        del sender
        return Checked(message)

    def _take(self, sender: ClientId, content: bytes) -> None:
        (self._folder / str(sender.value)).write_bytes(content)

    def _sum(self, progress: Callable[[int, int], None] | None) -> Released:
        del progress
        raise Misuse("stored uploads have no sum; measure only their throughput")

    def _wipe(self) -> None:
        """Keep the files for the folder's owner."""


class Prepared:
    """A session with an open upload stage, and every client's upload."""

    def __init__(self, protocol: str, clients: int, length: int) -> None:
        """Run the stages before the uploads, in memory."""
        coins = SystemCoins()
        plan = Session.for_model(np.zeros(length), clients=clients, clip=1.0, bits=BITS, protocol=find(protocol))
        self.subject = plan.subject(task=b"throughput", round_number=1, model=())
        self.invited = frozenset(map(ClientId, range(clients)))
        world = plan.simulate(coins=coins, clock=lambda: datetime.now(UTC))
        self.session, self.number = world.open(self.subject, self.invited), 0
        values = np.linspace(-1, 1, length)
        members = {
            client: world.member(client).join(self.subject, plan.update(values, subject=self.subject, coins=coins))
            for client in sorted(self.invited)
        }
        self.uploads = dict[ClientId, bytes]()
        while (stage := self.session.stage) is not None:
            for client, member in members.items():
                message = self.session.message_to(client)
                assert message is not None
                if stage.takes_update:
                    self.uploads[client] = member.answer(message)
                    member.abort()
                else:
                    self.session.receive(client, member.answer(message))
            if stage.takes_update:
                return
            self.session.close_stage()
            self.number += 1


async def taken(
    session: ServerSession, number: int, subject: Subject, uploads: Mapping[ClientId, bytes]
) -> tuple[float, float]:
    """Return the wall-clock and processor seconds of a server for all uploads."""
    limits = WireLimits(stages=Limits(exchange=600.0, training=600.0), answer_bytes=1 << 28, memory=1 << 33)
    allow_connections(limits)
    server = SumServer(limits=limits)
    description = server.description(subject, "throughput")
    async with listening(server.app, "127.0.0.1", 0, limits=limits) as port:
        running = asyncio.create_task(server.run(session, description, number=number))
        while not server.is_open:  # noqa: ASYNC110 -- only briefly
            await asyncio.sleep(0.01)
        started, used, child = time.perf_counter(), time.process_time(), os.fork()
        if child == 0:
            os._exit(send_all(port, f"/v1/sessions/{description.session}/answers/{number}", uploads))
        counted = f'secagg_answers_total{{task="throughput",verdict="taken"}} {len(uploads)}'
        while counted not in server.metrics.text():
            assert not running.done(), running
            await asyncio.sleep(0.005)
        seconds = time.perf_counter() - started, time.process_time() - used
        _, status = await asyncio.to_thread(os.waitpid, child, 0)
        assert status == 0
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return seconds


def send_all(port: int, path: str, uploads: Mapping[ClientId, bytes]) -> int:
    """Send all uploads concurrently, each over a separate connection; return the exit status."""

    async def one(client: ClientId, body: bytes) -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: {header_of(client, PROOF)}\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode())
        writer.write(body)
        answer = await reader.read()
        writer.close()
        return answer.startswith(b"HTTP/1.1 202")

    async def everybody() -> bool:
        return all(await asyncio.gather(*(one(client, body) for client, body in uploads.items())))

    # The forked child inherits its parent's running loop.
    asyncio._set_running_loop(None)  # noqa: SLF001
    try:
        return 0 if asyncio.new_event_loop().run_until_complete(everybody()) else 1
    except BaseException:  # noqa: BLE001 -- a forked child must not continue as its parent
        return 2


def main() -> None:
    """Measure, and print the throughputs and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--protocol", choices=names(), default="enclave")
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--bytes", type=int, default=1_000_000, help="approximate size of an upload")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    width = BITS + (options.clients - 1).bit_length()
    rates, used = (dict[str, list[float]](stored=[], taken=[]) for _ in range(2))
    size = 0
    for _ in range(options.runs):
        prepared = Prepared(options.protocol, options.clients, 8 * options.bytes // width)
        size = sum(map(len, prepared.uploads.values()))
        with TemporaryDirectory() as folder:
            files = Stored(prepared.invited, Path(folder))
            stored, stored_used = asyncio.run(taken(files, 0, prepared.subject, prepared.uploads))
        summed, summed_used = asyncio.run(taken(prepared.session, prepared.number, prepared.subject, prepared.uploads))
        used["stored"].append(1e9 * stored_used / size)
        used["taken"].append(1e9 * summed_used / size)
        rates["stored"].append(size / stored / 1e6)
        rates["taken"].append(size / summed / 1e6)
        print(f"stored {size / stored / 1e6:7.1f} MB/s, {options.protocol} {size / summed / 1e6:7.1f} MB/s")
    ratios = [one / other for one, other in zip(rates["taken"], rates["stored"], strict=True)]
    figures: dict[str, Any] = {
        "protocol": options.protocol,
        "clients": options.clients,
        "bytes of an upload": size // options.clients,
        "MB/s stored": round(statistics.median(rates["stored"]), 1),
        "MB/s taken": round(statistics.median(rates["taken"]), 1),
        "server's processor ms for each MB, stored": round(statistics.median(used["stored"]), 2),
        "server's processor ms for each MB, taken": round(statistics.median(used["taken"]), 2),
        "ratio": round(statistics.median(ratios), 3),
    }
    print(json.dumps(figures, indent=2))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
