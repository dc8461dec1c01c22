"""AMD SEV-SNP: launch digest of a guest that QEMU boots directly with hashes of kernel, initramfs and command line.

Implements: SNP_LAUNCH_UPDATE of the firmware's ABI specification (56860), for the pages that QEMU and an AmdSev build
of OVMF measure.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final
from uuid import UUID

from secagg.errors import InvalidParameters

_PAGE: Final = 4096
_DIGEST_BYTES: Final = 48
_PAGE_INFO: Final = struct.Struct("<48s48sHBBIQ")

# The table at the end of OVMF: entries of data, length and name, read from the end.
_ENTRY: Final = struct.Struct("<H16s")
_AFTER_TABLE: Final = 32
_FOOTER = UUID("96b582de-1fb2-45f7-baea-a366c55a082d").bytes_le
_RESET_BLOCK = UUID("00f771de-1a7e-4fcb-890e-68c77e2fb44e").bytes_le
_METADATA = UUID("dc886566-984a-4798-a75e-5585a7bf67cc").bytes_le
_HASH_TABLE = UUID("7255371f-3a3b-4b04-927b-1da6efa8d454").bytes_le

# The page in which QEMU passes the hashes of the kernel, initramfs and command line to the firmware.
_HASHES = UUID("9438d606-4f22-4cc9-b479-a793d411fd21").bytes_le
_HASH_OF_COMMAND_LINE = UUID("97d02dd8-bd20-4c94-aa78-e7714d36ab2a").bytes_le
_HASH_OF_INITRAMFS = UUID("44baf731-3a2f-4bd7-9af1-41e29169781d").bytes_le
_HASH_OF_KERNEL = UUID("4de79437-abd2-427f-b835-d5b172d2045b").bytes_le

_NORMAL, _PROCESSOR, _ZERO, _SECRETS, _CPUID = 1, 2, 3, 5, 6
_KERNEL_HASHES: Final = 0x10
_TYPES: Final[Mapping[int, int]] = MappingProxyType({1: _ZERO, 2: _SECRETS, 3: _CPUID, 4: _ZERO})
"""Page type that is measured for each kind of section."""
_PROCESSOR_ADDRESS: Final = 0xFFFF_FFFF_F000
_RESET_VECTOR: Final = 0xFFFF_FFF0
PROCESSORS: Final[Mapping[str, int]] = MappingProxyType(
    {"EPYC-v4": 0x800F12, "EPYC-Rome": 0x830F10, "EPYC-Milan": 0xA00F11, "EPYC-Genoa": 0xA10F10}
)
"""EAX of CPUID leaf 1 for each of QEMU's processor models."""


def launch_digest(  # noqa: PLR0913 -- everything that is measured
    firmware: bytes,
    kernel: bytes,
    initramfs: bytes,
    command_line: bytes,
    *,
    processor: str,
    count: int = 1,
    features: int = 1,
) -> bytes:
    """Return the MEASUREMENT field of a guest's report.

    Args:
        firmware: a build of OvmfPkg/AmdSev, which only boots files with the given hashes.
        processor: one of ``PROCESSORS``.
        count: number of the guest's processors.
        features: SEV_FEATURES; 1 is SNP without options.
    Raises:
        InvalidParameters: the firmware has no section for hashes, so the digest would not cover the kernel.
    """
    if processor not in PROCESSORS:
        raise InvalidParameters(f"the processor must be one of {', '.join(PROCESSORS)}; got {processor!r}")
    if count < 1:
        raise InvalidParameters(f"a guest needs at least one processor; got {count}")
    try:
        entries = _entries(firmware)
        sections = list(_sections(firmware, entries))
    except struct.error as error:
        raise InvalidParameters(f"this firmware's table is damaged: {error}") from None
    digest = _DigestOfPages()
    start = (1 << 32) - len(firmware)
    for at in range(0, len(firmware), _PAGE):
        digest.content(_NORMAL, start + at, firmware[at : at + _PAGE])
    for address, size, kind in sections:
        if kind == _KERNEL_HASHES:
            offset = int.from_bytes(entries[_HASH_TABLE][:4], "little") % _PAGE
            digest.content(_NORMAL, address, _hashes_page(kernel, initramfs, command_line, offset))
            continue
        for at in range(0, size, _PAGE):
            digest.page(_TYPES[kind], address + at)
    others = int.from_bytes(entries[_RESET_BLOCK][:4], "little")
    for number in range(count):
        begin = others if number else _RESET_VECTOR
        digest.content(_PROCESSOR, _PROCESSOR_ADDRESS, _processor_page(begin, PROCESSORS[processor], features))
    return digest.value


class _DigestOfPages:
    """Hash chain with one link for each page that the hypervisor adds before the guest starts."""

    def __init__(self) -> None:
        self.value = bytes(_DIGEST_BYTES)

    def page(self, kind: int, address: int, digest: bytes = bytes(_DIGEST_BYTES)) -> None:
        info = _PAGE_INFO.pack(self.value, digest, _PAGE_INFO.size, kind, 0, 0, address)
        self.value = hashlib.sha384(info).digest()

    def content(self, kind: int, address: int, content: bytes) -> None:
        self.page(kind, address, hashlib.sha384(content).digest())


def _entries(firmware: bytes) -> dict[bytes, bytes]:
    """Return the entries of the table at the end of an OVMF build, by name."""
    end = len(firmware) - _AFTER_TABLE
    if end < _ENTRY.size or len(firmware) % _PAGE:
        raise InvalidParameters("this firmware is not a build of OVMF: its size is not a multiple of the page size")
    size, name = _ENTRY.unpack_from(firmware, end - _ENTRY.size)
    if name != _FOOTER or not _ENTRY.size <= size <= end:
        raise InvalidParameters("this firmware is not a build of OVMF: the table at its end is missing")
    found, begin, end = dict[bytes, bytes](), end - size, end - _ENTRY.size
    while end - begin >= _ENTRY.size:
        size, name = _ENTRY.unpack_from(firmware, end - _ENTRY.size)
        if not _ENTRY.size <= size <= end - begin:
            raise InvalidParameters("this firmware's table is damaged: an entry reaches beyond it")
        found[name] = firmware[end - size : end - _ENTRY.size]
        end -= size
    return found


def _sections(firmware: bytes, entries: Mapping[bytes, bytes]) -> Iterator[tuple[int, int, int]]:
    """Yield address, size and kind of each measured section outside the firmware's own bytes."""
    found = list[tuple[int, int, int]]()
    if {_METADATA, _RESET_BLOCK, _HASH_TABLE} <= entries.keys():
        start = len(firmware) - int.from_bytes(entries[_METADATA][:4], "little")
        magic, _, _, count = struct.unpack_from("<4sIII", firmware, start)
        if magic == b"ASEV":
            found = [struct.unpack_from("<III", firmware, start + 16 + 12 * number) for number in range(count)]
    kinds = [kind for _, _, kind in found]
    if _KERNEL_HASHES not in kinds:
        raise InvalidParameters(
            "this firmware does not verify what it boots, so a measurement would not cover kernel, initramfs and "
            "command line; use a build of OvmfPkg/AmdSev (distributions ship OVMF without it)"
        )
    if unknown := [kind for kind in kinds if kind not in _TYPES and kind != _KERNEL_HASHES]:
        raise InvalidParameters(f"this firmware has a section of unknown kind {unknown[0]}")
    yield from found


def _hashes_page(kernel: bytes, initramfs: bytes, command_line: bytes, offset: int) -> bytes:
    """Return the page with hashes of kernel, initramfs and command line, as QEMU's ``kernel-hashes=on`` fills it."""
    table = b""
    for name, content in (
        (_HASH_OF_COMMAND_LINE, command_line + b"\0"),
        (_HASH_OF_INITRAMFS, initramfs),
        (_HASH_OF_KERNEL, kernel),
    ):
        table += name + struct.pack("<H", 50) + hashlib.sha256(content).digest()
    table = _HASHES + struct.pack("<H", 18 + len(table)) + table
    return (bytes(offset) + table).ljust(_PAGE, b"\0")


_DATA, _CODE, _LOCAL_TABLE, _TASK = 0x93, 0x9B, 0x82, 0x8B
_SEGMENTS: Final = (
    (0x00, _DATA),
    (0x20, _DATA),
    (0x30, _DATA),
    (0x40, _DATA),
    (0x50, _DATA),
    (0x60, 0),
    (0x70, _LOCAL_TABLE),
    (0x80, 0),
    (0x90, _TASK),
)
"""Offsets and attributes of the segment registers, except the code segment's, in a processor's save area."""


def _processor_page(start: int, signature: int, features: int) -> bytes:
    """Return the save area (VMSA) of one processor, as QEMU and KVM fill it at the start."""
    page = bytearray(_PAGE)
    for at, attributes in _SEGMENTS:
        struct.pack_into("<HHIQ", page, at, 0, attributes, 0xFFFF, 0)
    struct.pack_into("<HHIQ", page, 0x10, 0xF000, _CODE, 0xFFFF, start & 0xFFFF_0000)
    for at, value in (
        (0xD0, 0x1000),  # EFER: SVM
        (0x148, 0x40),  # CR4: machine checks
        (0x158, 0x10),  # CR0: extension type
        (0x160, 0x400),  # DR7
        (0x168, 0xFFFF_0FF0),  # DR6
        (0x170, 2),  # RFLAGS
        (0x178, start & 0xFFFF),  # RIP
        (0x268, 0x0007_0406_0007_0406),  # PAT
        (0x310, signature),  # RDX: CPUID leaf 1
        (0x3B0, features),  # SEV_FEATURES
        (0x3E8, 1),  # XCR0
    ):
        struct.pack_into("<Q", page, at, value)
    struct.pack_into("<I", page, 0x408, 0x1F80)  # MXCSR
    struct.pack_into("<H", page, 0x410, 0x37F)  # x87 control word
    return bytes(page)
