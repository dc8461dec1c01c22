"""The whole protocol on one page: an executable specification without a network.

Read it top to bottom next to the README. Every message is bytes, as a transport would carry it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from secagg.errors import PeerError
from secagg.identifiers import ClientId, ServerId

from .client import Client
from .offers import Invitation, RoundOffers, UploadHalves
from .release import RoundResult
from .server import IndexingServer
from .server_messages import BATCH

_LOG = logging.getLogger(__name__)


def run(
    zero: IndexingServer,
    one: IndexingServer,
    clients: Iterable[Client],
    *,
    sent: Callable[[ClientId, ServerId, bytes], None] | None = None,
) -> tuple[RoundResult, RoundResult]:
    """Run one round in memory: each client uploads once, and both servers get one sum.

    Args:
        sent: called with each half that a client uploads.
    Raises:
        ThresholdNotMet: too few uploads were accepted; nothing is released.
    """
    # Start of the round: each server has drawn a key for this round, and signs it.
    offers = RoundOffers(is_simulated=False, offers=(zero.offer, one.offer))
    invitation = Invitation(zero.round_number, zero.configuration, offers).encode()
    for held, client in enumerate(clients, start=1):
        # Client: policy and offers first; then point functions, a proof, and one sealed half for each server.
        halves = UploadHalves.decode(client.answer(invitation))
        for server, message in zip((zero, one), halves.both, strict=True):
            if sent is not None:
                sent(client.client, server.server, message)
            try:
                server.receive(message, client.client)
            except PeerError as error:
                _LOG.warning("%s rejects the upload of %s: %s", server.server, client.client, str(error))
        if held % BATCH == 0:
            check(zero, one, one.waiting()[-BATCH:])
    # One server may by now have received a half that it lacked before.
    check(zero, one, one.waiting())
    # Close: each server signs its list of accepted clients, and continues only if the other signed the same list.
    lists = zero.close(), one.close()
    commitments = zero.agree(lists[1]), one.agree(lists[0])
    # Release: both commit to their shares before either releases its share.
    shares = zero.open(commitments[1]), one.open(commitments[0])
    return zero.combine(shares[1]), one.combine(shares[0])


def check(zero: IndexingServer, one: IndexingServer, uploads: Sequence[bytes]) -> None:
    """Check uploads that wait at server 1: both servers accept an upload, or neither does."""
    for start in range(0, len(uploads), BATCH):
        # Server 1 relays correction words and commits; server 0 opens; server 1 decides and opens; server 0 decides.
        proposal = one.propose(uploads[start : start + BATCH])
        zero.settle(one.conclude(zero.answer(proposal)))
