"""Rules for server sessions: a session with three stages, and two hundred flipped bits in every protocol."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import pytest

from secagg.conformance.rehearsal import Rehearsal
from secagg.contract import Aggregate, Layout, RingSegment
from secagg.errors import NOBODY, Misuse, PeerError, PeerMisbehaved, Reason, ThresholdNotMet, UnexpectedMessage
from secagg.identifiers import ClientId, ServerId
from secagg.session.roles import Participation, Released, Stage
from secagg.session.stages import Checked, StagedServerSession
from tests.harness.session_worlds import candidate_of

ALICE, BOB, CAROL, EVE = map(ClientId, (1, 2, 3, 99))
INVITED = frozenset({ALICE, BOB, CAROL})
STAGES = tuple(Stage(name=name, takes_update=name == "input") for name in ("keys", "input", "answers"))
FLIPS = 200


class ThreeStages(StagedServerSession[str]):
    """Clients sign ``<stage>:<name>:<word>`` by a digest; the word ``lie`` is a fault, ``leave`` a dropout."""

    def __init__(self, minimum: int = 2) -> None:
        self.words, self.is_wiped = list[str](), False
        super().__init__(STAGES[0], b"offer", INVITED, minimum)

    @property
    def is_signed(self) -> bool:
        return True

    def _check(self, sender: ClientId, message: bytes) -> Checked[str]:
        said, _, signature = message.rpartition(b"|")
        if hashlib.sha256(said).digest()[:4] != signature:
            raise PeerMisbehaved("unsigned", reason=Reason.AUTHENTICATION_FAILED, culprits={sender, ServerId()})
        stage, name, word = said.decode().split(":")
        if self._stage is None or (stage, name) != (self._stage.name, str(sender.value)):
            raise PeerMisbehaved("context", reason=Reason.WRONG_SESSION, culprits={sender, ServerId()})
        return Checked(word, hashlib.sha256(said).digest())

    def _take(self, sender: ClientId, content: str) -> None:
        if content == "lie":
            raise PeerMisbehaved("a lie", reason=Reason.INPUT_OUT_OF_RANGE, culprits={sender})
        if content == "leave":
            self._leave(sender)
        self.words.append(content)

    def _next(self) -> tuple[Stage, Mapping[ClientId, bytes]] | None:
        assert self._stage is not None
        number = STAGES.index(self._stage) + 1
        if number == len(STAGES):
            return None
        return STAGES[number], {client: str(client).encode() for client in self._said if client not in self._out}

    def _sum(self, progress: Callable[[int, int], None] | None) -> Released:
        del progress
        layout = Layout((RingSegment(4, 1),))
        values = tuple(segment.ring.zeros(1) for segment in layout.require_rings())
        counted = frozenset(self._said)
        return Released(
            aggregate=Aggregate(layout, values, len(counted)),
            counted=counted,
            left_out={},
            revealed=frozenset({counted}),
            unbounded=(),
        )

    def _wipe(self) -> None:
        self.is_wiped = True


def said(session: ThreeStages, client: ClientId, word: str = "yes") -> bytes:
    assert session.stage is not None
    text = f"{session.stage.name}:{client.value}:{word}".encode()
    return text + b"|" + hashlib.sha256(text).digest()[:4]


def refused(session: ThreeStages, client: ClientId, message: bytes) -> PeerError:
    with pytest.raises(PeerError) as caught:
        session.receive(client, message)
    return caught.value


def test_a_lie_excludes_its_signer_but_unverified_bytes_exclude_nobody() -> None:
    session = ThreeStages()
    answer = said(session, ALICE)
    for wrong in (answer[:-1], said(session, BOB), answer[:-1] + b"x", b"input" + answer[4:]):
        assert refused(session, ALICE, wrong).culprits == {ALICE, ServerId()}
    assert session.awaited == INVITED
    assert [fault.reason for fault in session.faults] == [Reason.AUTHENTICATION_FAILED, Reason.WRONG_SESSION]
    session.receive(ALICE, answer)
    assert refused(session, BOB, said(session, BOB, "lie")).culprits == {BOB}
    assert refused(session, BOB, said(session, BOB)).reason is Reason.NOT_ELIGIBLE
    assert session.awaited == {CAROL}
    session.receive(CAROL, said(session, CAROL, "leave"))
    assert session.participation is Participation.COMPLETE
    session.close_stage()
    assert session.awaited == {ALICE}


def test_the_first_of_two_signed_answers_counts_and_a_restarted_client_is_not_blamed() -> None:
    session = ThreeStages()
    session.receive(ALICE, said(session, ALICE))
    error = refused(session, ALICE, said(session, ALICE, "no"))
    assert error.reason is Reason.ALREADY_ANSWERED
    assert error.culprits is NOBODY
    assert "restarts without its state" in str(error)
    assert refused(session, ALICE, said(session, ALICE, "no")[:-1]).culprits == {ALICE, ServerId()}
    assert session.words == ["yes"]


class ReadsEnds(ThreeStages):
    """Answers may have any ending, as with malleable signatures."""

    def _check(self, sender: ClientId, message: bytes) -> Checked[str]:
        return super()._check(sender, message.partition(b"&")[0])


def test_encodings_of_one_answer_do_not_use_up_memory() -> None:
    session = ReadsEnds()
    answer = said(session, ALICE)
    session.receive(ALICE, answer)
    for number in range(100):
        session.receive(ALICE, answer + b"&%d" % number)
    assert session.words == ["yes"]
    assert len(vars(session)["_heard"][ALICE]) < 20
    session.abort()
    session.receive(ALICE, answer)  # The first is kept for good.


class ReadsKinds(ThreeStages):
    """Calls an answer to another stage late, and requires three keys although two are enough."""

    def _check(self, sender: ClientId, message: bytes) -> Checked[str]:
        if message.startswith(b"answers"):
            raise UnexpectedMessage(expected="keys", received="answers")
        return super()._check(sender, message)

    def _is_enough(self) -> bool:
        return len(self._said) == len(INVITED)

    def _require_enough(self, stage: Stage) -> None:
        if stage is STAGES[1]:
            raise ThresholdNotMet(needed=9, present=0, what="of anything")
        super()._require_enough(stage)


def test_a_late_or_early_answer_is_not_a_fault() -> None:
    session = ReadsKinds()
    assert refused(session, ALICE, b"answers:1:yes").culprits == {ALICE, ServerId()}
    assert (session.faults, session.awaited) == ((), INVITED)
    wrong: list[object] = [1, "keys", None]
    for message in wrong:
        with pytest.raises(Misuse, match="a message must be bytes"):
            session.receive(ALICE, message)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    session.receive(ALICE, memoryview(said(session, ALICE)))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def test_a_protocol_reports_what_a_stage_needs_and_what_is_likely_enough() -> None:
    session = ReadsKinds()
    for client in (ALICE, BOB):
        session.receive(client, said(session, client))
        assert session.participation is Participation.TOO_FEW
    session.close_stage()
    with pytest.raises(ThresholdNotMet) as caught:
        session.close_stage()
    assert caught.value.needed == 9
    assert session.is_wiped


@pytest.mark.parametrize("name", ["enclave", "two servers", "one message", "pairwise, active, full"])
def test_the_true_answer_is_accepted_after_any_flipped_bit(name: str) -> None:
    """The network flips one bit, also in ``active`` mode; a refused answer leaves no trace but a fault."""
    rehearsal = Rehearsal.begin(candidate_of(name))
    while rehearsal.server.stage is not None:
        client, answer = next(iter(rehearsal.all_answers().items()))
        for number in range(FLIPS):
            place = number * len(answer) * 8 // FLIPS
            altered = bytearray(answer)
            altered[place // 8] ^= 1 << place % 8
            with pytest.raises(PeerError) as caught:
                rehearsal.server.receive(client, bytes(altered))
            assert caught.value.culprits != {client}
            assert client in (rehearsal.server.awaited or ())
        rehearsal.step()
    rehearsal.require_exact(rehearsal.server.release(), rehearsal.candidate.clients)
