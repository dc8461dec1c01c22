"""Intel SGX quotes, version 3: the report of one enclave."""

from __future__ import annotations

from datetime import datetime
from types import MappingProxyType
from typing import Final

from .claims import Claims, EvidenceFormat
from .intel_collateral import IntelCollateral, evaluate_collateral
from .intel_quote import HEADER_BYTES, REPORT_BYTES, SGX_TEE, EnclaveReport, check_header, verify_quote
from .launch import require_known_flags, require_zero

VERSION: Final = 3
BODY: Final = slice(HEADER_BYTES, HEADER_BYTES + REPORT_BYTES)


def verify_sgx(quote: bytes, collateral: IntelCollateral | None, roots: frozenset[bytes], now: datetime) -> Claims:
    """Check a quote and, where there is collateral, what it says of the platform and the quoting enclave.

    Raises:
        MalformedMessage: the quote, a certificate or the collateral does not decode.
        PeerMisbehaved: a chain, a signature, a match or a revocation list does not hold at this time.
    """
    check_header(quote, version=VERSION, tee=SGX_TEE)
    verified = verify_quote(quote, BODY, roots, now)
    enclave = EnclaveReport(verified.body)
    require_known_flags(EvidenceFormat.SGX, enclave.launch_fields)
    require_zero(EvidenceFormat.SGX, enclave.reserved)
    judgement = evaluate_collateral(collateral, verified, roots, now, td=None)
    return Claims(
        format=EvidenceFormat.SGX,
        measurement=MappingProxyType({"MRENCLAVE": enclave.mrenclave, **enclave.launch_fields}),
        signer=enclave.mrsigner,
        debug=enclave.debug,
        migratable=False,
        privilege_level=None,
        sibling_threads=False,
        tcb=judgement.tcb,
        revoked_as_of=judgement.revoked_as_of,
        report_data=enclave.report_data,
        signed_digest=verified.signed_digest,
        issued_at=None,
        not_after=judgement.not_after,
    )
