"""Answers the requests of an enclave's host; transport is in ``hosts``.

The host is not trusted. Whatever it sends, it receives the enclave's answer or a refusal.
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
"""The format of evidence without hardware."""
_REQUESTS: Final[dict[MessageKind, type[Message]]] = {
    request.kind: request for request in (Start, OpenBuffer, AnnounceModel, ReleaseBuffer, GiveUpBuffer, DestroyEnclave)
}

_UNKNOWN: Final = "a request of no kind"

Quote = Callable[[bytes], tuple[str, bytes]]
"""Produces evidence for 64 bytes: the value of its ``EvidenceFormat``, and the document."""
Log = Callable[[str], object]
"""Writes a line for the operator, who is not trusted: it contains nothing that the host does not receive too."""


class EnclaveService(Confined):
    """Runs at most one epoch of an enclave at a time and answers requests."""

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
        """Carry out a request and return the answer; never raises, whatever the host sent."""
        self._asked = _UNKNOWN
        try:
            try:
                return self._answered(request)
            except SecAggError as error:
                return self.refusal(error)
        except MemoryError:
            self.destroy()
            sentence = "the machine ran out of memory below the enclave's limit, which ended the epoch; lower --memory"
            return self.refusal(CapacityExceeded(sentence, reason=Reason.CAPACITY_EXCEEDED))
        except Exception as error:  # noqa: BLE001 -- no request may end the process
            # After an unexpected error the epoch's state is unknown, so it must end.
            self.destroy()
            return self.refusal(InternalError(f"an internal {type(error).__name__} has ended the enclave's epoch"))

    def refusal(self, error: SecAggError, asked: str = "") -> bytes:
        """Log a refusal and return the answer for it; for an upload, the log has only the reason."""
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
                raise UnexpectedMessage(expected="a host's request", received=kind.name)
            asked = _REQUESTS[kind].decode(request) if kind in _REQUESTS else None
            if isinstance(asked, Start):
                return self._start(asked.configuration())
        if isinstance(asked, DestroyEnclave):
            self.destroy()
            return Done().encode()
        if self._enclave is None:
            raise Misuse("no epoch is running; start one with a configuration first")
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
            raise InvalidParameters(f"this machine's hardware produced no evidence: {error}") from None
        name, document = enclave.evidence
        answer = AttestedOffer(enclave.offer, name.encode(), document).encode()
        self._enclave = enclave
        return answer

    def __repr__(self) -> str:
        return f"<EnclaveService {self._enclave!r}>"


def request_limit(configuration: EnclaveConfiguration | None) -> int:
    """Return the maximum length of a request while an epoch of this configuration, or none, is running."""
    upload = 0 if configuration is None else sealed_upload_bytes(configuration)
    return max(MAXIMUM_START_BYTES, upload)
