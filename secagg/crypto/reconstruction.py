"""Secrets rebuilt from the shares that ``shamir`` deals, also if some shares are wrong.

Coding theory [MS81] limits the errors that a reconstruction can detect. Of ``m`` shares, any ``m - threshold`` wrong
ones are detected, any ``(m - threshold) // 2`` are corrected and named, and exactly ``threshold`` shares always give
*some* secret. A caller that must not accept a wrong one compares the secret with a prior commitment, such as its public
key.

Preparing points takes quadratic time: a millisecond for a hundred holders, hundredths of a second for a thousand,
seconds for ten thousand. Protocols keep neighbourhoods small.

Not constant time: see ``prime_field``, also on intermediate integers that cannot be overwritten. Branches depend on the
present points and the number of wrong shares; both are public.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import Self

from secagg.errors import NOBODY, Misuse, PeerMisbehaved, Reason, ThresholdNotMet

from . import prime_field
from .prime_field import PRIME
from .secret import Secret, require_secret
from .shamir import Share, check_value, require_point, require_threshold

_STEPS_PER_REDUCTION = 128


@dataclass(frozen=True, slots=True)
class Corrected:
    """A secret reconstructed despite wrong shares, and the points of these shares."""

    secret: Secret
    wrong_points: frozenset[int]


def reconstruct(shares: Sequence[Share], *, threshold: int, kind: str = "reconstructed secret") -> Secret:
    """Return the secret of shares that all lie on one polynomial, as ``LagrangeWeights.combine`` does."""
    weights, elements = _prepare(shares, threshold)
    return _combine(weights, elements, kind)


def correct(shares: Sequence[Share], *, threshold: int, kind: str = "reconstructed secret") -> Corrected:
    """Reconstruct a secret although some shares may be wrong, and name the wrong ones.

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
        require_threshold(threshold)
        for point in nodes:
            require_point(point)
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


def _element(share: Share) -> int:
    require_secret(share.value)
    return check_value(share.point, share.value.expose())


def _irreconcilable(advice: str) -> PeerMisbehaved:
    return PeerMisbehaved(
        f"the shares are inconsistent; {advice}", reason=Reason.SHARES_IRRECONCILABLE, culprits=NOBODY
    )
