"""Dealing, checking, adding and recovering; dealers and holders that cheat."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, PeerMisbehaved, Reason, ThresholdNotMet
from secagg.protocols.one_message.decoding import SumOfSecrets
from secagg.protocols.one_message.holder import HeldShare, open_share, summed
from secagg.protocols.one_message.lattice import Sampler
from secagg.protocols.one_message.parameters import CHECK_WORDS, FIELD, Parameters, Values
from secagg.protocols.one_message.session import choose_committee, dealt_bytes, plan
from secagg.protocols.one_message.sharing import (
    Dealing,
    deal,
    decode_words,
    expand_words,
    holder_point,
    interpolation_matrix,
    power_matrix,
    reduced,
    slot_points,
)
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.one_message_sums import recover

CHALLENGE = bytes(range(32))


def planned(holders: int, corrupted: int, absent: int = 0) -> Parameters:
    return plan([Values(64, 16, (-128, 127))], 100, choose_committee(holders, corrupted, absent), degrees=(1024,))


FIVE = planned(5, 1)
TWENTY_FOUR = planned(24, 3, 3)


def contexts_of(parameters: Parameters, client: int = 0) -> list[bytes]:
    return [b"client %d, holder %d" % (client, position) for position in range(parameters.holders)]


def secret_of(parameters: Parameters, client: int = 0) -> Secret:
    key = Secret("key", bytes(InsecureSeededCoins(b"secret %d" % client).draw(32)))
    return Secret("ring secret", Sampler(key).draw(parameters.degree).tobytes())


def dealt(parameters: Parameters, client: int = 0) -> Dealing:
    coins = InsecureSeededCoins(b"dealing %d" % client)
    return deal(secret_of(parameters, client), parameters, contexts_of(parameters, client), coins)


def answered(parameters: Parameters, clients: int) -> tuple[dict[int, bytes], SumOfSecrets]:
    """Return all holders' answers over these clients, whose shares were all checked, and the sum of their secrets."""
    held = [list[HeldShare]() for _ in range(parameters.holders)]
    secrets = np.zeros(parameters.degree, np.int32)
    for client in range(clients):
        secrets += np.frombuffer(secret_of(parameters, client).expose(), np.int8)
        dealing = dealt(parameters, client)
        published = dealing.polynomial(CHALLENGE)
        for position, context in enumerate(contexts_of(parameters, client)):
            share = open_share(parameters, position, dealing.shares[position], context)
            share.require_on(published, CHALLENGE)
            held[position].append(share)
    return {position: summed(parameters, shares) for position, shares in enumerate(held)}, secrets


@pytest.mark.parametrize(
    ("holders", "corrupted", "absent"), [(1, 0, 0), (3, 0, 0), (4, 1, 0), (5, 1, 0), (7, 1, 1), (24, 3, 0), (24, 3, 3)]
)
def test_any_threshold_of_answers_gives_the_sum(holders: int, corrupted: int, absent: int) -> None:
    parameters = planned(holders, corrupted, absent)
    answers, secrets = answered(parameters, 3)
    positions = sorted(answers)
    for present in (positions[: parameters.threshold], positions[-parameters.threshold :], positions):
        found = recover(parameters, {position: answers[position] for position in present})
        assert np.array_equal(found.sum_secret, secrets)
        assert not found.suspects
    with pytest.raises(ThresholdNotMet):
        recover(parameters, {position: answers[position] for position in positions[: parameters.threshold - 1]})


def test_shares_have_the_planned_lengths() -> None:
    dealing = dealt(TWENTY_FOUR)
    lengths = [len(share) for share in dealing.shares]
    assert lengths == [TWENTY_FOUR.share_bytes(position) for position in range(24)]
    assert lengths[: TWENTY_FOUR.seeds] == [32] * TWENTY_FOUR.seeds
    assert sum(lengths) + len(dealing.polynomial(CHALLENGE)) == dealt_bytes(TWENTY_FOUR)
    with pytest.raises(InvalidParameters, match="not a position"):
        TWENTY_FOUR.share_bytes(24)


# --- Dealers ---------------------------------------------------------------------------------------------------------


def test_a_share_under_another_context_challenge_or_polynomial_is_refused() -> None:
    dealing, contexts = dealt(FIVE), contexts_of(FIVE)
    published = dealing.polynomial(CHALLENGE)
    right = open_share(FIVE, 0, dealing.shares[0], contexts[0])
    right.require_on(published, CHALLENGE)
    with pytest.raises(PeerMisbehaved):
        open_share(FIVE, 0, dealing.shares[0], contexts[1]).require_on(published, CHALLENGE)
    with pytest.raises(PeerMisbehaved):
        right.require_on(published, bytes(32))
    with pytest.raises(PeerMisbehaved):
        right.require_on(dealt(FIVE, 1).polynomial(CHALLENGE), CHALLENGE)
    with pytest.raises(PeerMisbehaved):
        open_share(FIVE, 1, dealing.shares[0], contexts[0]).require_on(published, CHALLENGE)


def test_the_published_polynomial_at_the_slots_does_not_depend_on_the_secret() -> None:
    # With zeros of g at the slots, h there would be the same combination of the secret whatever the coins.
    at_slots = set[bytes]()
    for trial in range(4):
        dealing = deal(secret_of(FIVE), FIVE, contexts_of(FIVE), InsecureSeededCoins(b"%d" % trial))
        published = decode_words(dealing.polynomial(CHALLENGE), FIVE.threshold * CHECK_WORDS)
        values = power_matrix(slot_points(FIVE.packing), FIVE.threshold) @ published.reshape(
            FIVE.threshold, CHECK_WORDS
        )
        at_slots.add((values.astype(np.int64) % FIELD).tobytes())
    assert len(at_slots) == 4


def test_a_dealing_answers_one_challenge() -> None:
    dealing = dealt(FIVE)
    dealing.polynomial(CHALLENGE)
    with pytest.raises(Misuse) as refused:
        dealing.polynomial(bytes(32))
    assert refused.value.reason is Reason.ALREADY_SPENT
    dealt_again = dealt(FIVE)
    values = [vars(one)["_values"] for one in (dealing, dealt_again)]
    assert [word.any() for word in values] == [False, True]
    dealt_again.wipe()
    assert not values[1].any()
    assert all(share.is_wiped for share in dealt_again.shares)


def test_dealing_wipes_the_secret_and_wants_distinct_contexts() -> None:
    secret = secret_of(FIVE)
    deal(secret, FIVE, contexts_of(FIVE), InsecureSeededCoins(b"coins"))
    with pytest.raises(Misuse, match="a distinct context"):
        deal(secret_of(FIVE), FIVE, [b"one"] * 5, InsecureSeededCoins(b"coins"))
    with pytest.raises(Misuse, match="wiped"):
        deal(secret, FIVE, contexts_of(FIVE), InsecureSeededCoins(b"coins"))


def test_malformed_shares_and_polynomials_are_refused() -> None:
    dealing, contexts = dealt(FIVE), contexts_of(FIVE)
    published = dealing.polynomial(CHALLENGE)
    high = b"\xff\xff" + bytes(dealing.shares[4].expose())[2:]
    with pytest.raises(MalformedMessage) as refused:
        open_share(FIVE, 4, Secret("share", high), contexts[4])
    assert refused.value.reason is Reason.SHARE_OUT_OF_RANGE
    share = open_share(FIVE, 4, dealing.shares[4], contexts[4])
    for bad in (published[:-16], published + bytes(16), b"\xf1\xff" + published[2:]):
        with pytest.raises(MalformedMessage):
            share.require_on(bad, CHALLENGE)
    with pytest.raises(InvalidParameters, match="challenge"):
        share.require_on(published, bytes(16))


# --- Holders ---------------------------------------------------------------------------------------------------------


def held(parameters: Parameters, position: int, client: int = 0) -> HeldShare:
    return open_share(
        parameters, position, dealt(parameters, client).shares[position], contexts_of(parameters, client)[position]
    )


def test_an_answer_has_no_room_for_the_masking_polynomial() -> None:
    answer = summed(FIVE, [held(FIVE, 2)])
    assert len(answer) == FIVE.degree // FIVE.packing * 2
    decode_words(answer, FIVE.secret_columns)
    for bad in (answer[:-2], answer + bytes(2), b"\xff\xff" + answer[2:]):
        with pytest.raises(MalformedMessage):
            decode_words(bad, FIVE.secret_columns)


def test_held_shares_are_wiped_and_not_printed() -> None:
    share = held(FIVE, 1)
    assert repr(share) == "<HeldShare of holder 1>"
    share.wipe()
    with pytest.raises(Misuse, match="wiped"):
        share.secret_words()


# --- The field -------------------------------------------------------------------------------------------------------


def test_words_are_uniform_by_rejection() -> None:
    words = expand_words(Secret("key", bytes(range(32))), 1 << 20)
    assert int(words.max()) < FIELD
    # With % 65521 the fifteen least would come twice as often: 32 times each and not 16.
    assert (words < 15).sum() < 15 * 16 + 8 * (15 * 16) ** 0.5
    assert abs(float(words.mean()) - (FIELD - 1) / 2) < 8 * FIELD / (12 * words.size) ** 0.5
    assert [a == b for a, b in pairwise(words.tolist())].count(True) < 60


@given(points=st.lists(st.integers(0, FIELD - 1), min_size=1, max_size=8, unique=True), data=st.data())
def test_interpolation_inverts_evaluation(points: list[int], data: st.DataObject) -> None:
    count = len(points)
    coefficients = data.draw(st.lists(st.integers(0, FIELD - 1), min_size=count, max_size=count))
    values = [sum(c * pow(x, i, FIELD) for i, c in enumerate(coefficients)) % FIELD for x in points]
    matrix = interpolation_matrix(tuple(points)).astype(np.int64)
    assert [int(row) % FIELD for row in matrix @ np.array(values)] == coefficients
    with pytest.raises(InvalidParameters, match="distinct"):
        interpolation_matrix((*points, points[0]))


def test_points_of_holders_and_secrets_never_meet() -> None:
    assert not {holder_point(position) for position in range(256)} & set(slot_points(16))


# --- Lengths, and what is overwritten ---------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 4])
def test_a_share_of_another_length_is_refused_for_seeds_and_explicit_shares(position: int) -> None:
    share, context = bytes(dealt(FIVE).shares[position].expose()), contexts_of(FIVE)[position]
    assert (position < FIVE.seeds) == (position == 0)
    for wrong, reason in ((share[:-2], Reason.TRUNCATED), (share + bytes(2), Reason.TRAILING_BYTES)):
        with pytest.raises(MalformedMessage) as refused:
            open_share(FIVE, position, Secret("share of a ring secret", wrong), context)
        assert refused.value.reason is reason


def test_a_challenge_is_a_digest_and_nothing_else() -> None:
    for wrong in (CHALLENGE[:-1], bytearray(CHALLENGE), CHALLENGE.hex()):
        nothing: Any = wrong
        dealing = dealt(FIVE)
        with pytest.raises(InvalidParameters, match="a 32-byte digest"):
            dealing.polynomial(nothing)


def test_a_stream_that_runs_out_is_not_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secagg.protocols.one_message.sharing.FIELD", 1)
    with pytest.raises(Misuse, match="its key is not uniform"):
        expand_words(Secret("key", bytes(32)), 100)


def test_holders_stand_from_one_up_and_secrets_from_zero_down() -> None:
    assert [holder_point(position) for position in range(3)] == [1, 2, 3]
    assert slot_points(3) == (0, FIELD - 1, FIELD - 2)


def test_a_matrix_is_reduced_with_rows_exchanged_up_to_the_first_column_without_a_pivot() -> None:
    whole, pivots = reduced(np.array([[0, 1, 0], [2, 0, 0], [0, 0, 3]], np.int64))
    assert (whole.tolist(), pivots) == (np.eye(3).tolist(), 3)
    half, pivots = reduced(np.array([[0, 0, 1], [0, 0, 2], [5, 0, 0]], np.int64))
    assert (half[:, 0].tolist(), pivots) == ([1, 0, 0], 1)


def test_words_of_another_length_are_refused_with_the_length_that_they_have() -> None:
    for length, reason in ((5, Reason.TRUNCATED), (7, Reason.TRAILING_BYTES)):
        with pytest.raises(MalformedMessage, match=f"expected 6 bytes of words; got {length}") as caught:
            decode_words(bytes(length), 3)
        assert caught.value.reason is reason
