"""Nitro documents under a root of our own."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any

import cbor2
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from .authority import NOW, Issued, issue, p384, sign

BIND = bytes(range(64))


@cache
def chain() -> tuple[Issued, ...]:
    """Root, region, zone, instance and enclave, as AWS nests them."""
    root = issue("nitro root", p384(0), ca=True)
    region = issue("region", p384(1), root, ca=True, path_length=2)
    zone = issue("zone", p384(2), region, ca=True, path_length=1)
    instance = issue("instance", p384(3), zone, ca=True, path_length=0)
    start, end = NOW - timedelta(hours=1), NOW + timedelta(hours=2)
    return root, region, zone, instance, issue("enclave", p384(4), instance, start=start, end=end)


def registers() -> dict[int, bytes]:
    empty = {index: bytes(48) for index in range(16)}
    return empty | {index: bytes([0xA0 + index]) * 48 for index in (0, 1, 2, 3, 4, 8)}


@dataclass(frozen=True)
class NitroDocument:
    """A document to be; ``without`` leaves fields of the payload out and ``fields`` overrides them."""

    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    without: tuple[str, ...] = ()
    chain: tuple[Issued, ...] = field(default_factory=chain)
    raw_payload: bytes | None = None

    def payload(self) -> bytes:
        if self.raw_payload is not None:
            return self.raw_payload
        payload: dict[str, Any] = {
            "module_id": "i-0-enc0",
            "digest": "SHA384",
            "timestamp": int((NOW - timedelta(seconds=5)).timestamp() * 1000),
            "pcrs": registers(),
            "certificate": self.chain[-1].der,
            "cabundle": [issued.der for issued in self.chain[:-1]],
            "public_key": None,
            "user_data": BIND,
            "nonce": None,
        }
        return cbor2.dumps({name: value for name, value in (payload | self.fields).items() if name not in self.without})

    def encode(self) -> bytes:
        payload = self.payload()
        body = b"\x59" + len(payload).to_bytes(2, "big") + payload
        message = cbor2.dumps(["Signature1", b"\xa1\x01\x38\x22", b"", payload])
        r, s = decode_dss_signature(sign(self.chain[-1].key, message))
        return b"\x84\x44\xa1\x01\x38\x22\xa0" + body + b"\x58\x60" + r.to_bytes(48, "big") + s.to_bytes(48, "big")
