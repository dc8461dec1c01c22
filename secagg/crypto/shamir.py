"""Secrets of 32 bytes, shared so that any ``threshold`` of the holders can rebuild them and fewer learn nothing.

Holder ``x`` keeps the value at ``x`` of a polynomial over the field of ``prime_field``, of degree below ``threshold``,
whose value at zero is the secret. Points run from 1 to the number of holders. They are never sent: both ends derive a
holder's point from its position in a sorted list, so no holder can claim another's point.

Coding theory [MS81] limits the errors that a reconstruction can detect. Of ``m`` shares, any ``m - threshold`` wrong
ones are detected, any ``(m - threshold) // 2`` are corrected and named, and exactly ``threshold`` shares always give
*some* secret. A caller that must not accept a wrong one compares the secret with a prior commitment, such as its public
key.

Splitting takes threshold times holders additions. Preparing points takes quadratic time: a millisecond for a hundred
holders, hundredths of a second for a thousand, seconds for ten thousand. Protocols keep neighbourhoods small.

Not constant time: see ``prime_field``, also on intermediate integers that cannot be overwritten. Branches depend on the
present points and the number of wrong shares; both are public.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import Self

from secagg.errors import (
    NOBODY,
    UNDECIDED,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerMisbehaved,
    Reason,
    ThresholdNotMet,
)
from secagg.identifiers import Party

from . import prime_field
from .entropy import Coins
from .prime_field import ELEMENT_BYTES, PRIME
from .secret import Secret, require_secret

MAX_HOLDERS = 2**16 - 1
_STEPS_PER_REDUCTION = 128


@dataclass(frozen=True, slots=True)
class Share:
    """A holder's share of one secret: the value of the polynomial at the holder's point."""

    point: int
    value: Secret

    def wipe(self) -> None:
        self.value.wipe()


@dataclass(frozen=True, slots=True)
class Corrected:
    """A secret reconstructed despite wrong shares, and the points of these shares."""

    secret: Secret
    wrong_points: frozenset[int]


def split_many(secrets: Sequence[Secret], *, threshold: int, holders: int, coins: Coins) -> list[list[Share]]:
    """Share several secrets among the same holders, each by a separate polynomial.

    Implements: [Sha79] §2, the (k, n) threshold scheme with k = ``threshold`` and n = ``holders``, for each secret.
    Args:
        coins: source, as ``prime_field.sample`` reads it, of the coefficients of binomial(x, 1), binomial(x, 2), …,
            binomial(x, threshold - 1) in the polynomial of the first secret, then of the second, and so on.
    Returns:
        For each secret, one share for each of the points 1, 2, …, ``holders``, in this order.
    Raises:
        InvalidParameters: 1 <= threshold <= holders <= 65535 does not hold, or a secret is not a field element.
        Misuse: a secret was wiped, or the coins are broken.
    Security: with ``threshold`` 1 every share is the secret. Wipe each share after sealing it for its holder.
    Claim SH-2: shares of fewer than ``threshold`` holders are consistent with every secret.
    """
    _check_threshold(threshold)
    if type(holders) is not int or not threshold <= holders <= MAX_HOLDERS:
        raise InvalidParameters(
            f"{holders} holders cannot share at threshold {threshold}; use {threshold} to {MAX_HOLDERS} holders"
        )
    constants = [_shareable(secret) for secret in secrets]
    degree = threshold - 1
    coefficients = prime_field.sample(len(constants) * degree, coins)
    dealt: list[list[Share]] = []
    for index, (secret, constant) in enumerate(zip(secrets, constants, strict=True)):
        kind = f"share of {secret.kind}"
        values = _evaluate([constant, *coefficients[index * degree : (index + 1) * degree]], holders)
        dealt.append([Share(point, Secret(kind, prime_field.encode(value))) for point, value in enumerate(values, 1)])
    return dealt


def reconstruct(shares: Sequence[Share], *, threshold: int, kind: str = "reconstructed secret") -> Secret:
    """Return the secret of shares that all lie on one polynomial, as ``LagrangeWeights.combine`` does."""
    weights, elements = _prepare(shares, threshold)
    return _combine(weights, elements, kind)


def correct(shares: Sequence[Share], *, threshold: int, kind: str = "reconstructed secret") -> Corrected:
    """Reconstruct a secret from shares, some of which may be wrong, and name the wrong ones.

    Implements: [MS81], with the wrong shares located by [Mas69].
    Args:
        kind: name of the secret, for its ``repr`` and error messages.
    Returns:
        The secret, and the points whose shares are not on its polynomial. When at most
        ``(len(shares) - threshold) // 2`` shares are wrong, it is the secret that was dealt and these are they.
    Raises:
        PeerMisbehaved: a share is out of range, two are at one point, or every polynomial of degree below
            ``threshold`` misses more than ``(len(shares) - threshold) // 2`` of the shares; ``culprits`` is empty.
        ThresholdNotMet: fewer than ``threshold`` shares were given.
        Misuse: a share was wiped.
    Claim SH-3: this decoder, the one of ``one_message``, and dealing are compared with a proved reference.
    Security: more wrong holders than that, if they collude, can move the shares close to another polynomial; then a
    wrong secret results and honest holders are named. Blame no holder before comparing the secret with its commitment.
    """
    weights, elements = _prepare(shares, threshold)
    syndromes = list(_syndromes(weights, elements))
    if not any(syndromes):
        return Corrected(_combine(weights, elements, kind), frozenset())

    # Wrong shares at the points X make every syndrome a sum of c_x * x^j over x in X, and such a sequence obeys the
    # recurrence whose characteristic polynomial has the zeros X. Within the bound it is the shortest recurrence.
    register = _shortest_register(syndromes)
    count = len(register) - 1
    wrong_points = frozenset(point for point in weights.points if _vanishes(register, point))
    if 2 * count > len(syndromes) or len(wrong_points) != count:
        raise _irreconcilable(f"at most {len(syndromes) // 2} wrong ones among {len(shares)} can be corrected")
    # The remaining shares are checked against each other again, so no error above can give a secret inconsistent with
    # them.
    remaining = [share for share in shares if share.point not in wrong_points]
    return Corrected(reconstruct(remaining, threshold=threshold, kind=kind), wrong_points)


@dataclass(frozen=True, slots=True)
class LagrangeWeights:
    """Reconstruction factors of a set of points, computed once for any number of secrets.

    With the factors f_i = 1 / (x_i * prod_{j != i} (x_i - x_j)) of the points x_i, the shares y_i become the terms
    f_i * y_i. Their sum, times ``scale``, is the value at zero of the polynomial through all m shares. Its degree is
    below t exactly if the sums of f_i * y_i * x_i^k are zero for k = 1, …, m - t: the syndromes of the code of [MS81].

    Claim SH-1: these weights give the value at zero, and the syndromes decide whether surplus shares are consistent.
    """

    points: tuple[int, ...]
    threshold: int
    factors: tuple[int, ...] = field(repr=False)
    scale: int = field(repr=False)

    @classmethod
    def at_zero(cls, points: Iterable[int], *, threshold: int) -> Self:
        """Prepare to reconstruct secrets from shares at these points.

        Implements: [BT04] §3, barycentric weights, for the points and zero.
        Raises:
            PeerMisbehaved: a point is not in [1, 65535], or occurs twice; ``culprits`` is empty.
            ThresholdNotMet: there are fewer than ``threshold`` points.
        """
        nodes = tuple(points)
        _check_threshold(threshold)
        for point in nodes:
            _check_point(point)
        repeated = sorted(point for point, occurrences in Counter(nodes).items() if occurrences > 1)
        if repeated:
            raise PeerMisbehaved(
                f"more than one share at point: {', '.join(map(str, repeated))}; pass one share for each point",
                reason=Reason.SHARE_DUPLICATE,
                culprits=NOBODY,
            )
        if len(nodes) < threshold:
            raise ThresholdNotMet(needed=threshold, present=len(nodes), what="shares")
        denominators: list[int] = []
        for index, point in enumerate(nodes):
            differences = [point - other for other in nodes]
            differences[index] = point  # The difference from zero replaces that from the point itself.
            denominators.append(_product(differences))
        scale = -_product([-point for point in nodes]) % PRIME
        return cls(nodes, threshold, tuple(prime_field.invert_all(denominators)), scale)

    def combine(self, shares: Sequence[Share], *, kind: str = "reconstructed secret") -> Secret:
        """Return the secret of shares that all lie on one polynomial, one at each of ``points``, in order.

        Implements: [Sha79] §2, interpolation; [MS81] for the check of shares beyond the threshold.
        Raises:
            PeerMisbehaved: a share is out of range, or they do not lie on one polynomial of degree below the
                threshold; ``culprits`` is empty. In the latter case ``correct`` may help.
            Misuse: the shares are not at ``points`` in order, or one was wiped.
        Security: up to ``len(shares) - threshold`` wrong shares are always detected. More, chosen together, may not be,
        and one wrong share among exactly ``threshold`` is not: compare the secret with its commitment.
        """
        if tuple(share.point for share in shares) != self.points:
            raise Misuse("the shares do not match the points of these weights; pass one per point, in order")
        return _combine(self, [_element(share) for share in shares], kind)


def _prepare(shares: Sequence[Share], threshold: int) -> tuple[LagrangeWeights, list[int]]:
    elements = [_element(share) for share in shares]
    return LagrangeWeights.at_zero([share.point for share in shares], threshold=threshold), elements


def _combine(weights: LagrangeWeights, elements: Sequence[int], kind: str) -> Secret:
    if any(_syndromes(weights, elements)):
        raise _irreconcilable("at least one is wrong; call correct(), or remove the wrong ones")
    value = weights.scale * sum(map(mul, weights.factors, elements)) % PRIME
    return Secret(kind, prime_field.encode(value))


def _syndromes(weights: LagrangeWeights, elements: Sequence[int]) -> Iterator[int]:
    terms = [factor * element % PRIME for factor, element in zip(weights.factors, elements, strict=True)]
    for _ in range(len(weights.points) - weights.threshold):
        terms = [term * point % PRIME for term, point in zip(terms, weights.points, strict=True)]
        yield sum(terms) % PRIME


def _evaluate(coefficients: Sequence[int], holders: int) -> list[int]:
    """Return the values at 1, …, ``holders`` of the sum of c_k * binomial(x, k), at most one c_k for each holder.

    Deviation: [Sha79] uses uniform coefficients of the powers of x. Safe because: x^k and k! * binomial(x, k)
    differ by lower powers that vanish at zero, and k! is invertible, so this maps uniform coefficients one to one onto
    uniform coefficients of [Sha79] and does not change the secret.
    """
    # The first difference of binomial(x, k) is binomial(x, k - 1), so every running sum raises each k by one. Reducing
    # only now and then is faster than at every step.
    values = [0] * (holders - len(coefficients) + 1)
    for count, coefficient in enumerate(reversed(coefficients), 1):
        values = list(accumulate(values, initial=coefficient))
        if count % _STEPS_PER_REDUCTION == 0:
            values = [value % PRIME for value in values]
    return [value % PRIME for value in values[1:]]


def _product(factors: Sequence[int]) -> int:
    """Return the product modulo the prime, reduced at every step."""
    product = 1
    for start in range(0, len(factors), _STEPS_PER_REDUCTION):
        product = product * math.prod(factors[start : start + _STEPS_PER_REDUCTION]) % PRIME
    return product


def _shortest_register(sequence: Sequence[int]) -> list[int]:
    """Return 1, c_1, …, c_L with s_n + c_1 s_{n-1} + … + c_L s_{n-L} = 0 for all n >= L, and L as small as possible.

    Implements: [Mas69], the LFSR synthesis algorithm.
    """
    register = [1]
    previous, previous_inverse, shift = [1], 1, 1
    for index in range(len(sequence)):
        discrepancy = sum(map(mul, register, sequence[index::-1])) % PRIME
        if discrepancy == 0:
            shift += 1
            continue
        factor = discrepancy * previous_inverse % PRIME
        updated = register + [0] * (shift + len(previous) - len(register))
        for position, coefficient in enumerate(previous, shift):
            updated[position] = (updated[position] - factor * coefficient) % PRIME
        if len(updated) > len(register):
            previous, previous_inverse, shift = register, pow(discrepancy, -1, PRIME), 1
        else:
            shift += 1
        register = updated
    return register


def _vanishes(register: Sequence[int], point: int) -> bool:
    """Whether the characteristic polynomial of the recurrence is zero at a point."""
    value = 0
    for coefficient in register:
        value = (value * point + coefficient) % PRIME
    return value == 0


def _shareable(secret: Secret) -> int:
    require_secret(secret)
    try:
        return prime_field.decode(secret.expose())
    except MalformedMessage:
        raise InvalidParameters(
            f"the {secret.kind} cannot be shared: it must be {ELEMENT_BYTES} bytes that encode a number below "
            "2^256 - 189; draw it with prime_field.random_root"
        ) from None


def check_value(point: int, value: memoryview, *, culprits: Iterable[Party] = UNDECIDED) -> int:
    """Refuse a share that no dealer can have made, while its sender is known and can be named.

    Returns:
        The element, which is as secret as the value.
    Raises:
        PeerMisbehaved: the point is not in [1, 65535], or the value is not a field element.
    """
    _check_point(point, culprits)
    return _decoded(point, value, culprits)


def _element(share: Share) -> int:
    require_secret(share.value)
    return _decoded(share.point, share.value.expose(), UNDECIDED)


def _decoded(point: int, value: memoryview, culprits: Iterable[Party]) -> int:
    try:
        return prime_field.decode(value)
    except MalformedMessage:
        raise PeerMisbehaved(
            f"the share at point {point} is not a field element; ask its holder for the share as dealt",
            reason=Reason.SHARE_OUT_OF_RANGE,
            culprits=culprits,
        ) from None


def _check_threshold(threshold: int) -> None:
    if type(threshold) is not int or not 1 <= threshold <= MAX_HOLDERS:
        raise InvalidParameters(f"a threshold must be an integer in [1, {MAX_HOLDERS}]; got {threshold}")


def _check_point(point: int, culprits: Iterable[Party] = UNDECIDED) -> None:
    if type(point) is not int or not 1 <= point <= MAX_HOLDERS:
        raise PeerMisbehaved(
            f"no holder has point {point}; derive points as positions in the sorted list of holders, from 1",
            reason=Reason.SHARE_OUT_OF_RANGE,
            culprits=culprits,
        )


def _irreconcilable(advice: str) -> PeerMisbehaved:
    return PeerMisbehaved(
        f"the shares are inconsistent; {advice}", reason=Reason.SHARES_IRRECONCILABLE, culprits=NOBODY
    )
