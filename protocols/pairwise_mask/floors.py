"""Floors of a client, which hold whatever a server offers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, cast

from secagg.crypto.ring import MAXIMUM_MODULUS_BITS
from secagg.errors import InvalidParameters, Reason
from secagg.parameters import LEAST_COHORT, LEAST_THRESHOLD, SecurityMode, Suite, usual_corrupted

from .graph import CURIOUS_PRIVACY_BITS, Topology, least_privacy_bits

USUAL_LENGTH: Final = 1 << 28
USUAL_DEGREE: Final = 1024
"""Number of neighbours that plans of 10^4 clients take with room to spare; sharing among them takes a tenth of a
second.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFloors:
    """Floors of a client, which hold whatever a server offers.

    A server chooses the parameters of a session; without floors of its own a client would follow it to a cohort of
    one, a threshold of one or a ring that wraps.
    """

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
        _require_members("topologies", self.topologies, Topology)
        _require_members("suites", self.suites, Suite)
        _require_members("modes", self.modes, SecurityMode)
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

    def admit(  # noqa: PLR0913 -- one for each floor
        self,
        *,
        suite: Suite,
        mode: SecurityMode,
        cohort: int,
        threshold: int,
        modulus_bits: int,
        length: int,
        population: int,
        topology: Topology,
        degree: int,
    ) -> None:
        """Refuse an offer that is weaker than these floors.

        Raises:
            InvalidParameters: with reason ``below_floor``, naming the value and the floor.
        """
        _require_integers(cohort, threshold, modulus_bits, length, population, degree)
        for weak, sentence in (
            (suite not in self.suites, f"suite {suite} is not among {_names(self.suites)}"),
            (mode not in self.modes, f"mode {mode} is not among {_names(self.modes)}"),
            (topology not in self.topologies, f"a {topology} graph is not among {_names(self.topologies)}"),
            (degree > self.maximum_degree, f"a degree of {degree} exceeds {self.maximum_degree}"),
            (cohort < self.minimum_cohort, f"a cohort of {cohort} is below {self.minimum_cohort}"),
            (threshold < self.minimum_threshold, f"a threshold of {threshold} is below {self.minimum_threshold}"),
            (
                modulus_bits < self.minimum_modulus_bits,
                f"a ring of {modulus_bits} bits is below {self.minimum_modulus_bits}",
            ),
            (length > self.maximum_length, f"a vector of {length} is longer than {self.maximum_length}"),
            (population > self.maximum_population, f"a population of {population} exceeds {self.maximum_population}"),
            (population < cohort, f"a population of {population} cannot hold a cohort of {cohort}"),
            (threshold > population, f"a threshold of {threshold} cannot be met by a population of {population}"),
            (modulus_bits > MAXIMUM_MODULUS_BITS, f"no ring has {modulus_bits} bits"),
            (length < 1, f"no vector has a length of {length}"),
        ):
            if weak:
                raise InvalidParameters(
                    f"the offered session is refused: {sentence}; change the offer or this client's floors",
                    reason=Reason.BELOW_FLOOR,
                )


def _require_integers(*values: object) -> None:
    """Refuse anything else first: a NaN, which a parser of JSON may hand over, is below no floor."""
    for value in values:
        if type(value) is not int:
            raise InvalidParameters(f"cohorts, thresholds, widths and lengths are integers; got {value!r}")


def _require_members(name: str, members: object, kind: type[StrEnum]) -> None:
    """Refuse a plain string, in which every part of it would be found."""
    if type(members) is not frozenset or not members or {type(m) for m in cast("frozenset[object]", members)} != {kind}:
        raise InvalidParameters(f"{name} is a frozenset of at least one {kind.__name__} that this client accepts")


def _names(members: frozenset[Suite] | frozenset[SecurityMode] | frozenset[Topology]) -> str:
    return ", ".join(sorted(members))
