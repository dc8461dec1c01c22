"""What Intel's SGX and TDX quotes share: a body, signed by an attestation key that a chain of reports vouches for.

The attestation key signs header and body. The quoting enclave's report holds the hash of that key, the platform's key
(PCK) signs that report, and a chain from Intel's root certifies the PCK. Whether the quoting enclave is Intel's is
told by the collateral alone, so a quote without collateral proves nothing that a policy accepts.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from secagg.errors import Reason

from .certificate_chains import Chain, read_pem_chain, verify_chain
from .der import OBJECT_IDENTIFIER, OCTET_STRING, SEQUENCE, Element, only, small_integer
from .refusals import invalid, malformed, require_length
from .roots import sha256
from .signatures import ECDSA_P256, big_endian_signature, p256_public_key

HEADER_BYTES: Final = 48
REPORT_BYTES: Final = 384
SIGNATURE_BYTES: Final = 64
KEY_BYTES: Final = 64
ATTESTATION_KEY_P256: Final = 2
INTEL_QUOTING_ENCLAVE: Final = bytes.fromhex("939a7233f79c4ca9940a0db3957f0607")
PCK_CHAIN_IN_PEM: Final = 5
QUOTING_ENCLAVE_CERTIFICATION: Final = 6
SGX_TEE: Final = 0x00
TDX_TEE: Final = 0x81
ATTRIBUTE_DEBUG: Final = 1 << 1

SGX_EXTENSIONS: Final = "1.2.840.113741.1.13.1"
_OID: Final = bytes.fromhex("2a864886f84d010d01")
TCB_OID: Final = _OID + b"\x02"
PCEID_OID: Final = _OID + b"\x03"
FMSPC_OID: Final = _OID + b"\x04"
COMPONENTS: Final = 16
PCE_SVN_INDEX: Final = 17


@dataclass(frozen=True, slots=True)
class EnclaveReport:
    """The report of an SGX enclave: the body of an SGX quote, and the quoting enclave's word for its key."""

    data: bytes

    @property
    def misc_select(self) -> bytes:
        """What an exception writes beyond the registers."""
        return self.data[16:20]

    @property
    def attributes(self) -> bytes:
        """Flags and enabled processor features."""
        return self.data[48:64]

    @property
    def debug(self) -> bool:
        """Whether a debugger may read the enclave."""
        return bool(self.attributes[0] & ATTRIBUTE_DEBUG)

    @property
    def mrenclave(self) -> bytes:
        """The measurement of the program."""
        return self.data[64:96]

    @property
    def mrsigner(self) -> bytes:
        """The hash of the key that signed the program."""
        return self.data[128:160]

    @property
    def product_id(self) -> int:
        """The signer's number for the program."""
        return int.from_bytes(self.data[256:258], "little")

    @property
    def security_version(self) -> int:
        """The signer's version of the program."""
        return int.from_bytes(self.data[258:260], "little")

    @property
    def launch_fields(self) -> dict[str, bytes]:
        """What the host chose at launch, also as a signer: it can sign the program with a key of its own."""
        return {
            "CONFIGID": self.data[192:256],
            "CONFIGSVN": self.data[260:262],
            "ATTRIBUTES": self.data[48:56],
            "XFRM": self.data[56:64],
            "MISCSELECT": self.data[16:20],
            "ISVPRODID": self.data[256:258],
            "ISVSVN": self.data[258:260],
            "ISVEXTPRODID": self.data[32:48],
            "ISVFAMILYID": self.data[304:320],
        }

    @property
    def reserved(self) -> dict[str, bytes]:
        """The bytes between the fields."""
        places = ((20, 32), (96, 128), (160, 192), (262, 304))
        return {f"{start} to {end} of the report": self.data[start:end] for start, end in places}

    @property
    def report_data(self) -> bytes:
        """What the enclave asked to be attested."""
        return self.data[320:384]


@dataclass(frozen=True, slots=True)
class Platform:
    """What the platform's certificate says of it: the model, and the versions that it is certified for."""

    fmspc: bytes
    pce_id: bytes
    components: tuple[int, ...]
    pce_svn: int


@dataclass(frozen=True, slots=True)
class VerifiedQuote:
    """A quote whose signatures hold; only ``verify_quote`` makes one."""

    body: bytes
    quoting_enclave: EnclaveReport
    platform: Platform
    chain: Chain
    signed_digest: bytes


@dataclass(frozen=True, slots=True)
class _Certification:
    """The part of a quote after the signature and the attestation key."""

    report: bytes
    signature: bytes
    authentication: bytes
    chain: bytes


def check_header(quote: bytes, *, version: int, tee: int) -> None:
    """Refuse what is no quote of this version and technology, made by Intel's quoting enclave.

    Raises:
        MalformedMessage: always, when it refuses.
    """
    if len(quote) < HEADER_BYTES:
        raise malformed(f"a quote begins with {HEADER_BYTES} bytes and {len(quote)} are there", Reason.TRUNCATED)
    # A version 3 header has zeros where later ones name the technology, and SGX is technology zero.
    found, key_type, technology = struct.unpack_from("<HHI", quote)
    if (found, key_type, technology) != (version, ATTESTATION_KEY_P256, tee):
        raise malformed(
            f"a quote of version {version}, key type {ATTESTATION_KEY_P256} and technology {tee:#x} is due; this one "
            f"has {found}, {key_type} and {technology:#x}"
        )
    if quote[12:28] != INTEL_QUOTING_ENCLAVE:
        raise malformed("the quote is not made by Intel's quoting enclave")


def verify_quote(quote: bytes, body: slice, roots: frozenset[bytes], now: datetime) -> VerifiedQuote:
    """Check every signature of a quote whose header was checked and whose body lies at ``body``.

    Raises:
        MalformedMessage: the quote or a certificate does not decode, or bytes follow its end.
        PeerMisbehaved: the chain, a signature or the binding of the attestation key does not hold at this time.
    """
    fields = _Fields(quote, body.stop)
    signature_bytes = fields.integer(4)
    require_length(quote, fields.position + signature_bytes, "the quote")
    signature = fields.take(SIGNATURE_BYTES)
    key = fields.take(KEY_BYTES)
    certification = _read_certification(fields, nested=quote[0] > 3)  # noqa: PLR2004 -- the version
    chain = verify_chain(read_pem_chain(certification.chain), roots=roots, scheme=ECDSA_P256, now=now)
    quoting_enclave = EnclaveReport(certification.report)
    ECDSA_P256.verify(
        chain.leaf.public_key,
        big_endian_signature(certification.signature),
        certification.report,
        "the quoting enclave's report",
    )
    if quoting_enclave.report_data != sha256(key + certification.authentication) + bytes(32):
        raise invalid("the quoting enclave's report is for another attestation key")
    if quoting_enclave.debug:
        raise invalid("the quoting enclave is a debug build")
    message = quote[: body.stop]
    ECDSA_P256.verify(p256_public_key(key), big_endian_signature(signature), message, "the quote")
    return VerifiedQuote(quote[body], quoting_enclave, _read_platform(chain), chain, hashlib.sha256(message).digest())


class _Fields:
    """Reads little-endian fields; refuses to read beyond the end."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self.position = position

    def take(self, size: int) -> bytes:
        taken = self._data[self.position : self.position + size]
        if len(taken) != size:
            raise malformed(f"the quote ends within a field of {size} bytes", Reason.TRUNCATED)
        self.position += size
        return taken

    def integer(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def certification_data(self, kind: int) -> int:
        """Read the header of certification data of one kind, whose data must end the quote; return their length."""
        found, size = self.integer(2), self.integer(4)
        if found != kind:
            raise malformed(f"certification data of kind {kind} are due, and {found} is there")
        if self.position + size != len(self._data):
            raise malformed("the certification data must end where the quote ends")
        return size


def _read_certification(fields: _Fields, *, nested: bool) -> _Certification:
    if nested:
        fields.certification_data(QUOTING_ENCLAVE_CERTIFICATION)
    report = fields.take(REPORT_BYTES)
    signature = fields.take(SIGNATURE_BYTES)
    authentication = fields.take(fields.integer(2))
    chain = fields.take(fields.certification_data(PCK_CHAIN_IN_PEM))
    # Some builds of Intel's library write the terminator of the C string that the chain is there.
    return _Certification(report, signature, authentication, chain.removesuffix(b"\0"))


def _read_platform(chain: Chain) -> Platform:
    """Read the SGX extension of a platform's certificate: a sequence of named values, one of them a sequence again."""
    if len(chain.certificates) != 3:  # noqa: PLR2004 -- platform, authority, root
        raise invalid("the chain of a quote holds the platform's certificate, its authority's and the root's")
    values = _named_values(only(chain.leaf.vendor_extension(SGX_EXTENSIONS), SEQUENCE))
    try:
        versions = _named_values(values[TCB_OID].expect(SEQUENCE))
        components = tuple(
            small_integer(versions[TCB_OID + bytes([index])].encoded, 255) for index in range(1, COMPONENTS + 1)
        )
        pce_svn = small_integer(versions[TCB_OID + bytes([PCE_SVN_INDEX])].encoded, (1 << 16) - 1)
        fmspc, pce_id = values[FMSPC_OID].expect(OCTET_STRING), values[PCEID_OID].expect(OCTET_STRING)
    except KeyError:
        raise invalid("the platform's certificate does not say which platform it is for") from None
    return Platform(fmspc.content, pce_id.content, components, pce_svn)


def _named_values(sequence: Element) -> dict[bytes, Element]:
    values: dict[bytes, Element] = {}
    for entry in sequence.children():
        parts = entry.expect(SEQUENCE).children()
        if len(parts) != 2:  # noqa: PLR2004 -- a name and a value
            raise malformed("an entry of the SGX extension is a name and a value")
        values[parts[0].expect(OBJECT_IDENTIFIER).content] = parts[1]
    return values
