"""Rules of a sum: who may be in it, and when it may be released. The enclave's decisions, without any cryptography.

Every rule that keeps a host from learning more than one sum of many clients is here, on public values alone, so that a
model checker can run this very class. Nothing changes unless everything holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import gcd
from typing import Final

from secagg.blame import answered_twice, from_server, signed_by, unverified
from secagg.errors import NOBODY, Misuse, PeerMisbehaved, Reason, ThresholdNotMet
from secagg.identifiers import ClientId, Party
from secagg.parameters import LEAST_COHORT

from .configuration import EnclaveConfiguration


class BufferState(StrEnum):
    """State of an enclave: the calls that it accepts next."""

    CLOSED = "closed"
    """At the start, after a release, and after a buffer was given up."""
    OPEN = "open"
    DESTROYED = "destroyed"
    """The keys are gone."""


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
    """The number of the model that the sum will update."""
    upload_ids: list[bytes] = field(default_factory=list[bytes])
    clients: set[ClientId] = field(default_factory=set[ClientId])
    weights: Counter[int] = field(default_factory=Counter[int])
    """Number of uploads of each whole weight."""
    ages: Counter[int] = field(default_factory=Counter[int])
    """Number of uploads of each weight of age."""

    @property
    def contributors(self) -> int:
        return len(self.upload_ids)

    @property
    def total_weight(self) -> int:
        return sum(weight * count for weight, count in self.weights.items())


_HOST: Final = from_server()


def _refused(culprits: frozenset[Party], sentence: str, reason: Reason) -> PeerMisbehaved:
    return PeerMisbehaved(sentence, reason=reason, culprits=culprits)


class ReleaseRules:
    """Which uploads may enter a buffer, and whether it may be released, over the life of one epoch.

    Claim EN-1: the model checker drives this class under every order of a host's calls.
    """

    def __init__(self, configuration: EnclaveConfiguration) -> None:
        self._configuration = configuration
        self._buffer: Buffer | None = None
        self._last_version = -1
        self._upload_ids = set[tuple[ClientId, bytes]]()
        self._answered = set[tuple[ClientId, int]]()
        self._models = dict[int, bytes]()
        """The digest of each model that the host has announced; no client names one."""
        self._versions = dict[bytes, int]()
        """The number of each model; one model under two numbers is two sums of the same updates."""
        self._participations = Counter[ClientId]()
        self.state = BufferState.CLOSED

    def open(self, version: int, model_digest: bytes) -> None:
        """Begin to collect updates of a model, whose digest the host fixes; numbers of models only grow."""
        if self.state is not BufferState.CLOSED:
            raise Misuse(f"a buffer opens when none is; the enclave is {self.state}; release or give up the last one")
        if type(version) is not int or not 0 <= version < 1 << 64:
            raise Misuse(f"a model's version is an integer in 0..2^64 - 1; got {version!r}")
        if version <= self._last_version:
            sentence = f"a buffer for model {version} follows one for model {self._last_version}; versions only grow"
            raise _refused(_HOST, sentence, Reason.WRONG_SESSION)
        self._announce(version, model_digest)
        self._last_version = version
        self._buffer = Buffer(version)
        self.state = BufferState.OPEN

    def announce(self, version: int, model_digest: bytes) -> None:
        """Fix the digest of an older model whose updates count in the open buffer; the same again changes nothing."""
        newest = self.require_open().version
        if not 0 <= newest - version < len(self._configuration.staleness_weights):
            sentence = f"model {version} is announced, and no update of it counts in a buffer for model {newest}"
            raise _refused(_HOST, sentence, Reason.STALE_UPDATE)
        self._announce(version, model_digest)

    def _announce(self, version: int, model_digest: bytes) -> None:
        if self._models.get(version, model_digest) != model_digest:
            raise _refused(_HOST, f"model {version} was announced with another digest", Reason.MODEL_MISMATCH)
        if (known := self._versions.get(model_digest, version)) != version:
            raise _refused(
                _HOST,
                f"model {version} is model {known} under another number, and what clients trained from it could be in "
                "two sums; open the next buffer for the next model",
                Reason.MODEL_MISMATCH,
            )
        self._models[version] = model_digest
        self._versions[model_digest] = version

    def require_open(self) -> Buffer:
        if self._buffer is None:
            raise Misuse(f"no buffer is open; the enclave is {self.state}")
        return self._buffer

    def staleness_weight(self, entry: Entry) -> int:
        """Return what an upload counts by its age, or say why it may not enter the open buffer."""
        configuration, buffer = self._configuration, self.require_open()
        table, age = configuration.staleness_weights, buffer.version - entry.version
        releases = configuration.noise.releases_per_client if configuration.noise is not None else 0
        client = self.signer(entry.client)
        both = client | _HOST
        if (entry.client, entry.upload_id) in self._upload_ids:
            raise _refused(both, f"the upload of {entry.client} was taken before", Reason.REPLAYED)
        if (entry.client, entry.version) in self._answered:
            again = answered_twice(entry.client, is_signed=configuration.has_authority)
            raise _refused(again, f"{entry.client} uploaded for model {entry.version} before", Reason.ALREADY_ANSWERED)
        if entry.client in buffer.clients:
            sentence = f"{entry.client} is in this buffer; its next update enters the next"
            raise _refused(both, sentence, Reason.ALREADY_ANSWERED)
        if not 0 <= age < len(table):
            sentence = f"model {entry.version} is not among the {len(table)} up to {buffer.version} that count here"
            raise _refused(both, sentence, Reason.STALE_UPDATE)
        if (
            self._models.get(entry.version) != entry.model_digest
            or self._versions.get(entry.model_digest, entry.version) != entry.version
        ):
            sentence = f"the model {entry.version} of {entry.client} is not the one that the host has announced"
            raise _refused(both, sentence, Reason.MODEL_MISMATCH)
        if bool(releases) and self._participations[entry.client] >= releases:
            sentence = f"{entry.client} was in {releases} releases, which is its privacy budget for this epoch"
            raise _refused(both, sentence, Reason.BUDGET_SPENT)
        if buffer.contributors >= configuration.maximum_cohort:
            sentence = f"the buffer holds {buffer.contributors} uploads and takes no more; release it"
            raise _refused(_HOST, sentence, Reason.BUFFER_FULL)
        return table[age]

    def require_weight(self, weight: int, client: ClientId) -> None:
        """Refuse a weight that a client may not give itself."""
        if not 1 <= weight <= self._configuration.maximum_weight:
            sentence = f"a weight lies in 1..{self._configuration.maximum_weight}"
            raise _refused(self.signer(client), sentence, Reason.INPUT_OUT_OF_RANGE)

    def signer(self, client: ClientId) -> frozenset[Party]:
        """Return whose doing an upload that opens can be: without an authority anybody seals in any client's name."""
        return signed_by(client) if self._configuration.has_authority else unverified(client)

    def enter(self, entry: Entry, weight: int, age_weight: int) -> None:
        """Record an upload that has passed every check and was added, with its whole weight and that of its age."""
        buffer = self.require_open()
        buffer.ages[age_weight] += 1
        buffer.upload_ids.append(entry.upload_id)
        buffer.clients.add(entry.client)
        buffer.weights[weight] += 1
        self._upload_ids.add((entry.client, entry.upload_id))
        self._answered.add((entry.client, entry.version))
        self._versions.setdefault(entry.model_digest, entry.version)
        self._participations[entry.client] += 1

    def require_releasable(self) -> None:
        """Refuse to release fewer clients than the minimum cohort, or a sum in which one client shows.

        Without noise there are as many of each weight of age: of a sum of many updates that count 64 and one that
        counts 45, the remainder modulo 64 tells that one, however small its share, and the host knows who is how old.

        The largest weight is at most the total divided by the minimum cohort. The effective cohort, which is the square
        of the sum of weights over the sum of their squares, is then no smaller than the minimum cohort either.

        A buffer with a weight that is too large, or with too few weights that lack a factor which the others have, is
        given up: asking again after each upload would tell a host the weights.
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
            raise _refused(NOBODY, f"{sentence}, so it is given up; bound weights more tightly", Reason.WEIGHTS_UNEVEN)

    def close(self) -> None:
        """Forget the open buffer; its uploads are never taken again."""
        self.require_open()
        self._buffer = None
        self.state = BufferState.CLOSED

    def give_up(self) -> None:
        """Close a buffer that was not released; its model may be tried again under another number."""
        version = self.require_open().version
        self._versions.pop(self._models[version], None)
        self.close()

    def destroy(self) -> None:
        self._buffer = None
        self.state = BufferState.DESTROYED


# --- The arithmetic of weights ----------------------------------------------------------------------------------------

_TELLING_MODULUS: Final = 16
"""A remainder by this or more is of at least the minimum cohort; by less, it is of no single client."""


def single_somebody_out(weights: Mapping[int, int], minimum_cohort: int) -> bool:
    """Tell whether some remainder of a sum with these weights is that of too few clients.

    Where all weights but a few are multiples of a number, the sum's remainder by it is that of those few, whatever the
    others sent. Of 64, 64, 64 and 1, the remainder modulo 64 is the fourth client's.

    What a product of prime powers does not divide, one of them does not. So prime powers are enough, and those that few
    weights lack are multiplied. A factor that all weights have in common tells nobody apart, and is taken out.

    Not constant time: it takes longer the larger the weights are.
    """
    common = gcd(*weights)
    reduced = {weight // common: count for weight, count in weights.items()}
    telling = 1
    for prime in {prime for weight in reduced for prime in _primes_of(weight)}:
        power = prime
        while (lacking := sum(count for weight, count in reduced.items() if weight % power)) < minimum_cohort:
            if lacking < LEAST_COHORT:
                return True
            telling *= prime
            power *= prime
            if telling >= _TELLING_MODULUS:
                return True
    return False


def _primes_of(number: int) -> Iterator[int]:
    """Go through the primes that divide a number."""
    divisor = 2
    while divisor * divisor <= number:
        if not number % divisor:
            yield divisor
            while not number % divisor:
                number //= divisor
        divisor += 1 + (divisor > 2)  # noqa: PLR2004 -- two, then the odd ones
    if number > 1:
        yield number
