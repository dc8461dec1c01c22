"""Each law of the conformance suite detects its fault: a plain sum with one planted fault violates it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any, Final

import numpy as np
import pytest

from secagg.blame import unverified
from secagg.conformance.sessions import LAWS, SessionCandidate, check_law, check_sessions
from secagg.contract import Payload
from secagg.crypto.secret import Secret
from secagg.errors import UNDECIDED, ContractViolation, Fault, Misuse, PeerError, Reason
from secagg.identifiers import ClientId, Party, ServerId
from secagg.protocols.two_servers import release
from secagg.session.roles import LazyUpdate, Participation, Released, ServerSession, Subject
from secagg.session.stages import Checked
from secagg.wire import Writer
from tests.harness.plain_sum import (
    DIGEST_BYTES,
    INVITATION,
    PlainClientSession,
    PlainMember,
    PlainServerSession,
    PlainSettings,
    PlainSimulation,
    digest_of,
)
from tests.harness.planted import always
from tests.harness.session_worlds import candidate_of

Server = type[PlainServerSession]
Client = type[PlainClientSession]


class SumsWrongly(PlainServerSession):
    """Leaves one client out of the sum but counts it."""

    def _sum(self, progress: Callable[[int, int], None] | None) -> Released:
        everybody = frozenset(self.uploads)
        self.uploads.popitem()
        return replace(super()._sum(progress), counted=everybody, revealed=frozenset({everybody}))


class BoundsRings(PlainServerSession):
    """Lists ring elements as bounded."""

    def _sum(self, progress: Callable[[int, int], None] | None) -> Released:
        return replace(super()._sum(progress), unbounded=())


class SaysOtherBytes(PlainServerSession):
    """Puts a counter into its messages."""

    numbers = count()

    def message_to(self, client: ClientId) -> bytes | None:
        message = super().message_to(client)
        return None if message is None else message + bytes([next(self.numbers) % 256])


class TakesSecond(PlainServerSession):
    """Replaces the first upload by a second one."""

    def receive(self, sender: ClientId, message: bytes) -> None:
        self._said.pop(sender, None)
        super().receive(sender, message)


class TakesInOrder(PlainServerSession):
    """Refuses clients that arrive after one with a greater name."""

    def _take(self, sender: ClientId, content: Payload) -> None:
        if any(other > sender for other in self.uploads):
            raise ValueError("too late")
        super()._take(sender, content)


class TakesLate(PlainServerSession):
    """Accepts uploads after the stage was closed."""

    def receive(self, sender: ClientId, message: bytes) -> None:
        if self._stage is None and not self._is_over:
            self._take(sender, self._check(sender, message).content)
        else:
            super().receive(sender, message)


class TakesAnything(PlainServerSession):
    """Does not check the session, sender or signature of an upload."""

    def _check(self, sender: ClientId, message: bytes) -> Checked[Payload]:
        from hashlib import sha256  # noqa: PLC0415

        head, size = 7, 32
        packed = message[head + size + 8 + 4 : -size]
        own = message[:head] + self.digest + sender.encode() + message[head + size + 8 : -size]
        return super()._check(sender, own + sha256(packed).digest())


class RacesWithItself(PlainServerSession):
    """Counts without a lock, and breaks if the same answer arrives twice."""

    def receive(self, sender: ClientId, message: bytes) -> None:
        if sender in self._said:
            raise RuntimeError("heard before")
        super().receive(sender, message)


class PutsOut(PlainServerSession):
    """Excludes a client because the network altered its answer."""

    def _record(self, *errors: PeerError, who: Party | None = None) -> None:
        super()._record(*errors, who=who)
        if isinstance(who, ClientId):
            self._leave(who)


class RecordsEverything(PlainServerSession):
    """Records a repeated fault each time."""

    def _record(self, *errors: PeerError, who: Party | None = None) -> None:
        for error in errors:
            self._faults[len(self._faults), "", error.reason] = Fault.of(error, sender=who)


class RecordsNothing(PlainServerSession):
    """Records no faults."""

    def _record(self, *errors: PeerError, who: Party | None = None) -> None:
        """Discard them."""


class RemembersStrangers(PlainServerSession):
    """Counts unknown names as dropped clients."""

    def drop(self, client: ClientId) -> None:
        super().drop(client)
        if self._waiting:
            self._waiting.pop()


class ReleasesEarly(PlainServerSession):
    """Releases while the stage is open."""

    def release(self, progress: Callable[[int, int], None] | None = None) -> Released:
        return self._sum(progress) if self.uploads else super().release(progress)


class ReleasesAgain(PlainServerSession):
    """Releases as often as it is called."""

    def _wipe(self) -> None:
        """Keep everything."""

    def release(self, progress: Callable[[int, int], None] | None = None) -> Released:
        self._is_over = False
        return super().release(progress)


class SpeaksAfterAbort(PlainServerSession):
    """Invites clients after the end."""

    def message_to(self, client: ClientId) -> bytes | None:
        return self.invitation if self._is_over else super().message_to(client)


class ReleasesOfFew(PlainServerSession):
    """Reports that no clients are enough."""

    @property
    def participation(self) -> Participation:
        return max(Participation.ENOUGH, super().participation)


class NeverComplete(PlainServerSession):
    """Awaits clients that have answered."""

    @property
    def participation(self) -> Participation:
        return min(Participation.ENOUGH, super().participation)


class TakesFromDropped(PlainServerSession):
    """Forgets which clients were dropped."""

    def drop(self, client: ClientId) -> None:
        """Forget the client."""


class InvitesEverybody(PlainServerSession):
    """Does not check who is invited."""

    def _is_in(self, client: ClientId) -> bool:
        return client not in self._out


class HasASnapshotOfNothing(PlainServerSession):
    """Returns a snapshot that cannot be restored."""

    def snapshot(self) -> Secret | None:
        return Secret("snapshot", b"nothing")


class JoinsAnything(PlainClientSession):
    """Uploads to any session that invites it."""

    def _upload(self, message: bytes, update: LazyUpdate) -> bytes:
        made = update.take(self._subject.layout)
        again = LazyUpdate(lambda: made, made.model_digest)
        digest = message[7:]
        told, self._subject = self._subject, replace(self._subject, model_digest=None)
        try:
            import tests.harness.plain_sum as plain  # noqa: PLC0415

            real, plain.digest_of = plain.digest_of, always(digest)
            try:
                return super()._upload(message, again)
            finally:
                plain.digest_of = real
        finally:
            self._subject = told


class TrainsEarly(PlainClientSession):
    """Makes its update before it has checked the invitation."""

    def _upload(self, message: bytes, update: LazyUpdate) -> bytes:
        made = update.take(self._subject.layout)
        return super()._upload(message, LazyUpdate(lambda: made))


class TellsByFailing(PlainClientSession):
    """Leaves if training fails, which reveals the failure to the server."""

    def _upload(self, message: bytes, update: LazyUpdate) -> bytes:
        make = update._make  # pyright: ignore[reportPrivateUsage]
        assert make is not None
        try:
            made = make()
        except ArithmeticError:
            raise Misuse("training failed") from None
        return super()._upload(message, LazyUpdate(lambda: made, self._subject.model_digest))


class TellsByItsLength(PlainClientSession):
    """Pads an upload of maximum values."""

    def _upload(self, message: bytes, update: LazyUpdate) -> bytes:
        make = update._make  # pyright: ignore[reportPrivateUsage]
        assert make is not None
        made = make()
        return super()._upload(message, LazyUpdate(lambda: made, self._subject.model_digest)) + bytes(
            bool(made.payload.values[0].min() == made.payload.values[0].max() != 0)
        )


class KnowsValuesAgain(PlainClientSession):
    """Refuses to upload the same values twice, so a server learns whether two updates were clamped to one value."""

    def _upload(self, message: bytes, update: LazyUpdate) -> bytes:
        made = update.take(self._subject.layout)
        digest = hashlib.sha256(made.payload.encode()).digest()
        if (self.client, digest) in UPLOADED:
            raise Misuse("this update was already uploaded", reason=Reason.ALREADY_SPENT)
        UPLOADED.add((self.client, digest))
        return super()._upload(message, LazyUpdate(lambda: made, made.model_digest))


UPLOADED = set[tuple[ClientId, bytes]]()


class UploadsAgain(PlainClientSession):
    """Makes a second update if it is asked again."""

    def answer(self, message: bytes) -> bytes:
        self._is_done = False
        update = self._update
        assert update is not None
        make = update._make  # pyright: ignore[reportPrivateUsage]
        answer = super().answer(message)
        update._make = make  # pyright: ignore[reportPrivateUsage]
        return answer + bytes([len(answer) % 7]) if make is None else answer


class AnswersAfterLeaving(PlainClientSession):
    """Does not leave."""

    def abort(self) -> None:
        """Stay in the session."""

    def suspend(self) -> Secret | None:
        return None


class BelievesItsMessage(PlainClientSession):
    """Uploads other values if its message was altered, and the server cannot see it."""

    def _upload(self, message: bytes, update: LazyUpdate) -> bytes:
        made = update.take(self._subject.layout)
        due = Writer(INVITATION).fixed(digest_of(self._subject, made.model_digest), DIGEST_BYTES).finish()
        payload = made.payload
        if message != due:
            values = tuple(np.zeros_like(part) for part in payload.values)
            payload = Payload(payload.layout, values)
        return super()._upload(due, LazyUpdate(lambda: replace(made, payload=payload)))


class BlamesTheSender:
    """Excludes a client because the network delivers its answer in another stage."""

    def __init__(self, session: ServerSession) -> None:
        self._session = session

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)

    def receive(self, sender: ClientId, message: bytes) -> None:
        try:
            self._session.receive(sender, message)
        except PeerError:
            self._session.drop(sender)
            raise


SHARED: list[PlainServerSession] = []


class SharesItsState(PlainServerSession):
    """Shares the uploads among all sessions."""

    def __init__(self, subject: Subject, settings: PlainSettings, invited: frozenset[ClientId] | None) -> None:
        super().__init__(subject, settings, invited)
        if SHARED:
            self.uploads = SHARED[0].uploads
        SHARED.append(self)


class NamesTheSenderAlone(PlainServerSession):
    """Blames a client because the network altered its answer."""

    def receive(self, sender: ClientId, message: bytes) -> None:
        try:
            super().receive(sender, message)
        except PeerError as error:
            error.culprits = self.named(sender)
            raise

    def named(self, sender: ClientId) -> frozenset[Party]:
        return frozenset({sender})


class NamesSomebodyElse(NamesTheSenderAlone):
    """Blames a third party as well."""

    def named(self, sender: ClientId) -> frozenset[Party]:
        return unverified(sender) | {ClientId(1)}


class NamesAClient(PlainClientSession):
    """Blames another client because the network altered the server's message."""

    def answer(self, message: bytes) -> bytes:
        try:
            return super().answer(message)
        except PeerError as error:
            error.culprits = frozenset({ClientId(1)})
            raise


class NamesNobodyYet(PlainClientSession):
    """Leaves the culprits undecided, although nobody decides them later."""

    def answer(self, message: bytes) -> bytes:
        try:
            return super().answer(message)
        except PeerError as error:
            error.culprits = UNDECIDED
            raise


FAULTS: Final[list[tuple[str, type[Any]]]] = [
    ("sum_of_all", SumsWrongly),
    ("sum_of_all", BoundsRings),
    ("same_bytes_again", SaysOtherBytes),
    ("second_answer", TakesSecond),
    ("altered_answer", PutsOut),
    ("altered_answer", NamesTheSenderAlone),
    ("altered_answer", NamesSomebodyElse),
    ("another_session", PutsOut),
    ("one_fault_for_each_reason", RecordsEverything),
    ("second_answer", RecordsNothing),
    ("strangers", RemembersStrangers),
    ("any_order", TakesInOrder),
    ("late_answer", TakesLate),
    ("another_sender", TakesAnything),
    ("another_session", TakesAnything),
    ("altered_answer", TakesAnything),
    ("from_many_threads", RacesWithItself),
    ("wrong_order", ReleasesEarly),
    ("after_the_end", ReleasesAgain),
    ("aborted", SpeaksAfterAbort),
    ("too_few", ReleasesOfFew),
    ("participation", NeverComplete),
    ("dropped", TakesFromDropped),
    ("not_invited", InvitesEverybody),
    ("another_subject", JoinsAnything),
    ("another_subject", TrainsEarly),
    ("side_by_side", SharesItsState),
    ("restored", HasASnapshotOfNothing),
    ("update_once", UploadsAgain),
    ("altered_message", BelievesItsMessage),
    ("altered_message", NamesAClient),
    ("altered_message", NamesNobodyYet),
    ("aborted", AnswersAfterLeaving),
    ("suspended", AnswersAfterLeaving),
    ("silence", TellsByFailing),
    ("silence", TellsByItsLength),
    ("silence", KnowsValuesAgain),
]


def faulty(fault: type[Any]) -> SessionCandidate:
    class Simulation(PlainSimulation):
        """A plain sum with a fault in one class."""

        def open(self, subject: Subject, invited: frozenset[ClientId] | None) -> PlainServerSession:
            kind = fault if issubclass(fault, PlainServerSession) else PlainServerSession
            return kind(subject, self.settings, invited)

        def member(self, client: ClientId) -> PlainMember:
            class Member(PlainMember):
                """A client, perhaps with the fault."""

                def join(
                    self, subject: Subject, update: LazyUpdate | None = None, suspended: Secret | None = None
                ) -> PlainClientSession:
                    kind = fault if issubclass(fault, PlainClientSession) else PlainClientSession
                    return kind(self.client, subject, update, suspended)

            return Member(client)

    good = candidate_of("plain")
    return replace(good, entry=replace(good.entry, simulate=Simulation))


@pytest.mark.parametrize(("law", "fault"), FAULTS, ids=[f"{law}-{fault.__name__}" for law, fault in FAULTS])
def test_a_law_detects_its_fault(law: str, fault: type[Any]) -> None:
    SHARED.clear()
    with pytest.raises(ContractViolation, match=f"plain breaks {law}: "):
        check_law(law, faulty(fault))


def test_the_law_of_other_stages_detects_its_fault() -> None:
    good = candidate_of("pairwise, semi-honest, full")
    simulate = good.entry.simulate

    class Simulation:
        """Pairwise masks with a server that blames senders."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            self._world = simulate(*arguments, **options)

        def __getattr__(self, name: str) -> object:
            return getattr(self._world, name)

        def open(self, subject: Subject, invited: frozenset[ClientId] | None) -> Any:
            return BlamesTheSender(self._world.open(subject, invited))

    blaming: Any = Simulation
    check_law("other_stage", good)
    with pytest.raises(ContractViolation, match="pairwise breaks other_stage: "):
        check_law("other_stage", replace(good, entry=replace(good.entry, simulate=blaming)))


def test_the_law_of_links_detects_its_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that blames only the other server for a commitment that the network altered."""
    check_law("altered_between", candidate_of("two servers"))
    monkeypatch.setattr(release, "between_servers", lambda: frozenset({ServerId(1)}))
    with pytest.raises(ContractViolation, match="two-servers breaks altered_between: "):
        check_law("altered_between", candidate_of("two servers"))


def test_every_law_has_a_planted_fault() -> None:
    assert set(LAWS) == {law for law, _ in FAULTS} | {"other_stage", "altered_between"}


def test_the_suite_names_the_protocol_and_the_law() -> None:
    with pytest.raises(ContractViolation, match="plain breaks dropped: "):
        check_sessions(faulty(TakesFromDropped))
