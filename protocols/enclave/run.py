"""The whole protocol on one page: an executable specification, with no network.

Read it top to bottom beside [PGC+22] Algorithm 1. Every message is bytes that a transport could carry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from datetime import datetime

from secagg.contract import Aggregate, Payload
from secagg.errors import PeerError
from secagg.identifiers import ClientId

from .client import Client
from .host import Host
from .trusted.enclave import Enclave
from .trusted.messages import EnclaveOffer, ModelStamp, Receipt
from .verified_enclave import Judge, VerifiedEnclave

_LOG = logging.getLogger(__name__)


def run(  # noqa: PLR0913 -- all but four have defaults
    enclave: Enclave,
    updates: Iterable[tuple[Client, Payload, int]],
    *,
    judge: Judge,
    model: ModelStamp,
    now: datetime,
    sent: Callable[[ClientId, bytes], None] | None = None,
) -> tuple[Aggregate, Receipt]:
    """Run one buffer in memory: every client that comes uploads once, and the host gets one sum.

    Args:
        updates: the clients, each with its encoded update and its weight; one that drops out is not among them.
        sent: told of each client's upload.
    Raises:
        ThresholdNotMet: too few uploads were taken; nothing is released.
    """
    # Boot: the enclave has drawn its keys, and hardware vouches for keys, epoch and configuration.
    offer, evidence = enclave.offer.encode(), enclave.evidence
    host = Host(enclave.configuration, enclave)
    host.open_buffer(model.version, model.digest)
    for client, payload, weight in updates:
        # Client: evidence, policy and binding first; then seal the seed and the indices, and mask the rest.
        verified = VerifiedEnclave(
            EnclaveOffer.decode(offer), evidence, configuration=enclave.configuration, judge=judge, now=now
        )
        upload = client.seal(payload, enclave=verified, model=model, weight=weight, now=now).encode()
        if sent is not None:
            sent(client.client, upload)
        # Host: the sealed part goes into the enclave, which checks and counts it; the masked part is summed outside.
        try:
            host.receive(upload)
        except PeerError as error:
            _LOG.warning("the upload of %s is not taken: %s", client.client, error)
    # Release: once, at or above the minimum cohort; the host subtracts the masks, which hold the noise if there is any.
    aggregate, receipt = host.release()
    verified_again = VerifiedEnclave(
        EnclaveOffer.decode(offer), evidence, configuration=enclave.configuration, judge=judge, now=now
    )
    verified_again.verify_receipt(receipt)
    return aggregate, receipt
