"""Exact products of public and short polynomials modulo X^n + 1 and 2^w, by transforms in floating point.

Implements: the right-angle convolution [CF94]. Modulo X^n + 1 a real polynomial is one of n/2 complex coefficients
modulo X^(n/2) - i: the lower half of its coefficients are the real parts, the upper half the imaginary ones. With X
scaled by exp(i pi / n) this is a cyclic convolution. Coefficients of the public factor are cut into limbs so small that
the error of every product is below a quarter, and rounding to the next integer is exact.

``error_bound`` is the theorem of [BPZ07] §3 (after [Per03]) for transforms of length n/2, with the scaling counted as
one level more. It bounds any sequence of butterflies in which each level adds once and multiplies by one root, as
the mixed radices of a library do.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.errors import InternalError, InvalidParameters

from .estimator import SIGMA

LIMB_BITS: Final = 28
"""The widest limb of a public polynomial; two hold w = 55, four w = 108."""
GREATEST_ERROR: Final = 0.25
NORM_FACTOR: Final = 1.5
"""A drawn secret's squared norm exceeds its mean by this factor with a chance below 2^-69 in the least degree."""
_ROUNDING = 2.0**-53
_ROOT_ERROR = 2.0**-52
"""The absolute error of a computed root of unity: sine and cosine to one unit in the last place."""

_ROUNDER = 1.5 * 2.0**52
_ROUNDER_BITS = int(np.float64(_ROUNDER).view(np.int64))

Spectrum = npt.NDArray[np.complex128]
Integers = npt.NDArray[np.int64]


def limb_count(modulus_bits: int) -> int:
    """Return into how many limbs a coefficient modulo 2^w is cut."""
    return -(-modulus_bits // LIMB_BITS)


def limb_bits(modulus_bits: int) -> int:
    """Return how many bits a limb has."""
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
    """Refuse a secret whose norm leaves the bound under which products are exact; drawn ones never do."""
    squared = float(np.square(secret, dtype=np.float64).sum())
    if squared > secret_norm_bound(secret.size) ** 2:
        raise InternalError("a drawn secret is longer than draws are; the coins are not uniform")


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


def split_sum(total: npt.NDArray[np.int32], bits: int) -> list[npt.NDArray[np.int64]]:
    """Cut the entries of a sum of secrets into limbs in [-2^(bits-1), 2^(bits-1)), lowest first."""
    limbs = list[npt.NDArray[np.int64]]()
    rest = total.astype(np.int64)
    half = 1 << (bits - 1)
    while rest.any() or not limbs:
        limb = ((rest + half) & ((1 << bits) - 1)) - half
        limbs.append(limb)
        rest = (rest - limb) >> bits
    return limbs


@lru_cache(maxsize=8)
def scaling(half: int) -> Spectrum:
    """Return the powers of exp(i pi / n) that make the product cyclic."""
    roots: Spectrum = np.exp(1j * np.pi * np.arange(half) / (2 * half))
    return roots


@lru_cache(maxsize=8)
def unscaling(half: int) -> Spectrum:
    """Return the inverse of ``scaling``."""
    return scaling(half).conj()
