"""Who may hold, which epoch, which public polynomials, and what a holder remembers that was killed or restored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from secagg.blame import unverified
from secagg.crypto.labels import Label
from secagg.errors import AuthenticationFailed, InvalidParameters, MalformedMessage, PeerMisbehaved, Reason
from secagg.identifiers import HolderId
from secagg.parameters import ATTEMPTS, SecurityMode, Suite
from secagg.protocols.one_message.client import Ledger
from secagg.protocols.one_message.configuration import HolderIdentity, HolderKeys, verify_epoch
from secagg.protocols.one_message.messages import Upload
from secagg.protocols.one_message.tally import Tally
from secagg.session.client_policy import ClientPolicy
from secagg.session.roles import LazyUpdate, Update
from tests.harness.one_message_sums import COINS, MODEL, NOW, TASK, InsecureSum, SumSetup, for_any_task

# --- Committees -------------------------------------------------------------------------------------------------------


def test_a_committee_that_the_authority_did_not_sign() -> None:
    world = InsecureSum(SumSetup())
    keys = [world.holders[position].keys for position in range(5)]
    record = world.record
    for altered in (
        replace(record, holders=record.holders[::-1]),
        replace(record, holders=record.holders[:-1], threshold=4),
        replace(record, corrupted=0, threshold=4),
        replace(record, threshold=5),
        replace(record, expiry=record.expiry + 1),
        replace(record, number=2),
        replace(record, quorum=5),
        replace(record, suite=Suite.HYBRID),
        record.signed(world.setup.key_of("another authority")),
    ):
        with pytest.raises(AuthenticationFailed):
            verify_epoch(altered.encode(), keys)
    assert verify_epoch(record.encode(), keys).record == record


UNSIGNABLE: list[tuple[Callable[[InsecureSum], dict[str, Any]], str]] = [
    (lambda world: {"holders": (world.record.holders[0], *world.record.holders[:4])}, "a holder is listed twice"),
    (
        lambda world: {"holders": (*world.record.holders[:4], replace(world.record.holders[0], number=99))},
        "two holders have the same key",
    ),
    (lambda _: {"threshold": 2}, "need a threshold of 3 to 5; got 2"),
    (lambda _: {"threshold": 6}, "need a threshold of 3 to 5; got 6"),
    (lambda _: {"quorum": 3}, "needs a quorum of 4 to 5; got 3"),
    (lambda _: {"authority": bytes(32)}, "needs keys of authority"),
    (lambda _: {"mode": SecurityMode.SEMI_HONEST}, "uses no keys"),
    (
        lambda _: {"holders": tuple(HolderIdentity(number=n, public_key=n.to_bytes(32, "big")) for n in range(257))},
        "257 holders exceed the limit of 256; list fewer",
    ),
]


@pytest.mark.parametrize(("change", "sentence"), UNSIGNABLE)
def test_records_that_no_authority_may_sign(change: Callable[[InsecureSum], dict[str, Any]], sentence: str) -> None:
    world = InsecureSum(SumSetup())
    with pytest.raises(InvalidParameters, match=sentence):
        replace(world.record, **change(world))


def test_keys_that_a_holder_did_not_publish() -> None:
    """The server cannot choose ``a``: its seed is of every holder's bytes, which the holder signed."""
    world, other = InsecureSum(SumSetup()), InsecureSum(SumSetup(number=2))
    record, keys = world.record.encode(), [world.holders[position].keys for position in range(5)]
    first = HolderKeys.decode(keys[0])
    for altered, kind in (
        (replace(first, nonce=bytes(32)), AuthenticationFailed),
        (replace(first, sealing_key=HolderKeys.decode(keys[1]).sealing_key), AuthenticationFailed),
        (HolderKeys.decode(other.holders[0].keys), PeerMisbehaved),
    ):
        with pytest.raises(kind) as refused:
            verify_epoch(record, [altered.encode(), *keys[1:]])
        assert refused.value.culprits == unverified(HolderId(0))
    for wrong in (keys[:-1], keys[::-1], [*keys[:-1], keys[0]], [*keys, keys[0]]):
        with pytest.raises(PeerMisbehaved, match="pass the holders' keys in the epoch's order"):
            verify_epoch(record, wrong)


def test_a_holder_that_tells_clients_different_keys_divides_them_and_learns_nothing() -> None:
    """Two announcements of one holder are two T0s: nobody's upload for one is taken, or opened, in the other."""
    world = InsecureSum(SumSetup())
    honest = world.offer()
    twin = world.holder_of_other_coins(3)
    told = world.with_receipts(replace(honest, keys=(*honest.keys[:3], twin.keys, honest.keys[4])))
    assert told.agree().t0 != honest.agree().t0
    assert told.agree().epoch.seed != honest.agree().epoch.seed
    client = world.setup.clients[0]
    with pytest.raises(PeerMisbehaved, match="another sum"):
        Tally(honest, COINS).receive_upload(client, world.upload(client, told))
    with pytest.raises(PeerMisbehaved, match="other keys for this holder"):
        world.holders[3].respond(told.encode())


def test_holders_stand_only_where_the_authority_put_them() -> None:
    world = InsecureSum(SumSetup())
    with pytest.raises(InvalidParameters, match="another holder has this position"):
        world.holder_with(world.record, 0, key=world.holder_keys[1])
    forged = replace(world.record, threshold=5)
    with pytest.raises(AuthenticationFailed):
        world.holder_with(forged, 0, key=world.holder_keys[0])
    elsewhere = InsecureSum(SumSetup(seed=b"another authority"))
    with pytest.raises(InvalidParameters, match="an authority that this holder does not trust"):
        elsewhere.holder_with(world.record, 0, key=world.holder_keys[0])
    assert [world.record.position_of(key.public_key) for key in world.holder_keys] == [0, 1, 2, 3, 4]
    assert world.record.position_of(world.authority.public_key) is None


# --- Clients ----------------------------------------------------------------------------------------------------------


def test_an_epoch_that_is_over_or_older_than_the_newest() -> None:
    old, new = InsecureSum(SumSetup(number=1)), InsecureSum(SumSetup(number=2, round_number=1))
    client = old.setup.clients[0]
    new.upload(client)
    old.stored = new.stored
    old.setup = replace(old.setup, round_number=5)
    with pytest.raises(PeerMisbehaved, match="epoch 1 is older than epoch 2"):
        old.upload(client)
    new.now = NOW + 3600
    with pytest.raises(InvalidParameters, match="its epoch has expired"):
        new.upload(new.setup.clients[1])
    with pytest.raises(InvalidParameters, match="the epoch is over"):
        new.holders[0].respond(new.record.encode())


def test_training_that_outlasts_the_epoch_is_uploaded_all_the_same() -> None:
    """A refusal after the charge would spend the update, and tell the server how long the client trained."""
    world = InsecureSum(SumSetup())
    client = world.setup.clients[0]

    def train() -> Update:
        world.now = NOW + 3600
        return Update(world.setup.values_of(client), MODEL)

    offer = world.offer().encode()
    upload = world.member(client).join(world.setup.subject, LazyUpdate(train)).answer(offer)
    assert (world.now, world.stored_upload(client)) == (NOW + 3600, upload)
    # And before the charge it is refused.
    late = world.setup.clients[1]
    with pytest.raises(InvalidParameters, match="its epoch has expired"):
        world.member(late).join(world.setup.subject, LazyUpdate(train)).answer(offer)
    assert not world.stored.get(late)


@pytest.mark.parametrize("number", [1, 2])
def test_updates_of_one_model_in_several_sums_or_epochs(number: int) -> None:
    """A round that failed is tried again with the same model, and no more often than its client allows."""
    world = InsecureSum(SumSetup())
    client = world.setup.clients[0]
    world.upload(client)
    for attempt in range(1, ATTEMPTS + 1):
        again = InsecureSum(SumSetup(number=number, round_number=attempt))
        again.stored = world.stored
        if attempt < ATTEMPTS:
            again.upload(client)
            continue
        with pytest.raises(PeerMisbehaved, match="3 times for the model") as refused:
            again.upload(client)
        assert refused.value.reason is Reason.ALREADY_ANSWERED
    # A round is answered once, whatever is offered for it under whichever sum or epoch.
    elsewhere = InsecureSum(SumSetup(number=number))
    elsewhere.stored = world.stored
    with pytest.raises(PeerMisbehaved, match="rounds must increase"):
        elsewhere.upload(client)


def test_an_upload_is_sent_again_identically_and_never_made_again() -> None:
    world = InsecureSum(SumSetup())
    client, offer = world.setup.clients[0], world.offer()
    first = world.upload(client, offer)
    assert world.upload(client, offer) == first, "after a restart, from what was stored"

    def never() -> Update:
        raise AssertionError

    assert world.member(client).join(world.setup.subject, LazyUpdate(never)).answer(offer.encode()) == first


class RepeatingCoins:
    """What a snapshot of a machine draws each time that it is resumed."""

    def draw(self, count: int) -> bytearray:
        return bytearray(b"\x07" * count)


@pytest.mark.parametrize("mode", SecurityMode)
@pytest.mark.parametrize("changed", ["update", "sum", "client"])
def test_coins_that_repeat_mask_nothing_twice(mode: SecurityMode, changed: str) -> None:
    """One mask on two updates shows their difference, and one dealing under two challenges opens the secret."""
    setup = SumSetup(mode=mode)
    world, uploads = InsecureSum(setup), list[Upload]()
    for second in (False, True):
        client = setup.clients[second and changed == "client"]
        payload = setup.values_of(setup.clients[0])
        if second and changed == "update":
            payload.values[0][0] += 1
        offer = world.offer(replace(setup, minimum_cohort=4) if second and changed == "sum" else None)
        repeating = world.member(client, coins=RepeatingCoins(), ledger=for_any_task(Ledger(TASK, lambda _: None)))
        update = LazyUpdate(partial(Update, payload, setup.model))
        uploads.append(Upload.decode(repeating.join(setup.subject, update).answer(offer.encode())))
    one, other = uploads
    vectors = [np.frombuffer(upload.vector, np.uint8) for upload in uploads]
    assert np.mean(vectors[0] == vectors[1]) < 0.1
    assert one.header.nonce != other.header.nonce
    assert one.polynomial != other.polynomial


def weaker(world: InsecureSum) -> dict[str, ClientPolicy]:
    policy = world.policy
    return {
        "another authority": replace(policy, authority=b"a" * 32),
        "suite": replace(policy, suites=frozenset({Suite.HYBRID})),
        "mode": replace(policy, modes=frozenset({SecurityMode.SEMI_HONEST})),
        "fewer than 6": replace(policy, minimum_holders=6),
        "only 1 corrupted holders": replace(policy, assumed_corrupted_holders=2),
        "only 1 corrupted clients": replace(policy, assumed_corrupted=2),
        "a cohort of 3 is below 4": replace(policy, minimum_cohort=4),
        "a ring of 9 bits is below 10": replace(policy, minimum_modulus_bits=10),
        "a vector of 9 is longer than 8": replace(policy, maximum_length=8),
        "a list of 16 is longer than 15": replace(policy, maximum_population=15),
        "bits of security": replace(policy, minimum_security_bits=1000),
    }


def test_offers_below_the_policy_are_refused_by_clients_and_by_holders() -> None:
    world = InsecureSum(SumSetup())
    offer, client = world.offer(), world.setup.clients[0]
    for sentence, policy in weaker(world).items():
        world.stored.clear()
        insisting = world.member(client, policy=policy).join(world.setup.subject, world.update(client))
        with pytest.raises(InvalidParameters, match=sentence) as refused:
            insisting.answer(offer.encode())
        assert refused.value.reason is Reason.BELOW_FLOOR
        assert not world.stored, "nothing was charged"
        if sentence != "another authority":
            holder = world.holder(0)
            holder._policy = policy  # noqa: SLF001 -- another holder's  # pyright: ignore[reportPrivateUsage]
            with pytest.raises(InvalidParameters, match=sentence):
                holder.respond(offer.encode())


def test_a_holder_promises_no_limit_that_it_does_not_enforce() -> None:
    world = InsecureSum(SumSetup())
    holder, day = world.holder(0), world.policy.maximum_standing_age
    holder._policy = replace(world.policy, maximum_standing_age=day - 1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(InvalidParameters, match="requires maximum_standing_age, which the offered sum cannot enforce"):
        holder.respond(world.offer().encode())


def test_an_epoch_signs_with_a_key_in_active_mode_and_never_otherwise() -> None:
    """A signature that nobody looks at would let two parties see different bytes of one message."""
    active = InsecureSum(SumSetup()).record
    with pytest.raises(InvalidParameters, match="needs a signing key"):
        active.sign(None, Label.ONE_MESSAGE_RECEIPT, b"words")
    plain, key = InsecureSum(SumSetup(mode=SecurityMode.SEMI_HONEST)).record, SumSetup().key_of("anybody")
    assert plain.sign(key, Label.ONE_MESSAGE_RECEIPT, b"words") == b""
    plain.verify(key.public_key, b"", Label.ONE_MESSAGE_RECEIPT, b"words")
    with pytest.raises(MalformedMessage, match="has no signatures"):
        plain.verify(key.public_key, bytes(64), Label.ONE_MESSAGE_RECEIPT, b"words")


# --- Holders that were killed or restored -----------------------------------------------------------------------------


def test_an_epoch_has_as_many_holders_as_its_messages_have_room_for() -> None:
    record = InsecureSum(SumSetup(mode=SecurityMode.SEMI_HONEST)).record
    whole = replace(
        record,
        holders=tuple(HolderIdentity(number=n, public_key=bytes(32)) for n in range(256)),
        threshold=256,
        quorum=256,
    )
    assert type(whole).decode(whole.encode()) == whole
