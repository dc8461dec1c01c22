"""What evidence says once it is verified, in the words that a policy judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from secagg.errors import InvalidParameters, Misuse


class EvidenceFormat(StrEnum):
    """The four kinds of evidence that hardware vendors vouch for; a simulated enclave's is none of them."""

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
    """A document and what it is taken for."""

    format: EvidenceFormat
    document: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if type(self.format) is not EvidenceFormat:
            raise Misuse(f"evidence is of an EvidenceFormat; got {self.format!r}")
        require_bytes(document=self.document)


def require_bytes(**fields: object) -> None:
    """Refuse what would otherwise fail in the midst of parsing."""
    for name, value in fields.items():
        if type(value) is not bytes:
            raise Misuse(f"{name} is bytes; got {type(value).__name__}")


class TcbStatus(StrEnum):
    """How Intel judges the versions of what runs below an enclave, in its own words."""

    UP_TO_DATE = "UpToDate"
    SW_HARDENING_NEEDED = "SWHardeningNeeded"
    CONFIGURATION_NEEDED = "ConfigurationNeeded"
    CONFIGURATION_AND_SW_HARDENING_NEEDED = "ConfigurationAndSWHardeningNeeded"
    OUT_OF_DATE = "OutOfDate"
    OUT_OF_DATE_CONFIGURATION_NEEDED = "OutOfDateConfigurationNeeded"
    REVOKED = "Revoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntelTcb:
    """The status of each part below an Intel enclave, and the advisories that Intel attaches to them."""

    platform: TcbStatus
    quoting_enclave: TcbStatus
    module: TcbStatus | None
    evaluation_number: int
    advisories: frozenset[str] = frozenset()

    @property
    def statuses(self) -> frozenset[TcbStatus]:
        """Every status; a policy accepts all of them or refuses."""
        parts = (self.platform, self.quoting_enclave, self.module)
        return frozenset(part for part in parts if part is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnpTcb:
    """The security versions of AMD's firmware, as Milan and Genoa count them."""

    boot_loader: int
    tee: int
    snp: int
    microcode: int

    def __post_init__(self) -> None:
        if any(type(part) is not int or not 0 <= part <= 255 for part in self.parts):  # noqa: PLR2004 -- one byte
            raise InvalidParameters(f"each security version is an integer from 0 to 255; got {self.parts}")

    @property
    def parts(self) -> tuple[int, int, int, int]:
        """The four versions; they are compared one by one and never as one number."""
        return self.boot_loader, self.tee, self.snp, self.microcode

    def reaches(self, minimum: SnpTcb) -> bool:
        """Tell whether no version is below its minimum."""
        return all(part >= least for part, least in zip(self.parts, minimum.parts, strict=True))


Tcb = IntelTcb | SnpTcb


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What verified evidence says; only ``Verifier`` makes one.

    Being verified makes claims true and not good: a debug build of any program has true claims. ``signed_digest`` is
    the identity of the evidence, the hash of the bytes that were signed; two documents with the same signed bytes are
    the same evidence, whatever else they hold.
    """

    format: EvidenceFormat
    measurement: Mapping[str, bytes]
    """Each register that measures the program, by the vendor's name for it."""
    signer: bytes
    """Who signed the program, where the format says so; no policy accepts a program for its signer."""
    debug: bool
    migratable: bool
    privilege_level: int | None
    """The VMPL of an SEV-SNP report."""
    sibling_threads: bool
    """Whether an SEV-SNP guest may share cores with others; False where the format does not say."""
    tcb: Tcb | None
    """The versions of what runs below; None for Nitro, and for a quote without collateral."""
    revoked_as_of: datetime | None
    """From when the oldest of the revocation lists speaks that were checked; None where there was none."""
    report_data: bytes
    """What the enclave itself asked to be attested."""
    signed_digest: bytes
    issued_at: datetime | None
    """When the evidence was made; only Nitro documents say so."""
    not_after: datetime
    """When the first of the certificates and collateral that were used expires."""
