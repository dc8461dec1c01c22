"""Refusals of the interop suite: damage by rule, offers without a valid configuration, and negative vectors.

No expectation here comes from the library.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from secagg.crypto.labels import Label
from secagg.crypto.merkle import MerkleTree

from .interop_parts import HEADER, hashed, pairwise_parts

Vector = dict[str, Any]
DAMAGED: Final = ("semi_honest_full", "active_full")
"""Sessions in which every message of one client is damaged in every way."""
OFFER_IS_REFUSED: Final = {"below_floor", "parameter_out_of_range"}
VERDICTS: Final = {"not_authentic", "does_not_open", "off_polynomial"}
SENT_BY_CLIENTS: Final = {
    *("key_advertisement", "encrypted_shares", "masked_input", "survivor_signature", "unmasking_shares")
}


def damages(message: bytes, *, is_offer: bool, by_server: bool) -> Iterator[tuple[str, int, int, bytes, str, str]]:
    """Damage a message in every way: name, place, number of removed bytes, inserted bytes, reason, consequence."""
    tag = ("another form", "wrong_version") if is_offer else ("another tag", "wrong_session")
    size = len(message)
    yield "foreign beginning", 0, 1, b"s", "not_canonical", "continues"
    yield "another version", 4, 1, b"\2", "wrong_version", "continues"
    yield "unknown kind", 5, 2, b"\xff\xff", "not_canonical", "continues"
    yield "kind that is not due", 5, 2, (16 if by_server else 17).to_bytes(2, "big"), "wrong_kind", "continues"
    yield tag[0], HEADER, 1, bytes([message[HEADER] ^ 1]), tag[1], "ends"
    yield "cut short", size - 1, 1, b"", "truncated", "ends"
    yield "cut to half", size // 2, size - size // 2, b"", "truncated", "ends"
    yield "byte more", size, 0, b"\0", "trailing_bytes", "ends"


def damaged(name: str, vector: Vector) -> Iterator[Vector]:
    """Damage every message from and to the second client."""
    client, mode = list(vector["inputs"])[1], "active" if vector["identities"] else "semi-honest"
    for before, step in enumerate(vector["operations"]):
        by_server = step["role"] == "server"
        if step["do"] != "receive" or step.get("from" if by_server else "role") != client:
            continue
        message, shown = bytes.fromhex(vector["messages"][step["message"]]), step["message"].rpartition("/")[2]
        for how, at, removed, put, reason, then in damages(message, is_offer=shown == "offer", by_server=by_server):
            yield {
                "name": f"{shown.replace('_', ' ')}: {how} ({mode})",
                "session": f"pairwise/{name}",
                "taker": step["role"],
                "before": before,
                "takes": step["message"],
                **({"sender": client} if by_server else {}),
                "change": {"at": at, "removes": message[at : at + removed].hex(), "inserts": put.hex()},
                "reason": reason,
                "then": "continues" if by_server else then,
            }


OFFERS: Final[Mapping[str, Mapping[str, Sequence[int]]]] = {
    "semi_honest_full": {
        "mode": (2, 1),
        "topology": (2, 1),
        "degree": (2,),
        "threshold": (4,),
        "committee size": (2,),
        "quorum": (1,),
        "minimum cohort": (1, 5),
        "maximum population": (1, 70000),
        "kind of segment": (0, 9),
        "modulus bits": (0, 65),
        "length": (0,),
        "check words": (7, 65),
        "authority": (1,),
    },
    "active_full": {"quorum": (0, 5), "committee size": (5,), "authority": (0,)},
    "active_sparse_committee": {"degree": (0, 3, 8), "quorum": (5,)},
}
"""Numbers that make an offer's configuration invalid."""
ANOTHER: Final = ("task", "model digest", "round", "application digest")


def offers(name: str, parts: Sequence[Sequence[str]]) -> Iterator[Vector]:
    """Change one number of an offer, so that its configuration is invalid, or its subject differs."""
    at, numbers = 0, OFFERS[name]
    client = {"active_sparse_committee": "client/20"}.get(name, "client/2")
    seen = set[str]()
    for part, old in parts:
        size = len(old) // 2
        made = [(str(value), value.to_bytes(size, "big"), "not_canonical", "ends") for value in numbers.get(part, ())]
        if name == "active_full" and part in ANOTHER:
            made.append(("another", bytes(size - 1) + b"\x7e", "below_floor", "continues"))
        for shown, value, reason, then in made if part not in seen else ():
            yield {
                "name": f"offer: {part} is {shown} ({name.replace('_', ' ')})",
                "session": f"pairwise/{name}",
                "taker": client,
                "before": 1,
                "takes": "offer",
                "change": {"at": at, "removes": old, "inserts": value.hex()},
                "reason": reason,
                "then": then,
            }
        seen.add(part)
        at += size


def weak_rosters(vector: Vector) -> Iterator[Vector]:
    """Send client 2 consistent rosters in which the keys of client 1 are refused."""
    sent = {name: bytes.fromhex(message) for name, message in vector["messages"].items()}
    # An advertisement has its keys at 23 and 55, a roster of a full graph its root at 23 and its first entry at 91.
    entries = [sent[f"client/{client}/key_advertisement"][23:87] for client in range(1, 5)]
    roster, first = sent["client/2/advertised_keys"], entries[0]
    second_form = (9 + 2**255 - 19).to_bytes(32, "little")
    for name, entry, reason in (
        ("a channel key of low order", bytes(32) + first[32:], "public_key_low_order"),
        ("a mask key of low order", first[:32] + b"\1" + bytes(31), "public_key_low_order"),
        ("a channel key in a second form", second_form + first[32:], "public_key_not_canonical"),
        ("a mask key with its top bit", first[:63] + bytes([first[63] | 0x80]), "public_key_not_canonical"),
        ("the mask key of another neighbour", first[:32] + entries[2][32:], "public_key_reused"),
        ("the mask key of its reader", first[:32] + entries[1][32:], "public_key_reused"),
        ("one key in two roles", first[:32] * 2, "public_key_reused"),
    ):
        leaves = [hashed(Label.ROSTER_ENTRY, at.to_bytes(8, "big"), e) for at, e in enumerate([entry, *entries[1:]], 1)]
        yield {
            "name": f"advertised keys: a neighbour has {name}",
            "session": "pairwise/semi_honest_full",
            "taker": "client/2",
            "before": next(at for at, step in enumerate(vector["operations"]) if step.get("round") == 1),
            "takes": "client/2/advertised_keys",
            "change": {
                "at": 23,
                "removes": roster[23 : 91 + 64].hex(),
                "inserts": (MerkleTree(leaves).root + roster[55:91] + entry).hex(),
            },
            "reason": reason,
            "then": "ends",
        }


def changed(name: str, vector: Vector, base: Vector) -> Vector:
    """Write a negative vector of pairwise masks as a refusal of the interop suite."""
    change, last = vector["change"], vector["operations"][-1]
    shown = change["message"].rpartition("/")[2]
    steps = base["operations"]
    taken = next(
        at for at, one in enumerate(steps) if (one["role"], one.get("message")) == (change["role"], change["message"])
    )
    made: Vector = {"name": name.replace("_", " "), "session": f"pairwise/{vector['base']}", "taker": last["role"]}
    made |= {"before": taken + (change["does"] == "repeat") - (change["does"] == "omit")}
    if change["does"] != "omit":
        made["takes"] = change["message"]
    if shown in SENT_BY_CLIENTS:
        made["sender"] = change.get("from", change["message"].rpartition("/")[0])
    if "removes" in change:
        made["change"] = {part: change[part] for part in ("at", "removes", "inserts")}
    if last["do"] != "receive":
        fails = next(at for at in range(taken, len(steps)) if steps[at]["do"] == last["do"])
        return made | {"resumes": taken + 1, "shows": fails, "reason": last["expect"], "then": "ends"}
    is_unread = change.get("at", HEADER) < HEADER
    is_offer = shown == "offer" and last["expect"] in OFFER_IS_REFUSED
    is_harmless = is_unread or is_offer or last["expect"] == "wrong_kind"
    then = "continues" if change["role"] == "server" or is_harmless else "ends"
    return made | {"reason": last["expect"], "then": then}


def refused_in_pairwise(sessions: Mapping[str, Vector], bases: Sequence[str]) -> list[Vector]:
    """Return the refusals in some sessions of pairwise masks."""
    found = [case for name in DAMAGED for case in damaged(name, sessions[name])]
    for name in OFFERS:
        found += offers(name, pairwise_parts("offer", bytes.fromhex(sessions[name]["messages"]["offer"]), {}))
    found += weak_rosters(sessions["semi_honest_full"])
    seen = set(map(_place, found))
    for name, vector in sessions.items():
        if vector.get("base") in bases and vector["operations"][-1]["expect"] != "ok":
            case = changed(name, vector, sessions[vector["base"]])
            if _place(case) not in seen:
                found.append(case)
    return found


def _place(case: Vector) -> str:
    return json.dumps([case["session"], case.get("takes"), case.get("change")])


def weak_holders(vector: Vector) -> Iterator[Vector]:
    """Offer a sum in which the sealing key of the last holder is refused."""
    offer, keys = (bytes.fromhex(vector["messages"][name]) for name in ("offer", "keys/2"))
    at = offer.index(keys) + HEADER + 32 + 2 + 4
    for name, key, reason in (
        ("is of low order", bytes(32), "public_key_low_order"),
        ("has a second form", (9 + 2**255 - 19).to_bytes(32, "little"), "public_key_not_canonical"),
    ):
        yield {
            "name": f"sealing key of a holder {name}",
            "session": "one_message/semi_honest",
            "taker": "client/2",
            "before": next(at for at, step in enumerate(vector["operations"]) if step["party"] == "client/2"),
            "takes": "offer",
            "change": {"at": at, "removes": offer[at : at + 32].hex(), "inserts": key.hex()},
            "reason": reason,
            "then": "continues",
        }


def refused_in_one_message(
    sums: Mapping[str, Vector], negative: Mapping[str, Vector], bases: Sequence[str]
) -> list[Vector]:
    """Return the refusals in some sums of one message."""
    found = list(weak_holders(sums["semi_honest"]))
    for name, vector in negative.items():
        if vector["base"] not in bases or vector["expect"] == "ok":
            continue
        case = {"name": name.replace("_", " "), "session": f"one_message/{vector['base']}", "taker": vector["party"]}
        case |= {"before": vector["at"], "takes": vector["takes"]}
        if "upload" in vector["takes"]:
            case["sender"] = str(vector.get("from", vector["takes"])).replace("upload", "client")
        then = "receipt" if vector["expect"] in VERDICTS else "continues"
        found.append(case | {"change": vector["change"], "reason": vector["expect"], "then": then})
    return found
