"""Floors of a client, which a holder enforces in its place after the client has left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from secagg.errors import InvalidParameters, Reason
from secagg.identifiers import HolderId
from secagg.parameters import LEAST_COHORT, SecurityMode, Suite, require_integer, require_members
from secagg.session.certificates import IDENTITY_KEY_BYTES

from .configuration import NO_KEY, Agreement
from .parameters import LEAST_SECURITY

_USUAL_CAPACITY = 1 << 14
LONGEST_KEYS = 24 * 3600
"""Seconds that a holder's keys last at most; later it cannot open what was sealed to them, whoever asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floors:
    """Floors of a client, which hold whatever a server offers."""

    authority: bytes
    """Authority that certifies clients and signs epochs; zeros in ``semi_honest`` mode."""
    suites: frozenset[Suite]
    modes: frozenset[SecurityMode]
    least_holders: int
    assumed_corrupted: int
    """Number of holders assumed to work with the server; an epoch allows for as many or more."""
    assumed_corrupted_clients: int
    minimum_cohort: int
    minimum_modulus_bits: int
    maximum_length: int
    maximum_capacity: int
    least_security_bits: int = LEAST_SECURITY
    longest_keys: int = LONGEST_KEYS
    """Seconds from now to the latest end of a holder's keys."""

    def __post_init__(self) -> None:
        if type(self.authority) is not bytes or len(self.authority) != IDENTITY_KEY_BYTES:
            raise InvalidParameters(f"an authority is known by a public key of {IDENTITY_KEY_BYTES} bytes")
        require_members("suites", self.suites, Suite)
        require_members("modes", self.modes, SecurityMode)
        require_integer("assumed_corrupted_clients", self.assumed_corrupted_clients, 0)
        require_integer("minimum_cohort", self.minimum_cohort, LEAST_COHORT)
        if self.minimum_cohort < self.assumed_corrupted_clients + 2:
            raise InvalidParameters(
                f"minimum_cohort is {self.minimum_cohort}; with {self.assumed_corrupted_clients} corrupted clients it "
                f"is at least {self.assumed_corrupted_clients + 2}, or one honest input is the sum"
            )
        require_integer("least_holders", self.least_holders, 2)
        require_integer("assumed_corrupted", self.assumed_corrupted, 0)
        require_integer("minimum_modulus_bits", self.minimum_modulus_bits, 1)
        require_integer("maximum_length", self.maximum_length, 1)
        require_integer("maximum_capacity", self.maximum_capacity, self.minimum_cohort)
        require_integer("least_security_bits", self.least_security_bits, 1)
        require_integer("longest_keys", self.longest_keys, 1, LONGEST_KEYS)

    @classmethod
    def usual(cls, authority: bytes = NO_KEY) -> Floors:
        """Return the floors of most clients: certified identities, and four holders, one of them possibly corrupted."""
        is_active = authority != NO_KEY
        return cls(
            authority=authority,
            suites=frozenset(Suite),
            modes=frozenset({SecurityMode.ACTIVE if is_active else SecurityMode.SEMI_HONEST}),
            least_holders=4,
            assumed_corrupted=1,
            assumed_corrupted_clients=1,
            minimum_cohort=3,
            minimum_modulus_bits=1,
            maximum_length=1 << 34,
            maximum_capacity=_USUAL_CAPACITY,
        )

    def admit(self, agreement: Agreement, now: datetime) -> None:
        """Refuse an offer that is weaker than these floors.

        Raises:
            InvalidParameters: with reason ``below_floor``, naming the weak value.
        """
        for is_weak, sentence in self._weaknesses(agreement, now):
            if is_weak:
                raise InvalidParameters(
                    f"the offered sum is refused: {sentence}; change the offer or these floors",
                    reason=Reason.BELOW_FLOOR,
                )

    def _weaknesses(self, agreement: Agreement, now: datetime) -> Iterator[tuple[bool, str]]:
        record, configuration, parameters = agreement.record, agreement.configuration, agreement.parameters
        yield record.suite not in self.suites, f"suite {record.suite} is not accepted"
        yield record.mode not in self.modes, f"mode {record.mode} is not accepted"
        yield record.authority != self.authority, "another authority signs for its holders and clients"
        yield now.timestamp() >= record.expiry, "its epoch has expired"
        ends = {keys.position: keys.until - now.timestamp() for keys in agreement.epoch.keys if keys is not None}
        for position, left in ends.items():
            yield left <= 0, f"the keys of {HolderId(position)} have ended; ask it for others"
            yield left > self.longest_keys, f"the keys of {HolderId(position)} last more than {self.longest_keys} s"
        holders = len(record.holders)
        yield holders < self.least_holders, f"{holders} holders are fewer than {self.least_holders}"
        corrupted = record.corrupted
        yield corrupted < self.assumed_corrupted, f"it allows for {corrupted} corrupted holders only"
        yield (
            configuration.corrupted_clients < self.assumed_corrupted_clients,
            f"it allows for {configuration.corrupted_clients} corrupted clients only",
        )
        cohort = configuration.minimum_cohort
        yield cohort < self.minimum_cohort, f"a cohort of {cohort} is below {self.minimum_cohort}"
        bits = min(segment.modulus_bits for segment in configuration.layout.require_rings())
        yield bits < self.minimum_modulus_bits, f"a ring of {bits} bits is below {self.minimum_modulus_bits}"
        length = sum(segment.length for segment in configuration.layout.segments)
        yield length > self.maximum_length, f"a vector of {length} is longer than {self.maximum_length}"
        capacity = parameters.capacity
        yield capacity > self.maximum_capacity, f"a list of {capacity} is longer than {self.maximum_capacity}"
        security = parameters.security_bits
        yield (
            security < self.least_security_bits,
            f"its masks have {security} bits of security by our count, below {self.least_security_bits}",
        )
