"""Who takes part: the one encoding of the list, and that everything shown to a client is under the context."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.contract import Layout, RingSegment
from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters, MalformedMessage, Reason
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.protocols.pairwise_mask.configuration import (
    NO_AUTHORITY,
    SessionConfiguration,
    decode_clients,
    encode_clients,
    entry_digest,
    roster_of,
)
from secagg.protocols.pairwise_mask.graph import Topology
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
        (b"\xff" * 9 + b"\x02", "not below 2\\^64"),
        (b"\xff" * 9 + b"\x01\x00", "not below 2\\^64"),
        (b"\x80" * 10, "too long"),
        (b"\xff" * 400, "too long"),
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
