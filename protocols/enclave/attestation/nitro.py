"""AWS Nitro Enclaves attestation documents: COSE_Sign1 under a certificate that lives three hours.

The document carries its chain, from the root down to the certificate of the enclave's instance. AWS runs no
revocation for these and asks verifiers to do without; the short lives of the certificates take its place.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, cast

from secagg.errors import InvalidParameters, Reason

from .certificate_chains import MAXIMUM_CHAIN, Chain, has_begun, verify_chain
from .claims import Claims, EvidenceFormat
from .refusals import invalid, malformed, require_length
from .roots import sha256
from .signatures import ECDSA_P384, big_endian_signature

OPENING: Final = bytes.fromhex("8444a1013822a059")
"""Array of four; protected header {1: -35}, which is ES384; no unprotected header; payload with a two-byte length."""
SIGNATURE_HEADER: Final = bytes.fromhex("5860")
SIGNATURE_BYTES: Final = 96
PAYLOAD_START: Final = len(OPENING) + 2
SIGNED_PREFIX: Final = b"\x84\x6aSignature1\x44\xa1\x01\x38\x22\x40"
"""The opening of the Sig_structure of [RFC 9052] section 4.4; the payload and its header complete it."""
REGISTER_BYTES: Final = 48
IMAGE_REGISTERS: Final = (0, 1, 2)
MAXIMUM_REGISTERS: Final = 32
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LAST_MILLISECOND: Final = 253_402_300_799_999


def verify_nitro(document: bytes, roots: frozenset[bytes], now: datetime) -> Claims:
    """Check a document and its chain, and return what it claims.

    Implements: [RFC 9052] section 4.4, for one signer and ES384.
    Raises:
        InvalidParameters: cbor2 is not installed.
        MalformedMessage: the document does not decode.
        PeerMisbehaved: the chain or the signature does not hold at this time.
    """
    if not document.startswith(OPENING):
        raise malformed("a Nitro document is an untagged COSE_Sign1 with the algorithm ES384 and no open headers")
    length = int.from_bytes(document[len(OPENING) : PAYLOAD_START], "big")
    payload_end = PAYLOAD_START + length
    require_length(document, payload_end + len(SIGNATURE_HEADER) + SIGNATURE_BYTES, "a Nitro document")
    signature_start = payload_end + len(SIGNATURE_HEADER)
    if document[payload_end:signature_start] != SIGNATURE_HEADER:
        raise malformed("a Nitro document ends in a signature of 96 bytes")
    payload = _decode(document[PAYLOAD_START:payload_end])
    chain = _verify_chain(payload, roots, now)
    message = SIGNED_PREFIX + document[len(OPENING) - 1 : payload_end]
    signature = big_endian_signature(document[signature_start:])
    ECDSA_P384.verify(chain.leaf.public_key, signature, message, "the Nitro document")
    registers = _registers(payload)
    return Claims(
        format=EvidenceFormat.NITRO,
        measurement=MappingProxyType({f"PCR{index}": value for index, value in registers.items()}),
        signer=registers.get(8, b""),
        debug=any(not any(registers[index]) for index in IMAGE_REGISTERS),
        migratable=False,
        privilege_level=None,
        sibling_threads=False,
        tcb=None,
        revoked_as_of=None,
        report_data=_optional_bytes(payload, "user_data"),
        signed_digest=sha256(message),
        issued_at=_issued_at(payload, chain, now),
        not_after=chain.not_after,
    )


def _decode(payload: bytes) -> dict[object, Any]:
    try:
        import cbor2  # noqa: PLC0415 -- an extra, which the other formats do without
    except ModuleNotFoundError:
        raise InvalidParameters(
            "Nitro documents are decoded by cbor2; install secagg[attestation]", reason=Reason.BACKEND_MISSING
        ) from None
    try:
        decoded: object = cbor2.loads(payload)
    except Exception as error:  # noqa: BLE001 -- its decoders of tags raise whatever their modules raise
        raise malformed(f"the payload of a Nitro document is not CBOR: {type(error).__name__}") from None
    if type(decoded) is not dict:
        raise malformed("the payload of a Nitro document is a map")
    return cast("dict[object, Any]", decoded)


def _verify_chain(payload: dict[object, Any], roots: frozenset[bytes], now: datetime) -> Chain:
    bundle: object = payload.get("cabundle")
    if type(bundle) is not list or not 1 <= len(cast("list[object]", bundle)) < MAXIMUM_CHAIN:
        raise malformed(f"cabundle is a list of at most {MAXIMUM_CHAIN - 1} certificates")
    certificates = [*cast("list[object]", bundle), payload.get("certificate")]
    encoded = [certificate for certificate in certificates if isinstance(certificate, bytes)]
    if len(encoded) != len(certificates):
        raise malformed("a certificate in a Nitro document is a string of bytes")
    return verify_chain(encoded[::-1], roots=roots, scheme=ECDSA_P384, now=now)


def _registers(payload: dict[object, Any]) -> dict[int, bytes]:
    pcrs: object = payload.get("pcrs")
    if payload.get("digest") != "SHA384" or type(pcrs) is not dict:
        raise malformed("a Nitro document holds pcrs that are SHA384 digests")
    registers: dict[int, bytes] = {}
    for index, value in cast("dict[object, object]", pcrs).items():
        if type(index) is not int or not 0 <= index < MAXIMUM_REGISTERS:
            raise malformed(f"a PCR is numbered from 0 to {MAXIMUM_REGISTERS - 1}")
        if not isinstance(value, bytes) or len(value) != REGISTER_BYTES:
            raise malformed(f"PCR{index} is {REGISTER_BYTES} bytes")
        registers[index] = value
    missing = [f"PCR{index}" for index in IMAGE_REGISTERS if index not in registers]
    if missing:
        raise malformed(f"a Nitro document without {', '.join(missing)} does not tell what runs")
    return registers


def _optional_bytes(payload: dict[object, Any], name: str) -> bytes:
    value: object = payload.get(name)
    if value is None:
        return b""
    if not isinstance(value, bytes):
        raise malformed(f"{name} is a string of bytes")
    return value


def _issued_at(payload: dict[object, Any], chain: Chain, now: datetime) -> datetime:
    timestamp: object = payload.get("timestamp")
    if type(timestamp) is not int or not 0 <= timestamp <= LAST_MILLISECOND:
        raise malformed("timestamp is a number of milliseconds since 1970")
    issued_at = EPOCH + timedelta(milliseconds=timestamp)
    if issued_at < chain.leaf.content.not_valid_before_utc or not has_begun(issued_at, now):
        raise invalid(f"the document was made at {issued_at}, before its certificate or after now, {now}")
    return issued_at
