"""Floors of a client, which hold whatever a server offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from secagg.crypto.ring import MAXIMUM_MODULUS_BITS
from secagg.errors import InvalidParameters
from secagg.parameters import LEAST_COHORT, LEAST_THRESHOLD, SecurityMode, Suite, require_members, usual_corrupted

from .graph import CURIOUS_PRIVACY_BITS, Topology, least_privacy_bits

USUAL_LENGTH: Final = 1 << 28
USUAL_DEGREE: Final = 1024
"""Plans of 10^4 clients take fewer neighbours; sharing among so many takes a tenth of a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFloors:
    """Floors of a client; without them it would follow a server to a cohort of one, or to a ring that wraps."""

    suites: frozenset[Suite]
    modes: frozenset[SecurityMode]
    minimum_cohort: int
    minimum_threshold: int
    minimum_modulus_bits: int
    maximum_length: int
    maximum_population: int
    assumed_corrupted: int
    """Number of clients that the adversary is assumed to hold among all that could ever be invited, counted absolutely:
    a fraction of the invited would let a server raise it by leaving honest clients out."""
    privacy_bits: int
    """The chance that one random graph betrays a client is at most 2^-privacy_bits. In ``active`` mode it is at most
    2^-100 whatever stands here, because the server may try many (``least_privacy_bits``)."""
    topologies: frozenset[Topology] = frozenset(Topology)
    maximum_degree: int = USUAL_DEGREE
    """The most neighbours: sharing costs their number times the threshold, seconds for some thousands and minutes for
    tens of thousands. In a full graph everybody else is a neighbour, whatever ``maximum_population`` allows."""

    @classmethod
    def usual(  # noqa: PLR0913 -- one for each floor that an application may have a reason to set
        cls,
        clients: int,
        mode: SecurityMode = SecurityMode.ACTIVE,
        *,
        corrupted: int | None = None,
        minimum_cohort: int | None = None,
        maximum_length: int = USUAL_LENGTH,
        suites: frozenset[Suite] = frozenset(Suite),
        privacy_bits: int = CURIOUS_PRIVACY_BITS,
    ) -> ClientFloors:
        """Return floors for an application that knows how many clients it has, and has no reason for others.

        Args:
            clients: how many clients could ever be invited.
            mode: the one mode that is accepted.
            corrupted: how many of them the adversary may hold; one in ten by default.
            minimum_cohort: the least number of contributors whose sum is released; half of the clients by default.

        The threshold and the ring's width have no floor of their own here: both are compared with what the assumed
        corruption and the capacity of the client's decoder need.
        """
        _require_integers(clients)
        return cls(
            suites=suites,
            modes=frozenset({mode}),
            minimum_cohort=max(LEAST_COHORT, clients // 2) if minimum_cohort is None else minimum_cohort,
            minimum_threshold=LEAST_THRESHOLD,
            minimum_modulus_bits=1,
            maximum_length=maximum_length,
            maximum_population=clients,
            assumed_corrupted=usual_corrupted(clients) if corrupted is None else corrupted,
            privacy_bits=privacy_bits,
        )

    def __post_init__(self) -> None:
        _require_integers(
            self.minimum_cohort,
            self.minimum_threshold,
            self.minimum_modulus_bits,
            self.maximum_length,
            self.maximum_population,
            self.assumed_corrupted,
            self.privacy_bits,
            self.maximum_degree,
        )
        require_members("topologies", self.topologies, Topology)
        require_members("suites", self.suites, Suite)
        require_members("modes", self.modes, SecurityMode)
        for unsafe, sentence in (
            (
                self.minimum_cohort < LEAST_COHORT,
                f"minimum_cohort is {self.minimum_cohort}; a sum of fewer than {LEAST_COHORT} is one client's input",
            ),
            (
                self.minimum_threshold < LEAST_THRESHOLD,
                f"minimum_threshold is {self.minimum_threshold}; below {LEAST_THRESHOLD} a share is the secret itself",
            ),
            (
                not 1 <= self.minimum_modulus_bits <= MAXIMUM_MODULUS_BITS,
                f"minimum_modulus_bits is {self.minimum_modulus_bits}; it lies in 1..{MAXIMUM_MODULUS_BITS}",
            ),
            (self.maximum_length < 1, f"maximum_length is {self.maximum_length}; it is at least 1"),
            (
                self.maximum_population < self.minimum_cohort,
                f"maximum_population is {self.maximum_population}, below minimum_cohort {self.minimum_cohort}",
            ),
            (self.maximum_degree < 1, f"maximum_degree is {self.maximum_degree}; a client has a neighbour"),
            (self.assumed_corrupted < 0, f"assumed_corrupted is {self.assumed_corrupted}; it is not negative"),
            (
                self.privacy_bits < CURIOUS_PRIVACY_BITS,
                f"privacy_bits is {self.privacy_bits}; below {CURIOUS_PRIVACY_BITS} a random graph protects nobody",
            ),
        ):
            if unsafe:
                raise InvalidParameters(sentence)

    def privacy_bits_in(self, mode: SecurityMode) -> int:
        """Return what the client insists on in a mode, which is never less than that mode's least."""
        return max(self.privacy_bits, least_privacy_bits(mode))


def _require_integers(*values: object) -> None:
    """Refuse anything else first: a NaN, which a parser of JSON may hand over, is below no floor."""
    for value in values:
        if type(value) is not int:
            raise InvalidParameters(f"cohorts, thresholds, widths and lengths are integers; got {value!r}")
