"""Listener of a standing server 1, and server 0's connection to it; over TCP both ends authenticate."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from secagg.crypto.entropy import Coins
from secagg.session.sockets import Ends, Service, SocketAsk, WrongPeer

from .server_keys import OperatorKeys, ServerKeys
from .standing_server import StandingServer

PEER_PATIENCE: Final = 600.0
"""Seconds that server 0 waits for an answer, and server 1 for the answer to be read."""
CONNECT_PATIENCE: Final = 10.0
_RETRY: Final = 0.1


def serve_standing(
    server: StandingServer, address: str | Path, coins: Coins, *, ready: Callable[[], None] = lambda: None
) -> None:
    """Answer server 0 until the process receives a signal; then remove the socket, and end the running round.

    Args:
        ready: called once server 0 can connect.
    """
    service = Service(
        server, limit=lambda: server.request_bytes, patience=PEER_PATIENCE, ends=_ends(*server.operators, coins)
    )
    try:
        service.serve(address, ready=ready)
    finally:
        server.end_round()


def _ends(own: ServerKeys, peer: OperatorKeys, coins: Coins) -> Ends:
    return Ends(own=own.server, key=own.signing_key(), peer=peer.server, peer_key=peer.signing_key, coins=coins)


class PeerLink:
    """Server 0's connection to server 1; connects on demand, and reconnects after a loss."""

    def __init__(  # noqa: PLR0913 -- who is at both ends
        self,
        address: str | Path,
        own: ServerKeys,
        peer: OperatorKeys,
        coins: Coins,
        *,
        answer_bytes: int,
        patience: float = CONNECT_PATIENCE,
    ) -> None:
        """Create a link that is not connected yet.

        Args:
            own: server 0's keys; the caller wipes them.
            answer_bytes: maximum length of an answer; see ``server_messages.exchange_bytes``.
            patience: seconds to keep trying to connect while server 1 restarts.
        """
        self._address, self._ends = address, _ends(own, peer, coins)
        self._answer_bytes, self._patience = answer_bytes, patience
        self._connection: SocketAsk | None = None

    def ask(self, message: bytes) -> bytes:
        """Send a message and return its answer.

        Raises:
            HelperLost: the other server is unreachable, lost or has another key; the request may have been processed.
            SecAggError: the other server's refusal.
        """
        deadline = time.monotonic() + self._patience
        while True:
            if is_new := self._connection is None:
                self._connection = SocketAsk(
                    self._address, limit=self._answer_bytes, timeout=PEER_PATIENCE, ends=self._ends
                )
            try:
                return self._connection(message)
            except OSError as error:
                self.close()
                # A process that is being killed accepts connections and drops them; repeating the step changes nothing.
                if not is_new or isinstance(error.__cause__, WrongPeer) or time.monotonic() >= deadline:
                    raise
                time.sleep(_RETRY)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
