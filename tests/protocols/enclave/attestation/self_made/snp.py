"""SEV-SNP reports under a root of our own."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from .authority import Issued, issue, p384, revocation_list, rsa_key, sign, signed_again

BIND = bytes(range(64))
CHIP = bytes(range(100, 164))
TCB = bytes([4, 1, 0, 0, 0, 0, 22, 209])


def small(value: int) -> bytes:
    return bytes([2, 1, value]) if value < 128 else bytes([2, 2, 0, value])


TURIN_CHIP = bytes(range(1, 9))
TURIN_TCB = bytes([3, 4, 1, 22, 0, 0, 0, 209])
CLOUD = b"CN=cc-nowhere-1.nobody.com"


def vendor_extensions(tcb: bytes = TCB, chip: bytes = CHIP, product: str = "Milan-B0") -> dict[str, bytes]:
    values = {"1": small(0), "2": b"\x16" + bytes([len(product)]) + product.encode(), "4": chip}
    return values | {f"3.{part}": small(tcb[index]) for index, part in enumerate((1, 2, 4, 5, 6, 7, 3, 8))}


def turin_extensions(chip: bytes = TURIN_CHIP) -> dict[str, bytes]:
    values = {"1": small(1), "2": b"\x16\x05Turin", "4": chip}
    return values | {f"3.{part}": small(TURIN_TCB[index]) for index, part in enumerate((9, 1, 2, 3, 5, 6, 7, 8))}


def cloud_extensions() -> dict[str, bytes]:
    values = {name: value for name, value in vendor_extensions(product="Milan").items() if name != "4"}
    return values | {"5": b"\x16" + bytes([len(CLOUD)]) + CLOUD}


@cache
def authorities() -> tuple[Issued, Issued]:
    """AMD's two: the root and, below it, the one that certifies chips."""
    root = issue("ARK-Milan", rsa_key(0), ca=True)
    return root, issue("SEV-Milan", rsa_key(1), root, ca=True, path_length=0)


def chip_certificate(extensions: dict[str, bytes] | None = None, *, serial_zero: bool = True) -> Issued:
    """Certify the chip, under the serial number 0 that AMD gives."""
    _, authority = authorities()
    values = vendor_extensions() if extensions is None else extensions
    listed = [
        (x509.UnrecognizedExtension(x509.ObjectIdentifier(f"1.3.6.1.4.1.3704.1.{name}"), value), False)
        for name, value in values.items()
    ]
    issued = issue("SEV-VCEK", p384(9), authority, constraints=False, extensions=listed, serial=1)
    if not serial_zero:
        return issued
    return signed_again(issued, authority, b"\xa0\x03\x02\x01\x02\x02\x01\x01", b"\xa0\x03\x02\x01\x02\x02\x01\x00")


def amd_revocation_list(*, authority_revoked: bool = False) -> bytes:
    root, authority = authorities()
    return revocation_list(root, [authority.serial] if authority_revoked else [])


@dataclass(frozen=True)
class SnpReport:
    """A report to be; ``patches`` overwrite bytes before it is signed, and ``tail`` what stands after the signature."""

    policy: int = 0x20000
    version: int = 3
    privilege_level: int = 0
    report_data: bytes = BIND
    measurement: bytes = b"\x4d" * 48
    tcb: bytes = TCB
    patches: dict[int, bytes] = field(default_factory=dict[int, bytes])
    tail: bytes = bytes(368)

    def signed(self) -> bytes:
        report = bytearray(0x2A0)
        struct.pack_into("<I4xQ", report, 0, self.version, self.policy)
        struct.pack_into("<II", report, 0x30, self.privilege_level, 1)
        report[0x40] = 0x24  # memory with error correction, and no aliases in it
        report[0x50:0x90] = self.report_data
        report[0x90:0xC0] = self.measurement
        report[0x160:0x180] = b"\xff" * 32
        report[0x1A0:0x1E0] = CHIP
        for start in (0x38, 0x180, 0x1E0, 0x1F0):
            report[start : start + 8] = self.tcb
        for start, patch in self.patches.items():
            report[start : start + len(patch)] = patch
        return bytes(report)

    def encode(self) -> bytes:
        message = self.signed()
        r, s = decode_dss_signature(sign(p384(9), message))
        return message + r.to_bytes(72, "little") + s.to_bytes(72, "little") + self.tail
