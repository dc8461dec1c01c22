"""An additional protocol for tests: a plain sum without protection. One registration plugs it in everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from secagg.contract import Payload, RingSegment, ideal_aggregate
from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Secret
from secagg.errors import UNDECIDED, InvalidParameters, PeerMisbehaved, Reason
from secagg.identifiers import ClientId
from secagg.session.registry import Clock, ProtocolEntry
from secagg.session.roles import LazyUpdate, Released, Stage, Subject
from secagg.session.stages import Checked, OneStageClientSession, StagedServerSession
from secagg.wire import Reader, Writer

INVITATION, UPLOAD = 500, 501
DIGEST_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainSettings:
    """Settings of a plain sum."""

    minimum_cohort: int = 3


def open_session(
    subject: Subject, settings: PlainSettings, invited: frozenset[ClientId] | None, helpers: None = None
) -> PlainServerSession:
    del helpers
    return PlainServerSession(subject, settings, invited)


def digest_of(subject: Subject, model_digest: bytes | None) -> bytes:
    parts = (
        subject.task,
        subject.round_number.to_bytes(8, "big"),
        subject.layout.digest,
        subject.capacity.to_bytes(8, "big"),
        subject.terms,
        model_digest or b"",
    )
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()


STAGE: Final = Stage(name="plain upload", takes_update=True)


class PlainServerSession(StagedServerSession[Payload]):
    """The server's side, which sees every update."""

    def __init__(self, subject: Subject, settings: PlainSettings, invited: frozenset[ClientId] | None) -> None:
        self.subject, self.settings = subject, settings
        self.digest = digest_of(subject, subject.model_digest)
        self.uploads = dict[ClientId, Payload]()
        super().__init__(
            STAGE, Writer(INVITATION).fixed(self.digest, DIGEST_BYTES).finish(), invited, settings.minimum_cohort
        )

    def _check(self, sender: ClientId, message: bytes) -> Checked[Payload]:
        reader = Reader(message, UPLOAD)
        digest, client = reader.fixed(DIGEST_BYTES), ClientId(reader.integer(8))
        packed, check = reader.variable(1 << 30), reader.fixed(DIGEST_BYTES)
        reader.finish()
        if (digest, client, check) != (self.digest, sender, hashlib.sha256(packed).digest()):
            raise PeerMisbehaved(
                "not this client's upload for this sum", reason=Reason.WRONG_SESSION, culprits=UNDECIDED
            )
        return Checked(Payload.decode(packed, self.subject.layout), check)

    def _take(self, sender: ClientId, content: Payload) -> None:
        self.uploads[sender] = content

    def _sum(self, progress: Callable[[int, int], None] | None) -> Released:
        del progress
        counted = frozenset(self.uploads)
        return Released(
            aggregate=ideal_aggregate(self.subject.layout, list(self.uploads.values())),
            counted=counted,
            left_out={},
            revealed=frozenset({counted}),
            unbounded=tuple(range(len(self.subject.layout.segments))),
        )

    def _wipe(self) -> None:
        self.uploads.clear()


@dataclass(slots=True)
class PlainMember:
    """A client with only a name."""

    client: ClientId

    def join(
        self, subject: Subject, update: LazyUpdate | None = None, suspended: Secret | None = None
    ) -> PlainClientSession:
        return PlainClientSession(self.client, subject, update, suspended)


class PlainClientSession(OneStageClientSession):
    """A client's side."""

    def _upload(self, message: bytes, update: LazyUpdate) -> bytes:
        reader = Reader(message, INVITATION)
        digest = reader.fixed(DIGEST_BYTES)
        reader.finish()
        subject = self._subject
        if digest != digest_of(subject, update.model_for(subject)):
            raise InvalidParameters("the sum is about something else", reason=Reason.BELOW_FLOOR)
        made = update.take(subject.layout)
        packed = made.payload.encode()
        writer = Writer(UPLOAD).fixed(digest, DIGEST_BYTES).integer(self.client.value, 8)
        return writer.variable(packed, 1 << 30).fixed(hashlib.sha256(packed).digest(), DIGEST_BYTES).finish()


class PlainSimulation:
    """A server and its clients in one process."""

    def __init__(self, settings: PlainSettings, *, coins: Coins, clock: Clock, threads: int = 1) -> None:
        del coins, clock, threads
        self.settings, self.bytes_between = settings, 0

    def open(self, subject: Subject, invited: frozenset[ClientId] | None) -> PlainServerSession:
        return open_session(subject, self.settings, invited)

    def member(self, client: ClientId) -> PlainMember:
        return PlainMember(client)

    def close(self) -> None:
        """There is no state after a session."""


ENTRY: Final = ProtocolEntry(
    name="plain",
    summary="a plain sum, which protects nobody; for tests",
    settings=PlainSettings,
    segments=frozenset({RingSegment}),
    stages=(STAGE,),
    open_session=open_session,
    helpers=type(None),
    simulate=PlainSimulation,
)
