"""The enclave's rules: which uploads may enter a sum, and when it may be released. It contains no cryptography.

All rules that limit a host to one sum of many clients are here. They depend only on public values, so that a model
checker can run this class. A call that is refused changes nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from secagg.blame import answered_twice, from_server, signed_by, unverified
from secagg.errors import Misuse, PeerMisbehaved, Reason, ThresholdNotMet
from secagg.identifiers import ClientId, Party

from .configuration import EnclaveConfiguration


class BufferState(StrEnum):
    """State of an enclave, which determines the calls that it accepts."""

    CLOSED = "closed"
    """No buffer is open: at the start, after a release, or after a buffer was discarded."""
    OPEN = "open"
    DESTROYED = "destroyed"
    """The epoch has ended and its keys are wiped."""


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
    """Number of the model that the sum will update."""
    upload_ids: list[bytes] = field(default_factory=list[bytes])
    clients: set[ClientId] = field(default_factory=set[ClientId])

    @property
    def contributors(self) -> int:
        return len(self.upload_ids)


_HOST: Final = from_server()


def _refused(culprits: frozenset[Party], sentence: str, reason: Reason) -> PeerMisbehaved:
    return PeerMisbehaved(sentence, reason=reason, culprits=culprits)


@dataclass(slots=True)
class Models:
    """The models of an epoch: buffers have increasing numbers; each number has one digest, each digest one number."""

    oldest: int
    """How many versions behind the newest model an update's model may be."""
    newest: int = -1
    digests: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """The digest of each model that the host announced; clients cannot add one."""
    numbers: dict[bytes, int] = field(default_factory=dict[bytes, int])
    """The number of each model; with two numbers for one model, the same updates would enter two sums."""

    def open(self, version: int, digest: bytes) -> None:
        """Announce the model that the next sum will update."""
        if type(version) is not int or not 0 <= version < 1 << 64:
            raise Misuse(f"a model's version must be an integer between 0 and 2^64 - 1; got {version!r}")
        if version <= self.newest:
            sentence = f"a buffer for model {version} follows one for model {self.newest}; versions must increase"
            raise _refused(_HOST, sentence, Reason.WRONG_SESSION)
        self._announce(version, digest)
        self.newest = version

    def announce(self, version: int, digest: bytes) -> None:
        """Fix the digest of an older model whose updates count; announcing the same digest again changes nothing."""
        self._require_counted(version, _HOST)
        self._announce(version, digest)

    def admit(self, version: int, digest: bytes, *, culprits: frozenset[Party]) -> None:
        """Refuse an update of a model that is too old, or that differs from the one that the host announced."""
        self._require_counted(version, culprits)
        if self.digests.get(version) != digest or self.numbers.get(digest, version) != version:
            sentence = f"model {version} of an upload is not the one that the host announced"
            raise _refused(culprits, sentence, Reason.MODEL_MISMATCH)

    def _require_counted(self, version: int, culprits: frozenset[Party]) -> None:
        if not 0 <= self.newest - version <= self.oldest:
            first = max(0, self.newest - self.oldest)
            sentence = f"this buffer takes updates of models {first} to {self.newest}; this is model {version}"
            raise _refused(culprits, sentence, Reason.STALE_UPDATE)

    def _announce(self, version: int, digest: bytes) -> None:
        if self.digests.get(version, digest) != digest:
            raise _refused(_HOST, f"model {version} was announced with a different digest", Reason.MODEL_MISMATCH)
        if (known := self.numbers.get(digest, version)) != version:
            sentence = f"model {version} is model {known} again, so one update could enter two sums; open the next"
            raise _refused(_HOST, sentence, Reason.MODEL_MISMATCH)
        self.digests[version] = digest
        self.numbers[digest] = version


class ReleaseRules:
    """Decides which uploads enter a buffer and whether it may be released, during one epoch.

    Claim EN-1: the model checker runs this class with every order of a host's calls.
    """

    def __init__(self, configuration: EnclaveConfiguration) -> None:
        self._configuration = configuration
        self._buffer: Buffer | None = None
        self._models = Models(configuration.oldest)
        self._upload_ids = set[tuple[ClientId, bytes]]()
        self._answered = set[tuple[ClientId, int]]()
        self._participations = Counter[ClientId]()
        self.state = BufferState.CLOSED

    def open(self, version: int, model_digest: bytes) -> None:
        """Begin to collect updates for a model; its number must be larger than that of every buffer before."""
        if self.state is not BufferState.CLOSED:
            raise Misuse(f"the enclave is {self.state}; release or discard its buffer first")
        self._models.open(version, model_digest)
        self._buffer = Buffer(version)
        self.state = BufferState.OPEN

    def announce(self, version: int, model_digest: bytes) -> None:
        """Fix the digest of an older model whose updates count in the open buffer."""
        self.require_open()
        self._models.announce(version, model_digest)

    def require_open(self) -> Buffer:
        if self._buffer is None:
            raise Misuse(f"no buffer is open; the enclave is {self.state}")
        return self._buffer

    def admit(self, entry: Entry) -> None:
        """Refuse an upload that may not enter the open buffer. Once entered, an upload never prevents the release."""
        configuration, buffer = self._configuration, self.require_open()
        releases = configuration.noise.releases_per_client if configuration.noise is not None else 0
        client = self.signer(entry.client)
        both = client | _HOST
        if (entry.client, entry.upload_id) in self._upload_ids:
            raise _refused(both, f"the upload of {entry.client} was already accepted", Reason.REPLAYED)
        if (entry.client, entry.version) in self._answered:
            again = answered_twice(entry.client, is_signed=configuration.has_authority)
            raise _refused(again, f"{entry.client} uploaded for model {entry.version} before", Reason.ALREADY_ANSWERED)
        if entry.client in buffer.clients:
            sentence = f"{entry.client} is already in this buffer; its next update must wait for the next buffer"
            raise _refused(both, sentence, Reason.ALREADY_ANSWERED)
        self._models.admit(entry.version, entry.model_digest, culprits=both)
        if bool(releases) and self._participations[entry.client] >= releases:
            sentence = f"{entry.client} was in {releases} releases, its privacy budget for this epoch"
            raise _refused(both, sentence, Reason.BUDGET_SPENT)
        if buffer.contributors >= configuration.maximum_cohort:
            sentence = f"the buffer is full with {buffer.contributors} uploads; release it"
            raise _refused(_HOST, sentence, Reason.BUFFER_FULL)

    def signer(self, client: ClientId) -> frozenset[Party]:
        """Return who may have sent a valid upload: without an authority, anybody can seal in any client's name."""
        return signed_by(client) if self._configuration.has_authority else unverified(client)

    def enter(self, entry: Entry) -> None:
        """Record an upload that passed every check and was added."""
        buffer = self.require_open()
        buffer.upload_ids.append(entry.upload_id)
        buffer.clients.add(entry.client)
        self._upload_ids.add((entry.client, entry.upload_id))
        self._answered.add((entry.client, entry.version))
        self._models.numbers.setdefault(entry.model_digest, entry.version)
        self._participations[entry.client] += 1

    def require_releasable(self) -> None:
        """Refuse to release a sum below the minimum cohort; every upload counts once, whatever its staleness."""
        buffer, least = self.require_open(), self._configuration.minimum_cohort
        if buffer.contributors < least:
            raise ThresholdNotMet(needed=least, present=buffer.contributors, what="uploads")

    def close(self) -> None:
        """Discard the open buffer; its uploads are never accepted again."""
        self.require_open()
        self._buffer = None
        self.state = BufferState.CLOSED

    def give_up(self) -> None:
        """Close a buffer without a release; its model may be announced again under another number."""
        version = self.require_open().version
        self._models.numbers.pop(self._models.digests[version], None)
        self.close()

    def destroy(self) -> None:
        self._buffer = None
        self.state = BufferState.DESTROYED
