"""The whole protocol on one page: an executable specification without a network, with dropouts at any point.

Read it top to bottom next to [BIK+17] Fig. 4. Every message is bytes, as a transport would carry it. ``sent`` is called
for each answer, so a caller can count or record them.
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
"""Clients that drop out before they send the message of a state."""
Observer = Callable[[ServerState, ClientId, bytes, bytes], None]
"""Called for each answer with the round, the client, the message that it received, and its answer."""


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
        The sum, and the server, which records the faults and the sets whose sums were revealed.
    Raises:
        ThresholdNotMet: too many clients dropped out; nothing is released.
    """
    server = Server(plan, threads=threads)
    present = {client.client: client for client in clients}

    def exchange() -> None:
        """Deliver each client's message of the open round, pass its answer to the server, and close the round."""
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
                # The client has wiped its secrets and left; to the server it has dropped out.
                _LOG.warning("%s leaves the session: %s", name, str(error))
                del present[name]
                continue
            if sent is not None:
                sent(server.state, name, message, answer)
            server.receive(name, answer)
        server.close_stage()

    # Round 0, advertise keys: each client receives the offer and publishes two public keys.
    exchange()
    # Round 1, share keys: each client learns its neighbours and shares its two secrets among them.
    exchange()
    # Round 2, masked input: each client receives its neighbours' shares and uploads its masked input.
    exchange()
    # Round 3, consistency check (active mode): a committee signs the list of survivors.
    if server.configuration.quorum:
        exchange()
    # Round 4, unmasking: each survivor reveals one share of each neighbour, and the server removes the masks.
    exchange()
    return server.release(progress).aggregate, server
