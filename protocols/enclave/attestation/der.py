"""As much DER as certificates need beyond what the cryptography package gives: where the signed bytes are.

A certificate is taken apart here, its signature is checked, and only then is it given to a parser that knows X.509.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from secagg.errors import Reason

from .refusals import malformed

INTEGER: Final = 0x02
BIT_STRING: Final = 0x03
OCTET_STRING: Final = 0x04
OBJECT_IDENTIFIER: Final = 0x06
SEQUENCE: Final = 0x30
LONG_FORM: Final = 0x80
MAXIMUM_LENGTH_BYTES: Final = 3


@dataclass(frozen=True, slots=True)
class Element:
    """One encoded value: its tag, its content, and all of its bytes."""

    tag: int
    content: bytes
    encoded: bytes

    def children(self) -> tuple[Element, ...]:
        """Take apart a constructed value."""
        return elements(self.content)

    def expect(self, tag: int) -> Element:
        """Return itself, or refuse another tag."""
        if self.tag != tag:
            raise malformed(f"DER tag {tag:#04x} is due and {self.tag:#04x} is there")
        return self


@dataclass(frozen=True, slots=True)
class Signed:
    """What X.509 signs, in certificates and revocation lists alike."""

    message: bytes
    fields: tuple[Element, ...]
    algorithm: bytes
    signature: bytes


def elements(data: bytes) -> tuple[Element, ...]:
    """Take apart a run of values; lengths are minimal and every byte belongs to one of them."""
    found: list[Element] = []
    position = 0
    while position < len(data):
        start = position
        header = data[position : position + 2 + MAXIMUM_LENGTH_BYTES]
        if len(header) < 2:  # noqa: PLR2004 -- a tag and a length
            raise malformed("a DER value ends within its header", Reason.TRUNCATED)
        length, size = header[1], 0
        if length >= LONG_FORM:
            size = length - LONG_FORM
            length = int.from_bytes(header[2 : 2 + size], "big")
            if not 1 <= size <= MAXIMUM_LENGTH_BYTES or length < LONG_FORM or length >> (8 * size - 8) == 0:
                raise malformed("a DER length is not minimal")
        position += 2 + size + length
        if position > len(data):
            raise malformed("a DER value ends early", Reason.TRUNCATED)
        found.append(Element(header[0], data[start + 2 + size : position], data[start:position]))
    return tuple(found)


def only(data: bytes, tag: int) -> Element:
    """Read bytes that are exactly one value."""
    found = elements(data)
    if len(found) != 1:
        raise malformed(f"one DER value is due and {len(found)} are there")
    return found[0].expect(tag)


def read_signed(data: bytes) -> Signed:
    """Take apart a certificate or a revocation list, whose two statements of its algorithm must agree."""
    parts = only(data, SEQUENCE).children()
    if [part.tag for part in parts] != [SEQUENCE, SEQUENCE, BIT_STRING]:
        raise malformed("a certificate or revocation list is signed content, an algorithm and a signature")
    content, algorithm, signature = parts
    if signature.content[:1] != b"\0":
        raise malformed("a signature is a whole number of bytes")
    return Signed(content.encoded, content.children(), algorithm.encoded, signature.content[1:])


def small_integer(encoded: bytes, limit: int) -> int:
    """Read one non-negative integer up to a limit."""
    content = only(encoded, INTEGER).content
    value = int.from_bytes(content, "big", signed=True)
    if not content or not 0 <= value <= limit or len(content) != value.bit_length() // 8 + 1:
        raise malformed(f"an integer from 0 to {limit} is due")
    return value
