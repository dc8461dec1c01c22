"""The plain implementation produces the library's bytes, message by message, and opens the same sum."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from secagg.contract import Layout, Payload, RingSegment, ideal_aggregate
from secagg.identifiers import ClientId
from secagg.parameters import Suite
from secagg.protocols.light_secagg.configuration import Configuration
from secagg.protocols.light_secagg.run import run
from secagg.protocols.light_secagg.server import Server, State
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.light_secagg_sums import client_with
from tests.protocols.light_secagg.plain import plain_light_secagg as plain


def configured(population: int, privacy: int, target: int, layout: Layout) -> Configuration:
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
    )


KINDS = {
    State.KEYS: ("offer", "key"),
    State.PIECES: ("roster", "pieces"),
    State.INPUTS: ("delivery", "input"),
    State.ANSWERS: ("survivors", "answer"),
}
CASES = [
    configured(3, 1, 3, Layout((RingSegment(29, 5),))),
    configured(6, 2, 4, Layout((RingSegment(20, 7), RingSegment(3, 4)))),
    configured(5, 1, 4, Layout((RingSegment(12, 9),))),
    configured(5, 2, 5, Layout((RingSegment(64, 3), RingSegment(29, 2), RingSegment(28, 2)))),
]


@pytest.mark.parametrize("configuration", CASES)
@pytest.mark.parametrize("stage", [State.PIECES, State.INPUTS, State.ANSWERS])
def test_the_library_and_the_plain_implementation_agree(configuration: Configuration, stage: State) -> None:
    names = [ClientId(5 + 3 * number) for number in range(configuration.population)]
    gone = frozenset(names[configuration.target :])
    payloads = dict[ClientId, Payload]()
    for name in names:
        generator = np.random.default_rng(name.value)
        rings = configuration.layout.require_rings()
        drawn = (generator.integers(one.ring.least, one.ring.greatest, one.length, endpoint=True) for one in rings)
        vectors = tuple(one.ring.from_integers(values) for one, values in zip(rings, drawn, strict=True))
        payloads[name] = Payload(configuration.layout, vectors)
    said = defaultdict[str, dict[int, bytes]](dict)

    def heard(state: State, name: ClientId, sent: bytes, answer: bytes) -> None:
        asked, answered = KINDS[state]
        said[asked][name.value], said[answered][name.value] = sent, answer

    clients = [client_with(configuration, name, payloads[name], coins_of(name)) for name in names]
    released = run(Server(configuration, None), clients, dropouts={stage: gone}, sent=heard)
    due = plain.read_offer(configuration.encode())
    assert due.t0 == configuration.context.digest
    inputs = {name.value: [vector.tolist() for vector in payloads[name].values] for name in names}
    sums, count = plain.recomputed(due, {name.value: drawer(name) for name in names}, inputs, said)
    counted, aggregate = sorted(released.counted), released.aggregate
    assert sums == [vector.tolist() for vector in aggregate.values]
    ideal = ideal_aggregate(configuration.layout, [payloads[name] for name in counted], [1] * len(counted))
    assert count == aggregate.contributors
    assert aggregate.encode() == ideal.encode()


def coins_of(name: ClientId) -> InsecureSeededCoins:
    return InsecureSeededCoins(name.encode())


def drawer(name: ClientId) -> plain.Draw:
    coins = coins_of(name)
    return lambda count: bytes(coins.draw(count))
