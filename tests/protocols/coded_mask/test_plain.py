"""The plain implementation makes the library's bytes, message by message, and opens the same sum."""

from __future__ import annotations

import numpy as np
import pytest

from secagg.contract import Layout, Payload, RingSegment, ideal_aggregate
from secagg.identifiers import ClientId
from secagg.parameters import Suite
from secagg.protocols.coded_mask.configuration import Configuration
from secagg.protocols.coded_mask.run import run
from secagg.protocols.coded_mask.server import Server, State
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.coded_sums import client_with
from tests.protocols.coded_mask.plain import plain_coded_mask as plain


def configured(population: int, privacy: int, target: int, layout: Layout, weight: int = 1) -> Configuration:
    return Configuration(
        task=b"task",
        round_number=7,
        nonce=bytes(range(16)),
        model_digest=bytes([1]) * 32,
        application_digest=bytes([2]) * 32,
        suite=Suite.CLASSIC,
        layout=layout,
        population=population,
        privacy=privacy,
        target=target,
        maximum_weight=weight,
    )


CASES = [
    configured(3, 1, 3, Layout((RingSegment(29, 5),))),
    configured(6, 2, 4, Layout((RingSegment(20, 7), RingSegment(3, 4))), weight=5),
    configured(5, 1, 4, Layout((RingSegment(12, 9),))),
    configured(5, 2, 5, Layout((RingSegment(64, 3), RingSegment(29, 2), RingSegment(28, 2))), weight=3),
]


@pytest.mark.parametrize("configuration", CASES)
@pytest.mark.parametrize("stage", [State.PIECES, State.INPUTS, State.ANSWERS])
def test_the_library_and_the_plain_implementation_agree(configuration: Configuration, stage: State) -> None:
    names = [ClientId(5 + 3 * number) for number in range(configuration.population)]
    gone = frozenset(names[configuration.target :])
    payloads, weights = dict[ClientId, Payload](), dict[ClientId, int]()
    for name in names:
        generator = np.random.default_rng(name.value)
        rings = configuration.layout.require_rings()
        drawn = (generator.integers(one.ring.least, one.ring.greatest, one.length, endpoint=True) for one in rings)
        vectors = tuple(one.ring.from_integers(values) for one, values in zip(rings, drawn, strict=True))
        payloads[name] = Payload(configuration.layout, vectors)
        weights[name] = 1 + name.value % configuration.maximum_weight
    said = dict[State, dict[ClientId, tuple[bytes, bytes]]]()
    released = run(
        Server(configuration, None),
        [client_with(configuration, name, payloads[name], weights[name], coins_of(name)) for name in names],
        dropouts={stage: gone},
        sent=lambda state, name, sent, answer: said.setdefault(state, {}).update({name: (sent, answer)}),
    )
    due = plain.read_offer(configuration.encode())
    assert due.t0 == configuration.context.digest
    clients = {name: plain.PlainClient(due, name.value, drawer(name)) for name in names}
    assert all(plain.body(said[State.KEYS][name][1]) == client.key for name, client in clients.items())
    keys = {name.value: client.key for name, client in clients.items()}
    dealt = {name: clients[name].pieces(keys) for name in said[State.PIECES]}
    held = dict[ClientId, dict[int, list[int]]]()
    for name, (delivery, upload) in said[State.INPUTS].items():
        opened = plain.entries(delivery).items()
        held[name] = {sender: clients[name].open_piece(keys, sender, sealed) for sender, sealed in opened}
        assert held[name] == {sender.value: pieces[name.value] for sender, pieces in dealt.items()}
        values = [vector.tolist() for vector in payloads[name].values]
        assert plain.body(upload) == plain.packed(clients[name].masked(values, weights[name]))
    answers = dict[int, list[int]]()
    for name, (asked, answer) in said[State.ANSWERS].items():
        survivors = sorted(plain.entries(asked))
        assert survivors == sorted(client.value for client in released.counted)
        columns = zip(*(held[name][survivor] for survivor in survivors), strict=True)
        answers[names.index(name)] = [sum(column) % plain.Q for column in columns]
        assert plain.body(answer) == plain.packed(answers[names.index(name)])
    uploads = [plain.elements(plain.body(upload)) for _, upload in said[State.INPUTS].values()]
    chosen = dict(list(answers.items())[-configuration.target :])
    sums, weight = plain.open_sum(due, uploads, chosen)
    counted, aggregate = sorted(released.counted), released.aggregate
    assert sums == [vector.tolist() for vector in aggregate.values]
    ideal = ideal_aggregate(
        configuration.layout, [payloads[name] for name in counted], [weights[name] for name in counted]
    )
    assert weight == aggregate.total_weight == sum(weights[name] for name in counted)
    assert aggregate.encode() == ideal.encode()


def coins_of(name: ClientId) -> InsecureSeededCoins:
    return InsecureSeededCoins(name.encode())


def drawer(name: ClientId) -> plain.Draw:
    coins = coins_of(name)
    return lambda count: bytes(coins.draw(count))
