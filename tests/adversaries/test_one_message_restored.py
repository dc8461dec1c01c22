"""A server that has holders restored from copies, to be answered a second list without its victim.

Every write, every copy and every way of putting one back stand in ``tests/protocols/one_message/test_journal.py``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from secagg.crypto.entropy import SystemCoins
from secagg.errors import SecAggError, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.protocols.one_message.parameters import ThresholdRule
from secagg.protocols.one_message.session import Server
from secagg.session.frames import decode_refusal
from secagg.session.roles import Released
from secagg.wire import MessageKind, message_kind
from tests.adversaries.test_one_message_epochs import Standing, closed_journals
from tests.harness.one_message_sums import InsecureSum, SumSetup

__all__ = ["closed_journals"]

LIAR: Final = 3


class Restored(Standing):
    """A standing holder that can be stopped, copied and put back."""

    is_away = False

    @property
    def backup(self) -> Path:
        return self.folder.with_name("backup")

    def stop(self) -> None:
        self.journal.close()
        self.is_away = True

    def copy(self, *patterns: str) -> None:
        """Copy files as they are, whatever the holder is doing."""
        self.backup.mkdir(exist_ok=True)
        for pattern in patterns:
            for file in self.folder.glob(pattern):
                shutil.copy2(file, self.backup / file.name)

    def put_back(self) -> None:
        """Put back what was copied, file by file; what was not copied stays. Nothing holds where that is refused."""
        for file in self.backup.iterdir():
            shutil.copy2(file, self.folder / file.name)
        with suppress(SecAggError):
            self.begin()
            self.is_away = False


class World:
    """Four holders, of whom one works with the server, and five clients whose uploads the server keeps."""

    def __init__(self, folder: Path) -> None:
        self.sum = InsecureSum(SumSetup(holders=4, rule=ThresholdRule.CERTIFIED))
        self.standing = [Restored(self.sum, folder / str(position) / "holder", position) for position in range(LIAR)]
        self.sum.holders |= {one.position: one.holder for one in self.standing}
        # The liar remembers no list, so it signs and answers any.
        vars(self.sum.holders[LIAR])["_place"] = self.forget
        self.uploads = {client: self.sum.upload(client) for client in self.sum.setup.clients}

    @staticmethod
    def forget(*_: object) -> None:
        """Remember nothing."""

    def ask_all(self, requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        for position, request in requests.items():
            if position == LIAR or not self.standing[position].is_away:
                yield position, self.sum.holders[position].answer(request)

    def opened(self, clients: Iterable[ClientId]) -> Server:
        """Return a session that has these clients' uploads, and receipts for them."""
        coins = {"coins": SystemCoins()}
        session = self.sum.session(self.ask_all, helpers=coins, capacity=self.sum.setup.capacity, delivered_at_once=1)
        for client in clients:
            session.receive(client, self.uploads[client])
        return session

    def difference(self, first: Released, clients: Iterable[ClientId]) -> list[np.ndarray]:
        """Return what a second sum of these clients leaves of the first one."""
        session = self.opened(clients)
        session.close_stage()
        second = session.release()
        rings = self.sum.setup.layout.require_rings()
        pairs = zip(rings, first.aggregate.values, second.aggregate.values, strict=True)
        return [segment.ring.subtract(one, other) for segment, one, other in pairs]

    def is_of(self, client: ClientId, vectors: list[np.ndarray]) -> bool:
        values = self.sum.setup.values_of(client).values
        return all((one == other).all() for one, other in zip(vectors, values, strict=True))


# --- A victim's vector ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [("head", "records"), ("head", "records", "secret", "mark.*")])
@pytest.mark.parametrize("how", ["a stray byte", "head before records"])
def test_two_restored_holders_and_one_liar_give_no_second_list(
    how: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    """A second list without the victim would give its vector exactly: it is the difference of the two sums.

    An archiver copies two holders' folders while they write down a delivery, before they have signed anything.
    """
    world = World(tmp_path)
    *others, last = world.sum.setup.clients
    victim, restored = others[2], world.standing[:2]
    session = world.opened(others)
    for one in restored:
        one.copy("head" if how == "head before records" else "nothing")
    session.receive(last, world.uploads[last])
    for one in restored:
        one.copy(*(name for name in names if name != "head" or how == "a stray byte"))
        if how == "a stray byte":
            with one.backup.joinpath("records").open("ab") as records:
                records.write(b"\0")
    session.close_stage()
    first = session.release()
    assert first.counted == {*others, last}
    for one in restored:
        one.stop()
        one.put_back()
    stolen: list[np.ndarray] | None = None
    with suppress(ThresholdNotMet):
        stolen = world.difference(first, [client for client in (*others, last) if client != victim])
    assert stolen is None or not world.is_of(victim, stolen), "the server has the victim's vector"
    assert stolen is None
    assert all(one.is_away for one in restored)


@pytest.mark.parametrize("rule", ThresholdRule)
def test_of_a_holder_that_was_forked_one_answers(rule: ThresholdRule) -> None:
    """A fork has the lock of the folder and the memory, and hears nothing of what the other answers."""
    world = InsecureSum(SumSetup(rule=rule))
    server = world.collected()
    server.fix_list()
    smaller = replace(server.upload_list, listed=server.upload_list.listed[1:])
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        # Nothing of the test runner may run here.
        try:
            os.write(writing, world.holders[0].answer(smaller.encode()))
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as file:
        said = file.read()
    assert message_kind(said) is MessageKind.REFUSAL
    assert "forked" in str(decode_refusal(said))
    assert message_kind(world.holders[0].answer(server.requests()[0])) is not MessageKind.REFUSAL
