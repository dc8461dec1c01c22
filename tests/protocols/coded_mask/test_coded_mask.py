"""LightSecAgg: exact sums with dropouts at every stage, what T pieces tell, and what a server that lies learns."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.contract import IndexSegment, Layout, Payload, RingSegment, ideal_aggregate
from secagg.errors import (
    AuthenticationFailed,
    CapacityExceeded,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerError,
    PeerMisbehaved,
    ThresholdNotMet,
    UnexpectedMessage,
)
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import Suite
from secagg.protocols.coded_mask.client import Client
from secagg.protocols.coded_mask.client import State as ClientState
from secagg.protocols.coded_mask.client import _elements as elements_of  # pyright: ignore[reportPrivateUsage]
from secagg.protocols.coded_mask.configuration import Configuration
from secagg.protocols.coded_mask.field import (
    FIELD,
    decode_vector,
    encode_vector,
    mask_from,
    pieces_of,
    uniform,
)
from secagg.protocols.coded_mask.messages import decode_body, decode_entries, encode_body, encode_entries
from secagg.protocols.coded_mask.run import run
from secagg.protocols.coded_mask.server import TRANSITIONS, Server, State
from secagg.session.roles import Subject
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.wire import MessageKind

USUAL = Configuration(
    task=b"a task",
    round_number=3,
    nonce=bytes(16),
    model_digest=bytes(32),
    application_digest=bytes(32),
    suite=Suite.CLASSIC,
    layout=Layout((RingSegment(20, 11), RingSegment(5, 3))),
    population=9,
    privacy=3,
    target=6,
)


def ids(configuration: Configuration) -> list[ClientId]:
    return [ClientId(10 + 3 * number) for number in range(configuration.population)]


def payload_of(configuration: Configuration, client: ClientId) -> Payload:
    generator = np.random.default_rng(client.value)
    rings = configuration.layout.require_rings()
    drawn = (generator.integers(one.ring.least, one.ring.greatest, one.length, endpoint=True) for one in rings)
    vectors = tuple(one.ring.from_integers(values) for one, values in zip(rings, drawn, strict=True))
    return Payload(configuration.layout, vectors)


def weight_of(configuration: Configuration, client: ClientId) -> int:
    return 1 + client.value % configuration.maximum_weight


def client_of(configuration: Configuration, client: ClientId) -> Client:
    def source(_: Configuration) -> tuple[Payload, int]:
        return payload_of(configuration, client), weight_of(configuration, client)

    return Client(client, configuration, source, InsecureSeededCoins(client.encode()))


def clients_of(configuration: Configuration) -> list[Client]:
    return [client_of(configuration, client) for client in ids(configuration)]


def is_exact(configuration: Configuration, server: Server, found: bytes) -> bool:
    counted = sorted(server.survivors)
    payloads = [payload_of(configuration, client) for client in counted]
    weights = [weight_of(configuration, client) for client in counted]
    return found == ideal_aggregate(configuration.layout, payloads, weights).encode()


@pytest.mark.parametrize("stage", [State.PIECES, State.INPUTS, State.ANSWERS])
@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize("weight", [1, 7])
def test_sums_are_exact_whoever_drops_out(stage: State, suite: Suite, weight: int) -> None:
    configuration = replace(USUAL, suite=suite, maximum_weight=weight)
    gone = frozenset(ids(configuration)[1:4])
    aggregate, server = run(configuration, clients_of(configuration), dropouts={stage: gone})
    assert is_exact(configuration, server, aggregate.encode())
    assert (gone <= server.survivors) is (stage is State.ANSWERS)


@pytest.mark.parametrize("bits", [5, 20, 31, 40, 64])
@pytest.mark.parametrize("population", [3, 9, 1000])
def test_sums_of_limbs_tell_no_more_than_the_sum(bits: int, population: int) -> None:
    """How many clients have a value below zero was seen in the sum of the highest limb."""
    configuration = replace(
        USUAL, layout=Layout((RingSegment(bits, 1),)), population=population, target=3, privacy=1, maximum_weight=3
    )
    (segment,), reach = configuration.layout.require_rings(), 1 << min(bits - 3, configuration.limb_bits - 3)
    seen = set[bytes]()
    for values in ((0, 0, 0, 0), (-1, 1, 0, 0), (-reach, reach, -1, 1), (reach - 1, 1, 0, -reach)):
        payloads = [Payload(configuration.layout, (segment.ring.from_integers([value]),)) for value in values]
        total = sum(elements_of(configuration, payload, 3) for payload in payloads)
        seen.add(np.asarray(total).tobytes())
    assert len(seen) == 1


@pytest.mark.parametrize("stage", [State.KEYS, State.PIECES, State.INPUTS, State.ANSWERS])
def test_one_dropout_more_releases_nothing(stage: State) -> None:
    with pytest.raises(ThresholdNotMet):
        run(USUAL, clients_of(USUAL), dropouts={stage: frozenset(ids(USUAL)[:4])})


@settings(max_examples=20)
@given(st.data())
def test_sums_are_exact_over_configurations(data: st.DataObject) -> None:
    population = data.draw(st.integers(3, 12))
    target = data.draw(st.integers(3, population))
    configuration = replace(
        USUAL,
        population=population,
        target=target,
        privacy=data.draw(st.integers(1, target - 2)),
        layout=Layout((RingSegment(data.draw(st.integers(1, 64)), data.draw(st.integers(1, 40))),)),
    )
    gone = frozenset(data.draw(st.permutations(ids(configuration)))[target:])
    stage = data.draw(st.sampled_from([State.PIECES, State.INPUTS, State.ANSWERS]))
    aggregate, server = run(configuration, clients_of(configuration), dropouts={stage: gone})
    assert is_exact(configuration, server, aggregate.encode())


def test_any_u_pieces_give_the_mask_and_any_t_are_uniform() -> None:
    """The uniform rows reach any T pieces through an invertible matrix, so these are uniform whatever the mask."""
    privacy, target, clients = 2, 4, 6
    parts = uniform(4 * 5, InsecureSeededCoins(b"parts")).reshape(4, 5)
    pieces = pieces_of(parts, clients)
    for chosen in combinations(range(clients), target):
        assert np.array_equal(mask_from(pieces[list(chosen)], chosen, target - privacy), parts[: target - privacy])
    units = np.eye(target, dtype=np.int64)
    code = pieces_of(units, clients)
    for first, second in combinations(range(clients), privacy):
        a, b = (code[row, target - privacy :].tolist() for row in (first, second))
        assert (a[0] * b[1] - a[1] * b[0]) % FIELD != 0


@given(st.integers(0, 300))
def test_drawn_elements_are_below_the_modulus(count: int) -> None:
    drawn = uniform(count, InsecureSeededCoins(b"drawn"))
    assert drawn.size == count
    assert np.array_equal(decode_vector(encode_vector(drawn), count), drawn)
    assert not count or 0 <= int(drawn.min()) <= int(drawn.max()) < FIELD


class WatchedCoins:
    """Coins that keep what they handed out."""

    def __init__(self) -> None:
        self.handed_out = list[bytearray]()

    def draw(self, count: int) -> bytearray:
        self.handed_out.append(InsecureSeededCoins(b"watched").draw(count))
        return self.handed_out[-1]


def test_coins_are_overwritten() -> None:
    coins = WatchedCoins()
    uniform(50, coins)
    assert coins.handed_out
    assert not any(any(buffer) for buffer in coins.handed_out)


class AllOnes:
    """Coins whose every word is the modulus."""

    def draw(self, count: int) -> bytearray:
        return bytearray(b"\xff" * count)


def test_coins_that_are_not_uniform() -> None:
    with pytest.raises(Misuse, match="not uniform"):
        uniform(3, AllOnes())


@pytest.mark.parametrize("data", [b"", bytes(7), bytes(9), b"\xff" * 8, (FIELD).to_bytes(4, "little") * 2])
def test_vectors_have_one_encoding(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_vector(data, 2)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"task": b""}, "a task has a name"),
        ({"model_digest": b""}, "and a digest 32"),
        ({"application_digest": b""}, "and a digest 32"),
        ({"nonce": b""}, "a nonce has 16 bytes"),
        ({"task": b"t" * 257}, "a task has a name"),
        ({"population": 1}, "2 to 1024"),
        ({"population": 2}, "1 <= privacy <= target - 2"),
        ({"population": 1025}, "2 to 1024"),
        ({"privacy": 0}, "1 <= privacy <= target - 2"),
        ({"privacy": 5}, "1 <= privacy <= target - 2"),
        ({"target": 10}, "1 <= privacy <= target - 2"),
        ({"maximum_weight": 0}, "a weight is"),
        ({"maximum_weight": 1 << 20}, "a weight is"),
        ({"layout": Layout((IndexSegment(4, 1),))}, "holds indices"),
        ({"layout": Layout((RingSegment(20, 3, 4),))}, "fine bits"),
    ],
)
def test_configurations_that_open_nothing(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidParameters, match=sentence):
        replace(USUAL, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [{"task": b"t"}, {"task": b"t" * 256}, {"population": 1024}, {"target": 9}, {"maximum_weight": (1 << 20) - 1}],
)
def test_the_ends_of_every_range_are_accepted(change: dict[str, object]) -> None:
    configuration = replace(USUAL, **change)  # type: ignore[arg-type]
    assert Configuration.decode(configuration.encode()) == configuration


def test_an_offer_is_about_the_clients_own_subject() -> None:
    subject = Subject(task=USUAL.task, round_number=3, layout=USUAL.layout, capacity=9)
    configuration = replace(USUAL, application_digest=subject.terms_digest)
    configuration.require_subject(subject)
    configuration.require_subject(replace(subject, model_digest=bytes(32)))
    with pytest.raises(InvalidParameters, match="another model"):
        configuration.require_subject(replace(subject, model_digest=b"m" * 32))
    with pytest.raises(CapacityExceeded):
        replace(configuration, maximum_weight=2).require_subject(subject)


def test_an_update_that_was_changed_after_it_was_made_is_checked_again() -> None:
    payload = payload_of(USUAL, ClientId(10))
    payload.values[1][:] = 1 << 5
    with pytest.raises(CapacityExceeded):
        USUAL.require_fitting(payload, 1)


def test_an_offer_has_one_encoding() -> None:
    offer = USUAL.encode()
    assert Configuration.decode(offer) == USUAL
    for altered in (offer[:-1], offer + b"\0", offer[:-1] + b"\0", offer.replace(b"a task", b"A task")):
        try:
            assert Configuration.decode(altered).encode() == altered
        except MalformedMessage:
            continue


def stages(configuration: Configuration) -> tuple[Server, dict[ClientId, Client], dict[ClientId, bytes]]:
    """Return a server that has all masked inputs, its clients, and what it would send them next."""
    server, clients = Server(configuration), {client.client: client for client in clients_of(configuration)}
    for name, client in clients.items():
        server.receive(name, client.advertisement)
    for _ in range(2):
        for name, message in server.close_stage().items():
            server.receive(name, clients[name].receive(message))
    return server, clients, server.close_stage()


def test_what_a_client_refuses() -> None:
    server, clients, asked = stages(USUAL)
    del server
    first = clients[ids(USUAL)[0]]
    others = ids(USUAL)[1:]
    kind = MessageKind.CODED_MASK_SURVIVORS
    for entries in (dict.fromkeys(others[:5], b""), dict.fromkeys([*others, ClientId(1)], b"")):
        with pytest.raises(PeerMisbehaved, match="as many as must stay"):
            first.receive(encode_entries(kind, USUAL, entries))
    with pytest.raises(MalformedMessage, match="clients alone"):
        first.receive(encode_entries(kind, USUAL, dict.fromkeys(others, b"x")))
    with pytest.raises(PeerMisbehaved, match="another sum"):
        first.receive(encode_entries(kind, replace(USUAL, round_number=4), dict.fromkeys(others, b"")))
    first.receive(asked[first.client])
    with pytest.raises(UnexpectedMessage):
        first.receive(asked[first.client])


def test_a_roster_has_the_clients_own_key_and_as_many_as_must_stay() -> None:
    clients = clients_of(USUAL)
    keys = {one.client: decode_body(MessageKind.CODED_MASK_KEY, USUAL, one.advertisement) for one in clients}
    first, *others = clients
    stolen = keys | {first.client: keys[others[0].client]}
    few = {one.client: keys[one.client] for one in clients[:5]}
    missing = {one.client: keys[one.client] for one in others}
    for roster in (missing, stolen, few):
        with pytest.raises(PeerMisbehaved, match="as many as must stay"):
            first.receive(encode_entries(MessageKind.CODED_MASK_ROSTER, USUAL, roster))
    enough = {one.client: keys[one.client] for one in clients[:6]}
    first.receive(encode_entries(MessageKind.CODED_MASK_ROSTER, USUAL, enough))


def delivered_to(number: int) -> tuple[Client, dict[ClientId, bytes]]:
    """Return a client that awaits pieces, and those that the server has for it."""
    server, clients = Server(USUAL), {client.client: client for client in clients_of(USUAL)}
    for name, client in clients.items():
        server.receive(name, client.advertisement)
    for name, message in server.close_stage().items():
        server.receive(name, clients[name].receive(message))
    name = ids(USUAL)[number]
    return clients[name], decode_entries(MessageKind.CODED_MASK_DELIVERY, USUAL, server.close_stage()[name])


def test_a_delivery_has_the_clients_own_piece_and_as_many_as_must_stay_all_of_the_roster() -> None:
    kind, names = MessageKind.CODED_MASK_DELIVERY, ids(USUAL)
    client, pieces = delivered_to(0)
    with pytest.raises(PeerMisbehaved, match="is not on the roster"):
        client.receive(encode_entries(kind, USUAL, {ClientId(1): pieces[names[1]], **dict(list(pieces.items())[:8])}))
    for kept in (names[1:], names[:5]):
        with pytest.raises(PeerMisbehaved, match="own piece, and as many"):
            client.receive(encode_entries(kind, USUAL, {name: pieces[name] for name in kept}))
    client.receive(encode_entries(kind, USUAL, {name: pieces[name] for name in names[:6]}))


@pytest.mark.parametrize("answers", [True, False])
def test_a_client_that_leaves_holds_no_secret(*, answers: bool) -> None:
    _, clients, asked = stages(USUAL)
    client = clients[ids(USUAL)[0]]
    held: dict[str, Any] = vars(client)
    pieces, pair = list(held["_pieces"].values()), held["_pair"]
    assert len(pieces) == 9
    assert all(piece.any() for piece in pieces)
    client.receive(asked[client.client]) if answers else client.wipe()
    assert not any(vector.any() for vector in (held["_mask"], *pieces))
    assert not held["_pieces"]
    assert client.state is ClientState.DONE
    with pytest.raises(Misuse):
        pair.open("piece of a mask", bytes(58), 10, b"")


def test_a_client_that_leaves_before_its_upload_holds_no_mask() -> None:
    client, pieces = delivered_to(0)
    held: dict[str, Any] = vars(client)
    assert held["_mask"].any()
    client.wipe()
    assert not held["_mask"].any()
    with pytest.raises(UnexpectedMessage, match="nothing more"):
        client.receive(encode_entries(MessageKind.CODED_MASK_DELIVERY, USUAL, pieces))


def test_pieces_that_were_moved_do_not_open() -> None:
    server, clients = Server(USUAL), {client.client: client for client in clients_of(USUAL)}
    for name, client in clients.items():
        server.receive(name, client.advertisement)
    for name, message in server.close_stage().items():
        server.receive(name, clients[name].receive(message))
    delivered = server.close_stage()
    first, second = ids(USUAL)[:2]
    with pytest.raises(AuthenticationFailed):
        clients[first].receive(delivered[second])
    entries = decode_entries(MessageKind.CODED_MASK_DELIVERY, USUAL, delivered[first])
    entries[first], entries[second] = entries[second], entries[first]
    with pytest.raises(AuthenticationFailed):
        clients[first].receive(encode_entries(MessageKind.CODED_MASK_DELIVERY, USUAL, entries))
    del entries[first]
    with pytest.raises(PeerError):
        clients[first].receive(encode_entries(MessageKind.CODED_MASK_DELIVERY, USUAL, entries))
    clients[first].receive(delivered[first])


def test_what_a_server_refuses() -> None:
    server, clients = Server(USUAL), {client.client: client for client in clients_of(USUAL)}
    first = ids(USUAL)[0]
    with pytest.raises(UnexpectedMessage):
        server.receive(first, USUAL.encode())
    for name, client in clients.items():
        server.receive(name, client.advertisement)
    with pytest.raises(PeerMisbehaved, match="has answered") as refused:
        server.receive(first, clients[first].advertisement)
    assert refused.value.culprits == {first, ServerId()}
    for message in (USUAL.encode(), encode_body(MessageKind.CODED_MASK_INPUT, USUAL, b"")):
        with pytest.raises(UnexpectedMessage):
            server.receive(first, message)
    with pytest.raises(PeerMisbehaved, match="all places"):
        server.receive(ClientId(1), clients[first].advertisement)
    with pytest.raises(Misuse):
        server.open()
    rosters = server.close_stage()
    pieces = decode_entries(MessageKind.CODED_MASK_PIECES, USUAL, clients[first].receive(rosters[first]))
    pieces.pop(first)
    with pytest.raises(MalformedMessage, match="for each client"):
        server.receive(first, encode_entries(MessageKind.CODED_MASK_PIECES, USUAL, pieces))
    with pytest.raises(PeerMisbehaved, match="was never here"):
        server.receive(ClientId(1), encode_entries(MessageKind.CODED_MASK_PIECES, USUAL, pieces))


def test_a_sum_is_opened_once_and_its_stages_close_in_order() -> None:
    server, clients, asked = stages(USUAL)
    with pytest.raises(ThresholdNotMet):
        server.open()
    with pytest.raises(Misuse, match="by opening"):
        server.close_stage()
    for name, message in asked.items():
        server.receive(name, clients[name].receive(message))
    server.open()
    with pytest.raises(Misuse, match="opened once"):
        server.open()
    with pytest.raises(UnexpectedMessage):
        server.receive(ids(USUAL)[0], asked[ids(USUAL)[0]])
    assert [TRANSITIONS[state][1] for state in State] == [*list(State)[1:], State.DONE]


def test_a_server_that_ends_forgets_what_clients_sent() -> None:
    server, clients = Server(USUAL), {client.client: client for client in clients_of(USUAL)}
    held: dict[str, Any] = vars(server)
    for name, client in clients.items():
        server.receive(name, client.advertisement)
    for name, message in server.close_stage().items():
        server.receive(name, clients[name].receive(message))
    assert held["_sealed"]
    server.wipe()
    assert not held["_sealed"]
    server, clients, asked = stages(USUAL)
    held = vars(server)
    for name, message in asked.items():
        server.receive(name, clients[name].receive(message))
    assert held["_answers"]
    assert held["_total"].any()
    server.wipe()
    assert not held["_answers"]
    assert not held["_total"].any()


def test_a_server_that_lies_learns_an_input() -> None:
    """What is not claimed: two sets for two halves of the clients, and the difference is one mask."""
    configuration = replace(USUAL, population=8, privacy=1, target=3)
    _, clients, _ = stages(configuration)
    names, victim = ids(configuration), ids(configuration)[0]
    answers = dict[bool, list[np.ndarray]]()
    for has_victim, asked in ((True, names[2:5]), (False, names[5:])):
        entries = dict.fromkeys(names if has_victim else names[1:], b"")
        message = encode_entries(MessageKind.CODED_MASK_SURVIVORS, configuration, entries)
        answers[has_victim] = [
            decode_vector(
                decode_body(MessageKind.CODED_MASK_ANSWER, configuration, clients[name].receive(message)),
                configuration.piece_length,
            )
            for name in asked
        ]
    masks = [
        mask_from(np.stack(answers[has_victim]), positions, 2).reshape(-1)
        for has_victim, positions in ((True, (2, 3, 4)), (False, (5, 6, 7)))
    ]
    mask = (masks[0] - masks[1])[: configuration.length] % FIELD
    again = client_of(configuration, victim)
    # What the victim drew.
    assert np.array_equal(mask, again._mask)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def test_weights_that_no_clients_have() -> None:
    configuration = replace(USUAL, maximum_weight=2)
    server, clients = Server(configuration), {client.client: client for client in clients_of(configuration)}
    for name, client in clients.items():
        server.receive(name, client.advertisement)
    for name, message in server.close_stage().items():
        server.receive(name, clients[name].receive(message))
    for index, (name, message) in enumerate(server.close_stage().items()):
        upload = clients[name].receive(message)
        if not index:
            masked = decode_vector(
                decode_body(MessageKind.CODED_MASK_INPUT, configuration, upload), configuration.length
            )
            masked[-1] = (masked[-1] + 50) % FIELD
            upload = encode_body(MessageKind.CODED_MASK_INPUT, configuration, encode_vector(masked))
        server.receive(name, upload)
    for name, message in server.close_stage().items():
        server.receive(name, clients[name].receive(message))
    with pytest.raises(PeerMisbehaved, match="a client lied"):
        server.open()


@pytest.mark.parametrize(
    ("layout", "weight", "sentence"),
    [
        (Layout((RingSegment(20, 12),)), 1, "another layout"),
        (USUAL.layout, 2, r"1\.\.1"),
        (USUAL.layout, True, r"1\.\.1"),
    ],
)
def test_an_update_that_does_not_fit_leaves_no_client(layout: Layout, weight: int, sentence: str) -> None:
    server, clients = Server(USUAL), {client.client: client for client in clients_of(USUAL)}
    first = clients[ids(USUAL)[0]]

    def source(_: Configuration) -> tuple[Payload, int]:
        return payload_of(replace(USUAL, layout=layout), first.client), weight

    first.source = source
    for name, client in clients.items():
        server.receive(name, client.advertisement)
    for name, message in server.close_stage().items():
        server.receive(name, clients[name].receive(message))
    with pytest.raises(InvalidParameters, match=sentence):
        first.receive(server.close_stage()[first.client])
