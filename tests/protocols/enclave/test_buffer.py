"""Who may be in which sum: every rule, and a naive model beside the class, with every call in every state."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from secagg.contract import Layout, RingSegment
from secagg.errors import Misuse, PeerMisbehaved, Reason, SecAggError
from secagg.identifiers import ClientId, ServerId
from secagg.privacy.kinds import NoiseKind
from secagg.protocols.enclave.trusted.buffer import BufferState, Entry, ReleaseRules
from secagg.protocols.enclave.trusted.configuration import EnclaveConfiguration, Noise
from tests.harness.enclave_buffers import EnclaveSetup, InsecureEnclaveSession, model_digest

CLOSED, OPEN, DESTROYED = BufferState
CLIENT, HOST = ClientId(7), ServerId()


LAYOUT = Layout((RingSegment(20, 6),))
SETUP = EnclaveSetup(layout=LAYOUT, minimum_cohort=2, maximum_cohort=4, oldest=1)
PLAIN = InsecureEnclaveSession(SETUP).configuration


def configuration(**changes: Any) -> EnclaveConfiguration:
    return replace(PLAIN, **changes)


def noised(releases: int, **changes: Any) -> EnclaveConfiguration:
    noise = Noise(
        kind=NoiseKind.DISCRETE_GAUSSIAN, variances=(Fraction(1),), l2_bounds=(9,), releases_per_client=releases
    )
    return configuration(**({"noise": noise} | changes))


def entry(client: int = 7, *, upload: int | None = None, version: int = 5, digest: bytes | None = None) -> Entry:
    number = client if upload is None else upload
    return Entry(ClientId(client), number.to_bytes(16, "big"), version, digest or model_digest(version))


def rules(*, version: int | None = 5, made: EnclaveConfiguration | None = None) -> ReleaseRules:
    made = made or configuration()
    started = ReleaseRules(made)
    if version is not None:
        started.open(version, model_digest(version))
        for older in range(max(0, version - made.oldest), version):
            started.announce(older, model_digest(older))
    return started


def take(kept: ReleaseRules, taken: Entry) -> None:
    """Do what an enclave does with an upload that opens."""
    kept.admit(taken)
    kept.enter(taken)


def remembered(kept: ReleaseRules) -> Any:
    return {name: copy.deepcopy(value) for name, value in vars(kept).items() if name != "_configuration"}


def is_refused(
    kept: ReleaseRules, call: Callable[[], object], kind: type[SecAggError], reason: Reason | None = None
) -> SecAggError:
    """Check that a call is refused in this way, and that the rules remember exactly what they did before."""
    before = remembered(kept)
    with pytest.raises(SecAggError) as caught:
        call()
    assert type(caught.value) is kind, str(caught.value)
    assert reason in (None, caught.value.reason)
    assert remembered(kept) == before
    return caught.value


def test_rules_that_are_destroyed_take_part_in_nothing() -> None:
    kept = rules()
    kept.destroy()
    kept.destroy()
    assert kept.state is DESTROYED
    for call in (
        lambda: kept.open(9, model_digest(9)),
        lambda: kept.announce(4, model_digest(4)),
        lambda: kept.admit(entry()),
        lambda: kept.enter(entry()),
        kept.require_open,
        kept.require_releasable,
        kept.close,
        kept.give_up,
    ):
        is_refused(kept, call, Misuse, Reason.API_MISUSE)


# --- Each rule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [-1, 1 << 64, True, 1.0, None])
def test_a_version_is_an_integer_of_64_bits(version: Any) -> None:
    kept = rules(version=None)
    is_refused(kept, lambda: kept.open(version, bytes(32)), Misuse)


REFUSED: dict[str, tuple[Entry, Reason, set[Any]]] = {
    "the same upload": (entry(1, upload=1), Reason.REPLAYED, {ClientId(1), HOST}),
    "a second upload of one model": (entry(1, upload=99), Reason.ALREADY_ANSWERED, set()),
    "a client of this buffer": (entry(1, upload=99, version=4), Reason.ALREADY_ANSWERED, {ClientId(1), HOST}),
    "too old": (entry(version=3), Reason.STALE_UPDATE, {CLIENT, HOST}),
    "another number of this model": (entry(version=4, digest=model_digest(5)), Reason.MODEL_MISMATCH, {CLIENT, HOST}),
    "too new": (entry(version=6), Reason.STALE_UPDATE, {CLIENT, HOST}),
    "another model": (entry(digest=b"m" * 32), Reason.MODEL_MISMATCH, {CLIENT, HOST}),
    "another older model": (entry(version=4, digest=b"m" * 32), Reason.MODEL_MISMATCH, {CLIENT, HOST}),
}


@pytest.mark.parametrize(("refused", "reason", "culprits"), REFUSED.values(), ids=REFUSED.keys())
def test_an_upload_that_breaks_a_rule_is_refused(refused: Entry, reason: Reason, culprits: set[Any]) -> None:
    kept = rules()
    take(kept, entry(1))
    take(kept, entry(2, version=4))
    error = is_refused(kept, lambda: kept.admit(refused), PeerMisbehaved, reason)
    assert isinstance(error, PeerMisbehaved)
    assert error.culprits == culprits
    take(kept, entry())


@pytest.mark.parametrize(
    ("version", "digest", "reason"),
    [
        (4, b"m" * 32, Reason.MODEL_MISMATCH),
        (5, b"m" * 32, Reason.MODEL_MISMATCH),
        (3, model_digest(4), Reason.MODEL_MISMATCH),
        (3, model_digest(5), Reason.MODEL_MISMATCH),
        (2, model_digest(2), Reason.STALE_UPDATE),
        (6, model_digest(6), Reason.STALE_UPDATE),
    ],
)
def test_a_host_announces_one_model_under_each_number_and_none_that_does_not_count(
    version: int, digest: bytes, reason: Reason
) -> None:
    kept = rules(version=None, made=configuration(oldest=2))
    kept.open(5, model_digest(5))
    kept.announce(4, model_digest(4))
    error = is_refused(kept, lambda: kept.announce(version, digest), PeerMisbehaved, reason)
    assert isinstance(error, PeerMisbehaved)
    assert error.culprits == {HOST}
    kept.announce(3, model_digest(3))
    before = remembered(kept)
    for again in (3, 4, 5):
        kept.announce(again, model_digest(again))
    assert remembered(kept) == before


def test_an_update_of_a_model_that_was_given_up_and_summed_later_keeps_its_number() -> None:
    """Its model is free again when its own buffer is given up, and not once one of its updates is in another one."""
    kept = rules()
    kept.give_up()
    kept.open(6, model_digest(6))
    take(kept, entry(1))
    kept.close()
    is_refused(kept, lambda: kept.open(7, model_digest(5)), PeerMisbehaved, Reason.MODEL_MISMATCH)


def test_a_model_that_was_given_up_gets_another_number() -> None:
    kept = rules()
    kept.give_up()
    kept.open(6, model_digest(5))
    take(kept, entry(1, version=6, digest=model_digest(5)))
    assert kept.require_open().contributors == 1


def test_a_buffer_takes_its_maximum_of_uploads_and_not_one_more() -> None:
    kept = rules()
    for client in range(1, 5):
        take(kept, entry(client))
    error = is_refused(kept, lambda: kept.admit(entry(5)), PeerMisbehaved, Reason.BUFFER_FULL)
    assert isinstance(error, PeerMisbehaved)
    assert error.culprits == {HOST}
    kept.require_releasable()
    kept.close()
    kept.open(6, model_digest(6))
    take(kept, entry(5))


def test_one_late_upload_does_not_keep_a_full_buffer_from_release() -> None:
    """Thirty-nine clients and one whose model is a version older: it counts like the others, or is refused on entry."""
    kept = rules(made=configuration(minimum_cohort=20, maximum_cohort=40))
    for client in range(39):
        take(kept, entry(client))
    is_refused(kept, lambda: kept.admit(entry(39, version=3)), PeerMisbehaved, Reason.STALE_UPDATE)
    take(kept, entry(39, version=4))
    kept.require_releasable()


# --- A model beside it ------------------------------------------------------------------------------------------------


@dataclass
class Naive:
    """The same decisions, by going through everything that ever happened."""

    made: EnclaveConfiguration
    history: list[tuple[int, Entry]] = field(default_factory=list[tuple[int, Entry]])
    """For each upload that was taken: the number of its buffer, and the upload."""
    opened: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    announced: list[tuple[int, bytes, int]] = field(default_factory=list[tuple[int, bytes, int]])
    """Each announcement, with the number of the buffer that was open."""
    given_up: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    state: BufferState = CLOSED

    def open(self, version: int, digest: bytes) -> Reason | None:
        if self.state is not CLOSED:
            return Reason.API_MISUSE
        if any(version <= earlier for earlier, _ in self.opened):
            return Reason.WRONG_SESSION
        if any(model == digest and number != version for number, model in self.known()):
            return Reason.MODEL_MISMATCH
        self.opened.append((version, digest))
        self.state = OPEN
        return None

    def known(self) -> list[tuple[int, bytes]]:
        """Return the number of each model, but of those whose own buffer was given up, and that nothing named later."""
        found = [each for each in self.opened if each not in self.given_up]
        found += [(old.version, old.model_digest) for _, old in self.later()]
        for version, digest, place in self.announced:
            if self.opened[place - 1] != (version, digest) or (version, digest) not in self.given_up:
                found.append((version, digest))
        return found

    def announce(self, version: int, digest: bytes) -> Reason | None:
        if self.state is not OPEN:
            return Reason.API_MISUSE
        if self.opened[-1][0] - version not in range(self.made.oldest + 1):
            return Reason.STALE_UPDATE
        named = [*self.opened, *((number, model) for number, model, _ in self.announced)]
        if any(number == version and model != digest for number, model in named):
            return Reason.MODEL_MISMATCH
        if any(model == digest and number != version for number, model in self.known()):
            return Reason.MODEL_MISMATCH
        self.announced.append((version, digest, len(self.opened)))
        return None

    def later(self) -> list[tuple[int, Entry]]:
        """Return the uploads that did not go down with the buffer of their own model."""
        return [
            (number, old)
            for number, old in self.history
            if self.opened[number - 1] != (old.version, old.model_digest)
            or self.opened[number - 1] not in self.given_up
        ]

    def here(self) -> list[Entry]:
        return [taken for number, taken in self.history if number == len(self.opened)]

    def refusal(self, new: Entry) -> Reason | None:
        if self.state is not OPEN:
            return Reason.API_MISUSE
        taken = [old for _, old in self.history]
        age = self.opened[-1][0] - new.version
        announced = [*self.opened, *((version, digest) for version, digest, _ in self.announced)]
        budget = None if self.made.noise is None else self.made.noise.releases_per_client
        checks = {
            Reason.REPLAYED: all((old.client, old.upload_id) != (new.client, new.upload_id) for old in taken),
            Reason.ALREADY_ANSWERED: all((old.client, old.version) != (new.client, new.version) for old in taken)
            and all(old.client != new.client for old in self.here()),
            Reason.STALE_UPDATE: age in range(self.made.oldest + 1),
            Reason.MODEL_MISMATCH: (new.version, new.model_digest) in announced
            and all(number == new.version for number, digest in self.known() if digest == new.model_digest),
            Reason.BUDGET_SPENT: budget is None or sum(old.client == new.client for old in taken) < budget,
            Reason.BUFFER_FULL: len(self.here()) < self.made.maximum_cohort,
        }
        return next((reason for reason, holds in checks.items() if not holds), None)

    def release(self) -> Reason | None:
        if self.state is not OPEN:
            return Reason.API_MISUSE
        if len(self.here()) < self.made.minimum_cohort:
            return Reason.THRESHOLD_NOT_MET
        self.state = CLOSED
        return None


def outcome(call: Callable[[], object]) -> Reason | None:
    try:
        call()
    except SecAggError as error:
        return error.reason
    return None


class RulesBesideTheModel(RuleBasedStateMachine):
    """Do the same to both, and compare what they say."""

    made = configuration()

    def __init__(self) -> None:
        super().__init__()
        self.kept, self.naive = ReleaseRules(self.made), Naive(self.made)

    @rule(version=st.integers(0, 8), other=st.sampled_from([None] * 4 + [b"m" * 32, model_digest(2)]))
    def open(self, version: int, other: bytes | None) -> None:
        digest = other or model_digest(version)
        assert outcome(lambda: self.kept.open(version, digest)) == self.naive.open(version, digest)

    @rule(back=st.integers(-1, 3), other=st.sampled_from([None] * 4 + [b"m" * 32, model_digest(2)]))
    def announce(self, back: int, other: bytes | None) -> None:
        newest = self.naive.opened[-1][0] if self.naive.opened else 0
        version = max(0, newest - back)
        digest = other or model_digest(version)
        assert outcome(lambda: self.kept.announce(version, digest)) == self.naive.announce(version, digest)

    @rule(
        client=st.integers(0, 5),
        upload=st.integers(0, 9),
        back=st.integers(-1, 3),
        digest=st.sampled_from([None] * 4 + [b"m" * 32, model_digest(2)]),
    )
    def upload(self, client: int, upload: int, back: int, digest: bytes | None) -> None:
        newest = self.naive.opened[-1][0] if self.naive.opened else 0
        version = max(0, newest - back)
        new = entry(client, upload=upload, version=version, digest=digest)
        expected = self.naive.refusal(new)
        before = remembered(self.kept)
        assert outcome(lambda: take(self.kept, new)) == expected
        if expected is None:
            self.naive.history.append((len(self.naive.opened), new))
        else:
            assert remembered(self.kept) == before

    @rule()
    def release(self) -> None:
        expected = self.naive.release()
        assert outcome(self.kept.require_releasable) == expected
        if expected is None:
            self.kept.close()

    @precondition(lambda self: self.naive.state is OPEN)
    @rule()
    def give_up(self) -> None:
        self.kept.give_up()
        self.naive.given_up.append(self.naive.opened[-1])
        self.naive.state = CLOSED

    @invariant()
    def agree(self) -> None:
        assert self.kept.state is self.naive.state
        if self.naive.state is not OPEN:
            for call in (self.kept.require_open, self.kept.require_releasable, self.kept.close, self.kept.give_up):
                is_refused(self.kept, call, Misuse, Reason.API_MISUSE)
        else:
            here, buffer = self.naive.here(), self.kept.require_open()
            assert buffer.contributors == len(here)
            assert buffer.clients == {taken.client for taken in here}
            assert len(buffer.clients) == len(here), "one upload for each client"


class NoisedRulesBesideTheModel(RulesBesideTheModel):
    """The same with a privacy budget."""

    made = noised(2)


RulesBesideTheModel.TestCase.settings = NoisedRulesBesideTheModel.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None
)
TestRules = RulesBesideTheModel.TestCase
TestNoisedRules = NoisedRulesBesideTheModel.TestCase
