"""LightSecAgg reimplemented from the README in plain integers: slow, and without library code.

It runs clients with given coins, and the server that opens the sum.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

Q = 2**31 - 1
HEADER = 7
SPARE = 16
Draw = Callable[[int], bytes]


def bind(label: str, *parts: bytes) -> bytes:
    return f"secagg/1/{label}".encode() + b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def interpolated(points: Sequence[tuple[int, int]], at: int) -> int:
    """Return the value of the polynomial through some points, by Lagrange's formula."""
    total = 0
    for x, y in points:
        top = bottom = 1
        for other, _ in points:
            if other != x:
                top = top * (at - other) % Q
                bottom = bottom * (x - other) % Q
        total += y * top * pow(bottom, -1, Q)
    return total % Q


@dataclass
class Sum:
    """Fields of the offer."""

    rings: list[tuple[int, int]]
    """Bits and length of each segment."""
    population: int
    privacy: int
    target: int
    t0: bytes

    @property
    def limb_bits(self) -> int:
        """Maximum value whose sum over all clients is below the modulus."""
        bits = 1
        while self.population * 2 ** (bits + 1) <= Q:
            bits += 1
        return bits

    def limbs(self, bits: int) -> int:
        return -(-bits // self.limb_bits)

    def offset(self, bits: int) -> int:
        """Half of every limb; the highest has the remaining bits."""
        return (1 << (bits - 1)) + sum(1 << (self.limb_bits * limb - 1) for limb in range(1, self.limbs(bits)))

    @property
    def length(self) -> int:
        return sum(length * self.limbs(bits) for bits, length in self.rings) + 1

    @property
    def columns(self) -> int:
        return -(-self.length // (self.target - self.privacy))


def read_offer(offer: bytes) -> Sum:
    assert offer[HEADER] == 3
    at = HEADER + 1
    at += 4 + int.from_bytes(offer[at : at + 4], "big")
    at += 8 + 16 + 32 + 32 + 1
    size = int.from_bytes(offer[at : at + 4], "big")
    layout, numbers = offer[at + 4 : at + 4 + size], offer[at + 4 + size :]
    count = int.from_bytes(layout[HEADER : HEADER + 4], "big")
    rings = [struct.unpack_from(">BIQ", layout, HEADER + 4 + 13 * number)[1:] for number in range(count)]
    population, privacy, target = struct.unpack(">3I", numbers)
    t0 = hashlib.sha256(bind("coded-mask-configuration", offer)).digest()
    return Sum([(bits, length) for bits, length in rings], population, privacy, target, t0)


def body(message: bytes) -> bytes:
    """Return the one field after T0."""
    return message[HEADER + 32 + 4 :]


def entries(message: bytes) -> dict[int, bytes]:
    found, at = dict[int, bytes](), HEADER + 32 + 4
    while at < len(message):
        client, size = struct.unpack_from(">QI", message, at)
        found[client] = message[at + 12 : at + 12 + size]
        at += 12 + size
    return found


def elements(data: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def packed(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


class PlainClient:
    """A client that draws like the library's: its root, its mask, and the uniform rows."""

    def __init__(self, due: Sum, client: int, draw: Draw) -> None:
        self.due, self.client, self.draw = due, client, draw
        root = draw(32)
        info = bind("sealing-x25519-key", due.t0) + b"\1"
        self.private = X25519PrivateKey.from_private_bytes(hmac.new(root, info, hashlib.sha256).digest())
        self.key = self.private.public_key().public_bytes_raw()
        self.mask = self.uniform(due.length)

    def uniform(self, count: int) -> list[int]:
        words = (word % 2**31 for word in elements(self.draw(4 * (count + SPARE))))
        return [word for word in words if word != Q][:count]

    def pieces(self, keys: dict[int, bytes]) -> dict[int, list[int]]:
        """Return each client's piece: one value of a polynomial for each column."""
        due = self.due
        rows, columns = due.target - due.privacy, due.columns
        filled = [*self.mask, *[0] * (rows * columns - due.length)]
        noise = self.uniform(due.privacy * columns)
        both = [*filled, *noise]
        matrix = [both[row * columns : (row + 1) * columns] for row in range(due.target)]
        points = [[(-(row + 1) % Q, matrix[row][column]) for row in range(due.target)] for column in range(columns)]
        return {
            client: [interpolated(column, position + 1) for column in points]
            for position, client in enumerate(sorted(keys))
        }

    def open_piece(self, keys: dict[int, bytes], sender: int, sealed: bytes) -> list[int]:
        parts = [part for client in sorted(keys) for part in (client.to_bytes(8, "big"), keys[client])]
        roster = hashlib.sha256(bind("coded-mask-roster", self.due.t0, *parts)).digest()
        info = bind("coded-mask-sealing", roster, sender.to_bytes(8, "big"), self.client.to_bytes(8, "big"))
        hpke = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
        return elements(hpke.decrypt(sealed, self.private, info))

    def masked(self, values: Sequence[Sequence[int]]) -> list[int]:
        due = self.due
        limbs = [
            ((value + due.offset(bits)) % 2**bits) // 2 ** (due.limb_bits * limb) % 2**due.limb_bits
            for (bits, _), part in zip(due.rings, values, strict=True)
            for limb in range(due.limbs(bits))
            for value in part
        ]
        return [(value + mask) % Q for value, mask in zip([*limbs, 1], self.mask, strict=True)]


def open_sum(due: Sum, uploads: Sequence[Sequence[int]], answers: dict[int, list[int]]) -> tuple[list[list[int]], int]:
    """Return the sums and the count of uploads; answers are by position on the roster, from 0."""
    rows = due.target - due.privacy
    mask = [
        interpolated([(position + 1, answer[column]) for position, answer in answers.items()], -(row + 1) % Q)
        for row in range(rows)
        for column in range(due.columns)
    ]
    total = [(sum(column) - one) % Q for column, one in zip(zip(*uploads, strict=True), mask, strict=False)]
    sums, at = list[list[int]](), 0
    for bits, length in due.rings:
        sums.append([0] * length)
        for limb in range(due.limbs(bits)):
            for place in range(length):
                sums[-1][place] += total[at + place] * 2 ** (due.limb_bits * limb)
            at += length
        sums[-1] = [(value - len(uploads) * due.offset(bits)) % 2**bits for value in sums[-1]]
    return sums, total[-1]


def recomputed(
    due: Sum,
    draws: dict[int, Draw],
    inputs: Mapping[int, Sequence[Sequence[int]]],
    said: Mapping[str, Mapping[int, bytes]],
) -> tuple[list[list[int]], int]:
    """Recompute every message of a sum, compare it with the recorded one, and open the sum."""
    clients = {name: PlainClient(due, name, draw) for name, draw in draws.items()}
    keys = {name: client.key for name, client in clients.items()}
    assert {name: body(message) for name, message in said["key"].items()} == keys
    assert all(entries(roster) == keys for roster in said["roster"].values())
    dealt = {name: clients[name].pieces(keys) for name in said["pieces"]}
    held, names = dict[int, dict[int, list[int]]](), list(clients)
    for name, delivery in said["delivery"].items():
        pieces = entries(delivery)
        assert pieces == {sender: entries(message)[name] for sender, message in said["pieces"].items()}
        held[name] = {sender: clients[name].open_piece(keys, sender, sealed) for sender, sealed in pieces.items()}
        assert held[name] == {sender: own[name] for sender, own in dealt.items()}
    for name, upload in said["input"].items():
        assert body(upload) == packed(clients[name].masked(inputs[name]))
    survivors, answers = sorted(said["input"]), dict[int, list[int]]()
    assert all(sorted(entries(asked)) == survivors for asked in said["survivors"].values())
    for name, answer in said["answer"].items():
        columns = zip(*(held[name][survivor] for survivor in survivors), strict=True)
        answers[names.index(name)] = [sum(column) % Q for column in columns]
        assert body(answer) == packed(answers[names.index(name)])
    chosen = dict(list(answers.items())[-due.target :])
    return open_sum(due, [elements(body(upload)) for upload in said["input"].values()], chosen)
