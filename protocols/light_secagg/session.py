"""Plans a sum with LightSecAgg, and creates the sessions of its server and clients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from secagg.crypto.entropy import Coins
from secagg.crypto.ring import require_capacity
from secagg.crypto.secret import Secret, draw_exactly
from secagg.errors import InvalidParameters, Misuse, Reason, SecAggError
from secagg.identifiers import ClientId
from secagg.options import option
from secagg.parameters import LEAST_COHORT, SecurityMode
from secagg.session.registry import ProtocolOptions
from secagg.session.roles import LazyUpdate, Subject

from .client import Client, Held
from .configuration import DIGEST_BYTES, NONCE_BYTES, Configuration
from .member import MemberParts
from .server import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class LightSecAggOptions(ProtocolOptions):
    """Plan of a sum."""

    protocol: ClassVar = "lightsecagg"
    mode: Annotated[SecurityMode, option("trust in the server")] = SecurityMode.SEMI_HONEST
    population: Annotated[int | None, option("number of invited clients, if they are not named")] = None
    corrupted: Annotated[int, option("clients that may collude with the server")] = 1
    """At least 1: otherwise a piece would be part of a mask."""
    dropped: Annotated[int, option("clients that may drop out")] = 0
    late: Annotated[int, option("additional clients that may never join")] = 0

    def rules(self) -> Iterator[tuple[str, bool, str]]:
        sentence = (
            "must be semi_honest: LightSecAgg signs nothing, so a malicious server can send two sets of uploaders "
            "to different clients and learn one input; or use another protocol"
        )
        yield "mode", self.mode is not SecurityMode.SEMI_HONEST, sentence

    def takes(self, population: int) -> bool:
        """Whether enough clients are certain to stay."""
        _, target, needed = self._demands(population)
        return target >= needed

    def _demands(self, population: int) -> tuple[int, int, int]:
        """Return how many colluding clients learn nothing, how many clients are sure to stay, and how many must."""
        privacy = max(1, self.corrupted)
        return privacy, population - self.dropped - self.late, max(self.least_cohort, privacy + LEAST_COHORT)

    def plan(self, subject: Subject, population: int, nonce: bytes) -> Configuration:
        """Choose the thresholds: pieces are shorter if more clients must stay."""
        privacy, target, needed = self._demands(population)
        if target < needed:
            raise InvalidParameters(
                f"only {target} of {population} clients are certain to stay, but a sum with {privacy} corrupted "
                f"ones needs {needed}; invite more clients, or plan for fewer dropouts or corrupted clients"
            )
        # Every client would refuse more, so fail here.
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
            message_form=self.message_form,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LightSecAggHelpers:
    """Resources of a server."""

    coins: Coins


def open_session(
    subject: Subject, settings: LightSecAggOptions, invited: frozenset[ClientId] | None, helpers: LightSecAggHelpers
) -> Server:
    """Begin a session."""
    population = settings.population if invited is None else len(invited)
    if population is None:
        raise InvalidParameters("set settings.population to the number of invited clients, or name them")
    nonce = bytes(draw_exactly(NONCE_BYTES, helpers.coins))
    return Server(settings.plan(subject, population, nonce), invited)


class LightSecAggMember(MemberParts[Held]):
    """Client of LightSecAgg sums; its suspended sessions stay in memory, and end with the process."""

    def join(self, subject: Subject, update: LazyUpdate | None = None, suspended: Secret | None = None) -> Client:
        """Start a session, or resume a suspended one, once and in the process that suspended it."""
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

    def forget(self) -> None:
        while self._suspended:
            self._suspended.popitem()[1].wipe()
