"""The vectors, replayed through the public interface, and recomputed by a second implementation.

The replayer makes clients and a server from a vector, passes them bytes, and compares the returned bytes. Senders and
receivers follow only from the vector.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from secagg.errors import PeerError, Reason, SecAggError, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.protocols.pairwise_mask import Client, ClientState, Server, ServerState, SessionConfiguration, SessionPlan
from secagg.protocols.pairwise_mask.member import CLIENT_TRANSITIONS
from secagg.protocols.pairwise_mask.session import SERVER_TRANSITIONS
from secagg.wire import message_kind
from tests.harness.pairwise_sessions import close_round, unmask
from tests.harness.recorded_coins import InsecureRecordedCoins
from tests.vectors import generate
from tests.vectors.generate import blank, client_of, result_of

Vector = dict[str, Any]

VECTORS: dict[str, Vector] = generate.committed()
POSITIVE = [name for name, vector in VECTORS.items() if "result" in vector]
CHANGED = [name for name, vector in VECTORS.items() if "base" in vector]
ENDING_WELL = [name for name in CHANGED if VECTORS[name]["operations"][-1]["expect"] == "ok"]
NEGATIVE = [name for name in CHANGED if name not in ENDING_WELL]
ACCUMULATED = [name for name, vector in VECTORS.items() if "accumulated" in vector]
HEADER_BYTES = 7


# --- The replayer -----------------------------------------------------------------------------------------------------


class Replay:
    """The parties of a vector."""

    def __init__(self, vector: Vector) -> None:
        self.vector = vector
        self.configuration = SessionConfiguration.decode(bytes.fromhex(vector["messages"]["offer"]))
        opening = bytes.fromhex(vector["coins"]["server"])[:32]
        self.server = Server(SessionPlan(self.configuration, opening, **vector["plan"]))
        self.coins = {role: InsecureRecordedCoins(bytes.fromhex(vector["coins"][role])) for role in vector["inputs"]}
        self.clients = {role: client_of(vector, role, self.configuration, own) for role, own in self.coins.items()}
        self.result: Vector | None = None

    def perform(self, operation: Vector) -> None:
        """Do one operation, and compare its messages with the vector's."""
        sends = [self._message(name) for name in operation.get("sends", [])]
        match operation["role"], operation["do"]:
            case "server", "start":
                sent = [self.server.invitation]
            case "server", "receive":
                sender = ClientId(int(operation["from"].removeprefix("client/")))
                self.server.receive(sender, self._message(operation["message"]))
                sent = []
            case "server", "close_round":
                outgoing = close_round(self.server)
                receivers = [name.rpartition("/")[0] for name in operation.get("sends", [])]
                assert [str(item.receiver) for item in outgoing] == receivers
                sent = [item.message for item in outgoing]
            case "server", "unmask":
                aggregate, sent = unmask(self.server), []
                self.result = result_of(aggregate)
            case role, "receive":
                sent = [self.clients[role].answer(self._message(operation["message"]))]
            case _:
                raise AssertionError(f"the replayer knows no {operation}")
        if "sends" in operation:
            blanks = [self.vector.get("fresh", {}).get(name, []) for name in operation["sends"]]
            assert [blank(*each) for each in zip(sent, blanks, strict=True)] == [
                blank(*each) for each in zip(sends, blanks, strict=True)
            ]

    def party(self, operation: Vector) -> Client | Server:
        return self.server if operation["role"] == "server" else self.clients[operation["role"]]

    def _message(self, name_or_bytes: str) -> bytes:
        return bytes.fromhex(self.vector["messages"].get(name_or_bytes, name_or_bytes))


def operations_of(vector: Vector) -> Iterator[Vector]:
    """Yield a vector's operations, including those of its base if it refers to them."""
    for operation in vector["operations"]:
        if "base" in operation:
            start, end = operation["base"]
            yield from VECTORS[vector["base"]]["operations"][start:end]
        else:
            yield operation


def named(culprits: frozenset[Any]) -> set[str]:
    return {str(culprit) for culprit in culprits}


# --- Positive vectors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POSITIVE)
def test_the_library_reproduces_every_byte_and_the_sum(name: str) -> None:
    vector = VECTORS[name]
    replay = Replay(vector)
    for operation in vector["operations"]:
        assert operation["expect"] == "ok"
        replay.perform(operation)
    assert replay.result == vector["result"]
    assert replay.server.state is ServerState.COMPLETED
    assert not replay.server.faults
    assert all(coins.is_exhausted for coins in replay.coins.values()), "no coin is left over"
    assert not any(client.faults for client in replay.clients.values())


@pytest.mark.parametrize("name", POSITIVE)
def test_the_parameters_are_those_of_the_offer(name: str) -> None:
    configuration = generate.configuration_of(VECTORS[name]["parameters"])
    assert configuration.encode().hex() == VECTORS[name]["messages"]["offer"]


@pytest.mark.parametrize("name", POSITIVE)
def test_the_slow_implementation_reproduces_every_byte_and_the_sum(name: str, slow_reference: ModuleType) -> None:
    vector = VECTORS[name]
    session = slow_reference.Session(vector)
    assert session.run() == vector["result"]
    assert {key: message.hex() for key, message in session.messages.items()} == vector["messages"]
    assert set(session.coins_left.values()) == {0}


@pytest.mark.parametrize("name", ACCUMULATED)
def test_the_slow_implementation_accumulates_to_the_same_digest(name: str, slow_reference: ModuleType) -> None:
    vector = VECTORS[name]
    assert slow_reference.digest_of_runs(name, vector) == vector["accumulated"]["digest"]


def test_the_slow_implementation_imports_nothing_of_the_library(repository: Path) -> None:
    files = list((repository / "tests/protocols/pairwise_mask/slow_reference").glob("*.py"))
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    assert len(files) > 1
    assert "import secagg" not in text
    assert "from secagg" not in text
    assert "numpy" not in text


# --- Negative vectors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NEGATIVE)
def test_one_change_ends_in_its_reason_and_names_its_culprits(name: str) -> None:
    replay, last = replayed_but_for_the_last(name)
    party, state = replay.party(last), replay.party(last).state
    with pytest.raises(SecAggError) as caught:
        replay.perform(last)
    assert caught.value.reason == last["expect"]
    assert named(getattr(caught.value, "culprits", frozenset())) == set(last["culprits"])
    assert replay.result is None
    goes_on = is_refused_unread(name) or not isinstance(caught.value, PeerError | ThresholdNotMet)
    if last["do"] != "receive":
        assert party.state is ServerState.ABORTED
    elif isinstance(party, Server):
        assert party.state is state
        # A client that signed a fault is excluded; other faults may be the network's, and change nothing.
        goes_on = set(last["culprits"]) != {last["from"]}
    elif goes_on:
        assert party.state is state
    else:
        assert party.state is ClientState.ABORTED
    if VECTORS[name]["change"]["does"] == "alter" and last["do"] == "receive":
        deliver_the_good_message(replay, VECTORS[name], goes_on=goes_on)


def deliver_the_good_message(replay: Replay, vector: Vector, *, goes_on: bool) -> None:
    """Check that it comes too late, unless the origin of the other one's change is unknown."""
    change = vector["change"]
    good = next(
        operation
        for operation in VECTORS[vector["base"]]["operations"]
        if (operation["role"], operation.get("message")) == (change["role"], change["message"])
    )
    if goes_on:
        replay.perform(good)
        return
    with pytest.raises(PeerError) as late:
        replay.perform(good)
    assert late.value.reason is (Reason.NOT_ELIGIBLE if change["role"] == "server" else Reason.WRONG_KIND)


@pytest.mark.parametrize("name", ENDING_WELL)
def test_one_change_is_overcome_and_named(name: str) -> None:
    replay, last = replayed_but_for_the_last(name)
    replay.perform(last)
    party = replay.party(last)
    errors = party.faults
    found = [{"reason": str(error.reason), "culprits": sorted(named(error.culprits))} for error in errors]
    assert found == last.get("faults", []) + last.get("complaints", [])
    assert found
    if last["do"] == "unmask":
        assert replay.result == VECTORS[VECTORS[name]["base"]]["result"]


def replayed_but_for_the_last(name: str) -> tuple[Replay, Vector]:
    vector = VECTORS[name]
    replay = Replay(VECTORS[vector["base"]])
    *before, last = operations_of(vector)
    for operation in before:
        replay.perform(operation)
    return replay, last


def is_refused_unread(name: str) -> bool:
    """Whether the change is in the header, so that it is unknown whether the message was expected."""
    return int(VECTORS[name]["change"].get("at", HEADER_BYTES)) < HEADER_BYTES


# --- The set of vectors -----------------------------------------------------------------------------------------------


def test_the_vectors_cover_every_kind_of_message() -> None:
    kinds = {kind for table in (CLIENT_TRANSITIONS, SERVER_TRANSITIONS) for kind, _ in table.values()}
    covered = {message_kind(bytes.fromhex(sent)) for name in POSITIVE for sent in VECTORS[name]["messages"].values()}
    assert covered == kinds
    changed = {VECTORS[name]["change"]["message"].rpartition("/")[2] for name in CHANGED}
    assert changed == {"offer", *(kind.name.lower() for kind in kinds if kind.name != "SESSION_OFFER")}


@pytest.mark.parametrize(
    ("mode", "suite", "topology"),
    [
        ("semi_honest", "x25519-aes128", "full"),
        ("semi_honest", "x25519-aes128", "sparse"),
        ("active", "x25519-aes128", "full"),
        ("active", "x25519-aes128", "sparse"),
        ("semi_honest", "mlkem768x25519-aes256", "sparse"),
        ("active", "mlkem768x25519-aes256", "full"),
    ],
)
def test_a_positive_vector_has_this_mode_suite_and_topology(mode: str, suite: str, topology: str) -> None:
    parameters = [VECTORS[name]["parameters"] for name in POSITIVE]
    assert (mode, suite, topology) in [(each["mode"], each["suite"], each["topology"]) for each in parameters]


def test_somebody_drops_out_before_every_round() -> None:
    gone_by = {at for name in POSITIVE for at in VECTORS[name]["dropouts"].values()}
    assert gone_by == {0, 1, 2, 3, 4}


def test_the_negative_vectors_end_in_every_reason_that_a_message_can_give() -> None:
    reasons = {VECTORS[name]["operations"][-1]["expect"] for name in NEGATIVE}
    assert reasons == {str(reason) for reason in GIVEN_BY_A_MESSAGE}


GIVEN_BY_A_MESSAGE = {
    Reason.ALREADY_ANSWERED,
    Reason.AUTHENTICATION_FAILED,
    Reason.BELOW_FLOOR,
    Reason.CHECK_WORDS_MISMATCH,
    Reason.COMMITMENT_MISMATCH,
    Reason.NOT_CANONICAL,
    Reason.NOT_ELIGIBLE,
    Reason.PARAMETER_OUT_OF_RANGE,
    Reason.PUBLIC_KEY_LOW_ORDER,
    Reason.PUBLIC_KEY_NOT_CANONICAL,
    Reason.PUBLIC_KEY_REUSED,
    Reason.QUORUM_NOT_MET,
    Reason.ROSTER_INVALID,
    Reason.SHARE_OUT_OF_RANGE,
    Reason.SURVIVORS_INVALID,
    Reason.THRESHOLD_NOT_MET,
    Reason.TRAILING_BYTES,
    Reason.TRUNCATED,
    Reason.WRONG_KIND,
    Reason.WRONG_SESSION,
    Reason.WRONG_VERSION,
}


def test_the_readme_names_the_vectors_that_are_not_negative() -> None:
    text = (generate.FOLDER.parent / "README.md").read_text(encoding="utf-8")
    assert [name for name in (*POSITIVE, *ACCUMULATED) if f"| `{name}` |" not in text] == []


def test_the_generator_makes_the_vectors_as_they_are() -> None:
    made = dict(generate.vectors(VECTORS))
    assert made.keys() == VECTORS.keys()
    assert [name for name in made if json.loads(generate.to_text(made[name])) != VECTORS[name]] == []
