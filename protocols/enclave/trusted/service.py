"""The requests of an enclave's host, and their answers; nothing here knows of sockets.

The host is trusted with nothing. Whatever it sends, it gets the answer that the enclave gives, or a refusal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from secagg.blame import from_server
from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined
from secagg.errors import (
    CapacityExceeded,
    InternalError,
    Misuse,
    Reason,
    SecAggError,
    UnexpectedMessage,
    blaming,
)
from secagg.protocols.enclave.trusted.configuration import MAXIMUM_START_BYTES, EnclaveConfiguration, decode_start
from secagg.protocols.enclave.trusted.enclave import DEFAULT_MEMORY_BYTES, Enclave
from secagg.protocols.enclave.trusted.messages import (
    DIGEST_BYTES,
    EnclaveOffer,
    ModelStamp,
    sealed_upload_bytes,
)
from secagg.session.frames import encode_refusal
from secagg.wire import MessageKind, Reader, Writer, message_kind

# --- Requests ---------------------------------------------------------------------------------------------------------

MAXIMUM_OFFER_BYTES: Final = 1 << 14
MAXIMUM_WORD_BYTES: Final = 1 << 6
MAXIMUM_DOCUMENT_BYTES: Final = 1 << 20
VERSION_BYTES: Final = 8
SIMULATED: Final = "simulated"
"""The format of evidence that no hardware has made."""
_BARE_REQUESTS: Final = (
    MessageKind.OPEN_BUFFER,
    MessageKind.ANNOUNCE_MODEL,
    MessageKind.RELEASE_BUFFER,
    MessageKind.GIVE_UP_BUFFER,
    MessageKind.DESTROY_ENCLAVE,
)

Quote = Callable[[bytes], tuple[str, bytes]]
"""Makes evidence that holds 64 bytes: the name of its format, as ``EvidenceFormat`` has it, and the document."""


class EnclaveService(Confined):
    """One epoch of an enclave at most, and its answers to requests; it knows nothing of sockets."""

    def __init__(
        self, *, coins: Coins, quote: Quote, threads: int = 1, memory_bytes: int = DEFAULT_MEMORY_BYTES
    ) -> None:
        self._coins = coins
        self._quote = quote
        self._threads = threads
        self._memory_bytes = memory_bytes
        self._enclave: Enclave | None = None

    @property
    def maximum_request_bytes(self) -> int:
        return request_limit(None if self._enclave is None else self._enclave.configuration)

    def answer(self, request: bytes) -> bytes:
        """Do what a request asks for, and return the message that answers it; never raise for what a host sent."""
        try:
            try:
                return self._answered(request)
            except SecAggError as error:
                return encode_refusal(error)
        except MemoryError:
            self.destroy()
            sentence = "the machine has less memory than the enclave may use, which has ended its epoch; lower --memory"
            return encode_refusal(CapacityExceeded(sentence, reason=Reason.CAPACITY_EXCEEDED))
        except Exception as error:  # noqa: BLE001 -- nothing that a host sends ends the process
            # Nobody has thought of this error, so nobody can say that the rest of the epoch is in order.
            self.destroy()
            return encode_refusal(InternalError(f"the enclave met a {type(error).__name__} and has ended its epoch"))

    def destroy(self) -> None:
        if self._enclave is not None:
            self._enclave.destroy()
        self._enclave = None

    def _answered(self, request: bytes) -> bytes:
        with blaming(*from_server()):
            kind = message_kind(request)
            if kind is MessageKind.START_ENCLAVE:
                return self._start(decode_start(request))
            read = None if kind is MessageKind.SEALED_UPLOAD else _read_bare(request, kind)
        if kind is MessageKind.DESTROY_ENCLAVE:
            self.destroy()
            return Writer(MessageKind.ENCLAVE_DONE).finish()
        if self._enclave is None:
            raise Misuse("no epoch runs here; start one with a configuration first")
        match kind, read:
            case MessageKind.SEALED_UPLOAD, _:
                self._enclave.receive(request)
            case MessageKind.RELEASE_BUFFER, _:
                return self._enclave.release()
            case MessageKind.OPEN_BUFFER, ModelStamp() as model:
                self._enclave.open_buffer(model.version, model.digest)
            case MessageKind.ANNOUNCE_MODEL, ModelStamp() as model:
                self._enclave.announce_model(model.version, model.digest)
            case _:
                self._enclave.give_up_buffer()
        return Writer(MessageKind.ENCLAVE_DONE).finish()

    def _start(self, configuration: EnclaveConfiguration) -> bytes:
        self.destroy()
        enclave = Enclave(
            configuration,
            coins=self._coins,
            quote=self._quote,
            threads=self._threads,
            memory_bytes=self._memory_bytes,
        )
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


def request_limit(configuration: EnclaveConfiguration | None) -> int:
    """Return the longest request while an epoch of this configuration runs, or none."""
    upload = 0 if configuration is None else sealed_upload_bytes(configuration)
    return max(MAXIMUM_START_BYTES, upload)


def _read_bare(request: bytes, kind: MessageKind) -> ModelStamp | None:
    if kind not in _BARE_REQUESTS:
        raise UnexpectedMessage(expected="a request of a host", received=kind.name)
    reader = Reader(request, kind)
    read: ModelStamp | None = None
    if kind in (MessageKind.OPEN_BUFFER, MessageKind.ANNOUNCE_MODEL):
        read = ModelStamp(version=reader.integer(VERSION_BYTES), digest=reader.fixed(DIGEST_BYTES))
    reader.finish()
    return read
