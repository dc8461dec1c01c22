"""Mistakes of a new user: the error names the mistake in the front end's words, and what to change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest

import secagg
from secagg.cli import main
from secagg.crypto.entropy import SystemCoins
from secagg.errors import SecAggError
from secagg.session.identities import load_roster, make_identities
from secagg.transport.description import SessionDescription
from secagg.transport.listener import listening
from secagg.transport.proof import Certified
from secagg.transport.server import SumServer
from tests.harness.wire_sums import CLIENTS, plain_session, quick_limits, until

pytestmark = pytest.mark.wire

PLANNED = {"clients": 5, "all_clients": 5, "group": 1, "groups": 1, "values": 4, "clip": 1.0, "bits": 8}
FLOWER = ("the strategy", "SuperNode", "min_train_nodes", "secagg-r", "nodes of Flower")
MISTAKES: dict[str, tuple[str, str]] = {
    "a client without a key at a server of clients with keys": (
        "contribute {plain} --update {update} --client 1 --state {folder}/s",
        "authentication failed: this client's key is not on the session's roster (if clients have keys",
    ),
    "https:// to a server without TLS": (
        "contribute {tls} --update {update} --client 1 --state {folder}/s",
        "does not use TLS; if it runs on this machine, use an http:// address",
    ),
    "an address without a scheme": (
        "contribute localhost:8750 --update {update} --client 1 --state {folder}/s",
        "localhost:8750 has neither http:// nor https://; use http://localhost:8750",
    ),
    "the key file is not there": (
        "contribute {plain} --update {update} --identity {folder}/none.key --state {folder}/s",
        "there is no file {folder}/none.key",
    ),
    "the roster file is not there": (
        "serve --values 4 --clip 1 --out mean.npy --set roster={folder}/none.json",
        "there is no file {folder}/none.json; create one with `secagg keys`",
    ),
    "a file of values in place of a key, for all to read": (
        "contribute {plain} --update {update} --identity {update} --state {folder}/s",
        "{update} is not a client file",
    ),
    "a setting of the server that is misspelt": (
        "serve --values 4 --clip 1 --out mean.npy --set rooster=keys/roster.txt",
        "--set rooster is not a setting of `secagg serve`; did you mean roster?",
    ),
    "a protocol by the name of its folder": (
        "serve --values 4 --clip 1 --out mean.npy --clients 5 --protocol two_servers",
        "there is no protocol 'two_servers'; did you mean two-servers?",
    ),
    "a protocol by its name in papers": (
        "serve --values 4 --clip 1 --out mean.npy --clients 5 --protocol secagg+",
        "there is no protocol 'secagg+'; did you mean pairwise?",
    ),
    "more corrupted clients than a sum can have": (
        "serve --values 4 --clip 1 --out mean.npy --clients 4 --set corrupted=3",
        "invite more, or lower --set corrupted",
    ),
    "a server of too few clients": ("serve --values 4 --clip 1 --out mean.npy --clients 2", "must be at least 3"),
}
"""Each mistake as a command, and its error."""
CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "more dropouts than a sum can lose": (
        lambda: secagg.aggregate([np.ones(2)] * 10, clip=1.0, drop=4),
        "10 clients with 1 corrupted tolerate at most 3 dropouts; you asked for 4. Plan for fewer, or invite more",
    ),
    "a dropout where nobody can be lost": (
        lambda: secagg.aggregate([np.ones(2)] * 4, clip=1.0, drop=2),
        "4 clients with 1 corrupted tolerate no dropouts; you asked for 2. Plan for fewer, or invite more clients",
    ),
    "a keyword that is misspelt": (
        lambda: secagg.aggregate([np.ones(2)] * 4, clip=1.0, drops=1),  # type: ignore[arg-type]
        "unknown argument drops; did you mean drop?",
    ),
    "a protocol with underscores": (
        lambda: secagg.aggregate([np.ones(2)] * 4, clip=1.0, protocol="pairwise_mask"),  # type: ignore[arg-type]
        "there is no protocol 'pairwise_mask'; did you mean pairwise?",
    ),
    "a protocol in other letters": (
        lambda: secagg.aggregate([np.ones(2)] * 4, clip=1.0, protocol="LightSecAgg"),  # type: ignore[arg-type]
        "there is no protocol 'LightSecAgg'; did you mean lightsecagg?",
    ),
}


@contextmanager
def keyed_server(folder: Path) -> Generator[int]:
    """Serve a session of five clients with keys, without TLS, in a thread."""
    make_identities(folder / "keys", CLIENTS, SystemCoins())
    roster = load_roster(folder / "keys" / "roster.txt")
    begun, ended, ports = Event(), Event(), list[int]()

    async def serve() -> None:
        server = SumServer(admission=Certified(roster.authority, roster.certificates), limits=quick_limits())
        description = SessionDescription(
            session=bytes(16).hex(), protocol="pairwise", task="sum", round_number=1, answer_bytes=1000, terms=PLANNED
        )
        async with listening(server.app, "127.0.0.1", 0, limits=quick_limits()) as port:
            task = asyncio.create_task(server.run(plain_session(), description))
            await until(lambda: server.is_open)
            ports.append(port)
            begun.set()
            await asyncio.to_thread(ended.wait)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    thread = Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert begun.wait(60)
        yield ports[0]
    finally:
        ended.set()
        thread.join(60)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_error_of_a_command_names_the_mistake(
    mistake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, expected = MISTAKES[mistake]
    np.save(tmp_path / "update.npy", np.zeros(4))
    (tmp_path / "update.npy").chmod(0o644)
    is_asked = "{plain}" in command or "{tls}" in command
    with keyed_server(tmp_path) if is_asked else nullcontext(0) as port:
        places = {
            "plain": f"http://127.0.0.1:{port}",
            "tls": f"https://127.0.0.1:{port}",
            "folder": str(tmp_path),
            "update": str(tmp_path / "update.npy"),
        }
        assert main(command.format(**places).split()) == 2
    said = capsys.readouterr().err
    assert expected.format(**places) in said
    assert not any(word in said for word in FLOWER)


@pytest.mark.parametrize("mistake", CALLS)
def test_the_error_of_a_call_names_the_mistake(mistake: str) -> None:
    call, expected = CALLS[mistake]
    with pytest.raises(SecAggError) as caught:
        call()
    assert expected in str(caught.value)
    assert not any(word in str(caught.value) for word in FLOWER)
