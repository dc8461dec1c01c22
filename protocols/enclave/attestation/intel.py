"""Intel SGX and TDX quotes, and the collateral that determines a platform's status.

A quote's attestation key signs its header and body. The quoting enclave's report contains the hash of that key, the
platform's key (PCK) signs that report, and a chain from Intel's root certifies the PCK. Only the collateral shows that
the quoting enclave is Intel's, so no policy accepts a quote without collateral.

Collateral consists of TCB info, the identity of the quoting enclave, and revocation lists. The first two are JSON that
Intel signs and dates. As in Intel's reference verifier, the status is that of the first TCB level whose components the
platform all reaches.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, TypeVar

from secagg.errors import PeerError, Reason

from .certificates import (
    ECDSA_P256,
    OBJECT_IDENTIFIER,
    OCTET_STRING,
    SEQUENCE,
    Chain,
    Element,
    ListValidity,
    check_not_revoked,
    has_begun,
    joined_signature,
    only,
    p256_public_key,
    read_pem_chain,
    small_integer,
    verify_chain,
)
from .claims import (
    Claims,
    EvidenceFormat,
    IntelTcb,
    TcbStatus,
    invalid,
    malformed,
    require_bytes,
    require_known_flags,
    require_zero,
    sha256,
    stale,
)

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
"""Debug bit of an SGX enclave; for a trust domain, every bit of the first byte means debug."""
ATTRIBUTE_MIGRATABLE: Final = 1 << 29
"""Bit of a trust domain that a migration service may move to another host."""

SGX_EXTENSIONS: Final = "1.2.840.113741.1.13.1"
_OID: Final = bytes.fromhex("2a864886f84d010d01")
TCB_OID: Final = _OID + b"\x02"
PCEID_OID: Final = _OID + b"\x03"
FMSPC_OID: Final = _OID + b"\x04"
COMPONENTS: Final = 16
PCE_SVN_INDEX: Final = 17

Report = Mapping[str, bytes]
SGX_REPORT: Final = MappingProxyType(
    {
        "CPUSVN": slice(0, 16),
        "MISCSELECT": slice(16, 20),
        "ISVEXTPRODID": slice(32, 48),
        "ATTRIBUTES": slice(48, 56),
        "XFRM": slice(56, 64),
        "MRENCLAVE": slice(64, 96),
        "MRSIGNER": slice(128, 160),
        "CONFIGID": slice(192, 256),
        "ISVPRODID": slice(256, 258),
        "ISVSVN": slice(258, 260),
        "CONFIGSVN": slice(260, 262),
        "ISVFAMILYID": slice(304, 320),
        "REPORTDATA": slice(320, 384),
    }
)
"""Fields of an SGX report. The host can choose all but four at launch, also by signing the enclave with its own key."""
SGX_RESERVED: Final = (slice(20, 32), slice(96, 128), slice(160, 192), slice(262, 304))
_REGISTERS: Final = ("MRTD", "MRCONFIGID", "MROWNER", "MROWNERCONFIG", "RTMR0", "RTMR1", "RTMR2", "RTMR3")
TD_REPORT: Final = MappingProxyType(
    {
        "TEE_TCB_SVN": slice(0, 16),
        "MRSIGNERSEAM": slice(64, 112),
        "SEAMATTRIBUTES": slice(112, 120),
        "ATTRIBUTES": slice(120, 128),
        "XFAM": slice(128, 136),
        **{name: slice(136 + 48 * index, 184 + 48 * index) for index, name in enumerate(_REGISTERS)},
        "REPORTDATA": slice(520, 584),
        "TEE_TCB_SVN_2": slice(584, 600),
        "MRSERVICETD": slice(600, 648),
    }
)
"""Fields of a TDX 1.5 report of 648 bytes; its first 584 bytes are those of TDX 1.0."""
_NOT_MEASURED: Final = frozenset(
    {"CPUSVN", "MRSIGNER", "REPORTDATA", "TEE_TCB_SVN", "MRSIGNERSEAM", "SEAMATTRIBUTES", "TEE_TCB_SVN_2"}
)


def read_report(layout: Mapping[str, slice], data: bytes) -> Report:
    """Return the fields that this report is long enough to have."""
    return {name: data[place] for name, place in layout.items() if place.stop <= len(data)}


def _measurement(report: Report) -> Report:
    return MappingProxyType({name: value for name, value in report.items() if name not in _NOT_MEASURED})


def _is_sgx_debug(report: Report) -> bool:
    return bool(report["ATTRIBUTES"][0] & ATTRIBUTE_DEBUG)


def _module_versions(td: Report) -> bytes:
    """Return the versions of the TDX module and its loader: the lower of the launch and (TDX 1.5) current versions."""
    return bytes(map(min, td["TEE_TCB_SVN"], td.get("TEE_TCB_SVN_2", td["TEE_TCB_SVN"])))


@dataclass(frozen=True, slots=True)
class Platform:
    """The model and component versions in a platform's certificate."""

    fmspc: bytes
    pce_id: bytes
    components: tuple[int, ...]
    pce_svn: int


@dataclass(frozen=True, slots=True)
class VerifiedQuote:
    """A quote whose signatures are verified; only ``verify_quote`` creates one."""

    body: bytes
    quoting_enclave: Report
    platform: Platform
    chain: Chain
    signed_digest: bytes


def check_header(quote: bytes, *, version: int, tee: int) -> None:
    """Require a quote of this version and technology, made by Intel's quoting enclave."""
    if len(quote) < HEADER_BYTES:
        raise malformed(f"a quote's header has {HEADER_BYTES} bytes; got {len(quote)}", Reason.TRUNCATED)
    # A version 3 header has zeros where later versions name the technology; SGX is technology zero.
    found, key_type, technology = struct.unpack_from("<HHI", quote)
    if (found, key_type, technology) != (version, ATTESTATION_KEY_P256, tee):
        raise malformed(
            f"expected a quote of version {version}, key type {ATTESTATION_KEY_P256} and technology {tee:#x}; "
            f"this one has {found}, {key_type} and {technology:#x}"
        )
    if quote[12:28] != INTEL_QUOTING_ENCLAVE:
        raise malformed("the quote was not made by Intel's quoting enclave")


def verify_quote(quote: bytes, body: slice, roots: frozenset[bytes], now: datetime) -> VerifiedQuote:
    """Check every signature of a quote with a checked header; ``body`` is the position of its body."""
    fields = _Fields(quote, body.stop)
    end = fields.integer(4) + fields.position
    if len(quote) < end:
        raise malformed(f"the quote should have {end} bytes; got {len(quote)}", Reason.TRUNCATED)
    # Platforms return quotes in longer buffers. The padding is unsigned and ignored.
    fields = _Fields(quote[:end], fields.position)
    signature = fields.take(SIGNATURE_BYTES)
    key = fields.take(KEY_BYTES)
    if quote[0] > 3:  # noqa: PLR2004 -- the version
        fields.certification_data(QUOTING_ENCLAVE_CERTIFICATION)
    report, vouching = fields.take(REPORT_BYTES), fields.take(SIGNATURE_BYTES)
    authentication = fields.take(fields.integer(2))
    # Some builds of Intel's library include the terminating zero of the C string that holds the chain.
    certificates = fields.take(fields.certification_data(PCK_CHAIN_IN_PEM)).removesuffix(b"\0")
    chain = verify_chain(read_pem_chain(certificates), roots=roots, scheme=ECDSA_P256, now=now)
    quoting_enclave = read_report(SGX_REPORT, report)
    what = "the quoting enclave's report"
    ECDSA_P256.verify(chain.leaf.public_key, joined_signature(vouching), report, what)
    if quoting_enclave["REPORTDATA"] != sha256(key + authentication) + bytes(32):
        raise invalid("the quoting enclave's report is for a different attestation key")
    if _is_sgx_debug(quoting_enclave):
        raise invalid("the quoting enclave is a debug build")
    message = quote[: body.stop]
    ECDSA_P256.verify(p256_public_key(key), joined_signature(signature), message, "the quote")
    return VerifiedQuote(quote[body], quoting_enclave, _read_platform(chain), chain, hashlib.sha256(message).digest())


class _Fields:
    """Reads little-endian fields; raises beyond the end."""

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
        """Read the header of certification data of this kind and return their length; they must end the quote."""
        found, size = self.integer(2), self.integer(4)
        if found != kind:
            raise malformed(f"expected certification data of type {kind}; got type {found}")
        if self.position + size != len(self._data):
            raise malformed("the certification data must end where the quote ends")
        return size


def _read_platform(chain: Chain) -> Platform:
    """Read the SGX extension of a platform's certificate: named values, one of them nested."""
    if len(chain.certificates) != 3:  # noqa: PLR2004 -- platform, authority, root
        raise invalid("a quote's chain must have three certificates: the platform's, its authority's and the root's")
    values = _named_values(only(chain.leaf.required_extension(SGX_EXTENSIONS), SEQUENCE))
    try:
        versions = _named_values(values[TCB_OID].expect(SEQUENCE))
        components = tuple(
            small_integer(versions[TCB_OID + bytes([index])].encoded, 255) for index in range(1, COMPONENTS + 1)
        )
        pce_svn = small_integer(versions[TCB_OID + bytes([PCE_SVN_INDEX])].encoded, (1 << 16) - 1)
        fmspc, pce_id = values[FMSPC_OID].expect(OCTET_STRING), values[PCEID_OID].expect(OCTET_STRING)
    except KeyError:
        raise invalid("the platform's certificate does not identify the platform") from None
    return Platform(fmspc.content, pce_id.content, components, pce_svn)


def _named_values(sequence: Element) -> dict[bytes, Element]:
    values: dict[bytes, Element] = {}
    for entry in sequence.children():
        parts = entry.expect(SEQUENCE).children()
        if len(parts) != 2:  # noqa: PLR2004 -- a name and a value
            raise malformed("an entry of the SGX extension must be a name and a value")
        values[parts[0].expect(OBJECT_IDENTIFIER).content] = parts[1]
    return values


MAXIMUM_JSON_BYTES: Final = 1 << 20
RESPONSE: Final = rb'\{"NAME":(\{.*\}),"signature":"([0-9a-f]{128})"\}'
TCB_SIGNER: Final = "Intel SGX TCB Signing"
DATE_FORMAT: Final = "%Y-%m-%dT%H:%M:%SZ"
VERSIONED_MODULE_COMPONENTS: Final = 2
"""Components of a TDX level that describe the module; they are skipped for a module version with its own levels."""

Json = dict[str, Any]
Read = TypeVar("Read")

TCB_INFO: Final = ("tcbInfo", 3)
IDENTITY: Final = ("enclaveIdentity", 2)
"""The two signed documents: name in the response, and format version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntelCollateral:
    """Responses of Intel's provisioning certification service (PCS) for a platform, unchanged.

    The JSON documents are whole response bodies, including the signature. The chains are PEM from the response headers,
    URL-decoded. The revocation lists are DER.
    """

    tcb_info: bytes = field(repr=False)
    tcb_info_chain: bytes = field(repr=False)
    identity: bytes = field(repr=False)
    identity_chain: bytes = field(repr=False)
    platform_revocation_list: bytes = field(repr=False)
    root_revocation_list: bytes = field(repr=False)

    def __post_init__(self) -> None:
        require_bytes(**{each.name: getattr(self, each.name) for each in fields(self)})


@dataclass(frozen=True, slots=True)
class Judgement:
    """TCB status of a quote, None without collateral, and when the quote and its collateral expire."""

    tcb: IntelTcb | None
    lists: Mapping[bytes, datetime]
    not_after: datetime


@dataclass(frozen=True, slots=True)
class Level:
    """Status and advisories of one TCB level."""

    status: TcbStatus
    advisories: frozenset[str]


def evaluate_collateral(
    collateral: IntelCollateral | None,
    quote: VerifiedQuote,
    roots: frozenset[bytes],
    now: datetime,
    *,
    td: Report | None,
) -> Judgement:
    """Verify the collateral and return the status of the platform below an enclave or, with ``td``, a trust domain."""
    if collateral is None:
        return Judgement(None, {}, quote.chain.not_after)
    info, info_chain, info_end = _read_signed(TCB_INFO, collateral.tcb_info, collateral.tcb_info_chain, roots, now)
    identity, identity_chain, identity_end = _read_signed(
        IDENTITY, collateral.identity, collateral.identity_chain, roots, now
    )
    lists = _check_revocation(collateral, quote.chain, (info_chain, identity_chain), now)
    tcb = _decoded(lambda: judge(info, identity, quote, td))
    chains_end = min(chain.not_after for chain in (quote.chain, info_chain, identity_chain))
    lists_end = min(validity.until for validity in lists)
    issued = {validity.issuer: validity.since for validity in lists}
    return Judgement(tcb, issued, min(chains_end, info_end, identity_end, lists_end))


def _read_signed(
    kind: tuple[str, int], response: bytes, chain: bytes, roots: frozenset[bytes], now: datetime
) -> tuple[Json, Chain, datetime]:
    """Check the signature, which covers the exact text of the value, and then the value's dates."""
    name, version = kind
    if len(response) > MAXIMUM_JSON_BYTES:
        raise malformed(f"{name} exceeds the limit of {MAXIMUM_JSON_BYTES} bytes", Reason.LENGTH_OVER_LIMIT)
    found = re.fullmatch(RESPONSE.replace(b"NAME", name.encode("ascii")), response, re.DOTALL)
    if found is None:
        raise malformed(f"{name} must be the whole response of Intel's service: the value and its signature")
    text, signature = found[1], bytes.fromhex(found[2].decode("ascii"))
    verified = verify_chain(read_pem_chain(chain), roots=roots, scheme=ECDSA_P256, now=now)
    if len(verified.certificates) != 2 or verified.leaf.name != TCB_SIGNER:  # noqa: PLR2004 -- signer, root
        raise invalid(f"{name} must be signed by {TCB_SIGNER}, directly below the root; its chain differs")
    ECDSA_P256.verify(verified.leaf.public_key, joined_signature(signature), text, name)
    value, issued, next_update = _decoded(lambda: _dated(text, version))
    if not has_begun(issued, now) or now > next_update:
        raise stale(f"{name} is valid from {issued} to {next_update}, but it is {now}; fetch the current one")
    return value, verified, next_update


def _decoded(read: Callable[[], Read]) -> Read:
    """Read data that Intel signed; report any error as an unknown format."""
    try:
        return read()
    except PeerError:
        raise
    except Exception as error:  # noqa: BLE001 -- JSON of any shape: missing, of another type, too large, too deep
        raise malformed(f"the collateral has an unknown format: {type(error).__name__}") from None


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
) -> tuple[ListValidity, ListValidity]:
    platform, authority, root = quote_chain.certificates
    if any(chain.root_fingerprint != quote_chain.root_fingerprint for chain in signing_chains):
        raise invalid("the collateral and the quote have different root certificates")
    platform_list = check_not_revoked(
        [platform], collateral.platform_revocation_list, issuer=authority, scheme=ECDSA_P256, now=now
    )
    below_root = [authority, *(chain.leaf for chain in signing_chains)]
    root_list = check_not_revoked(below_root, collateral.root_revocation_list, issuer=root, scheme=ECDSA_P256, now=now)
    return platform_list, root_list


def judge(info: Json, identity: Json, quote: VerifiedQuote, td: Report | None) -> IntelTcb:
    """Find the status of platform, quoting enclave and, with ``td``, TDX module in verified collateral.

    Raises:
        KeyError, TypeError, ValueError: the collateral has an unknown format.
    """
    if info["id"] != ("SGX" if td is None else "TDX") or identity["id"] != ("QE" if td is None else "TD_QE"):
        raise invalid("the collateral is for SGX and the quote for TDX, or vice versa; fetch collateral for the quote")
    platform = quote.platform
    if bytes.fromhex(info["fmspc"]) != platform.fmspc or bytes.fromhex(info["pceId"]) != platform.pce_id:
        raise invalid(f"the TCB info is for FMSPC {info['fmspc']}; fetch the one for {platform.fmspc.hex()}")
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
    advisories = frozenset[str](entry.get("advisoryIDs", ()))
    # Advisory names appear in errors and logs.
    if not all(name.isascii() and name.isprintable() for name in advisories):
        raise ValueError
    return Level(TcbStatus(entry["tcbStatus"]), advisories)


def _platform_level(info: Json, quote: VerifiedQuote, td: Report | None) -> Level:
    for entry in info["tcbLevels"]:
        tcb = entry["tcb"]
        reached = quote.platform.pce_svn >= tcb["pcesvn"]
        reached = _reaches(quote.platform.components, tcb["sgxtcbcomponents"]) and reached
        if td is not None:
            versions = _module_versions(td)
            first = VERSIONED_MODULE_COMPONENTS if versions[1] else 0
            reached = _reaches(versions[first:], tcb["tdxtcbcomponents"][first:]) and reached
        if reached:
            return _level(entry)
    raise invalid("the platform is below every TCB level that Intel lists for it")


def _reaches(versions: Sequence[int], components: Sequence[Json]) -> bool:
    return all(have >= least["svn"] for have, least in zip(versions, components, strict=True))


def _module_level(info: Json, td: Report) -> Level | None:
    """Find the TDX module by its version; version 0 has only the platform's status."""
    own, version, *_ = _module_versions(td)
    name = f"TDX_{version:02X}"
    identities = [entry for entry in info.get("tdxModuleIdentities", ()) if str(entry["id"]).upper() == name]
    module = info["tdxModule"] if version == 0 else identities[0] if len(identities) == 1 else None
    if module is None:
        raise invalid(f"Intel lists no TDX module {name}")
    _require_masked(td["SEAMATTRIBUTES"], module["attributes"], module["attributesMask"], "the TDX module")
    if bytes.fromhex(module["mrsigner"]) != td["MRSIGNERSEAM"]:
        raise invalid("the TDX module's signer is not the one in Intel's TCB info")
    return None if version == 0 else _isv_level(module, own, "the TDX module")


def _quoting_enclave_level(identity: Json, report: Report) -> Level:
    what = "the quoting enclave"
    _require_masked(report["MISCSELECT"], identity["miscselect"], identity["miscselectMask"], what)
    attributes = report["ATTRIBUTES"] + report["XFRM"]
    _require_masked(attributes, identity["attributes"], identity["attributesMask"], what)
    product, version = (int.from_bytes(report[name], "little") for name in ("ISVPRODID", "ISVSVN"))
    if bytes.fromhex(identity["mrsigner"]) != report["MRSIGNER"] or identity["isvprodid"] != product:
        raise invalid("the quoting enclave is not Intel's")
    return _isv_level(identity, version, what)


def _isv_level(identity: Json, version: int, what: str) -> Level:
    for entry in identity["tcbLevels"]:
        if version >= entry["tcb"]["isvsvn"]:
            return _level(entry)
    raise invalid(f"{what} is below every version that Intel lists for it")


def _require_masked(found: bytes, expected: str, mask: str, what: str) -> None:
    pairs = zip(found, bytes.fromhex(mask), bytes.fromhex(expected), strict=True)
    if any(have & bits != value for have, bits, value in pairs):
        raise invalid(f"{what} does not have the attributes in Intel's collateral")


VERSION_4: Final = 4
VERSION_5: Final = 5
BODY_HEADER_BYTES: Final = 6
TDX_BODY_BYTES: Final = {2: 584, 3: 648}
"""Length of each kind of report: TDX 1.0 and 1.5."""


def verify_tdx(quote: bytes, collateral: IntelCollateral | None, roots: frozenset[bytes], now: datetime) -> Claims:
    """Verify a quote and, with collateral, the status of its platform, TDX module and quoting enclave."""
    version = int.from_bytes(quote[:2], "little")
    check_header(quote, version=VERSION_5 if version == VERSION_5 else VERSION_4, tee=TDX_TEE)
    verified = verify_quote(quote, _body(quote, version), roots, now)
    td = read_report(TD_REPORT, verified.body)
    require_known_flags(EvidenceFormat.TDX, td)
    judgement = evaluate_collateral(collateral, verified, roots, now, td=td)
    return Claims(
        format=EvidenceFormat.TDX,
        measurement=_measurement(td),
        signer=b"",
        debug=any(td["ATTRIBUTES"][:1]),
        migratable=bool(int.from_bytes(td["ATTRIBUTES"], "little") & ATTRIBUTE_MIGRATABLE),
        privilege_level=None,
        sibling_threads=False,
        tcb=judgement.tcb,
        lists=judgement.lists,
        report_data=td["REPORTDATA"],
        signed_digest=verified.signed_digest,
        issued_at=None,
        not_after=judgement.not_after,
    )


def _body(quote: bytes, version: int) -> slice:
    """Return the position of the report: fixed in version 4, and after its kind and length in version 5."""
    if version == VERSION_4:
        return slice(HEADER_BYTES, HEADER_BYTES + TDX_BODY_BYTES[2])
    start = HEADER_BYTES + BODY_HEADER_BYTES
    if len(quote) < start:
        raise malformed("the quote ends before its report", Reason.TRUNCATED)
    kind, size = struct.unpack_from("<HI", quote, HEADER_BYTES)
    if TDX_BODY_BYTES.get(kind) != size:
        raise malformed(f"a TDX report must have kind 2 (584 bytes) or 3 (648); got kind {kind} and {size} bytes")
    return slice(start, start + size)


SGX_VERSION: Final = 3
SGX_BODY: Final = slice(HEADER_BYTES, HEADER_BYTES + REPORT_BYTES)


def verify_sgx(quote: bytes, collateral: IntelCollateral | None, roots: frozenset[bytes], now: datetime) -> Claims:
    """Verify a quote and, with collateral, the status of its platform and quoting enclave."""
    check_header(quote, version=SGX_VERSION, tee=SGX_TEE)
    verified = verify_quote(quote, SGX_BODY, roots, now)
    enclave = read_report(SGX_REPORT, verified.body)
    require_known_flags(EvidenceFormat.SGX, enclave)
    reserved = {f"{place.start} to {place.stop} of the report": verified.body[place] for place in SGX_RESERVED}
    require_zero(EvidenceFormat.SGX, reserved)
    judgement = evaluate_collateral(collateral, verified, roots, now, td=None)
    return Claims(
        format=EvidenceFormat.SGX,
        measurement=_measurement(enclave),
        signer=enclave["MRSIGNER"],
        debug=_is_sgx_debug(enclave),
        migratable=False,
        privilege_level=None,
        sibling_threads=False,
        tcb=judgement.tcb,
        lists=judgement.lists,
        report_data=enclave["REPORTDATA"],
        signed_digest=verified.signed_digest,
        issued_at=None,
        not_after=judgement.not_after,
    )
