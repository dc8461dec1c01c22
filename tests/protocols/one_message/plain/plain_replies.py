"""What the server and the holders send of one sum, from uploads, roots and identities; without the library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from . import plain_one_message as plain

Vector = dict[str, Any]
KINDS = {
    "greeting": 111,
    "delivery": 104,
    "receipt": 105,
    "list": 106,
    "signature": 107,
    "certified_list": 108,
    "answer": 109,
}
ACCEPTED = 0


def replies(vector: Vector) -> dict[str, bytes]:
    """Return every message after the uploads."""
    made = Replies(vector)
    terms = plain.h("one-message-terms", *(made.offer.terms[start:end] for start, end in ((0, 8), (8, 40), (40, 72))))
    found = {f"greeting/{at}": made.signed(at, "greeting", terms) for at in made.positions}
    found |= {f"delivery/{at}": made.delivery(at) for at in made.positions}
    found |= {f"receipt/{at}": made.receipt(at, made.uploads) for at in made.positions}
    found["list"] = made.upload_list
    found |= {f"signature/{at}": made.signed(at, "signature", made.digest) for at in made.positions}
    signatures = [number(at, 2) + variable(made.signature(at, "signature", made.digest)) for at in made.positions]
    whole = variable(made.upload_list) + number(len(signatures), 4) + b"".join(signatures)
    found["certified_list"] = message("certified_list", whole)
    return found | {f"answer/{at}": made.signed(at, "answer", made.digest, made.sums(at)) for at in made.positions}


def opened(vector: Vector, roles: Sequence[str]) -> list[list[int]]:
    """Open the sum of some uploads with the roots of all holders."""
    made = Replies(vector)
    uploads = [made.of_role(role) for role in roles]
    answers = {at: made.total(at, uploads) for at in range(made.offer.threshold)}
    return plain.open_sum(made.offer, [one.vector for one in uploads], plain.recover(made.offer, answers))


class Replies:
    """Server and holders of a vector."""

    def __init__(self, vector: Vector) -> None:
        self.vector = vector
        self.messages = {name: bytes.fromhex(sent) for name, sent in vector["messages"].items()}
        self.offer = plain.read_offer(self.messages["offer"])
        self.positions = range(len(self.offer.holders))
        self.uploads = [self.of_role(role) for role in vector["inputs"]]
        listed = sorted((one.client, one.digest) for one in self.uploads)
        entries = b"".join(number(client, 8) + digest for client, digest in listed)
        self.upload_list = message("list", self.offer.t0 + self.offer.terms + number(len(listed), 4) + entries)
        self.digest = plain.h("one-message-list", self.upload_list)

    def of_role(self, role: str) -> plain.Upload:
        """Read and verify the upload of a client."""
        return plain.read_upload(self.offer, self.messages[role.replace("client", "upload")])

    def delivery(self, position: int) -> bytes:
        """Show a holder its share of every upload."""
        shares = b"".join(self.delivered(position, role) for role in self.vector["inputs"])
        return message("delivery", self.offer.t0 + number(len(self.uploads), 4) + shares)

    def delivered(self, position: int, role: str) -> bytes:
        """Show a holder the header, digest and polynomial of one upload, its own share and the way to the root."""
        reader = plain.Fields(self.messages[role.replace("client", "upload")])
        reader.fixed(32)
        start = reader.at
        reader.fixed(8)
        reader.variable()
        reader.fixed(8 + 32 + 32 + 32)
        header = reader.data[start : reader.at]
        pieces, _, polynomial = (
            [reader.fixed(32) for _ in range(reader.number(4))],
            reader.variable(),
            reader.variable(),
        )
        sealed = [reader.variable() for _ in range(reader.number(4))]
        signature = reader.variable()
        digest = plain.h("one-message-vector", *pieces)
        level = [
            plain.h("one-message-leaf", plain.holder_string(self.offer, at), share) for at, share in enumerate(sealed)
        ]
        path, place = list[bytes](), position
        while len(level) > 1:
            if place ^ 1 < len(level):
                path.append(level[place ^ 1])
            pairs = [plain.h("merkle-node", level[at], level[at + 1]) for at in range(0, len(level) - 1, 2)]
            level, place = pairs + level[2 * len(pairs) :], place // 2
        shown = header + digest + variable(polynomial) + variable(sealed[position])
        return shown + number(len(path), 4) + b"".join(path) + variable(signature)

    def receipt(self, position: int, uploads: Sequence[plain.Upload]) -> bytes:
        """Accept every upload, once the share of each was opened and checked."""
        self.total(position, uploads)
        judged = b"".join(one.digest + bytes([ACCEPTED]) for one in uploads)
        body = self.offer.t0 + number(position, 2) + number(len(uploads), 4) + judged
        return message("receipt", body + variable(self.signature(position, "receipt", judged)))

    def signed(self, position: int, what: str, digest: bytes, *sums: bytes) -> bytes:
        """Return a signature on the list, or an answer to it."""
        body = self.offer.t0 + number(position, 2) + digest + b"".join(map(variable, sums))
        return message(what, body + variable(self.signature(position, what, digest, *sums)))

    def signature(self, position: int, what: str, *parts: bytes) -> bytes:
        """Sign as a holder; in ``semi_honest`` mode nobody does."""
        if not self.offer.is_active:
            return b""
        label = {
            "greeting": "one-message-offer-receipt",
            "receipt": "one-message-receipt",
            "signature": "one-message-signed-list",
            "answer": "one-message-answer",
        }
        key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(self.vector["identities"][f"holder/{position}"]))
        return key.sign(plain.bind(label[what], self.offer.t0, number(position, 2), *parts))

    def sums(self, position: int) -> bytes:
        """Return the words of an answer."""
        return b"".join(word.to_bytes(2, "little") for word in self.total(position, self.uploads))

    def total(self, position: int, uploads: Sequence[plain.Upload]) -> list[int]:
        """Add a holder's shares of some uploads."""
        root = bytes.fromhex(self.vector["roots"][f"holder/{position}"][0])
        held = [plain.open_share(self.offer, position, root, one) for one in uploads]
        return [sum(column) % plain.P for column in zip(*held, strict=True)]


def message(kind: str, body: bytes) -> bytes:
    return b"SAGG\1" + number(KINDS[kind], 2) + body


def number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big")


def variable(data: bytes) -> bytes:
    return number(len(data), 4) + data
