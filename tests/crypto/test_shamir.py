"""Secret sharing: what shares reveal, reconstruction, and wrong shares."""

from __future__ import annotations

import copy
import hashlib
import math
import pickle
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.crypto.prime_field import ELEMENT_BYTES, PRIME, encode
from secagg.crypto.reconstruction import Corrected, LagrangeWeights, correct, reconstruct
from secagg.crypto.secret import Secret
from secagg.crypto.shamir import MAX_HOLDERS, Share, check_value, split_many
from secagg.errors import InvalidParameters, Misuse, PeerMisbehaved, Reason, SecAggError, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.recorded_coins import InsecureRecordedCoins

elements = st.integers(0, PRIME - 1)


class StreamCoins:
    """One endless stream of coins from a seed; how it is cut into draws does not matter."""

    def __init__(self, seed: bytes) -> None:
        self.seed = seed
        self.position = 0

    def draw(self, count: int) -> bytearray:
        """Return the next bytes of the stream."""
        start, self.position = self.position, self.position + count
        return bytearray(hashlib.shake_256(self.seed).digest(self.position)[start:])


def split(secret: Secret, **how: Any) -> list[Share]:
    return split_many([secret], **how)[0]


def number(secret: Secret) -> int:
    return int.from_bytes(secret.expose(), "big")


def secret_of(value: int) -> Secret:
    return Secret("test secret", value.to_bytes(ELEMENT_BYTES, "big"))


def share_of(point: int, value: int) -> Share:
    return Share(point, Secret("test share", value.to_bytes(ELEMENT_BYTES, "big")))


def numbers(shares: Sequence[Share]) -> list[tuple[int, int]]:
    return [(share.point, number(share.value)) for share in shares]


def lagrange(nodes: Sequence[tuple[int, int]], at: int) -> int:
    """Interpolate slowly and from the definition; shares no code with the library."""
    total = 0
    for x, y in nodes:
        others = [other for other, _ in nodes if other != x]
        basis_at = math.prod(at - other for other in others)
        basis_at_x = math.prod(x - other for other in others)
        total += y * basis_at * pow(basis_at_x, PRIME - 2, PRIME)
    return total % PRIME


def tampered(shares: Sequence[Share], offsets: dict[int, int]) -> list[Share]:
    """Add an offset to the shares at some points."""
    return [share_of(share.point, (number(share.value) + offsets.get(share.point, 0)) % PRIME) for share in shares]


@st.composite
def sharings(draw: st.DrawFn) -> tuple[int, int, int, list[Share]]:
    """Draw a secret, a threshold, and all the shares of a dealing."""
    holders = draw(st.integers(1, 14))
    threshold = draw(st.integers(1, holders))
    secret = draw(elements)
    coins = StreamCoins(draw(st.binary(max_size=8)))
    return secret, threshold, holders, split(secret_of(secret), threshold=threshold, holders=holders, coins=coins)


@settings(deadline=None)
@given(sharings(), st.data())
def test_any_threshold_shares_reconstruct_in_any_order(
    sharing: tuple[int, int, int, list[Share]], data: st.DataObject
) -> None:
    secret, threshold, holders, shares = sharing
    assert [share.point for share in shares] == list(range(1, holders + 1))
    count = data.draw(st.integers(threshold, holders))
    chosen = data.draw(st.permutations(shares))[:count]
    rebuilt = reconstruct(chosen, threshold=threshold, kind="mask key")
    assert number(rebuilt) == secret
    assert rebuilt.kind == "mask key"
    weights = LagrangeWeights.at_zero([share.point for share in chosen], threshold=threshold)
    assert number(weights.combine(chosen)) == secret


@settings(deadline=None)
@given(sharings(), elements, st.data())
def test_fewer_than_threshold_shares_fit_every_secret_in_exactly_one_way(
    sharing: tuple[int, int, int, list[Share]], candidate: int, data: st.DataObject
) -> None:
    """The shares of fewer holders are as likely under one secret as under any other.

    Polynomials of degree below t are determined by t values, so the candidate and t - 1 shares leave exactly one; the
    coins that deal it are unique because coefficients are differences of its values.
    """
    _, threshold, holders, shares = sharing
    known = data.draw(st.permutations(shares))[: threshold - 1]
    nodes = [(0, candidate), *numbers(known)]
    values = [lagrange(nodes, at) for at in range(threshold)]
    coefficients: list[int] = []
    while values:
        coefficients.append(values[0])
        values = [(after - before) % PRIME for before, after in pairwise(values)]
    coins = InsecureRecordedCoins(b"".join(map(encode, coefficients[1:])))
    dealt = split(secret_of(candidate), threshold=threshold, holders=holders, coins=coins)
    assert [dealt[share.point - 1] for share in known] == known
    assert coins.is_exhausted


@settings(deadline=None)
@given(sharings())
def test_all_shares_lie_on_the_polynomial_of_the_first(sharing: tuple[int, int, int, list[Share]]) -> None:
    secret, threshold, _, shares = sharing
    nodes = [(0, secret), *numbers(shares)[: threshold - 1]]
    assert all(lagrange(nodes, share.point) == number(share.value) for share in shares)


def test_known_coins_give_known_shares() -> None:
    """The secret aa…, then coefficients 01… and 02… in this order: f(x) = aa… + 01… x + 02… x (x - 1) / 2."""
    coins = InsecureRecordedCoins(b"\x01" * 32 + b"\x02" * 32)
    shares = split(Secret("test secret", b"\xaa" * 32), threshold=3, holders=4, coins=coins)
    assert [share.value.expose().hex() for share in shares] == ["ab" * 32, "ae" * 32, "b3" * 32, "ba" * 32]
    assert coins.is_exhausted


def test_a_rejected_value_is_passed_over() -> None:
    tape = b"\xff" * 32 + PRIME.to_bytes(32, "big") + (PRIME - 1).to_bytes(32, "big") + b"\x05" * 32
    coins = InsecureRecordedCoins(tape)
    shares = split(secret_of(10), threshold=2, holders=3, coins=coins)
    assert numbers(shares) == [(1, 9), (2, 8), (3, 7)]
    assert coins.draw(32) == b"\x05" * 32


@settings(deadline=None)
@given(st.lists(elements, max_size=4), st.integers(1, 6), st.binary(max_size=4))
def test_splitting_many_is_splitting_one_after_the_other(values: list[int], threshold: int, seed: bytes) -> None:
    secrets = [secret_of(value) for value in values]
    one_by_one = StreamCoins(seed)
    separate = [split(secret, threshold=threshold, holders=6, coins=one_by_one) for secret in secrets]
    assert split_many(secrets, threshold=threshold, holders=6, coins=StreamCoins(seed)) == separate


@pytest.mark.parametrize("threshold", [1, 3])
def test_where_no_coefficient_is_left_or_all_are_zero_every_share_is_the_secret(threshold: int) -> None:
    shares = split(
        secret_of(42), threshold=threshold, holders=3, coins=InsecureRecordedCoins(bytes(32 * threshold - 32))
    )
    assert numbers(shares) == [(1, 42), (2, 42), (3, 42)]


def test_the_largest_number_of_holders_can_be_dealt_to() -> None:
    shares = split(secret_of(7), threshold=2, holders=MAX_HOLDERS, coins=StreamCoins(b"many"))
    assert shares[-1].point == MAX_HOLDERS == 2**16 - 1
    assert number(reconstruct(shares[-2:], threshold=2)) == 7


@pytest.mark.parametrize(
    ("threshold", "holders"),
    [
        *((0, 3), (-1, 3), (4, 3), (1, 0), (0, 0), (2, 2**16), (2**16, 2**16), (1, -1)),
        *((2.0, 3), (2, 3.0), (float("nan"), 3), (2, float("nan"))),
    ],
)
def test_impossible_numbers_are_refused_before_a_coin_is_drawn(threshold: Any, holders: Any) -> None:
    with pytest.raises(InvalidParameters) as caught:
        split(secret_of(1), threshold=threshold, holders=holders, coins=InsecureRecordedCoins(b""))
    assert caught.value.reason is Reason.PARAMETER_OUT_OF_RANGE


@pytest.mark.parametrize("data", [PRIME.to_bytes(32, "big"), b"\xff" * 32, b"\x01" * 31, b"\x01" * 33])
def test_a_secret_that_is_no_field_element_is_refused_before_a_coin_is_drawn(data: bytes) -> None:
    secret = Secret("mask key", data)
    with pytest.raises(InvalidParameters, match="mask key cannot be shared") as caught:
        split_many([secret_of(1), secret], threshold=2, holders=3, coins=InsecureRecordedCoins(b""))
    assert secret.expose() == data
    assert caught.value.__suppress_context__


def test_a_wiped_secret_is_refused_before_a_coin_is_drawn() -> None:
    secret = secret_of(1)
    secret.wipe()
    with pytest.raises(Misuse) as caught:
        split(secret, threshold=2, holders=3, coins=InsecureRecordedCoins(b""))
    assert caught.value.reason is Reason.ALREADY_SPENT


def test_exhausted_coins_leave_the_secret_as_it_was() -> None:
    secret = secret_of(5)
    with pytest.raises(Misuse, match="are left in the record"):
        split(secret, threshold=4, holders=5, coins=InsecureRecordedCoins(b"\x01" * 95))
    assert number(secret) == 5


def good_shares() -> list[Share]:
    return split(secret_of(77), threshold=3, holders=6, coins=StreamCoins(b"good"))


REBUILDERS = {"reconstruct": reconstruct, "correct": correct}
with_either = pytest.mark.parametrize("rebuilder", REBUILDERS)


def refusal(kind: type[SecAggError], rebuilder: str, shares: Sequence[Share], threshold: int = 3) -> SecAggError:
    """Return the error of a reconstruction, after checking that it changed no share."""
    before = [None if share.value.is_wiped else number(share.value) for share in shares]
    with pytest.raises(kind) as caught:
        REBUILDERS[rebuilder](shares, threshold=threshold)
    assert [None if share.value.is_wiped else number(share.value) for share in shares] == before
    return caught.value


@with_either
def test_fewer_than_threshold_shares_are_not_enough(rebuilder: str) -> None:
    for present in (0, 1, 2):
        error = refusal(ThresholdNotMet, rebuilder, good_shares()[:present])
        assert isinstance(error, ThresholdNotMet)
        assert (error.needed, error.present) == (3, present)


@with_either
@pytest.mark.parametrize("threshold", [0, -1, 2**16])
def test_an_impossible_threshold_is_refused(rebuilder: str, threshold: int) -> None:
    refusal(InvalidParameters, rebuilder, good_shares(), threshold)


@with_either
@pytest.mark.parametrize("point", [0, -1, 2**16, PRIME, PRIME + 1, np.int64(3), 3.0, True])
def test_a_share_at_a_point_that_no_holder_has_is_refused(rebuilder: str, point: Any) -> None:
    error = refusal(PeerMisbehaved, rebuilder, [*good_shares(), share_of(point, 1)])
    assert error.reason is Reason.SHARE_OUT_OF_RANGE


@with_either
@pytest.mark.parametrize("data", [PRIME.to_bytes(32, "big"), b"\xff" * 32, b"\x01" * 31, b"\x01" * 33, b""])
def test_a_value_that_is_no_field_element_is_refused(rebuilder: str, data: bytes) -> None:
    error = refusal(PeerMisbehaved, rebuilder, [*good_shares()[:3], Share(4, Secret("test share", data))])
    assert error.reason is Reason.SHARE_OUT_OF_RANGE
    assert "point 4" in str(error)
    assert error.__suppress_context__


@with_either
@pytest.mark.parametrize("same_value", [True, False])
def test_two_shares_at_one_point_are_refused(rebuilder: str, *, same_value: bool) -> None:
    shares = good_shares()
    twin = share_of(2, number(shares[1].value) if same_value else 12345)
    for chosen in ([*shares, twin], [shares[0], shares[1], twin]):
        error = refusal(PeerMisbehaved, rebuilder, chosen)
        assert isinstance(error, PeerMisbehaved)
        assert error.reason is Reason.SHARE_DUPLICATE
        assert not error.culprits


@with_either
def test_a_wiped_share_is_refused(rebuilder: str) -> None:
    shares = good_shares()
    shares[2].wipe()
    assert refusal(Misuse, rebuilder, shares).reason is Reason.ALREADY_SPENT


@settings(deadline=None)
@given(sharings(), st.data())
def test_up_to_the_surplus_of_wrong_shares_reconstruct_refuses(
    sharing: tuple[int, int, int, list[Share]], data: st.DataObject
) -> None:
    _, threshold, holders, shares = sharing
    surplus = holders - threshold
    if surplus == 0:
        return
    count = data.draw(st.integers(1, surplus))
    points = data.draw(st.permutations(range(1, holders + 1)))[:count]
    offsets = {point: data.draw(st.integers(1, PRIME - 1)) for point in points}
    wrong = tampered(shares, offsets)
    weights = LagrangeWeights.at_zero(range(1, holders + 1), threshold=threshold)
    attempts: tuple[Callable[[], Secret], ...] = (
        lambda: reconstruct(wrong, threshold=threshold),
        lambda: weights.combine(wrong),
    )
    for attempt in attempts:
        with pytest.raises(PeerMisbehaved) as caught:
            attempt()
        assert caught.value.reason is Reason.SHARES_IRRECONCILABLE
        assert not caught.value.culprits


def test_more_wrong_shares_than_the_surplus_can_agree_on_another_secret() -> None:
    """A limit, not a defect: the shares below are an honest dealing of another secret."""
    shares = good_shares()[:4]
    # The offset polynomial (x - 3)(x - 4) has degree below the threshold and spares two honest holders.
    wrong = tampered(shares, {point: (point - 3) * (point - 4) for point in (1, 2)})
    assert number(reconstruct(wrong, threshold=3)) == 77 + 12


def test_weights_refuse_shares_at_other_points() -> None:
    shares = good_shares()
    weights = LagrangeWeights.at_zero([1, 2, 3], threshold=3)
    for chosen in (shares[:2], shares[1:4], shares[:4], [shares[1], shares[0], shares[2]]):
        with pytest.raises(Misuse) as caught:
            weights.combine(chosen)
        assert caught.value.reason is Reason.API_MISUSE
    with pytest.raises(PeerMisbehaved) as refused:
        weights.combine([*shares[:2], share_of(3, PRIME)])
    assert refused.value.reason is Reason.SHARE_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("points", "reason"),
    [([1, 2, 1], Reason.SHARE_DUPLICATE), ([0, 1], Reason.SHARE_OUT_OF_RANGE), ([1], Reason.THRESHOLD_NOT_MET)],
)
def test_weights_refuse_points_that_cannot_reconstruct(points: list[int], reason: Reason) -> None:
    with pytest.raises(SecAggError) as caught:
        LagrangeWeights.at_zero(points, threshold=2)
    assert caught.value.reason is reason


@settings(deadline=None)
@given(sharings(), st.data())
def test_up_to_half_the_surplus_of_wrong_shares_is_corrected_and_named(
    sharing: tuple[int, int, int, list[Share]], data: st.DataObject
) -> None:
    secret, threshold, holders, shares = sharing
    present = data.draw(st.integers(threshold, holders))
    chosen = data.draw(st.permutations(shares))[:present]
    count = data.draw(st.integers(0, (present - threshold) // 2))
    offsets = {share.point: data.draw(st.integers(1, PRIME - 1)) for share in chosen[:count]}
    shuffled = data.draw(st.permutations(tampered(chosen, offsets)))
    corrected = correct(shuffled, threshold=threshold, kind="mask key")
    assert number(corrected.secret) == secret
    assert corrected.secret.kind == "mask key"
    assert corrected.wrong_points == frozenset(offsets)


def outcome_of(shares: Sequence[Share], threshold: int) -> Corrected | PeerMisbehaved:
    try:
        return correct(shares, threshold=threshold)
    except PeerMisbehaved as error:
        return error


@settings(deadline=None)
@given(sharings(), st.data())
def test_beyond_the_bound_only_a_polynomial_within_the_bound_is_ever_returned(
    sharing: tuple[int, int, int, list[Share]], data: st.DataObject
) -> None:
    _, threshold, holders, shares = sharing
    bound = (holders - threshold) // 2
    count = data.draw(st.integers(min(bound + 1, holders), holders))
    points = data.draw(st.permutations(range(1, holders + 1)))[:count]
    offset = st.integers(1, PRIME - 1) | st.integers(1, 3)
    wrong = tampered(shares, {point: data.draw(offset) for point in points})
    outcome = outcome_of(wrong, threshold)
    if isinstance(outcome, PeerMisbehaved):
        assert outcome.reason is Reason.SHARES_IRRECONCILABLE
        assert not outcome.culprits
        return
    assert len(outcome.wrong_points) <= bound
    kept = [node for node in numbers(wrong) if node[0] not in outcome.wrong_points]
    on_polynomial = kept[:threshold]
    assert lagrange(on_polynomial, 0) == number(outcome.secret)
    for point, value in numbers(wrong):
        assert (lagrange(on_polynomial, point) != value) == (point in outcome.wrong_points)


@pytest.mark.parametrize(("threshold", "holders"), [(67, 100), (4, 9), (1, 4), (5, 6), (3, 6)])
def test_with_an_odd_surplus_one_more_than_the_bound_is_always_refused(threshold: int, holders: int) -> None:
    """Other polynomials then differ in at least one place too many, even if the wrong holders chose the best one."""
    shares = split(secret_of(5), threshold=threshold, holders=holders, coins=StreamCoins(b"odd"))
    wrong_count = (holders - threshold) // 2 + 1
    spared = range(holders - threshold + 2, holders + 1)
    for offsets in (
        {point: math.prod(point - other for other in spared) for point in range(1, wrong_count + 1)},
        dict.fromkeys(range(1, wrong_count + 1), 1),
        {point: point**7 + 1 for point in range(1, wrong_count + 1)},
    ):
        with pytest.raises(PeerMisbehaved, match=f"at most {wrong_count - 1} wrong ones") as caught:
            correct(tampered(shares, offsets), threshold=threshold)
        assert caught.value.reason is Reason.SHARES_IRRECONCILABLE
        assert not caught.value.culprits


@pytest.mark.parametrize(("threshold", "holders"), [(66, 100), (3, 9), (1, 3), (4, 6)])
def test_with_an_even_surplus_one_more_than_the_bound_is_refused_unless_the_wrong_holders_conspire(
    threshold: int, holders: int
) -> None:
    shares = split(secret_of(5), threshold=threshold, holders=holders, coins=StreamCoins(b"even"))
    bound = (holders - threshold) // 2
    wrong = tampered(shares, {point: point**7 + 1 for point in range(1, bound + 2)})
    with pytest.raises(PeerMisbehaved, match=f"at most {bound} wrong ones") as caught:
        correct(wrong, threshold=threshold)
    assert caught.value.reason is Reason.SHARES_IRRECONCILABLE
    assert not caught.value.culprits


def test_with_an_even_surplus_one_more_than_the_bound_can_agree_on_another_secret() -> None:
    """A limit, not a defect: two of five holders move the shares to within one share of another polynomial.

    The offset (x - 4)(x - 5) spares holders 4 and 5; holders 1 and 2 add it and holder 3, who is honest, is named.
    This is why a caller compares the secret with a commitment before accusing anybody.
    """
    shares = good_shares()[:5]
    wrong = tampered(shares, {point: (point - 4) * (point - 5) for point in (1, 2)})
    corrected = correct(wrong, threshold=3)
    assert number(corrected.secret) == 77 + 20
    assert corrected.wrong_points == {3}


def test_sixteen_wrong_shares_of_a_hundred_are_corrected() -> None:
    shares = split(secret_of(PRIME - 1), threshold=67, holders=100, coins=StreamCoins(b"large"))
    points = range(3, 99, 6)
    wrong = tampered(shares, {point: number(shares[point - 1].value) + 1 for point in points})
    corrected = correct(wrong, threshold=67)
    assert number(corrected.secret) == PRIME - 1
    assert corrected.wrong_points == frozenset(points)
    assert len(corrected.wrong_points) == 16


@pytest.mark.parametrize("wrong_points", [{5}, {1, 2}, {3, 9}, {2, 5, 8}, {1, 4, 6, 10}])
def test_wrong_shares_that_cancel_in_the_first_checks_are_corrected(wrong_points: set[int]) -> None:
    """The offsets are a polynomial of the lowest degree that spares everybody else, so only the last checks notice."""
    shares = split(secret_of(6), threshold=2, holders=10, coins=StreamCoins(b"cancel"))
    others = set(range(1, 11)) - wrong_points
    offsets = {point: math.prod(point - other for other in others) for point in wrong_points}
    corrected = correct(tampered(shares, offsets), threshold=2)
    assert number(corrected.secret) == 6
    assert corrected.wrong_points == wrong_points


def test_from_exactly_threshold_shares_nothing_can_be_corrected_or_noticed() -> None:
    wrong = tampered(good_shares()[:3], {2: 1})
    assert number(correct(wrong, threshold=3).secret) == number(reconstruct(wrong, threshold=3)) != 77


def test_a_bad_share_is_blamed_on_whoever_handed_it_over() -> None:
    sender = ClientId(3)
    for bad in (share_of(0, 1), share_of(2**16, 1), share_of(1, PRIME), Share(1, Secret("test share", b"short"))):
        with pytest.raises(PeerMisbehaved) as caught:
            check_value(bad.point, bad.value.expose(), culprits=[sender])
        assert caught.value.reason is Reason.SHARE_OUT_OF_RANGE
        assert caught.value.culprits == {sender}
    for good in (share_of(1, 0), share_of(MAX_HOLDERS, PRIME - 1)):
        assert check_value(good.point, good.value.expose(), culprits=[sender]) == number(good.value)


def test_a_share_shows_its_point_and_not_its_value() -> None:
    share = share_of(3, 0xDEADBEEF << 128)
    assert repr(share) == "Share(point=3, value=<Secret test share, 32 bytes>)"
    assert str(share) == repr(share)
    (dealt,) = split(Secret("mask key", bytes(32)), threshold=1, holders=1, coins=InsecureRecordedCoins(b""))
    assert repr(dealt.value) == "<Secret share of mask key, 32 bytes>"
    corrected = correct(good_shares(), threshold=3)
    assert repr(corrected) == "Corrected(secret=<Secret reconstructed secret, 32 bytes>, wrong_points=frozenset())"


def test_a_share_refuses_to_be_pickled_copied_or_hashed() -> None:
    share = share_of(3, 4)
    exposures: tuple[Callable[[Share], object], ...] = (pickle.dumps, copy.deepcopy)
    for exposure in exposures:
        with pytest.raises(Misuse) as caught:
            exposure(share)
        assert caught.value.reason is Reason.SECRET_EXPOSURE
    with pytest.raises(TypeError):
        hash(share)


def test_wiping_a_share_wipes_its_value() -> None:
    share = share_of(3, 4)
    view = share.value.expose()
    share.wipe()
    share.wipe()
    assert share.value.is_wiped
    assert not any(view)


def test_no_error_message_contains_a_value() -> None:
    value = 0xC0FFEE_DEADBEEF_FEEDFACE
    shares = [share_of(point, value) for point in (1, 2, 3)]
    errors = [
        refusal(PeerMisbehaved, "reconstruct", [*shares, share_of(4, value + 1)]),
        refusal(PeerMisbehaved, "correct", [*shares, share_of(4, value + 1)]),
        refusal(PeerMisbehaved, "reconstruct", [*shares, share_of(3, value)]),
        refusal(PeerMisbehaved, "reconstruct", [*shares, share_of(4, PRIME + 7)]),
        refusal(ThresholdNotMet, "reconstruct", shares[:2]),
    ]
    for error in errors:
        for text in (str(error), repr(error), repr(error.args)):
            assert str(value)[:12] not in text
            assert f"{value:x}"[:8] not in text.lower()
            assert "f" * 16 not in text.lower()


def test_a_secret_in_plain_bytes_is_not_shared() -> None:
    plain: Any = bytes(32)
    with pytest.raises(Misuse, match="Secret"):
        split(plain, threshold=2, holders=3, coins=InsecureSeededCoins(b"coins"))
    with pytest.raises(Misuse, match="Secret"):
        reconstruct([Share(1, plain)], threshold=1)


@pytest.mark.parametrize("threshold", [127, 128, 129, 257, 300])
def test_large_neighbourhoods_share_on_one_polynomial(threshold: int) -> None:
    # Beyond 128 steps, values and products are also reduced in between, not only at the end.
    secret = Secret("mask_root", b"\x5a" * 32)
    shares = split(secret, threshold=threshold, holders=320, coins=InsecureSeededCoins(b"large"))
    assert reconstruct(shares, threshold=threshold) == secret
    assert reconstruct(shares[320 - threshold :], threshold=threshold) == secret
    with pytest.raises(PeerMisbehaved):
        reconstruct(shares, threshold=threshold - 1)


def test_a_threshold_of_all_holders_that_there_can_be_is_none_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secagg.crypto.shamir.MAX_HOLDERS", 3)
    shares = split(secret_of(7), threshold=3, holders=3, coins=StreamCoins(b"all"))
    assert number(reconstruct(shares, threshold=3)) == 7
    with pytest.raises(InvalidParameters):
        reconstruct(shares, threshold=4)
