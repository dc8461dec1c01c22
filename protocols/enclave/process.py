"""The trusted part in a process of its own: strict messages in over a Unix socket, one answer out for each.

The host at the other end is trusted with nothing. Whatever it sends, it gets an answer that the enclave gives, a
refusal, or the end of the connection; and an epoch lives no longer than the connection that started it.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined
from secagg.errors import InternalError, MalformedMessage, Misuse, SecAggError, UnexpectedMessage, blaming
from secagg.identifiers import ServerId
from secagg.session.frames import encode_refusal, listening, receive_frame, send_frame
from secagg.wire import MessageKind, Reader, Writer, message_kind

from .trusted.configuration import EnclaveConfiguration
from .trusted.enclave import Enclave
from .trusted.messages import DIGEST_BYTES, EnclaveOffer, ModelStamp

MAXIMUM_REQUEST_BYTES: Final = 1 << 30
MAXIMUM_OFFER_BYTES: Final = 1 << 14
MAXIMUM_WORD_BYTES: Final = 1 << 6
MAXIMUM_DOCUMENT_BYTES: Final = 1 << 20
WEIGHT_BYTES: Final = 2
VERSION_BYTES: Final = 8
SIMULATED: Final = "simulated"
"""The format of evidence that no hardware has made."""
_BARE_REQUESTS: Final = (
    MessageKind.OPEN_BUFFER,
    MessageKind.RELEASE_BUFFER,
    MessageKind.GIVE_UP_BUFFER,
    MessageKind.DESTROY_ENCLAVE,
)

Quote = Callable[[bytes], tuple[str, bytes]]
"""Makes evidence that holds 64 bytes: the name of its format, as ``EvidenceFormat`` has it, and the document."""


def serve(
    socket_path: Path, *, coins: Coins, quote: Quote, threads: int = 1, ready: Callable[[], None] = lambda: None
) -> None:
    """Answer one host after the other, until the process is told to end; then remove the socket.

    Args:
        coins: ``SystemCoins()`` in production.
        quote: the hardware's driver, or a simulation's.
        threads: how many threads expand masks.
        ready: called once, when a host can connect.
    Raises:
        InvalidParameters: no socket can be made at the path.
    """
    with listening(socket_path) as listener:
        ready()
        while True:
            # A host that goes away, or that announces a frame that is too long, has ended its epoch and nothing else.
            with listener.accept()[0] as connection, suppress(OSError, MemoryError, MalformedMessage):
                _serve_host(connection, listener, EnclaveService(coins=coins, quote=quote, threads=threads))


class EnclaveService(Confined):
    """At most one epoch of an enclave, and what it answers to each request; it knows nothing of sockets."""

    def __init__(self, *, coins: Coins, quote: Quote, threads: int = 1) -> None:
        """Prepare to start epochs; none runs yet."""
        self._coins = coins
        self._quote = quote
        self._threads = threads
        self._enclave: Enclave | None = None

    def answer(self, request: bytes) -> bytes:
        """Do what a request asks for, and return the message that answers it; never raise for what a host sent."""
        try:
            try:
                return self._answered(request)
            except SecAggError as error:
                return encode_refusal(error)
        except Exception as error:  # noqa: BLE001 -- nothing that a host sends ends the process
            # Nobody has thought of this error, so nobody can say that what is left of the epoch is in order.
            self.destroy()
            sentence = f"the enclave met a {type(error).__name__} and has ended its epoch; please report it"
            return encode_refusal(InternalError(sentence))

    def destroy(self) -> None:
        """End the epoch, if one runs."""
        if self._enclave is not None:
            self._enclave.destroy()
        self._enclave = None

    def _answered(self, request: bytes) -> bytes:
        with blaming(ServerId()):
            kind = message_kind(request)
            if kind is MessageKind.START_ENCLAVE:
                return self._start(EnclaveConfiguration.decode(bytes(Reader(request, kind).rest())))
            model = None if kind is MessageKind.SEALED_UPLOAD else _read_bare(request, kind)
        if kind is MessageKind.DESTROY_ENCLAVE:
            self.destroy()
            return _done()
        if self._enclave is None:
            raise Misuse("no epoch runs here; start one with a configuration first")
        match kind, model:
            case MessageKind.SEALED_UPLOAD, _:
                return _done(self._enclave.receive(request))
            case MessageKind.RELEASE_BUFFER, _:
                return self._enclave.release()
            case MessageKind.OPEN_BUFFER, ModelStamp():
                self._enclave.open_buffer(model.version, model.digest)
            case _:
                self._enclave.give_up_buffer()
        return _done()

    def _start(self, configuration: EnclaveConfiguration) -> bytes:
        """End the epoch that runs, if one does, and begin another."""
        self.destroy()
        enclave = Enclave(configuration, coins=self._coins, quote=self._quote, threads=self._threads)
        answer = encode_attested_offer(enclave.offer, *enclave.evidence)
        self._enclave = enclave
        return answer

    def __repr__(self) -> str:
        return f"<EnclaveService {self._enclave!r}>"


# --- Messages ---------------------------------------------------------------------------------------------------------


def encode_attested_offer(offer: EnclaveOffer, evidence_format: str, document: bytes) -> bytes:
    """Return an offer with the evidence that vouches for it, as one message that a host relays to clients."""
    writer = Writer(MessageKind.ATTESTED_OFFER).variable(offer.encode(), MAXIMUM_OFFER_BYTES)
    writer.variable(evidence_format.encode(), MAXIMUM_WORD_BYTES)
    return writer.variable(document, MAXIMUM_DOCUMENT_BYTES).finish()


def _done(weight: int = 0) -> bytes:
    """Return the answer to what was done; only an upload that was taken has a weight."""
    return Writer(MessageKind.ENCLAVE_DONE).integer(weight, WEIGHT_BYTES).finish()


def _read_bare(request: bytes, kind: MessageKind) -> ModelStamp | None:
    """Read a request that holds no more than a model's stamp, and none of them but one holds that."""
    if kind not in _BARE_REQUESTS:
        raise UnexpectedMessage(expected="a request of a host", received=kind.name)
    reader = Reader(request, kind)
    model = None
    if kind is MessageKind.OPEN_BUFFER:
        model = ModelStamp(version=reader.integer(VERSION_BYTES), digest=reader.fixed(DIGEST_BYTES))
    reader.finish()
    return model


# --- The socket -------------------------------------------------------------------------------------------------------


def _serve_host(connection: socket.socket, listener: socket.socket, service: EnclaveService) -> None:
    """Answer one host until it goes away or announces a frame that is too long; then its epoch ends."""
    try:
        while True:
            select.select([connection, listener], [], [])
            # Looked at again, later than the listener: a host that went away before it came back is not beside itself.
            if not select.select([connection], [], [], 0)[0]:
                # There is one host. Whoever comes beside it is let go, with nothing said or changed.
                listener.accept()[0].close()
                continue
            send_frame(connection, service.answer(receive_frame(connection, MAXIMUM_REQUEST_BYTES)))
    finally:
        service.destroy()
