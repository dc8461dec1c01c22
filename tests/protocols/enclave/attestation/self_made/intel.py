"""SGX and TDX quotes, and the collateral to them, under a root of our own."""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from .authority import END, START, Issued, der, issue, p256, pem, revocation_list, sign

BIND = bytes(range(64))
FMSPC = bytes.fromhex("00a067110000")
COMPONENTS = (11, 11, 2, 2, 255, 1, 12, *(0,) * 9)
PCE_SVN = 13
TEE_TCB_SVN = bytes([5, 3, 4, *(0,) * 13])
QE_SIGNER = {"QE": b"\x8c" * 32, "TD_QE": b"\xdc" * 32}
QE_PRODUCT = {"QE": 1, "TD_QE": 2}
OID = bytes.fromhex("2a864886f84d010d01")


def raw(key: ec.EllipticCurvePrivateKey, message: bytes) -> bytes:
    r, s = decode_dss_signature(sign(key, message))
    return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def point(key: ec.EllipticCurvePrivateKey) -> bytes:
    numbers = key.public_key().public_numbers()
    return numbers.x.to_bytes(32, "big") + numbers.y.to_bytes(32, "big")


def number(value: int) -> bytes:
    return der(2, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def sgx_extension(components: tuple[int, ...] = COMPONENTS, fmspc: bytes = FMSPC, pce_svn: int = PCE_SVN) -> bytes:
    """Say which platform it is, as its certificate does."""

    def named(suffix: bytes, value: bytes) -> bytes:
        return der(0x30, der(6, OID + suffix), value)

    versions = [named(bytes([2, index + 1]), number(version)) for index, version in enumerate(components)]
    versions += [named(b"\x02\x11", number(pce_svn)), named(b"\x02\x12", der(4, bytes(components)))]
    return der(
        0x30,
        named(b"\x01", der(4, bytes(16))),
        named(b"\x02", der(0x30, *versions)),
        named(b"\x03", der(4, bytes(2))),
        named(b"\x04", der(4, fmspc)),
        named(b"\x05", der(10, b"\0")),
    )


@cache
def authorities() -> tuple[Issued, Issued, Issued]:
    """Intel's three: the root, the one that certifies platforms, and the one that signs collateral."""
    root = issue("Intel SGX Root CA", p256(0), ca=True, path_length=1)
    platform = issue("Intel SGX PCK Platform CA", p256(1), root, ca=True, path_length=0)
    return root, platform, issue("Intel SGX TCB Signing", p256(2), root)


@cache
def platform_certificate(extension: bytes | None = None) -> Issued:
    oid = x509.ObjectIdentifier("1.2.840.113741.1.13.1")
    value = x509.UnrecognizedExtension(oid, sgx_extension() if extension is None else extension)
    return issue("Intel SGX PCK Certificate", p256(3), authorities()[1], extensions=[(value, False)])


def quote_chain(extension: bytes | None = None) -> tuple[Issued, ...]:
    root, authority, _ = authorities()
    return platform_certificate(extension), authority, root


def enclave_report(*, report_data: bytes, patches: dict[int, bytes] | None = None) -> bytes:
    report = bytearray(384)
    report[48:64] = bytes.fromhex("0500000000000000e700000000000000")
    report[64:96] = b"\xec" * 32
    report[128:160] = b"\x51" * 32
    report[320:384] = report_data
    for start, patch in (patches or {}).items():
        report[start : start + len(patch)] = patch
    return bytes(report)


def qe_patches(identity: str) -> dict[int, bytes]:
    """Make an enclave's report that of a quoting enclave."""
    return {128: QE_SIGNER[identity], 256: struct.pack("<HH", QE_PRODUCT[identity], 8)}


def td_report(*, kind: int = 2, patches: dict[int, bytes] | None = None) -> bytes:
    report = bytearray(584 if kind == 2 else 648)
    report[0:16] = TEE_TCB_SVN
    report[584:600] = TEE_TCB_SVN[: len(report) - 584]
    report[120:128] = (1 << 28).to_bytes(8, "little")
    report[128:136] = bytes.fromhex("e702060000000000")
    report[136:184] = b"\x3d" * 48
    for index in range(4):
        report[328 + 48 * index : 376 + 48 * index] = bytes([0xB0 + index]) * 48
    report[520:584] = BIND
    for start, patch in (patches or {}).items():
        report[start : start + len(patch)] = patch
    return bytes(report)


@dataclass(frozen=True)
class Quote:
    """A quote to be, of either technology; each field is one thing that may be made wrong."""

    version: int = 3
    body: bytes = field(default_factory=lambda: enclave_report(report_data=BIND))
    kind: int = 2
    header_patches: dict[int, bytes] = field(default_factory=dict[int, bytes])
    qe_patches: dict[int, bytes] = field(default_factory=lambda: qe_patches("QE"))
    authentication: bytes = bytes(range(32))
    chain: bytes | None = None
    vouched_key: int = 4
    tail: bytes = b""
    ending: bytes = b""

    def signed(self) -> bytes:
        header = bytearray(48)
        struct.pack_into("<HHI", header, 0, self.version, 2, 0 if self.version == 3 else 0x81)
        header[12:28] = bytes.fromhex("939a7233f79c4ca9940a0db3957f0607")
        for start, patch in self.header_patches.items():
            header[start : start + len(patch)] = patch
        described = struct.pack("<HI", self.kind, len(self.body)) if self.version == 5 else b""
        return bytes(header) + described + self.body

    def encode(self) -> bytes:
        message, key = self.signed(), p256(4)
        vouched = point(p256(self.vouched_key)) + self.authentication
        report_data = hashlib.sha256(vouched).digest() + bytes(32)
        report = enclave_report(report_data=report_data, patches=self.qe_patches)
        chain = (pem(*quote_chain()) if self.chain is None else self.chain) + self.ending
        certification = report + raw(p256(3), report)
        certification += struct.pack("<H", len(self.authentication)) + self.authentication
        certification += struct.pack("<HI", 5, len(chain)) + chain
        if self.version > 3:
            certification = struct.pack("<HI", 6, len(certification)) + certification
        signature = raw(key, message) + point(key) + certification
        return message + struct.pack("<I", len(signature)) + signature + self.tail


def tdx_quote(version: int = 4, **changes: Any) -> Quote:
    kind = changes.pop("kind", 2)
    changes.setdefault("body", td_report(kind=kind))
    changes.setdefault("qe_patches", qe_patches("TD_QE"))
    return Quote(version=version, kind=kind, **changes)


def level(status: str, advisories: tuple[str, ...] = (), **tcb: Any) -> dict[str, Any]:
    return {"tcb": tcb, "tcbDate": "2031-01-01T00:00:00Z", "tcbStatus": status, "advisoryIDs": list(advisories)}


def components(*versions: int) -> list[dict[str, int]]:
    return [{"svn": version} for version in (*versions, *(0,) * (16 - len(versions)))]


def dates(start: datetime = START, end: datetime = END) -> dict[str, str]:
    form = "%Y-%m-%dT%H:%M:%SZ"
    return {"issueDate": start.strftime(form), "nextUpdate": end.strftime(form)}


def tcb_info(technology: str = "SGX", **changes: Any) -> dict[str, Any]:
    """List two levels: the one that the platform above reaches, and one that is out of date."""
    current: dict[str, Any] = {"sgxtcbcomponents": components(*COMPONENTS), "pcesvn": PCE_SVN}
    old: dict[str, Any] = {"sgxtcbcomponents": components(2, 2), "pcesvn": 5}
    info: dict[str, Any] = {"id": technology, "version": 3, **dates(), "fmspc": FMSPC.hex(), "pceId": "0000"}
    info |= {"tcbType": 0, "tcbEvaluationDataNumber": 17}
    if technology == "TDX":
        current["tdxtcbcomponents"], old["tdxtcbcomponents"] = components(9, 9, 4), components(0, 0, 2)
        module = {"mrsigner": "00" * 48, "attributes": "00" * 8, "attributesMask": "ff" * 8}
        versions = [level("UpToDate", isvsvn=5), level("OutOfDate", ("INTEL-SA-1",), isvsvn=2)]
        info["tdxModule"] = module
        info["tdxModuleIdentities"] = [{"id": "TDX_03", **module, "tcbLevels": versions}]
    info["tcbLevels"] = [level("UpToDate", **current), level("OutOfDate", ("INTEL-SA-2",), **old)]
    return info | changes


def qe_identity(name: str = "QE", **changes: Any) -> dict[str, Any]:
    identity: dict[str, Any] = {"id": name, "version": 2, **dates(), "tcbEvaluationDataNumber": 18}
    identity |= {"miscselect": "00000000", "miscselectMask": "FFFFFFFF", "mrsigner": QE_SIGNER[name].hex().upper()}
    identity |= {"attributes": "01" + "00" * 15, "attributesMask": "FB" + "FF" * 7 + "00" * 8}
    identity["isvprodid"] = QE_PRODUCT[name]
    identity["tcbLevels"] = [level("UpToDate", isvsvn=8), level("OutOfDate", ("INTEL-SA-3",), isvsvn=4)]
    return identity | changes


def response(name: str, value: dict[str, Any], signer: Issued | None = None) -> bytes:
    """Sign a document and put it in the response that Intel's service gives."""
    text = json.dumps(value, separators=(",", ":")).encode()
    key = (signer or authorities()[2]).key
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return b'{"' + name.encode() + b'":' + text + b',"signature":"' + raw(key, text).hex().encode() + b'"}'


def collateral(  # noqa: PLR0913 -- each argument is one thing that may be wrong
    technology: str = "SGX",
    *,
    info: dict[str, Any] | None = None,
    identity: dict[str, Any] | None = None,
    platform_revoked: bool = False,
    authority_revoked: bool = False,
    signer_revoked: bool = False,
) -> dict[str, bytes]:
    """Return the fields of ``IntelCollateral``."""
    root, authority, signer = authorities()
    name = "QE" if technology == "SGX" else "TD_QE"
    below_root = [
        issued.serial for issued, revoked in ((authority, authority_revoked), (signer, signer_revoked)) if revoked
    ]
    return {
        "tcb_info": response("tcbInfo", info or tcb_info(technology)),
        "tcb_info_chain": pem(signer, root),
        "identity": response("enclaveIdentity", identity or qe_identity(name)),
        "identity_chain": pem(signer, root),
        "platform_revocation_list": revocation_list(
            authority, [platform_certificate().serial] if platform_revoked else []
        ),
        "root_revocation_list": revocation_list(root, below_root),
    }
