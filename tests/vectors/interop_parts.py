"""Messages of the interop suite in parts: pairwise masks' by the tables here, one message's by declaration."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Final, cast

from secagg.crypto import key_derivation
from secagg.crypto.labels import Label, bind
from secagg.crypto.secret import Secret
from secagg.declared import Field, fields_of
from secagg.protocols.one_message.configuration import EpochRecord, HolderKeys, Offer
from secagg.protocols.one_message.messages import Upload
from secagg.protocols.one_message.requests import (
    Answer,
    CertifiedList,
    Delivery,
    ListSignature,
    OfferReceipt,
    Receipt,
    UploadList,
)
from secagg.session.certificates import SigningKey
from secagg.wire import MessageKind, Writer

Rows = Sequence[tuple[str, Any]]
"""Names and sizes. A list is repeated rows: as many as a 4-byte number says, or to the end if there is no name. A
number below 0 is the rest, modulo it; VARIABLE is a length of 4 bytes, and this many bytes."""
Parts = list[list[str]]
HEADER: Final = 7
VARIABLE: Final = "variable"
FOURS: Final = ("degree", "threshold", "committee size", "quorum", "minimum cohort", "maximum population")
OFFER: Final[Rows] = (
    *(("form", 1), ("task", VARIABLE), ("model digest", 32), ("round", 8), ("attempt", 4)),
    *(("mode", 1), ("suite", 1), ("topology", 1), *((name, 4) for name in FOURS)),
    *(("length of layout", 4), ("header of layout", HEADER)),
    ("segments", [("kind of segment", 1), ("modulus bits", 4), ("length", 8)]),
    *(("layout version", 32), ("check words", 1), ("application digest", 32), ("authority", 32)),
    *(("standing made", 8), ("roster digest", 32), ("revoked", [("number", 4)]), ("signature of standing", 64)),
    *(("graph commitment", 32), ("server nonce", 32)),
)


# --- How bytes are written --------------------------------------------------------------------------------------------


def secret(data: bytes) -> Secret:
    """Return bytes as a secret of the interop suite."""
    return Secret("of the kit", data)


def hashed(label: Label, *parts: bytes) -> bytes:
    """Return H of the specification."""
    return hashlib.sha256(bind(label, *parts)).digest()


def expanded(source: bytes, size: int, label: Label, *parts: bytes) -> bytes:
    """Return Expand of the specification."""
    return bytes(key_derivation.expand("of the kit", size, secret(source), label, *parts).expose())


def hexes(parts: Sequence[bytes]) -> list[str]:
    """Write several byte strings."""
    return [part.hex() for part in parts]


def digits(values: Any) -> list[str]:
    """Write integers of any size."""
    return [str(int(value)) for value in values]


def signing(seed: bytes) -> SigningKey:
    """Return the signing key of a seed."""
    return SigningKey(secret(seed))


# --- Pairwise masks ---------------------------------------------------------------------------------------------------


def pairwise_rows(*, is_active: bool, clients: int, packed: Sequence[int]) -> dict[str, Rows]:
    """Return the parts of every kind of a session's messages, after header and tag."""
    flags = (clients + 7) // 8
    signature: Rows = [("signature", 64)] if is_active else []
    commitment: Rows = [("commitment", 32)] if is_active else []
    credential: Rows = [("identity key", 32), ("grant", 72), ("signature", 64)] if is_active else []
    path: Rows = [("path", b"\x01")] if is_active else []
    keys: Rows = [("channel key", 32), ("mask key", 32)]
    endorsement = [("position", 4), ("identity key", 32), ("grant", 72), ("signature", 64)]
    digest: Rows = [("digest", 32)] if is_active else []
    return {
        "key_advertisement": [("client", 8), *keys, ("commitment", 32), *credential],
        "advertised_keys": [
            *(("list of ids", VARIABLE), ("root", 32), ("opening", 32)),
            *(("entries", [*keys, *commitment, *credential]), ("nodes", [("node", 32)])),
        ],
        "encrypted_shares": [*signature, ("", [("sealed", 80), *commitment])],
        "delivered_shares": [("sharers", flags), ("", [("sealed", 80), *commitment, *signature, *path])],
        "masked_input": [*signature, *((f"vector {at}", size) for at, size in enumerate(packed))],
        "survivor_set": [("sharers", flags), ("contributors", flags)],
        "survivor_signature": signature,
        "unmasking_request": [
            *(("contributors", flags), ("endorsements", endorsement)),
            ("views", [("upload digest", 32), ("signature", 64)]),
        ],
        "unmasking_shares": [*signature, ("held", -64 if is_active else -32), ("", [("share", 32), *digest])],
    }


class Cut:
    """A message that is split into its parts, from its first byte to its last."""

    def __init__(self, message: bytes, rows: Rows) -> None:
        self._message, self._at, self.parts = message, 0, Parts()
        self.take("header", HEADER)
        self.all(rows)
        if self._at != len(message):
            raise ValueError(f"{len(message) - self._at} bytes are left of a message")

    def take(self, name: str, size: int) -> int:
        """Cut off a part, and return it as an integer."""
        part = self._message[self._at : self._at + size]
        self._at += size
        if size:
            self.parts.append([name, part.hex()])
        return int.from_bytes(part, "big")

    def all(self, rows: Rows) -> None:
        """Cut off the parts of some rows."""
        for name, size in rows:
            if isinstance(size, int):
                self.take(name, size if size >= 0 else (len(self._message) - self._at) % -size)
            elif isinstance(size, bytes):
                for _ in range(self.take("number of nodes", len(size))):
                    self.take("node", 32)
            elif size == VARIABLE:
                self.take(name, self.take(f"length of {name}", 4))
            elif name:
                for _ in range(self.take(f"number of {name}", 4)):
                    self.all(size)
            else:
                while self._at < len(self._message):
                    self.all(size)


def pairwise_parts(kind: str, message: bytes, rows: Mapping[str, Rows]) -> Parts:
    """Cut a message of pairwise masks."""
    return Cut(message, OFFER if kind == "offer" else [("tag", 8), *rows[kind]]).parts


# --- One message ------------------------------------------------------------------------------------------------------

DECLARED: Final[Mapping[str, Any]] = {
    "record": EpochRecord,
    "keys": HolderKeys,
    "offer": Offer,
    "upload": Upload,
    "delivery": Delivery,
    "proposal": Offer,
    "greeting": OfferReceipt,
    "receipt": Receipt,
    "list": UploadList,
    "signature": ListSignature,
    "certified_list": CertifiedList,
    "answer": Answer,
}


def one_message_parts(name: str, message: bytes) -> Parts:
    """Cut a message of one message a client, by its name in a session."""
    parts = [["header", message[:HEADER].hex()], *_declared(DECLARED[name.partition("/")[0]].decode(message), "")]
    if "".join(part for _, part in parts) != message.hex():
        raise ValueError(f"the parts of {name} are not the message")
    return parts


def _declared(value: Any, before: str) -> Parts:
    """Cut the fields of a declaration; items of a list are numbered."""
    found = Parts()
    for field, how in _fields(value).items():
        held: Any = getattr(value, field)
        writer = Writer(MessageKind.LAYOUT)
        how.write(writer, held)
        written, name = writer.finish()[HEADER:], f"{before}{field}".replace("_", " ")
        items: Sequence[Any] = held if issubclass(type(held), tuple) else ()
        if items and all(is_dataclass(item) or isinstance(item, bytes) for item in items):
            found.append([f"number of {name}", written[:4].hex()])
            has_lengths = len(written) > 4 + sum(len(item) for item in items if isinstance(item, bytes))
            for at, item in enumerate(items):
                found += (
                    _declared(item, f"{name} {at} ") if is_dataclass(item) else _item(item, f"{name} {at}", has_lengths)
                )
        elif _fields(held):
            found += _declared(held, f"{name} ")
        else:
            found.append([name, written.hex()])
    return [part for part in found if part[1]]


def _fields(held: Any) -> dict[str, Field]:
    return fields_of(cast("type[Any]", type(held))) if is_dataclass(held) else {}


def _item(item: bytes, name: str, has_lengths: bool) -> Parts:  # noqa: FBT001 -- of a list, whose items are alike
    return [*([[f"length of {name}", len(item).to_bytes(4, "big").hex()]] if has_lengths else []), [name, item.hex()]]
