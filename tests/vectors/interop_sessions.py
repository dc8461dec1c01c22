"""Sessions of the interop suite: those of the vectors, with messages in parts, and the parties' computations."""

from __future__ import annotations

import hashlib
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.crypto.key_agreement import X25519KeyPair
from secagg.crypto.labels import Label
from secagg.crypto.public_keys import KeyRole
from secagg.crypto.ring import Ring
from secagg.protocols.one_message.configuration import Offer
from secagg.protocols.one_message.lattice import Sampler
from secagg.protocols.one_message.messages import Upload
from secagg.protocols.pairwise_mask.configuration import decode_clients, roster_of
from secagg.wire import MessageKind, Writer

from . import generate
from .interop_parts import (
    digits,
    expanded,
    hashed,
    hexes,
    one_message_parts,
    pairwise_parts,
    pairwise_rows,
    secret,
    signing,
)
from .one_message_play import NOW

Vector = dict[str, Any]


def pairwise(vector: Vector) -> Vector:
    """Return a session with its messages in parts, and its clients' intermediate results."""
    messages = {name: bytes.fromhex(message) for name, message in vector["messages"].items()}
    configuration = generate.configuration_of(vector["parameters"])
    told = next(message for name, message in messages.items() if name.endswith("advertised_keys"))
    length = int.from_bytes(told[15:19], "big")
    listed, (root, opening) = told[19 : 19 + length], (told[19 + length :][at : at + 32] for at in (0, 32))
    roster, ids = roster_of(configuration, listed, root, opening), decode_clients(listed)
    rings = [
        (Ring(p), size + max(configuration.check_words, -(-64 // p))) for p, size in vector["parameters"]["layout"]
    ]
    bits = configuration.maximum_population.bit_length()
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
    rows = pairwise_rows(is_active=configuration.is_active, clients=len(ids), packed=packed)
    parts = {name: pairwise_parts(name.rpartition("/")[2], message, rows) for name, message in messages.items()}
    return _session(vector, "pairwise_mask/3", computed | {"pairwise_masks": masks}, parts)


def _session(vector: Vector, protocol: str, computed: Vector, parts: Vector) -> Vector:
    left_out = {"schema", "protocol", "claims", "provenance", "comment", "messages", "operations", "result"}
    head = {"about": f"A session: {vector['comment']}.", "protocol": protocol}
    given = {name: value for name, value in vector.items() if name not in left_out}
    steps = [{name: value for name, value in step.items() if name != "expect"} for step in vector["operations"]]
    return head | given | {"computed": computed, "messages": parts, "steps": steps, "result": vector["result"]}


def one_message(vector: Vector) -> Vector:
    """Return a sum with its messages in parts, and its clients' draws."""
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
        about = (upload.header.terms.digest, payload)
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
    parts = {name: one_message_parts(name, message) for name, message in messages.items()}
    return _session(vector | {"setting": vector["setting"] | {"now": NOW}}, "one_message/1", computed, parts)


def _hedged(root: bytes, number: int) -> bytes:
    key = expanded(root, 32, Label.HEDGED_COINS, number.to_bytes(8, "big"))
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(32))
