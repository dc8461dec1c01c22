"""Floors that a client checks before it shares anything, whatever the servers are configured for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from secagg.contract.layout import Layout
from secagg.errors import InvalidParameters, Misuse, Reason
from secagg.parameters import LEAST_COHORT, Suite, require_integer, require_members

from .configuration import IndexingConfiguration, SharingMode, require_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexingFloors:
    """Floors of a client.

    Everything rests on two servers in two hands, which a client cannot see; so it names both, and their authority.
    """

    suites: frozenset[Suite]
    authority: bytes
    server_keys: tuple[bytes, bytes]
    minimum_cohort: int
    maximum_length: int
    modes: frozenset[SharingMode] = frozenset({SharingMode.CHECKED_POINT_FUNCTIONS})

    @classmethod
    def usual(cls, clients: int, authority: bytes, server_keys: tuple[bytes, bytes]) -> IndexingFloors:
        """Return floors for an application that knows how many clients it has: half of them."""
        return cls(
            suites=frozenset(Suite),
            authority=authority,
            server_keys=server_keys,
            minimum_cohort=max(LEAST_COHORT, clients // 2),
            maximum_length=1 << 28,
        )

    def __post_init__(self) -> None:
        require_members("suites", self.suites, Suite)
        require_members("modes", self.modes, SharingMode)
        require_keys(self.authority, self.server_keys)
        require_integer("minimum_cohort", self.minimum_cohort, LEAST_COHORT)
        require_integer("maximum_length", self.maximum_length, 1)

    def admit(self, configuration: IndexingConfiguration, *, layout: Layout, now: datetime) -> None:
        """Refuse a configuration that is weaker than these floors, or made for another codec than the client's."""
        if type(now) is not datetime or now.utcoffset() is None:
            raise Misuse("the time is a datetime with a time zone")
        for is_weak, sentence in self._weaknesses(configuration, layout, now):
            if is_weak:
                raise InvalidParameters(
                    f"these servers are refused: {sentence}; change their configuration or this client's floors",
                    reason=Reason.BELOW_FLOOR,
                )

    def _weaknesses(
        self, configuration: IndexingConfiguration, layout: Layout, now: datetime
    ) -> Iterator[tuple[bool, str]]:
        yield configuration.suite not in self.suites, f"suite {configuration.suite} is not accepted"
        yield configuration.mode not in self.modes, f"mode {configuration.mode.name.lower()} is not accepted"
        yield configuration.authority != self.authority, "clients are certified by another authority than this client's"
        yield configuration.server_keys != self.server_keys, "the servers are not the two that this client believes in"
        least = configuration.minimum_cohort
        yield least < self.minimum_cohort, f"a cohort of {least} is below {self.minimum_cohort}"
        yield configuration.layout != layout, "its layout or codebooks are not those that this client encodes with"
        length = sum(segment.length for segment in configuration.layout.segments)
        yield length > self.maximum_length, f"its vectors are longer than {self.maximum_length}"
        yield now.timestamp() >= configuration.expiry, "it has expired"
