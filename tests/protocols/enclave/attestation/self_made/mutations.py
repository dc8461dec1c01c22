"""Signed DER in which one value was altered, and which its authority signs again."""

from __future__ import annotations

from collections.abc import Iterator

from secagg.protocols.enclave.attestation.certificates import elements

from .authority import Issued, der, sign

Tree = tuple[int, bytes | list["Tree"]]


def tree_of(encoded: bytes) -> list[Tree]:
    """Take apart DER as far as it nests."""
    return [(each.tag, tree_of(each.content) if each.tag & 0x20 else each.content) for each in elements(encoded)]


def altered(tree: Tree) -> Iterator[bytes]:
    """Yield encodings in which one value was altered, and the lengths around it are right again."""
    tag, content = tree
    whole = content if isinstance(content, bytes) else b"".join(flat(child) for child in content)
    for kind in (tag ^ 1, tag ^ 0x20, 0x05, 0x0C, 0x17):
        yield der(kind, whole)
    for other in (b"", whole[:-1], whole + b"\0", whole * 2, b"\xff" * len(whole), bytes(len(whole))):
        yield der(tag, other)
    yield b""
    if isinstance(content, bytes):
        for position in range(len(content)):
            for bit in (0x01, 0x80):
                changed = bytes([content[position] ^ bit])
                yield der(tag, content[:position], changed, content[position + 1 :])
        return
    encoded = [flat(child) for child in content]
    for place, child in enumerate(content):
        for changed in altered(child):
            yield der(tag, *encoded[:place], changed, *encoded[place + 1 :])


def flat(tree: Tree) -> bytes:
    tag, content = tree
    return der(tag, content if isinstance(content, bytes) else b"".join(flat(child) for child in content))


def signed(signer: Issued, message: bytes, algorithm: bytes) -> bytes:
    """Return a certificate or list around some content."""
    return der(0x30, message, algorithm, der(3, b"\0", sign(signer.key, message)))
