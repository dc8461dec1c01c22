"""What a hostile review found in sums of one message a client.

| attack | what stops it |
|---|---|
| two lists at one holder at the same moment | one request at a time |
| clients that deal badly to one honest holder, to have it put out and blamed | the bound on bad clients |
| one bad vector, for which every set of answers is tried | a secret is tried once |
| one liar while others are away | the sum waits for them |
| coins that repeat | what is drawn from them depends on the update, its weight and the sum |
| the whole folder of a holder restored while the machine runs | the time at which the secret came to its place |
| a secret of a journal that was altered | the offer names the keys that were published |
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Barrier, BrokenBarrierError

import numpy as np
import pytest

from secagg.contract import Layout, RingSegment
from secagg.crypto.entropy import SystemCoins
from secagg.crypto.labels import Label
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, Misuse, PeerMisbehaved, Reason, SecAggError, ThresholdNotMet
from secagg.identifiers import HolderId
from secagg.parameters import SecurityMode
from secagg.protocols.one_message.client import Ledger
from secagg.protocols.one_message.configuration import Agreement
from secagg.protocols.one_message.holder import Holder
from secagg.protocols.one_message.lattice.masks import EpochRing
from secagg.protocols.one_message.lattice.opening import OpenedSum, Opening, WrongSecret
from secagg.protocols.one_message.messages import Upload
from secagg.protocols.one_message.parameters import FIELD, ThresholdRule
from secagg.protocols.one_message.requests import Answer
from secagg.session.roles import LateUpdate, Update
from secagg.wire import MessageKind, message_kind
from tests.adversaries.test_one_message_dealers import badly_dealt, server_with, settled
from tests.adversaries.test_one_message_epochs import closed_journals, standing_world
from tests.adversaries.test_one_message_lists import Words, digests, list_of
from tests.harness.one_message_sums import TASK, InsecureSum, SumSetup, for_any_task
from tests.protocols.one_message.test_session import Standing, carry, members, opened

__all__ = ["closed_journals"]


@pytest.mark.parametrize("rule", ThresholdRule)
def test_two_lists_at_the_same_moment_get_one_answer(rule: ThresholdRule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both were found free before either was taken down: the difference of the answers is the victim's share."""
    world = InsecureSum(SumSetup(rule=rule))
    offer = world.offer()
    known = digests(world.collected(offer))
    victim = world.setup.clients[0]
    others = {client: upload for client, upload in known.items() if client != victim}
    # Where the two meet.
    checked, both = Holder._require_whole, Barrier(2)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    def meet(holder: Holder, *arguments: object) -> None:
        checked(holder, *arguments)  # type: ignore[arg-type]
        try:
            both.wait(timeout=0.5)
        except BrokenBarrierError:
            return

    monkeypatch.setattr(Holder, "_require_whole", meet)

    def ask(request: bytes) -> Reason | None:
        try:
            world.holders[0].respond(request)
        except PeerMisbehaved as error:
            return error.reason
        return None

    requests = [list_of(offer, uploads, world.setup.sum_id) for uploads in (known, others)]
    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(ask, requests)) == {None, Reason.ALREADY_SPENT}


def test_bad_clients_cannot_have_an_honest_holder_put_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many clients as may be bad deal badly to one holder alone, which tells the truth of them."""
    world = InsecureSum(SumSetup(population=9, corrupted_clients=3, minimum_cohort=5))
    offer, bad = world.offer(), world.setup.clients[:3]
    uploads = {client: badly_dealt(world, offer, client, [4], monkeypatch) for client in bad}
    server = settled(world, server_with(world, offer, uploads))
    assert server.present == frozenset(range(5))
    assert frozenset(server.left_out) == frozenset(bad)
    assert {HolderId(4)} not in [fault.culprits for fault in server.faults]
    server.fix_list()
    world.ask(server, server.requests())
    assert server.open().aggregate.encode() == world.ideal(world.setup.clients[3:]).encode()


def test_one_bad_vector_costs_one_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """All answers agree, so leaving some of them out opens nothing else."""
    world = InsecureSum(SumSetup(holders=13, corrupted=3, layout=Layout((RingSegment(6, 2000),))))
    server = world.collected()
    server.fix_list()
    world.ask(server, server.requests())
    opening, openings = Opening.opened, list[int]()
    noise = np.random.default_rng(1).integers(0, 1 << 31, world.offer().configuration.parameters.coefficients)

    def spoiled(ring: Opening, words: list[Words], count: int) -> OpenedSum:
        openings.append(1)
        words[0] += noise.astype(np.uint64)
        return opening(ring, words, count)

    monkeypatch.setattr(Opening, "opened", spoiled)
    with pytest.raises(WrongSecret):
        server.open()
    assert len(openings) == 1


@dataclass
class StandingWithLiar(Standing):
    """Holder 1 adds one to every sum, and signs that."""

    agreement: Agreement | None = None

    def ask_all(self, requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        for position, said in super().ask_all(requests):
            if position == 1 and message_kind(said) is MessageKind.ONE_MESSAGE_ANSWER and self.agreement is not None:
                answer = Answer.decode(said)
                words = (np.frombuffer(answer.sums, "<u2").astype(np.int64) + 1) % FIELD
                altered = replace(answer, sums=words.astype("<u2").tobytes())
                key = self.world.holder_keys[1]
                signature = self.agreement.sign(key, Label.ONE_MESSAGE_ANSWER, *altered.parts)
                yield position, replace(altered, signature=signature).encode()
            else:
                yield position, said


def test_one_liar_does_not_end_a_sum_while_holders_are_away() -> None:
    """Exactly T answers, one of them false: the sum can still be asked for when another holder is back."""
    world = InsecureSum(SumSetup())
    standing = StandingWithLiar(world)
    session = opened(world, standing)
    standing.agreement = session.agreement
    carry(session, members(world, hold=False), {})
    standing.away = {4}
    with pytest.raises(ThresholdNotMet, match="answers that agree"):
        session.release()
    standing.away = set()
    assert session.release().aggregate.encode() == world.ideal(world.setup.clients).encode()


class RepeatingCoins:
    """What a snapshot of a machine draws each time that it is resumed."""

    def draw(self, count: int) -> bytearray:
        return bytearray(b"\x07" * count)


@pytest.mark.parametrize("mode", SecurityMode)
@pytest.mark.parametrize("changed", ["update", "weight", "sum", "client"])
def test_coins_that_repeat_mask_nothing_twice(mode: SecurityMode, changed: str) -> None:
    """One mask on two updates shows their difference, and one dealing under two challenges opens the secret."""
    setup = SumSetup(mode=mode, maximum_weight=3)
    world, uploads = InsecureSum(setup), list[Upload]()
    for second in (False, True):
        client = setup.clients[second and changed == "client"]
        payload = setup.values_of(setup.clients[0])
        if second and changed == "update":
            payload.values[0][0] += 1
        weight = 2 if second and changed == "weight" else 1
        offer = world.offer(bytes([9]) * 16 if second and changed == "sum" else None)
        repeating = world.member(client, coins=RepeatingCoins(), ledger=for_any_task(Ledger(TASK, lambda _: None)))
        update = LateUpdate(partial(Update, payload, setup.model, weight))
        uploads.append(Upload.decode(repeating.join(setup.subject, update).answer(offer.encode())))
    one, other = uploads
    vectors = [np.frombuffer(upload.vector, np.uint8) for upload in uploads]
    assert np.mean(vectors[0] == vectors[1]) < 0.1
    assert one.header.nonce != other.header.nonce
    assert one.polynomial != other.polynomial


def test_a_folder_restored_while_the_machine_runs_ends_the_epoch(tmp_path: Path) -> None:
    """Records, head, secret and boot id are all as they were: only the files' places are new."""
    world, standing = standing_world(tmp_path)
    world.holders[0] = standing.holder
    server = world.collected()
    server.fix_list()
    standing.journal.close()
    shutil.copytree(standing.folder, tmp_path / "backup")
    standing.restart()
    standing.holder.respond(server.requests()[0])
    standing.journal.close()
    shutil.rmtree(standing.folder)
    shutil.copytree(tmp_path / "backup", standing.folder)
    with pytest.raises(InvalidParameters, match="was copied"):
        standing.start()


@pytest.mark.parametrize("is_torn", [False, True])
def test_records_and_head_put_back_beside_the_secret_end_the_epoch(tmp_path: Path, is_torn: bool) -> None:  # noqa: FBT001
    """A tool that copies only what differs leaves the secret alone; it was once all that showed a restore."""
    world, standing = standing_world(tmp_path)
    world.holders[0] = standing.holder
    server = world.collected()
    server.fix_list()
    standing.journal.close()
    if is_torn:
        with (standing.folder / "records").open("ab") as file:
            file.write(bytes(3))
    shutil.copytree(standing.folder, tmp_path / "backup")
    standing.restart()
    standing.holder.respond(server.requests()[0])
    standing.journal.close()
    for name in ("records", "head"):
        shutil.copy2(tmp_path / "backup" / name, standing.folder / name)
    with pytest.raises(InvalidParameters, match="was copied"):
        standing.start()


def test_a_secret_that_was_altered_is_noticed_before_anything_is_answered(tmp_path: Path) -> None:
    world, standing = standing_world(tmp_path)
    world.holders[0] = standing.holder
    world.collected()
    standing.journal.close()
    path = standing.folder / "secret"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    with path.open("r+b") as file:
        file.write(data)
    with pytest.raises(SecAggError):
        standing.start()


def test_a_mask_that_is_not_made_leaves_no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Secret]()

    def refuse(self: EpochRing, vectors: object, coins_seed: Secret, weight: int = 1) -> None:
        del self, vectors, weight
        seen.append(coins_seed)
        raise Misuse("planted")

    monkeypatch.setattr(EpochRing, "mask", refuse)
    world = InsecureSum()
    client = world.setup.clients[0]
    with pytest.raises(Misuse, match="planted"):
        world.member(client, coins=SystemCoins()).join(world.setup.subject, world.update(client)).answer(
            world.offer().encode()
        )
    (seed,) = seen
    with pytest.raises(Misuse):
        seed.expose()
