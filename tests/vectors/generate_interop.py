"""Make the interop suite: ``python -m tests.vectors.generate_interop`` writes ``interop/FORM/``, for other programs.

The library computes small cases from bytes derived from their names. Sessions and most refusals are those of
``pairwise_mask/`` and ``one_message/`` here, with their messages split into parts. Nothing is random.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from secagg.choices import Topology
from secagg.cli.shared import plan_of
from secagg.contract import Layout, RingSegment
from secagg.crypto import mask_expansion
from secagg.crypto.check_words import check_words
from secagg.crypto.key_agreement import X25519KeyPair
from secagg.crypto.labels import Label, bind
from secagg.crypto.merkle import MerkleTree
from secagg.crypto.public_keys import KeyRole
from secagg.crypto.ring import Ring
from secagg.crypto.shamir import split_many
from secagg.identifiers import AttemptContext, ClientId, SessionContext
from secagg.protocols.pairwise_mask.configuration import ClientSet, encode_clients
from secagg.protocols.pairwise_mask.graph import Graph
from secagg.session.signing_keys import issue_certificate
from secagg.transport.description import SessionDescription, terms_digest
from secagg.transport.proof import header_of
from secagg.wire import FORM, MessageKind, Writer
from tests.harness.recorded_coins import InsecureRecordedCoins

from . import generate, generate_one_message
from .interop_parts import digits, expanded, hashed, hexes, secret, signing
from .interop_refusals import refused_in_one_message, refused_in_pairwise
from .interop_sessions import one_message, pairwise

Vector = dict[str, Any]
Files = Iterator[tuple[str, Vector]]
FOLDER: Final = Path(__file__).resolve().parents[2] / "interop" / str(FORM)
PREFIX: Final = len("secagg/1/")
PAIRWISE: Final = (
    "semi_honest_full",
    "semi_honest_full_wide_ids",
    "semi_honest_sparse_dropouts_everywhere",
    "active_full",
    "active_full_one_dropout_after_sharing",
    "active_sparse_committee",
    "active_sparse_one_dropout_before_unmasking",
)
ONE_MESSAGE: Final = ("semi_honest", "active")
WIDTHS: Final = (1, 7, 8, 13, 16, 20, 31, 32, 33, 64)


def drawn(*parts: object, size: int = 32) -> bytes:
    """Return bytes derived from their purpose."""
    return hashlib.shake_256("/".join(("kit/1", *map(str, parts))).encode()).digest(size)


def cases(about: str, made: Sequence[Vector]) -> Vector:
    """Return a file of small cases."""
    return {"about": about, "cases": list(made)}


# --- Framing ----------------------------------------------------------------------------------------------------------


def framing() -> Files:
    """Make labels, bound strings, headers, lists of ids, sets and trees."""
    labels = [{"label": label.value[PREFIX:].decode(), "text": label.value.decode()} for label in Label]
    yield "labels/labels", cases("Every label, and the text that stands for it.", labels)
    short = ((), (b"",), (b"", b""), (b"\x01",), (b"one", b"two"))
    parts = [*short, (drawn("bind"),), (drawn("bind", size=300), bytes(4))]
    bound = [
        {"label": label.value[PREFIX:].decode(), "parts": hexes(each), "bound": bind(label, *each).hex()}
        | {"digest": hashed(label, *each).hex()}
        for label in (Label.CONFIGURATION, Label.MERKLE_NODE)
        for each in parts
    ]
    yield "bind/bound", cases("bind(label, parts), and H<label>(parts).", bound)
    opened = [
        {"label": label.value[PREFIX:].decode(), "parts": hexes(each), "secret": drawn("commit", label.name, at).hex()}
        | {"digest": hashlib.sha256(bind(label, *each) + drawn("commit", label.name, at)).hexdigest()}
        for label in (Label.SELF_MASK_COMMITMENT, Label.SHARE_DIGEST)
        for at, each in enumerate(parts[2:])
    ]
    yield "bind/commitments", cases("C<label>(parts; secret): the secret stands last and has no length.", opened)
    kinds = [
        {"kind": kind.value, "name": kind.name.lower(), "header": Writer(kind).finish().hex()} for kind in MessageKind
    ]
    yield "bind/headers", cases("The first seven bytes of each kind of message.", kinds)
    numbers = ((), (0,), (1, 2, 3, 4), (0, 1, 130, 2**32, 2**63, 2**64 - 2, 2**64 - 1), (127, 255, 16511, 16512))
    listed = [{"ids": digits(ids), "bytes": encode_clients([ClientId(one) for one in ids]).hex()} for ids in numbers]
    yield "bind/id_lists", cases("Increasing ids as gaps in LEB128.", listed)
    sets = ((1, ()), (4, (0, 2)), (8, range(8)), (9, (8,)), (20, (0, 7, 8, 19)))
    written = [
        {"population": size, "positions": list(held), "bytes": ClientSet.of(size, held).encode().hex()}
        for size, held in sets
    ]
    yield "bind/sets", cases("Sets of positions, one bit for each.", written)
    trees = list[Vector]()
    for count, known in ((1, (0,)), (2, (1,)), (3, (2,)), (5, (0, 4)), (8, (1, 2, 5)), (13, (12,))):
        leaves = [drawn("leaf", count, at) for at in range(count)]
        tree = MerkleTree(leaves)
        proof = {"known": list(known), "nodes": hexes(tree.prove(known))}
        trees.append({"leaves": hexes(leaves), "root": tree.root.hex(), **proof})
    yield "bind/trees", cases("Roots, and the nodes that are lacking next to the known leaves.", trees)


# --- Keys, masks, sharing, graph --------------------------------------------------------------------------------------


def keys() -> Files:
    """Make key pairs, their agreements, refused keys, certificates and key files."""
    pairs, agreed = list[Vector](), list[Vector]()
    for at in range(4):
        t0, context = drawn("t0", at), drawn("context", at)
        roots = [drawn("root", at, side) for side in range(2)]
        ids = ((1, 2), (7, 2**32), (2**64 - 1, 0), (2**63, 2**63 - 1))[at]
        made = {role: [X25519KeyPair(secret(root), role, AttemptContext(t0)) for root in roots] for role in ROLES}
        for role, (one, two) in made.items():
            pairs += [
                {"role": role.value, "root": root.hex(), "t0": t0.hex(), "public": pair.public_key.encoded.hex()}
                for root, pair in zip(roots, (one, two), strict=True)
            ]
        clients, session = [ClientId(one) for one in ids], SessionContext(context)
        mask, channel = made[KeyRole.MASK], made[KeyRole.CHANNEL]
        seed = bytes(mask[0].pairwise_seed(clients[0], (clients[1], mask[1].public_key), session).expose())
        low, high = sorted(clients)
        to = channel[0].channel_key_to(clients[0], (clients[1], channel[1].public_key), session)
        back = channel[0].channel_key_from(clients[0], (clients[1], channel[1].public_key), session)
        agreed.append(
            {"t0": t0.hex(), "context": context.hex(), "ids": digits(ids), "roots": hexes(roots)}
            | {"pairwise_seed": seed.hex(), "there": bytes(to.expose()).hex(), "back": bytes(back.expose()).hex()}
            | {"mask_key": expanded(seed, 16, Label.PAIRWISE_MASK_KEY, context, low.encode(), high.encode()).hex()}
        )
    yield "keys/pairs", cases("Key pairs from roots.", pairs)
    yield "keys/agreements", cases("What two clients derive: seed and key of a mask, a channel key each way.", agreed)
    field = 2**255 - 19
    eighths = (
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    )
    verdicts = dict.fromkeys((9, 2, field - 2, 2**254), "ok")
    verdicts |= dict.fromkeys((0, 1, *eighths, field - 1), "public_key_low_order")
    verdicts |= dict.fromkeys(
        (field, field + 9, field + 18, 2**255, 2**255 + 9, 2**256 - 1), "public_key_not_canonical"
    )
    weighed = [{"key": key.to_bytes(32, "little").hex(), "verdict": verdict} for key, verdict in verdicts.items()]
    yield "keys/x25519", cases("Encodings of X25519 keys, and why one is refused.", weighed)
    eight = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
    weak = (0, 1, field - 1, eight, field - eight, field, field + 1, 2**255 - 1)
    strong = [(key | sign << 255, False) for key in weak for sign in range(2)]
    found = [{"key": key.to_bytes(32, "little").hex(), "is_strong": is_strong} for key, is_strong in strong]
    found += [{"key": signing(drawn("strong", at)).public_key.hex(), "is_strong": True} for at in range(3)]
    yield "keys/ed25519", cases("Encodings of Ed25519 keys, and whether a key that has it vouches for anybody.", found)
    certified = list[Vector]()
    for number in (0, 7, 2**53 + 1, 2**64 - 1):
        seeds = [drawn("authority", number), drawn("identity", number)]
        authority, own = map(signing, seeds)
        certificate = issue_certificate(
            authority, ClientId(number), own.public_key, number=1, until=500_000
        ).grant.hex()
        made_of = {"id": str(number), "authority_seed": seeds[0].hex(), "seed": seeds[1].hex()}
        public = {"authority": authority.public_key.hex(), "public": own.public_key.hex(), "certificate": certificate}
        file = {"format": "secagg/flower/1", "kind": "client", "id": number, "seed": seeds[1].hex()}
        text = json.dumps(file | {"certificate": certificate, "authority": authority.public_key.hex()}, indent=1)
        certified.append(made_of | public | {"key_file": text})
    yield "keys/certificates", cases("What an authority signs for a client, and the client's key file.", certified)


ROLES: Final = (KeyRole.CHANNEL, KeyRole.MASK)


def vectors_of(bits: int, *what: object, count: int = 9) -> Any:
    """Return elements of a ring derived from their purpose."""
    words = np.frombuffer(drawn("elements", bits, *what, size=8 * count), "<u8")
    return (words & np.uint64((1 << bits) - 1)).astype(Ring(bits).word)


def masking() -> Files:
    """Make streams, packing, added masks, check words, shares and graphs."""
    streams = list[Vector]()
    for segment, size in ((0, 16), (0, 100), (1, 40), (255, 17), (65535, 33)):
        key = drawn("stream", segment, size=16)
        stream = mask_expansion.expand(secret(key), Ring(8), size, first_segment=segment)
        streams.append({"key": key.hex(), "segment": segment, "stream": stream.tobytes().hex()})
    yield "masks/streams", cases("The first bytes of a segment of a mask stream.", streams)
    packed, added, words = list[Vector](), list[Vector](), list[Vector]()
    for bits in WIDTHS:
        ring, values = Ring(bits), vectors_of(bits)
        packed.append({"bits": bits, "values": digits(values), "packed": ring.pack(values).hex()})
        signs = [1, -1, -1, 1]
        mask_keys = [drawn("mask", bits, at, size=16) for at in range(len(signs))]
        total = values.copy()
        plus, minus = (
            [secret(key) for key, sign in zip(mask_keys, signs, strict=True) if sign == way] for way in (1, -1)
        )
        mask_expansion.accumulate(total, ring, add=plus, subtract=minus, first_segment=bits)
        masks = [{"sign": sign, "key": key.hex()} for sign, key in zip(signs, mask_keys, strict=True)]
        before = {"bits": bits, "values": digits(values), "first_segment": bits, "masks": masks}
        added.append(before | {"masked": digits(total)})
        count, key = max(2, -(-64 // bits)), drawn("check", bits, size=16)
        checks = digits(check_words(ring, values, count, secret(key)))
        words.append({"bits": bits, "values": digits(values), "key": key.hex(), "words": checks})
    yield "masks/packing", cases("Elements of p bits, packed.", packed)
    yield "masks/addition", cases("Masks added to elements and subtracted from them.", added)
    yield "check_words/words", cases("Check words of elements.", words)
    shared = list[Vector]()
    for threshold, holders in ((1, 1), (2, 3), (3, 5), (7, 12)):
        value, coins = drawn("secret", threshold), drawn("coins", threshold, size=32 * (threshold - 1))
        coefficients = InsecureRecordedCoins(coins)
        (shares,) = split_many([secret(value)], threshold=threshold, holders=holders, coins=coefficients)
        dealt = [bytes(share.value.expose()).hex() for share in shares]
        shared.append({"secret": value.hex(), "threshold": threshold, "coins": coins.hex(), "shares": dealt})
    yield "sharing/shares", cases("Shares at the points 1, 2, ...; the coins are the coefficients.", shared)
    graphs = list[Vector]()
    for clients, degree, size in ((3, 0, 0), (5, 2, 5), (8, 4, 4), (20, 6, 9), (33, 32, 1), (100, 16, 60)):
        seed = drawn("graph", clients)
        topology = Topology.SPARSE if degree else Topology.FULL
        graph = Graph(topology, clients, degree or clients - 1, seed)
        near = [list(graph.neighbours(at)) for at in range(clients)]
        committee = list(graph.committee(size or clients))
        drawn_from = {"seed": seed.hex(), "clients": clients, "degree": degree, "committee_size": size}
        graphs.append(drawn_from | {"neighbours": near, "committee": committee})
    yield "graph/graphs", cases("Neighbours, committee; a degree of 0 is a full graph, a size of 0 everybody.", graphs)


# --- Values, terms, HTTP ----------------------------------------------------------------------------------------------

TERMS: Final[Vector] = {"clients": 10, "all_clients": 10, "group": 1, "groups": 1, "values": 8, "clip": 0.5, "bits": 8}
TERMS_OF: Final[Mapping[str, Vector]] = {
    "usual": {},
    "whole steps": {"clip": 127.0},
    "two bits": {"bits": 2, "clip": 0.5},
    "sixteen bits": {"bits": 16, "clip": 8191.75},
    "one of three groups": {"clients": 3, "all_clients": 9, "group": 2, "groups": 3},
    "a million clients": {"clients": 1000, "all_clients": 1000000, "group": 1, "groups": 1000, "bits": 12},
}


def text_of(terms: Mapping[str, Any]) -> str:
    """Return terms in a server's form."""
    return json.dumps(terms, sort_keys=True)


def encodings() -> Files:
    """Make plans and codes, digests of terms, descriptions and proofs of requests."""
    plans, codes, digests = list[Vector](), list[Vector](), list[Vector]()
    for name, changes in TERMS_OF.items():
        terms = TERMS | changes
        subject = plan_of("pairwise", terms).subject(task=b"sum", round_number=1, model=())
        [segment] = subject.layout.require_rings()
        scale = float(np.float32(terms["clip"] / (2 ** (terms["bits"] - 1) - 1)))
        plan = {"ring_bits": segment.modulus_bits, "scale": struct.pack(">f", scale).hex()}
        plan |= {"capacity": str(subject.capacity), "layout": subject.layout.encode().hex()}
        version = {"layout_version": subject.layout.version.hex()}
        plans.append({"name": name, "terms": text_of(terms), **plan, **version})
        greatest = 2 ** (terms["bits"] - 1) - 1
        ends = [scale * end for end in (0, greatest, -greatest, -greatest - 1)]
        wanted: list[Any] = [*ends, 1e30, "inf", "-inf", "nan"]
        codes.append(_codes(name, terms, wanted, segment.modulus_bits, scale))
        wanted = [scale * part for part in (0.25, -0.25, 0.5, 1e-3, -1e-3, 0.75, greatest - 0.5, 0.99)]
        codes.append(_codes(f"{name}, between codes", terms, wanted, segment.modulus_bits, scale))
        digest = terms_digest(terms)
        application = hashed(Label.SESSION_TERMS, subject.capacity.to_bytes(8, "big"), digest)
        bound = {"terms": text_of(terms), "digest": digest.hex(), "capacity": str(subject.capacity)}
        digests.append(bound | {"application_digest": application.hex()})
    yield "encoding/plans", cases("What follows from terms: ring, scale, capacity, layout and its version.", plans)
    yield "encoding/codes", cases("Values, and for each the ring elements of which any is right.", codes)
    yield "terms/digests", cases("What an offer binds of terms, which are a text.", digests)
    layouts = list[Vector]()
    for name, segments in (("one", ((20, 5),)), ("three", ((1, 9), (33, 2), (64, 1)))):
        layout = Layout(tuple(RingSegment(*each) for each in segments), drawn("layout", name))
        written = {"segments": [list(each) for each in segments], "version": layout.version.hex()}
        digest = hashed(Label.LAYOUT_DIGEST, layout.encode())
        layouts.append(written | {"bytes": layout.encode().hex(), "digest": digest.hex()})
    yield "encoding/layouts", cases("Layouts, and H<layout> of them.", layouts)
    proofs, descriptions = list[Vector](), list[Vector]()
    for number in (0, 9, 2**64 - 1):
        session, seed = drawn("session", number, size=16), drawn("identity", number)
        form = bytes([FORM])
        description = SessionDescription(
            session=session.hex(), protocol="pairwise", task="sum", round_number=number >> 1, answer_bytes=9
        )
        said = json.loads(description.encode()) | {"terms": text_of(TERMS)}
        if number == 9:
            said |= {"deadline": 3, "must_know": ["terms"]}  # A field of a later version, which is ignored.
        descriptions.append({"description": json.dumps(said), "round": said["round_number"], "terms": said["terms"]})
        proof = form + signing(seed).sign(Label.HTTP_PROOF, json.dumps(said).encode(), ClientId(number).encode(), form)
        told = {"description": json.dumps(said), "id": str(number), "seed": seed.hex()}
        proofs.append(told | {"authorization": header_of(ClientId(number), proof)})
    yield "http/proofs", cases("The Authorization of a client that has a key.", proofs)
    yield "http/descriptions", cases("Session descriptions: the round is digits, the terms are a text.", descriptions)


def _codes(name: str, terms: Vector, values: Sequence[Any], bits: int, scale: float) -> Vector:
    """Return the valid elements: floor or ceiling of a clipped quotient, within the codes, modulo the ring."""
    greatest, allowed = 2 ** (terms["bits"] - 1) - 1, list[list[str]]()
    for value in values:
        quotient = 0.0 if value == "nan" else min(terms["clip"], max(-terms["clip"], float(value))) / scale
        kept = {min(greatest, max(-greatest - 1, end)) for end in (math.floor(quotient), math.ceil(quotient))}
        allowed.append([str(code % 2**bits) for code in sorted(kept)])
    shown = [value if isinstance(value, str) else float(np.float32(value)) for value in values]
    return {"name": name, "terms": text_of(terms), "values": shown, "elements": allowed}


# --- Refused texts ----------------------------------------------------------------------------------------------------


def texts() -> Iterator[Vector]:
    """Change one thing in a session description, in terms or in a key file."""
    wrong: dict[str, Any] = {"values": 0, "clip": -1.0, "clients": 11, "group": 2, "groups": 0, "bits": 17}
    wrong |= {"all_clients": 0, "values ": 8}
    for name, value in [*wrong.items(), ("bits", 1), ("values", 2**28 + 1), ("clip", "0.5"), ("clients", True)]:
        text = text_of(TERMS | {name: value})
        yield {
            "what": "terms",
            "name": f"{name.strip()} is {value!r}".lower(),
            "text": text,
            "reason": "parameter_out_of_range",
        }
    good = {
        "session": "0" * 31 + "a",
        "protocol": "pairwise",
        "task": "sum",
        "round_number": "7",
        "answer_bytes": 1 << 20,
    }
    good |= {"mode": "semi_honest", "terms": text_of(TERMS), "form": FORM}
    bad: list[tuple[str, Any]] = [
        ("session", "A" * 32),
        ("session", "0" * 30),
        ("round_number", 7),
        ("round_number", "07"),
    ]
    bad += [
        ("round_number", "-1"),
        ("round_number", str(2**63)),
        ("terms", TERMS),
        ("terms", "{"),
        ("task", 7),
        ("mode", "\n"),
    ]
    bad += [("must_know", 7), ("must_know", ["deadline"]), ("form", "3")]
    for name, value in bad:
        shown = "no text" if value is TERMS else json.dumps(value)
        yield {
            "what": "description",
            "name": f"{name} is {shown}",
            "text": json.dumps(good | {name: value}),
            "reason": "wrong_version" if value == ["deadline"] else "not_canonical",
        }
    seeds = [signing(drawn("text", at)) for at in range(2)]
    certificate = issue_certificate(seeds[0], ClientId(3), seeds[1].public_key).grant.hex()
    file = {"format": "secagg/flower/1", "kind": "client", "id": 3, "seed": drawn("text", 1).hex()}
    file |= {"certificate": certificate, "authority": seeds[0].public_key.hex()}
    altered: list[tuple[str, Any]] = [("format", "secagg/flower/2"), ("kind", "authority"), ("id", 4), ("id", "three")]
    altered += [("seed", "00" * 32), ("seed", "00" * 31), ("certificate", "00" * 72), ("authority", "00" * 32)]
    altered += [("authority", "01" + "00" * 31)]
    for name, value in altered:
        text = json.dumps(file | {name: value})
        yield {"what": "key file", "name": f"{name} is {value}", "text": text, "reason": "parameter_out_of_range"}


# --- Files ------------------------------------------------------------------------------------------------------------


def suite() -> Files:
    """Make every file of the interop suite, by its name below ``interop/FORM/``."""
    for make in (framing, keys, masking, encodings):
        yield from make()
    sessions, sums = generate.committed(), generate_one_message.committed()
    for name in PAIRWISE:
        yield f"pairwise/{name}", pairwise(sessions[name])
    for name in ONE_MESSAGE:
        yield f"one_message/{name}", one_message(sums[name])
    pairs = refused_in_pairwise(sessions, PAIRWISE)
    sums_of = refused_in_one_message(sums, sums[generate_one_message.NEGATIVE_FILE]["vectors"], ONE_MESSAGE)
    for protocol, found in (("pairwise", pairs), ("one_message", sums_of)):
        for party in ("client", "server", "holder"):
            taken = [case for case in found if case["taker"].startswith(party)]
            if taken:
                yield f"refusals/{protocol}_{party}", cases(f"What a {party} refuses in a session.", taken)
    yield (
        "refusals/texts",
        cases("What a client refuses of a session description, of terms and of its own key file.", list(texts())),
    )


def main() -> None:
    """Write every file, and remove obsolete ones."""
    made = dict(suite())
    for file in FOLDER.glob("*/*.json"):
        if f"{file.parent.name}/{file.stem}" not in made:
            file.unlink()
    for name, vector in made.items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"{name}.json").write_text(generate.to_text(vector), encoding="utf-8")


if __name__ == "__main__":
    main()
