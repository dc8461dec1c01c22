"""One encoding for each configuration, one digest for each, and nothing out of range."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from dataclasses import fields, replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from secagg.choices import Accumulation, ReleaseForm
from secagg.contract import IndexSegment, Layout, RingSegment
from secagg.contract.codewords import CodewordTable, summed_layout, tables_digest
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, Reason, SecAggError
from secagg.parameters import Suite
from secagg.privacy.kinds import NoiseKind
from secagg.protocols.enclave.trusted import configuration as configuration_module
from secagg.protocols.enclave.trusted.configuration import NO_AUTHORITY, EnclaveConfiguration, Noise
from secagg.session.certificates import NO_STANDING, Standing
from tests.harness.enclave_buffers import start_of, started_by

LAYOUT = Layout((RingSegment(20, 6), IndexSegment(3, 4), RingSegment(7, 2)), b"v" * 32)
RINGS = Layout((RingSegment(20, 6), RingSegment(7, 2)))
TABLES = (
    (
        CodewordTable(1, np.array([[1, -2], [3, 4], [0, 9]], dtype=np.int64)),
        CodewordTable(3, np.array([[1], [2], [-3]], dtype=np.int64)),
    ),
)
NOISE = Noise(
    kind=NoiseKind.SKELLAM,
    variances=(Fraction(5), Fraction(7, 2), Fraction(9), Fraction(1, 4)),
    l2_bounds=(30, 40),
    releases_per_client=6,
)


def configuration(**changes: Any) -> EnclaveConfiguration:
    chosen: dict[str, Any] = {
        "task": b"a task",
        "suite": Suite.HYBRID,
        "authority": b"a" * 32,
        "layout": LAYOUT,
        "tables": TABLES,
        "minimum_cohort": 3,
        "maximum_cohort": 9,
        "oldest": 2,
        "expiry": 1_800_000_000,
    }
    return EnclaveConfiguration(**(chosen | changes))


KINDS = {
    "decoded sums": configuration(),
    "histograms": configuration(form=ReleaseForm.HISTOGRAM, tables=(), accumulation=Accumulation.DIRECT),
    "only rings": configuration(layout=RINGS, tables=(), suite=Suite.CLASSIC),
    "only indices": configuration(layout=Layout((IndexSegment(3, 4),))),
    "noised": configuration(noise=NOISE),
    "noised histograms": configuration(
        form=ReleaseForm.HISTOGRAM, tables=(), noise=replace(NOISE, variances=(Fraction(16),) * 3)
    ),
    "without authority": configuration(noise=NOISE, authority=NO_AUTHORITY),
}


def read_back(encoded: bytes) -> EnclaveConfiguration:
    return EnclaveConfiguration.decode(encoded, TABLES)


# --- One encoding -----------------------------------------------------------------------------------------------------


def test_the_encoding_is_the_documented_one() -> None:
    def number(value: int, size: int) -> bytes:
        return value.to_bytes(size, "big")

    def framed(data: bytes) -> bytes:
        return number(len(data), 4) + data

    tables = [b"".join((number(1, 8), number(3, 4), number(2, 4), *(v.to_bytes(4, "big", signed=True) for v in row)))
              for row in ([1, -2, 3, 4, 0, 9],)]  # fmt: skip
    tables.append(number(3, 8) + number(3, 4) + number(1, 4) + number(1, 4) + number(2, 4) + b"\xff\xff\xff\xfd")
    digests = b"".join(hashlib.sha256(table).digest() for table in tables)
    parts = [
        b"SAGG\x01" + number(32, 2),
        b"\x03" + framed(b"a task") + b"\x01" + b"a" * 32 + bytes(44) + bytes(64) + framed(LAYOUT.encode()),
        b"\x01\x02" + hashlib.sha256(b"secagg/1/codeword-tables" + framed(digests)).digest(),
        number(3, 4)
        + number(9, 4)
        + number(2, 2)
        + number(0, 2)
        + number(0, 2)
        + number(0, 5)
        + number(1_800_000_000, 5),
    ]
    variances = [(5, 1), (7, 2), (9, 1), (1, 4)]
    noise = b"\x01\x02" + number(6, 4) + number(4, 4)
    noise += b"".join(number(top, 16) + number(bottom, 16) for top, bottom in variances)
    noise += number(2, 4) + number(30, 5) + number(40, 5)
    assert configuration().encode() == b"".join(parts) + b"\0"
    assert KINDS["noised"].encode() == b"".join(parts) + noise
    start = b"SAGG\x01" + number(40, 2) + b"\x03" + framed(KINDS["noised"].encode())
    assert start_of(KINDS["noised"]) == start + number(1, 4) + number(2, 4) + b"".join(map(framed, tables))


@pytest.mark.parametrize("kind", KINDS)
def test_a_start_is_read_back_with_its_own_tables_and_no_others(kind: str) -> None:
    original = KINDS[kind]
    request = start_of(original)
    again = started_by(request)
    assert again.context == original.context
    assert tables_digest(again.tables) == tables_digest(original.tables)
    for length in range(len(request)):
        with pytest.raises(MalformedMessage):
            started_by(request[:length])
    others = ((CodewordTable(4, TABLES[0][0].entries),),)
    for tables in (others, (TABLES[0][:1],), (), (*TABLES, ()), ((),)):
        if tables_digest(tables) != tables_digest(original.tables):
            with pytest.raises(MalformedMessage, match="different codebooks" if original.tables else "does not use"):
                started_by(start_of(with_tables(original, tables)))
    with pytest.raises(MalformedMessage) as caught:
        started_by(request + b"\0")
    assert caught.value.reason is Reason.TRAILING_BYTES


def with_tables(configuration: EnclaveConfiguration, tables: Any) -> Any:
    """Return what looks like a configuration and has other tables than it names."""
    return SimpleNamespace(encode=configuration.encode, tables=tables)


@pytest.mark.parametrize("kind", KINDS)
def test_the_digest_is_of_the_encoding_under_its_label(kind: str) -> None:
    encoded = KINDS[kind].encode()
    statement = b"secagg/1/enclave-configuration" + len(encoded).to_bytes(4, "big") + encoded
    assert KINDS[kind].context.digest == hashlib.sha256(statement).digest()


def swapped(kind: str, old: bytes, new: bytes) -> bytes:
    encoded = KINDS[kind].encode()
    assert encoded.count(old) == 1
    return encoded.replace(old, new)


def fraction(top: int, bottom: int) -> bytes:
    return top.to_bytes(16, "big") + bottom.to_bytes(16, "big")


@pytest.mark.parametrize(("top", "bottom"), [(14, 4), (0, 1), (7, 0), (0, 0), ((1 << 128) - 1, 1), (1, (1 << 128) - 1)])
def test_a_variance_is_in_lowest_terms_and_in_range(top: int, bottom: int) -> None:
    altered = swapped("noised", fraction(7, 2), fraction(top, bottom))
    with pytest.raises(MalformedMessage) as caught:
        read_back(altered)
    assert caught.value.reason is Reason.NOT_CANONICAL


def test_a_configuration_has_a_greatest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = KINDS["noised"].encode()
    entries = 4 * sum(table.entries.size for table in TABLES[0])
    monkeypatch.setattr(configuration_module, "MAXIMUM_CONFIGURATION_BYTES", len(encoded) + entries)
    assert read_back(encoded).encode() == encoded
    monkeypatch.setattr(configuration_module, "MAXIMUM_CONFIGURATION_BYTES", len(encoded) + entries - 1)
    with pytest.raises(InvalidParameters, match="use smaller codebooks"):
        replace(KINDS["noised"])
    with pytest.raises(MalformedMessage, match="use smaller codebooks"):
        read_back(encoded)
    bare = KINDS["only rings"].encode()
    for most in (len(bare), len(bare) - 1):
        monkeypatch.setattr(configuration_module, "MAXIMUM_CONFIGURATION_BYTES", most)
        with nullcontext() if most == len(bare) else pytest.raises(MalformedMessage, match="the limit is"):
            assert read_back(bare).encode() == bare


def test_tables_are_limited_in_all_segments_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host could otherwise name the limit once for each segment."""
    request = start_of(KINDS["decoded sums"])
    monkeypatch.setattr(configuration_module, "_MAXIMUM_TABLES", 1)
    with pytest.raises(MalformedMessage, match="at most 1 tables"):
        started_by(request)


# --- Ranges -----------------------------------------------------------------------------------------------------------

EDGES: dict[str, tuple[list[Any], list[Any]]] = {
    "message_form": ([3], [0, 2, 4, -1, 256, None]),
    "task": ([b"t", b"t" * 256], [b"", b"t" * 257, "text", bytearray(b"t")]),
    "authority": ([b"\1" * 32], [b"", b"a" * 31, b"a" * 33, bytearray(32), None]),
    "minimum_cohort": ([2, 9], [1, 0, -1, 10, True, 3.0, None]),
    "maximum_cohort": ([3, 1 << 20], [2, 0, 1 << 32, 9.0, None]),
    "expiry": ([1, 253402300799], [0, -1, 253402300800, (1 << 40) - 1, 1 << 40, 1.5, None]),
    "standing": ([Standing(number=1 << 32, revoked=(3, 7)), NO_STANDING], [None, b""]),
    "codeword_bound": ([0, 7, (1 << 40) - 1], [-1, 1 << 40, 7.0, True, None]),
    "max_norms": (
        [(), (7, 0), (1, (1 << 40) - 1)],
        [(0, 0), (7,), (1, 2, 3), [7, 0], (-1, 7), (1 << 40, 7), (True, 7), (7.0, 7), None],
    ),
    "zero_points": (
        [(), (7, 0), (-1, 7), (58254, -7)],
        [(0, 0), (7,), [7, 0], (0, 8), (0, -8), (58255, 1), (1.0, 7), (True, 7), None],
    ),
    "oldest": ([0, 1, 1023], [-1, 1024, (1 << 16) - 1, 1.0, True, None]),
    "tables": (
        [TABLES],
        [(), (TABLES[0][:1],), (*TABLES, *TABLES), [TABLES[0]], None, 5, (TABLES[0][0],), (list(TABLES[0]),), (None,)],
    ),
    "suite": (list(Suite), []),
    "accumulation": (list(Accumulation), []),
    "form": ([ReleaseForm.HISTOGRAM], []),
    "layout": ([replace(LAYOUT, version=b"w" * 32), Layout((RingSegment(21, 7), *LAYOUT.segments[1:]))], []),
    "noise": (
        [
            replace(NOISE, kind=NoiseKind.DISCRETE_GAUSSIAN),
            replace(NOISE, variances=(Fraction(5), Fraction(9), Fraction(7, 2), Fraction(1, 5))),
            replace(NOISE, l2_bounds=(40, 30), releases_per_client=7),
        ],
        [],
    ),
}
BESIDE: dict[str, dict[str, Any]] = {"form": {"tables": ()}, "zero_points": {"max_norms": (7, 0)}}
VALID = [(name, value) for name, (good, _) in EDGES.items() for value in good]
INVALID = [(name, value) for name, (_, bad) in EDGES.items() for value in bad]


@pytest.mark.parametrize(("name", "value"), VALID)
def test_the_ends_of_every_range_are_accepted_and_read_back(name: str, value: Any) -> None:
    changes: dict[str, Any] = {name: value} | BESIDE.get(name, {})
    made = configuration(**changes)
    again = read_back(made.encode())
    assert again.context == made.context
    assert getattr(again, name) == value


def test_every_field_is_read_back() -> None:
    assert EDGES.keys() == {field.name for field in fields(EnclaveConfiguration) if field.init}


@pytest.mark.parametrize(("name", "value"), INVALID)
def test_whatever_lies_beyond_is_refused(name: str, value: Any) -> None:
    changes: dict[str, Any] = {name: value} | BESIDE.get(name, {})
    with pytest.raises((InvalidParameters, Misuse)):
        configuration(**changes)


@pytest.mark.parametrize("name", ["suite", "layout", "form", "accumulation"])
def test_names_of_choices_are_of_their_own_types(name: str) -> None:
    for wrong in ("x25519-aes128", 1, None):
        changes: dict[str, Any] = {name: wrong}
        with pytest.raises(Misuse, match="has a wrong type"):
            configuration(**changes)


REFUSED: list[tuple[dict[str, Any], type[SecAggError], str]] = [
    ({"authority": NO_AUTHORITY}, InvalidParameters, "authority"),
    ({"noise": replace(NOISE, variances=(Fraction(1),) * 3)}, InvalidParameters, "3 variances"),
    *(
        (
            {"form": ReleaseForm.HISTOGRAM, "tables": (), "noise": replace(NOISE, variances=(Fraction(1),) * count)},
            InvalidParameters,
            f"{count} variances",
        )
        for count in (2, 4)
    ),
    ({"noise": replace(NOISE, l2_bounds=(1,))}, InvalidParameters, "2 ring segments"),
    ({"form": ReleaseForm.HISTOGRAM}, InvalidParameters, "leave tables empty"),
    ({"layout": RINGS}, InvalidParameters, "leave tables empty"),
    (
        {"tables": (), "noise": replace(NOISE, variances=NOISE.variances[:2])},
        InvalidParameters,
        "tables must be a tuple of 1 tuples",
    ),
]


@pytest.mark.parametrize(("changes", "kind", "saying"), REFUSED)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], kind: type[SecAggError], saying: str) -> None:
    with pytest.raises(kind, match=saying):
        configuration(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": 1},
        {"variances": [Fraction(1)]},
        {"variances": (1,)},
        {"variances": (0.5,)},
        {"variances": (Fraction(0),)},
        {"variances": (Fraction(-1),)},
        {"variances": (Fraction((1 << 30) + 1),)},
        {"kind": NoiseKind.DISCRETE_GAUSSIAN, "variances": (Fraction(1 << 80),)},
        {"l2_bounds": [1]},
        {"l2_bounds": (0, 1)},
        {"l2_bounds": (1 << 40, 1)},
        {"l2_bounds": (1.0, 1)},
        {"releases_per_client": 0},
        {"releases_per_client": 1 << 32},
        {"releases_per_client": True},
    ],
)
def test_noise_is_of_positive_fractions_and_integers(changes: dict[str, Any]) -> None:
    with pytest.raises((InvalidParameters, Misuse)):
        replace(NOISE, **changes)


# --- What follows from it ---------------------------------------------------------------------------------------------


def test_noised_sums_have_room_for_the_sum_and_ten_deviations() -> None:
    made = KINDS["noised"]
    assert made.noise is not None
    for position, table in enumerate(TABLES[0], start=1):
        segment, deviation = made.released.segments[position], float(made.noise.variances[position]) ** 0.5
        assert isinstance(segment, RingSegment)
        assert segment.length == table.blocks * table.width
        assert segment.ring.greatest >= 9 * table.largest + 10 * deviation
    assert made.released.version == summed_layout(LAYOUT, TABLES, 9).version


def test_the_noise_of_a_ring_segment_does_not_widen_codebooks() -> None:
    """Here the wide ring's noise alone would take the sums of small codewords beyond 64 bits."""
    layout = Layout((RingSegment(64, 6), IndexSegment(3, 4)))
    tables = ((CodewordTable(4, np.array([[1], [0], [1]], dtype=np.int64)),),)
    noise = replace(
        NOISE, kind=NoiseKind.DISCRETE_GAUSSIAN, variances=(Fraction((1 << 80) - 1), Fraction(4)), l2_bounds=(9,)
    )
    released = configuration(layout=layout, tables=tables, noise=noise).released
    assert released.require_rings()[1].modulus_bits <= 16


def test_noised_histograms_have_room_for_the_counts_and_ten_deviations() -> None:
    released = KINDS["noised histograms"].released
    counts = released.segments[1]
    assert isinstance(counts, RingSegment)
    assert (released.version, counts.length) == (LAYOUT.version, 4 * 3)
    assert counts.ring.greatest >= 9 + 10 * 4
    assert RingSegment(counts.modulus_bits - 1, 1).ring.greatest < 9 + 10 * 5


def test_tables_are_of_their_own_types_also_where_none_are_needed_or_a_bound_is_asked_of_them() -> None:
    with pytest.raises(Misuse, match="tables must be a tuple"):
        configuration(form=ReleaseForm.HISTOGRAM, tables=[])
    with pytest.raises(InvalidParameters, match="must be a CodewordTable"):
        configuration(tables=(("a table",),), codeword_bound=7)


def test_as_many_tables_as_there_may_be_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    request = start_of(KINDS["decoded sums"])
    monkeypatch.setattr(configuration_module, "_MAXIMUM_TABLES", len(TABLES[0]))
    assert started_by(request).context == KINDS["decoded sums"].context


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_or_extended_encoding_is_refused(kind: str) -> None:
    encoded = KINDS[kind].encode()
    for length in range(len(encoded)):
        with pytest.raises(MalformedMessage):
            read_back(encoded[:length])
    with pytest.raises(MalformedMessage) as caught:
        read_back(encoded + b"\0")
    assert caught.value.reason is Reason.TRAILING_BYTES
