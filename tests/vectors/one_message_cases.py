"""What a party must refuse of one message a client: one change each, and the reason and the culprits that it ends in.

The expectations are written by hand, from ``protocols/one_message/README.md`` and the attributions in ``Reason``. Where
a holder answers with a receipt, the expectation is its verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from secagg.crypto.labels import Label
from secagg.crypto.secret import Secret
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.one_message.configuration import EpochRecord, HolderKeys, HolderSignature, Offer
from secagg.protocols.one_message.holder import make_holder_keys
from secagg.protocols.one_message.messages import Upload, challenge_of, share_tree, upload_digest, vector_digest
from secagg.protocols.one_message.requests import (
    Answer,
    CertifiedList,
    Delivery,
    Listed,
    ListSignature,
    OfferReceipt,
    Receipt,
    UploadList,
)
from secagg.protocols.one_message.session import with_witnesses
from secagg.session.certificates import Standing

from .one_message_play import NOW, SERVER, Play, resigned

Edit = Callable[[bytes, Play], bytes]
HEADER = 7
FIRST, SECOND, LAST = 2, 77, 2**64 - 2
"""Clients, by increasing numbers but for one between."""
THE_SERVER = ("server/0",)
OTHER_ROUND = 8


@dataclass(frozen=True, kw_only=True)
class Negative:
    """A good sum with one change."""

    name: str
    base: str = "active"
    takes: str
    """The message that is changed."""
    party: str = SERVER
    edit: Edit
    after: int = 0
    """How many operations later the changed message comes: 1 where the good one came before."""
    sender: str = ""
    expect: str
    culprits: tuple[str, ...] = ()
    fails: str = ""
    """What the server does when the change shows; by default it shows at once."""


# --- Edits ------------------------------------------------------------------------------------------------------------


def flip(at: int, bits: int = 1) -> Edit:
    """Change bits of one byte; a negative place counts from the end."""
    return lambda message, _: bytes(byte ^ (bits if i == at % len(message) else 0) for i, byte in enumerate(message))


def put(at: int, data: bytes) -> Edit:
    """Write over what stands there."""
    return lambda message, _: message[:at] + data + message[at + len(data) :]


def cut(message: bytes, _: Play) -> bytes:
    """Leave out the last byte."""
    return message[:-1]


def append(message: bytes, _: Play) -> bytes:
    """Add a byte at the end."""
    return message + b"\0"


def same(message: bytes, _: Play) -> bytes:
    """Leave the message as it is."""
    return message


def another(name: str) -> Edit:
    """Hand over another message of the sum."""
    return lambda _, play: play.messages[name]


def remade(kind: Any, change: Callable[[Any, Play], Any]) -> Edit:
    """Read the message, change it, and write it again."""
    return lambda message, play: change(kind.decode(message), play).encode()


def configured(**changes: Any) -> Edit:
    """Change the configuration of an offer."""
    return remade(Offer, lambda offer, _: replace(offer, configuration=replace(offer.configuration, **changes)))


def planned(**changes: Any) -> Edit:
    """Change the parameters of an offer."""
    return remade(Offer, lambda offer, _: _planned(offer, **changes))


def _planned(offer: Offer, **changes: Any) -> Offer:
    parameters = with_witnesses(replace(offer.configuration.parameters, **changes))
    return replace(offer, configuration=replace(offer.configuration, parameters=parameters))


def numbered(place: int, value: int, size: int) -> Edit:
    """Write another integer into the parameters of an offer, whether or not it goes with the others."""

    def made(message: bytes, _: Play) -> bytes:
        parameters = Offer.decode(message).configuration.parameters
        head = (parameters.modulus_bits, parameters.guard_bits, parameters.dropped_bits)
        at = message.index(parameters.degree.to_bytes(2, "big") + bytes(head)) + place
        return message[:at] + value.to_bytes(size, "big") + message[at + size :]

    return made


def judged_at(made: int, *revoked: int, signer: str = "authority") -> Edit:
    """Offer a sum under another standing, with receipts that fit."""

    def shown(offer: Offer, play: Play) -> Offer:
        standing = Standing(number=made, revoked=revoked).signed(play.keys[signer])
        offer = replace(offer, configuration=replace(offer.configuration, standing=standing))
        agreement, digest = offer.agree(), offer.terms.digest
        signed = (
            agreement.sign(play.keys[f"holder/{at}"], Label.ONE_MESSAGE_OFFER_RECEIPT, at.to_bytes(2, "big"), digest)
            for at in play.positions
        )
        found = tuple(HolderSignature(holder=at, signature=one) for at, one in enumerate(signed))
        return replace(offer, receipts=found)

    return remade(Offer, shown)


def termed(**changes: Any) -> Edit:
    """Change the terms of an offer."""
    return remade(Offer, lambda offer, _: replace(offer, terms=replace(offer.terms, **changes)))


def in_epoch(signer: str = "authority", **changes: Any) -> Edit:
    """Offer a sum of another epoch, whose keys are as good as this one's."""

    def made(offer: Offer, play: Play) -> Offer:
        key = play.keys[signer]
        record = replace(EpochRecord.decode(offer.record), **changes)
        record = replace(record, authority=key.public_key).signed(key)
        return replace(offer, record=record.encode(), keys=tuple(_keys(play, record)))

    return remade(Offer, made)


def _keys(play: Play, record: EpochRecord) -> list[bytes]:
    found = list[bytes]()
    for position in play.positions:
        root, nonce = (bytes.fromhex(part) for part in play.vector["roots"][f"holder/{position}"])
        key = play.keys[f"holder/{position}"]
        found.append(
            make_holder_keys(record, position, Secret("holder root", root), nonce, until=record.expiry, key=key)[
                0
            ].encode()
        )
    return found


def keyed(change: Callable[[tuple[bytes, ...], Play], Sequence[bytes]]) -> Edit:
    """Change the holders' keys in an offer."""
    return remade(Offer, lambda offer, play: replace(offer, keys=tuple(change(offer.keys, play))))


def _one_sealing_key(keys: tuple[bytes, ...], play: Play) -> list[bytes]:
    first, second = HolderKeys.decode(keys[0]), HolderKeys.decode(keys[1])
    copied = replace(second, sealing_key=first.sealing_key)
    record = EpochRecord.decode(play.messages["record"])
    signature = record.sign(play.keys["holder/1"], Label.ONE_MESSAGE_HOLDER_KEYS, *copied.parts)
    return [keys[0], replace(copied, signature=signature).encode(), *keys[2:]]


def receipts(change: Callable[[tuple[Any, ...]], Sequence[Any]]) -> Edit:
    """Change the holders' signatures under an offer."""
    return remade(Offer, lambda offer, _: replace(offer, receipts=tuple(change(offer.receipts))))


def _with_other_keys(message: bytes, play: Play) -> bytes:
    """Put keys of a holder into an offer that it published at another time."""
    offer, record = Offer.decode(message), EpochRecord.decode(play.messages["record"])
    root, signer = Secret("holder root", bytes([9]) * 32), play.keys["holder/0"]
    keys, _ = make_holder_keys(record, 0, root, bytes(32), until=record.expiry, key=signer)
    return replace(offer, keys=(keys.encode(), *offer.keys[1:])).encode()


def header(**changes: Any) -> Edit:
    """Change the header of an upload."""
    return remade(Upload, lambda upload, _: replace(upload, header=replace(upload.header, **changes)))


def _with_terms(made: Upload, **changes: Any) -> Any:
    return replace(made.header, terms=replace(made.header.terms, **changes))


def upload(change: Callable[[Upload], dict[str, Any]]) -> Edit:
    """Change fields of an upload, and leave its signature."""
    return remade(Upload, lambda made, _: replace(made, **change(made)))


def _of_another_client(made: Upload, play: Play) -> Upload:
    other = Upload.decode(play.messages[f"upload/{SECOND}"])
    return replace(made, header=replace(made.header, identity=other.header.identity))


def delivered(**changes: Any) -> Edit:
    """Change what a holder is shown of the first upload."""
    return _first_share(lambda share, _: replace(share, **changes))


def _first_share(change: Callable[[Any, Play], Any]) -> Edit:
    def made(delivery: Delivery, play: Play) -> Delivery:
        first, *rest = delivery.shares
        return replace(delivery, shares=(change(first, play), *rest))

    return remade(Delivery, made)


def _other_terms(share: Any, _: Play) -> Any:
    return replace(share, header=replace(share.header, terms=replace(share.header.terms, round_number=OTHER_ROUND)))


def _of_another_holder(_: Any, play: Play) -> Any:
    return Delivery.decode(play.messages["delivery/1"]).shares[0]


def _signed_again(change: Callable[[Upload], Upload]) -> Edit:
    """Show the first holder an upload that differs from what the client signed."""

    def made(share: Any, play: Play) -> Any:
        good, agreement = Upload.decode(play.messages[f"upload/{FIRST}"]), play.agreement
        bad = change(good)
        tree = share_tree(agreement, bad.sealed)
        challenge = challenge_of(agreement, bad.header, vector_digest(bad.pieces), tree.root)
        digest = upload_digest(challenge, bad.polynomial)
        signature = agreement.sign(play.keys[f"client/{FIRST}"], Label.ONE_MESSAGE_SIGNED_UPLOAD, digest)
        path = tuple(tree.prove([0]))
        return replace(share, sealed=bad.sealed[0], polynomial=bad.polynomial, path=path, signature=signature)

    return _first_share(made)


def _not_sealed(good: Upload) -> Upload:
    return replace(good, sealed=(_flipped(good.sealed[0]), *good.sealed[1:]))


def _sealed_for_another(good: Upload) -> Upload:
    return replace(good, sealed=(good.sealed[1], good.sealed[0], *good.sealed[2:]))


def _off_polynomial(good: Upload) -> Upload:
    return replace(good, polynomial=_flipped(good.polynomial))


def _not_canonical(good: Upload) -> Upload:
    return replace(good, polynomial=b"\xff\xff" + good.polynomial[2:])


def _flipped(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def listed(change: Callable[[tuple[Listed, ...]], Sequence[Listed]]) -> Edit:
    """Change who is listed."""
    return remade(UploadList, lambda made, _: replace(made, listed=tuple(change(made.listed))))


def list_terms(**changes: Any) -> Edit:
    """Change what a list is for."""
    return remade(UploadList, lambda made, _: replace(made, terms=replace(made.terms, **changes)))


def _exchanged(entries: tuple[Listed, ...]) -> list[Listed]:
    first, second, *rest = entries
    return [replace(first, upload=second.upload), replace(second, upload=first.upload), *rest]


def certificate(change: Callable[[tuple[Any, ...]], Sequence[Any]]) -> Edit:
    """Change the signatures on a list."""
    return remade(CertifiedList, lambda made, _: replace(made, certificate=tuple(change(made.certificate))))


def _another_list(made: CertifiedList, _: Play) -> CertifiedList:
    other = UploadList.decode(made.upload_list)
    return replace(made, upload_list=replace(other, listed=other.listed[:-1]).encode())


def said(kind: Any, label: Label, **changes: Any) -> Edit:
    """Have the first holder sign something else."""
    return lambda message, play: resigned(
        replace(kind.decode(message), **changes), play.keys["holder/0"], play.agreement, label
    )


def _answered(change: Callable[[bytes], bytes]) -> Edit:
    """Have the first holder answer with other words."""

    def made(message: bytes, play: Play) -> bytes:
        answer = Answer.decode(message)
        altered = replace(answer, sums=change(answer.sums))
        return resigned(altered, play.keys["holder/0"], play.agreement, Label.ONE_MESSAGE_ANSWER)

    return made


def _shifted(sums: bytes) -> bytes:
    words = np.frombuffer(sums, "<u2").astype(np.int64)
    words[0] = (words[0] + 1) % 65521
    return words.astype("<u2").tobytes()


# --- The cases --------------------------------------------------------------------------------------------------------

UNBLAMED = ("below_floor", "parameter_out_of_range")
"""Reasons of refusals that are no misbehaviour."""
Cases = dict[str, tuple[Edit, str] | tuple[Edit, str, tuple[str, ...]]]


def _refused(takes: str, party: str, cases: Cases, blamed: tuple[str, ...] = (), **rest: Any) -> list[Negative]:
    """Return a case for each, which names its own culprits or those of all."""
    return [
        Negative(
            name=name,
            takes=takes,
            party=party,
            edit=case[0],
            expect=case[1],
            culprits=case[2] if len(case) > 2 else () if case[1] in UNBLAMED else blamed,
            **rest,
        )
        for name, case in cases.items()
    ]


OFFERS: Cases = {
    "offer_cut_short": (cut, "truncated"),
    "offer_with_a_byte_more": (append, "trailing_bytes"),
    "offer_of_another_version": (put(4, b"\2"), "wrong_version"),
    "offer_with_a_foreign_beginning": (put(0, b"HTTP"), "not_canonical"),
    "offer_of_another_kind": (another("list"), "wrong_kind"),
    "record_that_nobody_signed": (
        remade(Offer, lambda offer, _: replace(offer, record=offer.record[:-1] + _flipped(offer.record[-1:]))),
        "authentication_failed",
    ),
    "record_with_another_holder": (
        remade(Offer, lambda offer, _: replace(offer, record=offer.record[:-100] + _flipped(offer.record[-100:]))),
        "authentication_failed",
    ),
    "record_of_another_authority": (in_epoch("holder/0"), "below_floor"),
    "epoch_that_has_expired": (in_epoch(expiry=NOW), "below_floor"),
    "holders_keys_in_another_order": (keyed(lambda keys, _: keys[::-1]), "roster_invalid"),
    "a_holders_keys_left_out": (keyed(lambda keys, _: keys[:-1]), "roster_invalid"),
    "a_holders_keys_altered": (
        keyed(lambda keys, _: [keys[0][:-1] + _flipped(keys[0][-1:]), *keys[1:]]),
        "authentication_failed",
        ("holder/0", "server/0"),
    ),
    "two_holders_with_one_sealing_key": (keyed(_one_sealing_key), "public_key_reused"),
    "cohort_below_the_floor": (configured(minimum_cohort=2, corrupted_clients=0), "below_floor"),
    "corrupted_clients_below_the_floor": (configured(corrupted_clients=0), "below_floor"),
    "list_longer_than_the_floor": (planned(capacity=9, guard_bits=9, modulus_bits=29), "below_floor"),
    "fewer_guard_bits_than_the_noise": (numbered(3, 1, 1), "not_canonical"),
    "fewer_zeros_behind_the_values": (numbered(31, 1, 8), "not_canonical"),
    "degree_that_is_none": (numbered(0, 1000, 2), "not_canonical"),
    "threshold_that_the_authority_did_not_sign": (planned(threshold=5), "parameter_out_of_range"),
    "another_task": (configured(task=b"another task"), "below_floor"),
    "another_round": (termed(round_number=OTHER_ROUND), "below_floor"),
    "another_model": (termed(model_digest=bytes(32)), "below_floor"),
    "other_terms_of_the_application": (termed(application_digest=bytes(32)), "below_floor"),
    "weak_lattice": (planned(modulus_bits=70), "below_floor"),
    "standing_that_the_authority_did_not_sign": (judged_at(NOW, signer="holder/0"), "below_floor"),
    "standing_of_more_than_a_day_before": (judged_at(NOW - 24 * 3600 - 1), "below_floor"),
    "standing_of_the_future": (judged_at(NOW + 3601), "below_floor"),
    "standing_that_revokes_this_client": (judged_at(NOW - 1, 0), "below_floor"),
    "receipts_of_fewer_than_a_quorum": (receipts(lambda signed: signed[:3]), "quorum_not_met"),
    "receipts_out_of_order": (receipts(lambda signed: signed[::-1]), "quorum_not_met"),
    "receipt_of_one_holder_in_anothers_place": (
        receipts(lambda signed: (replace(signed[0], signature=signed[1].signature), *signed[1:])),
        "authentication_failed",
        ("holder/0", "server/0"),
    ),
    "receipts_for_keys_that_a_holder_had_before": (_with_other_keys, "authentication_failed", ("holder/0", "server/0")),
}
WAY = str(ServerId())
UPLOADS: Cases = {
    "upload_cut_short": (cut, "truncated"),
    "upload_with_a_byte_more": (append, "trailing_bytes"),
    "upload_of_another_kind": (another("list"), "wrong_kind"),
    "upload_for_another_configuration": (flip(HEADER), "wrong_session"),
    "upload_in_anothers_name": (header(client=ClientId(SECOND)), "not_eligible"),
    "upload_of_an_identity_that_nobody_certified": (flip(HEADER + 32 + 8 + 4 + 40), "authentication_failed"),
    "upload_with_anothers_identity": (remade(Upload, _of_another_client), "authentication_failed"),
    "upload_without_identity": (header(identity=b""), "authentication_failed"),
    "upload_for_another_round": (
        remade(Upload, lambda made, _: replace(made, header=_with_terms(made, round_number=OTHER_ROUND))),
        "wrong_session",
    ),
    "upload_from_another_model": (
        remade(Upload, lambda made, _: replace(made, header=_with_terms(made, model_digest=bytes(32)))),
        "wrong_session",
    ),
    "upload_with_another_nonce": (header(nonce=bytes(32)), "authentication_failed"),
    "upload_with_another_vector": (upload(lambda made: {"vector": _flipped(made.vector)}), "authentication_failed"),
    "upload_with_another_polynomial": (
        upload(lambda made: {"polynomial": _flipped(made.polynomial)}),
        "authentication_failed",
    ),
    "upload_with_another_share": (
        upload(lambda made: {"sealed": (_flipped(made.sealed[0]), *made.sealed[1:])}),
        "authentication_failed",
    ),
    "upload_with_two_shares_exchanged": (
        upload(lambda made: {"sealed": (made.sealed[1], made.sealed[0], *made.sealed[2:])}),
        "authentication_failed",
    ),
    "upload_without_a_share": (upload(lambda made: {"sealed": made.sealed[:-1]}), "layout_mismatch"),
    "upload_with_a_short_vector": (upload(lambda made: {"vector": made.vector[:-1]}), "layout_mismatch"),
    "upload_with_a_short_polynomial": (upload(lambda made: {"polynomial": made.polynomial[:-2]}), "layout_mismatch"),
    "upload_with_another_signature": (flip(-1), "authentication_failed"),
}
DELIVERIES: Cases = {
    "delivery_cut_short": (cut, "truncated"),
    "delivery_with_a_byte_more": (append, "trailing_bytes"),
    "delivery_under_another_t0": (flip(HEADER), "wrong_session", THE_SERVER),
    "share_with_another_signature": (delivered(signature=bytes(64)), "not_authentic"),
    "share_with_another_path": (_first_share(lambda share, _: replace(share, path=share.path[::-1])), "not_authentic"),
    "share_with_a_short_path": (_first_share(lambda share, _: replace(share, path=share.path[:-1])), "not_authentic"),
    "share_with_a_long_path": (
        _first_share(lambda share, _: replace(share, path=(*share.path, bytes(32)))),
        "not_authentic",
    ),
    "share_of_another_holder": (_first_share(_of_another_holder), "not_authentic"),
    "share_that_was_altered": (
        _first_share(lambda share, _: replace(share, sealed=_flipped(share.sealed))),
        "not_authentic",
    ),
    "share_for_another_round": (_first_share(_other_terms), "not_authentic"),
    "share_beside_another_vector": (delivered(vector_digest=bytes(32)), "not_authentic"),
    "share_beside_another_polynomial": (
        _first_share(lambda share, _: replace(share, polynomial=_flipped(share.polynomial))),
        "not_authentic",
    ),
    "share_that_its_client_did_not_seal": (_signed_again(_not_sealed), "does_not_open"),
    "share_that_was_sealed_for_another": (_signed_again(_sealed_for_another), "does_not_open"),
    "share_off_its_polynomial": (_signed_again(_off_polynomial), "off_polynomial"),
    "polynomial_that_is_not_canonical": (_signed_again(_not_canonical), "off_polynomial"),
}
LISTS: Cases = {
    "list_cut_short": (cut, "truncated"),
    "list_with_a_byte_more": (append, "trailing_bytes"),
    "list_under_another_t0": (flip(HEADER), "wrong_session", THE_SERVER),
    "list_below_the_cohort": (listed(lambda entries: entries[:2]), "survivors_invalid", THE_SERVER),
    "list_of_nobody": (listed(lambda _: ()), "survivors_invalid", THE_SERVER),
    "list_out_of_order": (listed(lambda entries: entries[::-1]), "not_canonical", THE_SERVER),
    "list_with_a_client_twice": (listed(lambda entries: (entries[0], *entries)), "not_canonical", THE_SERVER),
    "list_with_an_upload_that_was_not_accepted": (
        listed(lambda entries: (replace(entries[0], upload=bytes(32)), *entries[1:])),
        "survivors_invalid",
        THE_SERVER,
    ),
    "list_with_two_uploads_exchanged": (listed(_exchanged), "survivors_invalid", THE_SERVER),
    "list_for_another_round": (list_terms(round_number=OTHER_ROUND), "model_mismatch", THE_SERVER),
    "list_of_another_model": (list_terms(model_digest=bytes(32)), "model_mismatch", THE_SERVER),
    "list_for_another_application": (list_terms(application_digest=bytes(32)), "model_mismatch", THE_SERVER),
}
CERTIFICATES: Cases = {
    "certificate_that_is_too_short": (certificate(lambda signed: signed[:2]), "quorum_not_met", THE_SERVER),
    "certificate_out_of_order": (certificate(lambda signed: signed[::-1]), "quorum_not_met", THE_SERVER),
    "certificate_of_one_signer": (certificate(lambda signed: [signed[0]] * 4), "quorum_not_met", THE_SERVER),
    "certificate_of_a_stranger": (
        certificate(lambda signed: (*signed[:-1], replace(signed[-1], holder=9))),
        "quorum_not_met",
        THE_SERVER,
    ),
    "certificate_with_a_forged_signature": (
        certificate(lambda signed: (replace(signed[0], signature=bytes(64)), *signed[1:])),
        "authentication_failed",
        THE_SERVER,
    ),
    "certificate_with_two_signers_exchanged": (
        certificate(lambda signed: (replace(signed[0], signature=signed[1].signature), *signed[1:])),
        "authentication_failed",
        THE_SERVER,
    ),
    "certificate_of_another_list": (remade(CertifiedList, _another_list), "authentication_failed", THE_SERVER),
    "certified_list_cut_short": (cut, "truncated"),
}
HOLDER_0 = ("holder/0",)
HOLDER_OR_WAY = ("holder/0", WAY)
GREETINGS: Cases = {
    "offer_receipt_cut_short": (cut, "truncated"),
    "offer_receipt_with_another_signature": (flip(-1), "authentication_failed"),
    "offer_receipt_of_another_holder": (another("greeting/1"), "wrong_session"),
    "offer_receipt_for_other_terms": (
        said(OfferReceipt, Label.ONE_MESSAGE_OFFER_RECEIPT, terms=bytes(32)),
        "wrong_session",
    ),
}
RECEIPTS: Cases = {
    "receipt_cut_short": (cut, "truncated"),
    "receipt_with_another_signature": (flip(-1), "authentication_failed"),
    "receipt_of_another_holder": (another("receipt/1"), "wrong_session"),
    "receipt_for_no_delivery": (said(Receipt, Label.ONE_MESSAGE_RECEIPT, judged=()), "wrong_session"),
    "receipt_with_an_unknown_verdict": (flip(-69, 8), "not_canonical"),
    "receipt_with_another_verdict": (flip(-69, 1), "authentication_failed"),
}
SIGNATURES: Cases = {
    "list_signature_with_another_signature": (flip(-1), "authentication_failed"),
    "list_signature_of_another_holder": (another("signature/1"), "wrong_session"),
    "list_signature_on_another_list": (
        said(ListSignature, Label.ONE_MESSAGE_SIGNED_LIST, upload_list=bytes(32)),
        "wrong_session",
    ),
}
ANSWERS: Cases = {
    "answer_cut_short": (cut, "truncated"),
    "answer_with_another_signature": (flip(-1), "authentication_failed"),
    "answer_of_another_holder": (another("answer/1"), "wrong_session"),
    "answer_for_another_list": (said(Answer, Label.ONE_MESSAGE_ANSWER, upload_list=bytes(32)), "wrong_session"),
    "answer_with_too_few_words": (_answered(lambda sums: sums[:-2]), "truncated", HOLDER_0),
    "answer_with_too_many_words": (_answered(lambda sums: sums + bytes(2)), "trailing_bytes", HOLDER_0),
    "answer_with_a_word_beyond_the_field": (
        _answered(lambda sums: b"\xff\xff" + sums[2:]),
        "share_out_of_range",
        HOLDER_0,
    ),
}
SECOND_LIST: Cases = {"second_list_of_an_upload": (listed(lambda entries: entries[1:]), "already_spent", THE_SERVER)}
NEGATIVES = (
    *_refused("offer", f"client/{FIRST}", OFFERS, THE_SERVER),
    *_refused(f"upload/{FIRST}", SERVER, UPLOADS, (f"client/{FIRST}", WAY)),
    *_refused(
        f"upload/{FIRST}",
        SERVER,
        {"upload_that_another_client_sends": (same, "not_eligible", (f"client/{SECOND}", WAY))},
        sender=f"upload/{SECOND}",
    ),
    *_refused(
        "proposal", "holder/0", {"holder_is_offered_a_weaker_cohort": OFFERS["corrupted_clients_below_the_floor"]}
    ),
    *_refused("record", "holder/0", {"holder_is_asked_about_another_record": (flip(-1), "wrong_kind", THE_SERVER)}),
    *_refused("delivery/0", "holder/0", DELIVERIES, THE_SERVER),
    *_refused("list", "holder/0", LISTS, THE_SERVER),
    *_refused("list", "holder/0", SECOND_LIST, after=1),
    *_refused("certified_list", "holder/0", CERTIFICATES, THE_SERVER),
    *_refused("greeting/0", SERVER, GREETINGS, HOLDER_OR_WAY),
    *_refused("receipt/0", SERVER, RECEIPTS, HOLDER_OR_WAY),
    *_refused("signature/0", SERVER, SIGNATURES, HOLDER_OR_WAY),
    *_refused("answer/0", SERVER, ANSWERS, HOLDER_OR_WAY),
    *_refused("answer/0", SERVER, {"answer_of_other_shares": (_answered(_shifted), "ok", ())}, fails="open"),
)
