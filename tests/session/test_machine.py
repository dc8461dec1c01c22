"""Sessions of every protocol with steps in random order: the sum is right for the counted clients, or there is none.

The network delivers, repeats, alters and swaps answers; clients drop out, or are suspended and resumed; the server
closes stages, and is restored from its snapshot.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from secagg.conformance.rehearsal import Rehearsal
from secagg.errors import PeerError, SecAggError
from secagg.identifiers import ClientId
from tests.harness.session_worlds import SETTINGS, candidate_of

FEWEST = 2
"""Clients that never drop out, so that every machine can close its stages."""


class SessionMachine(RuleBasedStateMachine):
    """One session of one protocol."""

    name: ClassVar[str]

    @initialize()
    def start(self) -> None:
        self.candidate = candidate_of(self.name)
        self.rehearsal = Rehearsal.begin(self.candidate)
        self.gone = set[ClientId]()
        self.uploaded = set[ClientId]()
        self.takes_update = False
        """Whether the stage that takes updates was closed."""
        self.delivered = dict[ClientId, bytes]()
        """Answers of the open stage that the server accepted."""
        self.spoilt = False
        """Whether the server accepted an answer that an honest network would not deliver."""
        self.over = False

    @property
    def server(self) -> Any:
        return self.rehearsal.server

    @property
    def is_open(self) -> bool:
        return not self.over and self.server.stage is not None

    def answer_of(self, client: ClientId) -> bytes | None:
        """Return a client's answer in the open stage; a client that refuses to answer has dropped out."""
        if client in self.gone:
            return None
        try:
            return self.rehearsal.answer(client)
        except SecAggError:
            self.lose(client)
            return None

    def lose(self, client: ClientId) -> None:
        self.gone.add(client)
        self.server.drop(client)
        self.rehearsal.sessions[client].abort()

    def standing(self) -> tuple[object, ...]:
        return self.server.participation, self.server.awaited

    # Actions of the network.

    @precondition(lambda self: self.is_open)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.candidate.clients))
        self.take(client)

    def take(self, client: ClientId) -> None:
        if (answer := self.answer_of(client)) is None or client in self.delivered:
            return
        self.server.receive(client, answer)
        self.delivered[client] = answer
        assert client not in (self.server.awaited or ())
        if self.server.stage.takes_update:
            self.uploaded.add(client)

    @precondition(lambda self: self.is_open)
    @rule()
    def deliver_to_all(self) -> None:
        for client in self.candidate.clients:
            self.take(client)

    @precondition(lambda self: self.is_open and self.delivered)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(sorted(self.delivered)))
        before = *self.standing(), self.server.faults
        if client not in self.gone:
            self.server.receive(client, self.delivered[client])
        assert (*self.standing(), self.server.faults) == before

    @precondition(lambda self: self.is_open)
    @rule(data=st.data(), bit=st.integers(0, 7), part=st.floats(0, 1, exclude_max=True))
    def alter(self, data: st.DataObject, bit: int, part: float) -> None:
        """Alter an answer; if it is refused, nothing changes, and the sender's true answer is accepted later."""
        client = data.draw(st.sampled_from(self.candidate.clients))
        if (answer := self.answer_of(client)) is None:
            return
        altered = bytearray(answer)
        altered[int(part * len(altered))] ^= 1 << bit
        self.hand_over(client, bytes(altered))

    @precondition(lambda self: self.is_open)
    @rule(data=st.data())
    def swap_sender(self, data: st.DataObject) -> None:
        owner, thief = data.draw(st.permutations(self.candidate.clients))[:2]
        if (answer := self.answer_of(owner)) is not None and self.answer_of(thief) != answer:
            self.hand_over(thief, answer)

    def hand_over(self, client: ClientId, wrong: bytes) -> None:
        before, is_first = self.standing(), client not in self.delivered
        try:
            self.server.receive(client, wrong)
        except PeerError:
            assert self.standing() == before
            return
        if self.standing() != before or is_first:
            # The change is outside the signed part, so this is now the client's first answer.
            self.spoilt = True
            self.delivered[client] = wrong
            if self.server.stage.takes_update:
                self.uploaded.add(client)

    # Actions of clients and the server.

    @precondition(lambda self: self.is_open and len(self.gone) < len(self.candidate.clients) - FEWEST)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.lose(data.draw(st.sampled_from(self.candidate.clients)))

    @precondition(lambda self: self.is_open)
    @rule(data=st.data())
    def suspend(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.candidate.clients))
        sessions, member = self.rehearsal.sessions, self.rehearsal.world.member(client)
        if client in self.gone or client not in self.delivered:
            return
        kept = sessions[client].suspend()
        with pytest.raises(SecAggError):
            sessions[client].answer(self.server.invitation)
        if kept is not None:
            sessions[client] = member.join(self.rehearsal.subject, self.rehearsal.update_of(client), kept)

    @precondition(lambda self: self.is_open and self.candidate.entry.restore is not None)
    @rule()
    def restore(self) -> None:
        before, restored = self.standing(), self.candidate.entry.restore
        assert restored is not None
        self.rehearsal.server = restored(self.server.snapshot(), frozenset(self.candidate.clients))
        assert self.standing() == before

    @precondition(lambda self: self.is_open)
    @rule()
    def close(self) -> None:
        stage = self.server.stage
        try:
            self.server.close_stage()
        except SecAggError:
            if self.server.stage is stage:
                return
            self.over = True
            return
        self.takes_update |= stage.takes_update
        self.delivered.clear()

    @precondition(lambda self: not self.is_open)
    @rule(data=st.data())
    def answer_after_the_end(self, data: st.DataObject) -> None:
        client, before = data.draw(st.sampled_from(self.candidate.clients)), self.standing()
        for answers in self.rehearsal.answers.values():
            if client in answers:
                with suppress(SecAggError):
                    self.server.receive(client, answers[client])
        assert self.standing() == before

    # Invariants.

    @invariant()
    def nobody_is_awaited_who_has_answered_or_left(self) -> None:
        if hasattr(self, "rehearsal") and self.is_open:
            assert not self.gone & (self.server.awaited or frozenset())
            assert not self.delivered.keys() & (self.server.awaited or frozenset())

    @invariant()
    def an_update_is_made_once(self) -> None:
        if hasattr(self, "rehearsal"):
            assert set(self.rehearsal.made.values()) <= {1}

    def teardown(self) -> None:
        """Run every session to its end, to check its outcome."""
        if not hasattr(self, "rehearsal"):
            return
        while self.is_open:
            before = self.server.stage
            self.deliver_to_all()
            self.close()
            if self.server.stage is before:
                break
        try:
            released = self.server.release()
        except SecAggError:
            return
        assert released.counted <= self.uploaded
        if not self.spoilt or self.candidate.notices_alterations:
            self.rehearsal.require_exact(released, released.counted)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_session_with_steps_in_any_order(name: str) -> None:
    machine: Any = type(f"Machine {name}", (SessionMachine,), {"name": name})
    machine.TestCase.settings = settings(stateful_step_count=20, max_examples=settings().max_examples // 2)
    machine.TestCase().runTest()
