"""Make the vectors of one message a client: ``python -m tests.vectors.generate_one_message`` writes them.

As in ``generate.py``, positive vectors come out of the library, driven with coins that follow from their names; what a
negative vector expects is written by hand in ``one_message_cases.py``. An upload that was recorded is taken over, once
all of it was found equal but for what HPKE drew and what is made over that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from . import generate
from .one_message_cases import NEGATIVES, Negative
from .one_message_play import Play, Vector, result_of

FOLDER = Path(__file__).resolve().parent / "one_message"
NEGATIVE_FILE = "negative"
HEAD: Mapping[str, Any] = {"schema": 1, "protocol": "one_message/1"}
POSITIVE = (
    "tests/vectors/generate_one_message.py, from the library; computed again by tests/protocols/one_message/plain"
)
NEGATIVE = "tests/vectors/generate_one_message.py, one change to a base; the expectation is written by hand"
USUAL: Vector = {
    "mode": "active",
    "suite": "x25519-aes128",
    "holders": 5,
    "corrupted": 1,
    "capacity": 8,
    "layout": [[20, 5], [7, 3]],
    "bounds": [None, None],
    "task": "a task",
    "round_number": 7,
}
SCENARIOS: Mapping[str, Vector] = {
    "active": USUAL,
    "semi_honest": USUAL | {"mode": "semi_honest", "corrupted": 0, "holders": 3, "bounds": [[-3, 3], None]},
    "rounded": USUAL | {"holders": 4, "layout": [[9, 40, 8], [12, 3], [5, 2, 16]], "bounds": [None] * 3},
    "hybrid": USUAL | {"suite": "mlkem768x25519-aes256", "holders": 4},
}
CLIENTS = (2, 2**32, 2**64 - 2, 77)
SEED = 32


def derive(name: str, *parts: str, size: int) -> bytes:
    """Return bytes that follow from a scenario's name and from what they are for."""
    return hashlib.shake_256("/".join(("one_message/1", name, *parts)).encode()).digest(size)


def configured(name: str) -> Vector:
    """Return a positive vector up to its messages."""
    setting = dict(SCENARIOS[name])
    holders = [f"holder/{position}" for position in range(setting["holders"])]
    clients = [f"client/{client}" for client in CLIENTS]
    signers = ["authority", *holders, *clients] if setting["mode"] == "active" else []
    return {
        "setting": setting,
        "identities": {role: derive(name, "identity", role, size=SEED).hex() for role in signers},
        "roots": {role: [derive(name, part, role, size=SEED).hex() for part in ("root", "nonce")] for role in holders},
        "inputs": {role: _inputs(name, role, setting) for role in clients},
        "coins": {role: derive(name, "coins", role, size=SEED).hex() for role in clients},
    }


def _inputs(name: str, role: str, setting: Mapping[str, Any]) -> list[list[str]]:
    rows = list[list[str]]()
    for index, ((whole, length, *fine), bound) in enumerate(zip(setting["layout"], setting["bounds"], strict=True)):
        bits = whole + sum(fine)
        drawn = derive(name, "input", role, str(index), size=8 * length)
        words = [int.from_bytes(drawn[at : at + 8], "little") for at in range(0, len(drawn), 8)]
        low, high = bound or (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        rows.append([str(low + word % (high - low + 1)) for word in words])
    return rows


def positive(name: str, recorded: Mapping[str, str]) -> tuple[Vector, Play]:
    """Return a positive vector, and the play that it came from."""
    vector = configured(name)
    play = Play({**vector, "messages": recorded})
    play.messages["record"] = play.record.encode()
    operations = play.operations()
    for operation in operations:
        play.perform(operation)
    if play.result is None or not all(coins.is_exhausted for coins in play.coins.values()):
        raise ValueError(f"{name} gives no sum, or leaves coins")
    messages = {said: message.hex() for said, message in play.messages.items()}
    head = {**HEAD, "provenance": POSITIVE, "comment": f"a sum of 4 clients, {name.replace('_', ' ')}"}
    return {**head, **vector, "operations": operations, "messages": messages, "result": result_of(play.result)}, play


def negative(case: Negative, vector: Vector, play: Play) -> Vector:
    """Write down one change, and what it must end in."""
    party = case.party or case.takes.replace("delivery", "holder")
    at = next(
        index
        for index, operation in enumerate(vector["operations"])
        if operation.get("takes") == case.takes and operation["party"] == party
    )
    good = play.messages[case.takes]
    found: Vector = {"base": case.base, "party": party, "takes": case.takes, "at": at + case.after}
    altered = case.edit(good, play)
    start = next(
        (i for i, (a, b) in enumerate(zip(good, altered, strict=False)) if a != b), min(len(good), len(altered))
    )
    rest = min(len(good), len(altered)) - start
    end = next((i for i in range(rest) if good[-1 - i] != altered[-1 - i]), rest)
    found["change"] = {
        "at": start,
        "removes": good[start : len(good) - end].hex(),
        "inserts": altered[start : len(altered) - end].hex(),
    }
    if case.sender:
        found["from"] = case.sender
    return {
        **found,
        "expect": case.expect,
        "culprits": list(case.culprits),
        **({"fails": case.fails} if case.fails else {}),
    }


def vectors(recorded: Mapping[str, Vector]) -> Iterator[tuple[str, Vector]]:
    """Make every file; ``recorded`` are those of an earlier time, by their names."""
    made, plays = dict[str, Vector](), dict[str, Play]()
    for name in SCENARIOS:
        made[name], plays[name] = positive(name, recorded.get(name, {}).get("messages", {}))
        yield name, made[name]
    cases = {case.name: negative(case, made[case.base], plays[case.base]) for case in NEGATIVES}
    if len(cases) != len(NEGATIVES):
        raise ValueError("two negative vectors have one name")
    yield NEGATIVE_FILE, {**HEAD, "provenance": NEGATIVE, "comment": "one change to a good sum each", "vectors": cases}


def committed() -> dict[str, Vector]:
    """Read the vectors as they are."""
    return generate.read_folder(FOLDER)


def main() -> None:
    """Write every file, and remove those that are no more."""
    generate.write_folder(FOLDER, dict(vectors(committed())))


if __name__ == "__main__":
    main()
