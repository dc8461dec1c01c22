"""The whole protocol on one page, in memory, with dropouts at any point; read it next to [SHY+22] Algorithm 1."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from secagg.identifiers import ClientId
from secagg.session.roles import Released

from .client import Client
from .server import Server, State

Observer = Callable[[State, ClientId, bytes, bytes], None]
"""Called for each exchange with the stage, the client, the request and the answer."""


def run(
    server: Server,
    clients: Iterable[Client],
    *,
    dropouts: Mapping[State, frozenset[ClientId]] | None = None,
    sent: Observer | None = None,
) -> Released:
    """Run one sum; a client that drops out in a stage sends no answer to it or to later stages.

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

    # Every client gets the offer and publishes a key.
    exchange()
    # Every client splits its mask into coded pieces, and seals one to each other client.
    exchange()
    # Every client gets the others' pieces, and uploads its masked input.
    exchange()
    # Every remaining client adds the pieces of the uploaders; any U of these sums give the sum of the masks.
    exchange()
    return server.release()
