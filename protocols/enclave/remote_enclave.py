"""The host's connection to an enclave in another process; relays requests and never sends one twice.

``SimulatedEnclave`` runs the trusted part in the host's own process, for simulations and tests: it protects nobody from
that host. Production judges refuse its evidence by type; only a client with ``SimulatedJudge`` accepts it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from secagg.blame import from_server
from secagg.crypto.entropy import Coins
from secagg.errors import MalformedMessage, PeerError, Reason, UnexpectedMessage, blaming
from secagg.session.sockets import HelperLost, SocketAsk
from secagg.wire import MessageKind, message_kind

from .attestation import Evidence, EvidenceFormat
from .attestation.claims import refused
from .trusted.configuration import EnclaveConfiguration, Start
from .trusted.enclave import DEFAULT_MEMORY_BYTES, Enclave
from .trusted.messages import (
    AnnounceModel,
    AttestedOffer,
    BufferRelease,
    DestroyEnclave,
    Done,
    EnclaveOffer,
    GiveUpBuffer,
    ModelStamp,
    OpenBuffer,
    ReleaseBuffer,
)
from .trusted.service import SIMULATED, request_limit
from .verified_enclave import Judgement

_SHORT_ANSWER_BYTES: Final = 1 << 21
"""Limit on all answers except a release; the longest is an offer with its evidence."""
_ELEMENT_BYTES: Final = 8
"""Limit on an element of an aggregate."""
Answer = TypeVar("Answer")


class EnclaveLost(ConnectionError):
    """The enclave's process is unreachable, or its answers are invalid.

    It is not a ``SecAggError``, because no party deviated from the protocol. The epoch and its buffer are lost.
    """

    def __init__(self, address: str | Path, cause: str) -> None:
        super().__init__(
            f"the connection to the enclave at {address} is lost ({cause}), and with it the epoch and its buffer; "
            "uploads sealed to it can no longer be opened. Connect again, as its only host, and start another epoch "
            "for newer models"
        )


class RemoteEnclave:
    """Connection to one enclave process, with the methods of an ``EnclaveConnection``.

    No request is sent twice. If an answer is missing or malformed, its effect is unknown, so the connection is closed
    and the process ends the epoch.
    """

    def __init__(self, address: str | Path, *, timeout: float | None = None) -> None:
        """Connect to the address of ``secagg enclave serve``, before any epoch runs.

        Args:
            address: a path, ``unix:PATH`` (also for the host's end of a virtio port) or ``vsock:CONTEXT:PORT``.
            timeout: seconds to wait for the next bytes of an answer, including a release; None to wait forever.
        """
        self._address = address
        self._request_bytes = request_limit(None)
        self._connection = SocketAsk(address, limit=_SHORT_ANSWER_BYTES, timeout=timeout, greets=False)
        self._connection.connect()

    def start(self, configuration: EnclaveConfiguration) -> tuple[EnclaveOffer, Evidence | SimulatedEvidence]:
        """Start an epoch, ending one that runs, and return its offer with the evidence for it.

        Raises:
            EnclaveLost: the process ended or gave an invalid answer; every method here may raise it.
        """

        def read(answer: bytes) -> tuple[EnclaveOffer, Evidence | SimulatedEvidence]:
            offer, evidence = read_attested(answer)
            if offer.context != configuration.context:
                raise MalformedMessage("the offer is for a different configuration", reason=Reason.WRONG_SESSION)
            return offer, evidence

        started = self._ask(Start(configuration.encode(), configuration.tables).encode(), read)
        self._connection.limit = _SHORT_ANSWER_BYTES + _ELEMENT_BYTES * configuration.released_elements
        self._request_bytes = request_limit(configuration)
        return started

    def open_buffer(self, version: int, model_digest: bytes) -> None:
        """Begin to collect updates for a model."""
        self._ask(OpenBuffer(ModelStamp(version=version, digest=model_digest)).encode(), Done.decode)

    def announce_model(self, version: int, model_digest: bytes) -> None:
        """Fix the digest of an older model whose updates count in the open buffer."""
        self._ask(AnnounceModel(ModelStamp(version=version, digest=model_digest)).encode(), Done.decode)

    def receive(self, message: bytes) -> None:
        """Send the sealed part of an upload to the enclave.

        Raises:
            EnclaveLost: the upload is lost, whether or not the enclave took it; do not send it again.
        """
        # A client chose these bytes. They must not pass for a host's request, and an overlong frame must not end the
        # epoch for everybody.
        with blaming(*from_server()):
            if message_kind(message) is not MessageKind.SEALED_UPLOAD:
                raise UnexpectedMessage(expected="a sealed upload", received=message_kind(message).name)
            if len(message) > self._request_bytes:
                raise MalformedMessage(
                    f"the upload has {len(message)} bytes; the limit is {self._request_bytes}",
                    reason=Reason.LENGTH_OVER_LIMIT,
                )
        self._ask(message, Done.decode)

    def release(self) -> bytes:
        """Release the open buffer; a repeated call returns the same release."""

        def read(answer: bytes) -> bytes:
            BufferRelease.decode(answer)
            return answer

        return self._ask(ReleaseBuffer().encode(), read)

    def give_up_buffer(self) -> None:
        """Discard the open buffer."""
        self._ask(GiveUpBuffer().encode(), Done.decode)

    def destroy(self) -> None:
        """End the epoch; another can be started."""
        self._ask(DestroyEnclave().encode(), Done.decode)

    def close(self) -> None:
        """Close the connection; the process then ends the epoch."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RemoteEnclave over {self._connection!r}>"

    def _ask(self, request: bytes, read: Callable[[bytes], Answer]) -> Answer:
        """Send a request and read the answer; raise the enclave's refusal, or ``EnclaveLost``."""
        try:
            answer = self._connection(request)
        except HelperLost as error:
            raise EnclaveLost(self._address, error.cause) from error
        try:
            return read(answer)
        except PeerError as error:
            self.close()
            raise EnclaveLost(self._address, str(error)) from error


def read_attested(message: bytes) -> tuple[EnclaveOffer, Evidence | SimulatedEvidence]:
    """Decode an offer and its evidence; ``VerifiedEnclave`` checks that the evidence vouches for the offer."""
    attested = AttestedOffer.decode(message)
    if attested.form == SIMULATED.encode():
        return attested.offer, SimulatedEvidence(attested.document)
    try:
        return attested.offer, Evidence(EvidenceFormat(attested.form.decode()), attested.document)
    except ValueError:
        raise MalformedMessage("the evidence has an unknown format", reason=Reason.NOT_CANONICAL) from None


# --- An enclave without hardware --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SimulatedEvidence:
    """Evidence of a simulated enclave; nobody vouches for it."""

    binding: bytes


class SimulatedEnclave(Enclave):
    """The trusted part in this process, with evidence that nobody vouches for."""

    def __init__(
        self,
        configuration: EnclaveConfiguration,
        *,
        coins: Coins,
        threads: int = 1,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
    ) -> None:
        super().__init__(
            configuration, coins=coins, quote=SimulatedEvidence, threads=threads, memory_bytes=memory_bytes
        )


class SimulatedJudge:
    """Accepts only simulated evidence with the expected binding; for simulations and tests."""

    def judge(self, evidence: Any, binding: bytes, now: datetime) -> Judgement:  # noqa: ANN401, ARG002 -- the protocol's
        if type(evidence) is not SimulatedEvidence:
            raise refused(f"SimulatedJudge cannot judge {type(evidence).__name__}; use a HardwareJudge")
        if evidence.binding != binding:
            raise refused("the evidence is bound to different keys, or a different epoch or configuration")
        return Judgement("simulated enclave, which protects nobody", datetime.max.replace(tzinfo=UTC))
