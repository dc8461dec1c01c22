"""What a client refuses before anything of its update leaves: other subjects, other updates, others' certificates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from secagg.contract.codewords import CodewordTable
from secagg.errors import NOBODY, CapacityExceeded, InvalidParameters, Misuse, PeerMisbehaved, Reason, SecAggError
from secagg.parameters import SecurityMode
from secagg.protocols.one_message.client import Ledger, OneMessageMember
from secagg.protocols.one_message.configuration import Offer
from secagg.protocols.one_message.messages import Upload
from secagg.session.ledger import Spent
from secagg.session.roles import LazyUpdate, Subject, Update
from secagg.session.signing_keys import issue_certificate
from tests.harness.one_message_sums import TASK, InsecureSum, SumSetup
from tests.harness.planted import always

FIRST, SECOND = SumSetup().clients[:2]


def is_refused(sentence: str, *, subject: Subject | None = None, offer: Offer | None = None) -> None:
    world = InsecureSum(SumSetup())
    late = world.update(FIRST)
    with pytest.raises((InvalidParameters, CapacityExceeded), match=sentence):
        world.member(FIRST).join(subject or world.setup.subject, late).answer((offer or world.offer()).encode())
    if FIRST in world.stored:
        assert not world.stored_upload(FIRST)


def test_an_update_of_another_model_is_refused_before_it_is_made() -> None:
    world = InsecureSum(SumSetup())
    late = LazyUpdate(lambda: pytest.fail("it is made"), b"o" * 32)
    with pytest.raises(InvalidParameters, match="the offer's model differs"):
        world.member(FIRST).join(world.setup.subject, late).answer(world.offer().encode())
    assert FIRST not in world.stored


@pytest.mark.parametrize("refusing", ["an update that was taken", "the update's ledger", "the member's ledger", "room"])
def test_a_budget_is_not_spent_on_an_upload_that_is_refused(refusing: str) -> None:
    world, charged = InsecureSum(), list[str]()
    setup = world.setup

    def charge(name: str) -> Callable[..., None]:
        def charged_or_refused(*_: object) -> None:
            if name == refusing:
                raise PeerMisbehaved(name, reason=Reason.ALREADY_ANSWERED, culprits=NOBODY)
            charged.append(name)

        return charged_or_refused

    make = partial(Update, setup.values_of(FIRST), setup.model)
    update = LazyUpdate(make, setup.model, charge=charge("the update's ledger"))
    if refusing == "an update that was taken":
        update.take(setup.layout)
        charged.clear()
    budget: Any = SimpleNamespace(require_room=charge("room"), charge=charge("a budget"))
    ledger = SimpleNamespace(sent_for=always(None), charge=charge("the member's ledger"), keep=charge("kept"))
    member = world.member(FIRST, ledger=always(ledger), privacy=budget)
    with pytest.raises(SecAggError):
        member.join(setup.subject, update).answer(world.offer().encode())
    assert charged == {"the member's ledger": ["room", "the update's ledger"], "room": []}.get(refusing, ["room"])


def test_an_upload_is_charged_everywhere_and_kept_before_it_is_handed_over() -> None:
    world, done = InsecureSum(SumSetup()), list[tuple[str, tuple[object, ...]]]()
    setup, offer = world.setup, world.offer()

    def noted(name: str) -> Callable[..., None]:
        return lambda *arguments: done.append((name, arguments))

    def make() -> Update:
        done.append(("made", ()))
        return Update(setup.values_of(FIRST), setup.model)

    budget: Any = SimpleNamespace(require_room=noted("room"), charge=noted("budget"))
    ledger = SimpleNamespace(sent_for=always(None), charge=noted("ledger"), keep=noted("kept"))
    member = world.member(FIRST, ledger=always(ledger), privacy=budget)
    upload = member.join(setup.subject, LazyUpdate(make, setup.model)).answer(offer.encode())
    spent = (Spent(TASK, setup.round_number, setup.model), world.record.number)
    charged = [("room", (None,)), ("ledger", spent), ("budget", (None,))]
    assert done == [*charged, ("made", ()), ("kept", (replace(offer, receipts=()).encode(), upload))]


def test_an_offer_of_an_old_epoch_costs_no_update() -> None:
    """A server that showed one first kept a client out of the sum that followed: its update was gone."""
    old, new = (InsecureSum(SumSetup(number=number, round_number=1)) for number in (1, 2))
    ledger = Ledger(TASK, lambda _: None)
    ledger.charge(Spent(TASK, 0), new.record.number)
    session = new.member(FIRST, ledger=always(ledger)).join(new.setup.subject, new.update(FIRST))
    with pytest.raises(PeerMisbehaved, match="older than epoch 2"):
        session.answer(old.offer().encode())
    assert Upload.decode(session.answer(new.offer().encode())).header.client == FIRST


def test_codebooks_are_not_summed() -> None:
    tables = ((CodewordTable(1, np.array([[1], [2]], dtype=np.int64)),),)
    is_refused("supports no codebooks", subject=replace(SumSetup().subject, tables=tables))


def test_a_sum_has_no_more_uploads_than_the_codec_can_decode() -> None:
    world = InsecureSum(SumSetup())
    small, offer = replace(world.setup.subject, capacity=15), world.offer()
    terms = replace(offer.terms, application_digest=small.terms_digest)
    is_refused("the codec decodes only 15", subject=small, offer=replace(offer, terms=terms))


def test_a_client_has_its_own_key_and_its_own_certificate_or_neither() -> None:
    world = InsecureSum()
    (key, certificate), (other, others) = world.certified(FIRST), world.certified(SECOND)
    foreign = issue_certificate(world.authority, FIRST, other.public_key)
    for changes, sentence in (
        ({"signing_key": key, "certificate": None}, "or neither"),
        ({"signing_key": None, "certificate": certificate}, "or neither"),
        ({"signing_key": other, "certificate": others}, "for another client"),
        ({"signing_key": key, "certificate": foreign}, "for another key"),
    ):
        brought: dict[str, Any] = changes
        with pytest.raises(InvalidParameters, match=sentence):
            OneMessageMember(
                FIRST,
                policy=world.policy,
                ledger=lambda task: Ledger(task, lambda _: None),
                coins=world.setup.coins_of("a client"),
                clock=world.clock,
                **brought,
            )


def test_a_client_that_cannot_sign_is_told_before_its_update_is_taken() -> None:
    """It was charged, and its update was made, before it found that it has no key for a sum of active mode."""
    for mode, other in (
        (SecurityMode.ACTIVE, SecurityMode.SEMI_HONEST),
        (SecurityMode.SEMI_HONEST, SecurityMode.ACTIVE),
    ):
        world, foreign = InsecureSum(SumSetup(mode=mode)), InsecureSum(SumSetup(mode=other))
        with pytest.raises(InvalidParameters, match="if its policy names an authority"):
            world.member(FIRST, policy=foreign.policy)
        assert FIRST not in world.stored
    world = InsecureSum()
    key, _ = world.certified(FIRST)
    member = world.member(FIRST, signing_key=key)
    key.wipe()
    late = LazyUpdate(lambda: pytest.fail("it is made"), world.setup.model)
    with pytest.raises(Misuse, match="was wiped"):
        member.join(world.setup.subject, late).answer(world.offer().encode())
    assert FIRST not in world.stored


# --- Ledger and policy ------------------------------------------------------------------------------------------------


def test_a_ledger_is_for_one_task() -> None:
    stored = list[bytes]()
    ledger = Ledger(TASK, stored.append)
    ledger.charge(Spent(TASK, 0), 1)
    with pytest.raises(Misuse, match="keep one record per task"):
        Ledger(b"another", stored.append, stored[-1])
    with pytest.raises(Misuse, match="keep one ledger per task"):
        ledger.charge(Spent(b"another", 1), 1)
    assert len(stored) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"authority": b"a" * 31},
        {"authority": bytearray(32)},
        {"minimum_cohort": 1, "assumed_corrupted": 0},
        {"minimum_holders": 1},
        {"minimum_holders": 4.0},
        {"assumed_corrupted_holders": -1},
        {"minimum_modulus_bits": 0},
        {"maximum_length": 0},
        {"maximum_population": 2},
        {"minimum_security_bits": 0},
        {"minimum_security_bits": True},
    ],
)
def test_policies_that_protect_nobody_are_not_made(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameters):
        replace(InsecureSum().policy, **changes)


def test_policies_may_be_the_least() -> None:
    least: dict[str, Any] = {"minimum_holders": 2, "assumed_corrupted_holders": 0, "minimum_modulus_bits": 1}
    least |= {"maximum_length": 1, "maximum_population": 3, "minimum_security_bits": 1}
    policy = replace(InsecureSum().policy, **least)
    assert (policy.minimum_cohort, policy.assumed_corrupted) == (3, 1)
    assert replace(policy, minimum_cohort=2, assumed_corrupted=0).minimum_cohort == 2


def admitted(**policy: Any) -> None:
    world = InsecureSum()
    world.offer().agree().require_accepted(replace(world.policy, **policy), world.clock())


JUST_MET: dict[str, Any] = {
    "minimum_holders": 5,
    "assumed_corrupted_holders": 1,
    "assumed_corrupted": 1,
    "minimum_cohort": 3,
    "minimum_modulus_bits": 9,
    "maximum_length": 9,
    "maximum_population": 16,
}


def test_policies_that_are_just_met_admit_an_offer() -> None:
    admitted(**JUST_MET)


def test_a_charge_that_was_not_written_is_not_counted() -> None:
    """A disk that was full for a moment costs no round."""
    written = list[bytes]()
    is_full = True

    def store(record: bytes) -> None:
        if is_full:
            raise OSError("no space left on device")
        written.append(record)

    ledger = Ledger(TASK, store)
    with pytest.raises(OSError, match="no space"):
        ledger.charge(Spent(TASK, 7), 1)
    is_full = False
    ledger.charge(Spent(TASK, 7), 1)
    assert len(written) == 1
    with pytest.raises(PeerMisbehaved, match="uploaded for round 7"):
        ledger.charge(Spent(TASK, 7), 1)
