"""Upload sizes under two accountings, and the layouts behind the paper's size tables.

Every method is a ``Layout`` of the tensors that it sends. The accounting "paper" counts only the bits of values; "wire"
counts the bytes sent: each segment fills whole bytes, and a header with the layout's digest precedes them. Sizes are
exact rationals; only printed sizes are rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from fractions import Fraction
from math import prod
from typing import Final

from secagg.contract import DIGEST_BYTES, IndexSegment, Layout, RingSegment, Segment
from secagg.wire import HEADER_BYTES

from .product_quantization import block_geometry, is_quantizable
from .random_pruning import kept_count

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
"""The shape of each tensor of a model by its name, in the model's order."""


def parameter_count(shapes: Shapes) -> int:
    """Return the number of parameters of a model."""
    return sum(map(prod, shapes.values()))


def is_bias(name: str) -> bool:
    """Whether the name is that of a bias, not of a layer's or norm's weight."""
    return name.rpartition(".")[2].startswith("bias")


PLAIN_BITS: Final = 32
"""Bits of an uncompressed number: a float32, or the ring of its fixed-point form."""


class Accounting(StrEnum):
    """Two ways to count the bytes of one client's upload."""

    PAPER = "paper"
    """The bits of the values [PGC+22]: no padding, no header, no mask, seed, scale or codebook."""
    WIRE = "wire"
    """The length of the payload's canonical encoding, without fine bits, which are not uploaded."""


def upload_bytes(layout: Layout, accounting: Accounting) -> Fraction:
    """Return the size of one client's payload of a layout."""
    match accounting:
        case Accounting.PAPER:
            rings = ((s.sent_ring if isinstance(s, RingSegment) else s.ring, s.length) for s in layout.segments)
            return Fraction(sum(ring.modulus_bits * length for ring, length in rings), 8)
        case Accounting.WIRE:
            return Fraction(HEADER_BYTES + DIGEST_BYTES + layout.payload_bytes)


def plain_bytes(shapes: Shapes) -> int:
    """Return the size of an uncompressed model."""
    return parameter_count(shapes) * PLAIN_BITS // 8


def codebook_bytes(shapes: Shapes, codewords: int, block: int) -> int:
    """Return the size of all codebooks of a model, which the server broadcasts at each refresh."""
    geometries = (block_geometry(shape, block, codewords) for shape in shapes.values() if is_quantizable(shape, block))
    return sum(geometry.codewords * geometry.block_size for geometry in geometries) * PLAIN_BITS // 8


# --- Layouts of the paper's methods -----------------------------------------------------------------------------------


def scalar_quantization_layout(shapes: Shapes, modulus_bits: int) -> Layout:
    """Return the layout with tensors of two or more dimensions in a ring of this width; others are plain."""
    widths = (modulus_bits if len(shape) > 1 else PLAIN_BITS for shape in shapes.values())
    return Layout(tuple(RingSegment(bits, prod(shape)) for bits, shape in zip(widths, shapes.values(), strict=True)))


def pruning_layout(shapes: Shapes, sparsity: Fraction) -> Layout:
    """Return the layout of pruned tensors and whole biases.

    The paper's text exempts norms, but its sizes do not: the weights of norms are pruned as well.
    """
    kept = (prod(shape) if is_bias(name) else kept_count(prod(shape), sparsity) for name, shape in shapes.items())
    return Layout(tuple(RingSegment(PLAIN_BITS, count) for count in kept))


def product_quantization_layout(shapes: Shapes, codewords: int, block: int) -> Layout:
    """Return the layout with one index per block of tensors with codebooks; other tensors are plain."""
    return Layout(tuple(_indexed_or_plain(shape, codewords, block) for shape in shapes.values()))


def _indexed_or_plain(shape: Shape, codewords: int, block: int) -> Segment:
    if not is_quantizable(shape, block):
        return RingSegment(PLAIN_BITS, prod(shape))
    geometry = block_geometry(shape, block, codewords)
    return IndexSegment(geometry.codewords, geometry.blocks)
