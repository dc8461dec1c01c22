"""Secrets of 32 bytes, shared so that any ``threshold`` of the holders can rebuild them and fewer learn nothing.

Holder ``x`` keeps the value at ``x`` of a polynomial over the field of ``prime_field``, of degree below ``threshold``,
whose value at zero is the secret. Points run from 1 to the number of holders. They are never sent: both ends derive a
holder's point from its position in a sorted list, so no holder can claim another's point.

Dealing takes threshold times holders additions; ``reconstruction`` has the holders' side.

Not constant time: see ``prime_field``, also on intermediate integers that cannot be overwritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from secagg.errors import UNDECIDED, InvalidParameters, MalformedMessage, PeerMisbehaved, Reason
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
    require_threshold(threshold)
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
    require_point(point, culprits)
    try:
        return prime_field.decode(value)
    except MalformedMessage:
        raise PeerMisbehaved(
            f"the share at point {point} is not a field element; ask its holder for the share as dealt",
            reason=Reason.SHARE_OUT_OF_RANGE,
            culprits=culprits,
        ) from None


def require_threshold(threshold: int) -> None:
    """Require a threshold that some number of holders can meet."""
    if type(threshold) is not int or not 1 <= threshold <= MAX_HOLDERS:
        raise InvalidParameters(f"a threshold must be an integer in [1, {MAX_HOLDERS}]; got {threshold}")


def require_point(point: int, culprits: Iterable[Party] = UNDECIDED) -> None:
    """Refuse a point that no holder has."""
    if type(point) is not int or not 1 <= point <= MAX_HOLDERS:
        raise PeerMisbehaved(
            f"no holder has point {point}; derive points as positions in the sorted list of holders, from 1",
            reason=Reason.SHARE_OUT_OF_RANGE,
            culprits=culprits,
        )
