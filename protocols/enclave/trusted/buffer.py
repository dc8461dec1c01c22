"""Who may be in which sum, and when it may be released: the enclave's decisions, without any cryptography.

Every rule that keeps a host from learning more than one sum of many clients is here, on public values alone, so that a
model checker can run this very class. Nothing changes unless everything holds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from secagg.blame import unverified
from secagg.errors import NOBODY, Misuse, PeerMisbehaved, Reason, ThresholdNotMet
from secagg.identifiers import ClientId, Party, ServerId

from .configuration import EnclaveConfiguration
from .weights import single_somebody_out


class BufferState(StrEnum):
    """What an enclave may do next."""

    CLOSED = "closed"
    """Nothing is being collected: at the start, after a release, and after a buffer was given up."""
    OPEN = "open"
    """Uploads are taken, and once there are enough, released."""
    DESTROYED = "destroyed"
    """The keys are gone; nothing can be opened or released any more."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One upload in a buffer."""

    client: ClientId
    upload_id: bytes
    version: int
    model_digest: bytes


@dataclass(slots=True)
class Buffer:
    """The uploads that one release will sum."""

    version: int
    """The number of the model that the sum will update; each buffer's is larger than that of the one before."""
    upload_ids: list[bytes] = field(default_factory=list[bytes])
    clients: set[ClientId] = field(default_factory=set[ClientId])
    weights: Counter[int] = field(default_factory=Counter[int])
    """How many uploads there are of each whole weight."""
    ages: Counter[int] = field(default_factory=Counter[int])
    """How many uploads there are of each weight of age."""

    @property
    def contributors(self) -> int:
        """How many uploads are in it."""
        return len(self.upload_ids)

    @property
    def total_weight(self) -> int:
        """What the uploads weigh together."""
        return sum(weight * count for weight, count in self.weights.items())


class ReleaseRules:
    """Which uploads may enter a buffer, and whether it may be released, over the life of one epoch.

    Claim EN-1: the model checker drives this class under every order of a host's calls.
    """

    def __init__(self, configuration: EnclaveConfiguration) -> None:
        """Begin an epoch, in which nothing was seen yet."""
        self._configuration = configuration
        self._buffer: Buffer | None = None
        self._last_version = -1
        self._upload_ids = set[tuple[ClientId, bytes]]()
        self._answered = set[tuple[ClientId, int]]()
        self._models = dict[int, bytes]()
        self._versions = dict[bytes, int]()
        """The number of each model; one model under two numbers is two sums of the same updates."""
        self._announced = set[int]()
        self._participations = Counter[ClientId]()
        self.state = BufferState.CLOSED

    def open(self, version: int, model_digest: bytes) -> None:
        """Begin to collect updates of a model, whose digest the host fixes.

        Raises:
            Misuse: another buffer is open, so that one upload could be told into two; or the keys are gone.
            PeerMisbehaved: the number is not larger than that of every buffer before, or the model had another number.
        """
        if self.state is not BufferState.CLOSED:
            raise Misuse(f"a buffer opens when none is; the enclave is {self.state}; release or give up the last one")
        if type(version) is not int or not 0 <= version < 1 << 64:
            raise Misuse(f"a model's version is an integer in 0..2^64 - 1; got {version!r}")
        if version <= self._last_version:
            raise PeerMisbehaved(
                f"a buffer for model {version} follows one for model {self._last_version}; versions only grow",
                reason=Reason.WRONG_SESSION,
                culprits={ServerId()},
            )
        if (known := self._versions.get(model_digest, version)) != version:
            raise PeerMisbehaved(
                f"model {version} is model {known} under another number, and what clients trained from it could be in "
                "two sums; open the next buffer for the next model",
                reason=Reason.MODEL_MISMATCH,
                culprits={ServerId()},
            )
        self._models[version] = model_digest
        self._versions[model_digest] = version
        self._announced.add(version)
        self._last_version = version
        self._buffer = Buffer(version)
        self.state = BufferState.OPEN

    def require_open(self) -> Buffer:
        """Return the open buffer.

        Raises:
            Misuse: none is open.
        """
        if self._buffer is None:
            raise Misuse(f"no buffer is open; the enclave is {self.state}")
        return self._buffer

    def staleness_weight(self, entry: Entry) -> int:
        """Return what an upload counts by its age, or say why it may not enter the open buffer.

        Raises:
            PeerMisbehaved: it was taken before, its client has answered for this model or is in this buffer already,
                it is of an unknown or forgotten model, the client's budget is spent, or the buffer is full.
        """
        configuration, buffer = self._configuration, self.require_open()
        table, age = configuration.staleness_weights, buffer.version - entry.version
        releases = configuration.noise.releases_per_client if configuration.noise is not None else 0
        client, host = self.signer(entry.client), frozenset({ServerId()})
        for is_wrong, sentence, reason, culprits in (
            (
                (entry.client, entry.upload_id) in self._upload_ids,
                f"the upload of {entry.client} was taken before",
                Reason.REPLAYED,
                client | host,
            ),
            (
                (entry.client, entry.version) in self._answered,
                f"{entry.client} has uploaded an update of model {entry.version} before",
                Reason.ALREADY_ANSWERED,
                client,
            ),
            (
                entry.client in buffer.clients,
                f"{entry.client} is in this buffer; its next update enters the next",
                Reason.ALREADY_ANSWERED,
                client | host,
            ),
            (
                not 0 <= age < len(table),
                f"model {entry.version} is not among the {len(table)} up to {buffer.version} that count here",
                Reason.STALE_UPDATE,
                client | host,
            ),
            (
                self._models.get(entry.version, entry.model_digest) != entry.model_digest
                or self._versions.get(entry.model_digest, entry.version) != entry.version,
                f"{entry.client} was given another model {entry.version} than others",
                Reason.MODEL_MISMATCH,
                # Of a model that the host has not announced, nobody can say who had the wrong one.
                client | host if entry.version in self._announced else NOBODY,
            ),
            (
                bool(releases) and self._participations[entry.client] >= releases,
                f"{entry.client} was in {releases} releases, which is its privacy budget for this epoch",
                Reason.BUDGET_SPENT,
                client | host,
            ),
            (
                buffer.contributors >= configuration.maximum_cohort,
                f"the buffer holds {buffer.contributors} uploads and takes no more; release it",
                Reason.BUFFER_FULL,
                host,
            ),
        ):
            if is_wrong:
                raise PeerMisbehaved(sentence, reason=reason, culprits=culprits)
        return table[age]

    def require_weight(self, weight: int, client: ClientId) -> None:
        """Refuse a weight that a client may not give itself.

        Raises:
            PeerMisbehaved: it is zero or above the maximum.
        """
        if not 1 <= weight <= self._configuration.maximum_weight:
            raise PeerMisbehaved(
                f"a weight lies in 1..{self._configuration.maximum_weight}",
                reason=Reason.INPUT_OUT_OF_RANGE,
                culprits=self.signer(client),
            )

    def signer(self, client: ClientId) -> frozenset[Party]:
        """Return whose doing an upload that opens can be: without an authority anybody seals in any client's name."""
        return frozenset({client}) if self._configuration.has_authority else unverified(client)

    def enter(self, entry: Entry, weight: int, age_weight: int) -> None:
        """Record an upload that has passed every check and was added, with its whole weight and that of its age."""
        buffer = self.require_open()
        buffer.ages[age_weight] += 1
        buffer.upload_ids.append(entry.upload_id)
        buffer.clients.add(entry.client)
        buffer.weights[weight] += 1
        self._upload_ids.add((entry.client, entry.upload_id))
        self._answered.add((entry.client, entry.version))
        self._models.setdefault(entry.version, entry.model_digest)
        self._versions.setdefault(entry.model_digest, entry.version)
        self._participations[entry.client] += 1

    def require_releasable(self) -> None:
        """Refuse to release fewer clients than the minimum cohort, or a sum in which one client shows.

        Without noise there are as many of each weight of age: of a sum of many updates that count 64 and one that
        counts 45, the remainder modulo 64 tells that one, however small its share, and the host knows who is how old.

        The largest weight is at most the total divided by the minimum cohort. The effective cohort, which is the square
        of the sum of weights over the sum of their squares, is then no smaller than the minimum cohort either.

        Raises:
            ThresholdNotMet: more uploads are needed, or more of one age; nothing has changed.
            PeerMisbehaved: one weight is too large or, without noise, too few weights lack a factor that the others
                have. The buffer is given up: asking again after each upload would tell a host the weights.
        """
        buffer, least = self.require_open(), self._configuration.minimum_cohort
        if buffer.contributors < least:
            raise ThresholdNotMet(needed=least, present=buffer.contributors, what="uploads")
        if self._configuration.noise is None and (fewest := min(buffer.ages.values())) < least:
            raise ThresholdNotMet(needed=least, present=fewest, what="uploads of each weight of age")
        sentence = None
        if max(buffer.weights) * least > buffer.total_weight:
            sentence = f"one client weighs more than 1/{least} of the buffer"
        elif self._configuration.noise is None and single_somebody_out(buffer.weights, least):
            sentence = "all weights but a few have a factor in common, and the sum's remainder by it tells of those few"
        if sentence is not None:
            self.give_up()
            raise PeerMisbehaved(
                f"{sentence}, so it is given up; bound weights more tightly",
                reason=Reason.WEIGHTS_UNEVEN,
                culprits=NOBODY,
            )

    def close(self) -> None:
        """Forget the open buffer; its uploads are never taken again.

        Raises:
            Misuse: none is open.
        """
        self.require_open()
        self._buffer = None
        self.state = BufferState.CLOSED

    def give_up(self) -> None:
        """Close a buffer of which nothing was released; its model may be tried again under another number.

        Raises:
            Misuse: none is open.
        """
        version = self.require_open().version
        self._versions.pop(self._models[version], None)
        self.close()

    def destroy(self) -> None:
        """End the epoch."""
        self._buffer = None
        self.state = BufferState.DESTROYED
