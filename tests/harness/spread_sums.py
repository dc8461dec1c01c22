"""Distributed one-message sums: state that outlives coordinators, and runs of coordinators on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from secagg.contract import Layout, RingSegment
from secagg.crypto.entropy import Coins, SystemCoins
from secagg.errors import SecAggError
from secagg.identifiers import ClientId
from secagg.protocols.one_message import Server
from secagg.scale.engines import Engine
from secagg.scale.spread import Figures, RecordedCoins, SpreadSum, State
from secagg.scale.storage import FolderStore
from secagg.session.roles import Released
from tests.harness.one_message_sums import InsecureSum, SumSetup

SETUP = SumSetup(population=6, layout=Layout((RingSegment(12, 1 << 16),)))
"""Two pieces: the second has the weight and the zeros after it."""


class Place:
    """All of a sum that outlives its coordinator: storage, state, holders, and clients with their uploads."""

    def __init__(self, folder: Path, setup: SumSetup = SETUP, storage: str = "") -> None:
        self.folder, self.setup, self.world = folder, setup, InsecureSum(setup)
        self.storage, self.state = storage or str(folder / "storage"), folder / "state"
        folder.mkdir(parents=True, exist_ok=True)
        self.sent, self.asked = dict[ClientId, bytes](), list[bytes]()
        self.settings: Mapping[str, Any] = {"clients_in_a_task": 2}

    @property
    def clients(self) -> tuple[ClientId, ...]:
        return self.setup.clients

    def upload(self, client: ClientId, invitation: bytes) -> bytes:
        """Return a client's upload: the same bytes every time."""
        if client not in self.sent:
            made = self.world.member(client).join(self.setup.subject, self.world.update(client)).answer(invitation)
            self.sent[client] = made
        return self.sent[client]

    def ask(self, requests: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
        for position, request in requests.items():
            self.asked.append(request)
            try:
                yield position, self.world.holders[position].respond(request)
            except SecAggError:
                continue

    def session(self, coins: Coins, ask: Callable[[Mapping[int, bytes]], Iterable[tuple[int, bytes]]]) -> Server:
        return self.world.session(
            ask, setup=self.setup, helpers={"coins": coins}, delivered_at_once=4, capacity=self.setup.capacity
        )

    def is_exact(self, released: Released, clients: Iterable[ClientId] | None = None) -> bool:
        counted = frozenset(self.clients if clients is None else clients)
        due, values = self.world.ideal(sorted(counted)), released.aggregate.values
        same = all(np.array_equal(one, other) for one, other in zip(values, due.values, strict=True))
        return same and released.counted == counted

    def objects(self, kind: str) -> list[Path]:
        """Return the pieces, or the partial sums, in the storage."""
        return sorted(path for path in Path(self.storage).glob(f"*/{kind}/**/*") if path.is_file())

    def pieces_of(self, client: ClientId) -> list[Path]:
        return sorted(Path(self.storage).glob(f"*/pieces/{client.value}/*"))


class Life:
    """One run of a coordinator, which others may resume."""

    def __init__(  # noqa: PLR0913 -- what tests vary
        self,
        place: Place,
        engine: Engine | None = None,
        *,
        ask: Callable[[Mapping[int, bytes]], Iterable[tuple[int, bytes]]] | None = None,
        is_kept: bool = True,
        begins: bool = False,
        progress: Callable[[Figures], None] = lambda _: None,
    ) -> None:
        self.place, self.engine, self.told = place, engine or Engine(), Figures()
        self.state = State(place.state, SystemCoins(), begins=begins)
        try:
            coins = RecordedCoins(self.state, SystemCoins())
            self.session = place.session(coins, ask or place.ask)
            coins.require_offer(self.session.invitation)
            made = list[SpreadSum]()

            def adding(cut: Any) -> SpreadSum:
                settings: dict[str, Any] = {**place.settings, "is_kept": lambda: is_kept, "progress": progress}
                made.append(SpreadSum(cut, self.engine, self.state, place.storage, **settings))
                return made[0]

            self.session.add_through(adding)
            self.sum = made[0]
        except BaseException:
            self.state.close()
            raise

    def upload(self, clients: Iterable[ClientId] | None = None) -> None:
        for client in self.place.clients if clients is None else clients:
            self.session.receive(client, self.place.upload(client, self.session.invitation))

    def finish(self) -> Released:
        """Close the stage, if it is open, and release the sum."""
        if self.session.stage is not None:
            self.session.close_stage()
        return self.session.release()

    def end(self) -> None:
        """Simulate the end of the process: the lock is free, and nothing else has changed."""
        self.state.close()


def whole(place: Place, engine: Engine | None = None) -> Released:
    """Run a complete sum."""
    life = Life(place, engine)
    life.upload()
    return life.finish()


# --- Coordinators that are killed -------------------------------------------------------------------------------------


class Moments:
    """Counts the writes of a process, and ends it before or after one of them."""

    def __init__(self, die_at: int) -> None:
        self.passed, self._die_at = 0, die_at

    def pass_by(self) -> None:
        self.passed += 1
        if self.passed == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, owner: type, name: str) -> None:
        original = getattr(owner, name)

        def watched(*arguments: Any, **named: Any) -> Any:
            self.pass_by()
            result = original(*arguments, **named)
            self.pass_by()
            return result

        setattr(owner, name, watched)


def live(place: Place, die_at: int) -> dict[str, Any]:
    """Fork a coordinator that dies at a write; answer its requests to holders, and return its exit status.

    The holders are in the parent process, so they remember a killed coordinator's requests.
    """
    here, there = Pipe()
    child = os.fork()
    if not child:
        here.close()
        os._exit(_coordinate(place, there, die_at))
    there.close()
    said: dict[str, Any] = {}
    with closing(here):
        try:
            while True:
                kind, content = here.recv()
                if kind == "ask":
                    here.send(list(place.ask(content)))
                elif kind == "sent":
                    place.sent.update(content)
                else:
                    said = content
        except (EOFError, OSError):
            pass
    _, status = os.waitpid(child, 0)
    return {"killed": os.WIFSIGNALED(status), **said}


def _coordinate(place: Place, pipe: Connection, die_at: int) -> int:
    moments = Moments(die_at)
    for owner, name in ((State, "_make"), (FolderStore, "put"), (FolderStore, "remove"), (State, "clear")):
        moments.watch(owner, name)

    def ask(requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        moments.pass_by()
        pipe.send(("ask", dict(requests)))
        answers: list[tuple[int, bytes]] = pipe.recv()
        return answers

    try:
        life = Life(place, ask=ask)
        if life.session.stage is not None:
            for client in place.clients:
                message = place.upload(client, life.session.invitation)
                pipe.send(("sent", {client: message}))
                life.session.receive(client, message)
        released = life.finish()
        # A second release fails here.
        with (place.folder / "released").open("x") as file:
            file.write("once")
        said: dict[str, Any] = {"exact": place.is_exact(released)}
    except (SecAggError, ConnectionError) as error:
        said = {"refused": str(error)}
    pipe.send(("end", {**said, "moments": moments.passed}))
    return 0
