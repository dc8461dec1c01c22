"""The requests of an enclave's host, and their answers; nothing here knows of sockets.

The host is trusted with nothing. Whatever it sends, it gets the answer that the enclave gives, or a refusal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from secagg.blame import from_server
from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined
from secagg.declared import Message
from secagg.errors import (
    CapacityExceeded,
    InternalError,
    InvalidParameters,
    Misuse,
    Reason,
    SecAggError,
    UnexpectedMessage,
    blaming,
)
from secagg.protocols.enclave.trusted.configuration import MAXIMUM_START_BYTES, EnclaveConfiguration, Start
from secagg.protocols.enclave.trusted.enclave import DEFAULT_MEMORY_BYTES, Enclave
from secagg.protocols.enclave.trusted.messages import (
    AnnounceModel,
    AttestedOffer,
    DestroyEnclave,
    Done,
    GiveUpBuffer,
    OpenBuffer,
    ReleaseBuffer,
    sealed_upload_bytes,
)
from secagg.session.frames import encode_refusal
from secagg.wire import MessageKind, message_kind

# --- Requests ---------------------------------------------------------------------------------------------------------

SIMULATED: Final = "simulated"
"""The format of evidence that no hardware has made."""
_REQUESTS: Final[dict[MessageKind, type[Message]]] = {
    request.kind: request for request in (Start, OpenBuffer, AnnounceModel, ReleaseBuffer, GiveUpBuffer, DestroyEnclave)
}

_UNKNOWN: Final = "a request of no kind"

Quote = Callable[[bytes], tuple[str, bytes]]
"""Makes evidence that holds 64 bytes: the name of its format, as ``EvidenceFormat`` has it, and the document."""
Log = Callable[[str], object]
"""Takes a line for the operator, who is not trusted: it holds nothing that the host is not told too."""


class EnclaveService(Confined):
    """One epoch of an enclave at most, and its answers to requests; it knows nothing of sockets."""

    def __init__(
        self,
        *,
        coins: Coins,
        quote: Quote,
        threads: int = 1,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        log: Log = lambda _: None,
    ) -> None:
        self._coins = coins
        self._log, self._asked = log, _UNKNOWN
        self._quote = quote
        self._threads = threads
        self._memory_bytes = memory_bytes
        self._enclave: Enclave | None = None

    @property
    def maximum_request_bytes(self) -> int:
        return request_limit(None if self._enclave is None else self._enclave.configuration)

    def answer(self, request: bytes) -> bytes:
        """Do what a request asks for, and return the message that answers it; never raise for what a host sent."""
        self._asked = _UNKNOWN
        try:
            try:
                return self._answered(request)
            except SecAggError as error:
                return self.refusal(error)
        except MemoryError:
            self.destroy()
            sentence = "the machine has less memory than the enclave may use, which has ended its epoch; lower --memory"
            return self.refusal(CapacityExceeded(sentence, reason=Reason.CAPACITY_EXCEEDED))
        except Exception as error:  # noqa: BLE001 -- nothing that a host sends ends the process
            # Nobody has thought of this error, so nobody can say that the rest of the epoch is in order.
            self.destroy()
            return self.refusal(InternalError(f"the enclave met a {type(error).__name__} and has ended its epoch"))

    def refusal(self, error: SecAggError, asked: str = "") -> bytes:
        """Return the answer to a request that is refused, and log it; of an upload, the log has only the reason."""
        asked = asked or self._asked
        said = "" if asked == MessageKind.SEALED_UPLOAD.name else f": {error}"
        self._log(f"refused {asked}, {error.reason}{said}")
        return encode_refusal(error)

    def destroy(self) -> None:
        if self._enclave is not None:
            self._enclave.destroy()
        self._enclave = None

    def _answered(self, request: bytes) -> bytes:
        with blaming(*from_server()):
            kind = message_kind(request)
            self._asked = kind.name
            if kind is not MessageKind.SEALED_UPLOAD and kind not in _REQUESTS:
                raise UnexpectedMessage(expected="a request of a host", received=kind.name)
            asked = _REQUESTS[kind].decode(request) if kind in _REQUESTS else None
            if isinstance(asked, Start):
                return self._start(asked.configuration())
        if isinstance(asked, DestroyEnclave):
            self.destroy()
            return Done().encode()
        if self._enclave is None:
            raise Misuse("no epoch runs here; start one with a configuration first")
        match asked:
            case ReleaseBuffer():
                return self._enclave.release()
            case OpenBuffer(model):
                self._enclave.open_buffer(model.version, model.digest)
            case AnnounceModel(model):
                self._enclave.announce_model(model.version, model.digest)
            case GiveUpBuffer():
                self._enclave.give_up_buffer()
            case _:
                self._enclave.receive(request)
        return Done().encode()

    def _start(self, configuration: EnclaveConfiguration) -> bytes:
        self.destroy()
        try:
            enclave = Enclave(
                configuration,
                coins=self._coins,
                quote=self._quote,
                threads=self._threads,
                memory_bytes=self._memory_bytes,
            )
        except OSError as error:
            raise InvalidParameters(f"this machine's hardware gives no evidence: {error}") from None
        name, document = enclave.evidence
        answer = AttestedOffer(enclave.offer, name.encode(), document).encode()
        self._enclave = enclave
        return answer

    def __repr__(self) -> str:
        return f"<EnclaveService {self._enclave!r}>"


def request_limit(configuration: EnclaveConfiguration | None) -> int:
    """Return the longest request while an epoch of this configuration runs, or none."""
    upload = 0 if configuration is None else sealed_upload_bytes(configuration)
    return max(MAXIMUM_START_BYTES, upload)
