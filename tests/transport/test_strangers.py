"""Strangers that connect silently, send half a request, or declare more than they send."""

from __future__ import annotations

import asyncio
import re
import resource
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from secagg.identifiers import ClientId
from tests.harness.wire_sums import CLIENTS, headers_of, quick_limits, served, taking_part
from tests.harness.wire_town import Town

pytestmark = pytest.mark.wire
TASKS = pytest.mark.parametrize("tasks", [1, 3])

_CONNECTS = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (5000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
crowd = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(4000)]
print("connected", flush=True)
sys.stdin.read()
"""


@TASKS
async def test_sixteen_thousand_silent_connections_leave_a_server_that_answers(town: Town, tasks: int) -> None:
    file = town.folder / "tasks.toml"
    file.write_text("".join(f"[task-{number}]\nout = '{town.folder}/{number}.npy'\n" for number in range(tasks)))
    options = ("--values", "8", "--clip", "1", "--clients", "5", "--listen", "127.0.0.1:0")
    server = town.serve("--clients", "5") if tasks == 1 else town.command("serve", "--tasks", str(file), *options)
    if tasks > 1:
        town.port = int(server.wait_for("listening at ").split(":")[1].split(",")[0])
    # A server's own limit if the system's is low.
    resource.prlimit(server.number, resource.RLIMIT_NOFILE, (2128, 2128))
    pipe = asyncio.subprocess.PIPE
    crowds = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-IS", "-c", _CONNECTS, str(town.port), stdin=pipe, stdout=pipe
        )
        for _ in range(4)
    ]
    connected = asyncio.gather(*(crowd.stdout.readline() for crowd in crowds if crowd.stdout is not None))
    try:
        is_over = False
        while not is_over:
            is_over = connected.done()
            async with asyncio.timeout(4), httpx.AsyncClient() as http:
                assert (await http.get(f"{town.url}:{town.port}/health", timeout=60)).status_code == 200
        assert await connected == [b"connected\n"] * 4
        assert server.text.count("\n") < 10
    finally:
        for crowd in crowds:
            crowd.kill()
            await crowd.wait()


@TASKS
@pytest.mark.parametrize("sent", [b"POST {}/seats", b"POST {}/answers/0", b"GET /v1/session?after={}"])
async def test_half_requests_of_strangers_close_no_connection_of_a_client(sent: bytes, tasks: int) -> None:
    """More strangers than the maximum number of connections, while clients take part."""
    limits = quick_limits(grace=600, poll=600, connections=40)
    async with served(limits, tasks=tasks) as (_, port, path):

        async def half() -> asyncio.StreamWriter:
            writer = (await asyncio.open_connection("127.0.0.1", port))[1]
            line = sent.replace(b"{}", path.encode().removeprefix(b"GET") if b"POST" in sent else path[-32:].encode())
            writer.write(line + b" HTTP/1.1\r\nhost: x\r\ncontent-length: 130\r\n\r\n0")
            return writer

        crowd = [await half() for _ in range(60)]
        clients = [asyncio.create_task(taking_part(f"http://127.0.0.1:{port}", client)) for client in CLIENTS]
        while not all(each.done() for each in clients):
            crowd.append(await half())
            await asyncio.sleep(0.01)
        outcomes = await asyncio.gather(*clients)
        assert all(outcome.is_released for outcome in outcomes)
        for each in crowd:
            each.close()


async def test_a_server_that_stops_logs_no_line_for_each_half_request(caplog: pytest.LogCaptureFixture) -> None:
    async with served(quick_limits(grace=600, poll=600)) as (_, port, path):
        crowd = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(20)]
        for each in crowd:
            each.write(f"POST {path}/seats HTTP/1.1\r\nhost: x\r\ncontent-length: 130\r\n\r\n0".encode())
        await asyncio.sleep(0.5)
    assert len(caplog.records) < 10
    for each in crowd:
        each.close()


@TASKS
async def test_answers_of_any_length_fit_into_the_memory_that_there_is(tasks: int) -> None:
    """Sixteen clients declare answers of the maximum length, and send as much as the server reads."""
    memory, length = 64 << 20, 8 << 20
    limits = replace(quick_limits(grace=60), answer_bytes=length, memory=memory)
    async with served(limits, tasks=tasks) as (_, port, path):
        before = _peak(is_reset=True)
        is_time = asyncio.Event()

        async def fill(number: int) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = {"host": "x", **headers_of(ClientId(number)), "content-length": str(length)}
            lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
            writer.write(f"POST {path}/answers/0 HTTP/1.1\r\n{lines}\r\n".encode())
            for start in range(1, length, 1 << 16):
                writer.write(bytes(min(1 << 16, length - start)))
                await writer.drain()
            await is_time.wait()
            writer.write(b"x")
            status = await reader.readline()
            writer.close()
            return status[9:12]

        crowd = [asyncio.create_task(fill(number)) for number in range(1, 33)]
        await asyncio.sleep(0.5)
        is_time.set()
        assert await asyncio.gather(*crowd) == [b"422"] * 32
        assert _peak() - before < (memory >> 10) + (16 << 10)


def _peak(*, is_reset: bool = False) -> int:
    """Return this process's peak size in KiB, since the last reset if there was one."""
    if is_reset:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1])
