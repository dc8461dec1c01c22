"""One round on a platform's server: attribution of messages, requests to clients, and the round's end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from secagg.crypto.labels import Label
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, PeerMisbehaved, Reason, ThresholdNotMet
from secagg.identifiers import ClientId
from secagg.platforms import Left, StageCount, code_of, code_said, log_leaving, needing
from secagg.platforms.round_task import RoundTask
from secagg.platforms.server_round import FOR_EVER, Answer, Reply, ServerRound
from secagg.platforms.terms import NEWEST_FORM, Record, record_of
from secagg.session.certificates import Certificate, SigningKey
from secagg.session.identities import Roster
from secagg.session.roles import Participation, ServerSession, Stage
from secagg.session.signing_keys import issue_certificate

ONE, TWO, THREE = (ClientId(number) for number in (1, 2, 3))
NODES = {"a": ONE, "b": TWO, "c": THREE}
KEYS, FIRST, UPLOAD = (
    Stage(name="keys", takes_update=False),
    Stage(name="first", takes_update=True),
    Stage(name="upload", takes_update=True),
)
DIGEST = bytes(range(32))
FAULT = PeerMisbehaved("two answers", reason=Reason.ALREADY_ANSWERED, culprits={TWO})


@dataclass
class Session:
    """A session that accepts everything unless told to refuse, and records its calls."""

    stages: list[Stage] = field(default_factory=lambda: [KEYS, UPLOAD])
    silent: frozenset[ClientId] = frozenset()
    """Clients that receive nothing after the first stage."""
    heard: list[tuple[ClientId, bytes]] = field(default_factory=list[tuple[ClientId, bytes]])
    dropped: list[ClientId] = field(default_factory=list[ClientId])
    ended: list[str] = field(default_factory=list[str])
    faults: tuple[PeerMisbehaved, ...] = (FAULT,)
    invitation: bytes = b"come"
    participation: Participation = Participation.TOO_FEW

    @property
    def stage(self) -> Stage | None:
        return self.stages[0] if self.stages else None

    def message_to(self, client: ClientId) -> bytes | None:
        return None if client in self.silent else b"to %d" % client.value

    def receive(self, client: ClientId, message: bytes) -> None:
        if message == b"garbage":
            raise PeerMisbehaved("garbage", reason=Reason.NOT_CANONICAL, culprits={client})
        self.heard.append((client, message))

    def drop(self, client: ClientId) -> None:
        self.dropped.append(client)

    def close_stage(self) -> None:
        self.stages.pop(0)

    def release(self) -> Any:
        self.ended.append("released")
        return self

    aggregate = "the sum"

    def abort(self) -> None:
        self.ended.append("aborted")


@dataclass
class Task:
    """The parts of a subject that a round uses."""

    session: Session = field(default_factory=Session)
    roster: Roster | None = None
    threshold: int = 0
    told: list[str] = field(default_factory=list[str])
    round_number: int = 7
    held: Any = None
    settings: Any = field(default_factory=lambda: SimpleNamespace(stage_timeout=60.0, stage_patience=2.0))
    record: Any = field(default_factory=lambda: {"terms": "{}", "parameters": b""})

    @property
    def terms(self) -> Any:
        return self

    digest = DIGEST

    def opened(self, population: int, invited: frozenset[ClientId], coins: Any, resources: Any) -> Session:
        del coins, resources
        assert (population, invited) == (len(NODES), frozenset(NODES.values()))
        return self.session

    def say_noise(self, session: Session) -> None:
        assert session.stage is not None
        self.told.append(session.stage.name)

    def say_if_noise_alone(self, session: Session, aggregate: object) -> None:
        assert session.stage is None
        self.told.append(f"a sum of {aggregate}")

    def require_threshold(self, invited: int, received: int) -> None:
        if received < self.threshold:
            raise ThresholdNotMet(needed=self.threshold, present=received, what=f"of {invited}")


Talk = Callable[["Round", Stage, Mapping[str, bytes]], None]


class Round(ServerRound[str]):
    """A round whose nodes give scripted answers, and are silent afterwards."""

    def __init__(self, task: Task, talk: Talk, first: float | None = None, training: float = FOR_EVER) -> None:
        super().__init__(cast("RoundTask", task), first=first, training=training)
        self.session, self._talk = task.session, talk
        self.sent = list[tuple[str, Mapping[str, bytes], bool]]()
        self.unsendable = set[str]()
        self.ends = 0
        self.seconds = list[float]()
        self._replies = list[tuple[str, Reply]]()

    def send(self, records: Mapping[str, Record], *, takes_update: bool) -> list[str]:
        stage = self.session.stages[0]
        assert takes_update == stage.takes_update
        messages = {node: cast("bytes", record["message"]) for node, record in records.items()}
        (has_terms,) = {"terms" in record for record in records.values()}
        self.sent.append((stage.name, messages, has_terms))
        assert len(self.sent) <= len(self.session.stages) + 2, "a stage is never closed"
        self.session.participation = Participation.TOO_FEW
        self._talk(self, stage, messages)
        return [node for node in records if node not in self.unsendable]

    def heard(self, seconds: float) -> list[tuple[str, Reply]]:
        assert seconds > 0
        self.seconds.append(seconds)
        found, self._replies = self._replies, []
        if not found:
            self.session.participation = Participation.COMPLETE
        return found

    def end_stage(self) -> None:
        self.ends += 1

    def says(self, node: str, answer: Answer | Exception | Left | None, count: StageCount | None = None) -> bool:
        """Send a node's answer, or deliver it at once if there is a count; return whether it was accepted."""

        def read() -> Answer | Left | None:
            if isinstance(answer, Exception):
                raise answer
            return answer

        if count is None:
            self._replies.append((node, read))
            return True
        before = count.received
        self._take(cast("ServerSession", self.session), node, read, count)
        return count.received > before


def plain(message: bytes = b"answer", size: int = 10) -> Answer:
    return Answer(message, TWO, b"", size)


def all_answer(carried: Round, stage: Stage, messages: Mapping[str, bytes]) -> None:
    del stage
    for node in messages:
        carried.says(node, plain())


def test_terms_go_with_the_invitation_alone_and_every_stage_asks_those_who_are_there() -> None:
    def talk(carried: Round, stage: Stage, messages: Mapping[str, bytes]) -> None:
        for node in messages:
            if not (stage is KEYS and node == "c"):
                carried.says(node, plain())

    task = Task()
    carried = Round(task, talk)
    assert carried.carried(NODES) == "the sum"  # type: ignore[comparison-overlap]
    assert carried.sent == [
        ("keys", dict.fromkeys(NODES, b"come"), True),
        ("upload", {"a": b"to 1", "b": b"to 2"}, False),
    ]
    assert task.told == ["upload", "a sum of the sum"], "what noise costs is said before updates are asked for"
    assert [(name, count.received, count.bytes_up) for name, count in carried.stages] == [
        ("keys", 2, 20),
        ("upload", 2, 20),
    ]
    assert task.session.ended == ["released", "aborted"], "a session is over with its round"


def test_the_first_stage_may_have_a_time_of_its_own() -> None:
    carried = Round(Task(Session(stages=[KEYS, KEYS])), all_answer, first=600.0)
    carried.carried(NODES)
    first, then = carried.seconds
    assert 60 < first <= 600
    assert then <= 60


def test_each_stage_is_told_with_why_clients_left(caplog: pytest.LogCaptureFixture) -> None:
    def talk(carried: Round, stage: Stage, messages: Mapping[str, bytes]) -> None:
        all_answer(carried, stage, {node: message for node, message in messages.items() if node != "b"})
        if stage is KEYS:
            carried.says("b", Left.TERMS)

    with caplog.at_level(logging.INFO):
        Round(Task(), talk).carried(NODES)
    assert "round 7, keys: sent 3 (0.0 kB), received 2 (0.0 kB), dropped 1, in 0.0 s (1 left: terms)" in caplog.text
    assert "1 clients left with code 'terms': the session is weaker than their policy accepts" in caplog.text


@pytest.mark.parametrize(
    ("stages", "named"),
    [
        ([UPLOAD, KEYS], "secagg-stage-timeout"),
        ([KEYS], "the timeout of training"),
        ([UPLOAD], "the timeout of training"),
    ],
    ids=["later", "first", "training"],
)
def test_an_error_after_a_timeout_names_what_sets_it(stages: list[Stage], named: str) -> None:
    """Two nodes answer the last stage, and one lets it time out."""

    class Few(Session):
        def close_stage(self) -> None:
            super().close_stage()
            if not self.stages:
                raise ThresholdNotMet(needed=3, present=2, what="clients", must="share keys")

    class Late(Round):
        def heard(self, seconds: float) -> list[tuple[str, Reply]]:
            found = super().heard(seconds)
            self.session.participation = Participation.TOO_FEW
            return found

    def talk(carried: Round, stage: Stage, messages: Mapping[str, bytes]) -> None:
        all_answer(carried, stage, {"a": b"", "b": b"", **(messages if len(carried.session.stages) > 1 else {})})

    task = Task(Few(stages=[*stages]))
    task.settings.stage_timeout = 0.05
    carried = Late(task, talk, first=0.05, training=0.05)
    said = f"not enough clients: 3 must share keys, 2 did; 1 did not answer within 0.05 s: raise {named}"
    with pytest.raises(ThresholdNotMet, match=f"{said}$"):
        carried.carried(NODES)


def test_an_error_without_a_timeout_names_none() -> None:
    def talk(carried: Round, stage: Stage, messages: Mapping[str, bytes]) -> None:
        del stage
        for node in messages:
            carried.says(node, Left.LEFT)

    class Few(Session):
        def close_stage(self) -> None:
            raise ThresholdNotMet(needed=3, present=0, what="clients", must="share keys")

    with pytest.raises(ThresholdNotMet, match=r"3 must share keys, 0 did$"):
        Round(Task(Few()), talk).carried(NODES)


@pytest.mark.parametrize(
    ("answering", "waits", "said"),
    [
        ("ab", [60.0], "; 1 did not answer within 60 s: raise the timeout of training"),
        ("ab", [15.0, 15.0], ""),
        ("abc", [60.0], ""),
    ],
    ids=["all of the time is over", "the session waits no longer", "the last answer came at the last moment"],
)
def test_a_timeout_is_named_only_if_somebody_missed_it(
    answering: str, waits: list[float], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    class Few(Session):
        def close_stage(self) -> None:
            raise ThresholdNotMet(needed=4, present=2, what="clients", must="share keys")

    class Timed(Round):
        def heard(self, seconds: float) -> list[tuple[str, Reply]]:
            nonlocal now
            now += waits.pop(0)
            return super().heard(seconds)

    def talk(carried: Round, stage: Stage, messages: Mapping[str, bytes]) -> None:
        all_answer(carried, stage, {node: messages[node] for node in answering})

    monkeypatch.setattr("secagg.platforms.server_round.time", SimpleNamespace(monotonic=lambda: now))
    with pytest.raises(ThresholdNotMet, match=f"share keys, 2 did{said}$"):
        Timed(Task(Few()), talk).carried(NODES)


@pytest.mark.parametrize(
    ("first", "foreign", "is_advised"), [(KEYS, "abc", True), (KEYS, "ab", False), (UPLOAD, "abc", False)]
)
def test_a_round_in_which_everybody_speaks_something_else_ends_with_advice(
    first: Stage, foreign: str, *, is_advised: bool
) -> None:
    """Only in the first stage, and only if it is everybody: then the nodes run another app."""

    class Few(Session):
        def close_stage(self) -> None:
            if len(self.stages) == 1:
                raise ThresholdNotMet(needed=3, present=0, what="clients", must="share keys")
            super().close_stage()

    class Advising(Round):
        if_foreign = "start the clients' app"

    def talk(carried: Round, stage: Stage, messages: Mapping[str, bytes]) -> None:
        for node in messages:
            is_odd = node in foreign and len(carried.session.stages) == 1
            carried.says(node, (Left.FOREIGN if is_odd else Left.LEFT) if stage is KEYS else plain())

    task = Task(Few(stages=[KEYS] if first is KEYS else [UPLOAD, KEYS]))
    with pytest.raises(ThresholdNotMet, match=f"0 did{'; start the clients. app' if is_advised else ''}$"):
        Advising(cast("Any", task), talk).carried(NODES)


def test_a_round_whose_noise_cannot_be_told_has_asked_nobody_and_may_be_repeated() -> None:
    class Silent(Task):
        def say_noise(self, session: Session) -> None:
            super().say_noise(session)
            raise ConnectionError("the accountant is gone")

    carried = Round(Silent(Session(stages=[UPLOAD])), all_answer)
    with pytest.raises(ConnectionError):
        carried.carried(NODES)
    assert not carried.has_asked
    assert not carried.sent
    other = Round(Task(Session(stages=[UPLOAD])), all_answer)
    other.carried(NODES)
    assert other.has_asked


def test_the_operator_sees_who_speaks_what_and_whom_a_form_leaves_out(caplog: pytest.LogCaptureFixture) -> None:
    def talk(carried: Round, _: Stage, messages: Mapping[str, bytes]) -> None:
        for node in messages:
            newest = bytes([4 if node == "a" else 3])
            carried.says(node, Left.VERSION if node == "b" else replace(plain(), newest_form=newest))

    with caplog.at_level(logging.INFO):
        Round(Task(), talk).carried(NODES)
    assert "clients by the newest form of messages that they support: 3: 1, 4: 1" in caplog.text
    assert caplog.text.count("newest form") == 1, "once a round"
    assert "1 clients left with code 'version': they do not support the round's form" in caplog.text


def test_a_record_without_a_form_or_with_a_long_one_is_refused() -> None:
    record = record_of(b"answer", ONE)
    assert Answer.of(record).newest_form == NEWEST_FORM == b"\3"
    for wrong in (None, b"", b"\3\4", "3"):
        with pytest.raises(MalformedMessage, match="lacks 'newest_form'"):
            Answer.of({**record, "newest_form": wrong})


def test_who_could_not_be_sent_to_is_awaited_no_more(caplog: pytest.LogCaptureFixture) -> None:
    def talk(carried: Round, stage: Stage, messages: Mapping[str, bytes]) -> None:
        # Further messages in its name answer no request.
        all_answer(carried, stage, messages)
        carried.unsendable = {"b"} if stage is KEYS else set()

    task = Task()
    carried = Round(task, talk)
    with caplog.at_level(logging.WARNING):
        carried.carried(NODES)
    assert task.session.dropped == [TWO]
    assert [client for client, _ in task.session.heard] == [ONE, THREE] * 2
    assert "could not send to node b" in caplog.text
    assert carried.ends == 2, "what a stage asked for is taken back"


def test_a_node_is_heard_once_in_a_stage() -> None:
    def talk(carried: Round, stage: Stage, messages: Mapping[str, bytes]) -> None:
        all_answer(carried, stage, messages)
        carried.says("a", plain(b"another"))
        carried.says("b", None)

    task = Task()
    Round(task, talk).carried(NODES)
    assert [message for _, message in task.session.heard] == [b"answer"] * 6
    assert not task.session.dropped


def test_a_lost_node_is_named_and_no_code_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    carried, count = begun(task := Task())
    with caplog.at_level(logging.WARNING):
        carried.says("a", None, count)
    assert (task.session.dropped, count.failed) == ([ONE], 0)
    assert "node a is lost" in caplog.text


def test_who_is_sent_nothing_is_not_asked() -> None:
    task = Task(Session(silent=frozenset({TWO})))
    carried = Round(task, all_answer)
    carried.carried(NODES)
    assert carried.sent[1] == ("upload", {"a": b"to 1", "c": b"to 3"}, False)


def test_a_round_below_its_threshold_ends_before_the_sum(caplog: pytest.LogCaptureFixture) -> None:
    """It does not apply to a stage without updates: clients that leave there have sent nothing."""

    def talk(carried: Round, stage: Stage, messages: Mapping[str, bytes]) -> None:
        for node in list(messages)[: 2 if stage.takes_update else 3]:
            carried.says(node, plain())

    task = Task(Session(stages=[KEYS, UPLOAD, KEYS]), threshold=3)
    with caplog.at_level(logging.WARNING), pytest.raises(ThresholdNotMet, match="of 3"):
        Round(task, talk).carried(NODES)
    assert task.session.ended == ["aborted"]
    assert "round 7 failed, and the server learned nothing" in caplog.text
    assert "two answers (to blame: client/2)" in caplog.text
    few = Task(Session(stages=[UPLOAD, KEYS]), threshold=2)

    def two(carried: Round, stage: Stage, messages: Mapping[str, bytes]) -> None:
        for node in list(messages)[: 2 if stage.takes_update else 1]:
            carried.says(node, plain())

    assert Round(few, two).carried(NODES) == "the sum"  # type: ignore[comparison-overlap]


def test_a_lost_helper_ends_the_round_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    def talk(*_: object) -> None:
        raise ConnectionError("the helper is gone")

    task = Task(Session(faults=(PeerMisbehaved("a lie", reason=Reason.NOT_CANONICAL, culprits=()),)))
    with caplog.at_level(logging.WARNING), pytest.raises(ConnectionError, match="is gone"):
        Round(task, talk).carried(NODES)
    assert task.session.ended == ["aborted"]
    assert "the server learned nothing: the helper is gone" in caplog.text
    assert "a lie (to blame: nobody for certain)" in caplog.text


def begun(task: Task) -> tuple[Round, StageCount]:
    """Return a round that is in its first stage, and that stage's count."""

    def talk(*_: object) -> None:
        raise Misuse("the test goes on by itself")

    carried = Round(task, talk)
    with pytest.raises(Misuse):
        carried.carried(NODES)
    return carried, StageCount(sent=len(NODES))


def test_a_node_that_nobody_invited_is_heard_in_no_name(caplog: pytest.LogCaptureFixture) -> None:
    carried, count = begun(task := Task())
    with caplog.at_level(logging.WARNING):
        assert not carried.says("stranger", plain(), count)
    assert not task.session.heard
    assert (count.refused, count.received) == (1, 0)
    assert (
        "is excluded: nobody was invited under this name; the platform names the nodes that take part\n" in caplog.text
    )


def test_what_cannot_be_read_or_is_refused_counts_as_that_and_leaves_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    carried, count = begun(task := Task())
    with caplog.at_level(logging.WARNING):
        assert not carried.says("a", MalformedMessage("no answer", reason=Reason.NOT_CANONICAL), count)
        assert not carried.says("a", TypeError("unhashable type: 'list'"), count)
        assert not carried.says("b", plain(b"garbage"), count)
        assert carried.says("c", plain(), count)
    assert (count.refused, count.received, count.bytes_up) == (3, 1, 20)
    assert task.session.heard == [(THREE, b"answer")]
    assert "node a is excluded: no answer\n" in caplog.text
    assert "node b is excluded: garbage (to blame: client/2)" in caplog.text


@pytest.fixture
def keys() -> dict[ClientId, SigningKey]:
    return {client: SigningKey(Secret("seed", bytes([client.value]) * 32)) for client in NODES.values()}


@pytest.fixture
def roster(keys: dict[ClientId, SigningKey]) -> Roster:
    authority = SigningKey(Secret("seed", bytes([9]) * 32))
    certificates: dict[ClientId, Certificate] = {
        client: issue_certificate(authority, client, key.public_key) for client, key in keys.items()
    }
    return Roster(authority.public_key, certificates)


def signed(key: SigningKey, client: ClientId, message: bytes = b"answer", about: bytes = DIGEST) -> Answer:
    return Answer(message, client, key.sign(Label.PLATFORM_ANSWER, about, NEWEST_FORM, message), 10)


def test_with_a_roster_a_client_is_who_its_signature_says(roster: Roster, keys: dict[ClientId, SigningKey]) -> None:
    """A node's statements about itself, or in another's name, exclude no other node."""
    carried, count = begun(task := Task(roster=roster))
    assert carried.says("a", signed(keys[THREE], THREE), count)
    assert task.session.heard == [(THREE, b"answer")]
    for wrong in (
        plain(),
        Answer(b"answer", TWO, b"", 10),
        signed(keys[ONE], TWO),
        signed(keys[TWO], TWO, about=bytes(32)),
        Answer(b"garbage", TWO, signed(keys[TWO], TWO).signature, 10),
        replace(signed(keys[TWO], TWO), newest_form=b"\2"),
        signed(keys[TWO], ClientId(4)),
    ):
        assert not carried.says("b", wrong, count)
    assert task.session.heard == [(THREE, b"answer")]
    assert not carried.says("b", signed(keys[THREE], THREE), count), "two nodes do not speak for one client"
    assert carried.says("a", signed(keys[THREE], THREE), count)
    assert carried.says("b", signed(keys[TWO], TWO), count)
    assert [client for client, _ in task.session.heard] == [THREE, THREE, TWO]


def test_a_stranger_with_a_key_of_the_roster_is_not_heard(roster: Roster, keys: dict[ClientId, SigningKey]) -> None:
    carried, count = begun(task := Task(roster=roster))
    assert not carried.says("stranger", signed(keys[ONE], ONE), count)
    assert not task.session.heard


def test_a_node_that_leaves_takes_its_own_clients_along_and_says_why() -> None:
    carried, count = begun(task := Task())
    carried.says("a", plain(), count)
    carried.says("b", Left.LEFT, count)
    carried.says("stranger", None, count)
    assert task.session.dropped == [TWO]
    assert dict(count.left) == {Left.LEFT: 1}
    carried.says("a", None, count)
    assert set(task.session.dropped) == {ONE, TWO}
    assert count.failed == 1


def test_with_a_roster_a_node_that_never_showed_its_key_takes_nobody_along(
    roster: Roster, keys: dict[ClientId, SigningKey]
) -> None:
    """The client with this number may be another one."""
    carried, count = begun(task := Task(roster=roster))
    carried.says("a", signed(keys[THREE], THREE), count)
    carried.says("b", None, count)
    assert not task.session.dropped
    carried.says("a", None, count)
    assert task.session.dropped == [THREE]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PeerMisbehaved("twice", reason=Reason.ALREADY_ANSWERED, culprits=()), Left.LEFT),
        (PeerMisbehaved("another", reason=Reason.BELOW_FLOOR, culprits=()), Left.TERMS),
        (MalformedMessage("form 4", reason=Reason.WRONG_VERSION), Left.VERSION),
        (Misuse("a range", reason=Reason.INPUT_OUT_OF_RANGE), Left.LEFT),
        (Misuse("anything"), Left.LEFT),
        (RuntimeError("a secret"), Left.LEFT),
    ],
)
def test_of_an_error_the_server_is_told_one_of_three_codes(error: Exception, code: Left) -> None:
    assert code_of(error) is code
    assert code_said(str(code)) is code


def test_only_what_is_known_before_data_are_read_is_told_as_terms() -> None:
    codes = {reason: code_of(Misuse("x", reason=reason)) for reason in Reason}
    assert {reason for reason, code in codes.items() if code is Left.TERMS} == {
        Reason.BELOW_FLOOR,
        Reason.LAYOUT_MISMATCH,
        Reason.PARAMETER_OUT_OF_RANGE,
    }
    assert [reason for reason, code in codes.items() if code is Left.VERSION] == [Reason.WRONG_VERSION]


def test_why_a_client_leaves_is_in_its_own_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        log_leaving(Misuse("its update holds NaN"))
        log_leaving(ConnectionError("the helper is gone"))
        assert caplog.messages == [
            "this client left the round: its update holds NaN",
            "this client left the round: the helper is gone",
        ]
        assert "Traceback" not in caplog.text
        try:
            int("a message")
        except ValueError as error:
            log_leaving(error)
    assert caplog.messages[2] == "this client left the round: a message could not be read"
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("said", ["a secret", "weight", "", None, 5, b"terms"])
def test_any_other_code_is_taken_for_the_last(said: object) -> None:
    assert code_said(said) is Left.LEFT


# --- Models that nodes hold -------------------------------------------------------------------------------------------


@dataclass
class Held:
    """Held models that record the clients that answered."""

    had: list[set[str]] = field(default_factory=list[set[str]])

    def record(self, node: str) -> Record:
        return {"held": node.encode()}

    def answered(self, nodes: set[str]) -> None:
        self.had.append(set(nodes))


def test_who_answered_the_stage_of_updates_holds_the_model_and_nobody_else() -> None:
    def talk(carried: Round, stage: Stage, messages: Mapping[str, bytes]) -> None:
        assert set(messages) == {*"abc"}
        carried.says("a", plain())
        carried.says("b", plain(b"answer" if stage is KEYS else b"garbage"))
        carried.says("c", plain() if stage is KEYS else None)

    held = Held()
    Round(Task(held=held), talk).carried(NODES)
    assert held.had == [{"a"}]


def test_a_stage_below_the_threshold_is_not_closed() -> None:
    def talk(carried: Round, stage: Stage, messages: Mapping[str, bytes]) -> None:
        all_answer(carried, stage, {node: message for node, message in messages.items() if node != "c"})

    task = Task(Session(stages=[UPLOAD]), threshold=3)
    with pytest.raises(ThresholdNotMet):
        Round(task, talk).carried(NODES)
    assert task.session.stages == [UPLOAD]


@pytest.mark.parametrize("missing", ["flwr.app", "json.nowhere"])
def test_a_platform_that_is_absent_is_named_with_its_extra(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another missing module does not mean that the platform is absent."""

    def load(_: str) -> object:
        raise ModuleNotFoundError(name=missing)

    def public_names(*_: object) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
        return load, list, []

    monkeypatch.setattr("secagg.platforms.public_names", public_names)
    found = needing("flwr", "secagg.flower", {})[0]
    with pytest.raises(InvalidParameters if missing == "flwr.app" else ModuleNotFoundError) as refused:
        found("SecAggGrid")
    assert ("pip install '.[flower]' in a checkout" in str(refused.value)) is (missing == "flwr.app")
