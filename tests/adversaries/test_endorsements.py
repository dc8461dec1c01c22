"""A host that shows clients of a pinned endorser what that key has not signed, no longer signs, or signed of others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from secagg.crypto.labels import Label
from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, PeerError, Reason
from secagg.protocols.enclave.attestation import (
    Collateral,
    Evidence,
    EvidenceFormat,
    PinnedEndorser,
    PinnedMeasurement,
    Policy,
    Roots,
    SnpCollateral,
    SnpTcb,
    Verifier,
)
from secagg.protocols.enclave.collateral import encode_collateral, read_collateral, read_endorsement
from secagg.protocols.enclave.judge import Endorsement, HardwareJudge, endorse, read_policy
from secagg.protocols.enclave.verified_enclave import Judgement
from secagg.session.certificates import SigningKey, Standing
from secagg.session.standings import CLOCKS_APART
from secagg.session.store import Store, decoded_standing
from tests.harness.evidence_makers import evidence_makers

NITRO, SNP, TDX = EvidenceFormat.NITRO, EvidenceFormat.SNP, EvidenceFormat.TDX
BINDING = bytes(range(64))
DAY = timedelta(days=1)
RUNNING = SnpTcb(boot_loader=4, tee=0, snp=22, microcode=200)


def key_of(name: str) -> SigningKey:
    return SigningKey(Secret("signing key", hashlib.sha256(name.encode()).digest()))


ENDORSER, THIEF = key_of("endorser"), key_of("somebody else")


def nitro_policy(*images: int) -> bytes:
    accepted = [{f"PCR{index}": (bytes([image + index]) * 48).hex() for index in range(3)} for image in images]
    return json.dumps({"format": "nitro", "accepted": accepted}).encode()


def snp_policy(**changes: Any) -> bytes:
    tcb = {"boot_loader": 4, "tee": 0, "snp": 22, "microcode": 200}
    made = {"format": "sev-snp", "accepted": [{"MEASUREMENT": "4d" * 48}], "minimum_tcb": tcb}
    return json.dumps(made | changes).encode()


@pytest.fixture(scope="module")
def makers(repository: Path) -> Iterator[ModuleType]:
    yield from evidence_makers(repository)


@dataclass
class Client:
    """A client of one endorser, whose memory is a folder."""

    makers: ModuleType
    store: Store | None
    days: int = 30
    pinned: SigningKey = field(default_factory=lambda: ENDORSER)
    more: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def now(self) -> datetime:
        made: datetime = self.makers.authority.NOW
        return made

    def signed(self, policy: bytes, *, days_ago: float = 0, days: int = 30, key: SigningKey = ENDORSER) -> Endorsement:
        return endorse(key, policy, days=days, now=self.now - timedelta(days=days_ago))

    def judge(self, evidence: Evidence, endorsement: Endorsement | bytes, collateral: Collateral = None) -> Judgement:
        """Judge what a host relays."""
        roots = Roots(
            nitro=frozenset({hashlib.sha256(self.makers.nitro.chain()[0].der).digest()}),
            amd=frozenset({hashlib.sha256(self.makers.snp.authorities()[0].der).digest()}),
            intel=frozenset(),
        )
        pins = (PinnedEndorser(evidence.format, self.pinned.public_key, self.days),)
        own: dict[str, Any] = (
            {"minimum_snp_tcb": RUNNING, "lists_since": self.now - 10 * DAY} if evidence.format is SNP else {}
        )
        policy = Policy(accepted=pins, **(own | self.more))
        encoded = endorsement if isinstance(endorsement, bytes) else endorsement.encode()
        evidence = replace(evidence, relayed=encode_collateral(collateral, encoded))
        judge = HardwareJudge(policy=policy, verifier=Verifier(roots), newest=self.store)
        return judge.judge(evidence, BINDING, self.now)

    def running(self, image: int) -> Evidence:
        """Return evidence of an image on Nitro."""
        registers = self.makers.nitro.registers() | {index: bytes([image + index]) * 48 for index in range(3)}
        return Evidence(NITRO, self.makers.nitro.NitroDocument(fields={"pcrs": registers}).encode())

    def on_snp(self, **changes: Any) -> tuple[Evidence, SnpCollateral]:
        root, authority = self.makers.snp.authorities()
        collateral = SnpCollateral(
            chip_certificate=self.makers.snp.chip_certificate().der,
            authority_certificate=authority.der,
            root_certificate=root.der,
            revocation_list=self.makers.snp.amd_revocation_list(),
        )
        return Evidence(SNP, self.makers.snp.SnpReport(report_data=BINDING, **changes).encode()), collateral


@pytest.fixture
def client(makers: ModuleType, tmp_path: Path) -> Client:
    return Client(makers, Store.at(tmp_path))


def refused(call: Callable[[], object], said: str) -> Reason:
    with pytest.raises(PeerError, match=said) as caught:
        call()
    return caught.value.reason


# --- What it is for ---------------------------------------------------------------------------------------------------


def test_a_new_image_needs_no_new_client_and_the_old_one_ends_with_it(client: Client) -> None:
    old, both = client.signed(nitro_policy(1), days_ago=3), client.signed(nitro_policy(1, 2), days_ago=2)
    assert client.judge(client.running(1), old).program.startswith("nitro: PCR0 0101")
    assert refused(lambda: client.judge(client.running(2), old), "no pinned measurement") is Reason.ATTESTATION_REFUSED
    client.judge(client.running(2), both)
    client.judge(client.running(1), both)
    new = client.signed(nitro_policy(2), days_ago=1)
    client.judge(client.running(2), new)
    assert refused(lambda: client.judge(client.running(1), new), "no pinned measurement") is Reason.ATTESTATION_REFUSED


def test_a_judgement_ends_with_its_endorsement(client: Client) -> None:
    document_ends = client.judge(client.running(1), client.signed(nitro_policy(1))).not_after
    assert document_ends < client.now + DAY
    client.days = 2
    made = client.signed(nitro_policy(1), days_ago=2 - 1 / 24)
    fresh = Client(client.makers, Store(), days=2)
    assert fresh.judge(client.running(1), made).not_after == client.now.replace(microsecond=0) + DAY / 24
    made = client.signed(nitro_policy(1), days_ago=1 - 1 / 24, days=1)
    assert Client(client.makers, Store()).judge(client.running(1), made).not_after == client.now + DAY / 24


# --- Old ones ---------------------------------------------------------------------------------------------------------


def test_an_endorsement_that_was_replaced_is_refused_also_after_a_restart(client: Client, tmp_path: Path) -> None:
    old, new = client.signed(nitro_policy(1), days_ago=2), client.signed(nitro_policy(2), days_ago=1)
    client.judge(client.running(1), old)
    client.judge(client.running(2), new)
    assert refused(lambda: client.judge(client.running(1), old), "older than one seen") is Reason.COLLATERAL_STALE
    Store.at(tmp_path).close()
    with closing(Store(tmp_path)) as again:
        client.store = again
        assert refused(lambda: client.judge(client.running(1), old), "older than one seen") is Reason.COLLATERAL_STALE
        client.judge(client.running(2), new)


def test_a_new_client_takes_none_that_is_older_than_its_pin_says(client: Client) -> None:
    """It has seen nothing, and the endorsement itself has not ended."""
    old = client.signed(nitro_policy(1), days_ago=3, days=90)
    client.days = 2
    assert refused(lambda: client.judge(client.running(1), old), "expired at 20") is Reason.COLLATERAL_STALE
    client.days = 4
    client.judge(client.running(1), old)


def test_an_endorsement_that_ended_is_refused(client: Client) -> None:
    ended = client.signed(nitro_policy(1), days_ago=2, days=2)
    assert refused(lambda: client.judge(client.running(1), ended), "expired at 20") is Reason.COLLATERAL_STALE


def signed_by_hand(made: Endorsement) -> Endorsement:
    """Sign what ``endorse`` would not, with the pinned key."""
    signature = ENDORSER.sign(Label.ENCLAVE_ENDORSEMENT, ENDORSER.public_key, *made.standing.parts)
    return replace(made, signature=signature)


def test_one_of_the_future_shuts_no_client_out_of_later_ones(client: Client) -> None:
    good = client.signed(nitro_policy(1))
    for number in (good.number + CLOCKS_APART + 1, 1 << 63):
        made = signed_by_hand(replace(good, number=number, until=number + 9))
        assert refused(lambda made=made: client.judge(client.running(1), made), "future") is Reason.COLLATERAL_STALE  # type: ignore[misc]
    client.judge(client.running(1), good)


@pytest.mark.parametrize("policy", [b"[" * 50_000, b"[]", b"\xff", b"9" * 6_000])
def test_what_the_key_signed_in_no_form_of_a_policy_is_refused(client: Client, policy: bytes) -> None:
    made = signed_by_hand(replace(client.signed(nitro_policy(1)), policy=policy))
    with pytest.raises(InvalidParameters, match="the endorsement is not an enclave policy"):
        client.judge(client.running(1), made)


def test_one_that_would_hold_for_more_than_ninety_days_is_refused(client: Client) -> None:
    good = client.signed(nitro_policy(1), days=90)
    long = signed_by_hand(replace(good, until=good.until + 1))
    assert refused(lambda: client.judge(client.running(1), long), "lasts over 90 days") is Reason.COLLATERAL_STALE
    client.judge(client.running(1), good)


def test_two_of_one_number_are_refused_and_kept_as_evidence(client: Client) -> None:
    """A key that tells two groups of clients different things, in one second."""
    one, other = client.signed(nitro_policy(1)), client.signed(nitro_policy(2))
    assert one.number == other.number
    client.judge(client.running(1), one)
    assert refused(lambda: client.judge(client.running(2), other), "or differs from it") is Reason.COLLATERAL_STALE
    client.judge(client.running(1), one)
    assert client.store is not None
    with client.store.transaction() as rows:
        ((seen, shown),) = rows.execute("SELECT seen, shown FROM contradictions")
    for encoded, made in ((seen, one), (shown, other)):
        standing = decoded_standing(encoded)
        assert standing == made.standing
        assert standing.digest == hashlib.sha256(made.until.to_bytes(8, "big") + made.policy).digest()


# --- Others -----------------------------------------------------------------------------------------------------------


def test_no_part_of_an_endorsement_can_be_altered(client: Client) -> None:
    good = client.signed(nitro_policy(1))
    for changed in (
        {"number": good.number + 1},
        {"until": good.until - 1},
        {"policy": nitro_policy(2)},
        {"policy": good.policy + b" "},
        {"signature": bytes(64)},
    ):
        made = replace(good, **changed)
        runs = client.running(2 if changed.get("policy") == nitro_policy(2) else 1)
        assert refused(partial(client.judge, runs, made), "is not signed by") is Reason.ATTESTATION_INVALID
    client.judge(client.running(1), good)


def test_another_key_endorses_nothing(client: Client) -> None:
    theirs = client.signed(nitro_policy(1), key=THIEF)
    assert refused(lambda: client.judge(client.running(1), theirs), "does not pin") is Reason.ATTESTATION_REFUSED
    renamed = replace(theirs, key=ENDORSER.public_key)
    assert refused(lambda: client.judge(client.running(1), renamed), "not signed by") is Reason.ATTESTATION_INVALID


def test_what_the_key_signed_for_something_else_is_no_endorsement(client: Client) -> None:
    """An operator may use one key for its roster and for endorsements; heads of rosters are signed every day."""
    good = client.signed(nitro_policy(1))
    head = Standing(number=good.number, digest=good.standing.digest).signed(ENDORSER)
    made = replace(good, signature=head.signature)
    assert refused(lambda: client.judge(client.running(1), made), "not signed by") is Reason.ATTESTATION_INVALID


def test_an_endorsement_of_another_family_is_refused_and_not_remembered(client: Client) -> None:
    good, other = client.signed(nitro_policy(1), days_ago=1), client.signed(snp_policy())
    assert (
        refused(lambda: client.judge(client.running(1), other), "must pin measurements") is Reason.ATTESTATION_REFUSED
    )
    client.judge(client.running(1), good)
    evidence, collateral = client.on_snp()
    assert (
        refused(lambda: client.judge(evidence, good, collateral), "must pin measurements") is Reason.ATTESTATION_REFUSED
    )
    client.judge(evidence, other, collateral)
    client.judge(client.running(1), good)


def test_without_an_endorsement_or_a_memory_nothing_is_accepted(client: Client) -> None:
    assert (
        refused(lambda: client.judge(client.running(1), b""), "evidence has no endorsement")
        is Reason.ATTESTATION_REFUSED
    )
    with pytest.raises(PeerError):
        client.judge(client.running(1), b"\xff" * 200)
    client.store = None
    with pytest.raises(InvalidParameters, match="newest= to a store"):
        client.judge(client.running(1), client.signed(nitro_policy(1)))


def test_a_state_that_was_restored_is_said_as_such(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with the client's own folder is nothing that the server can mend."""

    def restored(*_: object) -> None:
        raise InvalidParameters("the state was copied")

    monkeypatch.setattr(Store, "see_standing", restored)
    with pytest.raises(InvalidParameters, match="the state was copied"):
        client.judge(client.running(1), client.signed(nitro_policy(1)))


# --- The whole pin ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("launched", "endorsed", "own", "said"),
    [
        ({}, {}, {}, ""),
        ({}, {"minimum_tcb": {"boot_loader": 9, "tee": 0, "snp": 22, "microcode": 0}}, {}, "the firmware is"),
        ({}, {}, {"minimum_snp_tcb": replace(RUNNING, boot_loader=9)}, "the firmware is"),
        ({"privilege_level": 1}, {"privilege_level": 1}, {}, "the guest runs at VMPL 1"),
        ({"privilege_level": 1}, {}, {"privilege_level": 1}, "the guest runs at VMPL 1"),
        ({"privilege_level": 1}, {"privilege_level": 1}, {"privilege_level": 1}, ""),
        ({"policy": 0x30000}, {"sibling_threads_accepted": True}, {}, "allows SMT"),
        ({"policy": 0x30000}, {}, {"sibling_threads_accepted": True}, "allows SMT"),
        ({"policy": 0xA0000}, {}, {}, "debug build"),
        ({"measurement": b"\x4e" * 48}, {}, {}, "no pinned measurement"),
    ],
)
def test_an_endorsement_loosens_nothing_that_the_client_asks_for_and_asks_for_all_that_was_signed(
    client: Client, launched: dict[str, Any], endorsed: dict[str, Any], own: dict[str, Any], said: str
) -> None:
    evidence, collateral = client.on_snp(**launched)
    client.more = own
    made = client.signed(snp_policy(**endorsed))
    if not said:
        client.judge(evidence, made, collateral)
        return
    assert refused(lambda: client.judge(evidence, made, collateral), said) is Reason.ATTESTATION_REFUSED


# --- What is signed, and where it is pinned ---------------------------------------------------------------------------


def test_what_no_client_could_use_is_not_signed(client: Client) -> None:
    for days in (0, 91, 1.5, True):
        with pytest.raises(InvalidParameters, match="must last 1 to 90 days"):
            endorse(ENDORSER, nitro_policy(1), days=days, now=client.now)  # type: ignore[arg-type]
    nested = json.dumps({"format": "nitro", "accepted": [{"endorser": ENDORSER.public_key.hex()}]}).encode()
    with pytest.raises(InvalidParameters, match="pins an endorser"):
        endorse(ENDORSER, nested, days=1, now=client.now)
    with pytest.raises(InvalidParameters, match="not an enclave policy"):
        endorse(ENDORSER, b"\xff", days=1, now=client.now)


def test_an_endorsed_endorser_pins_nothing(client: Client) -> None:
    """The pinned key signs it all the same: another one would then say what is good, with no number of its own."""
    nested = json.dumps({"format": "nitro", "accepted": [{"endorser": THIEF.public_key.hex()}]}).encode()
    made = signed_by_hand(replace(client.signed(nitro_policy(1)), policy=nested))
    assert refused(lambda: client.judge(client.running(1), made), "no pinned measurement") is Reason.ATTESTATION_REFUSED


def test_a_file_pins_an_endorser(tmp_path: Path) -> None:
    file, key = tmp_path / "policy.json", ENDORSER.public_key
    for values, days in (({}, 1), ({"days": 7}, 7)):
        file.write_text(json.dumps({"format": "nitro", "accepted": [{"endorser": key.hex()} | values]}))
        assert read_policy(file).accepted == (PinnedEndorser(NITRO, key, days),)
    for wrong in ({"days": 91}, {"days": 0}, {"days": "7"}, {"PCR0": "00" * 48}):
        file.write_text(json.dumps({"format": "nitro", "accepted": [{"endorser": key.hex()} | wrong]}))
        with pytest.raises(InvalidParameters):
            read_policy(file)
    file.write_text(json.dumps({"format": "nitro", "accepted": [{"endorser": key.hex()[2:]}]}))
    with pytest.raises(InvalidParameters, match="32 bytes"):
        read_policy(file)


def test_a_policy_pins_measurements_or_their_endorser() -> None:
    measured = PinnedMeasurement(NITRO, {f"PCR{index}": bytes([index]) * 48 for index in range(3)})
    endorser = PinnedEndorser(NITRO, ENDORSER.public_key)
    with pytest.raises(InvalidParameters, match="cannot pin both measurements and an endorser"):
        Policy(accepted=(measured, endorser))
    Policy(accepted=(measured, replace(endorser, format=TDX)))
    Policy(accepted=(endorser, PinnedEndorser(NITRO, THIEF.public_key)))


def test_a_folder_may_hold_an_endorsement_alone(tmp_path: Path) -> None:
    assert read_endorsement(tmp_path) == b""
    (tmp_path / "endorsement").write_bytes(b"signed")
    assert read_endorsement(tmp_path) == b"signed"
    assert read_collateral(tmp_path) is None is read_collateral(str(tmp_path))
    assert read_endorsement(tmp_path) == read_endorsement(str(tmp_path)) != b""
    (tmp_path / "root_certificate").write_text("-----BEGIN CERTIFICATE-----\n")
    with pytest.raises(InvalidParameters, match="root_certificate is PEM; convert it"):
        read_collateral(tmp_path)
    (tmp_path / "root_certificate").unlink()
    (tmp_path / "other").write_bytes(b"")
    with pytest.raises(InvalidParameters, match="contains other; SEV-SNP collateral"):
        read_collateral(tmp_path)
