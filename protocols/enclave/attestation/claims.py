"""Evidence, the claims of verified evidence, the vendors' root fingerprints, and the errors.

Root certificates are not shipped but pinned by the SHA-256 of their DER; a chain brings its own root. Every Nitro
document contains the AWS root, whose fingerprint AWS documents; AMD's key distribution service serves its roots with
the intermediate certificates; every Intel quote ends with Intel's root. Errors name no culprit, because evidence is
relayed and does not show who altered it. Their messages stay in the local log.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from secagg.errors import UNDECIDED, InvalidParameters, MalformedMessage, Misuse, PeerMisbehaved, Reason


class EvidenceFormat(StrEnum):
    """The four kinds of evidence that hardware vendors vouch for."""

    NITRO = "nitro"
    """An AWS Nitro Enclaves attestation document."""
    SNP = "sev-snp"
    """An AMD SEV-SNP report."""
    TDX = "tdx"
    """An Intel TDX quote, version 4 or 5."""
    SGX = "sgx"
    """An Intel SGX quote, version 3."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """A document and its format."""

    format: EvidenceFormat
    document: bytes = field(repr=False)
    relayed: bytes = field(default=b"", repr=False)
    """Collateral that the host relayed with the document, not decoded."""

    def __post_init__(self) -> None:
        if type(self.format) is not EvidenceFormat:
            raise Misuse(f"format must be an EvidenceFormat; got {self.format!r}")
        require_bytes(document=self.document, relayed=self.relayed)


def require_bytes(**fields: object) -> None:
    """Require that each field is bytes, before parsing starts."""
    for name, value in fields.items():
        if type(value) is not bytes:
            raise Misuse(f"{name} must be bytes; got {type(value).__name__}")


class TcbStatus(StrEnum):
    """Intel's TCB statuses, by Intel's names."""

    UP_TO_DATE = "UpToDate"
    SW_HARDENING_NEEDED = "SWHardeningNeeded"
    CONFIGURATION_NEEDED = "ConfigurationNeeded"
    CONFIGURATION_AND_SW_HARDENING_NEEDED = "ConfigurationAndSWHardeningNeeded"
    OUT_OF_DATE = "OutOfDate"
    OUT_OF_DATE_CONFIGURATION_NEEDED = "OutOfDateConfigurationNeeded"
    REVOKED = "Revoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntelTcb:
    """TCB status of each component below an Intel enclave, and Intel's advisories for them."""

    platform: TcbStatus
    quoting_enclave: TcbStatus
    module: TcbStatus | None
    evaluation_number: int
    advisories: frozenset[str] = frozenset()

    @property
    def statuses(self) -> frozenset[TcbStatus]:
        parts = (self.platform, self.quoting_enclave, self.module)
        return frozenset(part for part in parts if part is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnpTcb:
    """Security versions of AMD's firmware. Turin restarts them at zero and adds one for the FMC."""

    boot_loader: int
    tee: int
    snp: int
    microcode: int
    fmc: int | None = None

    def __post_init__(self) -> None:
        if any(type(part) is not int or not 0 <= part <= 255 for part in self.parts):  # noqa: PLR2004 -- one byte
            raise InvalidParameters(f"each security version must be an integer from 0 to 255; got {self.parts}")

    @property
    def parts(self) -> tuple[int, ...]:
        """The versions, compared one by one and never as a single number."""
        return self.boot_loader, self.tee, self.snp, self.microcode, *(() if self.fmc is None else (self.fmc,))

    def reaches(self, minimum: SnpTcb) -> bool:
        """Return whether every version is at least its minimum; False if the minimum is for other processors."""
        pairs = zip(self.parts, minimum.parts, strict=False)
        return len(self.parts) == len(minimum.parts) and all(part >= least for part, least in pairs)


Tcb = IntelTcb | SnpTcb


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The claims of verified evidence; only ``Verifier`` creates them.

    Verified claims are true but not necessarily acceptable: a debug build has true claims too. ``signed_digest``, the
    hash of the signed bytes, identifies the evidence: documents with the same signed bytes are the same evidence.
    """

    format: EvidenceFormat
    measurement: Mapping[str, bytes]
    """The registers that measure the program, by the vendor's names."""
    signer: bytes
    """The key that signed the program, if the format has it; no policy accepts a program because of its signer."""
    debug: bool
    migratable: bool
    privilege_level: int | None
    sibling_threads: bool
    """Whether an SEV-SNP guest may share cores with others; False for other formats."""
    tcb: Tcb | None
    """Versions or status of the platform; None for Nitro, and for a quote without collateral."""
    lists: Mapping[bytes, datetime]
    """Issue date of each revocation list that was checked, by the digest of its issuer's name."""
    report_data: bytes
    """The data that the enclave included in its evidence."""
    signed_digest: bytes
    issued_at: datetime | None
    not_after: datetime
    """When the first certificate or collateral that was used expires."""

    @property
    def revoked_as_of(self) -> datetime | None:
        """Issue date of the oldest revocation list that was checked."""
        return min(self.lists.values(), default=None)


AZURE: Final = (
    "this is evidence of Azure's paravisor: the hardware measures only the paravisor, which vouches for the program "
    "through a vTPM, so pins would not cover the program; run it where the hardware measures it"
)
NITRO_TPM: Final = (
    "this is a NitroTPM document: its registers measure the boot of an EC2 instance and cannot be pinned; run the "
    "program in a Nitro enclave"
)
CONFIDENTIAL_SPACE: Final = (
    "this is a token of Google's Confidential Space or another attestation service, signed by that service and not by "
    "the hardware; send the quote or report of the hardware"
)
QEMU: Final = "this document was made by QEMU's emulated security module and is not signed"


def malformed(message: str, reason: Reason = Reason.NOT_CANONICAL) -> MalformedMessage:
    """Return the error for evidence or collateral that does not decode."""
    return MalformedMessage(message, reason=reason)


def invalid(message: str) -> PeerMisbehaved:
    """Return the error for evidence or collateral that decodes but does not verify, or is revoked."""
    return PeerMisbehaved(message, reason=Reason.ATTESTATION_INVALID, culprits=UNDECIDED)


def stale(message: str) -> PeerMisbehaved:
    """Return the error for valid collateral that is expired or not yet valid."""
    return PeerMisbehaved(message, reason=Reason.COLLATERAL_STALE, culprits=UNDECIDED)


def refused(message: str) -> PeerMisbehaved:
    """Return the error for claims that the policy refuses, or for an unsupported family of evidence."""
    return PeerMisbehaved(message, reason=Reason.ATTESTATION_REFUSED, culprits=UNDECIDED)


def require_length(data: bytes, length: int, what: str) -> None:
    """Refuse truncated data, and unsigned bytes after its end."""
    if len(data) < length:
        raise malformed(f"{what} should have {length} bytes; got {len(data)}", Reason.TRUNCATED)
    if len(data) > length:
        raise malformed(
            f"{len(data) - length} unsigned bytes follow {what}; remove the padding where the evidence is collected",
            Reason.TRAILING_BYTES,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Fingerprints of each vendor's root certificates."""

    nitro: frozenset[bytes]
    amd: frozenset[bytes]
    intel: frozenset[bytes]


def sha256(data: bytes) -> bytes:
    """Return the digest that pins certificates and identifies evidence."""
    return hashlib.sha256(data).digest()


def _fingerprint(*halves: str) -> bytes:
    return bytes.fromhex("".join(halves))


PINNED_ROOTS: Final = Roots(
    nitro=frozenset({_fingerprint("641a0321a3e244efe456463195d60631", "7ed7cdcc3c1756e09893f3c68f79bb5b")}),
    amd=frozenset(
        {
            _fingerprint("69d063b45344d26a2e94e1f4210de49e", "f555308287d4c174445c95639a540bcd"),
            _fingerprint("4c6598d19c18719c5dfd4a7d335f674e", "5bfe1d8f800cea2cf270c10d103db2f1"),
            _fingerprint("1f084161a44bb6d93778a904877d4819", "cafa5d05ef4193b2ded9dd9c73dd3f6a"),
        }
    ),
    intel=frozenset({_fingerprint("44a0196b2b99f889b8e149e95b807a35", "0e7424964399e885a7cbb8ccfab674d3")}),
)
"""The roots of AWS Nitro Enclaves, of AMD EPYC Milan, Genoa and Turin, and of Intel SGX and TDX."""


# --- Launch flags -----------------------------------------------------------------------------------------------------

# A host can launch a measured program in ways that the measurement does not show. Evidence with an unknown flag is
# refused; known flags must match the policy's pins or else the strict defaults below.


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """Default rules for the bits of one field, lowest bit first."""

    required: int
    """Bits that must be set unless the field is pinned."""
    tolerated: int
    """Bits that may be set without a pin: they make the launch stricter or do not affect clients."""
    known: int
    """Bits with a defined meaning; the others are reserved."""

    def admit(self, value: bytes) -> bool:
        """Return whether a field without a pin meets the default."""
        bits = int.from_bytes(value, "little")
        return bits & self.required == self.required and not bits & ~(self.required | self.tolerated)


def bits(*places: int) -> int:
    """Return the integer with these bits set."""
    return sum(1 << place for place in places)


_PLAIN_REGISTERS: Final = bits(2, 5, 6, 7, 9, 11, 12, 17, 18, 19)
"""Registers that a program may use: AVX, AVX-512 (three bits), PKRU, CET and AMX (two bits each), and APX."""

FLAGS: Final[Mapping[EvidenceFormat, Mapping[str, Flags]]] = MappingProxyType(
    {
        EvidenceFormat.NITRO: {},
        # [AMD 56860]: ABI version, 16 SMT, 17 one, 18 migration agent, 19 debug, 20 single socket, 21 CXL,
        # 22 AES-256-XTS, 23 no RAPL, 24 hidden ciphertext, 25 no page swap. Of a platform: 0 SMT, 1 TSME, 2 ECC,
        # 3 no RAPL, 4 hidden ciphertext, 5 no aliases in memory, 6 IOMMU writes are safe (Turin), 7 trusted I/O.
        EvidenceFormat.SNP: {
            "POLICY": Flags(required=bits(17), tolerated=bits(*range(17), 20, 22, 23, 24, 25), known=bits(*range(26))),
            "PLATFORM_INFO": Flags(required=bits(5), tolerated=bits(0, 1, 2, 3, 4, 6), known=bits(*range(8))),
        },
        # Intel's TDX: 0-7 debug, 27 LASS, 28 SEPT_VE_DISABLE, 29 migratable, 30 PKS, 31 KL, 62 TPA, 63 PERFMON; XFAM:
        # 8 PT, 14 user interrupts, 15 LBR, 16 HWP.
        EvidenceFormat.TDX: {
            "ATTRIBUTES": Flags(
                required=bits(28), tolerated=bits(27), known=bits(*range(8), 27, 28, 29, 30, 31, 62, 63)
            ),
            "XFAM": Flags(
                required=bits(0, 1), tolerated=_PLAIN_REGISTERS, known=bits(0, 1, 8, 14, 15, 16) | _PLAIN_REGISTERS
            ),
        },
        # Intel's SGX: 0 INIT, 1 debug, 2 64 bits, 4 provisioning key, 5 launch key, 6 CET, 7 KSS, 10 AEX notify. In
        # XFRM: 3 and 4 MPX. MISCSELECT: 0 exceptions, 1 control protection.
        EvidenceFormat.SGX: {
            "ATTRIBUTES": Flags(required=bits(0, 2), tolerated=bits(6, 7, 10), known=bits(0, 1, 2, 4, 5, 6, 7, 10)),
            "XFRM": Flags(
                required=bits(0, 1), tolerated=_PLAIN_REGISTERS | bits(3, 4), known=_PLAIN_REGISTERS | bits(0, 1, 3, 4)
            ),
            "MISCSELECT": Flags(required=0, tolerated=0, known=bits(0, 1)),
        },
    }
)


def require_known_flags(kind: EvidenceFormat, fields: Mapping[str, bytes]) -> None:
    """Refuse reserved bits as ``attestation_invalid``, because what they allow a host to do is unknown."""
    for name, flags in FLAGS[kind].items():
        unknown = int.from_bytes(fields[name], "little") & ~flags.known
        if unknown:
            raise invalid(f"reserved bits of {name} are set in {kind} evidence ({unknown:#x}); their use is unknown")


def require_zero(kind: EvidenceFormat, reserved: Mapping[str, bytes]) -> None:
    """Refuse reserved bytes that are not zero."""
    for name, value in reserved.items():
        if any(value):
            raise invalid(f"{name} of {kind} evidence is reserved but not zero")
