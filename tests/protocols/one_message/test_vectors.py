"""The vectors, replayed through the library's parties, and computed again by the plain implementation."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from secagg.errors import Reason, SecAggError
from secagg.protocols.one_message.requests import Receipt, Verdict
from tests.protocols.one_message.plain import plain_one_message as plain
from tests.protocols.one_message.plain import plain_replies
from tests.vectors import generate, generate_one_message
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
def test_the_result_is_the_sum(name: str) -> None:
    vector = POSITIVE[name]
    for index, (bits, length, *fine) in enumerate(vector["setting"]["layout"]):
        rows = {role: [int(value) for value in segments[index]] for role, segments in vector["inputs"].items()}
        sums = [sum(row[at] for row in rows.values()) for at in range(length)]
        require_rounded(map(int, vector["result"]["values"][index]), sums, bits, sum(fine), len(rows))


def require_rounded(found: Iterable[int], due: Sequence[int], bits: int, fine: int, uploads: int) -> None:
    """Compare values in their ring: exact ones, and rounded ones up to half a step and the noise of each upload."""
    most = uploads * (2 ** (fine - 1) + 64) if fine else 0
    for one, other in zip(found, due, strict=True):
        assert (one - other + most) % 2 ** (bits + fine) <= 2 * most


@pytest.mark.parametrize("name", POSITIVE)
def test_the_plain_implementation_reproduces_what_follows_from_the_uploads(name: str) -> None:
    vector, messages = POSITIVE[name], recorded(POSITIVE[name])
    assert plain_replies.replies(vector) == {
        said: message
        for said, message in messages.items()
        if said.partition("/")[0]
        in {"delivery", "greeting", "receipt", "list", "signature", "certified_list", "answer"}
    }


@pytest.mark.parametrize("name", POSITIVE)
def test_the_plain_implementation_opens_each_upload_and_the_sum(name: str) -> None:
    vector = POSITIVE[name]
    sums = plain_replies.opened(vector, list(vector["inputs"]))
    assert [[str(value) for value in row] for row in sums] == vector["result"]["values"]
    role = next(iter(vector["inputs"]))
    one = plain_replies.opened(vector, [role])
    for row, written, (bits, _, *fine) in zip(one, vector["inputs"][role], vector["setting"]["layout"], strict=True):
        require_rounded(row, [int(value) for value in written], bits, sum(fine), 1)


# --- Negative vectors -------------------------------------------------------------------------------------------------


def refused(name: str) -> tuple[SecAggError | None, Play]:
    """Replay the base up to the change, hand over what was changed, and return what that ended in."""
    case = NEGATIVE[name]
    vector = POSITIVE[case["base"]]
    play, messages = Play(vector), recorded(vector)
    play.messages.update(messages)
    for operation in vector["operations"][: case["at"]]:
        if operation["party"] == case["party"]:
            play.perform(operation)
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
        assert play.result is not None
        assert result_of(play.result) == POSITIVE[case["base"]]["result"]
        assert [named(fault) for fault in play.server.faults] == ([case["culprits"]] if case["culprits"] else [])
    else:
        assert error is not None, "it was taken"
        assert error.reason is Reason(case["expect"])
        assert named(error) == case["culprits"]


# --- The set of vectors -----------------------------------------------------------------------------------------------


def test_a_negative_vector_is_one_change_to_its_base() -> None:
    unchanged = {name for name, case in NEGATIVE.items() if case["change"]["removes"] == case["change"]["inserts"]}
    assert unchanged == {name for name, case in NEGATIVE.items() if "from" in case}
    assert all(altered(name) for name in NEGATIVE)


def test_every_message_that_a_party_takes_is_changed() -> None:
    taken = {
        operation["takes"].partition("/")[0]
        for vector in POSITIVE.values()
        for operation in vector["operations"]
        if "takes" in operation
    }
    changed = {case["takes"].partition("/")[0] for case in NEGATIVE.values()}
    assert changed == taken


def test_the_vectors_have_both_modes_and_suites() -> None:
    settings = [vector["setting"] for vector in POSITIVE.values()]
    for name, values in (("mode", {"active", "semi_honest"}), ("suite", {"x25519-aes128", "mlkem768x25519-aes256"})):
        assert {setting[name] for setting in settings} == values


def test_every_verdict_and_reason_that_a_message_can_give_is_expected() -> None:
    assert {case["expect"] for case in NEGATIVE.values()} == EXPECTED


EXPECTED = {
    "ok",
    *(name for name, verdict in VERDICTS.items() if verdict is not Verdict.ACCEPTED),
    *(
        str(reason)
        for reason in (
            Reason.ALREADY_SPENT,
            Reason.AUTHENTICATION_FAILED,
            Reason.BELOW_FLOOR,
            Reason.LAYOUT_MISMATCH,
            Reason.MODEL_MISMATCH,
            Reason.NOT_CANONICAL,
            Reason.NOT_ELIGIBLE,
            Reason.PARAMETER_OUT_OF_RANGE,
            Reason.PUBLIC_KEY_REUSED,
            Reason.QUORUM_NOT_MET,
            Reason.ROSTER_INVALID,
            Reason.SHARE_OUT_OF_RANGE,
            Reason.SURVIVORS_INVALID,
            Reason.TRAILING_BYTES,
            Reason.TRUNCATED,
            Reason.WRONG_KIND,
            Reason.WRONG_SESSION,
            Reason.WRONG_VERSION,
        )
    ),
}


def test_the_plain_implementation_imports_nothing_of_the_library() -> None:
    for module in (plain, plain_replies):
        text = Path(str(module.__file__)).read_text(encoding="utf-8")
        assert "import secagg" not in text
        assert "from secagg" not in text
        assert "numpy" not in text


def test_the_generator_makes_the_vectors_as_they_are() -> None:
    made = dict(generate_one_message.vectors(generate_one_message.committed()))
    assert made.keys() == {*POSITIVE, "negative"}
    for name, vector in made.items():
        text = (FOLDER / f"{name}.json").read_text(encoding="utf-8")
        assert json.loads(generate.to_text(vector)) == json.loads(text), name
