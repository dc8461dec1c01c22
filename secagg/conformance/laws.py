"""The laws of the contract, each with its rule and the usual repair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from hypothesis import HealthCheck, settings

from secagg.errors import ContractViolation, InvalidParameters

from . import payloads, sums
from .candidate import Candidate, Trial

LEAST_CAPACITY: Final = 4
"""Minimum capacity for which the laws of sums test something."""
EXAMPLES: Final = 50
"""Maximum number of examples for one law; a profile may ask for fewer."""


@dataclass(frozen=True, slots=True)
class Law:
    """One requirement of the contract on every scheme."""

    name: str
    rule: str
    repair: str
    _holds: Callable[[Trial], None] = field(repr=False)

    def __str__(self) -> str:
        return self.name

    def check(self, candidate: Candidate, search: settings | None = None) -> None:
        """Search for a counterexample; by default with the settings of the loaded profile.

        Raises:
            ContractViolation: the candidate breaks the law.
            InvalidParameters: the candidate's description is not enough to check the law.
        """
        if search is None:
            # Read here, because the caller may load a profile after importing this module.
            search = settings(
                max_examples=min(EXAMPLES, settings().max_examples),
                deadline=None,
                print_blob=False,
                report_multiple_bugs=False,
                suppress_health_check=[HealthCheck.too_slow],
            )
        if candidate.make().capacity < LEAST_CAPACITY:
            raise InvalidParameters(
                f"{candidate} has a capacity below {LEAST_CAPACITY} clients; describe it with a wider ring"
            )
        try:
            self._holds(Trial(candidate, search))
        except ContractViolation as broken:
            violation = ContractViolation(
                f"{candidate} breaks the law of {self.name}: {broken}\nThe law: {self.rule}\nTo repair: {self.repair}"
            )
            for note in getattr(broken, "__notes__", ()):
                violation.add_note(note)
            raise violation from broken


LAWS: Final = (
    Law(
        "linearity",
        "decoding the sum of payloads gives the sum of the decoded payloads",
        "decode the lifted sum with one multiplication by a public number: no clipping, rounding or mean before it, "
        "and no parameter that differs between clients",
        sums.linearity,
    ),
    Law(
        "alike",
        "decoding the sum of N equal clients gives N times one decoded client",
        "use the number of contributors wherever decode needs the number of added updates: for zero points and "
        "for the capacity",
        sums.alike,
    ),
    Law(
        "capacity",
        "a sum of exactly the capacity decodes, with every client at an extreme; one more is refused",
        "clamp codes to a range, compute the capacity from its ends with secagg.contract.capacity_between, and call "
        "secagg.crypto.ring.require_capacity on contributors in decode",
        sums.capacity,
    ),
    Law(
        "round_trip",
        "one client's decoded update is within the declared error of the expected one",
        "check the scale, the zero point (subtracted once for each contributor) and the order of coordinates, or "
        "declare the actual error and expected update",
        sums.round_trip,
    ),
    Law(
        "decoded_sums",
        "if a scheme decodes sums of codewords, the result equals that from histograms",
        "give each codebook to `tables` in its own integer steps, multiply by the step once in decode_summed, and "
        "call secagg.contract.codewords.require_summed before",
        sums.decoded_sums,
    ),
    Law(
        "largest_norm",
        "if a scheme declares largest_norm, no decoded update is longer, whatever indices a client chooses",
        "take the longest codeword of every block in decoded units: times scale and length, over the kept share",
        sums.largest_norm,
    ),
    Law(
        "masked_rounding",
        "if a layout has fine bits, rounding masked values is unbiased for every update, with a variance of 1/12 of a "
        "squared step for each client, and no sum of rounded values overflows the ring",
        "count the segment's head_room into the ends of the codes before the capacity is computed, decode every fine "
        "step, and leave the bias to the protocol, which subtracts it",
        sums.masked_rounding,
    ),
    Law(
        "determinism",
        "the same update and the same coins give the same payload",
        "take all randomness from the coins, not from a clock, a generator or the operating system",
        payloads.determinism,
    ),
    Law(
        "coins",
        "coins only drive stochastic rounding",
        "draw the coins that rounding needs, keep every choice within the error, and declare in the candidate "
        "whether the scheme is stochastic",
        payloads.coins,
    ),
    Law(
        "layout",
        "every payload has the declared layout, which depends on no update; an update decodes to its own shapes",
        "compute the layout from public parameters, with public_parameters_digest as its version, and restore the "
        "shape in decode",
        payloads.layout,
    ),
    Law(
        "byte_count",
        "a payload has exactly the packed length of its segments on the wire, and its author's byte count",
        "return secagg.contract.Payload and Layout themselves, with the claimed bits per value",
        payloads.byte_count,
    ),
    Law(
        "agreement",
        "parties that share only public parameters agree on layout, payload and decoded sum",
        "derive everything from the constructor's arguments; the decoder cannot keep one client's state",
        payloads.agreement,
    ),
    Law(
        "version",
        "other public parameters give another layout, and aggregates of another layout are refused",
        "put every parameter into the digest of the layout's version, in an encoding with one form, and compare "
        "layouts in decode",
        payloads.version,
    ),
    Law(
        "refusal",
        "updates of a wrong type or shape raise the right error",
        "raise Misuse for a type, structure or shape, before anything else happens",
        payloads.refusal,
    ),
    Law(
        "totality",
        "every update of the right type and shape is encoded: NaN as zero, and infinity as the largest float",
        "clamp values to the scheme's range; a refusal would reveal a client's values to the server",
        payloads.totality,
    ),
    Law(
        "no_mutation",
        "encode does not change the update, nor decode the aggregate, and results share no memory with them",
        "work on a copy; beware of out= and of in-place operators on views of the argument",
        payloads.no_mutation,
    ),
    Law(
        "statelessness",
        "earlier calls of encode and decode change no later result",
        "make the scheme a frozen dataclass; keep counters, last scales and error feedback elsewhere",
        payloads.statelessness,
    ),
)
"""All laws, in the best order for developing a new scheme."""


def cases(*candidates: Candidate) -> list[tuple[Candidate, Law]]:
    """Return all pairs of candidate and law, for ``pytest.mark.parametrize`` with ``ids=str``."""
    return [(candidate, law) for candidate in candidates for law in LAWS]
