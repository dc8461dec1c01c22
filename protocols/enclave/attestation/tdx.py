"""Intel TDX quotes, versions 4 and 5: the report of one virtual machine (a trust domain)."""

from __future__ import annotations

import struct
from datetime import datetime
from types import MappingProxyType
from typing import Final

from secagg.errors import Reason

from .claims import Claims, EvidenceFormat
from .intel_collateral import IntelCollateral, evaluate_collateral
from .intel_quote import HEADER_BYTES, TDX_TEE, check_header, verify_quote
from .launch import require_known_flags
from .refusals import malformed
from .tdx_report import TdReport

VERSION_4: Final = 4
VERSION_5: Final = 5
BODY_HEADER_BYTES: Final = 6
BODY_BYTES: Final = {2: 584, 3: 648}
"""The length of the report of each kind that a version 5 quote may hold: that of TDX 1.0 and that of TDX 1.5."""


def verify_tdx(quote: bytes, collateral: IntelCollateral | None, roots: frozenset[bytes], now: datetime) -> Claims:
    """Check a quote and, where there is collateral, what it says of platform, TDX module and quoting enclave.

    Raises:
        MalformedMessage: the quote, a certificate or the collateral does not decode.
        PeerMisbehaved: a chain, a signature, a match or a revocation list does not hold at this time.
    """
    version = int.from_bytes(quote[:2], "little")
    check_header(quote, version=VERSION_5 if version == VERSION_5 else VERSION_4, tee=TDX_TEE)
    verified = verify_quote(quote, _body(quote, version), roots, now)
    td = TdReport(verified.body)
    require_known_flags(EvidenceFormat.TDX, td.launch_fields)
    judgement = evaluate_collateral(collateral, verified, roots, now, td=td)
    return Claims(
        format=EvidenceFormat.TDX,
        measurement=MappingProxyType(td.registers | td.launch_fields),
        signer=b"",
        debug=td.debug,
        migratable=td.migratable,
        privilege_level=None,
        sibling_threads=False,
        tcb=judgement.tcb,
        revoked_as_of=judgement.revoked_as_of,
        report_data=td.report_data,
        signed_digest=verified.signed_digest,
        issued_at=None,
        not_after=judgement.not_after,
    )


def _body(quote: bytes, version: int) -> slice:
    """Find the report: at a fixed place in version 4, and behind its own kind and length in version 5."""
    if version == VERSION_4:
        return slice(HEADER_BYTES, HEADER_BYTES + BODY_BYTES[2])
    start = HEADER_BYTES + BODY_HEADER_BYTES
    if len(quote) < start:
        raise malformed("the quote ends before its report", Reason.TRUNCATED)
    kind, size = struct.unpack_from("<HI", quote, HEADER_BYTES)
    if BODY_BYTES.get(kind) != size:
        raise malformed(f"a TDX report is of kind 2 or 3 and of its length; this one of kind {kind} and {size} bytes")
    return slice(start, start + size)
