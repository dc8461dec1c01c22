"""Advice on settings and noise: epsilon, wider rings, and the number of clients that keeps the model useful."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from secagg.compression.cohort_bits import MOST_NOISE as MOST_CODE_NOISE
from secagg.errors import InvalidParameters
from secagg.parameters import SecurityMode
from secagg.planning.costs import INDEXED, WHOLE_UPDATES, Comparison, PlanRequest, Scheme
from secagg.privacy.accounting import ReleasePart, epsilon
from secagg.privacy.client_noise import MOST_NOISE, clients_for, said_epsilon
from secagg.privacy.guessing import said_guessable
from secagg.privacy.kinds import NoiseKind
from secagg.protocols.pairwise_mask import LARGEST_WHOLE_COMMITTEE, PairwiseOptions
from secagg.protocols.two_servers import MODULI
from secagg.session.client_policy import usual_corrupted
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
        """Return an empty result, because no session has been planned yet."""
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
            "if a client's update is replaced by another (which takes twice the noise) or by zeros."
        )
        for name, spread, shares in (
            ("Clients' noise, update replaced by another", _REPLACED, clients / honest),
            ("Clients' noise, update replaced by zeros", 1, clients / honest),
            ("Two servers' noise, update replaced by another", _REPLACED, 2.0),
        ):
            # Two servers' histograms have a different sensitivity; this line is for values that decode exactly.
            energy = float(self.multiplier * spread) ** 2 * padded * shares / clients**2
            yield (f"{name}: nu = {energy:.3g} times the energy of the longest update, in a mean over {clients:,}.")
            if energy > MOST_NOISE:
                yield (
                    f"Warning: nu = {energy:.3g} is above {MOST_NOISE}, so noise dominates the mean: use about "
                    f"{clients_for(clients, energy):,} clients, fewer values or less noise."
                )


# --- Advice -----------------------------------------------------------------------------------------------------------


def advice(request: PlanRequest, comparison: Comparison) -> Iterator[str]:
    """Yield the settings for the shortest upload of each protocol, the dropout limits, and warnings."""
    yield "Shortest upload that each protocol supports today, with its settings:"
    # Unchecked rounds need an explicit option, so do not recommend them.
    usable = [option for option in comparison.options if option.costs.is_checked and request.setting(option.scheme)]
    for protocol in comparison.protocols:
        if (found := next((option for option in usable if option.protocol == protocol), None)) is not None:
            yield f"  {protocol}: {found.costs.up_bytes:,} bytes, {request.setting(found.scheme)}"
    yield from _left_out(comparison, are_absent=True)
    yield "NVFlare's secure() and `secagg serve --set` take the same settings, without secagg-."
    others = ", ".join(scheme for scheme in Scheme if not request.setting(scheme))
    yield f"Only `secagg train` supports these; platforms do not: {others}."
    yield _dropouts(request)
    for scheme in WHOLE_UPDATES:
        if (noise := request.noise(scheme)) > MOST_CODE_NOISE:
            yield (
                f"Warning: the noise of the {scheme} is {noise:.2f} times one client's energy, above "
                f"{MOST_CODE_NOISE:g}, which lowers accuracy; raise --cohort-bits above 1, or invite more clients"
            )
    for modulus in MODULI[:-1]:
        # A field holds weights below its modulus; the next larger field is much larger.
        if modulus <= request.clients < modulus + modulus // 4:
            yield (
                f"Warning: with two servers that check, {request.clients:,} clients need longer lanes than "
                f"{modulus - 1:,}; a round of at most {modulus - 1:,} clients has shorter uploads."
            )
    sum_bits = request.bits + math.log2(request.clients)
    if said := said_guessable(sum_bits=sum_bits, clients=request.clients, entropy=request.bits):
        yield f"Warning: {said}."


def explained(request: PlanRequest, comparison: Comparison) -> Iterator[str]:
    """Yield each protocol's trust assumptions, the noise of schemes, and which sums one client can spoil."""
    for protocol in comparison.protocols:
        if (shortest := comparison.shortest(protocol)) is not None:
            yield f"{protocol} trusts {shortest.entry.trust}. For the {shortest.described}: {shortest.costs.plan}."
    for scheme in WHOLE_UPDATES:
        yield (
            f"The mean of the {request.describe(scheme)}, has noise of {request.noise(scheme):.2f} times the energy "
            "of one client's update; compression.rate=auto of secagg train measures its effect on the loss."
        )
    yield (
        f"One client can change a sum by any amount, except with {' and '.join(sorted(INDEXED))} in the enclave or "
        "between two servers, which check that each block has one index."
    )
    yield from _left_out(comparison, are_absent=False)


# --- Private ----------------------------------------------------------------------------------------------------------


def _left_out(comparison: Comparison, *, are_absent: bool) -> Iterator[str]:
    for sentence in comparison.left_out:
        if (sentence.partition(",")[0] not in comparison.protocols) == are_absent:
            yield f"Left out: {sentence}."


def _dropouts(request: PlanRequest) -> str:
    clients, corrupted = request.clients, usual_corrupted(request.clients)
    said = f"{request.most_dropped} of {clients:,} clients may drop out (--dropped) and {corrupted:,} may be corrupted"
    if clients > LARGEST_WHOLE_COMMITTEE:
        return f"{said}."
    curious, active = (
        PairwiseOptions(mode=mode, corrupted=corrupted).most_dropped(clients)
        for mode in (SecurityMode.SEMI_HONEST, SecurityMode.ACTIVE)
    )
    return f"{said}; pairwise masks tolerate at most {active or 0} with keys, and {curious or 0} without."
