"""AMD SEV-SNP reports, signed by a key of one chip (VCEK) or one cloud (VLEK) for one firmware version.

The certificate chain is not part of a report. It comes as collateral, from the host or from AMD's key distribution
service: the signing key's certificate, its authority (ASK or ASVK) and the root (ARK). All chips that a cloud enrolled
share its VLEK, so a report with a VLEK identifies the cloud but not the chip.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Final

from .certificates import ECDSA_P384, RSA_PSS, Chain, check_not_revoked, joined_signature, small_integer, verify_chain
from .claims import (
    Claims,
    EvidenceFormat,
    SnpTcb,
    invalid,
    malformed,
    require_bytes,
    require_known_flags,
    require_length,
    require_zero,
    sha256,
)

REPORT_BYTES: Final = 1184
SIGNED_BYTES: Final = 0x2A0
SIGNATURE_BYTES: Final = 144
VERSIONS: Final = frozenset({2, 3, 5})
VERSION_WITHOUT_PROCESSOR: Final = 2
VERSION_WITH_MITIGATIONS: Final = 5
ECDSA_P384_SHA384: Final = 1
NO_MIGRATION_AGENT: Final = b"\xff" * 32

AUTHOR_KEY: Final = 1 << 0
MASK_CHIP_KEY: Final = 1 << 1
KEY_FLAGS: Final = 5
"""Number of key flags: author key, masked chip key, and three bits for the signing key; other bits are reserved."""
PLATFORM_SMT: Final = 1 << 0
POLICY_SMT: Final = 1 << 16
POLICY_MIGRATE: Final = 1 << 18
POLICY_DEBUG: Final = 1 << 19

EXTENSIONS: Final = "1.3.6.1.4.1.3704.1"
CHIP: Final = f"{EXTENSIONS}.4"
CLOUD: Final = f"{EXTENSIONS}.5"
FMC: Final = f"{EXTENSIONS}.3.9"
CHIP_BYTES: Final = 64
TURIN_CHIP_BYTES: Final = 8
"""Length of a chip id from Turin on; the rest of the report's field is zero."""
VCEK: Final = 0
VLEK: Final = 1
TCB_PARTS: Final = (1, 2, 4, 5, 6, 7, 3, 8)
"""Extension of each byte of a TCB version, lowest byte first: boot loader, TEE, four reserved, SNP, microcode."""
TURIN_TCB_PARTS: Final = (9, 1, 2, 3, 5, 6, 7, 8)
"""The same for Turin and later: FMC, boot loader, TEE, SNP, three reserved, microcode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnpCollateral:
    """The certificate chain of a report in DER and, optionally, AMD's revocation list.

    ``chip_certificate`` is the certificate of the key that signed the report: a VCEK, or a cloud's VLEK.
    """

    chip_certificate: bytes = field(repr=False)
    authority_certificate: bytes = field(repr=False)
    root_certificate: bytes = field(repr=False)
    revocation_list: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        require_bytes(
            chip_certificate=self.chip_certificate,
            authority_certificate=self.authority_certificate,
            root_certificate=self.root_certificate,
            revocation_list=b"" if self.revocation_list is None else self.revocation_list,
        )


def verify_snp(report: bytes, collateral: SnpCollateral, roots: frozenset[bytes], now: datetime) -> Claims:
    """Check a report, its certificate's chain, and that the certificate is for this chip or cloud and TCB version.

    Implements: [AMD 56860] the attestation report; [AMD 57230] the extensions of VCEK and VLEK certificates.
    """
    require_length(report, REPORT_BYTES, "an SEV-SNP report")
    version, policy = struct.unpack_from("<I4xQ", report)
    privilege_level, algorithm = struct.unpack_from("<II", report, 0x30)
    (key_flags,) = struct.unpack_from("<I", report, 0x48)
    if version not in VERSIONS:
        raise malformed(f"the SEV-SNP report has version {version}; known: {', '.join(map(str, sorted(VERSIONS)))}")
    if algorithm != ECDSA_P384_SHA384:
        raise malformed(f"the SEV-SNP report has signature algorithm {algorithm}; expected {ECDSA_P384_SHA384}")
    if key_flags >> KEY_FLAGS:
        raise invalid(f"the report's key flags have reserved bits set ({key_flags:#x})")
    if key_flags & MASK_CHIP_KEY:
        raise invalid("the chip's key is masked, so nothing vouches for the report; launch without MASK_CHIP_KEY")
    signing_key = key_flags >> 2 & 7
    if signing_key not in (VCEK, VLEK):
        raise invalid(f"the report is signed with key {signing_key}; request one signed with a VCEK (0) or VLEK (1)")
    if any(report[SIGNED_BYTES + SIGNATURE_BYTES :]):
        raise malformed("the unsigned bytes after the signature of an SEV-SNP report must be zero")
    chain = _verify_chain(report, signing_key, collateral, roots, now)
    signature = joined_signature(report[SIGNED_BYTES : SIGNED_BYTES + SIGNATURE_BYTES], "little")
    ECDSA_P384.verify(chain.leaf.public_key, signature, report[:SIGNED_BYTES], "the SEV-SNP report")
    fields = _launch_fields(report)
    require_known_flags(EvidenceFormat.SNP, fields)
    require_zero(EvidenceFormat.SNP, _reserved(report, version))
    if bool(key_flags & AUTHOR_KEY) is not any(fields["AUTHOR_KEY_DIGEST"]):
        raise invalid("the report's AUTHOR_KEY_EN and AUTHOR_KEY_DIGEST contradict each other")
    not_after, lists = chain.not_after, dict[bytes, datetime]()
    if collateral.revocation_list is not None:
        _, authority, root = chain.certificates
        spoken = check_not_revoked([authority], collateral.revocation_list, issuer=root, scheme=RSA_PSS, now=now)
        not_after, lists = min(not_after, spoken.until), {spoken.issuer: spoken.since}
    return Claims(
        format=EvidenceFormat.SNP,
        measurement=MappingProxyType({"MEASUREMENT": report[0x90:0xC0], **fields}),
        signer=report[0xE0:0x110],
        debug=bool(policy & POLICY_DEBUG),
        migratable=bool(policy & POLICY_MIGRATE) or report[0x160:0x180] != NO_MIGRATION_AGENT,
        privilege_level=privilege_level,
        sibling_threads=bool(policy & POLICY_SMT or report[0x40] & PLATFORM_SMT),
        tcb=_lowest_tcb(chain, report[0x180:0x188], report[0x1E0:0x1E8], report[0x1F0:0x1F8]),
        lists=lists,
        report_data=report[0x50:0x90],
        signed_digest=sha256(report[:SIGNED_BYTES]),
        issued_at=None,
        not_after=not_after,
    )


def _launch_fields(report: bytes) -> dict[str, bytes]:
    return {
        "HOST_DATA": report[0xC0:0xE0],
        "POLICY": report[0x08:0x10],
        "PLATFORM_INFO": report[0x40:0x48],
        "GUEST_SVN": report[0x04:0x08],
        "FAMILY_ID": report[0x10:0x20],
        "IMAGE_ID": report[0x20:0x30],
        "ID_KEY_DIGEST": report[0xE0:0x110],
        "AUTHOR_KEY_DIGEST": report[0x110:0x140],
    }


def _reserved(report: bytes, version: int) -> dict[str, bytes]:
    """Return the reserved bytes; later versions use some of them for the processor and the mitigations."""
    processor = 0x188 if version == VERSION_WITHOUT_PROCESSOR else 0x18B
    mitigations = 0x208 if version == VERSION_WITH_MITIGATIONS else 0x1F8
    places = ((0x4C, 0x50), (processor, 0x1A0), (0x1EB, 0x1EC), (0x1EF, 0x1F0), (mitigations, SIGNED_BYTES))
    return {f"0x{start:x} to 0x{end:x}": report[start:end] for start, end in places}


def _verify_chain(
    report: bytes, signing_key: int, collateral: SnpCollateral, roots: frozenset[bytes], now: datetime
) -> Chain:
    encoded = (collateral.chip_certificate, collateral.authority_certificate, collateral.root_certificate)
    chain = verify_chain(encoded, roots=roots, scheme=RSA_PSS, now=now)
    is_turin = chain.leaf.vendor_extension(FMC) is not None
    if signing_key == VLEK:
        chain.leaf.required_extension(CLOUD)
    elif chain.leaf.required_extension(CHIP) != _chip(report, TURIN_CHIP_BYTES if is_turin else CHIP_BYTES):
        raise invalid("the certificate and the report are for different chips")
    versions = bytes(
        small_integer(chain.leaf.required_extension(f"{EXTENSIONS}.3.{part}"), 255)
        for part in (TURIN_TCB_PARTS if is_turin else TCB_PARTS)
    )
    if versions != report[0x180:0x188]:
        raise invalid(
            f"the certificate is for TCB version {versions.hex()}, the report for {report[0x180:0x188].hex()}; fetch "
            "the certificate for the reported version"
        )
    return chain


def _chip(report: bytes, size: int) -> bytes | None:
    """Return the chip id, or None unless the rest of its field is zero."""
    chip = report[0x1A0:0x1E0]
    return None if any(chip[size:]) else chip[:size]


def _lowest_tcb(chain: Chain, *encoded: bytes) -> SnpTcb:
    """Return the minimum of the reported, committed and launch versions, part by part.

    A host can go back to the committed version while guests run, and evidence from before would still be accepted.
    """
    lowest = [min(versions) for versions in zip(*encoded, strict=True)]
    if chain.leaf.vendor_extension(FMC) is not None:
        fmc, boot_loader, tee, snp, *_, microcode = lowest
        return SnpTcb(boot_loader=boot_loader, tee=tee, snp=snp, microcode=microcode, fmc=fmc)
    boot_loader, tee, *_, snp, microcode = lowest
    return SnpTcb(boot_loader=boot_loader, tee=tee, snp=snp, microcode=microcode)
