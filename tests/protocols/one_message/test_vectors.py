"""The vectors, replayed through the library's parties, and computed again by the plain implementation."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from secagg.errors import Reason, SecAggError
from secagg.protocols.one_message.messages import Receipt, Verdict
from tests.protocols.one_message.plain import plain_one_message as plain
from tests.protocols.one_message.plain import plain_replies
from tests.vectors import generate_one_message
from tests.vectors.one_message_play import Play, Vector, result_of

FOLDER = Path(__file__).resolve().parents[2] / "vectors" / "one_message"
POSITIVE: dict[str, Vector] = {
    file.stem: json.loads(file.read_text(encoding="utf-8"))
    for file in sorted(FOLDER.glob("*.json"))
    if file.stem != "negative"
}
NEGATIVE: dict[str, Vector] = json.loads((FOLDER / "negative.json").read_text(encoding="utf-8"))["vectors"]
VERDICTS = {verdict.name.lower(): verdict for verdict in Verdict}


def recorded(vector: Vector) -> dict[str, bytes]:
    return {name: bytes.fromhex(message) for name, message in vector["messages"].items()}


def named(error: SecAggError) -> list[str]:
    return sorted(map(str, getattr(error, "culprits", ())))


# --- Positive vectors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POSITIVE)
def test_the_library_reproduces_every_byte_and_the_sum(name: str) -> None:
    vector = POSITIVE[name]
    play = Play(vector)
    play.messages["record"] = play.record.encode()
    for operation in vector["operations"]:
        play.perform(operation)
    assert play.result is not None
    assert result_of(play.result) == vector["result"]
    assert {said: message.hex() for said, message in play.messages.items()} == vector["messages"]
    assert play.operations() == vector["operations"]
    assert all(coins.is_exhausted for coins in play.coins.values()), "no coin is left over"


@pytest.mark.parametrize("name", POSITIVE)
def test_the_result_is_the_weighted_sum(name: str) -> None:
    vector = POSITIVE[name]
    weights = vector["weights"]
    for index, (bits, length) in enumerate(vector["setting"]["layout"]):
        rows = {role: [int(value) for value in segments[index]] for role, segments in vector["inputs"].items()}
        sums = [sum(weights[role] * row[at] for role, row in rows.items()) % 2**bits for at in range(length)]
        assert vector["result"]["values"][index] == [str(value) for value in sums]
    assert vector["result"]["total_weight"] == sum(weights.values())


@pytest.mark.parametrize("name", POSITIVE)
def test_the_plain_implementation_reproduces_what_follows_from_the_uploads(name: str) -> None:
    vector, messages = POSITIVE[name], recorded(POSITIVE[name])
    assert plain_replies.replies(vector) == {
        said: message
        for said, message in messages.items()
        if said.partition("/")[0] in {"delivery", "greeting", "receipt", "list", "signature", "certified_list", "answer"}
    }


@pytest.mark.parametrize("name", POSITIVE)
def test_the_plain_implementation_opens_each_upload_and_the_sum(name: str) -> None:
    vector = POSITIVE[name]
    sums, weight = plain_replies.opened(vector, list(vector["inputs"]))
    assert {"values": [[str(value) for value in row] for row in sums], "total_weight": weight} == {
        key: vector["result"][key] for key in ("values", "total_weight")
    }
    role = next(iter(vector["inputs"]))
    one, own = plain_replies.opened(vector, [role])
    assert own == vector["weights"][role]
    for row, written, (bits, _) in zip(one, vector["inputs"][role], vector["setting"]["layout"], strict=True):
        assert row == [own * int(value) % 2**bits for value in written]


# --- Negative vectors -------------------------------------------------------------------------------------------------


def refused(name: str) -> tuple[SecAggError | None, Play]:
    """Replay the base up to the change, hand over what was changed, and return what that ended in."""
    case = NEGATIVE[name]
    vector = POSITIVE[case["base"]]
    play, messages = Play(vector), recorded(vector)
    for index, operation in enumerate(vector["operations"][: case["at"]]):
        if operation["party"] == case["party"]:
            play.messages.update(messages)
            play.perform(operation)
            del index
    play.messages.update(messages)
    operation = next(
        one for one in vector["operations"] if (one["party"], one.get("takes")) == (case["party"], case["takes"])
    )
    if "from" in case:
        operation = {**operation, "from": case["from"]}
    try:
        play.perform(operation, altered(name))
        if "fails" in case:
            for later in vector["operations"][case["at"] + 1 :]:
                if later["party"] == case["party"]:
                    play.perform(later)
    except SecAggError as error:
        return error, play
    return None, play


def altered(name: str) -> bytes:
    case = NEGATIVE[name]
    change, good = case["change"], bytes.fromhex(POSITIVE[case["base"]]["messages"][case["takes"]])
    at, removed = change["at"], bytes.fromhex(change["removes"])
    assert good[at : at + len(removed)] == removed
    return good[:at] + bytes.fromhex(change["inserts"]) + good[at + len(removed) :]


@pytest.mark.parametrize("name", NEGATIVE)
def test_one_change_ends_in_its_reason_and_names_its_culprits(name: str) -> None:
    case = NEGATIVE[name]
    error, play = refused(name)
    if case["expect"] in VERDICTS:
        assert error is None
        first, *rest = Receipt.decode(play.messages["receipt/0"]).judged
        assert first.verdict is VERDICTS[case["expect"]]
        assert {judged.verdict for judged in rest} == {Verdict.ACCEPTED}
    elif case["expect"] == "ok":
        assert error is None
        assert result_of(play.server_result) == POSITIVE[case["base"]]["result"]
        assert [named(fault) for fault in play.server.faults] == [case["culprits"]]
    else:
        assert error is not None, "it was taken"
        assert error.reason is Reason(case["expect"])
        assert named(error) == case["culprits"]
