"""The whole protocol on one page: an executable specification, with no network, and dropouts at any point.

Read it top to bottom next to [BIK+17] Fig. 4. Every message is bytes that a transport could carry; ``sent`` is told of
each, so that a caller can count, record or drop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from secagg.contract import Aggregate
from secagg.errors import PeerError, ThresholdNotMet
from secagg.identifiers import ClientId

from .client import Client
from .plan import SessionPlan
from .session import Server, ServerState

_LOG = logging.getLogger(__name__)
Dropouts = Mapping[ServerState, frozenset[ClientId]]
"""Clients that are gone for good before they send the message of a state."""
Observer = Callable[[ServerState, ClientId, bytes, bytes], None]
"""Told of each answer: the round, the client, what it was sent, and what it answers."""


def run(  # noqa: PLR0913 -- all but two have defaults
    plan: SessionPlan,
    clients: Iterable[Client],
    *,
    dropouts: Dropouts | None = None,
    sent: Observer | None = None,
    progress: Callable[[int, int], None] | None = None,
    threads: int = 1,
) -> tuple[Aggregate, Server]:
    """Run one session in memory.

    Returns:
        The sum, and the server, which knows what went wrong on the way and which sums were revealed.
    Raises:
        ThresholdNotMet: too many dropped out; nothing is released.
    """
    server = Server(plan, threads=threads)
    present = {client.client: client for client in clients}

    def exchange() -> None:
        """Hand each client its message of the open round, and its answer back to the server; then close the round."""
        for name, client in list(present.items()):
            message = server.message_to(name)
            if message is None:
                continue
            if name in (dropouts or {}).get(server.state, frozenset()):
                del present[name]
                continue
            try:
                answer = client.answer(message)
            except (PeerError, ThresholdNotMet) as error:
                # It has overwritten its secrets and left; to the server it has dropped out.
                _LOG.warning("%s leaves the session: %s", name, str(error))
                del present[name]
                continue
            if sent is not None:
                sent(server.state, name, message, answer)
            server.receive(name, answer)
        server.close_stage()

    # Round 0, advertise keys: everybody gets the offer and publishes two public keys.
    exchange()
    # Round 1, share keys: everybody learns its neighbours and shares its two secrets among them.
    exchange()
    # Round 2, masked input: everybody gets its neighbours' shares and uploads its input under all masks.
    exchange()
    # Round 3, consistency check (active mode): a committee signs who is left.
    if server.configuration.quorum:
        exchange()
    # Round 4, unmasking: everybody who is left shows one share of each neighbour, and the server removes the masks.
    exchange()
    return server.release(progress).aggregate, server
