"""Required refusals: one change to a valid session each, with the expected reason and culprits.

The expectations are written by hand, from ``protocols/pairwise_mask/README.md`` and the attributions in ``Reason``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Vector = dict[str, Any]
Messages = Mapping[str, str]
Edit = Callable[[bytes, Messages], tuple[int, int, bytes]]
"""From a message and all messages: the position, the number of removed bytes, and their replacement."""
SERVER = "server/0"


@dataclass(frozen=True, kw_only=True)
class Negative:
    """A valid session with one change."""

    name: str
    base: str
    message: str
    """The message that is changed, omitted, or repeated."""
    edit: Edit | None = None
    does: str = "alter"
    sender: str = ""
    expect: str
    culprits: tuple[str, ...] = ()
    fails: str = ""
    """Server's operation that detects the change: "unmask" or "close_round"; by default it is detected at once."""
    complaints: tuple[tuple[str, tuple[str, ...]], ...] = ()
    faults: tuple[tuple[str, tuple[str, ...]], ...] = field(default=())


# --- Edits ------------------------------------------------------------------------------------------------------------


def flip(at: int, bits: int = 1) -> Edit:
    """Change bits of one byte; a negative place counts from the end."""
    return lambda message, _: (at % len(message), 1, bytes([message[at] ^ bits]))


def put(at: int, data: bytes) -> Edit:
    """Overwrite bytes."""
    return lambda _, __: (at, len(data), data)


def put_number(at: int, value: int, size: int = 4) -> Edit:
    """Write another integer."""
    return put(at, value.to_bytes(size, "big"))


def copy(at: int, length: int, source: str, start: int) -> Edit:
    """Write bytes from elsewhere in the session."""
    return lambda _, messages: (at, length, bytes.fromhex(messages[source])[start : start + length])


def splice(at: int, removed: int, inserted: bytes) -> Edit:
    """Replace bytes by others."""
    return lambda _, __: (at, removed, inserted)


def cut_last(message: bytes, _: Messages) -> tuple[int, int, bytes]:
    """Omit the last byte."""
    return len(message) - 1, 1, b""


def append(message: bytes, _: Messages) -> tuple[int, int, bytes]:
    """Add a byte at the end."""
    return len(message), 0, b"\0"


# --- The cases --------------------------------------------------------------------------------------------------------


Cases = Mapping[str, tuple[Edit, str] | tuple[Edit, str, str]]
"""By name: the change, the reason, and another client to blame."""


def _refused(base: str, message: str, cases: Cases, blamed: tuple[str, ...] = (SERVER,)) -> list[Negative]:
    """Let the receiver of a message refuse it."""
    return [
        Negative(name=name, base=base, message=message, edit=case[0], expect=case[1], culprits=(*case[2:], *blamed))
        for name, case in cases.items()
    ]


def _server_refuses(base: str, kind: str, cases: Cases) -> list[Negative]:
    """Let the server refuse a message in client 2's name: it or the network is to blame, or also another client."""
    return _refused(base, f"client/2/{kind}", cases, ("client/2", SERVER))


PLAIN, SIGNED, WIDE = "semi_honest_full", "active_full", "semi_honest_full_wide_ids"
SPARSE, HYBRID = "semi_honest_sparse_dropouts_everywhere", "hybrid_semi_honest_sparse"
LEFT = "active_full_one_dropout_after_sharing"
NEGATIVES: tuple[Negative, ...] = (
    # Round 0, the server takes an advertisement: T0 at 7, id at 15, channel key at 23, mask key at 55, commitment at
    # 87, identity key at 119, certificate at 151, signature at 223.
    *_server_refuses(
        PLAIN,
        "key_advertisement",
        {
            "low_order_mask_key": (put(55, bytes(32)), "public_key_low_order"),
            "non_canonical_channel_key": (flip(54, 0x80), "public_key_not_canonical"),
            "truncated_advertisement": (cut_last, "truncated"),
            "trailing_byte_after_advertisement": (append, "trailing_bytes"),
            "wrong_version": (put(4, b"\x02"), "wrong_version"),
            "foreign_magic": (put(0, b"s"), "not_canonical"),
            "unknown_kind": (put_number(5, 0xFFFF, 2), "not_canonical"),
            "wrong_kind_to_the_server": (put_number(5, 19, 2), "wrong_kind"),
            "advertisement_for_another_attempt": (flip(7), "wrong_session"),
            "advertisement_in_anothers_name": (put_number(15, 3, 8), "not_eligible"),
            "duplicate_key": (copy(55, 32, "client/1/key_advertisement", 55), "public_key_reused", "client/1"),
            "one_key_in_two_roles": (copy(55, 32, "client/2/key_advertisement", 23), "public_key_reused"),
        },
    ),
    *_server_refuses(
        SIGNED,
        "key_advertisement",
        {
            "bad_certificate": (flip(151), "authentication_failed"),
            "bad_signature_on_advertisement": (flip(223), "authentication_failed"),
            "altered_commitment_under_signature": (flip(87), "authentication_failed"),
        },
    ),
    *_server_refuses(
        HYBRID,
        "key_advertisement",
        {
            "non_canonical_mlkem_key": (put(23, b"\xff\xff\xff"), "public_key_not_canonical"),
            "low_order_half_of_hybrid_key": (put(23 + 1184, bytes(32)), "public_key_low_order"),
        },
    ),
    Negative(
        name="second_advertisement",
        base=PLAIN,
        message="client/2/key_advertisement",
        does="repeat",
        edit=flip(87),
        expect="already_answered",
        culprits=("client/2", SERVER),
    ),
    # Round 1, the server takes encrypted shares: ctx at 7, then a signature (active) and the entries.
    *_server_refuses(
        PLAIN,
        "encrypted_shares",
        {"shares_for_another_session": (flip(7), "wrong_session"), "truncated_shares": (cut_last, "truncated")},
    ),
    *_server_refuses(
        SIGNED,
        "encrypted_shares",
        {
            "bad_signature_on_shares": (flip(15), "authentication_failed"),
            "altered_share_under_signature": (flip(79), "authentication_failed"),
        },
    ),
    # Round 2, the server takes an upload: ctx at 7, a signature (active), then segments of 1, 7, 20, 33 and 64 bits.
    *_server_refuses(
        PLAIN,
        "masked_input",
        {
            "upload_for_another_session": (flip(7), "wrong_session"),
            "truncated_upload": (cut_last, "truncated"),
            "trailing_byte_after_upload": (append, "trailing_bytes"),
            "upload_with_fill_bits_set": (flip(24, 0x80), "not_canonical"),
        },
    ),
    *_server_refuses(SIGNED, "masked_input", {"bad_signature_on_view": (flip(15), "authentication_failed")}),
    Negative(
        name="altered_upload",
        base=PLAIN,
        message="client/2/masked_input",
        edit=flip(16),
        expect="check_words_mismatch",
        fails="unmask",
    ),
    # Round 3, the server takes a signature on the survivors: ctx at 7, signature at 15.
    *_server_refuses(
        SIGNED,
        "survivor_signature",
        {
            "bad_signature_on_survivors": (flip(15), "authentication_failed"),
            "survivor_signature_for_another_session": (flip(7), "wrong_session"),
        },
    ),
    # Round 4, the server takes shares: ctx at 7, a byte for what is held at 15, the first share at 16.
    *_server_refuses(
        PLAIN,
        "unmasking_shares",
        {
            "share_out_of_range": (put(16, b"\xff" * 32), "share_out_of_range"),
            "answer_for_another_session": (flip(7), "wrong_session"),
            "truncated_answer": (cut_last, "truncated"),
        },
    ),
    Negative(
        name="wrong_share",
        base=PLAIN,
        message="client/2/unmasking_shares",
        edit=flip(47),
        expect="commitment_mismatch",
        fails="unmask",
    ),
    *_server_refuses(
        SIGNED,
        "unmasking_shares",
        {
            "bad_signature_on_answer": (flip(15), "authentication_failed"),
            "altered_answer_under_signature": (flip(47 + 64), "authentication_failed"),
        },
    ),
    Negative(
        name="wrong_share_corrected",
        base=WIDE,
        message="client/0/unmasking_shares",
        edit=flip(16 + 32 + 31),
        expect="ok",
        faults=(("commitment_mismatch", ("client/0", "client/130", SERVER)),),
        fails="unmask",
    ),
    # Round 0, a client takes the offer: format at 7; mode, suite, topology at 74, degree at 77, threshold at 81,
    # committee at 85, quorum at 89, minimum cohort at 93, maximum population at 97, layout at 101.
    *_refused(
        PLAIN,
        "client/2/offer",
        {
            "minimum_cohort_below_the_floor": (put_number(93, 2), "below_floor"),
            "population_above_the_floor": (put_number(97, 5), "below_floor"),
            "layout_of_another_input": (put_number(123, 8), "below_floor"),
        },
        blamed=(),
    ),
    *_refused(SIGNED, "client/2/offer", {"another_authority": (flip(246), "parameter_out_of_range")}, blamed=()),
    *_refused(
        PLAIN,
        "client/2/offer",
        {
            "threshold_of_one": (put_number(81, 1), "not_canonical"),
            "unknown_suite": (put_number(75, 2, 1), "not_canonical"),
            "offer_in_another_format": (flip(7), "wrong_version"),
            "truncated_offer": (cut_last, "truncated"),
        },
    ),
    # Round 1, a client takes the roster: T0 at 7, the list's length at 15 and its bytes 01 00 00 00 at 19, root at 23,
    # opening at 55, the number of entries at 87, entries from 91 on.
    *_refused(
        PLAIN,
        "client/2/advertised_keys",
        {
            "roster_of_another_attempt": (flip(7), "wrong_session"),
            "second_encoding_of_the_roster": (splice(15, 5, b"\x00\x00\x00\x05\x81\x00"), "roster_invalid"),
            "roster_without_its_receiver": (put(20, b"\x01"), "roster_invalid"),
            "another_root": (flip(23), "roster_invalid"),
            "another_opening": (flip(55), "roster_invalid"),
            "altered_key_of_a_neighbour": (flip(91), "roster_invalid"),
            "truncated_roster": (cut_last, "truncated"),
        },
    ),
    *_refused(
        PLAIN,
        "client/2/advertised_keys",
        {"cohort_too_small": (splice(15, 8, b"\x00\x00\x00\x02\x01\x00"), "threshold_not_met")},
        blamed=(),
    ),
    # A list of the first two of seven, and one of the first four, where each has four neighbours.
    *_refused(
        SPARSE,
        "client/30/advertised_keys",
        {"cohort_too_small_for_a_sparse_graph": (splice(15, 11, b"\x00\x00\x00\x02\x14\x09"), "threshold_not_met")},
        blamed=(),
    ),
    *_refused(
        SPARSE,
        "client/30/advertised_keys",
        {"no_more_advertisers_than_neighbours": (splice(15, 11, b"\x00\x00\x00\x04\x14\x09\x09\x09"), "below_floor")},
    ),
    *_refused(SPARSE, "client/30/advertised_keys", {"altered_proof": (flip(-1), "roster_invalid")}),
    # Round 2, a client takes its neighbours' shares: ctx at 7, the sharers at 15, the first entry at 16; in active mode
    # this is 112 bytes long, its signature follows at 128, the length of the path at 192, the path at 193.
    *_refused(
        PLAIN,
        "client/2/delivered_shares",
        {
            "delivery_for_another_session": (flip(7), "wrong_session"),
            "sharers_without_the_receiver": (flip(15, 0x02), "survivors_invalid"),
            "sharers_beyond_the_population": (flip(15, 0x10), "not_canonical"),
            "wrong_kind_to_a_client": (put_number(5, 24, 2), "wrong_kind"),
            "wrong_version_to_a_client": (put(4, b"\x02"), "wrong_version"),
        },
    ),
    Negative(
        name="tampered_share",
        base=PLAIN,
        message="client/2/delivered_shares",
        edit=flip(16),
        expect="ok",
        complaints=(("authentication_failed", ("client/1", SERVER)),),
    ),
    *_refused(
        SIGNED,
        "client/2/delivered_shares",
        {
            "tampered_share_under_signature": (flip(16), "authentication_failed", "client/1"),
            "tampered_commitment_under_signature": (flip(96), "authentication_failed", "client/1"),
        },
    ),
    # In the hybrid suite nothing but the signature says whose an entry is: signature at 2448, the number of nodes at
    # 2512, nodes from 2513 on. In the classic suite nobody looks at it where the pair opens and fits.
    *_refused(
        "hybrid_active_full",
        "client/2/delivered_shares",
        {
            "bad_signature_on_delivery": (flip(2448), "authentication_failed", "client/1"),
            "bad_path_of_delivery": (flip(2513), "authentication_failed", "client/1"),
            "path_too_short": (splice(2512, 33, b"\x02"), "authentication_failed", "client/1"),
        },
    ),
    # In the hybrid suite client 5 sends client 1 the seed of their edge: 1200 bytes for the shares from 2416 on, then a
    # commitment, then the seed, sealed. A client that cannot use it complains in place of uploading.
    Negative(
        name="tampered_seed_of_an_edge",
        base=HYBRID,
        message="client/1/delivered_shares",
        edit=flip(3648),
        expect="ok",
        complaints=(("authentication_failed", ("client/5", SERVER)),),
    ),
    Negative(
        name="another_commitment_to_the_seed_of_an_edge",
        base=HYBRID,
        message="client/1/delivered_shares",
        edit=flip(3616),
        expect="ok",
        complaints=(("commitment_mismatch", ("client/5", SERVER)),),
    ),
    # Round 3, a member takes the survivors: ctx at 7, sharers at 15, contributors at 16.
    *_refused(
        SIGNED,
        "client/2/survivor_set",
        {
            "survivors_of_another_session": (flip(7), "wrong_session"),
            "survivors_without_the_receiver": (flip(16, 0x02), "survivors_invalid"),
            "other_sharers_than_before": (flip(15, 0x08), "survivors_invalid"),
        },
    ),
    *_refused(
        "active_sparse_one_dropout_before_unmasking",
        "client/2/survivor_set",
        {"contributor_that_did_not_share": (flip(17, 0x08), "survivors_invalid")},
    ),
    # Round 4, a client takes the request: ctx at 7, contributors at 15, the number of endorsements at 16, endorsements
    # of 172 bytes from 20 on (position, identity key, certificate, signature), the number of views at 536, views of 96
    # bytes: digest, signature.
    *_refused(
        SIGNED,
        "client/2/unmasking_request",
        {
            "request_of_another_session": (flip(7), "wrong_session"),
            "request_without_the_receiver": (flip(15, 0x02), "survivors_invalid"),
            "request_for_another_set_than_signed": (flip(15, 0x08), "survivors_invalid"),
            "one_endorsement_twice": (put_number(20 + 172, 0), "quorum_not_met"),
            "too_few_endorsements": (splice(16, 4 + 172, b"\x00\x00\x00\x02"), "quorum_not_met"),
            "bad_endorsement": (flip(128), "authentication_failed"),
            "bad_view": (flip(540 + 32), "authentication_failed", "client/1"),
            "view_left_out": (splice(536, 4 + 96, b"\x00\x00\x00\x02"), "quorum_not_met"),
        },
    ),
    *_refused(
        PLAIN,
        "client/2/unmasking_request",
        {
            "views_in_semi_honest_mode": (splice(20, 4, b"\x00\x00\x00\x01" + bytes(96)), "trailing_bytes"),
            "contributors_without_the_receiver": (flip(15, 0x02), "survivors_invalid"),
        },
    ),
    *_refused(
        PLAIN,
        "client/2/unmasking_request",
        {"too_few_contributing_neighbours": (flip(15, 0x08), "threshold_not_met")},
        blamed=(),
    ),
    *_refused(
        WIDE, "client/1/unmasking_request", {"too_few_contributors": (put(15, b"\x1f"), "threshold_not_met")}, blamed=()
    ),
    # Positions 0, 6 and 7 are joined, and 5 has no neighbour left.
    *_refused(
        "active_sparse_committee",
        "client/10/survivor_set",
        {"contributors_cut_apart": (put(16, b"\xe1"), "threshold_not_met")},
        blamed=(),
    ),
    Negative(
        name="second_unmasking_request",
        base=PLAIN,
        message="client/2/unmasking_request",
        does="repeat",
        edit=flip(15, 0x08),
        expect="already_answered",
        culprits=(SERVER,),
    ),
    # A message from another client, and one that never arrives.
    *(
        Negative(
            name=name,
            base=base,
            message=message,
            does="send as",
            sender=sender,
            expect="not_eligible",
            culprits=(sender, SERVER),
        )
        for name, base, message, sender in (
            ("shares_of_a_stranger", PLAIN, "client/2/encrypted_shares", "client/99"),
            ("upload_of_a_client_that_did_not_share", SPARSE, "client/50/masked_input", "client/60"),
            ("signature_of_a_client_that_did_not_contribute", LEFT, "client/2/survivor_signature", "client/3"),
        )
    ),
    *(
        Negative(name=name, base=base, message=message, does="omit", expect="threshold_not_met", fails=fails)
        for name, base, message, fails in (
            ("too_few_signatures", "active_sparse_committee", "client/50/survivor_signature", "close_round"),
            ("too_few_answers", PLAIN, "client/2/unmasking_shares", "unmask"),
        )
    ),
)


# --- Vectors ----------------------------------------------------------------------------------------------------------


def negative(case: Negative, base: Vector) -> Vector:
    """Return the change, and the operations from the base's first one to the failing one."""
    messages: Messages = base["messages"]
    operations: list[Vector] = base["operations"]
    receiver, _, shown = case.message.rpartition("/")
    name = "offer" if shown == "offer" else case.message
    is_taken_by_server = shown in _SENT_BY_CLIENTS
    role = "server" if is_taken_by_server else receiver
    index = next(place for place, each in enumerate(operations) if each["role"] == role and each.get("message") == name)
    outcome: Vector = {"expect": case.expect, "culprits": list(case.culprits)}
    change: Vector = {"does": case.does, "role": role, "message": name}
    changed = {key: value for key, value in operations[index].items() if key not in {"sends", "expect"}}
    if case.edit is not None:
        whole = bytes.fromhex(messages[name])
        at, removed, inserted = case.edit(whole, messages)
        change |= {"at": at, "removes": whole[at : at + removed].hex(), "inserts": inserted.hex()}
        changed["message"] = (whole[:at] + inserted + whole[at + removed :]).hex()
    if case.sender:
        change["from"] = changed["from"] = case.sender
    steps: list[Vector] = [{"base": [0, index + (case.does == "repeat")]}]
    if not case.fails:
        if case.expect == "ok":
            outcome = {"expect": "ok"}
        if case.complaints:
            outcome["complaints"] = _errors(case.complaints)
        return {"base": case.base, "change": change, "operations": [*steps, changed | outcome]}
    fails = next(place for place in range(index, len(operations)) if operations[place]["do"] == case.fails)
    if case.does == "omit":
        # The client does not send the message that the server lacks.
        steps = [{"base": [0, index - 1]}]
    else:
        steps.append(changed | {"expect": "ok"})
    steps.append({"base": [index + 1, fails]})
    last = {key: value for key, value in operations[fails].items() if key not in {"sends", "expect"}}
    if case.expect == "ok":
        outcome = {"expect": "ok", "faults": _errors(case.faults)}
    return {"base": case.base, "change": change, "operations": [*steps, last | outcome]}


_SENT_BY_CLIENTS = {"key_advertisement", "encrypted_shares", "masked_input", "survivor_signature", "unmasking_shares"}


def _errors(written: tuple[tuple[str, tuple[str, ...]], ...]) -> list[Vector]:
    return [{"reason": reason, "culprits": list(culprits)} for reason, culprits in written]
