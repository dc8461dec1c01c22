"""Server 0 as the one that clients reach: it hands server 1 its halves, and takes every step of the round with it.

It relays what it cannot read: a half of server 1 is sealed to server 1. What it could do, it could do anyway: refuse a
client, or give the round up. Clients hold the configuration, and the offer that server 1 signed for it, to floors of
their own; so a configuration that only one of them was shown gives no round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from secagg.blame import Evidence, culprits
from secagg.crypto.secret import Confined
from secagg.errors import UNDECIDED, PeerError, PeerMisbehaved, Reason, SecAggError
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers.offers import RoundStamp, ServerOffer
from secagg.protocols.two_servers.release import RoundResult
from secagg.protocols.two_servers.server import IndexingServer
from secagg.protocols.two_servers.server_messages import BATCH
from secagg.protocols.two_servers.upload import DIGEST_BYTES
from secagg.wire import MessageKind, Reader

from .relay_messages import BatchRequest, Beginning, decode_halves

_ONE: Final = ServerId(1)


class RelayingServer(Confined):
    """Server 0 in one round with a standing server 1."""

    def __init__(self, zero: IndexingServer, ask: Callable[[bytes], bytes]) -> None:
        """Prepare to begin.

        Args:
            zero: server 0 of this round.
            ask: what takes a message to server 1 and returns its answer, or raises its refusal.
        """
        self._zero = zero
        self._ask = ask
        self._unasked = list[bytes]()
        self._failure: SecAggError | None = None

    def begin(self) -> tuple[bytes, bytes]:
        """Offer server 1 the configuration, and return both servers' offers for clients.

        Raises:
            InvalidParameters, PeerMisbehaved: server 1 does not take part; the message says what to change.
            AuthenticationFailed: what answers is not the server 1 that the configuration names.
        """
        zero = self._zero
        offer = self._tell(Beginning(zero.configuration, zero.round_number).encode())
        stamp = RoundStamp(context=zero.configuration.context, round_number=zero.round_number, server=_ONE)
        ServerOffer.decode(offer, zero.configuration, stamp)
        return zero.offer, offer

    def receive(self, message: bytes, sender: ClientId | None = None) -> None:
        """Take both halves of an upload: this server's own, and the one that it hands on.

        Args:
            sender: who the transport says has sent them; None to take the client's signed word for it.
        Raises:
            PeerError: one of the servers does not take its half; nobody counts the upload.
        """
        first, second = decode_halves(message)
        upload_id = self._zero.receive(first, sender)
        try:
            if _read_done(self._tell(second)) != upload_id:
                raise PeerMisbehaved(
                    "the two halves are of two uploads, or server 1 says so",
                    reason=Reason.WRONG_SESSION,
                    round_name="upload",
                    culprits=UNDECIDED,
                )
        except PeerError as error:
            # Server 0 cannot open that half: the client made it so, somebody altered it, or server 1 lies.
            error.culprits = culprits(Evidence.REFUSED_HALF, sender=self._zero.client_of(upload_id))
            raise
        self._unasked.append(upload_id)
        if len(self._unasked) >= BATCH and self._failure is None:
            try:
                self._check()
            except SecAggError as error:
                # It is not the fault of whoever uploaded last; the round ends with it.
                self._failure = error

    def settle(self) -> None:
        """Decide with server 1 about what was received since the last batch.

        Raises:
            PeerError, Misuse: the round failed.
        """
        if self._failure is not None:
            raise self._failure
        self._check()

    def finish(self) -> RoundResult:
        """Decide about all uploads, and release the sum with server 1.

        Raises:
            ThresholdNotMet: too few uploads were taken; nothing is released.
            PeerError, Misuse: the round failed; nothing is released by this server.
        """
        self.settle()
        zero = self._zero
        commitment = zero.agree(self._tell(zero.close()))
        share = zero.open(self._tell(commitment))
        return zero.combine(self._tell(share))

    def _tell(self, message: bytes) -> bytes:
        """Return server 1's answer; if the connection is lost on the way, ask once more, on another one.

        Server 1 says the same again, or that no round runs there any more.
        """
        try:
            return self._ask(message)
        except ConnectionError:
            return self._ask(message)

    def _check(self) -> None:
        while batch := self._unasked[:BATCH]:
            proposal = self._tell(BatchRequest(tuple(batch)).encode())
            self._zero.settle(self._tell(self._zero.answer(proposal)))
            del self._unasked[: len(batch)]

    def __repr__(self) -> str:
        return f"<RelayingServer {self._zero!r}>"


def _read_done(answer: bytes) -> bytes:
    reader = Reader(answer, MessageKind.INDEXING_DONE)
    upload_id = reader.fixed(DIGEST_BYTES)
    reader.finish()
    return upload_id
