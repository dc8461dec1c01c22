"""A holder that lies in its answer, and chooses its lie by what it leaves of a sum with few coefficients.

The public polynomials are known to all, so a holder knows what noise is left behind by what it adds to the sum of
secrets. With three coefficients some ten million tries find a lie that leaves almost none.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from secagg.contract import Layout, RingSegment
from secagg.errors import InvalidParameters
from secagg.protocols.one_message.lattice.masks import lowest_bit
from secagg.protocols.one_message.lattice.opening import WrongSecret
from secagg.protocols.one_message.lattice.ring_products import limb_bits, limb_count
from secagg.protocols.one_message.parameters import Parameters
from tests.adversaries.test_one_message_dealers import coefficient, lying
from tests.harness.one_message_sums import InsecureSum, SumSetup
from tests.harness.planted import always

LAYOUT = Layout((RingSegment(6, 2),))
LIAR, CHOSEN, TRIES = 1, 16, 1 << 16
FOUND = 71
"""Where a search has found a lie; another one begins there as well."""
COEFFICIENTS = 3
"""Two values and the weight, of which the liar knows what they leave."""


def products(parameters: Parameters, seed: bytes) -> np.ndarray:
    """Return what each of the secret's first entries adds to the first coefficients, by the specification."""
    limbs, bits, degree = limb_count(parameters.modulus_bits), limb_bits(parameters.modulus_bits), parameters.degree
    data = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor().update(bytes(4 * limbs * degree))
    words = np.frombuffer(data, "<i4").reshape(limbs, degree).astype(np.int64) >> (32 - bits)
    public = [sum(int(words[limb, at]) << (limb * bits) for limb in range(limbs)) for at in range(degree)]
    rows = [[public[at - by] if at >= by else -public[at - by] for at in range(COEFFICIENTS)] for by in range(CHOSEN)]
    return np.array(rows) % (1 << parameters.modulus_bits)


@lru_cache(maxsize=1)
def crafted_lie() -> tuple[int, ...]:
    """Return what to add to the sum of secrets: the values change, and next to nothing else does."""
    agreement = InsecureSum(SumSetup(layout=LAYOUT)).offer().agree()
    parameters = agreement.parameters
    matrix = products(parameters, agreement.epoch.seed).astype(np.float64)
    whole = 1 << parameters.modulus_bits
    ends = np.array([1 << lowest_bit(parameters, 0)] * 2 + [whole])
    for batch in (FOUND, *range(1 << 12)):
        tried = np.random.default_rng(batch).integers(-9, 10, (TRIES, CHOSEN))
        moved = (tried.astype(np.float64) @ matrix).astype(np.int64) % whole
        left = moved % ends
        left = np.abs(np.where(left > ends // 2, left - ends, left)).max(axis=1)
        is_lie = (left < 6) & (moved[:, :2] >= ends[:2]).any(axis=1)
        if is_lie.any():
            return tuple(map(int, tried[is_lie.argmax()]))
    raise AssertionError("a quarter of a billion tries find no lie")


@pytest.mark.parametrize("is_defended", [True, False])
def test_a_lie_that_leaves_no_noise_is_told_from_the_truth(
    is_defended: bool,  # noqa: FBT001 -- a case
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without holder 0 the other answers, one of them false, are just enough, and contradict none.

    With three coefficients the lie was released. Holder 0 answers later; then the sum opens, and nobody is named.
    """
    delta = crafted_lie()
    if not is_defended:
        monkeypatch.setattr(Parameters, "witnesses", property(always(0)))
    world = InsecureSum(SumSetup(layout=LAYOUT))
    parameters = world.offer().agree().parameters
    assert (parameters.coefficients == COEFFICIENTS) is not is_defended
    server, scale = world.listed(), coefficient(LIAR, [1, 2, 3, 4], 1)

    def change(words: np.ndarray) -> np.ndarray:
        words[: len(delta)] += np.array([scale * value for value in delta])
        return words

    respond = lying(world, LIAR, change)
    requests = server.requests()
    for position in range(1, 5):
        asked = requests[position]
        server.receive(position, respond(asked) if position == LIAR else world.holders[position].respond(asked))
    if is_defended:
        with pytest.raises(WrongSecret):
            server.open()
        server.receive(0, world.holders[0].respond(requests[0]))
    is_right = server.open().aggregate.encode() == world.ideal(world.setup.clients).encode()
    assert is_right is is_defended
    assert not server.faults


def test_an_offer_with_fewer_zeros_is_none() -> None:
    world = InsecureSum(SumSetup(layout=LAYOUT))
    offer = world.offer()
    parameters = offer.configuration.parameters
    *values, weight = parameters.segments
    for length in (1, weight.length - 1, weight.length + 1):
        changed = replace(parameters, segments=(*values, replace(weight, length=length)))
        with pytest.raises(InvalidParameters, match="the zeros behind that"):
            replace(offer.configuration, parameters=changed)
