"""Plan of a sum with LightSecAgg, and the sessions of its server and its clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from secagg.crypto.entropy import Coins
from secagg.crypto.ring import require_capacity
from secagg.crypto.secret import Confined, Secret, draw_exactly
from secagg.errors import InvalidParameters, Misuse, Reason, SecAggError
from secagg.identifiers import ClientId
from secagg.parameters import LEAST_COHORT, SecurityMode, Suite
from secagg.session.client_policy import ClientPolicy, Compared
from secagg.session.ledger import Spent
from secagg.session.roles import LazyUpdate, Subject

from .client import Client, Held
from .configuration import DIGEST_BYTES, NONCE_BYTES, Configuration
from .server import Server

_HANDLE_BYTES: Final = 16
KEEPS: Final = frozenset(
    (
        *("suites", "modes", "minimum_cohort", "assumed_corrupted"),
        *("minimum_modulus_bits", "maximum_length", "maximum_population"),
    )
)
"""Names in a client's policy that this protocol keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LightSecAggSettings:
    """Plan of a sum."""

    mode: SecurityMode = SecurityMode.SEMI_HONEST
    suite: Suite = Suite.CLASSIC
    population: int | None = None
    """Number of invited clients, where the platform does not name them."""
    corrupted: int = 1
    """Number of clients that learn nothing but the sum with the server; at least 1, or a piece is a part of a mask."""
    dropped: int = 0
    late: int = 0
    """Number of invited clients that never come."""
    minimum_cohort: int = LEAST_COHORT

    def __post_init__(self) -> None:
        if self.mode is not SecurityMode.SEMI_HONEST:
            raise InvalidParameters(
                "LightSecAgg has no active mode: nothing is signed, so a server that lies shows two sets of clients "
                "to two halves of them and learns one input; take mode semi_honest, or another protocol"
            )

    def takes(self, population: int) -> bool:
        """Whether enough of so many clients are sure to stay."""
        _, target, needed = self._demands(population)
        return target >= needed

    def _demands(self, population: int) -> tuple[int, int, int]:
        """Return how many clients learn nothing together, how many are sure to stay, and how many have to."""
        privacy = max(1, self.corrupted)
        return privacy, population - self.dropped - self.late, max(self.minimum_cohort, privacy + LEAST_COHORT)

    def plan(self, subject: Subject, population: int, nonce: bytes) -> Configuration:
        """Choose the thresholds: the more have to stay, the shorter are the pieces."""
        privacy, target, needed = self._demands(population)
        if target < needed:
            raise InvalidParameters(
                f"of {population} clients only {target} are sure to stay, and a sum with {privacy} corrupted ones "
                f"needs {needed}; invite more, or plan for fewer that drop out or are corrupted"
            )
        # Every client refuses more; nobody is invited to that.
        require_capacity(population, subject.capacity)
        return Configuration(
            task=subject.task,
            round_number=subject.round_number,
            nonce=nonce,
            model_digest=subject.model_digest or bytes(DIGEST_BYTES),
            application_digest=subject.terms_digest,
            suite=self.suite,
            layout=subject.layout,
            population=population,
            privacy=privacy,
            target=target,
        )


def compared(configuration: Configuration) -> Iterator[Compared]:
    """Yield what a client's policy is compared with."""
    yield "modes", SecurityMode.SEMI_HONEST, "LightSecAgg holds only against a server that follows the protocol"
    yield "suites", configuration.suite, "suite {offered} is not accepted"
    yield "minimum_cohort", configuration.target, "a cohort of {offered} is below {own}"
    yield "assumed_corrupted", configuration.privacy, "it allows for {offered} corrupted clients only"
    width = min(segment.modulus_bits for segment in configuration.layout.require_rings())
    yield "minimum_modulus_bits", width, "a ring of {offered} bits is below {own}"
    yield "maximum_length", configuration.length - 1, "a vector of {offered} is longer than {own}"
    yield "maximum_population", configuration.population, "{offered} clients are more than {own}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LightSecAggHelpers:
    """Resources of a server."""

    coins: Coins


def open_session(
    subject: Subject, settings: LightSecAggSettings, invited: frozenset[ClientId] | None, helpers: LightSecAggHelpers
) -> Server:
    """Begin a session."""
    population = settings.population if invited is None else len(invited)
    if population is None:
        raise InvalidParameters("settings.population says how many clients are invited, unless they are named")
    nonce = bytes(draw_exactly(NONCE_BYTES, helpers.coins))
    return Server(settings.plan(subject, population, nonce), invited)


class LightSecAggMember(Confined):
    """A client of sums with LightSecAgg; sessions that it suspends stay in its memory, and end with it."""

    def __init__(
        self, client: ClientId, *, policy: ClientPolicy, coins: Coins, charge: Callable[[Spent], None]
    ) -> None:
        """Prepare to join sessions.

        Args:
            charge: told of an upload before its update is made; raises to refuse, and is durable when it returns, as
                ``SpentUpdates.charge`` is.
        """
        self.client, self.policy, self.coins, self.charge = client, policy, coins, charge
        self._suspended = dict[bytes, Held]()

    def join(self, subject: Subject, update: LazyUpdate | None = None, suspended: Secret | None = None) -> Client:
        """Begin, or resume a suspended session, once and in the process that suspended it."""
        if suspended is None:
            return Client(self, subject, update)
        handle = bytes(suspended.expose())
        suspended.wipe()
        if (held := self._suspended.pop(handle, None)) is None:
            raise Misuse(
                "the suspended state was resumed before, or its process has ended; take part in the next sum",
                reason=Reason.ALREADY_SPENT,
            )
        try:
            held.configuration.require_subject(subject)
        except SecAggError:
            held.wipe()
            raise
        return Client(self, subject, update, held)

    def admit(self, configuration: Configuration) -> None:
        """Refuse an offer that is weaker than this client's policy."""
        self.policy.admit("the offered sum", KEEPS, compared(configuration))

    def keep(self, held: Held) -> Secret:
        """Keep a suspended state, and return the key by which it is fetched."""
        handle = Secret.random("lightsecagg handle", _HANDLE_BYTES, self.coins)
        self._suspended[bytes(handle.expose())] = held
        return handle

    def forget(self) -> None:
        while self._suspended:
            self._suspended.popitem()[1].wipe()
