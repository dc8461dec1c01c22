"""AWS Nitro Enclaves attestation documents: COSE_Sign1 under a certificate that is valid for three hours.

A document contains its chain, from the root to the enclave's certificate. AWS publishes no revocation lists for these
certificates and tells verifiers not to check revocation; short validity periods replace it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from secagg.errors import Reason

from .certificates import ECDSA_P384, MAXIMUM_CHAIN, Chain, has_begun, joined_signature, verify_chain
from .claims import NITRO_TPM, QEMU, Claims, EvidenceFormat, invalid, malformed, refused, require_length, sha256

OPENING: Final = bytes.fromhex("8444a1013822a059")
"""Array of four; protected header {1: -35} (ES384); empty unprotected header; payload with a two-byte length."""
SIGNATURE_HEADER: Final = bytes.fromhex("5860")
SIGNATURE_BYTES: Final = 96
UNSIGNED: Final = b"\x58\x40" + bytes(64)
"""What QEMU's emulated module writes instead of a signature."""
PAYLOAD_START: Final = len(OPENING) + 2
SIGNED_PREFIX: Final = b"\x84\x6aSignature1\x44\xa1\x01\x38\x22\x40"
"""Start of the Sig_structure of [RFC 9052] section 4.4; the payload and its header follow."""
REGISTER_BYTES: Final = 48
IMAGE_REGISTERS: Final = (0, 1, 2)
MAXIMUM_REGISTERS: Final = 32
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MILLISECOND: Final = 253_402_300_799_999

INTEGER, BYTES, TEXT, ARRAY, MAP = 0, 2, 3, 4, 5
"""The CBOR major types that are read."""
LONG_HEADS: Final = {24: (1, 24), 25: (2, 1 << 8), 26: (4, 1 << 16), 27: (8, 1 << 32)}
"""Number of bytes that follow a head, and the smallest value that needs them."""
NULL: Final = b"\xf6"
MAXIMUM_TEXT_BYTES: Final = 256
TPM_REGISTERS: Final = "nitrotpm_pcrs"
"""The field that NitroTPM documents have instead of ``pcrs``."""
REQUIRED_FIELDS: Final = frozenset({"digest", "timestamp", "pcrs", "certificate", "cabundle"})


def verify_nitro(document: bytes, roots: frozenset[bytes], now: datetime) -> Claims:
    """Check a document and its chain, and return what it claims.

    Implements: [RFC 9052] section 4.4, for one signer and ES384.
    """
    if document.startswith(OPENING) and document.endswith(UNSIGNED):
        raise refused(QEMU)
    if not document.startswith(OPENING):
        raise malformed("a Nitro document must be an untagged COSE_Sign1 with ES384 and no unprotected headers")
    length = int.from_bytes(document[len(OPENING) : PAYLOAD_START], "big")
    payload_end = PAYLOAD_START + length
    require_length(document, payload_end + len(SIGNATURE_HEADER) + SIGNATURE_BYTES, "a Nitro document")
    signature_start = payload_end + len(SIGNATURE_HEADER)
    if document[payload_end:signature_start] != SIGNATURE_HEADER:
        raise malformed("a Nitro document must end with a signature of 96 bytes")
    payload = read_payload(document[PAYLOAD_START:payload_end])
    encoded = [payload.certificate, *reversed(payload.cabundle)]
    chain = verify_chain(encoded, roots=roots, scheme=ECDSA_P384, now=now)
    message = SIGNED_PREFIX + document[len(OPENING) - 1 : payload_end]
    signature = joined_signature(document[signature_start:])
    ECDSA_P384.verify(chain.leaf.public_key, signature, message, "the Nitro document")
    return Claims(
        format=EvidenceFormat.NITRO,
        measurement=MappingProxyType({f"PCR{index}": value for index, value in payload.pcrs.items()}),
        signer=payload.pcrs.get(8, b""),
        debug=any(not any(payload.pcrs[index]) for index in IMAGE_REGISTERS),
        migratable=False,
        privilege_level=None,
        sibling_threads=False,
        tcb=None,
        lists={},
        report_data=payload.user_data,
        signed_digest=sha256(message),
        issued_at=_issued_at(payload, chain, now),
        not_after=chain.not_after,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """The fields of a document; some may be missing or null."""

    digest: str
    timestamp: int
    pcrs: dict[int, bytes]
    certificate: bytes
    cabundle: list[bytes]
    module_id: str = ""
    public_key: bytes = b""
    user_data: bytes = b""
    nonce: bytes = b""


class _Cbor:
    """Reads the subset of [RFC 8949] that these documents use, in its shortest encoding.

    It runs before the signature is checked. The caller names the type of each value, so nesting is limited to the
    document's own structure; tags, floats and indefinite lengths are refused.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def is_read(self) -> bool:
        return self._position == len(self._data)

    def _take(self, size: int) -> bytes:
        taken = self._data[self._position : self._position + size]
        if len(taken) != size:
            raise malformed("the payload of a Nitro document ends early", Reason.TRUNCATED)
        self._position += size
        return taken

    def number(self, kind: int, limit: int) -> int:
        """Read the head of a value: an unsigned integer or a length."""
        (head,) = self._take(1)
        value = head & 31
        if head >> 5 == kind and value in LONG_HEADS:
            size, least = LONG_HEADS[value]
            value = int.from_bytes(self._take(size), "big")
        else:
            least = 0 if value < min(LONG_HEADS) else limit + 1
        if head >> 5 != kind or not least <= value <= limit:
            raise malformed(f"a field of a Nitro document has a wrong type, length or encoding ({head:#04x})")
        return value

    def text(self) -> str:
        try:
            return self._take(self.number(TEXT, MAXIMUM_TEXT_BYTES)).decode("ascii")
        except UnicodeDecodeError:
            raise malformed("text in a Nitro document must be ASCII") from None

    def data(self) -> bytes:
        return self._take(self.number(BYTES, len(self._data)))

    def optional(self) -> bytes:
        """Read a byte string; null counts as empty."""
        if self._data[self._position : self._position + 1] == NULL:
            return self._take(1)[1:]
        return self.data()

    def registers(self) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for _ in range(self.number(MAP, MAXIMUM_REGISTERS)):
            index, value = self.number(INTEGER, MAXIMUM_REGISTERS - 1), self.data()
            if index in found or len(value) != REGISTER_BYTES:
                raise malformed(f"PCR{index} of a Nitro document must have {REGISTER_BYTES} bytes and occur once")
            found[index] = value
        if missing := [f"PCR{index}" for index in IMAGE_REGISTERS if index not in found]:
            raise malformed(f"the Nitro document lacks {', '.join(missing)}, which measure the program")
        return found


def read_payload(encoded: bytes) -> Payload:
    """Read the map of fields; nothing may follow it."""
    cbor = _Cbor(encoded)
    readers: dict[str, Callable[[], Any]] = {
        "module_id": cbor.text,
        "digest": cbor.text,
        "timestamp": lambda: cbor.number(INTEGER, LAST_MILLISECOND),
        "pcrs": cbor.registers,
        "certificate": cbor.data,
        "cabundle": lambda: [cbor.data() for _ in range(cbor.number(ARRAY, MAXIMUM_CHAIN - 1))],
        "public_key": cbor.optional,
        "user_data": cbor.optional,
        "nonce": cbor.optional,
    }
    found: dict[str, Any] = {}
    for _ in range(cbor.number(MAP, len(readers))):
        name = cbor.text()
        if name == TPM_REGISTERS:
            raise refused(NITRO_TPM)
        if name in found or name not in readers:
            raise malformed(f"the Nitro document has an unknown or duplicate field {name!r}")
        found[name] = readers[name]()
    if absent := REQUIRED_FIELDS - found.keys():
        raise malformed(f"the Nitro document lacks {', '.join(sorted(absent))}")
    if not cbor.is_read:
        raise malformed("bytes follow the fields of a Nitro document", Reason.TRAILING_BYTES)
    if found["digest"] != "SHA384":
        raise malformed("the registers of a Nitro document must be SHA384 digests")
    return Payload(**found)


def _issued_at(payload: Payload, chain: Chain, now: datetime) -> datetime:
    issued_at = EPOCH + timedelta(milliseconds=payload.timestamp)
    if issued_at < chain.leaf.not_before or not has_begun(issued_at, now):
        raise invalid(f"the document is dated {issued_at}, before its certificate or after now ({now})")
    return issued_at
