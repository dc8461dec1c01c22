"""The vectors, replayed by the library's parties, and recomputed by the plain implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from secagg.errors import Reason, SecAggError
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.light_secagg.server import Server, State
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.protocols.light_secagg.plain import plain_light_secagg as plain
from tests.vectors import generate, generate_light_secagg
from tests.vectors.generate_light_secagg import STAGES, Play

FOLDER = Path(__file__).resolve().parents[2] / "vectors" / "light_secagg"
SUM: dict[str, Any] = json.loads((FOLDER / "sum.json").read_text(encoding="utf-8"))
NEGATIVE: dict[str, Any] = json.loads((FOLDER / "negative.json").read_text(encoding="utf-8"))["vectors"]
MESSAGES = {name: bytes.fromhex(message) for name, message in SUM["messages"].items()}
RINGS = SUM["setting"]["layout"]


def of_stage(stage: str) -> dict[str, bytes]:
    return {name.partition("/")[2]: message for name, message in MESSAGES.items() if name.startswith(f"{stage}/")}


def test_the_library_reproduces_every_byte_and_the_sum() -> None:
    messages, result = Play(SUM).run(SUM["messages"])
    assert messages == SUM["messages"]
    assert result == SUM["result"]


def test_the_result_is_the_sum_of_those_who_uploaded() -> None:
    counted = [SUM["inputs"][name] for name in of_stage("input")]
    assert len(counted) == SUM["result"]["contributors"] == 4
    for index, (bits, length) in enumerate(RINGS):
        due = [sum(int(rows[index][at]) for rows in counted) % 2**bits for at in range(length)]
        assert SUM["result"]["values"][index] == [str(value) for value in due]


def test_the_plain_implementation_makes_the_same_bytes_and_opens_the_sum() -> None:
    due, named = plain.read_offer(Play(SUM).configuration.encode()), list(SUM["inputs"])
    inputs = {int(name): [[int(value) for value in row] for row in rows] for name, rows in SUM["inputs"].items()}
    said = {
        stage: {int(name): message for name, message in of_stage(stage).items()}
        for stage in ("key", "pieces", "delivery", "input", "answer")
    }
    said |= {stage: {0: MESSAGES[stage]} for stage in ("roster", "survivors")}
    sums, count = plain.recomputed(due, {int(name): drawer(name) for name in named}, inputs, said)
    assert [[str(value) for value in row] for row in sums] == SUM["result"]["values"]
    assert count == SUM["result"]["contributors"]


def drawer(name: str) -> plain.Draw:
    coins = InsecureSeededCoins(f"coded_mask/1/{name}".encode())
    return lambda count: bytes(coins.draw(count))


# --- Negative vectors -------------------------------------------------------------------------------------------------


def server_before(stage: str) -> Server:
    """Return the server that awaits a stage's answers."""
    server = Play(SUM).server
    for _, answers, _ in STAGES:
        if answers == stage:
            return server
        for name, message in of_stage(answers).items():
            server.receive(ClientId(int(name)), message)
        server.close_stage()
    raise AssertionError(stage)


@pytest.mark.parametrize("name", NEGATIVE)
def test_one_change_ends_in_its_reason_and_changes_nothing(name: str) -> None:
    case = NEGATIVE[name]
    stage, altered = case["takes"].partition("/")[0], bytes.fromhex(case["hands_over"])
    reason: Reason | None = None
    if case["party"] == "server":
        server, sender = server_before(stage), ClientId(int(case["takes"].partition("/")[2]))
        with pytest.raises(SecAggError) as refused:
            server.receive(sender, altered)
        reason = refused.value.reason
        assert getattr(refused.value, "culprits", ()) == {sender, ServerId()}
        server.receive(sender, MESSAGES[case["takes"]])
        assert vars(server)["_said"].keys() == {sender}
    else:
        own = case["party"].partition("/")[2]
        for takes_altered in (True, False):
            # A client that refuses leaves; another one with the same coins continues.
            play = Play(SUM)
            client = play.client(own)
            client.answer(play.configuration.encode())
            for _, answers, asked in STAGES[1:]:
                if takes_altered and asked == stage:
                    with pytest.raises(SecAggError) as refused:
                        client.answer(altered)
                    reason = refused.value.reason
                    break
                answer = client.answer(MESSAGES.get(asked) or MESSAGES[f"{asked}/{own}"])
                # HPKE's draws are new in each run.
                assert answers == "pieces" or answer == MESSAGES[f"{answers}/{own}"]
    assert reason is Reason(case["expect"])


def test_most_vectors_are_negative_and_every_message_is_changed() -> None:
    assert len(NEGATIVE) > 30
    changed = {case["takes"].partition("/")[0] for case in NEGATIVE.values()}
    assert changed == {name.partition("/")[0] for name in MESSAGES}
    assert all(bytes.fromhex(case["hands_over"]) != MESSAGES[case["takes"]] for case in NEGATIVE.values())
    assert {state for state, _, _ in STAGES} == set(State) - {State.DONE}


def test_the_generator_makes_the_vectors_as_they_are() -> None:
    made = dict(generate_light_secagg.vectors(generate.read_folder(FOLDER)))
    assert made == generate.read_folder(FOLDER)
