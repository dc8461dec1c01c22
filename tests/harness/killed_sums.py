"""Sums whose coordinator is killed at chosen moments and begun again: ``python -m tests.harness.killed_sums FOLDER``.

A life is a forked process. The holders live in the process that forks, so they remember what a killed coordinator asked
of them. A moment is before or after every write to the journal or to the storage: each is one place to die at.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from secagg.contract import Layout, RingSegment
from secagg.crypto.entropy import Coins
from secagg.errors import SecAggError
from secagg.identifiers import ClientId
from secagg.protocols.one_message import OneMessageHelpers, OneMessageServerSession, OneMessageSettings, open_session
from secagg.scale.journal import Journal
from secagg.scale.resumed import ResumableSession
from secagg.scale.spread import SpreadSettings, SpreadSum
from secagg.scale.store import FolderStore
from secagg.scale.workers import InProcess
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.one_message_sums import InsecureSum, SumSetup

SETUP = SumSetup(population=6, layout=Layout((RingSegment(12, 1 << 16),)))
"""Two pieces: the weight and the zeros behind it stand in the second."""


class Place:
    """Everything of one sum that outlives its coordinator."""

    def __init__(self, folder: Path, setup: SumSetup = SETUP, uploads: Mapping[ClientId, bytes] | None = None) -> None:
        self.folder, self.setup, self.world = folder, setup, InsecureSum(setup)
        self.storage, self.journal = str(folder / "storage"), folder / "journal" / "records"
        folder.mkdir(parents=True)
        self.uploads = dict(uploads or {})
        if uploads is None:
            # Clients are told the offer that every life makes of the same coins.
            session = self.open_session(None, InsecureSeededCoins(b"coordinator"), self.ask)
            self.uploads = {
                client: self.world.client(client).upload(*self.terms(session, client)) for client in setup.clients
            }
            session.abort()
            self.world.begin([50 + position for position in range(setup.holders)])

    def terms(self, session: OneMessageServerSession, client: ClientId) -> tuple[Any, ...]:
        return session.invitation, self.setup.subject, self.world.update(client)

    def open_session(
        self, memory: ResumableSession | None, coins: Coins, ask_all: Callable[..., Any]
    ) -> OneMessageServerSession:
        settings = OneMessageSettings(
            minimum_cohort=self.setup.minimum_cohort, corrupted=self.setup.corrupted_clients, delivered_at_once=4
        )
        spread = SpreadSettings(storage=self.storage, clients_in_a_batch=2)
        helpers = OneMessageHelpers(
            record=self.world.record,
            keys=tuple(holder.keys for holder in self.world.holders.values()),
            coins=coins,
            ask_all=ask_all,
            adding=lambda cut: SpreadSum(cut, InProcess(), spread, coins=coins, memory=memory),
        )
        session = open_session(self.setup.subject, settings, frozenset(self.setup.clients), helpers)
        assert isinstance(session, OneMessageServerSession)
        return session

    def ask(self, requests: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
        for position, request in requests.items():
            try:
                yield position, self.world.holders[position].respond(request)
            except SecAggError:
                continue

    # --- A life -------------------------------------------------------------------------------------------------------

    def live(self, die_at: int) -> dict[str, Any]:
        """Fork a coordinator, answer what it asks of holders, and return how it ended."""
        here, there = Pipe()
        child = os.fork()
        if not child:
            here.close()
            os._exit(self._coordinate(there, die_at))
        there.close()
        said: dict[str, Any] = {}
        try:
            while True:
                kind, content = here.recv()
                if kind == "ask":
                    here.send(list(self.ask(content)))
                else:
                    said = content
        except (EOFError, OSError):
            pass
        _, status = os.waitpid(child, 0)
        return {"killed": os.WIFSIGNALED(status), **said}

    def _coordinate(self, pipe: Connection, die_at: int) -> int:
        moments = Moments(die_at)
        moments.watch(Journal, "append")
        moments.watch(FolderStore, "put")
        moments.watch(FolderStore, "remove")

        def asked(requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
            moments.pass_by()
            pipe.send(("ask", dict(requests)))
            answers: list[tuple[int, bytes]] = pipe.recv()
            return answers

        try:
            said = self._run(asked)
        except (SecAggError, ConnectionError) as error:
            said = {"refused": str(error)}
        pipe.send(("end", {**said, "moments": moments.passed}))
        return 0

    def _run(self, asked: Callable[[Mapping[int, bytes]], Iterable[tuple[int, bytes]]]) -> dict[str, Any]:
        session = ResumableSession(
            Journal(self.journal),
            InsecureSeededCoins(b"coordinator"),
            lambda memory, coins: self.open_session(memory, coins, memory.ask_all),
            asked,
        )
        if session.stage is not None:
            for client, upload in self.uploads.items():
                session.receive(client, upload)
            session.close_stage()
        released = session.release()
        # Whoever releases twice fails here.
        with (self.folder / "released").open("x") as file:
            file.write(released.aggregate.values[0].tobytes().hex())
        due = self.world.ideal(self.setup.clients)
        return {"exact": bool((released.aggregate.values[0] == due.values[0]).all()), "counted": len(released.counted)}


class Moments:
    """Counts writes, and ends this process at one of them."""

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


def _say(report: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Live once undisturbed; then for each of twenty moments die there, and once more in the next life."""
    folder = Path(sys.argv[1])
    first = Place(folder / "undisturbed")
    whole = first.live(0)
    _say({"at": 0, "lives": [whole], "left": []})
    chosen = np.random.default_rng(int(sys.argv[2])).choice(int(whole["moments"]), 20, replace=False) + 1
    moments: list[int] = chosen.tolist()
    for moment in sorted(moments):
        place, lives = Place(folder / str(moment), uploads=first.uploads), list[dict[str, Any]]()
        for die_at in (moment, max(1, moment // 3), 0, 0):
            lives.append(place.live(die_at))
            if not lives[-1]["killed"] and die_at == 0:
                break
        _say({"at": moment, "lives": lives, "left": [path.name for path in Path(place.storage).iterdir()]})


if __name__ == "__main__":
    main()
