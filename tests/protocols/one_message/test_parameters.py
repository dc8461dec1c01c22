"""Parameters: the table of bytes, the table of thresholds, and what is refused."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.contract import Layout, RingSegment
from secagg.declared import At
from secagg.errors import InvalidParameters, MalformedMessage
from secagg.protocols.one_message import parameters, session
from secagg.protocols.one_message.opening import energy_factor
from secagg.protocols.one_message.parameters import (
    LEAST_FINE_BITS,
    LEAST_SECURITY,
    MAXIMUM_COEFFICIENTS,
    MAXIMUM_DROPPED_BITS,
    MAXIMUM_HOLDERS,
    MOST_NOISE_ENERGY,
    Committee,
    Parameters,
    Values,
    greatest_capacity,
    least_guard_bits,
    least_quorum,
    least_threshold,
)
from secagg.protocols.one_message.session import (
    choose_committee,
    greatest_modulus_bits,
    masked_values,
    plan,
    with_witnesses,
)
from secagg.wire import MessageKind, Reader, Writer


def small(**changes: Any) -> Parameters:
    made: dict[str, Any] = {
        "degree": 2048,
        "modulus_bits": 55,
        "guard_bits": 10,
        "dropped_bits": 3,
        "segments": (Values(64, 16, (-128, 127)), Values(2, 20)),
        "capacity": 100,
        "holders": 5,
        "corrupted": 1,
        "threshold": 4,
        "packing": 1,
        "quorum": 4,
    }
    return Parameters(**(made | changes))


# --- Bytes -----------------------------------------------------------------------------------------------------------


def test_eight_bits_of_a_hundred_clients_cost_1_158_of_their_packed_sum() -> None:
    segments = [Values(1 << 20, 15, (0, 255))]
    with pytest.raises(InvalidParameters):
        plan([Values(1 << 20, 14, (0, 255))], 100, choose_committee(24, 3))
    made = plan(segments, 100, choose_committee(24, 3))
    assert made.degree == 4096, "at 2048 one of the models sees less than 128 bits"
    assert (made.per_coefficient, made.modulus_bits, made.dropped_bits, made.sent_bits) == ((3,), 55, 3, 52)
    assert math.isclose(made.upload_bytes / ((1 << 20) * 15 / 8), 1.1556, rel_tol=0, abs_tol=0.003)
    assert made.runs[0].plane_bits == (32, 16, 4)
    narrow = plan(segments, 100, choose_committee(24, 3), degrees=(2048,))
    assert (narrow.per_coefficient, narrow.modulus_bits) == ((2,), 40)


def test_only_used_coefficients_travel() -> None:
    made = plan([Values(64, 16, (-128, 127))], 100, choose_committee(5, 1), degrees=(4096,))
    assert made.coefficients == 22
    assert made.upload_bytes == 22 * 52 // 8


# --- Exactness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropped", range(MAXIMUM_DROPPED_BITS + 1))
@pytest.mark.parametrize("capacity", [1, 2, 3, 24, 100, 1000, 10_000, 500_000])
def test_guard_bits_hold_the_noise_of_a_full_sum_by_the_sub_gaussian_bound(capacity: int, dropped: int) -> None:
    half = 2 ** (least_guard_bits(capacity, dropped) - 1)
    proxy = capacity * (4.5**2 + (4**dropped - 1) / 12)
    # Half a unit of rounding is left when N is odd and floor(N / 2) is taken away.
    chance = 2 * math.exp(-((half - 0.5) ** 2) / (2 * proxy))
    assert chance * MAXIMUM_COEFFICIENTS < 2**-40


def test_too_few_guard_bits_and_too_narrow_rings_are_refused() -> None:
    with pytest.raises(InvalidParameters, match="need 10 guard bits; got 9"):
        small(guard_bits=9)
    with pytest.raises(InvalidParameters, match="needs 15 bits, but its ring has 14"):
        small(segments=(Values(64, 14, (-128, 127)),))
    with pytest.raises(InvalidParameters, match="use a modulus of 60 bits"):
        small(segments=(Values(64, 50),))


def test_the_capacity_keeps_the_sum_of_secrets_apart_in_the_field() -> None:
    most = greatest_capacity()
    assert 10 * 4.5 * math.sqrt(most) <= 32_760 < 10 * 4.5 * math.sqrt(most + 1)
    with pytest.raises(InvalidParameters, match="capacity"):
        small(capacity=most + 1)


# --- Zeros behind the values ------------------------------------------------------------------------------------------


def ball_bits(dimension: int, squared: float) -> float:
    """Return the logarithm of a bound on the integers in a ball: the volume of one that is half a diagonal wider."""
    radius = math.sqrt(squared) + math.sqrt(dimension) / 2
    volume = dimension / 2 * math.log(math.pi) + dimension * math.log(radius) - math.lgamma(dimension / 2 + 1)
    return volume / math.log(2)


@given(
    segments=st.lists(
        st.one_of(
            st.builds(Values, st.integers(1, 9000), st.integers(1, 32)),
            st.builds(Values, st.integers(1, 9000), st.just(30), st.just((-9, 9))),
            st.builds(Values, st.integers(1, 9000), st.integers(9, 20), st.none(), st.just(8)),
        ),
        max_size=3,
    ),
    capacity=st.sampled_from([2, 9, 100, 3000, 200_000]),
)
def test_so_many_secrets_and_no_more_leave_what_honest_ones_leave(segments: list[Values], capacity: int) -> None:
    """Counted over all wrong sums of secrets, the chance that any passes the tests of an opened sum is below 2^-64."""
    values = [*segments, Values(1, 1), *(one.check_words for one in segments if one.fine_bits)]
    made = with_witnesses(plan(values, capacity, choose_committee(5, 1), degrees=(2048, 4096)))
    secrets = ball_bits(made.degree, 1.5 * made.degree * capacity * 4.5**2)
    # Bits of the coefficients that hold noise, and of the zeros, which are known whole.
    exact, known = 0, 0.0
    for index, (segment, k) in enumerate(zip(made.segments, made.per_coefficient, strict=True)):
        if not segment.fine_bits:
            count = math.ceil(segment.length / k)
            exact += count
            below = made.guard_bits if segment.bounds else made.modulus_bits - segment.ring_bits
            zeros = count if index == made.inputs - 1 else 0
            known += count * below + zeros * (made.modulus_bits - below)
    assert energy_factor(exact) <= MOST_NOISE_ENERGY
    noise = ball_bits(exact, energy_factor(exact) * exact * capacity * made.noise_variance)
    assert secrets + noise - known < -64
    assert with_witnesses(made) == made


@pytest.mark.parametrize(
    ("name", "outside"),
    [
        ("modulus_bits", (1, 109, True)),
        ("dropped_bits", (-1, 5)),
        ("guard_bits", (0, 55)),
        ("capacity", (0, greatest_capacity() + 1, 100.0)),
        ("holders", (0, 257)),
        ("corrupted", (-1, 5)),
        ("packing", (0, 5)),
    ],
)
def test_each_number_has_a_range(name: str, outside: tuple[Any, ...]) -> None:
    for value in outside:
        with pytest.raises(InvalidParameters, match=rf"^{name} must be .*{value}"):
            small(**{name: value})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"threshold": 1}, "need a threshold of 2 to 5; got 1"),
        ({"threshold": 6}, "need a threshold of 2 to 5; got 6"),
        ({"quorum": 3}, "a list needs a quorum of 4 to 5; got 3"),
        ({"quorum": 6}, "a list needs a quorum of 4 to 5; got 6"),
    ],
)
def test_thresholds_that_would_let_a_server_combine_answers_are_refused(changes: dict[str, int], sentence: str) -> None:
    with pytest.raises(InvalidParameters, match=sentence):
        small(**changes)


def test_packing_divides_the_degree() -> None:
    assert small(threshold=5, packing=2).secret_columns == 1024
    with pytest.raises(InvalidParameters, match="3 does not divide 2048"):
        small(threshold=5, packing=3)


@pytest.mark.parametrize("degree", [512, 3072, 8192])
def test_a_degree_has_figures_of_security(degree: int) -> None:
    with pytest.raises(InvalidParameters, match=rf"the degree must be one of .*; got {degree}$"):
        small(degree=degree)


def test_there_are_segments_and_no_more_than_a_message_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidParameters, match="got 0"):
        small(segments=())
    monkeypatch.setattr("secagg.protocols.one_message.parameters.MAXIMUM_SEGMENTS", 2)
    assert len(small().segments) == 2
    with pytest.raises(InvalidParameters, match="got 3"):
        small(segments=(Values(2, 20), Values(2, 20), Values(2, 20)))


def test_neighbouring_segments_share_a_run_exactly_if_the_same_bits_of_them_travel() -> None:
    exact, fine = Values(4, 20), Values(6, 12, fine_bits=8)
    made = small(segments=(exact, exact, fine, exact, fine.check_words))
    assert [(run.first, run.end) for run in made.runs] == [(0, 8), (8, 14), (14, made.coefficients)]
    assert [run.dropped for run in made.runs] == [3, 8, 3]


def test_segments_with_fine_bits_need_exactly_their_check_words_at_the_end() -> None:
    exact, fine = Values(4, 20), Values(6, 12, fine_bits=8)
    for wrong in (exact, replace(fine.check_words, length=fine.check_words.length + 1)):
        with pytest.raises(InvalidParameters, match="check words of those with fine bits"):
            small(segments=(exact, fine, wrong))


def test_coefficients_are_counted_over_all_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    made = small()
    monkeypatch.setattr("secagg.protocols.one_message.parameters.MAXIMUM_COEFFICIENTS", made.coefficients)
    assert replace(made) == made
    monkeypatch.setattr("secagg.protocols.one_message.parameters.MAXIMUM_COEFFICIENTS", made.coefficients - 1)
    with pytest.raises(InvalidParameters, match="divide the layout"):
        replace(made)


# --- Thresholds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("holders", "corrupted", "packing", "quorum", "due"),
    [(5, 1, 1, 4, 2), (7, 2, 1, 5, 3), (24, 3, 4, 14, 7), (64, 8, 8, 37, 16), (128, 30, 8, 80, 38)],
)
def test_the_table_of_thresholds(holders: int, corrupted: int, packing: int, quorum: int, due: int) -> None:
    assert least_threshold(corrupted, packing) == due
    assert least_quorum(holders, corrupted) == quorum


@given(holders=st.integers(1, 256), data=st.data())
def test_least_thresholds_are_the_premises_of_the_theorems(holders: int, data: st.DataObject) -> None:
    corrupted = data.draw(st.integers(0, holders - 1))
    quorum = least_quorum(holders, corrupted)
    assert 2 * quorum > holders + corrupted >= 2 * (quorum - 1)


@given(holders=st.integers(1, 140), data=st.data())
def test_a_chosen_committee_answers_without_the_corrupted_and_the_absent(holders: int, data: st.DataObject) -> None:
    corrupted, absent = data.draw(st.integers(0, holders - 1)), data.draw(st.integers(0, 8))
    try:
        made = choose_committee(holders, corrupted, absent)
    except InvalidParameters as error:
        if "assume fewer" in str(error):
            # So many would suffice as no epoch has.
            assert 3 * corrupted + 2 * absent >= MAXIMUM_HOLDERS
            return
        suffice = int(str(error).rsplit("; ", 1)[1].split()[0])
        enough = choose_committee(suffice, corrupted, absent)
        assert suffice - enough.threshold >= corrupted + absent
        assert suffice > holders
        return
    assert holders - max(made.threshold, made.quorum) >= corrupted + absent
    assert made.threshold >= least_threshold(corrupted, made.packing)


def test_a_committee_of_more_than_an_epoch_has_is_refused_with_what_to_change() -> None:
    values = (Values(100, 16),)
    with pytest.raises(InvalidParameters, match="an epoch has at most 256 holders; got 300; list fewer"):
        choose_committee(300, 3)
    assert choose_committee(256, 3).holders == 256
    with pytest.raises(InvalidParameters, match="assume fewer"):
        choose_committee(200, 90)
    # Numbers of another committee than one that was chosen here.
    with pytest.raises(InvalidParameters, match=r"holders .*256.* 300"):
        plan(values, 100, Committee(300, 3, 250, 1, 152))
    with pytest.raises(InvalidParameters, match="packing must divide the degree"):
        plan(values, 100, Committee(20, 3, 15, 3, 12))
    with pytest.raises(InvalidParameters, match="need a threshold of 7 to 20; got 5"):
        plan(values, 100, Committee(20, 3, 5, 4, 12))
    with pytest.raises(InvalidParameters, match="divide the layout"):
        plan((Values(MAXIMUM_COEFFICIENTS, 16),) * 2, 100, choose_committee(5, 1))


# --- Security --------------------------------------------------------------------


@given(
    lengths=st.lists(st.integers(1, 10_000), min_size=1, max_size=4),
    capacity=st.integers(1, 2000),
    bounds=st.sampled_from([None, (-8, 7)]),
    holders=st.integers(4, 30),
)
@settings(max_examples=15)
def test_plans_are_sound(lengths: list[int], capacity: int, bounds: tuple[int, int] | None, holders: int) -> None:
    segments = [Values(length, 20, bounds) for length in lengths]
    assert plan(segments, capacity, choose_committee(holders, 1)).security_bits >= LEAST_SECURITY


def test_a_layout_that_nothing_fits_names_what_does() -> None:
    with pytest.raises(InvalidParameters, match="use a ring of 15 bits"):
        plan([Values(10, 14, (0, 255))], 100, choose_committee(5, 1))
    with pytest.raises(InvalidParameters, match="rings of at most 18 bits fit"):
        plan([Values(10, 40)], 100, choose_committee(5, 1), degrees=(1024,))
    assert plan([Values(10, 18)], 100, choose_committee(5, 1), degrees=(1024,)).modulus_bits <= 28
    with pytest.raises(InvalidParameters, match="make several sums"):
        plan([Values(10, 40)], 10**6, choose_committee(5, 1))


@pytest.mark.parametrize("bad", [(0, 16, None), (5, 65, None), (5, 8, (-129, 0)), (5, 8, (3, 3)), (5, 8, (4, 3))])
def test_segments_that_make_no_sense_are_refused(bad: tuple[int, int, tuple[int, int] | None]) -> None:
    with pytest.raises(InvalidParameters):
        Values(*bad)


# --- One segment ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [None, (-3, 5), (-(1 << 63), (1 << 63) - 1)])
def test_bounds_of_a_segment_read_back_as_they_were_written(bounds: tuple[int, int] | None) -> None:
    field, kind = vars(parameters)["_BOUNDS"], MessageKind.ONE_MESSAGE_OFFER
    writer = Writer(kind)
    field.write(writer, bounds)
    reader = Reader(writer.finish(), kind)
    assert field.read(reader, At(None, {})) == bounds
    reader.finish()
    with pytest.raises(MalformedMessage, match="2 is not no or yes"):
        field.read(Reader(Writer(kind).integer(2, 1).finish(), kind), At(None, {}))


def test_a_segment_has_the_most_values_the_widest_ring_and_bounds_and_almost_as_many_fine_bits() -> None:
    for bits in (1, 64):
        assert Values(1, bits).ring_bits == bits
    for bits in (0, 65):
        with pytest.raises(InvalidParameters, match="1 to 64 bits"):
            Values(1, bits)
    assert Values(MAXIMUM_COEFFICIENTS, 1).length == MAXIMUM_COEFFICIENTS
    with pytest.raises(InvalidParameters, match=r"1 to 2\^31 values"):
        Values(MAXIMUM_COEFFICIENTS + 1, 1)
    assert (Values(1, 8, (-128, 127)).field_bits(10), Values(1, 8).field_bits(10)) == ((10 * 255).bit_length(), 8)
    for bounds in ((-129, 127), (-128, 128), (5, 5), (5, 4)):
        with pytest.raises(InvalidParameters, match="must be two increasing integers of 8 bits"):
            Values(1, 8, bounds)
    for fine_bits in (LEAST_FINE_BITS, 8):
        assert Values(1, 9, fine_bits=fine_bits).fine_bits == fine_bits
    for fine_bits, kept in ((LEAST_FINE_BITS - 1, None), (9, None), (8, (0, 1))):
        with pytest.raises(InvalidParameters, match="fine bits"):
            Values(1, 9, kept, fine_bits=fine_bits)


# --- The last that is planned -----------------------------------------------------------------------------------------


def test_a_sum_has_as_many_uploads_as_every_committee_can_count() -> None:
    most, values = greatest_capacity(), [Values(64, 40)]
    for capacity in (1, most):
        assert plan(values, capacity, choose_committee(5, 1)).capacity == capacity
    for capacity in (0, most + 1):
        with pytest.raises(InvalidParameters, match=f"a sum can have 1 to {most} uploads; got {capacity}"):
            plan(values, capacity, choose_committee(5, 1))


def test_coefficients_of_one_word_are_chosen_although_two_words_would_send_less() -> None:
    chosen = plan([Values(1000, 56)], 8, choose_committee(5, 1))
    assert (chosen.modulus_bits, chosen.dropped_bits) == (64, 0)


def test_a_committee_has_holders_that_an_epoch_has_room_for_and_some_that_are_honest() -> None:
    assert choose_committee(MAXIMUM_HOLDERS, 1).holders == MAXIMUM_HOLDERS
    with pytest.raises(InvalidParameters, match="at most 256 holders; got 257"):
        choose_committee(MAXIMUM_HOLDERS + 1, 1)
    assert choose_committee(5, 0).corrupted == 0
    for corrupted, absent in ((5, 0), (-1, 0), (1, -1)):
        with pytest.raises(InvalidParameters, match="too many for 5 holders"):
            choose_committee(5, corrupted, absent)
    assert choose_committee(5, 1, 0).packing == 2


@pytest.mark.parametrize(
    ("asked", "advice"),
    [
        ((85, 0, 127), "255 can$"),
        ((84, 1, 126), "256 can$"),
        ((86, 0, 128), "at most 256; assume fewer$"),
        ((4, 1, 1), "6 can$"),
    ],
)
def test_a_committee_that_is_too_small_is_told_how_many_can(asked: tuple[int, int, int], advice: str) -> None:
    with pytest.raises(InvalidParameters, match=advice):
        choose_committee(*asked)


def test_every_segment_of_a_layout_is_given_bounds_or_none() -> None:
    layout = Layout((RingSegment(16, 3), RingSegment(20, 2)))
    assert len(masked_values(layout, ((0, 9), None))) == 3
    with pytest.raises(InvalidParameters, match="for each of 2 segments; got 1"):
        masked_values(layout, (None,))


def test_a_segment_as_wide_as_the_room_of_a_lattice_is_not_too_wide() -> None:
    room = greatest_modulus_bits(1024, LEAST_SECURITY) - least_guard_bits(100, 0)
    too_wide = vars(session)["_too_wide"]
    assert too_wide((Values(64, room),), 100, (1024,)) is None
    assert "no lattice" in str(too_wide((Values(64, room + 1),), 100, (1024,)))
    # Rounded values need no guard bits, and the others that a layout has need some room.
    crowd = next(count for count in range(1, 1 << 20, 1000) if least_guard_bits(count, 0) == 15)
    assert greatest_modulus_bits(512, LEAST_SECURITY) == 15
    assert "no lattice" in str(too_wide((Values(64, 10, fine_bits=7),), crowd, (512,)))
