"""Parties of one sum with LightSecAgg, from its configuration: for tests and vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from secagg.contract import Payload
from secagg.crypto.entropy import Coins
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.light_secagg.client import Client
from secagg.protocols.light_secagg.configuration import MAXIMUM_CLIENTS, Configuration
from secagg.protocols.light_secagg.server import Server
from secagg.protocols.light_secagg.session import LightSecAggMember
from secagg.session.client_policy import ClientPolicy
from secagg.session.roles import LazyUpdate, Subject, Update
from tests.harness.planted import always


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectOf(Subject):
    """A subject with only the digest of its terms."""

    application_digest: bytes

    @property
    def terms_digest(self) -> bytes:
        """The digest that the configuration has."""
        return self.application_digest


def subject_of(configuration: Configuration) -> Subject:
    """Return the subject of a configuration."""
    return SubjectOf(
        task=configuration.task,
        round_number=configuration.round_number,
        layout=configuration.layout,
        capacity=configuration.population,
        model_digest=configuration.model_digest,
        application_digest=configuration.application_digest,
    )


def member_of(client: ClientId, coins: Coins) -> LightSecAggMember:
    """Return a client with the lowest policy and no ledger."""
    policy = ClientPolicy(
        modes=frozenset({SecurityMode.SEMI_HONEST}),
        suites=frozenset(Suite),
        minimum_cohort=2,
        assumed_corrupted=0,
        minimum_modulus_bits=1,
        maximum_length=1 << 40,
        maximum_population=MAXIMUM_CLIENTS,
    )
    return LightSecAggMember(client, policy=policy, coins=coins, charge=always(None))


def client_with(configuration: Configuration, client: ClientId, payload: Payload, coins: Coins) -> Client:
    """Return a client of a sum before its first message."""
    update = Update(payload, configuration.model_digest)
    return member_of(client, coins).join(subject_of(configuration), LazyUpdate(always(update)))


def answers_of(server: Server, clients: Mapping[ClientId, Client]) -> dict[ClientId, bytes]:
    """Return clients' answers to the open stage's messages."""
    due = {name: server.message_to(name) for name in clients}
    return {name: clients[name].answer(message) for name, message in due.items() if message is not None}


def reach(server: Server, clients: Mapping[ClientId, Client], stages: int) -> None:
    """Run ``stages`` stages of a sum."""
    for _ in range(stages):
        for name, answer in answers_of(server, clients).items():
            server.receive(name, answer)
        server.close_stage()
