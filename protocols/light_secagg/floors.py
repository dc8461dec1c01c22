"""Floors of a client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from secagg.errors import InvalidParameters, Reason
from secagg.parameters import LEAST_COHORT, SecurityMode, Suite, require_integer, require_members, usual_corrupted

from .configuration import MAXIMUM_CLIENTS, Configuration


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """Floors of a client, which hold whatever a server offers."""

    modes: frozenset[SecurityMode]
    """A client that accepts ``active`` alone takes no part: nothing here holds against a server that lies."""
    suites: frozenset[Suite]
    minimum_cohort: int
    assumed_corrupted: int
    """Number of clients assumed to work with the server."""
    minimum_modulus_bits: int
    maximum_length: int
    maximum_population: int
    """The work and the bytes of a client grow with it."""

    def __post_init__(self) -> None:
        require_members("suites", self.suites, Suite)
        require_members("modes", self.modes, SecurityMode)
        require_integer("assumed_corrupted", self.assumed_corrupted, 0)
        require_integer("minimum_cohort", self.minimum_cohort, LEAST_COHORT)
        require_integer("minimum_modulus_bits", self.minimum_modulus_bits, 1)
        require_integer("maximum_length", self.maximum_length, 1)
        require_integer("maximum_population", self.maximum_population, self.minimum_cohort)

    @classmethod
    def usual(cls, clients: int) -> Floors:
        """Return floors for an application that knows how many clients it has, and trusts its server to be honest."""
        return cls(
            modes=frozenset({SecurityMode.SEMI_HONEST}),
            suites=frozenset(Suite),
            minimum_cohort=max(LEAST_COHORT, clients // 2),
            assumed_corrupted=usual_corrupted(clients),
            minimum_modulus_bits=1,
            maximum_length=1 << 28,
            maximum_population=min(clients, MAXIMUM_CLIENTS),
        )

    def admit(self, configuration: Configuration) -> None:
        """Refuse a configuration that is weaker than these floors."""
        for is_weak, sentence in self._weaknesses(configuration):
            if is_weak:
                raise InvalidParameters(
                    f"the offered sum is refused: {sentence}; change the offer or these floors",
                    reason=Reason.BELOW_FLOOR,
                )

    def _weaknesses(self, configuration: Configuration) -> Iterator[tuple[bool, str]]:
        yield (
            SecurityMode.SEMI_HONEST not in self.modes,
            "LightSecAgg holds only against a server that follows the protocol",
        )
        yield configuration.suite not in self.suites, f"suite {configuration.suite} is not accepted"
        target, privacy = configuration.target, configuration.privacy
        yield target < self.minimum_cohort, f"a cohort of {target} is below {self.minimum_cohort}"
        yield privacy < self.assumed_corrupted, f"it allows for {privacy} corrupted clients only"
        bits = min(segment.modulus_bits for segment in configuration.layout.require_rings())
        yield bits < self.minimum_modulus_bits, f"a ring of {bits} bits is below {self.minimum_modulus_bits}"
        length, population = configuration.length - 1, configuration.population
        yield length > self.maximum_length, f"a vector of {length} is longer than {self.maximum_length}"
        yield population > self.maximum_population, f"{population} clients are more than {self.maximum_population}"
