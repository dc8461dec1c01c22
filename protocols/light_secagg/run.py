"""The whole protocol on one page, in memory, with dropouts at any point; read it next to [SHY+22] Algorithm 1."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from secagg.identifiers import ClientId
from secagg.session.roles import Released

from .client import Client
from .server import Server, State

Observer = Callable[[State, ClientId, bytes, bytes], None]
"""Told of each answer: the stage, the client, what it was sent, and what it answers."""


def run(
    server: Server,
    clients: Iterable[Client],
    *,
    dropouts: Mapping[State, frozenset[ClientId]] | None = None,
    sent: Observer | None = None,
) -> Released:
    """Run one sum; who drops out in a stage is gone for good before answering.

    Raises:
        ThresholdNotMet: too many dropped out; nothing is released.
    """
    present = {client.client: client for client in clients}

    def exchange() -> None:
        for name in (dropouts or {}).get(server.state, frozenset()):
            present.pop(name, None)
        for name, client in present.items():
            if (message := server.message_to(name)) is not None:
                answer = client.answer(message)
                if sent is not None:
                    sent(server.state, name, message, answer)
                server.receive(name, answer)
        server.close_stage()

    # Everybody gets the offer and publishes a key.
    exchange()
    # Everybody cuts its mask into coded pieces, and seals one to each of the others.
    exchange()
    # Everybody gets the others' pieces, and uploads its input under its mask.
    exchange()
    # Everybody who is left adds the pieces of those who uploaded; any U of these sums give the sum of the masks.
    exchange()
    return server.release()
