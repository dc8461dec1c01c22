"""The whole protocol on one page, in memory, with dropouts where you want them; read it beside [SHY+22] Algorithm 1."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from secagg.contract import Aggregate
from secagg.identifiers import ClientId

from .client import Client
from .configuration import Configuration
from .server import Server, State

Observer = Callable[[State, ClientId, bytes, bytes], None]
"""Told of each answer: the stage, the client, what it was sent, and what it answers."""


def run(
    configuration: Configuration,
    clients: Iterable[Client],
    *,
    dropouts: Mapping[State, frozenset[ClientId]] | None = None,
    sent: Observer | None = None,
) -> tuple[Aggregate, Server]:
    """Run one sum; who drops out in a stage is gone for good before answering.

    Raises:
        ThresholdNotMet: too many dropped out; nothing is released.
    """
    server, present = Server(configuration), {client.client: client for client in clients}

    def exchange(messages: Mapping[ClientId, bytes]) -> None:
        for name in (dropouts or {}).get(server.state, frozenset()):
            present.pop(name, None)
        for name, message in messages.items():
            if name in present:
                client = present[name]
                answer = client.advertisement if server.state is State.KEYS else client.receive(message)
                if sent is not None:
                    sent(server.state, name, message, answer)
                server.receive(name, answer)

    # Everybody gets the offer and publishes a key.
    exchange(dict.fromkeys(present, configuration.encode()))
    # Everybody cuts its mask into coded pieces, and seals one to each of the others.
    exchange(server.close_stage())
    # Everybody gets the others' pieces, and uploads its input under its mask.
    exchange(server.close_stage())
    # Everybody who is left adds the pieces of those who uploaded; any U of these sums give the sum of the masks.
    exchange(server.close_stage())
    return server.open(), server
