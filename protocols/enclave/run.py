"""The whole protocol on one page: an executable specification, with no network.

Read it top to bottom next to [PGC+22] Algorithm 1. Every message is bytes that a transport could carry.
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
    """Run one buffer in memory: every client that comes uploads once, and the host gets one sum.

    Args:
        sent: told of each client's upload.
    """
    for client in clients:
        # Client: evidence, policy and binding first; then seal the seed and the indices, and mask the rest.
        upload = client.answer(server.invitation)
        if sent is not None:
            sent(client.client, upload)
        # Host: the sealed part goes into the enclave, which checks and counts it; the masked part is summed outside.
        try:
            server.receive(client.client, upload)
        except PeerError as error:
            _LOG.warning("the upload of %s is not taken: %s", client.client, str(error))
    server.close_stage()
    # Release: once, at or above the minimum cohort; the host subtracts the masks, which hold the noise if there is any.
    return server.release()
