"""The laws of the contract, each with what it says and what usually repairs a scheme that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from hypothesis import HealthCheck, settings

from secagg.errors import ContractViolation, InvalidParameters

from . import payloads, sums
from .candidate import Candidate, Trial

LEAST_CAPACITY: Final = 4
"""Least capacity of a sum that tests something."""
EXAMPLES: Final = 50
"""The most of one law; a profile may ask for fewer."""


@dataclass(frozen=True, slots=True)
class Law:
    """One thing that the contract demands of every scheme."""

    name: str
    rule: str
    repair: str
    _holds: Callable[[Trial], None] = field(repr=False)

    def __str__(self) -> str:
        return self.name

    def check(self, candidate: Candidate, search: settings | None = None) -> None:
        """Look for a counterexample; without settings of its own, under the profile that is loaded.

        Raises:
            ContractViolation: the candidate breaks the law.
            InvalidParameters: the candidate cannot show whether it keeps the law.
        """
        if search is None:
            # Read here, because the caller may load a profile after importing the kit.
            search = settings(
                max_examples=min(EXAMPLES, settings().max_examples),
                deadline=None,
                print_blob=False,
                report_multiple_bugs=False,
                suppress_health_check=[HealthCheck.too_slow],
            )
        if candidate.make().capacity < LEAST_CAPACITY:
            raise InvalidParameters(
                f"{candidate} holds fewer than {LEAST_CAPACITY} clients; describe it with a wider ring"
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
        "decoding the sum of many clients that are alike gives as many times what one of them decodes to",
        "use the number of contributors wherever decode must know how often updates were added: for zero points and "
        "for the capacity",
        sums.alike,
    ),
    Law(
        "capacity",
        "a sum of exactly the capacity decodes, with every client at an extreme; one more is refused",
        "clamp codes to a range, compute the capacity from its ends with secagg.crypto.ring.capacity_between, and call "
        "secagg.crypto.ring.require_capacity on contributors in decode",
        sums.capacity,
    ),
    Law(
        "round_trip",
        "one client's update comes back within the declared error of what is expected",
        "check the scale, the zero point (subtracted once for each contributor) and the order of coordinates, or "
        "declare the error and the expected update as they are",
        sums.round_trip,
    ),
    Law(
        "decoded_sums",
        "what is decoded from sums of codewords, where a scheme decodes them, is what is decoded from histograms",
        "give each codebook to `tables` in integer steps of its own, multiply by the step once in decode_summed, and "
        "call secagg.contract.codewords.require_summed before",
        sums.decoded_sums,
    ),
    Law(
        "largest_norm",
        "no single update that can be decoded is longer than its scheme says, where a scheme says it, whatever indices "
        "a client chooses",
        "take the longest codeword of every block, in the units of what is decoded: times the scale and the length, "
        "and over the share that is kept",
        sums.largest_norm,
    ),
    Law(
        "masked_rounding",
        "where a layout has fine bits, rounding masked values leaves an error without bias, whatever the update, with "
        "1/12 of a squared step for each client, and no sum of rounded values leaves the ring",
        "count the segment's head_room into the ends of the codes before the capacity is computed, decode every fine "
        "step, and leave the bias to the protocol, which takes it off",
        sums.masked_rounding,
    ),
    Law(
        "determinism",
        "the same update and the same coins give the same payload",
        "take all randomness from the coins, and none from a clock, a generator or the operating system",
        payloads.determinism,
    ),
    Law(
        "coins",
        "coins drive stochastic rounding and nothing else",
        "draw the coins that rounding needs, keep every choice within the error, and say in the candidate whether the "
        "scheme is stochastic",
        payloads.coins,
    ),
    Law(
        "layout",
        "every payload is of the declared layout, which depends on no update; an update decodes to its own shapes",
        "compute the layout from public parameters, with public_parameters_digest as its version, and restore the "
        "shape in decode",
        payloads.layout,
    ),
    Law(
        "byte_count",
        "a payload has exactly the packed length of its segments on the wire, and the bytes that its author counts",
        "return secagg.contract.Payload and Layout themselves, with the bits per value that are claimed",
        payloads.byte_count,
    ),
    Law(
        "agreement",
        "parties that share nothing but public parameters agree on layout, payload and decoded sum",
        "derive everything from the constructor's arguments; what one client knows cannot be kept in the decoder",
        payloads.agreement,
    ),
    Law(
        "version",
        "other public parameters make another layout, and aggregates of another layout are not decoded",
        "put every parameter into the digest of the layout's version, in an encoding with one form, and compare "
        "layouts in decode",
        payloads.version,
    ),
    Law(
        "refusal",
        "updates of a wrong type or shape are refused by the right error",
        "raise Misuse for a type, structure or shape, before anything else happens",
        payloads.refusal,
    ),
    Law(
        "totality",
        "every update of the right type and shape is encoded: NaN as zero, and infinity as the largest float",
        "clamp values to what the scheme can hold; a refusal would tell a server which values a client has",
        payloads.totality,
    ),
    Law(
        "no_mutation",
        "encode leaves the update and decode leaves the aggregate as they were, and results share no memory with them",
        "work on a copy; beware of out= and of in-place operators on views of the argument",
        payloads.no_mutation,
    ),
    Law(
        "statelessness",
        "what was encoded, decoded or refused before changes no later result",
        "make the scheme a frozen dataclass; keep counters, last scales and error feedback elsewhere",
        payloads.statelessness,
    ),
)
"""Every law, in the order in which a new scheme is best made to keep them."""


def cases(*candidates: Candidate) -> list[tuple[Candidate, Law]]:
    """Return every candidate with every law, for ``pytest.mark.parametrize`` with ``ids=str``."""
    return [(candidate, law) for candidate in candidates for law in LAWS]
