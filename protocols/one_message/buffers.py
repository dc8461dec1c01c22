"""One asynchronous buffer as a session of one stage: uploads for several models, and a list for each of them.

A list holds uploads of one model alone, or a server could give all but one client a dead model. So the sums of a buffer
come apart by the age of the model: the server learns each, and multiplies it by the weight of its age. An age with
fewer uploads than the minimum cohort is never summed, and its clients are left out by name.

Lists of one epoch need the rule ``certified``: an upload names no sum, and a holder signs one list with it, ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from secagg.blame import unverified
from secagg.contract import Aggregate
from secagg.crypto.ring import RingVector, low_bits, require_capacity
from secagg.crypto.secret import draw_exactly
from secagg.errors import (
    NOBODY,
    InvalidParameters,
    Misuse,
    PeerMisbehaved,
    Reason,
    SecAggError,
    ThresholdNotMet,
)
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.privacy.client_noise import ClientNoise
from secagg.session.roles import Released, Subject
from secagg.session.stages import Checked, StagedServerSession

from .configuration import SUM_ID_BYTES, Agreement
from .messages import Upload
from .parameters import ThresholdRule
from .plan import OneMessageSettings, plan_offer
from .server import CheckedUpload, Opened, Server, State
from .session import (
    UPLOAD,
    OneMessageHelpers,
    OneMessageServerSession,
    ask_holders,
    open_session,
    opened_by,
)

_ROUND: Final = "upload"


def open_any_session(
    subject: Subject,
    settings: OneMessageSettings,
    invited: frozenset[ClientId] | None,
    helpers: OneMessageHelpers,
) -> OneMessageServerSession | BufferSession:
    """Begin a sum, or a buffer where the settings weigh uploads by age.

    Raises:
        InvalidParameters, CapacityExceeded, PeerError: as for ``open_session``.
    """
    if settings.staleness_weights:
        return BufferSession(subject, settings, invited, helpers)
    return open_session(subject, settings, invited, helpers)


class BufferSession(StagedServerSession[CheckedUpload]):
    """The server's side of one buffer; its subject is about the newest model."""

    noise: ClientNoise | None = None
    """None: noise is planned for the sum of a round."""

    def __init__(
        self,
        subject: Subject,
        settings: OneMessageSettings,
        invited: frozenset[ClientId] | None,
        helpers: OneMessageHelpers,
    ) -> None:
        """Open the buffer.

        Raises:
            InvalidParameters: the epoch has another rule than ``certified``, its holders do not stand, or nothing fits.
            CapacityExceeded: so many fresh uploads could weigh more than the codec can decode.
        """
        capacity = settings.capacity or (None if invited is None else len(invited))
        if capacity is None:
            raise InvalidParameters("settings.capacity says how many upload at most, unless the invited are named")
        if helpers.record.rule is not ThresholdRule.CERTIFIED:
            raise InvalidParameters(
                "a buffer has several lists, and under the rule one_answer an upload names its one sum; begin an epoch "
                "under the rule certified"
            )
        if helpers.ask_all is None:
            raise InvalidParameters("a buffer is summed by standing holders; a committee of clients holds for rounds")
        most = capacity * settings.maximum_weight * max(settings.staleness_weights)
        require_capacity(most, subject.capacity)
        self._subject, self._settings, self._helpers = subject, settings, helpers
        self._ask_all, self._capacity = helpers.ask_all, capacity
        self._servers = dict[int, Server]()
        self._sums, self._failed = dict[int, Opened](), dict[int, SecAggError]()
        """By the number of the model: what was opened, and why nothing ever will be."""
        super().__init__(UPLOAD, self._server_for(subject).offer, invited, settings.minimum_cohort)
        helpers.answered.forget(subject.round_number - len(settings.staleness_weights) + 1)

    @property
    def agreement(self) -> Agreement:
        """What the parties agree on, whatever the model."""
        return self._servers[self._subject.round_number].agreement

    def invitation_for(self, subject: Subject) -> bytes:
        """Return the offer for a client that started from an older model; uploads for that model are taken from now on.

        Raises:
            InvalidParameters: the model is too old or too new, or the subject is about something else besides.
        """
        with self._lock:
            mine = replace(self._subject, round_number=subject.round_number, model_digest=subject.model_digest)
            if subject != mine or subject.model_digest is None:
                raise InvalidParameters("a buffer sums updates that differ in the model that they started from alone")
            if self._age(subject.round_number) is None:
                newest, ages = self._subject.round_number, len(self._settings.staleness_weights)
                raise InvalidParameters(
                    f"model {subject.round_number} is not one of {max(0, newest - ages + 1)}..{newest}, which this "
                    "buffer takes; start from a newer one"
                )
            server = self._server_for(subject)
            if server.terms.model_digest != subject.model_digest:
                raise InvalidParameters(f"model {subject.round_number} has another digest than this buffer was told")
            return server.offer

    def _server_for(self, subject: Subject) -> Server:
        version, settings = subject.round_number, self._settings
        if version not in self._servers:
            sum_id = bytes(draw_exactly(SUM_ID_BYTES, self._helpers.coins))
            offer = plan_offer(
                self._helpers.record,
                self._helpers.keys,
                subject,
                sum_id=sum_id,
                capacity=self._capacity,
                minimum_cohort=settings.minimum_cohort,
                corrupted_clients=settings.corrupted,
                maximum_weight=settings.maximum_weight,
                bounds=settings.bounds,
            )
            server = Server(offer, sum_id, self._helpers.coins)
            ask_holders(server, self._ask_all, server.introduce())
            self._servers[version] = server
        return self._servers[version]

    def _age(self, version: int) -> int | None:
        """Return how old a model is, unless it is too old, or newer than the buffer's."""
        age = self._subject.round_number - version
        return age if 0 <= age < len(self._settings.staleness_weights) else None

    @property
    def is_signed(self) -> bool:
        """Whether clients sign."""
        return self._helpers.record.mode is SecurityMode.ACTIVE

    def _check(self, sender: ClientId, message: bytes) -> Checked[CheckedUpload]:
        version = Upload.decode(message).header.terms.round_number
        if (server := self._servers.get(version)) is None:
            raise PeerMisbehaved(
                f"{sender} started from model {version}, which this buffer does not take",
                reason=Reason.STALE_UPDATE,
                culprits=unverified(sender),
            )
        checked = server.check_upload(sender, message)
        return Checked(checked, checked.digest)

    def _take(self, sender: ClientId, content: CheckedUpload) -> None:
        version = content.upload.header.terms.round_number
        server = self._servers[version]
        if sum(len(one.taken) for one in self._servers.values()) >= self._capacity:
            raise PeerMisbehaved("the buffer is full", reason=Reason.BUFFER_FULL, culprits=NOBODY)
        self._helpers.answered.require_new(version, sender)
        server.take_upload(sender, content)
        self._helpers.answered.add(version, sender)
        if server.waiting >= self._settings.delivered_at_once:
            self._deliver(server)

    def _deliver(self, server: Server) -> None:
        ask_holders(server, self._ask_all, server.deliver())
        server.settle()
        self._record(*server.faults)

    def _next(self) -> None:
        for server in self._servers.values():
            self._deliver(server)
        largest = max(len(server.listed) for server in self._servers.values())
        if largest < self._settings.minimum_cohort:
            raise ThresholdNotMet(
                needed=self._settings.minimum_cohort,
                present=largest,
                what="accepted uploads for one model",
                round_name=_ROUND,
            )

    def release(self, progress: Callable[[int, int], None] | None = None) -> Released:
        """Return the sum, once.

        An age whose sum does not open is left out by name, and the others are released. Where too few holders answer,
        nothing is released and nothing is lost: call it again when they are back.
        """
        with self._lock:
            if self.stage is not None or self._is_over:
                raise Misuse("close the last stage first; a session releases once")
            with self._losing():
                for done, (version, server) in enumerate(sorted(self._servers.items()), 1):
                    self._open_age(version, server)
                    if progress is not None:
                        progress(done, len(self._servers))
            try:
                return self._sum(progress)
            finally:
                self.abort()

    def _open_age(self, version: int, server: Server) -> None:
        """Have the list of one model signed and answered, unless it was before, or was found to give no sum.

        Raises:
            ThresholdNotMet: too few holders answer for now.
        """
        if version in self._sums or version in self._failed:
            return
        try:
            if server.state is State.COLLECTING:
                self._fix_list(version, server)
        except ThresholdNotMet as error:
            self._failed[version] = error
            return
        try:
            self._sums[version] = opened_by(server, self._ask_all)
        except PeerMisbehaved as error:
            self._failed[version] = error
            self._record(error)
        self._record(*server.faults)

    def _fix_list(self, version: int, server: Server) -> None:
        if (present := len(server.listed)) < (needed := self._settings.minimum_cohort):
            what = f"uploads for model {version}, which are never summed"
            raise ThresholdNotMet(needed=needed, present=present, what=what, round_name=_ROUND)
        server.fix_list()

    def _sum(self, progress: Callable[[int, int], None] | None) -> Released:
        del progress
        if not self._sums:
            raise max(self._failed.values(), key=lambda error: isinstance(error, PeerMisbehaved))
        counted = frozenset(client for one in self._sums.values() for client in one.counted)
        left_out = dict[ClientId, SecAggError]()
        for version, server in self._servers.items():
            left_out |= server.left_out
            if version in self._failed:
                left_out |= dict.fromkeys(server.listed, self._failed[version])
        return Released(
            aggregate=self._weighted(self._sums),
            counted=counted,
            left_out={client: error for client, error in left_out.items() if client not in counted},
            revealed=frozenset(one.counted for one in self._sums.values()),
            unbounded=self._subject.layout.ring_positions,
        )

    def _weighted(self, opened: dict[int, Opened]) -> Aggregate:
        """Add the sums up, each as often as its age says."""
        layout, contributors, total_weight = self._subject.layout, 0, 0
        totals: list[RingVector] = [one.ring.zeros(one.length) for one in layout.require_rings()]
        for version, one in opened.items():
            weight = self._settings.staleness_weights[self._subject.round_number - version]
            contributors += one.aggregate.contributors
            total_weight += weight * one.aggregate.total_weight
            for at, (segment, values) in enumerate(zip(layout.require_rings(), one.aggregate.values, strict=True)):
                ring = segment.ring
                scaled: RingVector = values * ring.word.type(weight & low_bits(ring.modulus_bits))
                totals[at] = ring.add(totals[at], scaled)
        return Aggregate(layout, tuple(totals), contributors, total_weight)

    def _wipe(self) -> None:
        for server in self._servers.values():
            server.end()
