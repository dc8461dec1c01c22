"""State that a client keeps across sums, and the values that its policy checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined, Secret
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.session.client_policy import ClientPolicy, Compared
from secagg.session.ledger import Spent

from .configuration import Configuration

Held = TypeVar("Held")
_HANDLE_BYTES: Final = 16
ENFORCED: Final = frozenset(
    (
        *("minimum_form", "suites", "modes", "minimum_cohort", "assumed_corrupted"),
        *("minimum_modulus_bits", "maximum_length", "maximum_population"),
    )
)
"""Names of the policy's limits that this protocol enforces."""


def compared(configuration: Configuration) -> Iterator[Compared]:
    """Yield the values that a client's policy limits."""
    yield "minimum_form", configuration.message_form, "form {offered} of its messages is below {own}"
    yield "modes", SecurityMode.SEMI_HONEST, "LightSecAgg holds only against a server that follows the protocol"
    yield "suites", configuration.suite, "suite {offered} is not accepted"
    yield "minimum_cohort", configuration.target, "a cohort of {offered} is below {own}"
    yield "assumed_corrupted", configuration.privacy, "it tolerates only {offered} corrupted clients"
    width = min(segment.modulus_bits for segment in configuration.layout.require_rings())
    yield "minimum_modulus_bits", width, "a ring of {offered} bits is below {own}"
    yield "maximum_length", configuration.length - 1, "a vector of {offered} is longer than {own}"
    yield "maximum_population", configuration.population, "{offered} clients are more than {own}"


class MemberParts(Confined, Generic[Held]):
    """Policy, ledger and suspended sessions of a client; ``LightSecAggMember`` begins sums with them."""

    def __init__(
        self, client: ClientId, *, policy: ClientPolicy, coins: Coins, charge: Callable[[Spent], None]
    ) -> None:
        """Prepare to join sessions.

        Args:
            charge: charges an upload before its update is made; raises to refuse, and is durable when it returns, like
                ``SpentUpdates.charge``.
        """
        self.client, self.policy, self.coins, self.charge = client, policy, coins, charge
        self._suspended = dict[bytes, Held]()

    def admit(self, configuration: Configuration) -> None:
        """Refuse an offer that is weaker than this client's policy."""
        self.policy.admit("the offered sum", ENFORCED, compared(configuration))

    def keep(self, held: Held) -> Secret:
        """Store a suspended state, and return its handle."""
        handle = Secret.random("lightsecagg handle", _HANDLE_BYTES, self.coins)
        self._suspended[bytes(handle.expose())] = held
        return handle
