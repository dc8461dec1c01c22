"""Cost of noise to a cohort: epsilon, wider rings, and the number of clients needed to keep the model useful."""

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
"""Sensitivity when one client's update is replaced by another, in units of a client's bound."""


@dataclass(frozen=True, slots=True)
class PlannedNoise:
    """Noise multiplier, and the number of sums that each client takes part in."""

    multiplier: Fraction
    releases: int
    delta: float

    def epsilon(self, delta: float, releases: int = 1) -> float:
        """Return the privacy loss of several sums with Gaussian noise of this multiplier."""
        part = ReleasePart(l2_squared=_WIDE, l1=None, variance=self.multiplier**2 * _WIDE)
        return epsilon(NoiseKind.DISCRETE_GAUSSIAN, [part], releases, delta)

    @property
    def deviations(self) -> tuple[float, ...]:
        """Return nothing, because no session has been planned yet."""
        return ()

    def advice(self, weights: int, clients: int) -> Iterator[str]:
        if self.multiplier <= 0:
            raise InvalidParameters(f"--noise must be positive; got {self.multiplier}")
        if not _LEAST_MULTIPLIER <= self.multiplier <= _MOST_MULTIPLIER:
            raise InvalidParameters(
                f"--noise must be between {float(_LEAST_MULTIPLIER):g} and {_MOST_MULTIPLIER:,}; got {self.multiplier}"
            )
        padded = -(-weights // _BLOCK) * _BLOCK
        lost = clients // ONE_IN
        honest = max(1, clients - 2 * lost)
        spent = said_epsilon(self, self.delta, self.releases)
        yield (
            f"Noise of {self.multiplier} times a client's maximum contribution: {spent} after {self.releases} sums, "
            "whether a client's update is replaced with another (which takes twice the noise) or with zeros."
        )
        for name, spread, shares in (
            ("Clients' noise, update replaced by another", _REPLACED, clients / honest),
            ("Clients' noise, update replaced by zeros", 1, clients / honest),
            ("Two servers' noise, update replaced by another", _REPLACED, 2.0),
        ):
            # Two servers' histograms have another sensitivity; this line is for values that decode exactly.
            energy = float(self.multiplier * spread) ** 2 * padded * shares / clients**2
            yield (f"{name}: nu = {energy:.3g} times the energy of the longest update, in a mean over {clients:,}.")
            if energy > MOST_NOISE:
                yield (
                    f"Warning: nu = {energy:.3g} is above {MOST_NOISE}, so noise dominates the mean: use about "
                    f"{clients_for(clients, energy):,} clients, fewer values or less noise."
                )


# --- Advice -----------------------------------------------------------------------------------------------------------


def advice(request: PlanRequest, comparison: Comparison) -> Iterator[str]:
    """Yield the shortest scheme for each protocol, the noise of schemes, bounds on clients, and dropout limits."""
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
    # An unchecked round must be asked for, so it is not recommended here.
    usable = [option for option in comparison.options if option.costs.is_checked]
    for protocol in comparison.protocols:
        found = next((option for option in usable if option.protocol == protocol), None)
        if found is None:
            yield f"{protocol} has no checked option."
        else:
            yield (
                f"With {protocol}, {found.described} has the shortest upload: {found.bits_per_weight:.2f} bits per "
                "weight."
            )


def _cohort(request: PlanRequest, comparison: Comparison) -> Iterator[str]:
    """Yield noise and costs of the schemes for whole updates with each protocol, and cohort sizes where costs jump."""
    for scheme in WHOLE_UPDATES:
        # Options are sorted by upload, so the first one of a protocol is its shortest.
        first = dict[str, Option]()
        for option in comparison.options:
            if option.scheme is scheme and option.costs.is_checked:
                first.setdefault(option.protocol, option)
        costs = "; ".join(
            f"{option.name} {option.costs.up_bytes:,} bytes up, {option.bits_per_weight:.3g} bits per weight"
            for option in (first[protocol] for protocol in comparison.protocols if protocol in first)
        )
        noise = request.noise(scheme)
        yield f"The {request.describe(scheme)}, adds noise of nu = {noise:.2f} times one client's energy: {costs}."
        if noise > MOST_CODE_NOISE:
            yield (
                f"Warning: nu = {noise:.2f} of the {scheme} is above {MOST_CODE_NOISE:g}, which lowers accuracy; "
                "raise --cohort-bits above 1, or use more clients."
            )
    yield (
        "The loss in accuracy does not follow from nu, but from how much the noise raises the task's loss: "
        "compression.rate=auto of secagg train measures it."
    )
    for modulus in MODULI[:-1]:
        # A field holds weights below its modulus; the next larger field is much larger.
        if modulus <= request.clients < modulus + modulus // 4:
            yield (
                f"Warning: with two servers that check, {request.clients:,} clients need longer lanes than "
                f"{modulus - 1:,}; a round of at most {modulus - 1:,} clients has shorter uploads."
            )


def _bounds() -> Iterator[str]:
    """Yield for every scheme whether a client's contribution to a sum is bounded.

    If a client sends one index per block, its update cannot be longer than the longest codewords: the enclave accepts
    only one index, and two servers check that there is one. Ring elements can have any value.
    """
    yield (
        "A client's contribution is bounded by the enclave, and by two servers that check, as an index selects one "
        f"codeword: updates of the {Scheme.PEAK} have one length, and those of {Scheme.PRODUCT} at most that of its "
        "longest codewords; lengths and scales that clients report as ring elements are not bounded."
    )
    rings = ", ".join(scheme.value for scheme in Scheme if scheme not in INDEXED)
    yield (
        f"No protocol bounds these schemes, because a ring element can have any value: {rings}. Pairwise masks, one "
        "message and LightSecAgg only sum ring elements, so they bound no client; each sum lists what is unbounded."
    )
