"""Enclaves that a client has no reason to seal to, and configurations that would have an honest one give it away."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.choices import Accumulation, ReleaseForm
from secagg.contract import IndexSegment, Layout, Payload, RingSegment
from secagg.contract.codewords import CodewordTable, Tables
from secagg.crypto.entropy import SystemCoins
from secagg.errors import (
    AuthenticationFailed,
    CapacityExceeded,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
)
from secagg.identifiers import AttemptContext, ClientId, ServerId
from secagg.protocols.enclave.attestation import (
    Evidence,
    EvidenceFormat,
    PinnedMeasurement,
    Policy,
    Roots,
    SnpCollateral,
    SnpTcb,
    Verifier,
)
from secagg.protocols.enclave.client import Invitation, require_accepted, stamp_of
from secagg.protocols.enclave.judge import HardwareJudge
from secagg.protocols.enclave.remote_enclave import SimulatedEvidence, SimulatedJudge
from secagg.protocols.enclave.session import EnclaveOptions
from secagg.protocols.enclave.trusted import enclave as trusted
from secagg.protocols.enclave.trusted.configuration import NO_AUTHORITY, EnclaveConfiguration, least_squared
from secagg.protocols.enclave.trusted.enclave import bounded_choices
from secagg.protocols.enclave.trusted.messages import EnclaveOffer, ModelStamp
from secagg.protocols.enclave.verified_enclave import Judgement, VerifiedEnclave
from secagg.session.client_policy import ClientPolicy
from secagg.session.registry import find
from secagg.session.roles import LazyUpdate, Released, Subject, Update
from secagg.session.run import Measured, run
from tests.harness.enclave_buffers import (
    MIXED_LAYOUT,
    NOW,
    EnclaveSetup,
    InsecureEnclaveSession,
    attested_of,
    sealed_by,
)
from tests.harness.evidence_makers import evidence_makers

MODEL = ModelStamp(version=0, digest=bytes(32))


@pytest.fixture(scope="module")
def makers(repository: Path) -> Iterator[ModuleType]:
    yield from evidence_makers(repository)


@pytest.fixture
def hardware(makers: ModuleType) -> Callable[..., HardwareJudge]:
    """Make a judge that trusts the makers' roots and pins one program of each of two formats."""

    def fingerprint(issued: Any) -> frozenset[bytes]:
        return frozenset({hashlib.sha256(issued.der).digest()})

    roots = Roots(
        nitro=fingerprint(makers.nitro.chain()[0]), amd=fingerprint(makers.snp.authorities()[0]), intel=frozenset()
    )
    nitro = {f"PCR{index}": makers.nitro.registers()[index] for index in (0, 1, 2)}
    pins = (
        PinnedMeasurement(EvidenceFormat.NITRO, nitro),
        PinnedMeasurement(EvidenceFormat.SNP, {"MEASUREMENT": b"\x4d" * 48}),
    )
    policy = Policy(accepted=pins, minimum_snp_tcb=SnpTcb(boot_loader=4, tee=0, snp=22, microcode=200))

    def make(collateral: Any = None) -> HardwareJudge:
        return HardwareJudge(policy=policy, verifier=Verifier(roots), collateral=collateral)

    return make


@pytest.fixture
def session(makers: ModuleType) -> InsecureEnclaveSession:
    return InsecureEnclaveSession(EnclaveSetup(), now=makers.authority.NOW)


def nitro_of(makers: ModuleType, binding: bytes, **fields: Any) -> Evidence:
    return Evidence(EvidenceFormat.NITRO, makers.nitro.NitroDocument(fields={"user_data": binding, **fields}).encode())


def verified(
    session: InsecureEnclaveSession,
    evidence: Any,
    judge: Any,
    *,
    offer: EnclaveOffer | None = None,
    now: datetime | None = None,
) -> VerifiedEnclave:
    return VerifiedEnclave(
        offer or session.enclave.offer,
        evidence,
        configuration=session.configuration,
        judge=judge,
        now=now or session.now,
    )


def refusal(call: Callable[[], object]) -> Reason:
    with pytest.raises(PeerError) as caught:
        call()
    return caught.value.reason


# --- Evidence ---------------------------------------------------------------------------------------------------------


def test_evidence_of_pinned_hardware_for_these_keys_is_accepted(
    session: InsecureEnclaveSession, makers: ModuleType, hardware: Callable[..., HardwareJudge]
) -> None:
    binding = session.enclave.offer.binding
    enclave = verified(session, nitro_of(makers, binding), hardware())
    assert "nitro" in enclave.program.lower()
    snp = Evidence(EvidenceFormat.SNP, makers.snp.SnpReport(report_data=binding).encode())
    assert "snp" in verified(session, snp, hardware(snp_collateral(makers))).program.lower()
    sealed_by(session.clients[0], session.setup.payload_of(1), enclave=enclave, model=MODEL, now=session.now)


def other_offers(session: InsecureEnclaveSession) -> dict[str, EnclaveOffer]:
    offer = session.enclave.offer
    other = InsecureEnclaveSession(replace(session.setup, seed=b"another host")).enclave.offer
    return {
        "sealing key": replace(offer, sealing_key=other.sealing_key),
        "receipt key": replace(offer, receipt_key=other.receipt_key),
        "epoch": replace(offer, epoch=other.epoch),
        "configuration": replace(offer, context=AttemptContext(bytes(32))),
    }


@pytest.mark.parametrize("what", ["sealing key", "receipt key", "epoch", "configuration"])
@pytest.mark.parametrize("simulated", [False, True])
def test_evidence_serves_no_other_key_epoch_or_configuration(
    what: str,
    simulated: bool,  # noqa: FBT001 -- a parameter of the test
    session: InsecureEnclaveSession,
    makers: ModuleType,
    hardware: Callable[..., HardwareJudge],
) -> None:
    other = other_offers(session)[what]
    genuine, forged = session.enclave.offer.binding, other.binding
    assert genuine != forged
    judge: Any = SimulatedJudge() if simulated else hardware()

    def of(binding: bytes) -> Any:
        return SimulatedEvidence(binding) if simulated else nitro_of(makers, binding)

    assert refusal(lambda: verified(session, of(forged), judge)) is Reason.ATTESTATION_REFUSED
    expected = Reason.WRONG_SESSION if what == "configuration" else Reason.ATTESTATION_REFUSED
    assert refusal(lambda: verified(session, of(genuine), judge, offer=other)) is expected


def test_a_simulation_is_no_hardware_and_hardware_no_simulation(
    session: InsecureEnclaveSession, makers: ModuleType, hardware: Callable[..., HardwareJudge]
) -> None:
    simulated = session.enclave.evidence
    assert type(simulated) is SimulatedEvidence
    assert refusal(lambda: verified(session, simulated, hardware())) is Reason.ATTESTATION_REFUSED
    genuine = nitro_of(makers, session.enclave.offer.binding)
    assert refusal(lambda: verified(session, genuine, SimulatedJudge())) is Reason.ATTESTATION_REFUSED
    assert refusal(lambda: verified(session, None, hardware())) is Reason.ATTESTATION_REFUSED


def test_another_program_and_a_debug_build_are_refused(
    session: InsecureEnclaveSession, makers: ModuleType, hardware: Callable[..., HardwareJudge]
) -> None:
    binding = session.enclave.offer.binding
    for registers in (
        makers.nitro.registers() | {2: b"\xee" * 48},
        makers.nitro.registers() | dict.fromkeys((0, 1, 2), bytes(48)),
    ):
        document = nitro_of(makers, binding, pcrs=registers)
        assert refusal(partial(verified, session, document, hardware())) is Reason.ATTESTATION_REFUSED
    report = makers.snp.SnpReport(report_data=binding, policy=0x20000 | 1 << 19).encode()
    judge = hardware(snp_collateral(makers))
    debug = Evidence(EvidenceFormat.SNP, report)
    assert refusal(lambda: verified(session, debug, judge)) is Reason.ATTESTATION_REFUSED


def snp_collateral(makers: ModuleType, **changes: Any) -> SnpCollateral:
    root, authority = makers.snp.authorities()
    fields = {
        "chip_certificate": makers.snp.chip_certificate().der,
        "authority_certificate": authority.der,
        "root_certificate": root.der,
        "revocation_list": makers.snp.amd_revocation_list(),
    }
    return SnpCollateral(**(fields | changes))


def test_stale_collateral_is_refused(
    session: InsecureEnclaveSession, makers: ModuleType, hardware: Callable[..., HardwareJudge]
) -> None:
    root, _ = makers.snp.authorities()
    stale = makers.authority.revocation_list(root, end=session.now - timedelta(seconds=1))
    evidence = Evidence(EvidenceFormat.SNP, makers.snp.SnpReport(report_data=session.enclave.offer.binding).encode())
    judge = hardware(snp_collateral(makers, revocation_list=stale))
    assert refusal(lambda: verified(session, evidence, judge)) is Reason.COLLATERAL_STALE
    # The host keeps a list of before a revocation, which says of itself that it holds for years.
    day = timedelta(days=1)
    old = makers.authority.revocation_list(root, start=session.now - 367 * day, end=session.now + 9999 * day)
    judge = hardware(snp_collateral(makers, revocation_list=old))
    assert refusal(lambda: verified(session, evidence, judge)) is Reason.COLLATERAL_STALE
    aging = makers.authority.revocation_list(root, start=session.now - 366 * day + timedelta(seconds=9))
    judge = hardware(snp_collateral(makers, revocation_list=aging))
    assert verified(session, evidence, judge).not_after == session.now + timedelta(seconds=9)
    missing = hardware(snp_collateral(makers, revocation_list=None))
    assert refusal(lambda: verified(session, evidence, missing)) is Reason.ATTESTATION_REFUSED


def test_evidence_that_has_run_out_is_not_sealed_to(
    session: InsecureEnclaveSession, makers: ModuleType, hardware: Callable[..., HardwareJudge]
) -> None:
    """The document's certificate ends two hours after it was made, ten hours before the configuration does."""
    enclave = verified(session, nitro_of(makers, session.enclave.offer.binding), hardware())
    end = session.now + timedelta(hours=2)
    assert enclave.not_after == end
    payload, client = session.setup.payload_of(1), session.clients[0]
    late: Any = {"enclave": enclave, "model": MODEL, "now": end}
    with pytest.raises(PeerMisbehaved) as caught:
        sealed_by(client, payload, **late)
    assert caught.value.reason is Reason.ATTESTATION_REFUSED
    assert caught.value.culprits == {ServerId()}
    assert client.ledger.seals == 0
    sealed_by(client, payload, **(late | {"now": end - timedelta(seconds=1)}))


def test_only_a_verified_enclave_is_sealed_to(session: InsecureEnclaveSession) -> None:
    unverified: Any
    for unverified in (session.enclave, session.enclave.offer, None):
        with pytest.raises(Misuse, match="VerifiedEnclave"):
            sealed_by(session.clients[0], session.setup.payload_of(1), enclave=unverified, model=MODEL, now=session.now)


@pytest.mark.parametrize("weak", [bytes(32), b"\1" + bytes(31), b"\xff" * 32])
def test_a_weak_receipt_key_is_refused_before_an_update_is_made(weak: bytes) -> None:
    """No proof can be agreed with it; found later, the refusal would say how long the training took."""
    session, charged = InsecureEnclaveSession(EnclaveSetup()), list[str]()
    offer = replace(session.enclave.offer, receipt_key=weak)
    attested = attested_of(offer, "simulated", offer.binding)
    stamp = stamp_of(session.subject, bytes(32))
    invitation = Invitation(session.configuration.encode(), attested, b"", stamp.version, stamp.digest, is_short=False)
    update = LazyUpdate(
        lambda: Update(session.setup.payload_of(1), bytes(32)), bytes(32), charge=lambda: charged.append("charged")
    )
    with pytest.raises(AuthenticationFailed) as caught:
        session.new_client(1, update=update).answer(invitation.encode())
    assert caught.value.culprits == {ServerId()}
    assert not charged


def test_a_client_has_evidence_judged_with_what_its_host_relays() -> None:
    session, judged = InsecureEnclaveSession(EnclaveSetup()), list[Evidence]()

    class Recording:
        def judge(self, evidence: Evidence, *_: object) -> Judgement:
            judged.append(evidence)
            return Judgement("a program", session.now + timedelta(hours=1))

    update = LazyUpdate(lambda: Update(session.setup.payload_of(1), bytes(32)), bytes(32))
    client, stamp = session.new_client(1, update=update, judge=Recording()), stamp_of(session.subject, bytes(32))
    attested = attested_of(session.enclave.offer, EvidenceFormat.SNP.value, b"a report")
    client.answer(
        Invitation(
            session.configuration.encode(), attested, b"collateral", stamp.version, stamp.digest, is_short=False
        ).encode()
    )
    assert judged == [Evidence(EvidenceFormat.SNP, b"a report", relayed=b"collateral")]


def test_a_low_order_sealing_key_is_refused_even_with_evidence(session: InsecureEnclaveSession) -> None:
    """An enclave that was made to publish a constant would let its host read every seed."""
    weak = replace(session.enclave.offer, sealing_key=bytes(32))
    evidence = SimulatedEvidence(weak.binding)
    assert refusal(lambda: verified(session, evidence, SimulatedJudge(), offer=weak)) is Reason.PUBLIC_KEY_LOW_ORDER
    second = replace(weak, sealing_key=(9 + 2**255 - 19).to_bytes(32, "little"))
    with pytest.raises(MalformedMessage) as caught:
        verified(session, SimulatedEvidence(second.binding), SimulatedJudge(), offer=second)
    assert caught.value.reason is Reason.PUBLIC_KEY_NOT_CANONICAL
    assert caught.value.culprits == {ServerId()}


# --- Configurations ---------------------------------------------------------------------------------------------------


def judged(
    policy: ClientPolicy,
    configuration: EnclaveConfiguration,
    session: InsecureEnclaveSession,
    tables: Tables | None = None,
) -> None:
    own = session.setup.tables if tables is None else tables
    given: dict[str, Any] = {"layout": session.setup.layout, "tables": own, "maximum_seals": 1, "now": session.now}
    require_accepted(policy, None, configuration, **given)


def admit(session: InsecureEnclaveSession, configuration: EnclaveConfiguration, **policy: Any) -> None:
    chosen: ClientPolicy = replace(session.policy, **policy)
    judged(chosen, configuration, session)


def is_below_the_floor(
    session: InsecureEnclaveSession, changed: EnclaveConfiguration, saying: str, **policy: Any
) -> None:
    admit(session, session.configuration, **policy)
    with pytest.raises(InvalidParameters, match=saying) as caught:
        admit(session, changed, **policy)
    assert caught.value.reason is Reason.BELOW_FLOOR


def test_clients_certified_by_the_host_itself_are_no_company(session: InsecureEnclaveSession) -> None:
    own = session.setup.signing_key_of("the host's authority").public_key
    is_below_the_floor(session, replace(session.configuration, authority=own), "does not trust")


def test_without_an_authority_there_is_noise_or_nothing(session: InsecureEnclaveSession) -> None:
    with pytest.raises(InvalidParameters, match="only noise"):
        replace(session.configuration, authority=NO_AUTHORITY)
    bare_policy = replace(session.policy, authority=None)
    with pytest.raises(InvalidParameters, match="only noise"):
        session.new_client(1, policy=bare_policy)
    with pytest.raises(InvalidParameters, match=r"does not trust.*set authority"):
        judged(bare_policy, session.configuration, session)
    noised = InsecureEnclaveSession(replace(session.setup, noise_multiplier=Fraction(1), l2_bounds=(9, 9)))
    bare = replace(noised.configuration, authority=NO_AUTHORITY)
    with pytest.raises(InvalidParameters, match="does not trust"):
        judged(session.policy, bare, session)


def test_codewords_can_spell_out_the_histogram_so_that_their_entries_are_bounded() -> None:
    """With powers of the cohort's size as codewords, the digits of the sum are the counts."""
    layout = Layout((IndexSegment(8, 5),))
    base, powers = 7, np.array([[7**digit] for digit in range(8)], dtype=np.int64)
    session = InsecureEnclaveSession(EnclaveSetup(layout=layout, form=ReleaseForm.HISTOGRAM, maximum_cohort=6))
    session.host.open_buffer(0, bytes(32))
    session.upload(1, 2, 3)
    counts: Any = session.host.release()[0].values[0]
    digits = (counts.astype(np.int64) @ powers).reshape(-1, 1) // powers.reshape(1, -1) % base
    assert (digits == counts).all(), "the attack would work"
    tables = ((CodewordTable(5, powers),),)
    spelled = replace(session.configuration, form=ReleaseForm.DECODED_SUM, tables=tables)
    # Even a client that was given this codebook as its own refuses it if its entries are bounded to what values need.
    bounded = replace(session.policy, maximum_codeword_bits=20), replace(session.policy, maximum_released_bits=22)
    for policy, saying in zip(bounded, ("entry", "element"), strict=True):
        with pytest.raises(InvalidParameters, match=saying) as caught:
            judged(policy, spelled, session, tables)
        assert caught.value.reason is Reason.BELOW_FLOOR
    judged(replace(session.policy, maximum_codeword_bits=21), spelled, session, tables)


def test_keys_that_live_for_more_than_a_day_are_refused(session: InsecureEnclaveSession) -> None:
    expiry = int((session.now + timedelta(days=1)).timestamp())
    admit(session, replace(session.configuration, expiry=expiry))
    is_below_the_floor(session, replace(session.configuration, expiry=expiry + 1), "longer than 86400")


# --- A bound on what a client chooses ---------------------------------------------------------------------------------


MODEL_DIGEST = bytes(32)
ENTRIES = np.array([[0, 0], [1, 0], [3, 4], [30, 40]], dtype=np.int64)
BLOCKS = 7
TABLES = ((CodewordTable(4, ENTRIES), CodewordTable(3, ENTRIES[::-1].copy())), (CodewordTable(5, ENTRIES),))
LAYOUT = Layout((IndexSegment(4, BLOCKS), RingSegment(16, 3), IndexSegment(4, 5)))
SUBJECT = Subject(task=b"bound", round_number=1, layout=LAYOUT, capacity=100, tables=TABLES, model_digest=MODEL_DIGEST)
CLIENTS = tuple(map(ClientId, range(1, 5)))
HONEST = (np.array([1, 1, 1, 1, 2, 2, 2], np.uint8), np.array([1, 0, 1, 0, 1], np.uint8))
LONGEST = (np.array([3, 3, 3, 3, 0, 0, 0], np.uint8), np.full(5, 3, np.uint8))


def test_a_host_gets_no_sum_of_the_one_client_that_keeps_its_bound() -> None:
    """All others count as the least codewords, which everybody knows: what is released is that one's choice."""
    found = released(20, Accumulation.OBLIVIOUS, len(CLIENTS) - 1)
    assert sums(found)[0][:2] == [1, 0], "three of four are over the bound, and the sum is the fourth one's"
    session = InsecureEnclaveSession(EnclaveSetup(layout=LAYOUT, codebooks=TABLES))
    configuration = replace(session.configuration, codeword_bound=20)

    def admit(least: int) -> None:
        accepting = replace(session.policy, minimum_codeword_bound=least)
        given: dict[str, Any] = {"layout": LAYOUT, "tables": TABLES, "maximum_seals": None, "now": NOW}
        require_accepted(accepting, None, configuration, **given)

    assert session.policy.minimum_codeword_bound == 1 << 40, "by default no bound is accepted"
    for least in (1 << 40, 21):
        with pytest.raises(InvalidParameters, match="by the smallest ones") as caught:
            admit(least)
        assert caught.value.reason is Reason.BELOW_FLOOR
    admit(20)
    for wrong in (0, -1, (1 << 40) + 1):
        with pytest.raises(InvalidParameters, match="minimum_codeword_bound"):
            admit(wrong)


def payload(choice: tuple[Any, Any]) -> Payload:
    return Payload(LAYOUT, (choice[0], RingSegment(16, 3).ring.from_integers(np.array([1, 2, 3])), choice[1]))


def released(bound: int, accumulation: Accumulation, liars: int) -> Released:
    entry = find("enclave")
    settings = EnclaveOptions(minimum_cohort=3, codeword_bound=bound, accumulation=accumulation)
    with closing(entry.simulate(settings, coins=SystemCoins(), clock=lambda: datetime.now(UTC))) as world:
        session = world.open(SUBJECT, frozenset(CLIENTS))

        def joined(client: ClientId) -> Any:
            chosen = payload(LONGEST if client.value <= liars else HONEST)
            return world.member(client).join(SUBJECT, LazyUpdate(lambda: Update(chosen, MODEL_DIGEST)))

        return run(Measured(session), map(joined, CLIENTS))


def sums(found: Released) -> list[list[int]]:
    rings = found.aggregate.layout.require_rings()
    return [ring.ring.lift(v).astype(int).tolist() for ring, v in zip(rings, found.aggregate.values, strict=True)]


@pytest.mark.parametrize("accumulation", Accumulation)
def test_the_longest_codewords_count_as_the_least_and_nobody_is_told(accumulation: Accumulation) -> None:
    plain, bounded = (released(bound, accumulation, 1) for bound in (0, 20))
    honest = released(20, accumulation, 0)
    # Every honest client adds (1, 0) to the first block of each; the least codeword is zeros.
    assert sums(honest)[0][:2] == [4, 0]
    assert sums(bounded)[0][:2] == [3, 0]
    assert sums(plain)[0][:2] == [33, 40]
    assert sums(bounded)[-1][:2] == [3, 0]
    assert bounded.counted == plain.counted == frozenset(CLIENTS)
    assert not bounded.left_out
    assert bounded.aggregate.contributors == 4
    assert bounded.unbounded == (1,)


def test_the_choices_that_were_counted_are_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[bytearray]()

    def recording(*args: Any) -> list[bytearray]:
        packed = bounded_choices(*args)
        assert any(map(any, packed))
        made.extend(packed)
        return packed

    monkeypatch.setattr(trusted, "bounded_choices", recording)
    released(20, Accumulation.OBLIVIOUS, 1)
    assert len(made) == 2 * len(CLIENTS)
    assert not any(map(any, made))


def opened(subject: Subject, settings: EnclaveOptions) -> EnclaveConfiguration:
    with closing(find("enclave").simulate(settings, coins=SystemCoins(), clock=lambda: datetime.now(UTC))) as world:
        session: Any = world.open(subject, frozenset(CLIENTS))
        configuration: EnclaveConfiguration = session.configuration
        session.abort()
        return configuration


def test_a_bound_below_the_least_codewords_is_refused_and_the_least_is_named() -> None:
    entries = np.array([[3, 4], [6, 8]], dtype=np.int64)
    subject = replace(SUBJECT, layout=Layout((IndexSegment(2, 9),)), tables=((CodewordTable(9, entries),),))
    with pytest.raises(InvalidParameters, match="norm of 15 steps; raise it to that"):
        opened(subject, EnclaveOptions(codeword_bound=14))
    configuration = opened(subject, EnclaveOptions(codeword_bound=15))
    assert configuration.codeword_bound == 15
    assert EnclaveConfiguration.decode(configuration.encode(), subject.tables).encode() == configuration.encode()


def test_a_bound_needs_codewords_that_the_enclave_decodes() -> None:
    with pytest.raises(InvalidParameters, match="set form = decoded_sum"):
        opened(SUBJECT, EnclaveOptions(codeword_bound=15, form=ReleaseForm.HISTOGRAM))


@given(data=st.data())
def test_what_is_counted_is_within_the_bound_whatever_is_chosen_and_the_choice_where_that_is(
    data: st.DataObject,
) -> None:
    """Over tables, widths and bounds."""
    codewords = data.draw(st.integers(2, 9))
    entry = st.lists(st.integers(-1000, 1000), min_size=2, max_size=2)
    blocks = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    tables = tuple(
        CodewordTable(
            count, np.array(data.draw(st.lists(entry, min_size=codewords, max_size=codewords)), dtype=np.int64)
        )
        for count in blocks
    )
    segment = IndexSegment(codewords, sum(blocks))
    chosen = np.array([data.draw(st.integers(0, codewords - 1)) for _ in range(segment.blocks)], segment.ring.word)
    least = least_squared((tables,))
    bound = data.draw(st.integers(0, 5000))
    bound = max(bound, int(np.ceil(np.sqrt(least))))

    def squared(indices: Any) -> int:
        runs = np.split(np.asarray(indices), np.cumsum(blocks)[:-1])
        return sum(int(np.square(table.entries[run]).sum()) for table, run in zip(tables, runs, strict=True))

    (packed,) = bounded_choices([memoryview(segment.ring.pack(chosen))], [segment], (tables,), bound)
    counted = segment.ring.unpack(packed, segment.blocks)
    if squared(chosen) <= bound**2:
        assert counted.tolist() == chosen.tolist()
    else:
        assert squared(counted) == least <= bound**2


def test_noise_that_a_ring_does_not_hold_names_the_multiplier_that_it_holds() -> None:
    """Nobody is hurt but the model: a sum that wraps with its noise is no sum."""
    subject = replace(SUBJECT, layout=Layout((RingSegment(20, 3),)), tables=())
    settings = EnclaveOptions(noise_multiplier=Fraction(10) ** 40, l2_bounds=(100,), maximum_cohort=10)
    with pytest.raises(CapacityExceeded, match="set noise_multiplier = ") as refused:
        opened(subject, settings)
    named = Fraction(str(refused.value).split("noise_multiplier = ")[1].split()[0])
    assert opened(subject, replace(settings, noise_multiplier=named)).noise is not None
    with pytest.raises(CapacityExceeded):
        opened(subject, replace(settings, noise_multiplier=named * Fraction(102, 100)))


def test_codewords_that_are_summed_leave_less_room_for_noise_than_their_histogram() -> None:
    subject = replace(SUBJECT, layout=MIXED_LAYOUT, tables=EnclaveSetup().tables)

    def most(form: ReleaseForm) -> Fraction:
        settings = EnclaveOptions(noise_multiplier=Fraction(1 << 28), l2_bounds=(30, 50), maximum_cohort=10, form=form)
        with pytest.raises(CapacityExceeded, match="rings are too narrow") as refused:
            opened(subject, settings)
        named = Fraction(str(refused.value).split("noise_multiplier = ")[1].split()[0])
        assert opened(subject, replace(settings, noise_multiplier=named)).noise is not None
        return named

    assert 0 < most(ReleaseForm.DECODED_SUM) < most(ReleaseForm.HISTOGRAM)


def test_choices_of_exactly_the_bound_are_counted() -> None:
    table, segment = CodewordTable(1, np.array([[3, 4], [0, 0]], dtype=np.int64)), IndexSegment(2, 1)
    chosen = memoryview(segment.ring.pack(np.array([0], segment.ring.word)))
    for bound, counted in ((5, 0), (4, 1)):
        (packed,) = bounded_choices([chosen], [segment], ((table,),), bound)
        assert segment.ring.unpack(packed, 1).tolist() == [counted]


def test_noise_on_a_histogram_alone_is_in_no_ring() -> None:
    subject = replace(SUBJECT, layout=Layout((IndexSegment(2, 9),)), tables=())
    settings = EnclaveOptions(noise_multiplier=Fraction(2), form=ReleaseForm.HISTOGRAM, maximum_cohort=10)
    assert opened(subject, settings).noise is not None
