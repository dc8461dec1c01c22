"""The roster: its unique encoding, and the context that covers everything sent to a client."""

import hashlib
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from secagg.choices import Topology
from secagg.contract import Layout, RingSegment
from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters, MalformedMessage, Reason, ThresholdNotMet
from secagg.identifiers import ClientId, SessionContext
from secagg.parameters import SecurityMode
from secagg.protocols.pairwise_mask.configuration import (
    NO_AUTHORITY,
    ClientSet,
    SessionConfiguration,
    decode_clients,
    encode_clients,
    entry_digest,
    roster_of,
    set_bytes,
)
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.pairwise_sessions import plan_of

GREATEST = (1 << 64) - 1
ROOT = b"r" * 32
OPENING = b"o" * 32

telling_ids = st.integers(0, 300) | st.integers(0, GREATEST) | st.integers(GREATEST - 300, GREATEST)
lists = st.frozensets(telling_ids, max_size=12).map(lambda values: [ClientId(value) for value in sorted(values)])


def some_configuration(*, mode: SecurityMode = SecurityMode.SEMI_HONEST, attempt: int = 0) -> SessionConfiguration:
    return plan_of(
        Layout((RingSegment(8, 3),)),
        InsecureSeededCoins(b"plan"),
        population=6,
        corrupted=0,
        dropped=1,
        mode=mode,
        topology=Topology.FULL,
        authority=b"a" * 32 if mode is SecurityMode.ACTIVE else NO_AUTHORITY,
        attempt=attempt,
    ).configuration


@pytest.mark.parametrize("topology", Topology)
def test_a_cohort_that_is_too_small_is_said_to_be_split_only_if_it_is(topology: Topology) -> None:
    """Unmasking reveals the sum of each part; an operator invites more clients, or plans for more dropouts."""
    is_sparse = topology is Topology.SPARSE
    agreed = replace(some_configuration(), topology=topology, degree=2 * is_sparse, threshold=2, minimum_cohort=3)
    roster = roster_of(agreed, encode_clients([ClientId(number) for number in range(6)]), ROOT, OPENING)
    opposite = next(at for at in range(1, 6) if len(roster.graph.parts((0, at))) > 1) if is_sparse else 1
    roster.require_cohort(ClientSet.of(6, range(6)), "upload")
    why = " in one part of a graph that dropouts have split" if is_sparse else ""
    with pytest.raises(ThresholdNotMet, match=f"3 must upload, {1 if is_sparse else 2} did{why}$"):
        roster.require_cohort(ClientSet.of(6, (0, opposite)), "upload")


# --- The list ---------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=24))
def test_whatever_decodes_is_strictly_increasing_and_encodes_to_the_same_bytes(encoded: bytes) -> None:
    try:
        clients = decode_clients(encoded)
    except MalformedMessage:
        return
    assert list(clients) == sorted(set(clients))
    assert encode_clients(clients) == encoded


def test_the_bytes_of_a_list_are_pinned() -> None:
    assert encode_clients([ClientId(0), ClientId(1), ClientId(2)]) == b"\x00\x00\x00"
    assert encode_clients([ClientId(127), ClientId(256)]) == b"\x7f\x80\x01"
    assert encode_clients([ClientId(GREATEST)]) == b"\xff" * 9 + b"\x01"
    assert encode_clients([]) == b""


@pytest.mark.parametrize(
    ("encoded", "sentence"),
    [
        (b"\x80\x00", "ends in zeros"),
        (b"\xff\x80\x00", "ends in zeros"),
        (b"\xff" * 9 + b"\x02", "is 2\\^64"),
        (b"\xff" * 9 + b"\x01\x00", "is 2\\^64"),
        (b"\x80" * 10, "longer than 64"),
        (b"\xff" * 400, "longer than 64"),
    ],
)
def test_a_second_encoding_and_an_id_out_of_range_are_refused(encoded: bytes, sentence: str) -> None:
    with pytest.raises(MalformedMessage, match=sentence) as caught:
        decode_clients(encoded)
    assert caught.value.reason is Reason.NOT_CANONICAL


def test_a_list_of_more_than_the_limit_is_refused() -> None:
    encoded = encode_clients([ClientId(value) for value in range(3)])
    assert len(decode_clients(encoded, 3)) == 3
    with pytest.raises(MalformedMessage, match="more than 2 clients") as caught:
        decode_clients(encoded, 2)
    assert caught.value.reason is Reason.LENGTH_OVER_LIMIT


# --- The roster -------------------------------------------------------------------------------------------------------


def test_the_context_is_the_documented_hash() -> None:
    configuration = some_configuration()
    clients = [ClientId(value) for value in (3, 5, 700, 1 << 60, GREATEST)]
    encoded = encode_clients(clients)
    roster = roster_of(configuration, encoded, ROOT, OPENING)
    attempt = configuration.context.digest
    listed = hashlib.sha256(bind(Label.CLIENT_LIST, encoded)).digest()
    rho = hashlib.sha256(bind(Label.ROSTER, (5).to_bytes(4, "big"), listed, ROOT)).digest()
    seed = hashlib.sha256(bind(Label.GRAPH_SEED, attempt, rho, OPENING)).digest()
    assert roster.graph.seed == seed
    assert roster.context.digest == hashlib.sha256(bind(Label.SESSION_CONTEXT, attempt, rho, seed)).digest()
    assert roster.clients == tuple(clients)
    assert roster.population == 5


@given(lists, telling_ids)
def test_a_client_is_found_where_it_stands(clients: list[ClientId], wanted: int) -> None:
    clients = (clients + [ClientId(GREATEST // 2 + more) for more in range(4)])[:4]
    if clients != sorted(set(clients)):
        return
    roster = roster_of(some_configuration(), encode_clients(clients), ROOT, OPENING)
    for position, client in enumerate(clients):
        assert roster.position_of(client) == position
    assert (roster.position_of(ClientId(wanted)) is None) == (ClientId(wanted) not in clients)
    assert list(roster.set_of([1, 3])) == [1, 3]


@pytest.mark.parametrize("population", [0, 1])
def test_a_list_too_short_for_a_graph_is_refused(population: int) -> None:
    clients = encode_clients([ClientId(value) for value in range(population)])
    with pytest.raises(InvalidParameters):
        roster_of(some_configuration(), clients, ROOT, OPENING)


def test_an_entry_is_bound_to_its_client() -> None:
    assert len({entry_digest(ClientId(c), entry) for c in (1, 2) for entry in (b"", b"one", b"two")}) == 6
    statement = bind(Label.ROSTER_ENTRY, ClientId(7).encode(), b"keys")
    assert entry_digest(ClientId(7), b"keys") == hashlib.sha256(statement).digest()


# --- Sets of clients --------------------------------------------------------------------------------------------------


CONTEXT = SessionContext(bytes(range(32)))

populations_and_positions = st.integers(1, 70).flatmap(
    lambda population: st.tuples(st.just(population), st.frozensets(st.integers(0, population - 1)))
)


def read_back(encoded: bytes, population: int) -> ClientSet:
    return ClientSet.decode(encoded, population)


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
def test_a_decoded_message_encodes_to_the_same_bytes(population: int, data: st.DataObject) -> None:
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
