"""One encoding for each configuration, one digest for each, and nothing out of range."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace
from typing import Any

import pytest

from secagg.choices import SharingMode
from secagg.contract import IndexSegment, Layout, RingSegment
from secagg.errors import InvalidParameters, Misuse
from secagg.parameters import Suite
from secagg.privacy.kinds import NoiseKind
from secagg.protocols.two_servers.configuration import MAXIMUM_SEGMENTS, IndexingConfiguration, ServerNoise
from secagg.protocols.two_servers.point_functions.lanes import RingLanes
from secagg.protocols.two_servers.point_functions.shape import PointFunctionShape, greatest_depth
from secagg.session.certificates import NO_STANDING, Standing

LAYOUT = Layout((RingSegment(20, 6), IndexSegment(3, 4), RingSegment(7, 2), IndexSegment(200, 9)), b"v" * 32)
CHECKED, UNCHECKED = SharingMode


def noise(
    *variances: int, kind: NoiseKind = NoiseKind.DISCRETE_GAUSSIAN, bounds: tuple[int, ...] = (2, 1)
) -> ServerNoise:
    return ServerNoise(kind=kind, variances=variances, l2_bounds=bounds)


def configuration(**changes: Any) -> IndexingConfiguration:
    chosen: dict[str, Any] = {
        "task": b"a task",
        "suite": Suite.HYBRID,
        "authority": b"a" * 32,
        "server_keys": (b"0" * 32, b"1" * 32),
        "layout": LAYOUT,
        "minimum_cohort": 3,
        "maximum_cohort": 9,
        "maximum_rejections": 2,
        "expiry": 1_800_000_000,
    }
    return IndexingConfiguration(**(chosen | changes))


KINDS = {
    "checked": configuration(),
    "unchecked": configuration(mode=UNCHECKED),
    "explicit": configuration(depth=0),
    "a tree": configuration(depth=2, suite=Suite.CLASSIC),
    "only rings": configuration(layout=Layout((RingSegment(20, 6),))),
    "only indices": configuration(layout=Layout((IndexSegment(3, 4),))),
}


# --- One encoding -----------------------------------------------------------------------------------------------------


def test_the_encoding_is_the_documented_one() -> None:
    def number(value: int, size: int) -> bytes:
        return value.to_bytes(size, "big")

    layout = number(len(LAYOUT.encode()), 4) + LAYOUT.encode()
    before = b"SAGG\x01" + number(67, 2) + b"\x03" + number(6, 4) + b"a task"
    keys = b"a" * 32 + b"0" * 32 + b"1" * 32
    after = number(3, 4) + number(9, 4) + number(2, 4) + number(1_800_000_000, 8)
    after += number(0, 8) + bytes(32) + number(0, 4) + bytes(64) + b"\x00"
    assert KINDS["checked"].encode() == before + b"\x01" + keys + layout + b"\x01\xff" + after
    assert KINDS["unchecked"].encode() == before + b"\x01" + keys + layout + b"\x02\xff" + after
    assert KINDS["a tree"].encode() == before + b"\x00" + keys + layout + b"\x01\x02" + after


@pytest.mark.parametrize("kind", KINDS)
def test_the_digest_is_of_the_encoding_under_its_label(kind: str) -> None:
    encoded = KINDS[kind].encode()
    statement = b"secagg/1/indexing-configuration" + len(encoded).to_bytes(4, "big") + encoded
    assert KINDS[kind].context.digest == hashlib.sha256(statement).digest()


# --- Ranges -----------------------------------------------------------------------------------------------------------

EDGES: dict[str, tuple[list[Any], list[Any]]] = {
    "message_form": ([3], [0, 2, 4, -1, 256, None]),
    "task": ([b"t", b"t" * 256], [b"", b"t" * 257, "text", bytearray(b"t")]),
    "authority": ([b"\1" * 32], [b"", b"a" * 31, b"a" * 33, bytearray(32), None]),
    "server_keys": (
        [(b"\1" * 32, b"\2" * 32)],
        [(b"0" * 32,), (b"0" * 32, b"1" * 32, b"2" * 32), [b"0" * 32, b"1" * 32], None, (b"0" * 31, b"1" * 32)],
    ),
    "minimum_cohort": ([2, 9], [1, 0, -1, 10, True, 3.0, None]),
    "maximum_cohort": ([3, 131070], [2, 0, -1, 1 << 24, 9.0, None]),
    "maximum_rejections": ([0, (1 << 32) - 1], [-1, 1 << 32, True, 1.0, None]),
    "expiry": ([1, 253402300799], [0, -1, 253402300800, 1.5, None]),
    "depth": ([None, 0, 1, 2], [3, -1, True, 1.0, 255]),
    "suite": (list(Suite), []),
    "mode": (list(SharingMode), []),
    "layout": ([replace(LAYOUT, version=b"w" * 32), Layout((RingSegment(21, 6), IndexSegment(201, 10)))], []),
    "standing": ([Standing(number=1 << 32, revoked=(3, 7)), NO_STANDING], [None, b""]),
    "noise": ([noise(4, 4, 4, 4), noise(4, 4, 4, 5, kind=NoiseKind.SKELLAM, bounds=(2, 2))], []),
}
VALID = [(name, value) for name, (good, _) in EDGES.items() for value in good]
INVALID = [(name, value) for name, (_, bad) in EDGES.items() for value in bad]


@pytest.mark.parametrize(("name", "value"), VALID)
def test_the_ends_of_every_range_are_accepted_and_read_back(name: str, value: Any) -> None:
    changes: dict[str, Any] = {name: value}
    made = configuration(**changes)
    again = IndexingConfiguration.decode(made.encode())
    assert again.context == made.context
    assert getattr(again, name) == value


def test_every_field_is_read_back() -> None:
    assert EDGES.keys() == {field.name for field in fields(IndexingConfiguration) if field.init}


@pytest.mark.parametrize(("name", "value"), INVALID)
def test_whatever_lies_beyond_is_refused(name: str, value: Any) -> None:
    changes: dict[str, Any] = {name: value}
    with pytest.raises((InvalidParameters, Misuse)):
        configuration(**changes)


@pytest.mark.parametrize("name", ["suite", "layout", "mode"])
def test_names_of_choices_are_of_their_own_types(name: str) -> None:
    for wrong in ("x25519-aes128", 1, None):
        changes: dict[str, Any] = {name: wrong}
        with pytest.raises(Misuse, match="must be a Suite, Layout"):
            configuration(**changes)


@pytest.mark.parametrize("segment", [IndexSegment(4097, 1), IndexSegment(2, (1 << 26) + 1)])
@pytest.mark.parametrize("mode", [CHECKED, UNCHECKED])
def test_codebooks_and_blocks_beyond_the_kernels_are_refused(segment: IndexSegment, mode: SharingMode) -> None:
    with pytest.raises(InvalidParameters, match="segment 1 has"):
        configuration(layout=Layout((RingSegment(3, 2), segment)), mode=mode)


@pytest.mark.parametrize("segment", [IndexSegment(4096, 1), IndexSegment(2, 1 << 26)])
def test_the_largest_codebook_and_number_of_blocks_are_accepted(segment: IndexSegment) -> None:
    configuration(layout=Layout((segment,)))


def test_the_most_segments_are_accepted_and_no_more() -> None:
    configuration(layout=Layout((RingSegment(3, 1),) * MAXIMUM_SEGMENTS))
    with pytest.raises(InvalidParameters, match="1025 segments; two servers accept at most 1024"):
        configuration(layout=Layout((RingSegment(3, 1),) * (MAXIMUM_SEGMENTS + 1)))


def test_fine_bits_that_nobody_rounds_are_refused() -> None:
    with pytest.raises(InvalidParameters, match="segment 1 has 2 fine bits"):
        configuration(layout=Layout((IndexSegment(3, 4), RingSegment(20, 6, fine_bits=2))))


def test_noise_that_the_servers_cannot_add_is_refused() -> None:
    with pytest.raises(Misuse, match="noise must be a ServerNoise"):
        configuration(noise=(4, 4, 4, 4))


def test_a_forced_depth_is_that_of_every_codebook() -> None:
    layout = Layout((IndexSegment(300, 2), IndexSegment(5, 2)))
    made = configuration(layout=layout, depth=3)
    assert [made.shape(segment).depth for _, segment in made.index_segments] == [3, 3]
    with pytest.raises(InvalidParameters, match="depth"):
        configuration(layout=layout, depth=greatest_depth(5) + 1)


# --- What follows from it ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cohort", "bits"), [(127, 7), (128, 8), (255, 8), (256, 9)])
def test_unchecked_lanes_have_the_bits_of_the_total(cohort: int, bits: int) -> None:
    made = configuration(mode=UNCHECKED, maximum_cohort=cohort)
    assert made.group == RingLanes(bits)
    assert not made.is_checked


@pytest.mark.parametrize("mode", [CHECKED, UNCHECKED])
def test_the_depth_is_the_cheapest_unless_one_is_named(mode: SharingMode) -> None:
    made = configuration(mode=mode)
    depths = list[int]()
    for _, segment in made.index_segments:
        assert made.shape(segment) == PointFunctionShape.cheapest(segment.codewords, made.group)
        depths.append(made.shape(segment).depth)
    assert depths[0] == 0
    assert depths[1] > 0
    for depth in (0, 1, 2):
        forced = configuration(mode=mode, depth=depth)
        for _, segment in forced.index_segments:
            assert forced.shape(segment).depth == depth
            assert forced.shape(segment).derives_last_lane == (depth == 0)


@pytest.mark.parametrize("keys", [(b"a" * 32, b"1" * 32), (b"0" * 32, b"a" * 32), (b"0" * 32, b"0" * 32)])
def test_the_authority_and_the_servers_have_three_keys(keys: tuple[bytes, bytes]) -> None:
    with pytest.raises(InvalidParameters, match="three different keys"):
        configuration(server_keys=keys)


def test_no_more_clients_than_can_be_counted() -> None:
    rings: dict[str, Any] = {"layout": Layout((RingSegment(20, 6),))}
    configuration(maximum_cohort=(1 << 24) - 1, **rings)
    with pytest.raises(InvalidParameters, match="maximum_cohort"):
        configuration(maximum_cohort=1 << 24, **rings)
