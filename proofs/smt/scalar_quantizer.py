"""The range of scalar quantization, over every float32, including infinities, NaN, both zeros and subnormals.

This models the lines of ``ScalarQuantization.encode`` from the quotient to the code instead of running their source,
because numpy's loops over objects treat NaN and ties in another way than its loops over floats.
``agrees_with_the_code`` runs both on critical values; the rest depends on review.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, Final

import numpy as np

from obligations import Obligation
from secagg.compression.scalar_quantization import LEAST_BITS, MAXIMUM_BITS, Rounding, ScalarQuantization
from terms import Answer, Question, Term, conjunction, result, z3

FLOAT: Final = z3.Float32()
NEAREST: Final = z3.RNE()
INTEGER_BITS: Final = 32
SMALLEST_NORMAL: Final = 2.0**-126
COIN_BITS: Final = 24
EXHAUSTED_BITS: Final = 8

BITS: Final = range(LEAST_BITS, MAXIMUM_BITS + 1)


def obligations() -> Iterator[Obligation]:
    """Every statement, every mutant, and the comparison of the model with the code."""
    family = "scalar quantizer"
    for bits in BITS:
        yield Obligation(family, f"every code is in range, {bits} bits", partial(codes_in_range, bits))
        for code in (-(1 << (bits - 1)), -1, 0, (1 << (bits - 1)) - 1):
            name = f"the code is the clamped integer, {bits} bits, zero point {code}"
            yield Obligation(family, name, partial(code_is_exact, bits, only=code))
        yield Obligation(family, f"stochastic codes are in range, {bits} bits", partial(stochastic_in_range, bits))
    for bits in range(LEAST_BITS, EXHAUSTED_BITS + 1):
        name = f"the code is the clamped integer, {bits} bits, every zero point"
        yield Obligation(family, name, partial(code_is_exact, bits))
    yield Obligation(family, "finite values have quotients", finite_quotients)
    yield Obligation(family, "stochastic rounding is to a neighbour", stochastic_is_next_to)
    yield Obligation(family, "the model agrees with the code", agrees_with_the_code)
    refused = Answer.REFUTED
    yield Obligation(family, "codes of 26 bits", partial(codes_in_range, 26), refused)
    yield Obligation(family, "without the clamp", partial(codes_in_range, 8, clamp=_unclamped), refused)
    yield Obligation(family, "NaN let through", partial(codes_in_range, 8, admit_nan=True), refused)
    yield Obligation(family, "the clamp one too high", partial(codes_in_range, 8, clamp=_one_too_high), refused)
    yield Obligation(family, "rounding towards zero", partial(code_is_exact, 8, rounding=z3.RTZ()), refused)
    yield Obligation(family, "a scale of zero", partial(finite_quotients, least_scale=0.0), refused)
    yield Obligation(family, "a coin below zero", partial(stochastic_is_next_to, least_coin=-1.0), refused)


# --- The model --------------------------------------------------------------------------------------------------------


def _value(number: float) -> Term:
    return z3.FPVal(number, FLOAT)


def clamp_as_numpy(value: Term, least: int, greatest: int) -> Term:
    """np.clip: minimum(maximum(value, least), greatest); NaN stays NaN."""
    high, low = _value(float(greatest)), _value(float(least))
    clipped = z3.If(z3.fpGT(value, high), high, z3.If(z3.fpLT(value, low), low, value))
    return result(z3.If(z3.fpIsNaN(value), value, clipped))


def _unclamped(value: Term, _least: int, _greatest: int) -> Term:
    return value


def _one_too_high(value: Term, least: int, greatest: int) -> Term:
    return clamp_as_numpy(value, least, greatest + 1)


def nearest(quotient: Term) -> Term:
    """np.rint."""
    return z3.fpRoundToIntegral(NEAREST, quotient)


def at_random(quotient: Term, coin: Term) -> Term:
    """Rounding.STOCHASTIC, step by step; the coin is an integer in float32."""
    whole = z3.fpRoundToIntegral(z3.RTN(), quotient)
    fraction = z3.fpMul(NEAREST, z3.fpSub(NEAREST, quotient, whole), _value(float(1 << COIN_BITS)))
    return result(z3.fpAdd(NEAREST, whole, z3.If(z3.fpLT(coin, fraction), _value(1.0), _value(0.0))))


def _zero_point(bits: int, integer_bits: int = INTEGER_BITS) -> tuple[Term, Term, list[Term]]:
    """Any code, as an integer and as a float32."""
    integer = z3.BitVec("zero_point", integer_bits)
    within = [integer >= -(1 << (bits - 1)), integer <= (1 << (bits - 1)) - 1]
    return integer, z3.fpSignedToFP(NEAREST, integer, FLOAT), within


def _in_range(code: Term, bits: int) -> Term:
    """State that the code is an integer in range, so its cast to a signed word is defined and exact."""
    integer = z3.fpToSBV(z3.RTZ(), code, z3.BitVecSort(INTEGER_BITS))
    whole = z3.fpEQ(z3.fpRoundToIntegral(z3.RTZ(), code), code)
    finite = z3.Not(z3.Or(z3.fpIsNaN(code), z3.fpIsInf(code)))
    return conjunction(finite, whole, integer >= -(1 << (bits - 1)), integer <= (1 << (bits - 1)) - 1)


# --- Statements -------------------------------------------------------------------------------------------------------


def codes_in_range(bits: int, *, clamp: Callable[..., Term] = clamp_as_numpy, admit_nan: bool = False) -> Question:
    """State that any quotient except NaN, including infinity, and any zero point give a code of these bits."""
    quotient = z3.FP("quotient", FLOAT)
    _, zero_point, within = _zero_point(bits)
    code = clamp(z3.fpAdd(NEAREST, nearest(quotient), zero_point), -(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    return Question(_in_range(code, bits), within if admit_nan else [*within, z3.Not(z3.fpIsNaN(quotient))])


def code_is_exact(bits: int, *, only: int | None = None, rounding: Term = NEAREST) -> Question:
    """State that the code is the clamped sum of zero point and rounded quotient, as if computed in integers.

    For every zero point, or for the given one: for all of them the solver takes minutes from 12 bits on.
    """
    quotient, size = z3.FP("quotient", FLOAT), bits + 3
    integer, zero_point, within = _zero_point(bits, size)
    if only is not None:
        integer, zero_point, within = z3.BitVecVal(only, size), _value(float(only)), []
    least, greatest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    rounded = z3.fpRoundToIntegral(rounding, quotient)
    code = clamp_as_numpy(z3.fpAdd(NEAREST, rounded, zero_point), least, greatest)
    got = z3.fpToSBV(z3.RTZ(), code, z3.BitVecSort(size))
    # From this size on every sum is clamped; below it the sum fits the compared integers.
    large = z3.fpGEQ(z3.fpAbs(quotient), _value(float(1 << (bits + 1))))
    exact = integer + z3.fpToSBV(NEAREST, quotient, z3.BitVecSort(size))
    clamped = z3.If(exact > greatest, z3.BitVecVal(greatest, size), exact)
    clamped = z3.If(exact < least, z3.BitVecVal(least, size), clamped)
    end = z3.If(z3.fpIsNegative(quotient), z3.BitVecVal(least, size), z3.BitVecVal(greatest, size))
    return Question(got == z3.If(large, end, clamped), [*within, z3.Not(z3.fpIsNaN(quotient))])


def stochastic_in_range(bits: int) -> Question:
    """State the same range for stochastic rounding, with any coin."""
    quotient, coin = z3.FP("quotient", FLOAT), z3.FP("coin", FLOAT)
    _, zero_point, within = _zero_point(bits)
    sum_ = z3.fpAdd(NEAREST, at_random(quotient, coin), zero_point)
    code = clamp_as_numpy(sum_, -(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    return Question(_in_range(code, bits), [*within, z3.Not(z3.fpIsNaN(quotient)), z3.Not(z3.fpIsNaN(coin))])


def stochastic_is_next_to(*, least_coin: float = 0.0) -> Question:
    """State that a quotient below 2^22 is rounded to an integer less than 1 away, and that an integer is unchanged."""
    quotient, coin = z3.FP("quotient", FLOAT), z3.FP("coin", FLOAT)
    rounded = at_random(quotient, coin)
    up, down = (z3.fpRoundToIntegral(mode, quotient) for mode in (z3.RTP(), z3.RTN()))
    premises = [
        z3.fpLT(z3.fpAbs(quotient), _value(float(1 << 22))),
        z3.fpGEQ(coin, _value(least_coin)),
        z3.fpLT(coin, _value(float(1 << COIN_BITS))),
    ]
    return Question(z3.Or(z3.fpEQ(rounded, up), z3.fpEQ(rounded, down)), premises)


def finite_quotients(*, least_scale: float = SMALLEST_NORMAL) -> Question:
    """State that a finite value divided by any scale that the constructor accepts is not NaN."""
    value, scale = z3.FP("value", FLOAT), z3.FP("scale", FLOAT)
    quotient = result(z3.fpDiv(NEAREST, value, scale))
    premises = [
        z3.Not(z3.Or(z3.fpIsNaN(value), z3.fpIsInf(value))),
        z3.fpGEQ(scale, _value(least_scale)),
        z3.Not(z3.fpIsInf(scale)),
    ]
    return Question(z3.Not(z3.fpIsNaN(quotient)), premises)


# --- The model and the code -------------------------------------------------------------------------------------------


def agrees_with_the_code() -> Question:
    """State that the model and ``encode`` give the same codes for critical values, or ``encode`` refuses them."""
    telling = [0.0, -0.0, 0.5, 1.5, -0.5, -2.5, 126.5, 127.5, -128.5, -129.0, 1e10, -3e38, 3e38, 2.0**-149, 2.0**-126]
    telling += [
        float(np.nextafter(np.float32(x), np.float32(side))) for x in (0.5, 127.5, -128.5) for side in (-1e9, 1e9)
    ]
    agreements = list[Term]()
    for bits, zero_point, scale in product((2, 8, 16), (0, 1, -2), (1.0, 0.1, SMALLEST_NORMAL)):
        scheme = ScalarQuantization(
            shape=(len(telling),), bits=bits, modulus_bits=32, scales=(scale,), zero_points=(zero_point,)
        )
        codes = scheme.encode(np.array(telling, np.float32), _no_coins).values[0].view(np.int32)
        for value, code in zip(telling, codes.tolist(), strict=True):
            quotient = z3.fpDiv(NEAREST, _value(value), _value(scheme.scales[0]))
            sum_ = z3.fpAdd(NEAREST, nearest(quotient), _value(float(zero_point)))
            agreements.append(z3.fpEQ(clamp_as_numpy(sum_, scheme.least, scheme.greatest), _value(float(code))))
    largest = float(np.finfo(np.float32).max)
    pairs = ((float("nan"), 0.0), (float("inf"), largest), (-float("inf"), -largest))
    agreements.extend(z3.BoolVal(val=_same(value, clamped)) for value, clamped in pairs)
    return Question(conjunction(*agreements))


def _same(value: float, clamped: float) -> bool:
    """Return whether a value has the code of its clamped value."""
    scheme = ScalarQuantization(shape=(1,), bits=8, modulus_bits=16, scales=(1.0,), rounding=Rounding.NEAREST_EVEN)
    given, due = (scheme.encode(np.array([one], np.float32), _no_coins).encode() for one in (value, clamped))
    return given == due


_no_coins: Any = None
"""Rounding to nearest draws no coins."""
