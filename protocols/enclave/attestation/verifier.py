"""The verifier: evidence in, claims out, for all four formats."""

from __future__ import annotations

from datetime import datetime
from typing import Final, assert_never

from secagg.errors import Misuse, Reason

from .claims import AZURE, PINNED_ROOTS, Claims, Evidence, EvidenceFormat, Roots, malformed, refused
from .intel import IntelCollateral, verify_sgx, verify_tdx
from .nitro import verify_nitro
from .snp import SnpCollateral, verify_snp

Collateral = SnpCollateral | IntelCollateral | None

MAXIMUM_EVIDENCE_BYTES: Final = 1 << 16
AZURE_OPENING: Final = b"HCLA"


class Verifier:
    """Checks evidence against the vendors' roots; it reads no clock, no network and no file."""

    def __init__(self, roots: Roots = PINNED_ROOTS) -> None:
        self._roots = roots

    def verify(self, evidence: Evidence, collateral: Collateral, now: datetime) -> Claims:
        """Check that a vendor vouches for evidence, and return its claims, for a policy to judge.

        Args:
            collateral: nothing for Nitro, ``SnpCollateral`` for SEV-SNP, and ``IntelCollateral`` for TDX and SGX, whose
                claims have no TCB without it.
            now: the time at which certificates and collateral must hold, with a time zone.
        Raises:
            MalformedMessage: evidence or collateral does not decode.
            PeerMisbehaved: with reason ``attestation_invalid``, ``collateral_stale`` or, for evidence that is of no
                vendor's format, ``attestation_refused``.
        """
        if type(evidence) is not Evidence:
            raise refused(f"{type(evidence).__name__} is not evidence of hardware")
        if type(now) is not datetime or now.utcoffset() is None:
            raise Misuse("the time is a datetime with a time zone")
        document = _checked(evidence.document)
        match evidence.format:
            case EvidenceFormat.NITRO:
                if collateral is not None:
                    raise Misuse("a Nitro document carries all that it is verified with; pass None")
                return verify_nitro(document, self._roots.nitro, now)
            case EvidenceFormat.SNP:
                if type(collateral) is not SnpCollateral:
                    raise Misuse("an SEV-SNP report is verified with SnpCollateral")
                return verify_snp(document, collateral, self._roots.amd, now)
            case EvidenceFormat.TDX:
                return verify_tdx(document, _intel(collateral), self._roots.intel, now)
            case EvidenceFormat.SGX:
                return verify_sgx(document, _intel(collateral), self._roots.intel, now)
            case _:
                assert_never(evidence.format)


def _checked(document: bytes) -> bytes:
    if len(document) > MAXIMUM_EVIDENCE_BYTES:
        raise malformed(
            f"evidence holds at most {MAXIMUM_EVIDENCE_BYTES} bytes; this {len(document)}", Reason.LENGTH_OVER_LIMIT
        )
    if document.startswith(AZURE_OPENING):
        raise refused(AZURE)
    return document


def _intel(collateral: Collateral) -> IntelCollateral | None:
    if collateral is not None and type(collateral) is not IntelCollateral:
        raise Misuse("an Intel quote is verified with IntelCollateral, or with None")
    return collateral
