"""Cost of noise to a cohort: epsilon, wider rings, and the number of clients with which the model survives it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from secagg.compression.cohort_bits import MOST_NOISE as MOST_CODE_NOISE
from secagg.errors import InvalidParameters
from secagg.parameters import SecurityMode, usual_corrupted
from secagg.planning.costs import (
    INDEXED,
    WHOLE_UPDATES,
    Comparison,
    Option,
    PlanRequest,
    Scheme,
)
from secagg.privacy.accounting import ReleasePart, epsilon
from secagg.privacy.client_noise import MOST_NOISE, clients_for, said_epsilon
from secagg.privacy.guessing import said_guessable
from secagg.privacy.kinds import NoiseKind
from secagg.protocols.pairwise_mask import LARGEST_WHOLE_COMMITTEE, PairwiseOptions
from secagg.protocols.two_servers import MODULI
from secagg.session.run import ONE_IN

# --- Noise ------------------------------------------------------------------------------------------------------------

_WIDE: Final = 10**12
_BLOCK: Final = 1024
_LEAST_MULTIPLIER: Final = Fraction(1, 10**4)
_MOST_MULTIPLIER: Final = 10**6
_REPLACED: Final = 2
"""Distance between neighbours where one client's update was replaced, in bounds of a client."""


@dataclass(frozen=True, slots=True)
class PlannedNoise:
    """Noise of a multiplier, and in how many sums one client is."""

    multiplier: Fraction
    releases: int
    delta: float

    def epsilon(self, delta: float, releases: int = 1) -> float:
        """Return the privacy loss of several sums with a Gaussian of this multiplier."""
        part = ReleasePart(l2_squared=_WIDE, l1=None, variance=self.multiplier**2 * _WIDE)
        return epsilon(NoiseKind.DISCRETE_GAUSSIAN, [part], releases, delta)

    @property
    def deviations(self) -> tuple[float, ...]:
        """Return nothing: no session is planned yet."""
        return ()

    def advice(self, weights: int, clients: int) -> Iterator[str]:
        if self.multiplier <= 0:
            raise InvalidParameters(f"--noise is positive; got {self.multiplier}")
        if not _LEAST_MULTIPLIER <= self.multiplier <= _MOST_MULTIPLIER:
            raise InvalidParameters(
                f"--noise is in {float(_LEAST_MULTIPLIER):g}..{_MOST_MULTIPLIER:,}; take such a one"
            )
        padded = -(-weights // _BLOCK) * _BLOCK
        lost = clients // ONE_IN
        honest = max(1, clients - 2 * lost)
        spent = said_epsilon(self, self.delta, self.releases)
        yield (
            f"Noise of {self.multiplier} times what one client can change: {spent} after {self.releases} sums with it, "
            "by either meaning of a change: its update replaced by another, which takes twice the noise, or by zeros."
        )
        for name, spread, shares in (
            ("Clients' noise, an update replaced by another", _REPLACED, clients / honest),
            ("Clients' noise, an update replaced by zeros", 1, clients / honest),
            ("Two servers' noise, an update replaced by another", _REPLACED, 2.0),
        ):
            # The counts of two servers have a length of their own; this is for exactly decoded values.
            energy = float(self.multiplier * spread) ** 2 * padded * shares / clients**2
            yield f"{name}: nu = {energy:.3g} of the energy of the longest update, in a mean over {clients:,}."
            if energy > MOST_NOISE:
                yield (
                    f"Warning: nu = {energy:.3g} is above {MOST_NOISE}, so noise drowns the model: take about "
                    f"{clients_for(clients, energy):,} clients, fewer values or less noise."
                )


# --- Advice -----------------------------------------------------------------------------------------------------------


def advice(request: PlanRequest, comparison: Comparison) -> Iterator[str]:
    """Say which scheme is shortest with each protocol, what its noise is, what is bounded, and who may leave."""
    yield from _choice(comparison)
    yield from _cohort(request, comparison)
    yield from _bounds()
    if request.clients <= LARGEST_WHOLE_COMMITTEE:
        corrupted = usual_corrupted(request.clients)
        modes = (PairwiseOptions(mode=mode, corrupted=corrupted) for mode in SecurityMode)
        yield f"Pairwise masks: {'; '.join(settings.stands(request.clients) for settings in modes)}."
    sum_bits = request.bits + math.log2(request.clients)
    if said := said_guessable(sum_bits=sum_bits, clients=request.clients, entropy=request.bits):
        yield f"Warning: {said}."


# --- Private ----------------------------------------------------------------------------------------------------------


def _choice(comparison: Comparison) -> Iterator[str]:
    # Nobody uses an unchecked round unless told to, so it is not an option today.
    usable = [option for option in comparison.options if option.costs.is_checked]
    for protocol in comparison.protocols:
        found = next((option for option in usable if option.protocol == protocol), None)
        if found is None:
            yield f"Everything with {protocol} is unchecked."
        else:
            yield (
                f"With {protocol}, {found.described} has the shortest upload: "
                f"{found.bits_per_weight:.2f} bits a weight."
            )


def _cohort(request: PlanRequest, comparison: Comparison) -> Iterator[str]:
    """Say how noisy the schemes for whole updates are, what they cost by each protocol, and where that jumps."""
    for scheme in WHOLE_UPDATES:
        # Sorted by upload, so the first of a protocol is its shortest.
        first = dict[str, Option]()
        for option in comparison.options:
            if option.scheme is scheme and option.costs.is_checked:
                first.setdefault(option.protocol, option)
        costs = "; ".join(
            f"{option.name} {option.costs.up_bytes:,} bytes up, {option.bits_per_weight:.3g} bits a weight"
            for option in (first[protocol] for protocol in comparison.protocols if protocol in first)
        )
        noise = request.noise(scheme)
        yield f"The {request.describe(scheme)}, has noise of nu = {noise:.2f} of one client's energy: {costs}."
        if noise > MOST_CODE_NOISE:
            yield (
                f"Warning: nu = {noise:.2f} of the {scheme} is above {MOST_CODE_NOISE:g}, so accuracy suffers; raise "
                "--cohort-bits above 1, or take more clients."
            )
    yield (
        "What that noise costs in accuracy is not in nu but in its harm, how much it raises the loss of the task: "
        "compression.rate=auto of secagg train measures it."
    )
    for modulus in MODULI[:-1]:
        # A field holds weights below its modulus, and the next one is much larger.
        if modulus <= request.clients < modulus + modulus // 4:
            yield (
                f"Warning: {request.clients:,} clients need longer lanes than {modulus - 1:,} do where two servers "
                f"check them; a round of at most {modulus - 1:,} is shorter."
            )


def _bounds() -> Iterator[str]:
    """Say for every scheme whether what one client adds to a sum is bounded.

    Where a client sends one index a block, its update is no longer than the longest codewords, whatever it does: the
    enclave takes no other index, and two servers check that there is one. Ring elements are whatever a client sends.
    """
    yield (
        "What one client can add is bounded in the enclave, and by two servers that check, as an index has one "
        f"codeword: the {Scheme.PEAK} gives every update one length, and {Scheme.PRODUCT} at most that of its longest "
        "codewords; lengths and scales that clients report as ring elements are not bounded."
    )
    rings = ", ".join(scheme.value for scheme in Scheme if scheme not in INDEXED)
    yield (
        f"Not bounded by any protocol, since a ring element may be anything: {rings}. Pairwise masks, one message and "
        "LightSecAgg sums ring elements only, and bounds nobody; what each sum leaves unbounded it names."
    )
