"""The extension fields: irreducible, large enough, and the same as arithmetic in plain integers."""

from __future__ import annotations

from fractions import Fraction
from math import log2
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from secagg.crypto.secret import Secret
from secagg.errors import InvalidParameters, MalformedMessage, Misuse
from secagg.protocols.two_servers.point_functions.lanes import (
    DEGREES_AND_CONSTANTS,
    Elements,
    EvaluationPoints,
    ExtensionField,
    LaneField,
    LaneStream,
    exact_product,
    settle,
)
from secagg.protocols.two_servers.point_functions.one_hot_check import float_type

SHIPPED = [ExtensionField.over(LaneField(modulus)) for modulus in DEGREES_AND_CONSTANTS]
FIELDS = pytest.mark.parametrize("field", SHIPPED, ids=lambda field: field.base.modulus)


def elements(field: ExtensionField, count: int, seed: int = 0) -> Elements:
    with Secret("test key", bytes([seed]) * 32) as key:
        return field.sample(LaneStream(field.base, key), 0, count)


# --- The constants ----------------------------------------------------------------------------------------------------


def times_modulo(left: list[int], right: list[int], modulus_polynomial: list[int], q: int) -> list[int]:
    """Multiply polynomials modulo a monic one, by long division."""
    product = [0] * (len(left) + len(right) - 1)
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            product[i + j] = (product[i + j] + a * b) % q
    degree = len(modulus_polynomial) - 1
    while len(product) > degree:
        leading = product.pop()
        for step in range(degree):
            product[len(product) - degree + step] -= leading * modulus_polynomial[step]
    return [coefficient % q for coefficient in product] + [0] * (degree - len(product))


def frobenius(power: int, f: list[int], q: int) -> list[int]:
    """Return x^(q^power) modulo f."""
    result = [0, 1] + [0] * (len(f) - 3)
    for _ in range(power):
        base, exponent, raised = result, q, [1] + [0] * (len(f) - 2)
        while exponent:
            if exponent & 1:
                raised = times_modulo(raised, base, f, q)
            base, exponent = times_modulo(base, base, f, q), exponent >> 1
        result = raised
    return result


def is_unit_modulo(a: list[int], f: list[int], q: int) -> bool:
    """Whether two polynomials have no common factor, by Euclid's algorithm."""
    while any(a):
        while a and not a[-1]:
            a = a[:-1]
        inverse = pow(a[-1], -1, q)
        monic = [coefficient * inverse % q for coefficient in a]
        remainder = list(f)
        while len(remainder) >= len(monic):
            leading = remainder[-1]
            for step in range(len(monic)):
                place = len(remainder) - len(monic) + step
                remainder[place] = (remainder[place] - leading * monic[step]) % q
            remainder.pop()
        f, a = monic, remainder
    return len(f) == 1


@FIELDS
def test_the_polynomial_is_irreducible(field: ExtensionField) -> None:
    q, s = field.base.modulus, field.degree
    f = [-field.constant % q] + [0] * (s - 1) + [1]
    x = [0, 1] + [0] * (s - 2)
    assert frobenius(s, f, q) == x, "Rabin's test, first half"
    for prime in [p for p in (2, 3, 5, 7, 11, 13, 17) if s % p == 0]:
        difference = [(a - b) % q for a, b in zip(frobenius(s // prime, f, q), x, strict=True)]
        assert is_unit_modulo(difference, f, q), "Rabin's test, second half"


@FIELDS
def test_the_field_has_at_least_2_to_the_120_elements(field: ExtensionField) -> None:
    assert log2(field.base.modulus**field.degree) >= 120


# --- Arithmetic -------------------------------------------------------------------------------------------------------


@FIELDS
def test_arithmetic_is_that_of_plain_integers(field: ExtensionField, plain: ModuleType) -> None:
    reference = plain.PlainField(field.base.modulus, field.degree, field.constant)
    left, right = elements(field, 6), elements(field, 6, seed=1)
    left[0], right[1] = field.base.modulus - 1, field.base.modulus - 1
    right[0] = left[0]
    for name, operation in (("add", field.add), ("multiply", field.multiply)):
        expected = [getattr(reference, name)(a, b) for a, b in zip(left.tolist(), right.tolist(), strict=True)]
        assert operation(left, right).tolist() == expected
    assert np.array_equal(field.subtract(field.add(left, right), right), left)
    products = [reference.multiply(a, b) for a, b in zip(left.tolist(), right.tolist(), strict=True)]
    assert field.inner_product(left, right).tolist() == reference.sum(products)
    assert field.scale(left, right[2]).tolist() == [reference.multiply(a, right[2].tolist()) for a in left.tolist()]
    assert field.multiply(left[:, np.newaxis], right).shape == (6, 6, field.degree)


@FIELDS
def test_a_row_of_the_matrix_of_an_element_is_its_product_with_a_power_of_x(field: ExtensionField) -> None:
    element = elements(field, 1)[0]
    x = field.zeros()
    x[1] = 1
    for row, power in zip(field.matrices(element), field.powers(x, field.degree), strict=True):
        assert np.array_equal(row, field.multiply(power, element))


@FIELDS
def test_powers_are_repeated_products(field: ExtensionField) -> None:
    element, power = elements(field, 1)[0], field.scalar(1)
    for found in field.powers(element, 13):
        assert np.array_equal(found, power)
        power = field.multiply(power, element)


@FIELDS
def test_sums_of_the_largest_products_are_exact(field: ExtensionField) -> None:
    q, count = field.base.modulus, 3000
    largest = np.full((count, field.degree), q - 1, dtype=np.int64)
    square = field.multiply(largest[0], largest[0])
    assert np.array_equal(field.inner_product(largest, largest), square * count % q)


def test_products_of_matrices_are_exact_at_their_bound_and_beyond_one_sum() -> None:
    for kind, greatest in ((np.float32, 126 * 63), (np.float64, 131070 * 65535)):
        limit = 1 << (24 if kind is np.float32 else 53)
        terms = min(limit // greatest, 1 << 16)
        left = np.full((2, 3 * terms + 1), 126 if kind is np.float32 else 131070, dtype=kind)
        right = np.full((3 * terms + 1, 2), 63 if kind is np.float32 else 65535, dtype=kind)
        right[0] -= 1
        expected = (3 * terms + 1) * greatest - int(left[0, 0])
        assert exact_product(left, right, greatest).tolist() == [[expected] * 2] * 2
        assert exact_product(left, -right, greatest).tolist() == [[-expected] * 2] * 2


def test_products_that_would_round_are_refused() -> None:
    single, double = np.ones((1, 1), dtype=np.float32), np.ones((1, 1), dtype=np.float64)
    for left, right, greatest in ((single, single, 1 << 25), (single, double, 1), (double, double, 1 << 54)):
        with pytest.raises(InvalidParameters, match="not exact"):
            exact_product(left, right, greatest)
    assert float_type(126 * 63) is np.float32
    assert float_type(8190 * 4095) is np.float64


@pytest.mark.parametrize("modulus", DEGREES_AND_CONSTANTS)
def test_settled_numbers_are_congruent_and_small_up_to_the_bound(modulus: int) -> None:
    near = np.concatenate([np.arange(-3 * modulus, 3 * modulus), (1 << 52) - np.arange(5 * modulus)])
    for values in (near, -near):
        settled = settle(values.astype(np.float64), modulus).astype(np.int64)
        assert np.array_equal(settled % modulus, values % modulus)
        assert int(np.abs(settled).max()) < modulus


# --- Polynomials by their values --------------------------------------------------------------------------------------


@FIELDS
@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_values_give_the_polynomial_elsewhere(field: ExtensionField, count: int) -> None:
    coefficients, point = elements(field, count), elements(field, 1, seed=9)[0]
    values = [field.inner_product(coefficients, field.powers(field.scalar(at), count)) for at in range(2 * count)]
    points = EvaluationPoints(field, count)
    known = np.array(values[:count])
    expected = field.inner_product(coefficients, field.powers(point, count))
    assert np.array_equal(field.inner_product(points.weights_at(point), known), expected)
    assert np.array_equal(points.extrapolation(count) @ known % field.base.modulus, np.array(values[count:]))


@FIELDS
def test_the_weight_of_the_mask_is_never_zero_outside_the_base_field(field: ExtensionField) -> None:
    for point in elements(field, 20):
        assert EvaluationPoints(field, 9).weights_at(point)[0].any()


def test_there_are_no_more_evaluation_points_than_the_base_field_has() -> None:
    field = SHIPPED[0]
    for count in (0, 127, 2.0):
        with pytest.raises(InvalidParameters, match="evaluation points"):
            EvaluationPoints(field, count)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidParameters, match="fewer columns"):
        EvaluationPoints(field, 64).extrapolation(64)


# --- Bytes ------------------------------------------------------------------------------------------------------------


@FIELDS
def test_elements_are_packed_lane_by_lane(field: ExtensionField) -> None:
    several = elements(field, 5)
    packed = field.pack(several)
    assert len(packed) == field.packed_bytes(5) == (5 * field.degree * field.base.bits + 7) // 8
    assert np.array_equal(field.unpack(packed, 5), several)
    with pytest.raises(MalformedMessage, match="not below"):
        field.unpack(b"\xff" * (len(packed) - 1) + b"\0", 5)


@FIELDS
def test_elements_of_a_stream_follow_each_other(field: ExtensionField) -> None:
    with Secret("test key", bytes(32)) as key:
        stream = LaneStream(field.base, key)
        assert np.array_equal(field.sample(stream, 3, 4), elements(field, 7)[3:])
        other: Any = SHIPPED[(SHIPPED.index(field) + 1) % 3]
        with pytest.raises(Misuse, match="sampled"):
            other.sample(stream, 0, 1)


def test_the_bound_of_the_check_is_what_the_documents_say() -> None:
    for field, columns in zip(SHIPPED, (50, 48, 41), strict=True):
        q = field.base.modulus
        error = Fraction(4 * 2**64, q**field.degree) + Fraction(2 * columns, q**field.degree - q)
        assert error < Fraction(1, 2**59)
