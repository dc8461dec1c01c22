"""Intel's judgement of a platform: TCB info, the identity of the quoting enclave, and revocation lists.

TCB info and identity are JSON that Intel signs and serves with a date until which they hold. They are read after
their signature has been checked, as Intel's reference verifier reads them: the first TCB level that the platform
reaches in every component gives its status.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from secagg.errors import Reason

from .certificate_chains import Chain, has_begun, read_pem_chain, verify_chain
from .claims import IntelTcb, TcbStatus, require_bytes
from .intel_quote import EnclaveReport, VerifiedQuote
from .refusals import invalid, malformed, stale
from .revocation import Spoken, check_not_revoked
from .signatures import ECDSA_P256, big_endian_signature
from .tdx_report import TdReport

MAXIMUM_JSON_BYTES: Final = 1 << 20
RESPONSE: Final = rb'\{"NAME":(\{.*\}),"signature":"([0-9a-f]{128})"\}'
TCB_SIGNER: Final = "Intel SGX TCB Signing"
DATE_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"
VERSIONED_MODULE_COMPONENTS: Final = 2
"""The components of a TDX level that speak of the module; a module with a version has levels of its own instead."""

Json = dict[str, Any]
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True)
class _Kind:
    """One of the two documents: its name in the response, and the version of its form."""

    name: str
    version: int


TCB_INFO: Final = _Kind("tcbInfo", 3)
IDENTITY: Final = _Kind("enclaveIdentity", 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntelCollateral:
    """What Intel's provisioning certification service (PCS) serves for a platform, byte for byte.

    The JSON is the whole body of a response, with its signature; the chains are the PEM of the response's header,
    with the URL encoding undone; the lists are DER.
    """

    tcb_info: bytes = field(repr=False)
    tcb_info_chain: bytes = field(repr=False)
    identity: bytes = field(repr=False)
    identity_chain: bytes = field(repr=False)
    platform_revocation_list: bytes = field(repr=False)
    root_revocation_list: bytes = field(repr=False)

    def __post_init__(self) -> None:
        require_bytes(
            tcb_info=self.tcb_info,
            tcb_info_chain=self.tcb_info_chain,
            identity=self.identity,
            identity_chain=self.identity_chain,
            platform_revocation_list=self.platform_revocation_list,
            root_revocation_list=self.root_revocation_list,
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """What collateral says of a quote, and until when both hold; no status where there is no collateral."""

    tcb: IntelTcb | None
    revoked_as_of: datetime | None
    not_after: datetime


@dataclass(frozen=True, slots=True)
class Level:
    """The status of everything that reaches some versions."""

    status: TcbStatus
    advisories: frozenset[str]


def evaluate_collateral(
    collateral: IntelCollateral | None,
    quote: VerifiedQuote,
    roots: frozenset[bytes],
    now: datetime,
    *,
    td: TdReport | None,
) -> Judgement:
    """Verify the collateral and find the status of everything below the enclave or, with ``td``, the trust domain.

    Raises:
        MalformedMessage: the collateral does not decode.
        PeerMisbehaved: it does not verify, is of another time or for another platform, or a certificate is revoked.
    """
    if collateral is None:
        return Judgement(None, None, quote.chain.not_after)
    info, info_chain, info_end = _read_signed(TCB_INFO, collateral.tcb_info, collateral.tcb_info_chain, roots, now)
    identity, identity_chain, identity_end = _read_signed(
        IDENTITY, collateral.identity, collateral.identity_chain, roots, now
    )
    lists = _check_revocation(collateral, quote.chain, (info_chain, identity_chain), now)
    tcb = _decoded(lambda: judge(info, identity, quote, td))
    chains_end = min(chain.not_after for chain in (quote.chain, info_chain, identity_chain))
    lists_end = min(spoken.until for spoken in lists)
    revoked_as_of = min(spoken.since for spoken in lists)
    return Judgement(tcb, revoked_as_of, min(chains_end, info_end, identity_end, lists_end))


def _read_signed(
    kind: _Kind, response: bytes, chain: bytes, roots: frozenset[bytes], now: datetime
) -> tuple[Json, Chain, datetime]:
    """Check the signature, which is over the exact text of the value, and then the dates in it."""
    name = kind.name
    if len(response) > MAXIMUM_JSON_BYTES:
        raise malformed(f"{name} holds at most {MAXIMUM_JSON_BYTES} bytes", Reason.LENGTH_OVER_LIMIT)
    found = re.fullmatch(RESPONSE.replace(b"NAME", name.encode("ascii")), response, re.DOTALL)
    if found is None:
        raise malformed(f"{name} is the whole response of Intel's service: the value and its signature")
    text, signature = found[1], bytes.fromhex(found[2].decode("ascii"))
    verified = verify_chain(read_pem_chain(chain), roots=roots, scheme=ECDSA_P256, now=now)
    if len(verified.certificates) != 2 or verified.leaf.common_name() != TCB_SIGNER:  # noqa: PLR2004 -- signer, root
        raise invalid(f"{name} is signed by {TCB_SIGNER}, right below the root; this chain is another's")
    ECDSA_P256.verify(verified.leaf.public_key, big_endian_signature(signature), text, name)
    value, issued, next_update = _decoded(lambda: _dated(text, kind.version))
    if not has_begun(issued, now) or now > next_update:
        raise stale(f"{name} holds from {issued} to {next_update} and it is {now}; fetch the current one")
    return value, verified, next_update


def _decoded(read: Callable[[], Read]) -> Read:
    """Read what Intel signed; a surprise in it is a format that this module does not know."""
    try:
        return read()
    except (KeyError, TypeError, ValueError) as error:
        raise malformed(f"the collateral is not of the form that is read here: {type(error).__name__}") from None


def _dated(text: bytes, version: int) -> tuple[Json, datetime, datetime]:
    value: Json = json.loads(text)
    if value["version"] != version:
        raise ValueError
    issued, next_update = (
        datetime.strptime(value[name], DATE_FORMAT).replace(tzinfo=UTC) for name in ("issueDate", "nextUpdate")
    )
    return value, issued, next_update


def _check_revocation(
    collateral: IntelCollateral, quote_chain: Chain, signing_chains: Sequence[Chain], now: datetime
) -> tuple[Spoken, Spoken]:
    platform, authority, root = quote_chain.certificates
    if any(chain.root_fingerprint != quote_chain.root_fingerprint for chain in signing_chains):
        raise invalid("the collateral and the quote chain to different roots")
    platform_list = check_not_revoked(
        [platform], collateral.platform_revocation_list, issuer=authority, scheme=ECDSA_P256, now=now
    )
    below_root = [authority, *(chain.leaf for chain in signing_chains)]
    root_list = check_not_revoked(below_root, collateral.root_revocation_list, issuer=root, scheme=ECDSA_P256, now=now)
    return platform_list, root_list


def judge(info: Json, identity: Json, quote: VerifiedQuote, td: TdReport | None) -> IntelTcb:
    """Find the status of platform, quoting enclave and, with ``td``, TDX module in collateral that was verified.

    Raises:
        PeerMisbehaved: the collateral is for other hardware, or lists nothing that this hardware reaches.
        KeyError, TypeError, ValueError: the collateral is not of the form that is read here.
    """
    if info["id"] != ("SGX" if td is None else "TDX") or identity["id"] != ("QE" if td is None else "TD_QE"):
        raise invalid("the collateral is for the other of SGX and TDX; fetch the one for this quote")
    platform = quote.platform
    if bytes.fromhex(info["fmspc"]) != platform.fmspc or bytes.fromhex(info["pceId"]) != platform.pce_id:
        raise invalid(f"the TCB info is for {info['fmspc']}; fetch the one for {platform.fmspc.hex()}")
    numbers = (info["tcbEvaluationDataNumber"], identity["tcbEvaluationDataNumber"])
    if info["tcbType"] != 0 or any(type(number) is not int for number in numbers):
        raise ValueError
    platform_level = _platform_level(info, quote, td)
    quoting_enclave = _quoting_enclave_level(identity, quote.quoting_enclave)
    module = None if td is None else _module_level(info, td)
    levels = [level for level in (platform_level, quoting_enclave, module) if level is not None]
    return IntelTcb(
        platform=platform_level.status,
        quoting_enclave=quoting_enclave.status,
        module=None if module is None else module.status,
        evaluation_number=min(numbers),
        advisories=frozenset[str]().union(*(level.advisories for level in levels)),
    )


def _level(entry: Json) -> Level:
    return Level(TcbStatus(entry["tcbStatus"]), frozenset(map(str, entry.get("advisoryIDs", ()))))


def _platform_level(info: Json, quote: VerifiedQuote, td: TdReport | None) -> Level:
    for entry in info["tcbLevels"]:
        tcb = entry["tcb"]
        reached = quote.platform.pce_svn >= tcb["pcesvn"]
        reached = _reaches(quote.platform.components, tcb["sgxtcbcomponents"]) and reached
        if td is not None:
            first = VERSIONED_MODULE_COMPONENTS if td.tcb_svn[1] else 0
            reached = _reaches(td.tcb_svn[first:], tcb["tdxtcbcomponents"][first:]) and reached
        if reached:
            return _level(entry)
    raise invalid("the platform is below every TCB level that Intel lists for it")


def _reaches(versions: Sequence[int], components: Sequence[Json]) -> bool:
    return all(have >= least["svn"] for have, least in zip(versions, components, strict=True))


def _module_level(info: Json, td: TdReport) -> Level | None:
    """Find the TDX module by its version; version 0 is judged with the platform and has no status of its own."""
    version = td.tcb_svn[1]
    name = f"TDX_{version:02X}"
    identities = [entry for entry in info.get("tdxModuleIdentities", ()) if str(entry["id"]).upper() == name]
    module = info["tdxModule"] if version == 0 else identities[0] if len(identities) == 1 else None
    if module is None:
        raise invalid(f"Intel lists no TDX module {name}")
    _require_masked(td.module_attributes, module["attributes"], module["attributesMask"], "the TDX module")
    if bytes.fromhex(module["mrsigner"]) != td.module_signer:
        raise invalid("the TDX module is signed by another than Intel names")
    return None if version == 0 else _isv_level(module, td.tcb_svn[0], "the TDX module")


def _quoting_enclave_level(identity: Json, report: EnclaveReport) -> Level:
    what = "the quoting enclave"
    _require_masked(report.misc_select, identity["miscselect"], identity["miscselectMask"], what)
    _require_masked(report.attributes, identity["attributes"], identity["attributesMask"], what)
    if bytes.fromhex(identity["mrsigner"]) != report.mrsigner or identity["isvprodid"] != report.product_id:
        raise invalid("the quoting enclave is not Intel's")
    return _isv_level(identity, report.security_version, what)


def _isv_level(identity: Json, version: int, what: str) -> Level:
    for entry in identity["tcbLevels"]:
        if version >= entry["tcb"]["isvsvn"]:
            return _level(entry)
    raise invalid(f"{what} is below every version that Intel lists for it")


def _require_masked(found: bytes, expected: str, mask: str, what: str) -> None:
    pairs = zip(found, bytes.fromhex(mask), bytes.fromhex(expected), strict=True)
    if any(have & bits != value for have, bits, value in pairs):
        raise invalid(f"{what} has other attributes than Intel names")
