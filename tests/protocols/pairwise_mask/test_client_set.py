"""Sets of clients as bits: the encoding against a definition written a second time, and everything refused."""

import hashlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from secagg.crypto.labels import Label
from secagg.errors import InvalidParameters, MalformedMessage, Reason
from secagg.identifiers import SessionContext
from secagg.protocols.pairwise_mask.configuration import ClientSet, set_bytes
from secagg.wire import MessageKind, Reader, Writer

CONTEXT = SessionContext(bytes(range(32)))

populations_and_positions = st.integers(1, 70).flatmap(
    lambda population: st.tuples(st.just(population), st.frozensets(st.integers(0, population - 1)))
)


def read_back(encoded: bytes, population: int) -> ClientSet:
    reader = Reader(Writer(MessageKind.SURVIVOR_SET).fixed(encoded, len(encoded)).finish(), MessageKind.SURVIVOR_SET)
    members = ClientSet.read(reader, population)
    reader.finish()
    return members


@given(populations_and_positions)
@example((8, frozenset()))
def test_a_set_holds_its_positions_and_nothing_else(drawn: tuple[int, frozenset[int]]) -> None:
    population, positions = drawn
    members = ClientSet.of(population, positions)
    assert list(members) == sorted(positions)
    assert len(members) == len(positions)
    assert [position in members for position in range(population)] == [p in positions for p in range(population)]
    assert population not in members


@given(populations_and_positions)
def test_position_zero_is_the_lowest_bit_of_the_first_byte(drawn: tuple[int, frozenset[int]]) -> None:
    population, positions = drawn
    encoded = ClientSet.of(population, positions).encode()
    assert len(encoded) == set_bytes(population) == -(-population // 8)
    bits = "".join(f"{byte:08b}"[::-1] for byte in encoded)
    assert {place for place, bit in enumerate(bits) if bit == "1"} == positions


@given(st.integers(1, 20), st.data())
def test_whatever_decodes_encodes_to_the_same_bytes(population: int, data: st.DataObject) -> None:
    encoded = data.draw(st.binary(min_size=set_bytes(population), max_size=set_bytes(population)))
    try:
        members = read_back(encoded, population)
    except MalformedMessage:
        assert int.from_bytes(encoded, "little") >> population
        return
    assert members.encode() == encoded


@pytest.mark.parametrize("population", [1, 7, 9, 15, 17])
def test_a_bit_beyond_the_population_is_refused(population: int) -> None:
    for beyond in range(population, 8 * set_bytes(population)):
        encoded = (1 << beyond).to_bytes(set_bytes(population), "little")
        with pytest.raises(MalformedMessage) as caught:
            read_back(encoded, population)
        assert caught.value.reason is Reason.NOT_CANONICAL


@pytest.mark.parametrize("bits", [-1, 1 << 5, (1 << 5) + 1])
def test_a_set_is_not_made_with_positions_beyond_its_population(bits: int) -> None:
    with pytest.raises(InvalidParameters, match="5 clients"):
        ClientSet(5, bits)


@given(populations_and_positions, st.data())
def test_a_subset_is_one_of_the_same_population(drawn: tuple[int, frozenset[int]], data: st.DataObject) -> None:
    population, positions = drawn
    others = data.draw(st.frozensets(st.integers(0, population - 1)))
    left, right = ClientSet.of(population, positions), ClientSet.of(population, others)
    assert left.issubset(right) == (positions <= others)
    assert left.issubset(ClientSet.of(population, positions | others))
    assert not left.issubset(ClientSet.of(population + 1, positions | others))


def test_the_digest_is_the_documented_hash() -> None:
    parts = (CONTEXT.digest, (11).to_bytes(4, "big"), b"\x05\x04")
    statement = Label.CLIENT_SET.value + b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    assert ClientSet.of(11, [0, 2, 10]).digest(CONTEXT) == hashlib.sha256(statement).digest()
