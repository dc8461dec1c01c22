"""Holders that lie together, in as many independent ways as they like, and a client that helps them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.contract import Layout, RingSegment
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, PeerMisbehaved, ThresholdNotMet
from secagg.identifiers import HolderId, ServerId
from secagg.protocols.one_message import client as client_module
from secagg.protocols.one_message import sharing
from secagg.protocols.one_message.configuration import Offer
from secagg.protocols.one_message.lattice import limb_bits, limb_count
from secagg.protocols.one_message.masks import lowest_bit
from secagg.protocols.one_message.opening import OpenedSum, Opening, WrongSecret
from secagg.protocols.one_message.parameters import FIELD, Parameters
from secagg.protocols.one_message.session import Server
from secagg.protocols.one_message.sharing import Dealing
from secagg.wire import MessageKind, Writer, message_kind
from tests.adversaries.test_one_message_dealers import altered_answer, coefficient, lying
from tests.harness.one_message_sums import InsecureSum, SumSetup
from tests.harness.planted import always
from tests.protocols.one_message.test_session import Standing, members, opened

Change = Callable[[np.ndarray], np.ndarray]
DELTA = 3


@dataclass
class Lying(Standing):
    """Standing holders; some change their answers, and sign what they say."""

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
    session = opened(standing.world, standing)
    standing.offer = session.invitation
    for client, member in members(standing.world).items():
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
    world = InsecureSum(SumSetup(population=3, threshold=4))
    others = [position for position in range(5) if position != honest]
    share_another_secret(monkeypatch)
    session = collected(Lying(world, changes={liar: adding(0, coefficient(liar, others, DELTA))}))
    assert session.release().aggregate.encode() == world.ideal(world.setup.clients).encode()
    assert session.faults == ()


def test_a_liar_beside_a_client_that_spoils_the_sum_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine of ten agree, T + c = 7; that their sum does not open names nobody."""
    world = InsecureSum(SumSetup(population=3, holders=10, threshold=6))
    share_another_secret(monkeypatch)
    session = collected(Lying(world, changes={2: adding(7, 1)}))
    with pytest.raises(PeerMisbehaved) as refused:
        session.release()
    assert not refused.value.culprits
    assert [fault.culprits for fault in session.faults] == [{HolderId(2)}]


def lies(liars: int, rank: int, columns: int) -> list[Change]:
    """Return errors of ``liars`` liars that span ``rank`` dimensions; of rank 0 each is wrong in its own column."""
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

    def spoiled(ring: Opening, pieces: Any, count: int) -> OpenedSum:
        openings.append(1)
        ((words,),) = pieces
        return opening(ring, [[words + noise.astype(np.uint64)]], count)

    monkeypatch.setattr(Opening, "opened", spoiled)
    with pytest.raises(WrongSecret):
        server.open()
    assert len(openings) == 1


# --- A lie that leaves no noise ---------------------------------------------------------------------------------------


LAYOUT = Layout((RingSegment(6, 2),))
LIAR, CHOSEN, TRIES = 1, 16, 1 << 16
FOUND = 71
"""Where a search has found a lie; another one begins there as well."""
COEFFICIENTS = 3
"""Two values and one zero, of which the liar knows what they leave."""


def products(parameters: Parameters, seed: bytes) -> np.ndarray:
    """Return what each of the secret's first entries adds to the first coefficients, by the specification."""
    limbs, bits, degree = limb_count(parameters.modulus_bits), limb_bits(parameters.modulus_bits), parameters.degree
    data = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor().update(bytes(4 * limbs * degree))
    words = np.frombuffer(data, "<i4").reshape(limbs, degree).astype(np.int64) >> (32 - bits)
    public = [sum(int(words[limb, at]) << (limb * bits) for limb in range(limbs)) for at in range(degree)]
    rows = [[public[at - by] if at >= by else -public[at - by] for at in range(COEFFICIENTS)] for by in range(CHOSEN)]
    return np.array(rows) % (1 << parameters.modulus_bits)


@lru_cache(maxsize=1)
def crafted_lie() -> tuple[int, ...]:
    """Return what to add to the sum of secrets: the values change, and next to nothing else does."""
    agreement = InsecureSum(SumSetup(layout=LAYOUT, threshold=4)).offer().agree()
    parameters = agreement.parameters
    matrix = products(parameters, agreement.epoch.seed).astype(np.float64)
    whole = 1 << parameters.modulus_bits
    ends = np.array([1 << lowest_bit(parameters, 0)] * 2 + [whole])
    for batch in (FOUND, *range(1 << 12)):
        tried = np.random.default_rng(batch).integers(-9, 10, (TRIES, CHOSEN))
        moved = (tried.astype(np.float64) @ matrix).astype(np.int64) % whole
        left = moved % ends
        left = np.abs(np.where(left > ends // 2, left - ends, left)).max(axis=1)
        is_lie = (left < 6) & (moved[:, :2] >= ends[:2]).any(axis=1)
        if is_lie.any():
            return tuple(map(int, tried[is_lie.argmax()]))
    raise AssertionError("a quarter of a billion tries find no lie")


@pytest.mark.parametrize("is_defended", [True, False])
def test_a_lie_that_leaves_no_noise_is_told_from_the_truth(
    is_defended: bool,  # noqa: FBT001 -- a case
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without holder 0 the other answers, one of them false, are just enough, and contradict none.

    With three coefficients the lie was released. Holder 0 answers later; then the sum opens, and nobody is named.
    """
    delta = crafted_lie()
    if not is_defended:
        monkeypatch.setattr(Parameters, "witnesses", property(always(1)))
    world = InsecureSum(SumSetup(layout=LAYOUT, threshold=4), salt=" with little noise")
    parameters = world.offer().agree().parameters
    assert (parameters.coefficients == COEFFICIENTS) is not is_defended
    server, scale = world.listed(), coefficient(LIAR, [1, 2, 3, 4], 1)

    def change(words: np.ndarray) -> np.ndarray:
        words[: len(delta)] += np.array([scale * value for value in delta])
        return words

    respond = lying(world, LIAR, change)
    requests = server.requests()
    for position in range(1, 5):
        asked = requests[position]
        server.receive(position, respond(asked) if position == LIAR else world.holders[position].respond(asked))
    if is_defended:
        with pytest.raises(WrongSecret):
            server.open()
        server.receive(0, world.holders[0].respond(requests[0]))
    is_right = server.open().aggregate.encode() == world.ideal(world.setup.clients).encode()
    assert is_right is is_defended
    assert not server.faults


def test_an_offer_with_other_zeros_is_none() -> None:
    world = InsecureSum(SumSetup(layout=LAYOUT, threshold=4))
    offer = world.offer()
    parameters = offer.configuration.parameters
    *values, zeros = parameters.segments
    wrong = [replace(zeros, length=length) for length in (1, zeros.length - 1, zeros.length + 1)]
    wrong.append(replace(zeros, ring_bits=2))
    for behind in wrong:
        changed = replace(parameters, segments=(*values, behind))
        with pytest.raises(InvalidParameters, match="this layout and its zeros"):
            replace(offer.configuration, parameters=changed)


class Babbling(Standing):
    """Standing holders; one answers everything with the same bytes."""

    said = b""

    def ask_all(self, requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        for position, answer in super().ask_all(requests):
            yield position, self.said if self.said and position == 1 else answer


BABBLE = {
    **{kind.name: Writer(kind).fixed(bytes(64), 64).finish() for kind in MessageKind},
    "no message": b"an answer",
    "a piece of a header": b"s",
}


@pytest.mark.parametrize("said", BABBLE.values(), ids=BABBLE)
def test_a_holder_that_answers_with_anything_costs_no_sum_and_is_named_with_the_way(said: bytes) -> None:
    world = InsecureSum(SumSetup(population=3, threshold=4))
    standing = Babbling(world)
    session = opened(world, standing)
    for client, member in members(world).items():
        session.receive(client, member.answer(session.invitation))
    standing.said = said
    session.close_stage()
    assert session.release().aggregate.encode() == world.ideal(world.setup.clients).encode()
    assert [fault.culprits for fault in session.faults] == [{HolderId(1), ServerId()}]
