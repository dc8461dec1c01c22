"""Check words: a few linear words of a vector, which detect masks that are left in a sum.

Each is an inner product of the vector with a public random vector over its ring, shifted for each word. By linearity,
the words of a sum are the sum of the words.
"""

from __future__ import annotations

from typing import Final

from .mask_expansion import SEGMENT_BYTES, Generator, accumulate
from .ring import Ring, RingVector, low_bits
from .secret import Secret

CHECK_KEY_BYTES: Final = 16


def check_words(ring: Ring, values: RingVector, count: int, key: Secret) -> list[int]:
    """Return ``count`` check words of a vector; the key's public vector is generated in parts.

    Word w is the inner product of the values with the public vector from element w on. Consider an error, and its last
    element of lowest valuation v, a unit times 2^v. It reaches each word through a different element of the public
    vector; modulo 2 the matrix of these elements is triangular with ones on the diagonal. So the words of any one error
    are uniform and independent multiples of 2^v, as if each word had its own public vector.

    Claim RI-6: verified on symbolic terms, with an ideal public vector.
    """
    per_piece, words = SEGMENT_BYTES // ring.word_bytes, [0] * count
    memory = ring.zeros(min(per_piece, values.size) + count - 1)
    for start in range(0, values.size, per_piece):
        piece = values[start : start + per_piece]
        public = memory[: piece.size + count - 1]
        public[:] = 0
        # For a single key the smaller chunks of counter mode cost less than the larger buffers of GCM.
        accumulate(public, ring, add=[key], subtract=[], start=start, generator=Generator.CTR)
        for word in range(count):
            words[word] += ring.inner_product(piece, public[word : word + piece.size])
    return [word & low_bits(ring.modulus_bits) for word in words]
