"""Lattice of the masks: Gaussian draws of width 4.5, exact products of polynomials, and the cost of an attack.

**The attack** on one mask is costed by two models.

Implements: the primal attack as a unique shortest vector problem [ADPS16] §6.3, [AGVW17] §3, with the root Hermite
factor of [Che13]. Its cost is the lower of two: sieving in 2^(0.292 beta + 16.4) [BDGL16] for each of 8 d calls, as the
homomorphic encryption standard of 2018 counts it [HES18]; and the gates of [MATZOV22], which fits [AGPS20], with d -
beta calls and the dimensions for free of [Duc18]. So the limit holds in both models.

Limits: it models one attack. Decoding with preprocessing is about 3.5 bits cheaper in the published cells, which
``MARGIN_BITS`` covers; hybrid attacks do not help against a secret of this width. It ignores memory cost, and quantum
computers save a tenth of the exponent. It is an estimate, not a proof; independent estimates are needed.

**Draws** are discrete Gaussian integers, computed with integers only. A draw is a number of 144 uniform bits; its value
is the number of the 128 thresholds that it reaches, less 64. The first 16 bits decide all but a few draws, so a table
gives these values, and only the rest are refined with 128 more bits. The thresholds are computed in decimal arithmetic,
so they are the same on every machine, and the weights are symmetric to the last bit. Each weight is within 2^-144 of
the Gaussian's, except that of zero, which takes the remainder.

Not constant time: which draws are refined depends on the first 16 bits, and the table is indexed by them.

**Products** of public and short polynomials modulo X^n + 1 and 2^w are exact, by transforms in floating point.

Implements: the right-angle convolution [CF94]. Modulo X^n + 1 a real polynomial is one of n/2 complex coefficients
modulo X^(n/2) - i: the lower half of its coefficients are the real parts, the upper half the imaginary ones. With X
scaled by exp(i pi / n) this is a cyclic convolution. Coefficients of the public factor are split into limbs small
enough that the error of every product is below a quarter, so that rounding to the nearest integer is exact.

``error_bound`` is the theorem of [BPZ07] §3 (after [Per03]) for transforms of length n/2, with the scaling counted as
one more level. It bounds any sequence of butterflies in which each level adds once and multiplies by one root, as a
library's mixed-radix transforms do.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from secagg.crypto.secret import Secret, overwrite
from secagg.errors import InternalError, InvalidParameters

SIGMA: Final = 4.5
"""The width with which secret and error are drawn."""
REVEALED_SIGMA: Final = SIGMA / math.sqrt(2)
"""The width of one of two secrets given their sum; the assumption is stated for this width."""
MARGIN_BITS: Final = 4.0
"""Subtracted from the estimate before it is compared with a limit."""

_GATES_A_DIMENSION = 0.29613500308205365
_LEAST_GATES = 20.387885985467914
_LEAST_BLOCK = 60
_GREATEST_BLOCK = 4000


class Attack(NamedTuple):
    """Cheapest primal attack that the formula finds."""

    block_size: int
    dimension: int

    @property
    def sieving_bits(self) -> float:
        """Logarithm of its cost in the model of the 2018 standard."""
        return 0.292 * self.block_size + 16.4 + math.log2(8 * self.dimension)

    @property
    def gate_bits(self) -> float:
        """Logarithm of its cost in gates, in the model of 2022."""
        free = self.block_size * math.log(4 / 3) / math.log(self.block_size / (2 * math.pi * math.e))
        calls = 2 * math.log2(1 / (1 - 2**-_GATES_A_DIMENSION)) + math.log2(max(1, self.dimension - self.block_size))
        return calls + _GATES_A_DIMENSION * (self.block_size - free) + _LEAST_GATES

    @property
    def bits(self) -> float:
        return min(self.sieving_bits, self.gate_bits)


def primal_attack(degree: int, modulus_bits: int, error_width: float, secret_width: float) -> Attack:
    """Return the smallest block size that finds the secret, with the number of samples that is best for the attacker.

    The attack succeeds where sqrt(beta) sigma <= delta^(2 beta - d - 1) volume^(1/d), for d = degree + samples + 1 and
    the secret scaled to the error's width.
    """
    volume = (degree + 1) * modulus_bits - degree * math.log2(error_width / secret_width)
    low, high = _LEAST_BLOCK, _GREATEST_BLOCK
    while low < high:
        middle = (low + high) // 2
        if _finds(middle, _best_dimension(middle, volume), volume, modulus_bits, error_width):
            high = middle
        else:
            low = middle + 1
    return Attack(low, _best_dimension(low, volume))


def security_bits(degree: int, modulus_bits: int) -> float:
    """Return the security estimate for one mask whose sum with another is known, less the margin."""
    return primal_attack(degree, modulus_bits, REVEALED_SIGMA, REVEALED_SIGMA).bits - MARGIN_BITS


def _hermite_bits(block: int) -> float:
    return math.log2((math.pi * block) ** (1 / block) * block / (2 * math.pi * math.e)) / (2 * (block - 1))


def _best_dimension(block: int, volume: float) -> int:
    """Return the dimension that maximises the right-hand side; its derivative is one square root away."""
    return max(block, round(math.sqrt(volume / _hermite_bits(block))))


def _finds(block: int, dimension: int, volume: float, modulus_bits: int, error_width: float) -> bool:
    reached = (2 * block - dimension - 1) * _hermite_bits(block) + modulus_bits - volume / dimension
    return math.log2(error_width) + 0.5 * math.log2(block) <= reached


# --- Draws ------------------------------------------------------------------------------------------------------------

LARGEST: Final = 64
"""Values beyond 14 deviations, which have probability 2^-145, are never drawn."""
INDEX_BITS: Final = 16
REFINING_BITS: Final = 128
_DIGITS = 100
_BLOCK_BYTES = 16
_REFINING_COUNTER = bytes([1]) + bytes(_BLOCK_BYTES - 1)
"""Refining bits use the upper half of the key's counters, which the stream of indices never reaches."""

SmallVector = npt.NDArray[np.int8]


def weights(largest: int = LARGEST) -> list[int]:
    """Return the weights of -largest..largest, out of 2^144."""
    total = 1 << (INDEX_BITS + REFINING_BITS)
    with localcontext() as context:
        context.prec = _DIGITS
        mass = [(-Decimal(value * value) / (2 * Decimal(SIGMA) ** 2)).exp() for value in range(largest + 1)]
        whole = mass[0] + 2 * sum(mass[1:])
        side = [int(total * part / whole) for part in mass[1:]]
    return [*reversed(side), total - 2 * sum(side), *side]


def thresholds() -> list[int]:
    """Return the thresholds at which a draw exceeds -64, -63, ...; a weight of zero repeats a threshold."""
    sums, reached = list[int](), 0
    for weight in weights()[:-1]:
        reached += weight
        sums.append(reached)
    return sums


def _tables() -> tuple[SmallVector, npt.NDArray[np.bool_], npt.NDArray[np.uint64]]:
    """Return each bucket's first value, whether it needs refining, and the thresholds as rows of three words."""
    edges, size = thresholds(), 1 << INDEX_BITS
    starts = np.array([-(-edge >> REFINING_BITS) for edge in edges])
    first = np.bincount(starts, minlength=size + 1)[:size].cumsum() - LARGEST
    is_open = np.zeros(size, np.bool_)
    is_open[[edge >> REFINING_BITS for edge in edges if edge % (1 << REFINING_BITS)]] = True
    words = [[t >> REFINING_BITS, t >> 64 & (1 << 64) - 1, t & (1 << 64) - 1] for t in edges]
    return first.astype(np.int8), is_open, np.array(words, np.uint64).T.copy()


FIRST, IS_OPEN, _THRESHOLDS = _tables()
_REFINE: Final = np.int8(-128)
_VALUES: Final = np.where(IS_OPEN, _REFINE, FIRST)


class Sampler:
    """A stream of draws from a 32-byte key; the key must have no other use."""

    __slots__ = ("_indices", "_refining")

    def __init__(self, key: Secret) -> None:
        self._indices = _stream(key, bytes(_BLOCK_BYTES))
        self._refining = _stream(key, _REFINING_COUNTER)

    def draw(self, count: int) -> SmallVector:
        """Return the next draws; the caller overwrites them."""
        drawn = _bytes(self._indices, 2 * count)
        buckets = np.frombuffer(drawn, "<u2")
        values: SmallVector = _VALUES.take(buckets)
        refined = np.flatnonzero(values == _REFINE)
        fine = _bytes(self._refining, REFINING_BITS // 8 * refined.size)
        values[refined] = refine(buckets[refined].astype(np.uint64), np.frombuffer(fine, "<u8").reshape(-1, 2))
        overwrite(drawn)
        overwrite(fine)
        return values


def refine(buckets: npt.NDArray[np.uint64], fine: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return the number of thresholds that each number reaches, less 64; compares all of them for every number."""
    bucket, high, low = buckets[:, None], fine[:, :1], fine[:, 1:]
    by_bucket, by_high, by_low = _THRESHOLDS
    reached = (high > by_high) | ((high == by_high) & (low >= by_low))
    reached = (bucket > by_bucket) | ((bucket == by_bucket) & reached)
    values: npt.NDArray[np.int64] = reached.sum(axis=1) - LARGEST
    return values


def _stream(key: Secret, counter: bytes) -> CipherContext:
    return Cipher(algorithms.AES(key.expose()), modes.CTR(counter)).encryptor()


def _bytes(stream: CipherContext, count: int) -> bytearray:
    drawn = bytearray(count)
    stream.update_into(bytes(count), drawn)
    return drawn


# --- Products ---------------------------------------------------------------------------------------------------------

LIMB_BITS: Final = 28
"""The widest limb of a public polynomial; two hold w = 55, four w = 108."""
GREATEST_ERROR: Final = 0.25
NORM_FACTOR: Final = 1.5
"""A drawn secret's squared norm exceeds its mean by this factor with probability below 2^-69 in the lowest degree."""
_ROUNDING = 2.0**-53
_ROOT_ERROR = 2.0**-52
"""The absolute error of a computed root of unity: sine and cosine to one unit in the last place."""

_ROUNDER = 1.5 * 2.0**52
_ROUNDER_BITS = int(np.float64(_ROUNDER).view(np.int64))

Spectrum = npt.NDArray[np.complex128]
Integers = npt.NDArray[np.int64]


def limb_count(modulus_bits: int) -> int:
    """Return the number of limbs of a coefficient modulo 2^w."""
    return -(-modulus_bits // LIMB_BITS)


def limb_bits(modulus_bits: int) -> int:
    """Return the number of bits of a limb."""
    return -(-modulus_bits // limb_count(modulus_bits))


def secret_norm_bound(degree: int) -> float:
    """Return the Euclidean norm that ``require_short`` allows a drawn secret."""
    return math.sqrt(NORM_FACTOR * degree) * SIGMA


def error_bound(degree: int, limb: int, short_norm: float) -> float:
    """Return the largest error of a coefficient of a product of limbs in +-2^(limb-1) with a short polynomial."""
    levels = degree.bit_length() - 2
    growth = (
        3 * levels * math.log1p(_ROUNDING)
        + (3 * (levels + 1) + 1) * math.log1p(math.sqrt(5) * _ROUNDING)
        + 3 * (levels + 1) * math.log1p(_ROOT_ERROR)
    )
    return 2.0 ** (limb - 1) * math.sqrt(degree) * short_norm * math.expm1(growth)


def sum_limb_bits(degree: int, modulus_bits: int) -> int:
    """Return the widest limbs of a sum of secrets whose products are exact, whatever their values."""
    widths = [
        bits
        for bits in range(1, 16)
        if error_bound(degree, limb_bits(modulus_bits), math.sqrt(degree) * 2 ** (bits - 1)) < GREATEST_ERROR
    ]
    if not widths or error_bound(degree, limb_bits(modulus_bits), secret_norm_bound(degree)) >= GREATEST_ERROR:
        raise InvalidParameters(f"products of degree {degree} modulo 2^{modulus_bits} are not exact in floating point")
    return widths[-1]


def require_short(secret: npt.NDArray[np.int8]) -> None:
    """Refuse a secret whose norm exceeds the bound for exact products; drawn secrets never do."""
    squared = float(np.square(secret, dtype=np.float64).sum())
    if squared > secret_norm_bound(secret.size) ** 2:
        raise InternalError("a drawn secret exceeds the norm bound; the coins are not uniform")


def spectra(polynomials: npt.NDArray[np.integer[Any]]) -> Spectrum:
    """Return the transforms of polynomials along the last axis: (..., n) -> (..., n/2)."""
    half = polynomials.shape[-1] // 2
    folded = np.empty((*polynomials.shape[:-1], half), np.complex128)
    folded.real, folded.imag = polynomials[..., :half], polynomials[..., half:]
    folded *= scaling(half)
    return np.fft.fft(folded, axis=-1)


def products(public: Spectrum, short: Spectrum) -> Integers:
    """Return the rounded products of many transforms with one: (..., n/2) -> (..., 2, n/2), lower and upper half.

    Products are below 2^51: a limb of 28 bits, times the root of the degree, times a norm below 2^17.
    """
    scaled = np.fft.ifft(public * short, axis=-1)
    scaled *= unscaling(short.size)
    parts = scaled.view(np.float64)
    # Near 2^52 a double has no fraction, so this addition rounds, and its lowest bits are the integer.
    parts += _ROUNDER
    integers = parts.view(np.int64)
    integers -= _ROUNDER_BITS
    return np.moveaxis(integers.reshape(*scaled.shape, 2), -1, -2)


@lru_cache(maxsize=8)
def scaling(half: int) -> Spectrum:
    """Return the powers of exp(i pi / n) that make the product cyclic."""
    roots: Spectrum = np.exp(1j * np.pi * np.arange(half) / (2 * half))
    return roots


@lru_cache(maxsize=8)
def unscaling(half: int) -> Spectrum:
    """Return the inverse of ``scaling``."""
    return scaling(half).conj()
