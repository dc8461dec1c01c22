"""Table of one message, pairwise masks, LightSecAgg and Flower's SecAgg+, in one run on one cohort.

Run it with the environment of `make bench-peers`: ``build/peers/.venv/bin/python benchmarks/one_message_peers.py``.
Seconds are processor time, so other load on the machine has little effect. A client's seconds cover all its messages,
given a quantized update; the table has the fastest client. For Flower's SecAgg+ they are only the upload's step, with
quantization, as in ``peer_flower.py``. The server's include its holders'.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import process_time

import numpy as np

from figures import machine
from peer_flower import Flower
from secagg.crypto.entropy import SystemCoins
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.protocols.one_message import OneMessageOptions
from secagg.protocols.pairwise_mask import PairwiseOptions, Topology
from secagg.session.registry import find
from secagg.session.roles import LazyUpdate, Participation, Subject, Update
from secagg.simulation.synthetic_updates import WindowedInputs

CLIENTS, DROPPED, LENGTH, BITS = 31, 3, 1 << 20, (22, 8)
"""A full graph of 31 has 30 neighbours; quantised to 22 bits, as Flower's default is, and to 8, as models are."""
MODEL = bytes(32)
FASTER_THAN_PAIRWISE, FASTER_THAN_FLOWER = 0.8, 10.0


@dataclass(frozen=True, slots=True)
class Row:
    """Costs of one protocol."""

    name: str
    client_ms: float
    server_ms: float
    bytes_up: float
    exchanges: int


def session(name: str, settings: object, length: int, bits: int) -> Row:
    """Run a session in which some clients drop out before their update, and check its sum."""
    entry, inputs = find(name), WindowedInputs(input_bits=bits, length=length, clients=CLIENTS, seed=b"benchmark")
    subject = Subject(
        task=b"a benchmark", round_number=1, layout=inputs.layout, capacity=inputs.capacity, model_digest=MODEL
    )
    clients = [ClientId(number) for number in range(1, CLIENTS + 1)]
    seconds, sent = dict.fromkeys(clients, 0.0), Counter[ClientId]()
    with closing(entry.simulate(settings, coins=SystemCoins(), clock=lambda: datetime.now(UTC))) as world:
        opened, serving, exchanges = world.open(subject, frozenset(clients)), 0.0, 0
        members = {
            client: world.member(client).join(
                subject, LazyUpdate(partial(Update, inputs.payload_of(client.value), MODEL))
            )
            for client in clients
        }
        while (stage := opened.stage) is not None:
            exchanges += 1
            gone = clients[:DROPPED] if stage.takes_update else []
            for client in list(members):
                message = None if client in gone else opened.message_to(client)
                if message is None:
                    opened.drop(client)
                    del members[client]
                    continue
                began = process_time()
                answer = members[client].answer(message)
                answered = process_time()
                opened.receive(client, answer)
                serving += process_time() - answered
                seconds[client] += answered - began
                sent[client] += len(answer)
            assert opened.participation is Participation.COMPLETE
            began = process_time()
            opened.close_stage()
            serving += process_time() - began
        began = process_time()
        released = opened.release()
        serving += process_time() - began
        assert released.counted == frozenset(members)
        assert inputs.is_sum_of(released.aggregate, members)
    stayed = [1000 * seconds[client] for client in members]
    return Row(name, min(stayed), 1000 * serving, max(sent[client] for client in members), exchanges)


def flower(length: int) -> Row:
    """Run Flower's own steps: the client's to the upload, three times, and the server's unmasking."""
    theirs, update = Flower(), np.random.default_rng(0).normal(0, 0.05, length).astype(np.float32)
    upload, taken = list[bytes](), list[float]()
    for _ in range(3):
        step = theirs.masking_client(CLIENTS - 1, update)
        began = process_time()
        upload = step()
        taken.append(process_time() - began)
    unmask = theirs.unmasking_server(CLIENTS, DROPPED, CLIENTS - 1, update)
    began = process_time()
    unmask()
    serving = process_time() - began
    return Row(f"Flower {theirs.version} SecAgg+", 1000 * min(taken), 1000 * serving, sum(map(len, upload)), 4)


def main() -> None:
    """Print the table and the two ratios that have targets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    report = {"machine": machine(), "rows": {bits: table(bits, options.length) for bits in BITS}}
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def table(bits: int, length: int) -> list[dict[str, object]]:
    """Measure, print and return the rows for one width of values."""
    bounds, least = (-(1 << bits - 1), (1 << bits - 1) - 1), CLIENTS - DROPPED
    settings: dict[str, object] = {
        "one-message": OneMessageOptions(bounds=(bounds,), minimum_cohort=least),
        "pairwise": PairwiseOptions(mode=SecurityMode.ACTIVE, topology=Topology.FULL, late=DROPPED, corrupted=1),
        "lightsecagg": find("lightsecagg").settings(dropped=DROPPED, minimum_cohort=least),
    }
    rows = [session(name, chosen, length, bits) for name, chosen in settings.items()]
    rows.append(flower(length))
    print(f"{CLIENTS} clients, {DROPPED} dropped before the upload, {length} values of {bits} bits")
    print("| | client, ms | server, ms | bytes up, MB | exchanges |\n|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row.name} | {row.client_ms:.0f} | {row.server_ms:,.0f} | {row.bytes_up / 1e6:.2f} | {row.exchanges} |"
        )
    own, pairwise, theirs = rows[0].client_ms, rows[1].client_ms, rows[-1].client_ms
    for name, ratio, is_met in (
        ("one message / pairwise, active, client", own / pairwise, own / pairwise <= FASTER_THAN_PAIRWISE),
        ("Flower / one message, client", theirs / own, theirs / own >= FASTER_THAN_FLOWER),
    ):
        print(f"{name}: {ratio:.2f} ({'met' if is_met else 'MISSED'})")
    return [asdict(row) for row in rows]


if __name__ == "__main__":
    main()
