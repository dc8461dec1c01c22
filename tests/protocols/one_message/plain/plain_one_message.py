"""One message a client once more, from the README, in plain integers: slow, and without a line of the library.

It reads an offer, uploads and answers as bytes, plays the holders that keep their roots, and opens the sum.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, MLKEM768X25519PrivateKey, Suite

P = 65521
CHECKS = 8
HEADER = 7


def bind(label: str, *parts: bytes) -> bytes:
    return f"secagg/1/{label}".encode() + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def h(label: str, *parts: bytes) -> bytes:
    return hashlib.sha256(bind(label, *parts)).digest()


def expand(key: bytes, info: bytes, blocks: int = 1) -> bytes:
    data = block = b""
    for count in range(1, blocks + 1):
        block = hmac.new(key, block + info + bytes([count]), hashlib.sha256).digest()
        data += block
    return data


def stream(key: bytes, count: int) -> bytes:
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor().update(bytes(count))


def words(key: bytes, count: int) -> list[int]:
    data, found, at = stream(key, 4 * count + 4096), list[int](), 0
    while len(found) < count:
        word = int.from_bytes(data[at : at + 2], "little")
        found += [word] if word < P else []
        at += 2
    return found


class Fields:
    """Fields one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, HEADER

    def fixed(self, size: int) -> bytes:
        self.at += size
        assert self.at <= len(self.data)
        return self.data[self.at - size : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.fixed(size), "big")

    def variable(self) -> bytes:
        return self.fixed(self.number(4))

    def end(self) -> None:
        assert self.at == len(self.data)


@dataclass
class Offer:
    """What an offer says, and what follows from it: T0, the seed of the public polynomials, and D."""

    is_active: bool
    is_hybrid: bool
    terms: bytes
    t0: bytes
    seed: bytes
    context: bytes
    holders: list[int]
    threshold: int
    packing: int
    degree: int
    modulus: int
    guard: int
    dropped: int
    capacity: int
    segments: list[Segment]


class Segment(NamedTuple):
    """A run of values: of how many bits, between which bounds, and with how many fine bits."""

    length: int
    ring: int
    bounds: tuple[int, int] | None
    fine: int


def read_offer(message: bytes) -> Offer:
    reader = Fields(message)
    record = reader.variable()
    keys = [reader.variable() for _ in range(reader.number(4))]
    start = reader.at
    assert reader.number(1) == 3
    reader.variable()
    reader.variable()
    degree, modulus, guard, dropped = (reader.number(size) for size in (2, 1, 1, 1))
    segments = list[Segment]()
    for _ in range(reader.number(4)):
        length, bits, has_bounds = reader.number(8), reader.number(1), reader.number(1)
        bounds = (reader.number(8) - 2**63, reader.number(8) - 2**63) if has_bounds else None
        segments.append(Segment(length, bits, bounds, reader.number(1)))
    capacity = reader.number(4)
    # Holders, corrupted, threshold, packing and quorum stand in the record too.
    reader.fixed(2 + 2 + 2 + 2 + 2)
    reader.fixed(8)
    reader.fixed(8 + 32)
    reader.fixed(4 * reader.number(4) + 64)
    stated = reader.data[start : reader.at]
    terms = reader.fixed(8 + 32 + 32)
    for _ in range(reader.number(4)):
        reader.fixed(2)
        reader.variable()
    reader.end()
    of_record = Fields(record)
    of_record.fixed(8)
    is_active, is_hybrid = (bool(of_record.number(1)) for _ in range(2))
    _, threshold, packing, _ = (of_record.number(2) for _ in range(4))
    of_record.fixed(8 + 32)
    holders = list[int]()
    for _ in range(of_record.number(4)):
        holders.append(of_record.number(8))
        of_record.fixed(32)
    unsigned = record[: of_record.at] + bytes(4)
    epoch = h("one-message-epoch", *keys)
    return Offer(
        is_active=is_active,
        is_hybrid=is_hybrid,
        terms=terms,
        t0=h("one-message-configuration", epoch, b"SAGG\1" + (110).to_bytes(2, "big") + stated),
        seed=h("one-message-public-seed", epoch),
        context=h("one-message-record", unsigned),
        holders=holders,
        threshold=threshold,
        packing=packing,
        degree=degree,
        modulus=modulus,
        guard=guard,
        dropped=dropped,
        capacity=capacity,
        segments=segments,
    )


@dataclass
class Upload:
    """What a client sent, verified."""

    client: int
    digest: bytes
    challenge: bytes
    vector: bytes
    polynomial: list[list[int]]
    """T rows of 8."""
    sealed: list[bytes]
    parts: tuple[bytes, bytes, bytes]
    """The client, the digest of the terms, and the nonce."""


def read_upload(offer: Offer, message: bytes) -> Upload:
    """Read an upload and verify everything that its client signed."""
    reader = Fields(message)
    assert reader.fixed(32) == offer.t0
    client, identity = reader.fixed(8), reader.variable()
    t = h("one-message-terms", reader.fixed(8), reader.fixed(32), reader.fixed(32))
    nonce, pieces = reader.fixed(32), [reader.fixed(32) for _ in range(reader.number(4))]
    vector, polynomial = reader.variable(), reader.variable()
    # Uploads of vectors have fewer than 2^16 coefficients, and so one piece.
    assert pieces == [hashlib.sha256(bind("upload-piece", offer.t0, client, bytes(4)) + vector).digest()]
    sealed = [reader.variable() for _ in range(reader.number(4))]
    signature = reader.variable()
    reader.end()
    level = [h("one-message-leaf", holder_string(offer, j), share) for j, share in enumerate(sealed)]
    while len(level) > 1:
        pairs = [h("merkle-node", level[j], level[j + 1]) for j in range(0, len(level) - 1, 2)]
        level = pairs + level[2 * len(pairs) :]
    hashed = h("one-message-vector", *pieces)
    challenge = h("one-message-statement", offer.t0, client, t, nonce, hashed, level[0])
    digest = h("one-message-signed-upload", challenge, polynomial)
    if identity:
        signed = bind("one-message-signed-upload", offer.t0, digest)
        Ed25519PublicKey.from_public_bytes(identity[:32]).verify(signature, signed)
    flat = [int.from_bytes(polynomial[at : at + 2], "little") for at in range(0, len(polynomial), 2)]
    rows = [flat[at : at + CHECKS] for at in range(0, len(flat), CHECKS)]
    assert len(rows) == offer.threshold
    return Upload(int.from_bytes(client, "big"), digest, challenge, vector, rows, sealed, (client, t, nonce))


def holder_string(offer: Offer, position: int) -> bytes:
    return position.to_bytes(2, "big") + offer.holders[position].to_bytes(8, "big")


def unseal(offer: Offer, root: bytes, sealed: bytes, info: bytes) -> bytes:
    if not offer.is_hybrid:
        key = X25519PrivateKey.from_private_bytes(expand(root, bind("sealing-x25519-key", offer.context)))
        return Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM).decrypt(sealed, key, info)
    seed = expand(root, bind("sealing-hybrid-mlkem768-seed", offer.context), 2)
    scalar = expand(root, bind("sealing-hybrid-x25519-key", offer.context))
    pair = MLKEM768X25519PrivateKey(
        MLKEM768PrivateKey.from_seed_bytes(seed), X25519PrivateKey.from_private_bytes(scalar)
    )
    return Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM).decrypt(sealed, pair, info)


def open_share(offer: Offer, position: int, root: bytes, upload: Upload) -> list[int]:
    """Open a holder's share, check it, and return its words of the secret."""
    client, t, nonce = upload.parts
    parts = (offer.t0, client, holder_string(offer, position), t, nonce)
    opened = unseal(offer, root, upload.sealed[position], bind("one-message-sealing", *parts))
    columns = offer.degree // offer.packing
    if position < offer.threshold - offer.packing:
        label = bind("one-message-share", bind("one-message-dealt", *parts))
        share = words(expand(opened, label), columns + CHECKS)
    else:
        share = [int.from_bytes(opened[at : at + 2], "little") for at in range(0, len(opened), 2)]
    assert len(share) == columns + CHECKS
    assert max(share) < P
    r = words(expand(upload.challenge, bind("one-message-challenge", b"")), columns * CHECKS)
    for check in range(CHECKS):
        held = share[columns + check] + sum(share[k] * r[k * CHECKS + check] for k in range(columns))
        due = sum(row[check] * pow(position + 1, power, P) for power, row in enumerate(upload.polynomial))
        assert held % P == due % P
    return share[:columns]


def recover(offer: Offer, answers: dict[int, list[int]]) -> list[int]:
    """Interpolate the sum of the secrets: rho values of each polynomial, at 0, -1, ..."""
    present = sorted(answers)[: offer.threshold]
    secret = list[int]()
    for slot in range(offer.packing):
        factors = list[int]()
        for i in present:
            top = bottom = 1
            for j in present:
                if j != i:
                    top, bottom = top * (-slot - j - 1) % P, bottom * (i - j) % P
            factors.append(top * pow(bottom, -1, P) % P)
        for column in range(offer.degree // offer.packing):
            value = sum(factor * answers[i][column] for factor, i in zip(factors, present, strict=True)) % P
            secret.append(value - P if value > P // 2 else value)
    return secret


def product(a: Sequence[int], s: Sequence[int]) -> list[int]:
    """Return a s modulo X^n + 1 through two products of long integers."""
    n, size = len(a), 20
    left = int.from_bytes(b"".join(value.to_bytes(size, "little") for value in a), "little")
    result = [0] * n
    for sign in (1, -1):
        part = b"".join(max(sign * value, 0).to_bytes(size, "little") for value in s)
        whole = (left * int.from_bytes(part, "little")).to_bytes(2 * n * size, "little")
        for index in range(2 * n - 1):
            value = int.from_bytes(whole[index * size : (index + 1) * size], "little")
            result[index % n] += value * (sign if index < n else -sign)
    return result


def runs(offer: Offer, counts: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return runs of coefficients of which the same bits travel: how many, dropped bits, sent bits."""
    found = list[tuple[int, int, int]]()
    for segment, count in zip(offer.segments, counts, strict=True):
        kind = (offer.dropped, offer.modulus - offer.dropped)
        if segment.fine:
            kind = (segment.fine, segment.ring - segment.fine)
        before = found.pop()[0] if found and found[-1][1:] == kind else 0
        found.append((before + count, *kind))
    return found


def coefficients(offer: Offer, vector: bytes, counts: Sequence[int]) -> list[int]:
    """Put the planes of one upload together, shifted back by what was dropped."""
    whole, at = list[int](), 0
    for count, dropped, sent in runs(offer, counts):
        found, shift = [0] * count, dropped
        for bits in [32] * (sent // 32) + [part for part in (16, 8, 4, 2, 1) if sent & part]:
            size = -(-count * bits // 8)
            plane, at = vector[at : at + size], at + size
            for index in range(count):
                if bits >= 8:
                    value = int.from_bytes(plane[index * bits // 8 : (index + 1) * bits // 8], "little")
                else:
                    value = plane[index % size] >> (bits * (index // size)) & ((1 << bits) - 1)
                found[index] += value << shift
            shift += bits
        whole += found
    assert at == len(vector)
    return whole


def check_words(offer: Offer, number: int, values: Sequence[int], count: int) -> list[int]:
    """Return the inner products of a rounded segment with a public vector, shifted for each word."""
    bits = offer.segments[number].ring
    size = max(8, 1 << (bits - 1).bit_length()) // 8
    key = expand(offer.seed, bind("one-message-check-vector", number.to_bytes(4, "big")))[:16]
    data = Cipher(algorithms.AES(key), modes.CTR((2).to_bytes(16, "big"))).encryptor()
    made = data.update(bytes(size * (len(values) + count - 1)))
    public = [int.from_bytes(made[at : at + size], "little") for at in range(0, len(made), size)]
    return [
        sum(a * b for a, b in zip(values, public[word : word + len(values)], strict=True)) % (1 << bits)
        for word in range(count)
    ]


def public_polynomial(offer: Offer, block: int) -> list[int]:
    limbs = -(-offer.modulus // 28)
    bits = -(-offer.modulus // limbs)
    size = 4 * limbs * offer.degree
    data = stream(offer.seed, (block + 1) * size)[block * size :]
    a = [0] * offer.degree
    for limb in range(limbs):
        for index in range(offer.degree):
            at = 4 * (limb * offer.degree + index)
            word = int.from_bytes(data[at : at + 4], "little", signed=True)
            a[index] += word >> (32 - bits) << (limb * bits)
    return [value % (1 << offer.modulus) for value in a]


def open_sum(offer: Offer, vectors: Sequence[bytes], secret: Sequence[int]) -> list[list[int]]:
    """Remove the masks: return the sum of each segment modulo its ring."""
    shapes = list[tuple[int, int, int]]()
    for segment in offer.segments:
        if segment.bounds is None:
            shapes.append((1, segment.ring, 0 if segment.fine else offer.modulus - segment.ring))
        else:
            bits = (offer.capacity * (segment.bounds[1] - segment.bounds[0])).bit_length()
            shapes.append(((offer.modulus - offer.guard) // bits, bits, offer.guard))
    counts = [-(-segment.length // k) for segment, (k, _, _) in zip(offer.segments, shapes, strict=True)]
    total = [0] * sum(counts)
    for vector in vectors:
        sent = coefficients(offer, vector, counts)
        total = [left + right for left, right in zip(total, sent, strict=True)]
    for start in range(0, len(total), offer.degree):
        mask = product(public_polynomial(offer, start // offer.degree), secret)
        for index in range(start, min(start + offer.degree, len(total))):
            total[index] -= mask[index - start]
    bias = len(vectors) // 2 if offer.dropped else 0
    pieces, first = list[list[int]](), 0
    for segment, (k, bits, lowest), size in zip(offer.segments, shapes, counts, strict=True):
        half, modulus = (0, 1 << bits) if segment.fine else (1 << (lowest - 1), 1 << offer.modulus)
        off = 0 if segment.fine else bias
        part = [(value - off + half) % modulus >> lowest for value in total[first : first + size]]
        fields = [value >> (j * bits) & ((1 << bits) - 1) for j in range(k) for value in part]
        pieces.append(fields[: segment.length])
        first += size
    fine = [number for number, segment in enumerate(offer.segments) if segment.fine]
    inputs = len(offer.segments) - len(fine)
    for number, words in zip(fine, pieces[inputs:], strict=True):
        assert check_words(offer, number, pieces[number], len(words)) == words
    assert not any(pieces[inputs - 1])
    sums = list[list[int]]()
    for piece, segment in zip(pieces[: inputs - 1], offer.segments, strict=False):
        added = segment.bounds[0] * len(vectors) if segment.bounds else -(len(vectors) // 2) if segment.fine else 0
        sums.append([(value + added) % (1 << segment.ring) for value in piece])
    return sums
