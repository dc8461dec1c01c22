"""Sessions of one-message sums: one stage for clients, with standing holders.

Plans the cheapest parameters, an epoch's record and an offer from an operator's numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import lru_cache
from typing import Annotated, ClassVar, Final

from secagg.blame import unverified
from secagg.contract import Layout
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import require_capacity
from secagg.errors import Fault, InternalError, InvalidParameters, PeerError, PeerMisbehaved, ThresholdNotMet, blaming
from secagg.identifiers import ClientId, HolderId
from secagg.options import option
from secagg.parameters import SecurityMode, Suite
from secagg.privacy.client_noise import NO_NOISE, BudgetedNoise, ClientNoise, NoiseSettings
from secagg.session.certificates import NO_STANDING, Standing
from secagg.session.frames import decode_refusal
from secagg.session.registry import ProtocolOptions
from secagg.session.roles import Released, Stage, Subject
from secagg.session.sockets import AskAll
from secagg.session.stages import Checked, StagedServerSession
from secagg.wire import FORMS, MessageKind, message_kind

from .configuration import NO_KEY, Agreement, Configuration, EpochRecord, HolderIdentity, Offer, SumTerms, noise_of
from .lattice import security_bits
from .opening import Adder, OneMessageCut
from .parameters import (
    DEGREES,
    LEAST_SECURITY,
    MAXIMUM_DROPPED_BITS,
    MAXIMUM_HOLDERS,
    MAXIMUM_MODULUS_BITS,
    Committee,
    Parameters,
    Values,
    greatest_capacity,
    least_guard_bits,
    least_quorum,
    least_threshold,
)
from .tally import CheckedUpload, Opened, State, Tally

MAXIMUM_PACKING: Final = 16
_SECOND_WORD_COSTS = 1.1
"""Coefficients of two words take twice the time, so they must save at least a tenth of the bytes."""
_WORD_BITS = 64


def plan(
    segments: Sequence[Values], capacity: int, committee: Committee, *, degrees: Sequence[int] = DEGREES
) -> Parameters:
    """Return the parameters with the fewest bytes per client.

    Raises:
        InvalidParameters: nothing fits; the message names the next parameters that do.
    """
    if not 1 <= capacity <= greatest_capacity():
        raise InvalidParameters(f"a sum can have 1 to {greatest_capacity()} uploads; got {capacity}; make several sums")
    return _cheapest(tuple(segments), capacity, committee, tuple(degrees))


@lru_cache(maxsize=16)  # A platform asks for the same in every round.
def _cheapest(
    segments: tuple[Values, ...], capacity: int, committee: Committee, degrees: tuple[int, ...]
) -> Parameters:
    found, thresholds = list[tuple[float, Parameters]](), asdict(committee)
    refused = InvalidParameters("no lattice is wide enough; plan with a higher degree")
    for degree, modulus_bits, dropped_bits in _lattices(degrees):
        try:
            fitting = Parameters(
                degree=degree,
                modulus_bits=modulus_bits,
                guard_bits=least_guard_bits(capacity, dropped_bits),
                dropped_bits=dropped_bits,
                segments=segments,
                capacity=capacity,
                **thresholds,
            )
            words = _SECOND_WORD_COSTS if modulus_bits > _WORD_BITS else 1.0
            # Ignores the ends of pieces, which are numerous in a long upload and the same in every lattice.
            sent = sum(run.sent_bytes for run in fitting.whole_runs)
            found.append(((sent + dealt_bytes(fitting)) * words, fitting))
        except InvalidParameters as error:
            refused = error
    if not found:
        # Any other error also occurs in the widest lattice, which is tried last.
        raise _too_wide(segments, capacity, degrees) or refused
    # Among lattices of equal length, the narrowest is the strongest.
    return min(found, key=lambda entry: (entry[0], entry[1].modulus_bits))[1]


def with_witnesses(planned: Parameters) -> Parameters:
    """Return the parameters with as many zeros as they need."""
    values, zeros = list(planned.segments), planned.inputs - 1
    values[zeros] = replace(values[zeros], length=planned.witnesses)
    return replace(planned, segments=tuple(values))


def dealt_bytes(parameters: Parameters) -> int:
    """Return the bytes of all shares and the polynomial of an upload, without sealing."""
    return sum(map(parameters.share_bytes, range(parameters.holders))) + parameters.polynomial_bytes


def choose_committee(holders: int, corrupted: int, absent: int = 0) -> Committee:
    """Return thresholds that these holders meet even if the corrupted ones are silent and the absent ones offline.

    The threshold is the largest that the remaining answers still reach: each holder above the bound protects against
    one more corrupted holder than assumed. Half of the slack goes to packing.

    Raises:
        InvalidParameters: there are too few holders; the error says how many suffice.
    """
    if holders > MAXIMUM_HOLDERS:
        raise InvalidParameters(f"an epoch has at most {MAXIMUM_HOLDERS} holders; got {holders}; list fewer")
    if not 0 <= corrupted < holders or absent < 0:
        raise InvalidParameters(f"{corrupted} corrupted and {absent} absent holders are too many for {holders} holders")
    threshold, quorum = holders - corrupted - absent, least_quorum(holders, corrupted)
    spare = threshold - least_threshold(corrupted, 1)
    if spare < 0 or quorum > threshold:
        # 2 (C - c - absent) > C + c and C - absent > 2 c.
        suffice = 3 * corrupted + 2 * absent + 1
        can = (
            f"{suffice} can" if suffice <= MAXIMUM_HOLDERS else f"an epoch has at most {MAXIMUM_HOLDERS}; assume fewer"
        )
        raise InvalidParameters(
            f"{holders} holders do not tolerate {corrupted} corrupted and {absent} absent ones; {can}"
        )
    packing = 1
    while 2 * packing <= min(MAXIMUM_PACKING, spare // 2 + 1):
        packing *= 2
    return Committee(holders, corrupted, threshold, packing, quorum)


@lru_cache(maxsize=64)
def greatest_modulus_bits(degree: int, least_security: int) -> int:
    """Return the widest modulus that gives this much security in this degree; zero if none does."""
    low, high = 0, degree
    while low < high:
        middle = (low + high + 1) // 2
        if security_bits(degree, middle) >= least_security:
            low = middle
        else:
            high = middle - 1
    return low


def _lattices(degrees: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    for degree in degrees:
        widest = min(MAXIMUM_MODULUS_BITS, greatest_modulus_bits(degree, LEAST_SECURITY))
        for modulus_bits in range(2, widest + 1):
            for dropped_bits in range(MAXIMUM_DROPPED_BITS + 1):
                yield degree, modulus_bits, dropped_bits


def _too_wide(segments: Sequence[Values], capacity: int, degrees: Sequence[int]) -> InvalidParameters | None:
    widest = max(min(MAXIMUM_MODULUS_BITS, greatest_modulus_bits(degree, LEAST_SECURITY)) for degree in degrees)
    room, is_held = widest - least_guard_bits(capacity, 0), True
    for position, segment in enumerate(segments):
        bits = segment.field_bits(capacity)
        if bits > segment.ring_bits:
            return InvalidParameters(
                f"a sum of segment {position} needs {bits} bits, but its ring has {segment.ring_bits}; use a ring "
                f"of {bits} bits"
            )
        is_held &= bits <= (widest if segment.fine_bits else room)
    if is_held and room > 0:
        return None
    return InvalidParameters(
        f"no lattice of {LEAST_SECURITY} bits of security in degrees {tuple(degrees)} holds these values; rings of at "
        f"most {max(room, 0)} bits fit, or plan with a higher degree"
    )


Bounds = tuple[int, int] | None


def plan_epoch(  # noqa: PLR0913 -- all but four have defaults
    holders: Sequence[HolderIdentity],
    *,
    number: int,
    expiry: int,
    corrupted: int,
    absent: int = 0,
    suite: Suite = Suite.CLASSIC,
    authority: bytes = NO_KEY,
) -> EpochRecord:
    """Choose thresholds for these holders; the authority signs the returned record.

    Args:
        authority: its public key; without it the mode is ``semi_honest``.
        absent: number of holders that may be offline, in addition to the corrupted ones.
    Raises:
        InvalidParameters: there are too few holders; the error says how many suffice.
    """
    committee = choose_committee(len(holders), corrupted, absent)
    return EpochRecord(
        number=number,
        mode=SecurityMode.SEMI_HONEST if authority == NO_KEY else SecurityMode.ACTIVE,
        suite=suite,
        corrupted=corrupted,
        threshold=committee.threshold,
        packing=committee.packing,
        quorum=committee.quorum,
        expiry=expiry,
        authority=authority,
        holders=tuple(holders),
    )


def plan_offer(  # noqa: PLR0913 -- all but four have defaults
    record: EpochRecord,
    keys: Sequence[bytes],
    subject: Subject,
    *,
    capacity: int,
    minimum_cohort: int,
    corrupted_clients: int,
    bounds: Sequence[Bounds] | None = None,
    noise: NoiseSettings = NO_NOISE,
    standing: Standing = NO_STANDING,
    message_form: int = FORMS[0],
) -> Offer:
    """Make an offer from an epoch's record, its holders' keys, and the subject of the sum.

    Raises:
        InvalidParameters: nothing fits; the message names the next parameters that do.
    """
    values = masked_values(subject.layout, tuple(bounds or [None] * len(subject.layout.segments)))
    parameters = with_witnesses(plan(values, capacity, record.committee))
    return Offer(
        record=record.encode(),
        keys=tuple(keys),
        configuration=Configuration(
            message_form=message_form,
            task=subject.task,
            layout=subject.layout,
            parameters=parameters,
            minimum_cohort=minimum_cohort,
            corrupted_clients=corrupted_clients,
            standing=standing,
        ),
        terms=SumTerms(
            round_number=subject.round_number,
            model_digest=subject.model_digest or bytes(32),
            application_digest=noise.bound_to(subject.terms_digest, corrupted_clients),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OneMessageOptions(BudgetedNoise, ProtocolOptions):
    """Plan of an epoch and its sums."""

    protocol: ClassVar = "one-message"
    corrupted_holders: Annotated[int, option("holders that may collude with the server")] = 1
    absent_holders: Annotated[int, option("other holders that may be offline")] = 0
    corrupted: Annotated[int, option("clients that may collude with the server (absolute)")] = 1
    capacity: Annotated[int | None, option("clients of one sum")] = None
    """Default: all invited clients."""
    bounds: Annotated[tuple[Bounds, ...] | None, option("bounds of one value, by segment")] = None
    """With bounds, several values share a coefficient."""
    delivered_at_once: Annotated[int, option("uploads per delivery of shares to the holders")] = 64
    """Or 16 MiB, whichever comes first."""
    mode: Annotated[SecurityMode, option("trust in the server")] = SecurityMode.ACTIVE
    holders: Annotated[int, option("holders of a simulation")] = 5
    """A deployment takes it from the epoch's record."""
    lifetime: Annotated[timedelta, option("lifetime of an epoch")] = timedelta(hours=24)

    @property
    def least_cohort(self) -> int:
        """Minimum cohort; always leaves at least two honest clients."""
        return max(3, self.corrupted + 2) if self.minimum_cohort is None else self.minimum_cohort


def masked_values(layout: Layout, bounds: tuple[tuple[int, int] | None, ...]) -> list[Values]:
    """Return the arguments of ``plan``: a layout's segments, zeros and check words."""
    segments = layout.require_rings()
    if len(bounds) != len(segments):
        raise InvalidParameters(f"give bounds or None for each of {len(segments)} segments; got {len(bounds)}")
    values = [
        Values(segment.length, segment.ring.modulus_bits, bound, segment.fine_bits)
        for segment, bound in zip(segments, bounds, strict=True)
    ]
    zeros = Values(length=1, ring_bits=1)
    return [*values, zeros, *(one.check_words for one in values if one.fine_bits)]


# --- Sessions ---------------------------------------------------------------------------------------------------------

UPLOAD: Final = Stage(name="upload", takes_update=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneMessageHelpers:
    """Running epoch, and access to its holders."""

    record: EpochRecord
    keys: tuple[bytes, ...]
    """Keys that the holders published for the epoch, in their order."""
    coins: Coins
    ask_all: AskAll
    """Sends requests to holders by position."""
    standing: Standing = NO_STANDING
    """The authority's revocations at the head of its roster."""


def open_session(
    subject: Subject, settings: OneMessageOptions, invited: frozenset[ClientId] | None, helpers: OneMessageHelpers
) -> Server:
    """Start a sum of the running epoch.

    Raises:
        InvalidParameters: nothing fits; the message names the next parameters that do.
        CapacityExceeded: there are more updates than the codec can decode.
        PeerError: the epoch does not verify.
        ThresholdNotMet: too few standing holders are online; the error names the missing ones, and nothing was sent.
    """
    return Server(subject, settings, invited, helpers)


def _capacity(subject: Subject, settings: OneMessageOptions, invited: frozenset[ClientId] | None) -> int:
    """Return the maximum number of uploads; clients refuse a sum that their codec cannot decode."""
    capacity = settings.capacity or (None if invited is None else len(invited))
    if capacity is None:
        raise InvalidParameters("the maximum number of uploads is unknown; set capacity, or name the invited clients")
    require_capacity(capacity, subject.capacity)
    return capacity


def _tally(subject: Subject, settings: OneMessageOptions, capacity: int, helpers: OneMessageHelpers) -> Tally:
    offer = plan_offer(
        helpers.record,
        helpers.keys,
        subject,
        capacity=capacity,
        minimum_cohort=settings.least_cohort,
        corrupted_clients=settings.corrupted,
        bounds=settings.bounds,
        noise=settings,
        standing=helpers.standing,
        message_form=settings.message_form,
    )
    noise_of(offer.configuration, settings)
    return Tally(offer, helpers.coins)


class Server(StagedServerSession[CheckedUpload]):
    """Server side of one sum; ``Tally`` holds the state machine and the mathematics."""

    def __init__(
        self,
        subject: Subject,
        settings: OneMessageOptions,
        invited: frozenset[ClientId] | None,
        helpers: OneMessageHelpers,
    ) -> None:
        """Query the holders, and open the single stage."""
        self._settings, self._ask_all = settings, helpers.ask_all
        self.tally = _tally(subject, settings, _capacity(subject, settings, invited), helpers)
        self._opened: Opened | None = None
        # Clients refuse an offer without the receipts of a quorum.
        ask_holders(self.tally, self._ask_all, self.tally.introduce())
        self.tally.require_holders()
        super().__init__(UPLOAD, self.tally.offer, invited, settings.least_cohort)
        self._tell()

    @property
    def agreement(self) -> Agreement:
        return self.tally.agreement

    @property
    def noise(self) -> ClientNoise | None:
        return noise_of(self.agreement.configuration, self._settings)

    @property
    def is_signed(self) -> bool:
        return self.agreement.record.mode is SecurityMode.ACTIVE

    def add_through(self, adding: Callable[[OneMessageCut], Adder]) -> None:
        """Delegate the adding before the first upload; resume what an earlier process kept."""
        with self._lock:
            self.tally.add_through(adding)
            for client, digest in self.tally.taken.items():
                self._said[client] = digest
                if self._waiting is not None:
                    self._waiting.discard(client)
            if self.tally.state is not State.COLLECTING:
                self._stage = None

    def _check(self, sender: ClientId, message: bytes) -> Checked[CheckedUpload]:
        upload = self.tally.check_upload(sender, message)
        return Checked(upload, upload.digest)

    def _take(self, sender: ClientId, content: CheckedUpload) -> None:
        self.tally.take_upload(sender, content)
        if self.tally.is_due(self._settings.delivered_at_once):
            self._deliver()

    def _deliver(self) -> None:
        ask_holders(self.tally, self._ask_all, self.tally.deliver())
        self.tally.settle()
        self._tell()

    def _tell(self) -> None:
        self._record(*self.tally.found_faults())

    def _next(self) -> None:
        self._deliver()
        self.tally.fix_list()

    def _gather(self, progress: Callable[[int, int], None] | None) -> None:
        del progress  # The work is one product of polynomials, whatever the number of clients.
        try:
            self._opened = opened_by(self.tally, self._ask_all)
        finally:
            self._tell()

    def _sum(self, progress: Callable[[int, int], None] | None) -> Released:
        del progress
        tally, opened = self.tally, self._opened
        if opened is None:
            raise InternalError("gather a sum before releasing it")
        return Released(
            aggregate=opened.aggregate,
            counted=opened.counted,
            left_out={client: Fault.of(error) for client, error in (tally.left_out | tally.lost).items()},
            revealed=frozenset({opened.counted}),
            unbounded=opened.aggregate.layout.ring_positions,
        )

    def _wipe(self) -> None:
        self.tally.end()


def opened_by(tally: Tally, holders: AskAll) -> Opened:
    """Have standing holders sign and answer a fixed list, and open its sum; a repeated call continues."""
    if tally.state is State.CERTIFYING:
        ask_holders(tally, holders, tally.requests())
        tally.certify()
    ask_holders(tally, holders, tally.requests())
    try:
        return tally.open()
    except PeerMisbehaved as error:
        heard, present = len(tally.heard), len(tally.present)
        if heard == present:
            raise
        # One liar among few answers must not cost the sum: holders that are offline now can still outvote it.
        raise ThresholdNotMet(needed=heard + 1, present=heard, what="answers that agree") from error


def ask_holders(tally: Tally, ask_all: AskAll, requests: dict[int, bytes]) -> None:
    """Query standing holders; holders that do not answer are lost to this sum, unless the list is fixed."""
    missing = set(requests)
    for position, answer in ask_all(requests):
        try:
            with blaming(*unverified(HolderId(position))):
                if message_kind(answer) is MessageKind.REFUSAL:
                    tally.refusals[position] = str(decode_refusal(answer))
                else:
                    tally.receive(position, answer)
                    missing.discard(position)
        except PeerError as error:
            tally.faults.append(error.with_traceback(None))
    for position in missing:
        tally.lose(position)
