"""What a client insists on before it seals, in what order, and what it remembers of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest

from secagg.choices import ReleaseForm
from secagg.contract import Layout, Payload, RingSegment
from secagg.contract.codewords import CodewordTable
from secagg.crypto.secret import Secret
from secagg.errors import AuthenticationFailed, InvalidParameters, Misuse, PeerMisbehaved, Reason, SecAggError
from secagg.identifiers import ClientId
from secagg.parameters import Suite
from secagg.privacy.accounting import Adjacency
from secagg.privacy.kinds import NoiseKind
from secagg.protocols.enclave import client as client_module
from secagg.protocols.enclave import release_privacy
from secagg.protocols.enclave.client import Client, require_accepted
from secagg.protocols.enclave.release_privacy import PrivacyLimit, epsilon_of
from secagg.protocols.enclave.seal_ledger import SealLedger
from secagg.protocols.enclave.trusted.configuration import EnclaveConfiguration, Noise
from secagg.protocols.enclave.trusted.messages import ModelStamp
from secagg.session.ledger import Spent, SpentUpdates
from tests.harness.enclave_buffers import (
    MIXED_LAYOUT,
    NOW,
    RING_LAYOUT,
    EnclaveSetup,
    InsecureEnclaveSession,
    masked_of,
    sealed_by,
)
from tests.harness.recorded_coins import WatchedCoins

MODEL = ModelStamp(version=0, digest=bytes(32))
NOISED = EnclaveSetup(noise_multiplier=Fraction(1), l2_bounds=(20, 20), releases_per_client=2)


def client_of(session: InsecureEnclaveSession, **changes: Any) -> Client:
    """Make the session's first client with something of its own."""
    about: dict[str, Any] = {"capacity": 1 << 20}
    about |= {name: changes.pop(name) for name in ("layout", "tables", "capacity") if name in changes}
    kept: SealLedger = changes.pop(
        "ledger", SealLedger(session.setup.task, maximum_seals=session.setup.ledger_limit or 9)
    )

    def ledger(_: object) -> SealLedger:
        return kept

    return session.new_client(1, about=replace(session.subject, **about), ledger=ledger, **changes)


def sealing(session: InsecureEnclaveSession, client: Client, **changes: Any) -> Callable[[], object]:
    chosen: dict[str, Any] = {"enclave": session.verified(), "model": MODEL, "now": session.now}
    payload = changes.pop("payload", None) or session.setup.payload_of(1)
    return lambda: sealed_by(client, payload, **(chosen | changes))


def seals_nothing(
    session: InsecureEnclaveSession,
    kind: type[SecAggError],
    saying: str,
    *,
    of: dict[str, Any] | None = None,
    **seal: Any,
) -> SecAggError:
    """Check that a client refuses to seal, before it has spent anything or drawn a coin."""
    coins = WatchedCoins()
    client = client_of(session, coins=coins, **(of or {}))
    spent = repr(client.ledger)
    with pytest.raises(kind, match=saying) as caught:
        sealing(session, client, **seal)()
    assert not coins.handed_out, "nothing is sealed before everything has passed"
    assert repr(client.ledger) == spent
    return caught.value


def judged(
    privacy: PrivacyLimit | None, configuration: EnclaveConfiguration, session: InsecureEnclaveSession, **own: Any
) -> None:
    given: dict[str, Any] = {"layout": session.setup.layout, "tables": session.setup.tables, "maximum_seals": 2}
    require_accepted(session.policy, privacy, configuration, now=session.now, **(given | own))


# --- Policy, one by one -----------------------------------------------------------------------------------------------


def is_below(session: InsecureEnclaveSession, saying: str, **policy: Any) -> None:
    privacy = {"privacy": policy.pop("privacy")} if "privacy" in policy else {}
    own = {"policy": replace(session.policy, **policy), **privacy}
    error = seals_nothing(session, InvalidParameters, saying, of=own)
    assert error.reason is Reason.BELOW_FLOOR


def test_policies_that_are_just_met_let_a_client_seal() -> None:
    for setup in (EnclaveSetup(), EnclaveSetup(form=ReleaseForm.HISTOGRAM), NOISED, EnclaveSetup(layout=RING_LAYOUT)):
        session = InsecureEnclaveSession(setup)
        sealing(session, client_of(session))()


@pytest.mark.parametrize(
    ("policy", "saying", "setup"),
    [
        ({"suites": frozenset({Suite.HYBRID})}, "suite", {}),
        ({"minimum_cohort": 4}, "cohort of 3 is below 4", {}),
        ({"maximum_length": 13}, "longer than 13", {}),
        ({"maximum_codeword_bits": 6}, "more than 6 bits", {}),
        ({"maximum_released_bits": 19}, "more than 19 bits", {}),
        ({"privacy": PrivacyLimit(1.0, 1e-6)}, "adds no noise", {}),
        ({"forms": frozenset({ReleaseForm.DECODED_SUM})}, "histograms", {"form": ReleaseForm.HISTOGRAM}),
    ],
)
def test_each_floor_is_the_clients_own(policy: dict[str, Any], saying: str, setup: dict[str, Any]) -> None:
    session = InsecureEnclaveSession(EnclaveSetup(**setup))
    is_below(session, saying, **policy)
    sealing(session, client_of(session))()


def test_histograms_of_rings_alone_are_no_histograms() -> None:
    rings = InsecureEnclaveSession(EnclaveSetup(form=ReleaseForm.HISTOGRAM, layout=RING_LAYOUT))
    sealing(rings, client_of(rings, policy=replace(rings.policy, forms=frozenset({ReleaseForm.DECODED_SUM}))))()


def test_codebooks_and_layout_are_those_of_the_clients_codec() -> None:
    session = InsecureEnclaveSession(EnclaveSetup())
    (first, second), *_ = session.setup.tables
    entries = second.entries.copy()
    entries[-1, -1] -= 1
    other = ((first, CodewordTable(second.blocks, entries)),)
    for of in ({"tables": other}, {"tables": ()}):
        error = seals_nothing(session, InvalidParameters, "codebooks differ from those", of=of)
        assert error.reason is Reason.BELOW_FLOOR
    for layout in (replace(MIXED_LAYOUT, version=b"v" * 32), RING_LAYOUT):
        error = seals_nothing(session, InvalidParameters, "layout, codebooks or row minimum", of={"layout": layout})
        assert error.reason is Reason.BELOW_FLOOR


def test_a_client_that_asks_for_privacy_limits_its_uploads() -> None:
    session = InsecureEnclaveSession(NOISED)
    privacy = PrivacyLimit(1e6, 1e-6)
    with pytest.raises(InvalidParameters, match="maximum_seals"):
        client_of(session, privacy=privacy, ledger=SealLedger(session.setup.task))
    client_of(session, privacy=privacy, ledger=SealLedger(session.setup.task, maximum_seals=1))


@pytest.mark.parametrize("adjacency", Adjacency)
def test_the_epsilon_of_the_noise_is_held_to_the_floor(adjacency: Adjacency) -> None:
    session = InsecureEnclaveSession(NOISED)
    cost = epsilon_of(session.configuration, 1e-6, adjacency, releases=9)
    is_below(session, "too small for an epsilon", privacy=PrivacyLimit(cost * 0.999, 1e-6, adjacency))
    privacy = PrivacyLimit(cost, 1e-6, adjacency)
    sealing(session, client_of(session, privacy=privacy))()


@pytest.mark.parametrize(
    "changes",
    [
        {"suites": frozenset[Suite]()},
        {"suites": {Suite.CLASSIC}},
        {"suites": frozenset({"x25519-aes128"})},
        {"minimum_cohort": 1},
        {"minimum_cohort": True},
        {"maximum_length": 0},
        {"maximum_codeword_bits": 1},
        {"maximum_codeword_bits": 65},
        {"maximum_released_bits": 0},
        {"maximum_released_bits": 65},
        {"minimum_root_mean_square": 0},
        {"minimum_root_mean_square": True},
        {"minimum_codeword_bound": 0},
        {"minimum_codeword_bound": (1 << 40) + 1},
        {"maximum_key_lifetime": 24 * 3600 + 1},
        {"sealed_vectors_accepted": 1},
        {"authority": bytes(32)},
        {"authority": b"a" * 31},
        {"authority": b""},
    ],
)
def test_policies_that_protect_nobody_are_not_made(changes: dict[str, Any]) -> None:
    policy = InsecureEnclaveSession(EnclaveSetup(population=1)).policy
    with pytest.raises(InvalidParameters):
        replace(policy, **changes)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [
        (0.0, 0.1),
        (-1.0, 0.1),
        (float("nan"), 0.1),
        (1.0, 0.0),
        (1.0, 1.0),
        (1.0, float("nan")),
        ("1", 0.1),
        (None, 0.1),
        (True, 0.1),
        (1.0, "0.1"),
        (1.0, None),
    ],
)
def test_a_privacy_floor_is_a_number(epsilon: Any, delta: Any) -> None:
    with pytest.raises(InvalidParameters):
        PrivacyLimit(epsilon, delta)


CHEAP: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "suite": ({"suite": Suite.HYBRID}, {}),
    "cohort": ({"minimum_cohort": 2}, {}),
    "authority": ({"authority": b"z" * 32}, {}),
    "layout": ({}, {"layout": replace(MIXED_LAYOUT, version=b"v" * 32)}),
    "codebooks": ({}, {"tables": ()}),
    "expiry": ({"expiry": int((NOW + timedelta(days=2)).timestamp())}, {}),
}


@pytest.mark.parametrize(("changes", "own"), CHEAP.values(), ids=CHEAP.keys())
def test_what_takes_long_is_not_computed_for_an_enclave_that_is_refused_anyway(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], own: dict[str, Any]
) -> None:
    """The server chooses the codebooks of its configuration, and with them how long an epsilon would take."""
    session = InsecureEnclaveSession(NOISED)
    privacy = PrivacyLimit(1e6, 1e-6)
    computed = list[object]()

    def counted(*args: Any, **named: Any) -> float:
        computed.append(args)
        return epsilon_of(*args, **named)

    monkeypatch.setattr(release_privacy, "epsilon_of", counted)
    judged(privacy, session.configuration, session)
    assert len(computed) == 1, "it is computed where everything else has passed"
    with pytest.raises(InvalidParameters) as caught:
        judged(privacy, replace(session.configuration, **changes), session, **own)
    assert caught.value.reason is Reason.BELOW_FLOOR
    assert len(computed) == 1


# --- The update -------------------------------------------------------------------------------------------------------


def test_the_codecs_capacity_covers_a_full_buffer() -> None:
    session = InsecureEnclaveSession(EnclaveSetup(oldest=1))
    seals_nothing(session, InvalidParameters, "capacity of 5", of={"capacity": 5})
    sealing(session, client_of(session, capacity=6))()


def test_with_noise_the_norm_of_every_segment_is_the_clients_own_to_bound() -> None:
    session = InsecureEnclaveSession(replace(NOISED, l2_bounds=(5, 7)))
    first, second = (segment for segment in MIXED_LAYOUT.segments if isinstance(segment, RingSegment))

    def payload(one: list[int], other: list[int]) -> Payload:
        indices = session.setup.payload_of(1).values[1]
        return Payload(MIXED_LAYOUT, (first.ring.from_integers(one), indices, second.ring.from_integers(other)))

    def sent(one: list[int], other: list[int]) -> list[list[int]]:
        """Seal twice with the same coins, once zeros: the difference is what was masked."""
        uploads: list[Any] = [
            sealing(session, client_of(session), payload=payload(*values))()
            for values in ((one, other), ([0] * 6, [0] * 3))
        ]
        masked = zip((first, second), *(masked_of(upload, MIXED_LAYOUT) for upload in uploads), strict=True)
        return [segment.ring.lift(segment.ring.subtract(left, right)).tolist() for segment, left, right in masked]

    assert sent([3, 0, -4, 0, 0, 0], [2, -3, 6]) == [[3, 0, -4, 0, 0, 0], [2, -3, 6]]
    assert sent([30, 0, -40, 0, 0, 0], [2, -3, 6]) == [[3, 0, -4, 0, 0, 0], [2, -3, 6]]
    assert sent([3, 1, -4, 0, 0, 0], [20, -30, 60]) == [[2, 0, -3, 0, 0, 0], [2, -3, 6]]


def test_no_bound_that_a_host_tries_tells_it_a_norm() -> None:
    """Each refusal that depended on the values would be a bit of them that no epsilon counts."""
    for bound in range(3, 200, 20):
        session = InsecureEnclaveSession(replace(NOISED, l2_bounds=(bound, bound)))
        sizes = set[int]()
        for scale in (0, 1, 1000):
            values = [
                segment.ring.from_integers([scale % segment.ring.greatest] * segment.length)
                if isinstance(segment, RingSegment)
                else value
                for segment, value in zip(MIXED_LAYOUT.segments, session.setup.payload_of(1).values, strict=True)
            ]
            upload: Any = sealing(session, client_of(session), payload=Payload(MIXED_LAYOUT, tuple(values)))()
            sizes.add(len(upload.encode()))
        assert len(sizes) == 1


def test_a_bound_that_leaves_nothing_is_refused_whatever_the_values_are() -> None:
    refused = set[str]()
    for number, bounds in ((1, (2, 100)), (2, (2, 100)), (3, (100, 1))):
        session = InsecureEnclaveSession(replace(NOISED, l2_bounds=bounds))
        error = seals_nothing(session, InvalidParameters, "less than 1 steps", payload=session.setup.payload_of(number))
        assert error.reason is Reason.BELOW_FLOOR
        refused.add(str(error))
    assert len(refused) == 1
    session = InsecureEnclaveSession(replace(NOISED, l2_bounds=(30, 30)))
    stricter = replace(session.policy, minimum_root_mean_square=13)
    seals_nothing(session, InvalidParameters, "less than 13 steps", of={"policy": stricter})
    four = InsecureEnclaveSession(replace(NOISED, layout=Layout((RingSegment(20, 4),)), l2_bounds=(2,)))
    sealing(four, client_of(four))()


# --- Time -------------------------------------------------------------------------------------------------------------


def test_a_time_is_looked_at_before_the_policy_read_it() -> None:
    session = InsecureEnclaveSession(EnclaveSetup())
    seals_nothing(session, Misuse, "time zone", now=None)


# --- Who it is --------------------------------------------------------------------------------------------------------


def test_a_client_is_whom_its_authority_certified() -> None:
    session = InsecureEnclaveSession(EnclaveSetup())
    with pytest.raises(InvalidParameters, match="signing key do not match"):
        client_of(session, signing_key=session.setup.signing_key_of("client 2"))
    stranger = session.setup.signing_key_of("client 1")
    forged = replace(session.certificate_of(1, stranger), client=ClientId(2))
    for uncertified in ({"certificate": forged}, {"policy": replace(session.policy, authority=b"z" * 32)}):
        with pytest.raises(AuthenticationFailed):
            client_of(session, **uncertified)
    for wrong in ({"ledger": None}, {"policy": None}, {"ledger": b""}):
        with pytest.raises(Misuse):
            client_of(session, **wrong)
    assert repr(client_of(session)) == "<Client client/1, <SealLedger b'a task': 0 of 9 sealed, the last for model -1>>"


# --- The ledger -------------------------------------------------------------------------------------------------------


def update_of(version: int, task: bytes = b"t") -> Spent:
    """Return an update that has the values of no other version."""
    return Spent(task, version, version.to_bytes(32, "big"))


def spent(ledger: SealLedger, version: int, *, is_noised: bool = False) -> Reason | None:
    try:
        ledger.charge(update_of(version), is_noised=is_noised)
    except PeerMisbehaved as error:
        return error.reason
    return None


@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize("noised", [False, True])
def test_a_repeat_is_allowed_with_both_consent_and_noise_and_of_the_last_model_alone(
    repeats: bool,  # noqa: FBT001 -- a parameter of the test
    noised: bool,  # noqa: FBT001 -- a parameter of the test
) -> None:
    ledger = SealLedger(b"t", maximum_seals=4, repeats_allowed=repeats)
    assert spent(ledger, 3, is_noised=noised) is None
    expected = None if repeats and noised else Reason.ALREADY_ANSWERED
    assert spent(ledger, 3, is_noised=noised) is expected
    assert spent(ledger, 2, is_noised=noised) is Reason.ALREADY_ANSWERED
    assert ledger.seals == (2 if expected is None else 1)


def test_a_ledger_is_for_one_task() -> None:
    with pytest.raises(Misuse, match="keep one ledger per task"):
        SealLedger(b"t").charge(update_of(0, b"u"), is_noised=False)
    session = InsecureEnclaveSession(EnclaveSetup())
    seals_nothing(session, Misuse, "keep one ledger per task", of={"ledger": SealLedger(b"another task")})


@pytest.mark.parametrize(("task", "maximum"), [(b"", None), (b"t" * 257, None), ("t", None), (b"t", 0), (b"t", 1.0)])
def test_a_ledger_has_a_task_and_a_positive_budget(task: Any, maximum: Any) -> None:
    with pytest.raises(Misuse):
        SealLedger(task, maximum_seals=maximum)


def test_a_seal_is_charged_even_if_it_fails_later() -> None:
    class NoCoins:
        def draw(self, count: int) -> bytearray:
            raise MemoryError(count)

    session = InsecureEnclaveSession(EnclaveSetup())
    client = client_of(session, coins=NoCoins())
    with pytest.raises(MemoryError):
        sealing(session, client)()
    assert client.ledger.seals == 1


def test_what_is_sealed_is_in_no_other_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = list[bytearray]()

    class Watched(Secret):
        def __init__(self, name: str, material: bytes | bytearray) -> None:
            if type(material) is bytearray:
                buffers.append(material)
            super().__init__(name, material)

    monkeypatch.setattr(client_module, "Secret", Watched)
    session = InsecureEnclaveSession(EnclaveSetup())
    sealing(session, client_of(session))()
    assert buffers
    assert not any(any(buffer) for buffer in buffers)


def test_a_model_has_its_attempts_under_any_number() -> None:
    """By itself, without an adapter that remembers for it; what the stamp covers besides the model changes nothing."""
    session, digest = InsecureEnclaveSession(EnclaveSetup()), b"m" * 32
    client = client_of(session, ledger=SealLedger(session.setup.task, spent=SpentUpdates(attempts=2)))
    sealing(session, client, model=ModelStamp(version=0, digest=digest))()
    sealing(session, client, model=ModelStamp(version=1, digest=b"t" * 32), trained_from=digest)()
    for stamp, trained_from in (
        (ModelStamp(version=2, digest=digest), b""),
        (ModelStamp(version=2, digest=b"u" * 32), digest),
    ):
        with pytest.raises(PeerMisbehaved, match="2 times for the model"):
            sealing(session, client, model=stamp, trained_from=trained_from)()
    assert client.ledger.seals == 2


# --- What is sealed ---------------------------------------------------------------------------------------------------


def test_noise_of_one_segment_does_not_stand_for_another() -> None:
    """A configuration with a huge variance on one segment and almost none on the other does not reach epsilon."""
    session = InsecureEnclaveSession(NOISED)
    noise = session.configuration.noise
    assert noise is not None
    cost = epsilon_of(session.configuration, 1e-6)
    uneven: Noise = replace(noise, variances=(Fraction(1, 4), *(4 * variance for variance in noise.variances[1:])))
    privacy = PrivacyLimit(cost, 1e-6)
    changed = replace(session.configuration, noise=uneven)
    with pytest.raises(InvalidParameters, match="epsilon"):
        judged(privacy, changed, session)
    assert noise.kind is NoiseKind.DISCRETE_GAUSSIAN


@pytest.mark.parametrize("setup", [EnclaveSetup(), NOISED], ids=["exact", "noised"])
def test_a_client_that_allows_repeats_makes_them_under_noise_alone(setup: EnclaveSetup) -> None:
    session = InsecureEnclaveSession(setup)
    privacy = PrivacyLimit(1e9, 1e-6)
    client = client_of(session, ledger=SealLedger(setup.task, maximum_seals=4, repeats_allowed=True), privacy=privacy)
    client.charge(Spent(setup.task, 0, b"m" * 32), session.configuration)
    with nullcontext() if setup is NOISED else pytest.raises(PeerMisbehaved, match="numbers must increase"):
        client.charge(Spent(setup.task, 0, b"m" * 32), session.configuration)
    assert client.ledger.seals == (2 if setup is NOISED else 1)


def test_repeats_without_a_floor_of_privacy_are_refused() -> None:
    """The host would choose the variance, and take the mean of many sums of one update."""
    session = InsecureEnclaveSession(NOISED)
    with pytest.raises(InvalidParameters, match="the host chooses the noise"):
        client_of(session, ledger=SealLedger(NOISED.task, maximum_seals=4, repeats_allowed=True))


def test_the_longest_task_has_a_ledger() -> None:
    assert SealLedger(b"t" * 256).seals == 0
