"""LightSecAgg: exact sums with dropouts at every stage, what T pieces reveal, and what a malicious server learns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.contract import IndexSegment, Layout, Payload, RingSegment, ideal_aggregate
from secagg.crypto.secret import Secret
from secagg.errors import (
    AuthenticationFailed,
    CapacityExceeded,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    SecAggError,
    UnexpectedMessage,
)
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import Suite
from secagg.protocols.light_secagg.client import Client, elements_of
from secagg.protocols.light_secagg.configuration import (
    Configuration,
    decode_body,
    decode_entries,
    encode_body,
    encode_entries,
    sealing_info,
)
from secagg.protocols.light_secagg.field import (
    ELEMENT_BYTES,
    FIELD,
    decode_vector,
    encode_vector,
    mask_from,
    pieces_of,
    uniform,
)
from secagg.protocols.light_secagg.run import run
from secagg.protocols.light_secagg.server import TRANSITIONS, Server, State
from secagg.session.roles import Released, Subject
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.wire import MessageKind
from tests.harness.light_secagg_sums import answers_of, client_with, reach

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


def client_of(configuration: Configuration, client: ClientId) -> Client:
    coins, payload = InsecureSeededCoins(client.encode()), payload_of(configuration, client)
    return client_with(configuration, client, payload, coins)


def clients_of(configuration: Configuration) -> dict[ClientId, Client]:
    return {client: client_of(configuration, client) for client in ids(configuration)}


def stages(number: int, configuration: Configuration = USUAL) -> tuple[Server, dict[ClientId, Client]]:
    """Return a server that awaits a stage's answers, and its clients."""
    server, clients = Server(configuration, None), clients_of(configuration)
    reach(server, clients, number)
    return server, clients


def is_exact(configuration: Configuration, released: Released) -> bool:
    counted = sorted(released.counted)
    payloads = [payload_of(configuration, client) for client in counted]
    ideal = ideal_aggregate(configuration.layout, payloads, [1] * len(counted))
    return released.aggregate.encode() == ideal.encode()


@pytest.mark.parametrize("stage", [State.PIECES, State.INPUTS, State.ANSWERS])
@pytest.mark.parametrize("suite", Suite)
def test_sums_are_exact_whoever_drops_out(stage: State, suite: Suite) -> None:
    configuration = replace(USUAL, suite=suite)
    gone = frozenset(ids(configuration)[1:4])
    released = run(Server(configuration, None), clients_of(configuration).values(), dropouts={stage: gone})
    assert is_exact(configuration, released)
    assert (gone <= released.counted) is (stage is State.ANSWERS)


@pytest.mark.parametrize("bits", [5, 20, 31, 40, 64])
@pytest.mark.parametrize("population", [3, 9, 1000])
def test_sums_of_limbs_tell_no_more_than_the_sum(bits: int, population: int) -> None:
    """Regression: the sum of the highest limb revealed how many clients have a negative value."""
    configuration = replace(USUAL, layout=Layout((RingSegment(bits, 1),)), population=population, target=3, privacy=1)
    (segment,), reach = configuration.layout.require_rings(), 1 << min(bits - 3, configuration.limb_bits - 3)
    seen = set[bytes]()
    for values in ((0, 0, 0, 0), (-1, 1, 0, 0), (-reach, reach, -1, 1), (reach - 1, 1, 0, -reach)):
        payloads = [Payload(configuration.layout, (segment.ring.from_integers([value]),)) for value in values]
        total = sum(elements_of(configuration, payload) for payload in payloads)
        seen.add(np.asarray(total).tobytes())
    assert len(seen) == 1


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
    released = run(Server(configuration, None), clients_of(configuration).values(), dropouts={stage: gone})
    assert is_exact(configuration, released)


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
    """Coins that keep their returned buffers."""

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
    """Coins in which every word is the modulus."""

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
        ({"task": b""}, "task's name must have"),
        ({"task": b"t" * 257}, "task's name must have"),
        ({"population": 1}, "2 to 1024"),
        ({"population": 2}, "1 <= privacy <= target - 2"),
        ({"population": 1025}, "2 to 1024"),
        ({"privacy": 0}, "1 <= privacy <= target - 2"),
        ({"privacy": 5}, "1 <= privacy <= target - 2"),
        ({"target": 10}, "1 <= privacy <= target - 2"),
        ({"layout": Layout((IndexSegment(4, 1),))}, "contains indices"),
        ({"layout": Layout((RingSegment(20, 3, 4),))}, "fine bits"),
    ],
)
def test_configurations_that_open_nothing(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidParameters, match=sentence):
        replace(USUAL, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"task": b"t"}, {"task": b"t" * 256}, {"population": 1024}, {"target": 9}])
def test_the_ends_of_every_range_are_accepted(change: dict[str, object]) -> None:
    configuration = replace(USUAL, **change)  # type: ignore[arg-type]
    assert Configuration.decode(configuration.encode()) == configuration


def test_an_offer_is_about_the_clients_own_subject() -> None:
    subject = Subject(task=USUAL.task, round_number=3, layout=USUAL.layout, capacity=9)
    configuration = replace(USUAL, application_digest=subject.terms_digest)
    configuration.require_subject(subject)
    configuration.require_subject(replace(subject, model_digest=bytes(32)))
    with pytest.raises(InvalidParameters, match="the offer's model differs"):
        configuration.require_subject(replace(subject, model_digest=b"m" * 32))
    with pytest.raises(CapacityExceeded):
        replace(configuration, population=10).require_subject(subject)
    client = client_of(USUAL, ids(USUAL)[0])
    with pytest.raises(SecAggError):
        client.answer(replace(USUAL, round_number=4).encode())
    assert client.answer(USUAL.encode()), "nothing is held of the other one"


def refuses(number: int, message: bytes, kind: type[PeerError], sentence: str = "") -> None:
    """Send the first client a message that it refuses; it leaves, and holds nothing."""
    _, clients = stages(number)
    first = clients[ids(USUAL)[0]]
    with pytest.raises(kind, match=sentence):
        first.answer(message)
    with pytest.raises(Misuse, match="has left"):
        first.answer(message)


def test_what_a_client_refuses() -> None:
    names = ids(USUAL)
    kind, others = MessageKind.LIGHT_SECAGG_SURVIVORS, names[1:]
    for entries in (dict.fromkeys(others[:5], b""), dict.fromkeys([*others, ClientId(1)], b"")):
        refuses(3, encode_entries(kind, USUAL, entries), PeerMisbehaved, "has too few clients")
    refuses(3, encode_entries(kind, USUAL, dict.fromkeys(others, b"x")), MalformedMessage, "only client ids")
    elsewhere = encode_entries(kind, replace(USUAL, round_number=4), dict.fromkeys(others, b""))
    refuses(3, elsewhere, PeerMisbehaved, "another sum")
    server, clients = stages(3)
    answers_of(server, clients)
    message = server.message_to(names[0])
    assert message is not None
    with pytest.raises(UnexpectedMessage):
        clients[names[0]].answer(message)


def test_a_roster_has_the_clients_own_key_and_as_many_as_must_stay() -> None:
    server, clients = Server(USUAL, None), clients_of(USUAL)
    keys = {
        name: decode_body(MessageKind.LIGHT_SECAGG_KEY, USUAL, answer)
        for name, answer in answers_of(server, clients).items()
    }
    first, *others = clients
    stolen = keys | {first: keys[others[0]]}
    few = {name: keys[name] for name in list(clients)[:5]}
    missing = {name: keys[name] for name in others}
    for roster in (missing, stolen, few):
        wrong = encode_entries(MessageKind.LIGHT_SECAGG_ROSTER, USUAL, roster)
        refuses(1, wrong, PeerMisbehaved, "or has too few clients")
    enough = {name: keys[name] for name in list(clients)[:6]}
    clients[first].answer(encode_entries(MessageKind.LIGHT_SECAGG_ROSTER, USUAL, enough))


def test_a_key_that_nobody_can_seal_to_names_its_client_and_the_way() -> None:
    server, clients = Server(USUAL, None), clients_of(USUAL)
    said = answers_of(server, clients).items()
    keys = {name: decode_body(MessageKind.LIGHT_SECAGG_KEY, USUAL, answer) for name, answer in said}
    first, liar = ids(USUAL)[:2]
    with pytest.raises(PeerError) as caught:
        clients[first].answer(encode_entries(MessageKind.LIGHT_SECAGG_ROSTER, USUAL, keys | {liar: bytes(32)}))
    assert caught.value.culprits == {liar, ServerId()}


def delivered() -> tuple[dict[ClientId, Client], dict[ClientId, dict[ClientId, bytes]]]:
    """Return clients that await pieces, and the server's pieces for each."""
    server, clients = stages(2)
    messages = {name: server.message_to(name) or b"" for name in clients}
    kind = MessageKind.LIGHT_SECAGG_DELIVERY
    return clients, {name: decode_entries(kind, USUAL, message) for name, message in messages.items()}


def piecewise(entries: dict[ClientId, bytes]) -> bytes:
    return encode_entries(MessageKind.LIGHT_SECAGG_DELIVERY, USUAL, entries)


Change = Callable[[dict[ClientId, bytes], list[ClientId]], dict[ClientId, bytes]]
DELIVERIES: list[tuple[Change, str]] = [
    (lambda pieces, names: {ClientId(1): pieces[names[1]], **dict(list(pieces.items())[:8])}, "not on the roster"),
    (lambda pieces, names: {name: pieces[name] for name in names[1:]}, "own piece, or has too few"),
    (lambda pieces, names: {name: pieces[name] for name in names[:5]}, "own piece, or has too few"),
    (lambda pieces, names: {name: pieces[name] for name in names[:6]}, ""),
]


@pytest.mark.parametrize(("change", "sentence"), DELIVERIES)
def test_a_delivery_has_the_clients_own_piece_and_as_many_as_must_stay_all_of_the_roster(
    change: Change, sentence: str
) -> None:
    clients, pieces = delivered()
    names = ids(USUAL)
    message = piecewise(change(pieces[names[0]], names))
    if not sentence:
        clients[names[0]].answer(message)
        return
    with pytest.raises(PeerMisbehaved, match=sentence):
        clients[names[0]].answer(message)


def test_a_piece_that_is_no_vector_names_who_sealed_it_and_the_way() -> None:
    """The server relays it unopened, so it is not the only named party."""
    clients, pieces = delivered()
    name, liar = ids(USUAL)[:2]
    held = held_by(clients[name])
    with Secret("piece of a mask", b"\xff" * (ELEMENT_BYTES * USUAL.piece_length)) as piece:
        sealed = held.pair.public_key.seal(piece, sealing_info(held.roster, liar, name))
    with pytest.raises(MalformedMessage, match="is not below") as caught:
        clients[name].answer(piecewise(pieces[name] | {liar: sealed}))
    assert caught.value.culprits == {liar, ServerId()}


@pytest.mark.parametrize("stage", range(5))
def test_what_is_no_message_or_comes_too_late_names_the_server_in_every_state(stage: int) -> None:
    server, clients = stages(min(stage, 3))
    if stage > 3:
        answers_of(server, clients)
    last = encode_entries(MessageKind.LIGHT_SECAGG_SURVIVORS, USUAL, {})
    for client, message in zip(clients.values(), (b"", b"anything", last), strict=False):
        with pytest.raises(PeerError) as caught:
            client.answer(message)
        assert caught.value.culprits == {ServerId()}


def held_by(client: Client) -> Any:
    return vars(client)["_held"]


@pytest.mark.parametrize("answers", [True, False])
def test_a_client_that_leaves_holds_no_secret(*, answers: bool) -> None:
    server, clients = stages(3)
    client = clients[ids(USUAL)[0]]
    held = held_by(client)
    pieces, pair = list(held.pieces.values()), held.pair
    assert len(pieces) == 9
    assert all(piece.any() for piece in pieces)
    answers_of(server, {client.client: client}) if answers else client.abort()
    assert not any(vector.any() for vector in (held.mask, *pieces))
    assert not held.pieces
    assert repr(client) == f"<Client client/10 {'awaits nothing more' if answers else 'is over'}>"
    with pytest.raises(Misuse):
        pair.open("piece of a mask", bytes(58), 10, b"")


def test_a_client_that_leaves_before_its_upload_holds_no_mask() -> None:
    clients, pieces = delivered()
    client = clients[ids(USUAL)[0]]
    held = held_by(client)
    assert held.mask.any()
    client.abort()
    assert not held.mask.any()
    with pytest.raises(Misuse, match="has left"):
        client.answer(piecewise(pieces[client.client]))


@pytest.mark.parametrize("what", ["another's", "exchanged", "one is missing", "its own"])
def test_pieces_that_were_moved_do_not_open(what: str) -> None:
    clients, pieces = delivered()
    first, second = ids(USUAL)[:2]
    entries = dict(pieces[second if what == "another's" else first])
    if what in {"exchanged", "one is missing"}:
        entries[first], entries[second] = entries[second], entries[first]
    if what == "one is missing":
        del entries[first]
    if what == "its own":
        clients[first].answer(piecewise(entries))
        return
    with pytest.raises(AuthenticationFailed):
        clients[first].answer(piecewise(entries))


def test_what_a_server_refuses() -> None:
    server, clients = Server(USUAL, None), clients_of(USUAL)
    first, second = ids(USUAL)[:2]
    answers = answers_of(server, clients)
    with pytest.raises(UnexpectedMessage):
        server.receive(first, USUAL.encode())
    for name, answer in answers.items():
        server.receive(name, answer)
    with pytest.raises(PeerMisbehaved, match="the first one is used") as refused:
        server.receive(first, answers[second])
    assert refused.value.culprits == {first, ServerId()}
    for message in (USUAL.encode(), encode_body(MessageKind.LIGHT_SECAGG_INPUT, USUAL, b"")):
        with pytest.raises(UnexpectedMessage):
            server.receive(first, message)
    with pytest.raises(PeerMisbehaved, match="the sum is full"):
        server.receive(ClientId(1), answers[first])
    with pytest.raises(Misuse):
        server.release()
    server.close_stage()
    dealt = answers_of(server, {first: clients[first]})[first]
    pieces = decode_entries(MessageKind.LIGHT_SECAGG_PIECES, USUAL, dealt)
    pieces.pop(first)
    with pytest.raises(MalformedMessage, match="one piece of the agreed length"):
        server.receive(first, encode_entries(MessageKind.LIGHT_SECAGG_PIECES, USUAL, pieces))
    with pytest.raises(PeerMisbehaved, match="was not invited, or has left"):
        server.receive(ClientId(1), encode_entries(MessageKind.LIGHT_SECAGG_PIECES, USUAL, pieces))


def test_a_sum_is_opened_once_and_its_stages_close_in_order() -> None:
    server, clients = stages(3)
    with pytest.raises(Misuse, match="close the last stage first"):
        server.release()
    late = answers_of(server, clients)[ids(USUAL)[0]]
    server, clients = stages(4)
    assert server.stage is None
    assert server.awaited == frozenset()
    assert is_exact(USUAL, server.release())
    assert not vars(server)["_answers"]
    assert not vars(server)["_messages"]
    with pytest.raises(Misuse, match="releases only once"):
        server.release()
    with pytest.raises(UnexpectedMessage):
        server.receive(ids(USUAL)[0], late + b"!")
    assert [TRANSITIONS[state][1] for state in State] == [*list(State)[1:], State.DONE]


def test_a_server_that_ends_forgets_what_clients_sent() -> None:
    server, clients = stages(1)
    held: dict[str, Any] = vars(server)
    for name, answer in answers_of(server, clients).items():
        server.receive(name, answer)
    assert held["_sealed"]
    server.abort()
    assert not held["_sealed"]
    server, _ = stages(4)
    held = vars(server)
    assert held["_answers"]
    assert held["_total"].any()
    server.abort()
    assert not held["_answers"]
    assert not held["_total"].any()


def test_a_server_that_lies_learns_an_input() -> None:
    """Out of scope: with two sets for two halves of the clients, the difference is one mask."""
    configuration = replace(USUAL, population=8, privacy=1, target=3)
    _, clients = stages(3, configuration)
    names, victim = ids(configuration), ids(configuration)[0]
    answers = dict[bool, list[np.ndarray]]()
    for has_victim, asked in ((True, names[2:5]), (False, names[5:])):
        entries = dict.fromkeys(names if has_victim else names[1:], b"")
        message = encode_entries(MessageKind.LIGHT_SECAGG_SURVIVORS, configuration, entries)
        answers[has_victim] = [
            decode_vector(
                decode_body(MessageKind.LIGHT_SECAGG_ANSWER, configuration, clients[name].answer(message)),
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
    again.answer(configuration.encode())
    assert np.array_equal(mask, held_by(again).mask), "what the victim drew"


@pytest.mark.parametrize("more", [1, FIELD - 1, 50])
def test_clients_that_do_not_count_once_each_have_no_sum(more: int) -> None:
    configuration = USUAL
    server, clients = stages(2, configuration)
    for index, (name, upload) in enumerate(answers_of(server, clients).items()):
        if not index:
            masked = decode_vector(
                decode_body(MessageKind.LIGHT_SECAGG_INPUT, configuration, upload), configuration.length
            )
            masked[-1] = (masked[-1] + more) % FIELD
            upload = encode_body(MessageKind.LIGHT_SECAGG_INPUT, configuration, encode_vector(masked))  # noqa: PLW2901
        server.receive(name, upload)
    server.close_stage()
    reach(server, clients, 1)
    with pytest.raises(PeerMisbehaved, match="a client lied"):
        server.release()


def test_an_update_that_does_not_fit_is_one_of_zeros() -> None:
    """After acceptance nothing is refused, and the server learns nothing from it."""
    name = ids(USUAL)[0]
    server, clients = Server(USUAL, None), clients_of(USUAL)
    payload = payload_of(replace(USUAL, layout=Layout((RingSegment(20, 12),))), name)
    clients[name] = client_with(USUAL, name, payload, InsecureSeededCoins(name.encode()))
    released = run(server, clients.values())
    assert released.aggregate.contributors == 9


def test_bytes_behind_an_offer_are_refused() -> None:
    with pytest.raises(MalformedMessage) as caught:
        Configuration.decode(USUAL.encode() + b"\0")
    assert caught.value.reason is Reason.TRAILING_BYTES
