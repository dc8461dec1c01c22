"""Holders that lie together, in as many independent ways as they like, and a client that helps them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from secagg.contract import Layout, RingSegment
from secagg.crypto.secret import Secret
from secagg.errors import PeerMisbehaved, ThresholdNotMet
from secagg.identifiers import HolderId
from secagg.protocols.one_message import client as client_module
from secagg.protocols.one_message import sharing
from secagg.protocols.one_message.configuration import Offer
from secagg.protocols.one_message.lattice.opening import OpenedSum, Opening, WrongSecret
from secagg.protocols.one_message.parameters import FIELD, ThresholdRule
from secagg.protocols.one_message.session import Server
from secagg.protocols.one_message.sharing import Dealing
from secagg.wire import MessageKind, message_kind
from tests.adversaries.test_one_message_dealers import altered_answer, coefficient
from tests.harness.one_message_sums import InsecureSum, SumSetup
from tests.protocols.one_message.test_session import Standing, members, opened

Change = Callable[[np.ndarray], np.ndarray]
DELTA = 3


@dataclass
class Lying(Standing):
    """Standing holders of which some change their answers, and sign what they say."""

    changes: Mapping[int, Change] = field(default_factory=dict[int, Change])
    offer: bytes = b""

    def ask_all(self, requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        for position, said in super().ask_all(requests):
            if position in self.changes and message_kind(said) is MessageKind.ONE_MESSAGE_ANSWER:
                agreement, key = Offer.decode(self.offer).agree(), self.world.holder_keys[position]
                yield position, altered_answer(said, agreement, key, self.changes[position])
            else:
                yield position, said


def collected(standing: Lying) -> Server:
    """Return a session to which all clients have uploaded."""
    session = opened(standing.world, standing)
    standing.offer = session.invitation
    for client, member in members(standing.world, hold=False).items():
        session.receive(client, member.answer(session.invitation))
    session.close_stage()
    return session


def share_another_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the next client share s - delta beside a vector that s masks."""

    def deal(secret: Secret, *arguments: object, **named: object) -> Dealing:
        monkeypatch.setattr(client_module, "deal", sharing.deal)
        other = np.frombuffer(secret.expose(), np.int8).copy()
        other[0] -= DELTA
        return sharing.deal(Secret("another", other.tobytes()), *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(client_module, "deal", deal)


def adding(column: int, amount: int) -> Change:
    def change(words: np.ndarray) -> np.ndarray:
        words[column] += amount
        return words

    return change


@pytest.mark.parametrize(("liar", "honest"), list(permutations(range(5), 2)))
def test_no_honest_holder_is_named_where_the_sum_opens_without_it(
    liar: int, honest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = InsecureSum(SumSetup(population=3))
    others = [position for position in range(5) if position != honest]
    share_another_secret(monkeypatch)
    session = collected(Lying(world, changes={liar: adding(0, coefficient(liar, others, DELTA))}))
    assert session.release().aggregate.encode() == world.ideal(world.setup.clients).encode()
    assert session.faults == ()


def test_a_liar_beside_a_client_that_spoils_the_sum_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine of ten agree, T + c = 7; that their sum does not open names nobody."""
    world = InsecureSum(SumSetup(population=3, holders=10, threshold=6, rule=ThresholdRule.CERTIFIED))
    share_another_secret(monkeypatch)
    session = collected(Lying(world, changes={2: adding(7, 1)}))
    with pytest.raises(PeerMisbehaved) as refused:
        session.release()
    assert not refused.value.culprits
    assert [fault.culprits for fault in session.faults] == [{HolderId(2)}]


def lies(liars: int, rank: int, columns: int) -> list[Change]:
    """Return errors of so many liars that span so many dimensions; of rank 0 each is wrong in a column of its own."""
    generator = np.random.default_rng([liars, rank])
    if not rank:
        return [adding(17 * index, int(generator.integers(1, FIELD))) for index in range(liars)]
    basis = generator.integers(0, FIELD, (rank, columns))
    errors = generator.integers(1, FIELD, (liars, rank)) @ basis % FIELD
    return [partial(np.add, error) for error in errors]


@pytest.mark.parametrize("rank", [0, 1, 3])
@pytest.mark.parametrize(("holders", "corrupted"), [(13, 3), (17, 4), (24, 2)])
def test_as_many_liars_as_are_planned_do_not_stop_a_sum(holders: int, corrupted: int, rank: int) -> None:
    """The defaults leave exactly T honest answers, and so no others to tell them by; nobody is named."""
    world = InsecureSum(SumSetup(population=3, holders=holders, corrupted=corrupted))
    standing = Lying(world)
    session = collected(standing)
    parameters = Offer.decode(session.invitation).agree().parameters
    assert parameters.holders - parameters.threshold == corrupted
    told = lies(corrupted, min(rank, corrupted), parameters.secret_columns)
    standing.changes = dict(zip(range(1, 3 * corrupted + 1, 3), told, strict=True))
    assert session.release().aggregate.encode() == world.ideal(world.setup.clients).encode()
    assert session.faults == ()


def test_one_liar_does_not_end_a_sum_while_holders_are_away() -> None:
    """Exactly T answers, one of them false: the sum can still be asked for when another holder is back."""
    standing = Lying(InsecureSum(SumSetup()), changes={1: partial(np.add, 1)})
    session = collected(standing)
    standing.away = {4}
    with pytest.raises(ThresholdNotMet, match="answers that agree"):
        session.release()
    standing.away = set()
    assert session.release().aggregate.encode() == standing.world.ideal(standing.world.setup.clients).encode()


def test_one_bad_vector_costs_one_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """All answers agree, so leaving some of them out opens nothing else."""
    world = InsecureSum(SumSetup(holders=13, corrupted=3, layout=Layout((RingSegment(6, 2000),))))
    server = world.answered()
    opening, openings = Opening.opened, list[int]()
    noise = np.random.default_rng(1).integers(0, 1 << 31, world.offer().configuration.parameters.coefficients)

    def spoiled(ring: Opening, words: list[Any], count: int) -> OpenedSum:
        openings.append(1)
        words[0] += noise.astype(np.uint64)
        return opening(ring, words, count)

    monkeypatch.setattr(Opening, "opened", spoiled)
    with pytest.raises(WrongSecret):
        server.open()
    assert len(openings) == 1
