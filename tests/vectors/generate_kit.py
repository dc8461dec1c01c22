"""Make the kit: ``python -m tests.vectors.generate_kit`` writes ``kit/``, which other implementations run.

Small cases come from the library, from bytes that follow from their names. Sessions and most refusals are those of
``pairwise_mask/`` and ``one_message/`` here, with their messages cut into parts; refusals of damaged framing are made by
rule. Nothing is random, and nothing that a refusal expects is taken from the library.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.cli.wire.shared import plan_of
from secagg.contract import Layout, RingSegment
from secagg.crypto import key_derivation, mask_expansion
from secagg.crypto.check_words import check_words
from secagg.crypto.key_agreement import KeyRole, X25519KeyPair
from secagg.crypto.labels import Label, bind
from secagg.crypto.merkle import MerkleTree
from secagg.crypto.ring import Ring
from secagg.crypto.secret import Secret
from secagg.crypto.shamir import split
from secagg.fields import fields_of
from secagg.identifiers import AttemptContext, ClientId, SessionContext
from secagg.protocols.one_message.configuration import Offer
from secagg.protocols.one_message.epoch import EpochRecord, HolderKeys
from secagg.protocols.one_message.lattice.gaussian import Sampler
from secagg.protocols.one_message.messages import Upload
from secagg.protocols.one_message.requests import Answer, CertifiedList, Delivery, ListSignature, Receipt, UploadList
from secagg.protocols.pairwise_mask.graph import Graph, Topology
from secagg.protocols.pairwise_mask.roster import ClientSet, decode_clients, encode_clients, roster_of
from secagg.session.certificates import SigningKey, issue_certificate
from secagg.simulation.insecure_coins import InsecureRecordedCoins
from secagg.transport.card import Card, terms_digest
from secagg.transport.proof import header_of
from secagg.wire import MessageKind, Writer

from . import generate, generate_one_message

Vector = dict[str, Any]
Files = Iterator[tuple[str, Vector]]
FOLDER: Final = Path(__file__).resolve().parents[2] / "kit"
HEADER: Final = 7
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
ONE_MESSAGE: Final = ("semi_honest", "one_answer", "certified")
DAMAGED: Final = ("semi_honest_full", "active_full")
"""Sessions of which every message of one client is damaged in every way."""
WIDTHS: Final = (1, 7, 8, 13, 16, 20, 31, 32, 33, 64)


def drawn(*parts: object, size: int = 32) -> bytes:
    """Return bytes that follow from what they are for."""
    return hashlib.shake_256("/".join(("kit/1", *map(str, parts))).encode()).digest(size)


def secret(data: bytes) -> Secret:
    """Return bytes as a secret of the kit."""
    return Secret("of the kit", data)


def hashed(label: Label, *parts: bytes) -> bytes:
    """Return H of the specification."""
    return hashlib.sha256(bind(label, *parts)).digest()


def expanded(source: bytes, size: int, label: Label, *parts: bytes) -> bytes:
    """Return Expand of the specification."""
    return bytes(key_derivation.expand("of the kit", size, secret(source), label, *parts).expose())


def cases(about: str, made: Sequence[Vector]) -> Vector:
    """Return a file of small cases."""
    return {"about": about, "cases": list(made)}


def hexes(parts: Sequence[bytes]) -> list[str]:
    """Write several byte strings."""
    return [part.hex() for part in parts]


def digits(values: Any) -> list[str]:  # noqa: ANN401 -- whatever numbers
    """Write integers of any size."""
    return [str(int(value)) for value in values]


# --- Framing ----------------------------------------------------------------------------------------------------------


def framing() -> Files:
    """Make labels, bound strings, headers, lists of ids, sets and trees."""
    labels = [{"label": label.value[PREFIX:].decode(), "text": label.value.decode()} for label in Label]
    yield "labels/labels", cases("Every label, and the text that stands for it.", labels)
    parts = [
        (),
        (b"",),
        (b"", b""),
        (b"\x01",),
        (b"one", b"two"),
        (drawn("bind"),),
        (drawn("bind", size=300), b"\0" * 4),
    ]
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
    """Make key pairs, what two of them agree on, keys that are refused, certificates and key files."""
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
    yield (
        "keys/agreements",
        cases("What two clients derive: the seed of their masks, and a channel key each way.", agreed),
    )
    field, low = 2**255 - 19, 325606250916557431795983626356110631294008115727848805560023387167927233504
    other = 39382357235489614581723060781553021112529911719440698176882885853963445705823
    verdicts = dict.fromkeys((9, 2, field - 2, 2**254), "ok")
    verdicts |= dict.fromkeys((0, 1, low, other, field - 1), "public_key_low_order")
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
        certificate = issue_certificate(authority, ClientId(number), own.public_key).signature.hex()
        made_of = {"id": str(number), "authority_seed": seeds[0].hex(), "seed": seeds[1].hex()}
        public = {"authority": authority.public_key.hex(), "public": own.public_key.hex(), "certificate": certificate}
        file = {"format": "secagg/flower/1", "kind": "client", "id": number, "seed": seeds[1].hex()}
        text = json.dumps(file | {"certificate": certificate, "authority": authority.public_key.hex()}, indent=1)
        certified.append(made_of | public | {"key_file": text})
    yield "keys/certificates", cases("What an authority signs for a client, and the client's key file.", certified)


ROLES: Final = (KeyRole.CHANNEL, KeyRole.MASK)


def signing(seed: bytes) -> SigningKey:
    """Return the signing key of a seed."""
    return SigningKey(secret(seed))


def vectors_of(bits: int, *what: object, count: int = 9) -> Any:  # noqa: ANN401 -- a vector of the ring's type
    """Return elements of a ring that follow from what they are for."""
    words = np.frombuffer(drawn("elements", bits, *what, size=8 * count), "<u8")
    return (words & np.uint64((1 << bits) - 1)).astype(Ring(bits).word)


def masking() -> Files:
    """Make streams, packing, masks that are added, check words, shares and graphs."""
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
        shares = split(secret(value), threshold=threshold, holders=holders, coins=InsecureRecordedCoins(coins))
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
    yield (
        "graph/graphs",
        cases("Neighbours and committee; a degree of 0 is a full graph, a size of 0 everybody.", graphs),
    )


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
    """Return terms as a server writes them."""
    return json.dumps(terms, sort_keys=True)


def encodings() -> Files:
    """Make plans and codes, digests of terms, cards and proofs of requests."""
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
        wanted: list[Any] = [
            0,
            scale * greatest,
            -scale * greatest,
            scale * -(greatest + 1),
            1e30,
            "inf",
            "-inf",
            "nan",
        ]
        codes.append(_codes(name, terms, wanted, segment.modulus_bits, scale))
        wanted = [scale * part for part in (0.25, -0.25, 0.5, 1e-3, -1e-3, 0.75, greatest - 0.5, 0.99)]
        codes.append(_codes(f"{name}, between codes", terms, wanted, segment.modulus_bits, scale))
        digest = terms_digest(terms)
        application = hashed(Label.SESSION_TERMS, subject.capacity.to_bytes(8, "big"), digest)
        bound = {"terms": text_of(terms), "digest": digest.hex(), "capacity": str(subject.capacity)}
        digests.append(bound | {"application_digest": application.hex()})
    yield (
        "encoding/plans",
        cases("What follows from terms: ring, scale (float32), capacity, layout and its version.", plans),
    )
    yield "encoding/codes", cases("Values, and for each the ring elements of which any is right.", codes)
    yield "terms/digests", cases("What an offer binds of terms, which are a text.", digests)
    layouts = list[Vector]()
    for name, segments in (("one", ((20, 5),)), ("three", ((1, 9), (33, 2), (64, 1)))):
        layout = Layout(tuple(RingSegment(*each) for each in segments), drawn("layout", name))
        written = {"segments": [list(each) for each in segments], "version": layout.version.hex()}
        digest = hashed(Label.LAYOUT_DIGEST, layout.encode()).hex()
        layouts.append(written | {"bytes": layout.encode().hex(), "digest": digest})
    yield "encoding/layouts", cases("Layouts, and H<layout> of them.", layouts)
    proofs, cards = list[Vector](), list[Vector]()
    for number in (0, 9, 2**64 - 1):
        session, seed = drawn("session", number, size=16), drawn("identity", number)
        proof = signing(seed).sign(Label.HTTP_PROOF, session, ClientId(number).encode())
        told = {"session": session.hex(), "id": str(number), "seed": seed.hex()}
        proofs.append(told | {"authorization": header_of(ClientId(number), proof)})
        card = Card(
            session=session.hex(), protocol="pairwise", task="sum", round_number=number >> 1, answer_bytes=1 << 20
        )
        said = json.loads(card.encode()) | {"terms": text_of(TERMS)}
        cards.append({"card": json.dumps(said), "round": said["round_number"], "terms": said["terms"]})
    yield "http/proofs", cases("The Authorization of a client that has a key.", proofs)
    yield "http/cards", cases("Cards of sessions: the round is digits, the terms are a text.", cards)


def _codes(name: str, terms: Vector, values: Sequence[Any], bits: int, scale: float) -> Vector:
    """Return which elements are right: floor or ceiling of a clipped quotient, within the codes, modulo the ring."""
    greatest, allowed = 2 ** (terms["bits"] - 1) - 1, list[list[str]]()
    for value in values:
        quotient = 0.0 if value == "nan" else min(terms["clip"], max(-terms["clip"], float(value))) / scale
        kept = {min(greatest, max(-greatest - 1, end)) for end in (math.floor(quotient), math.ceil(quotient))}
        allowed.append([str(code % 2**bits) for code in sorted(kept)])
    shown = [value if isinstance(value, str) else float(np.float32(value)) for value in values]
    return {"name": name, "terms": text_of(terms), "values": shown, "elements": allowed}


# --- Sessions of pairwise masks ---------------------------------------------------------------------------------------


class Cut:
    """A message that is cut into its parts, from its first byte to its last."""

    def __init__(self, message: bytes) -> None:
        self.message, self.at, self.parts = message, 0, list[list[str]]()
        self.take("header", HEADER)

    def take(self, name: str, size: int) -> int:
        """Cut off the next part, and return it as an integer."""
        part = self.message[self.at : self.at + size]
        self.at += size
        if size:
            self.parts.append([name, part.hex()])
        return int.from_bytes(part, "big")

    def variable(self, name: str) -> None:
        """Cut off a length and so many bytes."""
        self.take(name, self.take(f"length of {name}", 4))

    def all(self, *rows: tuple[str, int]) -> None:
        """Cut off parts of these sizes."""
        for name, size in rows:
            self.take(name, size)

    def repeat(self, what: str, *rows: tuple[str, int], count: int | None = None) -> None:
        """Cut off as many times the same parts as the number before them, or the caller, says."""
        for _ in range(self.take(f"number of {what}", 4) if count is None else count):
            self.all(*rows)

    def done(self) -> list[list[str]]:
        """Return the parts."""
        if self.at != len(self.message):
            raise ValueError(f"{len(self.message) - self.at} bytes are left of {self.parts[-1][0]}")
        return self.parts


def pairwise_parts(
    kind: str, message: bytes, *, is_active: bool, clients: int, packed: Sequence[int]
) -> list[list[str]]:
    """Cut a message, as the tables of its protocol say."""
    cut, flags = Cut(message), (clients + 7) // 8
    signature = ("signature", 64 * is_active)
    credential = (("commitment", 32), ("identity key", 32), ("certificate", 64), ("signature", 64)) if is_active else ()
    if kind == "offer":
        cut.take("form", 1)
        cut.variable("task")
        cut.all(("model digest", 32), ("round", 8), ("attempt", 4), ("mode", 1), ("suite", 1), ("topology", 1))
        cut.all(*((name, 4) for name in ("degree", "threshold", "committee size", "quorum", "minimum cohort")))
        cut.all(("maximum population", 4), ("maximum weight", 4), ("length of layout", 4), ("header of layout", HEADER))
        cut.repeat("segments", ("kind of segment", 1), ("modulus bits", 4), ("length", 8))
        cut.all(("layout version", 32), ("check words", 1), ("application digest", 32), ("authority", 32))
        cut.all(("graph commitment", 32), ("server nonce", 32))
        return cut.done()
    cut.take("tag", 8)
    match kind:
        case "key_advertisement":
            cut.all(("client", 8), ("channel key", 32), ("mask key", 32), *(credential or (("commitment", 32),)))
        case "advertised_keys":
            cut.variable("list of ids")
            cut.all(("root", 32), ("opening", 32))
            cut.repeat("entries", ("channel key", 32), ("mask key", 32), *credential)
            cut.repeat("nodes", ("node", 32))
        case "encrypted_shares":
            cut.take(*signature)
            entry = 80 + 32 * is_active
            cut.repeat("", ("sealed", 80), ("commitment", 32 * is_active), count=(len(message) - cut.at) // entry)
        case "delivered_shares":
            cut.take("sharers", flags)
            while cut.at < len(message):
                cut.all(("sealed", 80), ("commitment", 32 * is_active), signature)
                if is_active:
                    cut.repeat("", ("node", 32), count=cut.take("number of nodes", 1))
        case "masked_input":
            cut.take(*signature)
            cut.all(*((f"vector {at}", size) for at, size in enumerate(packed)))
        case "survivor_set":
            cut.all(("sharers", flags), ("contributors", flags))
        case "survivor_signature":
            cut.take(*signature)
        case "unmasking_request":
            cut.take("contributors", flags)
            cut.repeat("endorsements", ("position", 4), ("identity key", 32), ("certificate", 64), ("signature", 64))
            cut.repeat("views", ("upload digest", 32), ("signature", 64))
        case _:
            cut.take(*signature)
            share = 32 + 32 * is_active
            cut.take("held", (len(message) - cut.at) % share)
            cut.repeat("", ("share", 32), ("digest", 32 * is_active), count=(len(message) - cut.at) // share)
    return cut.done()


def pairwise(vector: Vector) -> Vector:
    """Return a session with its messages in parts, and what its clients compute on the way."""
    messages = {name: bytes.fromhex(message) for name, message in vector["messages"].items()}
    configuration = generate.configuration_of(vector["parameters"])
    told = next(message for name, message in messages.items() if name.endswith("advertised_keys"))
    length = int.from_bytes(told[15:19], "big")
    listed, (root, opening) = told[19 : 19 + length], (told[19 + length :][at : at + 32] for at in (0, 32))
    roster, ids = roster_of(configuration, listed, root, opening), decode_clients(listed)
    rings = [
        (Ring(p), size + max(configuration.check_words, -(-64 // p))) for p, size in vector["parameters"]["layout"]
    ]
    bits = configuration.maximum_total_weight.bit_length()
    rings.append((Ring(bits), 1 + max(configuration.check_words, -(-64 // bits))))
    packed = [ring.packed_bytes(size) for ring, size in rings]
    t0, context = configuration.context, roster.context
    pairs = {
        one: X25519KeyPair(secret(bytes.fromhex(vector["coins"][f"client/{one.value}"])[32:64]), KeyRole.MASK, t0)
        for one in ids
    }
    masks = list[Vector]()
    for at, low in enumerate(ids):
        for high in (ids[other] for other in roster.graph.neighbours(at) if other > at):
            seed = bytes(pairs[low].pairwise_seed(low, (high, pairs[high].public_key), context).expose())
            key = expanded(seed, 16, Label.PAIRWISE_MASK_KEY, context.digest, low.encode(), high.encode())
            masks.append({"clients": digits([low.value, high.value]), "seed": seed.hex(), "key": key.hex()})
    own = {
        str(one.value): expanded(
            bytes.fromhex(vector["coins"][f"client/{one.value}"])[64:96],
            16,
            Label.SELF_MASK_KEY,
            context.digest,
            one.encode(),
        ).hex()
        for one in ids
    }
    computed = {
        "t0": t0.digest.hex(),
        "advertisers": digits(one.value for one in ids),
        "graph_seed": roster.graph.seed.hex(),
        "context": context.digest.hex(),
        "neighbours": [list(roster.graph.neighbours(at)) for at in range(len(ids))],
        "committee": list(roster.committee) if configuration.is_active else [],
        "self_mask_keys": own,
    }
    facts = {"is_active": configuration.is_active, "clients": len(ids), "packed": packed}
    parts = {name: pairwise_parts(name.rpartition("/")[2], message, **facts) for name, message in messages.items()}
    return _session(vector, "pairwise_mask/2", computed | {"pairwise_masks": masks}, parts)


def _session(vector: Vector, protocol: str, computed: Vector, parts: Vector) -> Vector:
    left_out = {"schema", "protocol", "claims", "provenance", "comment", "messages", "operations", "result"}
    head = {"about": f"A session: {vector['comment']}.", "protocol": protocol}
    given = {name: value for name, value in vector.items() if name not in left_out}
    steps = [{name: value for name, value in step.items() if name != "expect"} for step in vector["operations"]]
    return head | given | {"computed": computed, "messages": parts, "steps": steps, "result": vector["result"]}


# --- Sums of one message ----------------------------------------------------------------------------------------------

DECLARED: Final[Mapping[str, Any]] = {
    "record": EpochRecord,
    "keys": HolderKeys,
    "offer": Offer,
    "upload": Upload,
    "delivery": Delivery,
    "greeting": Receipt,
    "receipt": Receipt,
    "list": UploadList,
    "signature": ListSignature,
    "certified_list": CertifiedList,
    "answer": Answer,
}


def declared_parts(value: Any, name: str = "") -> list[list[str]]:  # noqa: ANN401 -- any declaration
    """Cut the fields of a declared message or of a part of one; what stands in a list has its number."""
    found = list[list[str]]()
    for field, how in fields_of(type(value)).items():
        held, writer = getattr(value, field), Writer(MessageKind.LAYOUT)
        how.write(writer, held)
        written, full = writer.finish()[HEADER:], f"{name}{field}".replace("_", " ")
        items: Sequence[Any] = held if isinstance(held, tuple) else ()
        if items and all(is_dataclass(item) and fields_of(type(item)) for item in items):
            found.append([f"number of {full}", written[:4].hex()])
            for at, item in enumerate(items):
                found += declared_parts(item, f"{full} {at} ")
        elif items and all(isinstance(item, bytes) for item in items):
            found.append([f"number of {full}", written[:4].hex()])
            before = 4 * (len(written) > 4 + sum(map(len, items)))
            for at, item in enumerate(items):
                found += [[f"length of {full} {at}", len(item).to_bytes(4, "big").hex()]] if before else []
                found.append([f"{full} {at}", item.hex()])
        elif is_dataclass(held) and fields_of(type(held)):
            found += declared_parts(held, f"{full} ")
        else:
            found.append([full, written.hex()])
    return [part for part in found if part[1]]


def one_message(vector: Vector) -> Vector:
    """Return a sum with its messages in parts, and what its clients draw."""
    messages = {name: bytes.fromhex(message) for name, message in vector["messages"].items()}
    agreement = Offer.decode(messages["offer"]).agree()
    degree, count = agreement.parameters.degree, agreement.parameters.coefficients
    computed: Vector = {"t0": agreement.t0.hex(), "public_seed": agreement.epoch.seed.hex(), "clients": {}}
    for role in vector["inputs"]:
        upload = Upload.decode(messages[f"upload/{role.partition('/')[2]}"])
        # The digest of the update that the client's coins are hedged with is that of its payload.
        segments = agreement.configuration.layout.require_rings()
        rows = [
            s.ring.from_integers([int(v) for v in row]) for s, row in zip(segments, vector["inputs"][role], strict=True)
        ]
        layout = hashed(Label.LAYOUT_DIGEST, agreement.configuration.layout.encode())
        packed = b"".join(segment.ring.pack(row) for segment, row in zip(segments, rows, strict=True))
        payload = hashlib.sha256(Writer(MessageKind.PAYLOAD).finish() + layout + packed).digest()
        about = (upload.header.terms.digest, payload, vector["weights"][role].to_bytes(8, "big"))
        key = vector["identities"].get(role)
        own = signing(bytes.fromhex(key)).sign(Label.ONE_MESSAGE_HEDGE, agreement.t0, *about) if key else b""
        inputs = (agreement.t0, upload.header.client.encode(), *about, own)
        root = expanded(bytes.fromhex(vector["coins"][role]), 32, Label.HEDGED_COINS_ROOT, *inputs)
        draws = [_hedged(root, at + 1) for at in range(3 + agreement.parameters.seeds)]
        if draws[0] != upload.header.nonce:
            raise ValueError(f"the first draw of {role} is not the nonce of its upload")
        noise = {
            name: Sampler(secret(expanded(draws[1], 32, label))).draw(size).tobytes().hex()
            for name, label, size in (
                ("secret", Label.ONE_MESSAGE_SECRET, degree),
                ("error", Label.ONE_MESSAGE_NOISE, count),
            )
        }
        digests = {"terms_digest": about[0].hex(), "payload_digest": payload.hex(), "hedge": own.hex()}
        computed["clients"][role] = digests | {"draws": hexes(draws)} | noise
    parts = dict[str, list[list[str]]]()
    for name, message in messages.items():
        parts[name] = [
            ["header", message[:HEADER].hex()],
            *declared_parts(DECLARED[name.partition("/")[0]].decode(message)),
        ]
        if "".join(part for _, part in parts[name]) != message.hex():
            raise ValueError(f"the parts of {name} are not the message")
    return _session(vector, "one_message/1", computed, parts)


def _hedged(root: bytes, number: int) -> bytes:
    key = expanded(root, 32, Label.HEDGED_COINS, number.to_bytes(8, "big"))
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(32))


# --- Refusals ---------------------------------------------------------------------------------------------------------

OFFER_IS_REFUSED: Final = {"below_floor", "parameter_out_of_range"}
SENT_BY_CLIENTS: Final = {
    "key_advertisement": 0,
    "encrypted_shares": 1,
    "masked_input": 2,
    "survivor_signature": 3,
    "unmasking_shares": 4,
}
DAMAGES: Final[Mapping[str, tuple[str, int, str, str]]] = {
    "foreign beginning": ("73", 0, "not_canonical", "continues"),
    "another version": ("02", 4, "wrong_version", "continues"),
    "unknown kind": ("ffff", 5, "not_canonical", "continues"),
    "kind that is not due": ("", 5, "wrong_kind", "continues"),
    "another tag": ("", 7, "wrong_session", "ends"),
    "cut short": ("", -1, "truncated", "ends"),
    "cut to half": ("", -2, "truncated", "ends"),
    "byte more": ("00", -3, "trailing_bytes", "ends"),
}


def damaged(name: str, vector: Vector) -> Iterator[Vector]:
    """Damage every message of the second client, and every one that it is sent."""
    client = list(vector["inputs"])[1]
    for before, step in enumerate(vector["operations"]):
        by_server = step["role"] == "server"
        if step["do"] != "receive" or step.get("from" if by_server else "role") != client:
            continue
        message, shown = bytes.fromhex(vector["messages"][step["message"]]), step["message"].rpartition("/")[2]
        for how, (inserted, place, reason, then) in DAMAGES.items():
            at, removed, put = place, len(inserted) // 2, bytes.fromhex(inserted)
            if how == "kind that is not due":
                removed, put = 2, (16 if by_server else 17).to_bytes(2, "big")
            elif how == "another tag":
                removed, put = 1, bytes([message[at] ^ 1])
                reason = "wrong_version" if shown == "offer" else reason
            elif place < 0:
                at = {-1: len(message) - 1, -2: len(message) // 2, -3: len(message)}[place]
                removed = len(message) - at
            yield {
                "name": f"{shown.replace('_', ' ')}: {how} ({'active' if vector['identities'] else 'semi-honest'})",
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
        "maximum weight": (0,),
        "kind of segment": (0, 9),
        "modulus bits": (0, 65),
        "length": (0,),
        "check words": (7, 65),
        "authority": (1,),
    },
    "active_full": {"quorum": (0, 5), "committee size": (5,), "authority": (0,)},
    "active_sparse_committee": {"degree": (0, 3, 8), "quorum": (5,)},
}
"""Numbers with which an offer is no configuration."""
ANOTHER: Final = ("task", "model digest", "round", "application digest")


def offers(name: str, parts: Sequence[Sequence[str]]) -> Iterator[Vector]:
    """Change one number of an offer, so that it is no configuration, or about something else."""
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


def changed(name: str, vector: Vector, base: Vector) -> Vector:
    """Write a negative vector of pairwise masks as a refusal of the kit."""
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
    is_harmless = is_unread or last["expect"] in {*OFFER_IS_REFUSED, "wrong_kind"}
    then = "continues" if change["role"] == "server" or is_harmless else "ends"
    return made | {"reason": last["expect"], "then": then}


def refusals(sessions: Mapping[str, Vector], sums: Mapping[str, Vector], negative: Mapping[str, Vector]) -> Files:
    """Make what a client, a server or a holder refuses."""
    found = [case for name in DAMAGED for case in damaged(name, sessions[name])]
    for name in OFFERS:
        found += offers(name, pairwise(sessions[name])["messages"]["offer"])
    seen = {json.dumps([case["session"], case["takes"], case["change"]]) for case in found}
    for name, vector in sessions.items():
        if vector.get("base") in PAIRWISE and vector["operations"][-1]["expect"] != "ok":
            case = changed(name, vector, sessions[vector["base"]])
            if json.dumps([case["session"], case.get("takes"), case.get("change")]) not in seen:
                found.append(case)
    for party in ("client", "server"):
        taken = [case for case in found if case["taker"].startswith(party)]
        yield f"refusals/pairwise_{party}", cases(f"What a {party} refuses in a session of pairwise masks.", taken)
    by_party: dict[str, list[Vector]] = {"client": [], "server": [], "holder": []}
    for name, vector in negative.items():
        if vector["base"] not in sums or vector["expect"] == "ok":
            continue
        party, verdict = vector["party"], vector["expect"] in VERDICTS
        case = {"name": name.replace("_", " "), "session": f"one_message/{vector['base']}", "taker": party}
        case |= {"before": vector["at"], "takes": vector["takes"]}
        if "upload" in vector["takes"]:
            case["sender"] = vector.get("from", vector["takes"]).replace("upload", "client")
        case |= {"change": vector["change"], "reason": vector["expect"], "then": "receipt" if verdict else "continues"}
        by_party[party.partition("/")[0]].append(case)
    for party, taken in by_party.items():
        yield f"refusals/one_message_{party}", cases(f"What a {party} refuses in a sum of one message.", taken)
    yield "refusals/texts", cases("What a client refuses of a card, of terms and of its own key file.", list(texts()))


VERDICTS: Final = {"not_authentic", "does_not_open", "off_polynomial"}


def texts() -> Iterator[Vector]:
    """Change one thing in a card, in terms or in a key file."""
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
    good |= {"mode": "semi_honest", "terms": text_of(TERMS)}
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
    for name, value in bad:
        shown = json.dumps(value) if isinstance(value, str | int) else "no text"
        yield {
            "what": "card",
            "name": f"{name} is {shown}",
            "text": json.dumps(good | {name: value}),
            "reason": "not_canonical",
        }
    seeds = [signing(drawn("text", at)) for at in range(2)]
    certificate = issue_certificate(seeds[0], ClientId(3), seeds[1].public_key).signature.hex()
    file = {"format": "secagg/flower/1", "kind": "client", "id": 3, "seed": drawn("text", 1).hex()}
    file |= {"certificate": certificate, "authority": seeds[0].public_key.hex()}
    altered: list[tuple[str, Any]] = [("format", "secagg/flower/2"), ("kind", "authority"), ("id", 4), ("id", "three")]
    altered += [("seed", "00" * 32), ("seed", "00" * 31), ("certificate", "00" * 64), ("authority", "00" * 32)]
    altered += [("authority", "01" + "00" * 31)]
    for name, value in altered:
        text = json.dumps(file | {name: value})
        yield {"what": "key file", "name": f"{name} is {value}", "text": text, "reason": "parameter_out_of_range"}


# --- Files ------------------------------------------------------------------------------------------------------------


def kit() -> Files:
    """Make every file of the kit, by its name below ``kit/``."""
    for make in (framing, keys, masking, encodings):
        yield from make()
    sessions, sums = generate.committed(), generate_one_message.committed()
    for name in PAIRWISE:
        yield f"pairwise/{name}", pairwise(sessions[name])
    for name in ONE_MESSAGE:
        yield f"one_message/{name}", one_message(sums[name])
    yield from refusals(sessions, sums, sums[generate_one_message.NEGATIVE_FILE]["vectors"])


def main() -> None:
    """Write every file, and remove those that are no more."""
    made = dict(kit())
    for file in FOLDER.glob("*/*.json"):
        if f"{file.parent.name}/{file.stem}" not in made:
            file.unlink()
    for name, vector in made.items():
        (FOLDER / name).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"{name}.json").write_text(generate.to_text(vector), encoding="utf-8")


if __name__ == "__main__":
    main()
