"""AWS Nitro: the enclave image format (EIF), and the registers that an attestation document reports for an image.

Implements: version 4 of the format as in ``aws-nitro-enclaves-image-format``, unsigned, for x86-64.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Sequence
from typing import Final

_MAGIC: Final = b".eif"
_FORMAT: Final = 4
_KERNEL, _COMMAND_LINE, _RAMDISK, _METADATA = 1, 2, 3, 5
_MOST_SECTIONS: Final = 32
_HEADER: Final = struct.Struct(f">4sHHQQHH{_MOST_SECTIONS}Q{_MOST_SECTIONS}QII")
_SECTION: Final = struct.Struct(">HHQ")
_REGISTER_BYTES: Final = 48
_MEBIBYTE: Final = 1 << 20


def registers(kernel: bytes, command_line: bytes, ramdisks: Sequence[bytes]) -> dict[str, bytes]:
    """Return PCR0 (the whole image), PCR1 (kernel, command line, first ramdisk) and PCR2 (the other ramdisks)."""
    return {
        "PCR0": _register(kernel, command_line, *ramdisks),
        "PCR1": _register(kernel, command_line, *ramdisks[:1]),
        "PCR2": _register(*ramdisks[1:]),
    }


def _register(*parts: bytes) -> bytes:
    """Return a register that starts at zero and was extended once by the digest of these parts."""
    digest = hashlib.sha384()
    for part in parts:
        digest.update(part)
    return hashlib.sha384(bytes(_REGISTER_BYTES) + digest.digest()).digest()


def enclave_image(  # noqa: PLR0913 -- sections of the format
    kernel: bytes,
    command_line: bytes,
    ramdisks: Sequence[bytes],
    *,
    version: str,
    memory_bytes: int = 512 * _MEBIBYTE,
    processors: int = 2,
) -> bytes:
    """Return an image file. Its metadata has no build time, so the same inputs give the same bytes."""
    built = {
        "BuildTime": "1970-01-01T00:00:00+00:00",
        "BuildTool": "secagg",
        "BuildToolVersion": version,
        "OperatingSystem": "none",
        "KernelVersion": "unknown",
    }
    named = {"ImageName": "secagg-enclave", "ImageVersion": version, "BuildMetadata": built, "DockerInfo": {}}
    described = json.dumps({**named, "CustomMetadata": {}}, separators=(",", ":")).encode()
    sections = [(_KERNEL, kernel), (_COMMAND_LINE, command_line), (_METADATA, described)]
    sections += [(_RAMDISK, each) for each in ramdisks]
    body, offsets = bytearray(), list[int]()
    for kind, content in sections:
        offsets.append(_HEADER.size + len(body))
        body += _SECTION.pack(kind, 0, len(content)) + content
    absent = [0] * (_MOST_SECTIONS - len(sections))
    sizes = [len(content) for _, content in sections]
    fields = (_MAGIC, _FORMAT, 0, memory_bytes, processors, 0, len(sections), *offsets, *absent, *sizes, *absent, 0)
    # The checksum covers the header up to the checksum, and all sections.
    checksum = zlib.crc32(body, zlib.crc32(_HEADER.pack(*fields, 0)[:-4]))
    return _HEADER.pack(*fields, checksum) + bytes(body)
