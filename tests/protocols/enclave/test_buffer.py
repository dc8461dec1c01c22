"""Who may be in which sum: every rule, and a naive model beside the class, with every call in every state."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import gcd
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from secagg.contract import Layout, RingSegment
from secagg.errors import Misuse, PeerMisbehaved, Reason, SecAggError
from secagg.identifiers import ClientId, ServerId
from secagg.privacy.kinds import NoiseKind
from secagg.protocols.enclave.trusted.buffer import BufferState, Entry, ReleaseRules, single_somebody_out
from secagg.protocols.enclave.trusted.configuration import EnclaveConfiguration, Noise
from tests.harness.enclave_buffers import EnclaveSetup, InsecureEnclaveSession, model_digest

CLOSED, OPEN, DESTROYED = BufferState
TABLE = (3, 2)
CLIENT, HOST = ClientId(7), ServerId()


LAYOUT = Layout((RingSegment(20, 6),))
SETUP = EnclaveSetup(layout=LAYOUT, minimum_cohort=2, maximum_cohort=4, maximum_weight=5, staleness_weights=TABLE)
PLAIN = InsecureEnclaveSession(SETUP).configuration


def configuration(**changes: Any) -> EnclaveConfiguration:
    return replace(PLAIN, **changes)


def noised(releases: int, **changes: Any) -> EnclaveConfiguration:
    noise = Noise(
        kind=NoiseKind.DISCRETE_GAUSSIAN, variances=(Fraction(1),), l2_bounds=(9,), releases_per_client=releases
    )
    return configuration(**({"noise": noise, "maximum_weight": 1} | changes))


def entry(client: int = 7, *, upload: int | None = None, version: int = 5, digest: bytes | None = None) -> Entry:
    number = client if upload is None else upload
    return Entry(ClientId(client), number.to_bytes(16, "big"), version, digest or model_digest(version))


def rules(*, version: int | None = 5, made: EnclaveConfiguration | None = None) -> ReleaseRules:
    made = made or configuration()
    started = ReleaseRules(made)
    if version is not None:
        started.open(version, model_digest(version))
        for older in range(max(0, version + 1 - len(made.staleness_weights)), version):
            started.announce(older, model_digest(older))
    return started


def take(kept: ReleaseRules, taken: Entry, weight: int = 1) -> None:
    """Do what an enclave does with an upload that opens."""
    age = kept.staleness_weight(taken)
    kept.require_weight(weight, taken.client)
    kept.enter(taken, weight * age, age)


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
        lambda: kept.staleness_weight(entry()),
        lambda: kept.enter(entry(), 3, 3),
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
    error = is_refused(kept, lambda: kept.staleness_weight(refused), PeerMisbehaved, reason)
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
    kept = rules(version=None, made=configuration(staleness_weights=(1, 1, 1)))
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


# --- The arithmetic of weights ----------------------------------------------------------------------------------------


def tells_a_few(weights: list[int], minimum_cohort: int, telling: int = 16) -> bool:
    """Try every modulus: whether the sum's remainder is that of one client, or by 16 and more of too few."""
    reduced = [weight // gcd(*weights) for weight in weights]
    others = [(modulus, sum(weight % modulus > 0 for weight in reduced)) for modulus in range(2, max(reduced) + 1)]
    return any(
        others_of < (minimum_cohort if modulus >= telling else 2) and others_of < len(weights)
        for modulus, others_of in others
    )


@pytest.mark.parametrize(
    ("weights", "is_even"),
    [
        ([64, 64, 64, 1], False),
        ([64, 64, 64, 32], False),
        ([48, 48, 48, 16], False),
        ([4, 4, 4, 2], False),
        ([6, 10, 15, 15], False),
        ([6, 10, 15, 7, 15, 14], True),
        ([6, 6, 6, 6], True),
        ([64, 64, 1, 1], True),
        ([64, 64, 64, 1, 1], False),
        ([3, 3, 3, 1, 1], True),
        ([17, 34, 34, 17, 17, 5], False),
        ([18, 18, 18, 1, 1], False),
        ([100, 200, 300, 400], True),
    ],
)
def test_a_remainder_of_the_sum_is_not_that_of_a_few(weights: list[int], is_even: bool) -> None:  # noqa: FBT001
    least = 3 if len(weights) > 4 else 2
    made = configuration(
        minimum_cohort=least,
        maximum_cohort=6,
        maximum_weight=400,
        staleness_weights=(1,),
        layout=Layout((RingSegment(40, 6),)),
    )
    kept = rules(made=made)
    for client, weight in enumerate(weights):
        take(kept, entry(client), weight)
    assert tells_a_few(weights, least) is not is_even
    if is_even:
        kept.require_releasable()
        return
    with pytest.raises(PeerMisbehaved, match="factor in common") as caught:
        kept.require_releasable()
    assert caught.value.reason is Reason.WEIGHTS_UNEVEN
    assert kept.state is CLOSED


@given(weights=st.lists(st.integers(1, 300), min_size=2, max_size=8), least=st.integers(2, 5))
@settings(max_examples=300, deadline=None)
def test_prime_powers_find_what_every_modulus_finds(weights: list[int], least: int) -> None:
    if tells_a_few(weights, least):
        assert single_somebody_out(Counter(weights), least)
    elif single_somebody_out(Counter(weights), least):
        # Two remainders may be of different clients; multiplied, they are taken for one.
        assert tells_a_few(weights, least, telling=2)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({1: 3, 16: 10}, True),
        ({1: 3, 8: 10}, False),
        ({1: 3, 12: 10}, False),
        ({1: 3, 2: 1, 4: 10}, False),
        ({1: 1, 12: 10}, True),
        ({1: 3, 9: 10}, False),
    ],
)
def test_a_remainder_by_sixteen_tells_and_one_by_less_does_not(weights: dict[int, int], *, expected: bool) -> None:
    """Three clients of a cohort of five: by 16 they stand out, by 8, 9 or 12 they do not; no prime counts twice."""
    assert single_somebody_out(weights, 5) is expected


def test_large_weights_are_taken_apart_in_time() -> None:
    largest_prime = (1 << 32) - 5
    assert single_somebody_out(Counter({largest_prime * 65521: 3, 65521: 1}), 2)


# --- A model beside it ------------------------------------------------------------------------------------------------


@dataclass
class Naive:
    """The same decisions, by going through everything that ever happened."""

    made: EnclaveConfiguration
    history: list[tuple[int, Entry, int]] = field(default_factory=list[tuple[int, Entry, int]])
    """For each upload that was taken: the number of its buffer, the upload, and its whole weight."""
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
        found += [(old.version, old.model_digest) for _, old, _ in self.later()]
        for version, digest, place in self.announced:
            if self.opened[place - 1] != (version, digest) or (version, digest) not in self.given_up:
                found.append((version, digest))
        return found

    def announce(self, version: int, digest: bytes) -> Reason | None:
        if self.state is not OPEN:
            return Reason.API_MISUSE
        if self.opened[-1][0] - version not in range(len(self.made.staleness_weights)):
            return Reason.STALE_UPDATE
        named = [*self.opened, *((number, model) for number, model, _ in self.announced)]
        if any(number == version and model != digest for number, model in named):
            return Reason.MODEL_MISMATCH
        if any(model == digest and number != version for number, model in self.known()):
            return Reason.MODEL_MISMATCH
        self.announced.append((version, digest, len(self.opened)))
        return None

    def later(self) -> list[tuple[int, Entry, int]]:
        """Return the uploads that did not go down with the buffer of their own model."""
        return [
            (number, old, weight)
            for number, old, weight in self.history
            if self.opened[number - 1] != (old.version, old.model_digest)
            or self.opened[number - 1] not in self.given_up
        ]

    def here(self) -> list[tuple[Entry, int]]:
        return [(taken, weight) for number, taken, weight in self.history if number == len(self.opened)]

    def refusal(self, new: Entry) -> Reason | None:
        if self.state is not OPEN:
            return Reason.API_MISUSE
        taken = [old for _, old, _ in self.history]
        age = self.opened[-1][0] - new.version
        announced = [*self.opened, *((version, digest) for version, digest, _ in self.announced)]
        budget = None if self.made.noise is None else self.made.noise.releases_per_client
        checks = {
            Reason.REPLAYED: all((old.client, old.upload_id) != (new.client, new.upload_id) for old in taken),
            Reason.ALREADY_ANSWERED: all((old.client, old.version) != (new.client, new.version) for old in taken)
            and all(old.client != new.client for old, _ in self.here()),
            Reason.STALE_UPDATE: age in range(len(self.made.staleness_weights)),
            Reason.MODEL_MISMATCH: (new.version, new.model_digest) in announced
            and all(number == new.version for number, digest in self.known() if digest == new.model_digest),
            Reason.BUDGET_SPENT: budget is None or sum(old.client == new.client for old in taken) < budget,
            Reason.BUFFER_FULL: len(self.here()) < self.made.maximum_cohort,
        }
        return next((reason for reason, holds in checks.items() if not holds), None)

    def release(self) -> Reason | None:
        if self.state is not OPEN:
            return Reason.API_MISUSE
        weights = [weight for _, weight in self.here()]
        if len(weights) < self.made.minimum_cohort:
            return Reason.THRESHOLD_NOT_MET
        table, newest = self.made.staleness_weights, self.opened[-1][0]
        ages = [table[newest - taken.version] for taken, _ in self.here()]
        if self.made.noise is None and any(ages.count(age) < self.made.minimum_cohort for age in ages):
            return Reason.THRESHOLD_NOT_MET
        self.state = CLOSED
        uneven = max(weights) * self.made.minimum_cohort > sum(weights)
        uneven = uneven or (self.made.noise is None and single_somebody_out(Counter(weights), self.made.minimum_cohort))
        if uneven:
            self.given_up.append(self.opened[-1])
        return Reason.WEIGHTS_UNEVEN if uneven else None


def outcome(call: Callable[[], object]) -> Reason | None:
    try:
        call()
    except SecAggError as error:
        return error.reason
    return None


class RulesBesideTheModel(RuleBasedStateMachine):
    """Do the same to both, and compare what they say."""

    made = configuration(maximum_weight=3)

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
        weight=st.integers(1, 3),
    )
    def upload(self, client: int, upload: int, back: int, digest: bytes | None, weight: int) -> None:
        weight = min(weight, self.made.maximum_weight)
        newest = self.naive.opened[-1][0] if self.naive.opened else 0
        version = max(0, newest - back)
        new = entry(client, upload=upload, version=version, digest=digest)
        expected = self.naive.refusal(new)
        before = remembered(self.kept)
        assert outcome(lambda: take(self.kept, new, weight)) == expected
        if expected is None:
            whole = weight * self.made.staleness_weights[newest - version]
            self.naive.history.append((len(self.naive.opened), new, whole))
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
            assert buffer.total_weight == sum(weight for _, weight in here)
            assert buffer.clients == {taken.client for taken, _ in here}
            assert len(buffer.clients) == len(here), "one upload for each client"


class NoisedRulesBesideTheModel(RulesBesideTheModel):
    """The same with a privacy budget."""

    made = noised(2)


RulesBesideTheModel.TestCase.settings = NoisedRulesBesideTheModel.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None
)
TestRules = RulesBesideTheModel.TestCase
TestNoisedRules = NoisedRulesBesideTheModel.TestCase
