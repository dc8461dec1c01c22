"""The whole protocol on one page: an executable specification without a network, with simulated absences.

Every message is bytes that a transport could carry; ``sent`` is called with each, so that a caller can count or record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from secagg.crypto.entropy import Coins
from secagg.errors import PeerError, SecAggError
from secagg.identifiers import HolderId, Party

from .client import Client
from .configuration import Offer
from .holder import Holder
from .tally import Opened, Tally

_LOG = logging.getLogger(__name__)
Observer = Callable[[Party, bytes, bytes], None]
"""Called for each exchange with the party, the request and the answer."""


def run(
    offer: Offer,
    coins: Coins,
    clients: Iterable[Client],
    holders: Mapping[int, Holder],
    *,
    sent: Observer | None = None,
) -> tuple[Opened, Tally]:
    """Run one sum in memory; holders that are not in ``holders`` are absent.

    Returns:
        The sum, and the server, which recorded the failures.
    Raises:
        ThresholdNotMet: too few clients or holders; nothing is released.
    """
    server = Tally(offer, coins)

    def ask(requests: Mapping[int, bytes]) -> None:
        for position, request in requests.items():
            try:
                answer = holders[position].respond(request)
                if sent is not None:
                    sent(HolderId(position), request, answer)
                server.receive(position, answer)
            except (KeyError, SecAggError) as error:
                _LOG.warning("%s did not answer: %s", HolderId(position), str(error))
                server.lose(position)

    # Each client receives the offer, uploads once at any time, and may leave.
    ask(server.introduce())
    for client in clients:
        try:
            upload = client.answer(server.offer)
            if sent is not None:
                sent(client.client, server.offer, upload)
            server.receive_upload(client.client, upload)
        except PeerError as error:
            _LOG.warning("%s is excluded: %s", client.client, str(error))
        # Holders check its shares, in batches of any size; bad dealers are named before the list is fixed.
        ask(server.deliver())
        server.settle()
    server.fix_list()
    # The holders sign the list; no holder signs two lists with the same upload.
    ask(server.requests())
    server.certify()
    # Every holder answers the certified list, with the sum of its shares over the list; any T answers remove the masks.
    ask(server.requests())
    return server.open(), server
