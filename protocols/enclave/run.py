"""Executable specification of the whole protocol on one page, without a network.

Read it next to [PGC+22] Algorithm 1. Every message is bytes that a transport could carry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from secagg.errors import PeerError
from secagg.identifiers import ClientId
from secagg.session.roles import Released

from .client import Client
from .server import Server

_LOG = logging.getLogger(__name__)


def run(
    server: Server, clients: Iterable[Client], *, sent: Callable[[ClientId, bytes], None] | None = None
) -> Released:
    """Run one buffer in memory: every client uploads once, and the host obtains one sum.

    Args:
        sent: called with each client's upload.
    """
    for client in clients:
        # Client: verify evidence, policy and binding; then seal the seed and the indices, and mask the ring segments.
        upload = client.answer(server.invitation)
        if sent is not None:
            sent(client.client, upload)
        # Host: pass the sealed part to the enclave, which checks and counts it; sum the masked part outside.
        try:
            server.receive(client.client, upload)
        except PeerError as error:
            _LOG.warning("the upload of %s was refused: %s", client.client, str(error))
    server.close_stage()
    # Release: once, for at least the minimum cohort; the host subtracts the masks, which include the noise, if any.
    return server.release()
