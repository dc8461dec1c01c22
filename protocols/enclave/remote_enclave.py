"""An enclave in another process, as its host reaches it: a thin relay that adds nothing and repeats nothing.

``SimulatedEnclave`` is the trusted part in the process of its host, for simulations and tests: it protects nobody from
that host. No production policy judges the type of its evidence; a client accepts it only by choosing
``SimulatedJudge``.
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
"""No answer but a release is longer: a refusal, or an offer with its evidence."""
_ELEMENT_BYTES: Final = 8
"""No element of an aggregate has more."""
Answer = TypeVar("Answer")


class EnclaveLost(ConnectionError):
    """The process of an enclave cannot be reached any more, or does not answer as an enclave does.

    It is no ``SecAggError``: no party has sent anything wrong. The epoch is gone, and its buffer with it.
    """

    def __init__(self, address: str | Path, cause: str) -> None:
        super().__init__(
            f"the enclave at {address} is lost ({cause}), and its epoch and buffer with it: nobody opens what was "
            "sealed to it. Connect again, as the only host, and start another epoch; clients verify that one, and seal "
            "to it updates of newer models only"
        )


class RemoteEnclave:
    """A connection to one trusted process, with the methods that a ``Host`` calls.

    Nothing is sent twice. Once an answer is missing or makes no sense, nobody knows its effect, so the connection is
    closed, by which the process ends the epoch.
    """

    def __init__(self, address: str | Path, *, timeout: float | None = None) -> None:
        """Connect to where ``secagg enclave serve`` listens; no epoch runs yet.

        Args:
            address: a path, ``unix:PATH`` (a virtio port's end on this machine is one) or ``vsock:CONTEXT:PORT``.
            timeout: seconds that the process may take to continue an answer, a release included; None for any.
        """
        self._address = address
        self._request_bytes = request_limit(None)
        self._connection = SocketAsk(address, limit=_SHORT_ANSWER_BYTES, timeout=timeout)
        self._connection.connect()

    def start(self, configuration: EnclaveConfiguration) -> tuple[EnclaveOffer, Evidence | SimulatedEvidence]:
        """Start an epoch, in place of one that runs, and return its offer with the evidence that vouches for it.

        Raises:
            EnclaveLost: the process ended, or answered what it should not; from any method here.
        """

        def read(answer: bytes) -> tuple[EnclaveOffer, Evidence | SimulatedEvidence]:
            offer, evidence = read_attested(answer)
            if offer.context != configuration.context:
                raise MalformedMessage("the offer is for another configuration", reason=Reason.WRONG_SESSION)
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
        """Take the sealed part of an upload.

        Raises:
            EnclaveLost: the upload was taken or not, and is lost in both cases; do not send it again.
        """
        # The bytes are a client's. As another request they would do what only the host may ask for, and as a frame that
        # is too long they would end the epoch for everybody.
        with blaming(*from_server()):
            if message_kind(message) is not MessageKind.SEALED_UPLOAD:
                raise UnexpectedMessage(expected="a sealed upload", received=message_kind(message).name)
            if len(message) > self._request_bytes:
                raise MalformedMessage(
                    f"an upload of {len(message)} bytes is over the limit of {self._request_bytes}",
                    reason=Reason.LENGTH_OVER_LIMIT,
                )
        self._ask(message, Done.decode)

    def release(self) -> bytes:
        """Release the open buffer, or return the release again."""

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
        """Close the connection, by which the process ends the epoch."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RemoteEnclave over {self._connection!r}>"

    def _ask(self, request: bytes, read: Callable[[bytes], Answer]) -> Answer:
        """Send a request and read its answer; raise what the enclave refused with, or that it is lost."""
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
    """Read an offer and its evidence; ``VerifiedEnclave`` says whether the one vouches for the other."""
    attested = AttestedOffer.decode(message)
    if attested.form == SIMULATED.encode():
        return attested.offer, SimulatedEvidence(attested.document)
    try:
        return attested.offer, Evidence(EvidenceFormat(attested.form.decode()), attested.document)
    except ValueError:
        raise MalformedMessage("the evidence is of no known format", reason=Reason.NOT_CANONICAL) from None


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
    """Accepts simulated evidence for the binding that it holds, and nothing else; for simulations and tests."""

    def judge(self, evidence: Any, binding: bytes, now: datetime) -> Judgement:  # noqa: ANN401, ARG002 -- the protocol's
        if type(evidence) is not SimulatedEvidence:
            raise refused(f"{type(evidence).__name__} is judged by a HardwareJudge, not by a simulation's")
        if evidence.binding != binding:
            raise refused("it is bound to other keys, another epoch or another configuration")
        return Judgement("simulated enclave, which protects nobody", datetime.max.replace(tzinfo=UTC))
