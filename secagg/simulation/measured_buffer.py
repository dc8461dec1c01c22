"""One buffer of an enclave in memory with a stopwatch: what was sent, how long it took, and who was gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from time import perf_counter

from secagg.contract import Aggregate, Payload
from secagg.errors import PeerError
from secagg.identifiers import ClientId
from secagg.protocols.enclave.client import Client
from secagg.protocols.enclave.host import Host
from secagg.protocols.enclave.simulated_enclave import SimulatedEnclave, SimulatedJudge
from secagg.protocols.enclave.trusted.messages import EnclaveOffer, ModelStamp, Receipt
from secagg.protocols.enclave.verified_enclave import VerifiedEnclave

Progress = Callable[[int, int], None]
"""Told how many clients have uploaded, and how many may."""


@dataclass(slots=True)
class BufferFigures:
    """What one buffer took, apart from encoding the updates."""

    bytes_down: int = 0
    """Offers; the evidence of hardware comes on top, a few kilobytes for each client."""
    bytes_up: int = 0
    bytes_into_enclave: int = 0
    bytes_out_of_enclave: int = 0
    client_seconds: float = 0.0
    """Of all clients together, one after another: verifying the enclave, sealing and masking."""
    slowest_client_seconds: float = 0.0
    host_seconds: float = 0.0
    enclave_seconds: float = 0.0
    release_seconds: float = 0.0
    answered: set[ClientId] = field(default_factory=set[ClientId], repr=False)
    failed: dict[ClientId, str] = field(default_factory=dict[ClientId, str])


@dataclass(frozen=True, slots=True)
class MeasuredBuffer:
    """A released buffer, and what it took."""

    aggregate: Aggregate
    receipt: Receipt
    figures: BufferFigures


class _TimedEnclave:
    """An enclave whose time is told apart from its host's."""

    def __init__(self, enclave: SimulatedEnclave, figures: BufferFigures) -> None:
        self._enclave = enclave
        self._figures = figures

    def open_buffer(self, version: int, model_digest: bytes) -> None:
        self._enclave.open_buffer(version, model_digest)

    def receive(self, message: bytes) -> int:
        self._figures.bytes_into_enclave += len(message)
        started = perf_counter()
        try:
            return self._enclave.receive(message)
        finally:
            self._figures.enclave_seconds += perf_counter() - started

    def release(self) -> bytes:
        started = perf_counter()
        released = self._enclave.release()
        self._figures.release_seconds = perf_counter() - started
        self._figures.bytes_out_of_enclave += len(released)
        return released

    def give_up_buffer(self) -> None:
        self._enclave.give_up_buffer()


def measured_buffer(  # noqa: PLR0913 -- the enclave, the clients, and what all of them are told
    enclave: SimulatedEnclave,
    updates: Iterable[tuple[Client, Callable[[], Payload]]],
    *,
    count: int,
    model: ModelStamp,
    now: datetime,
    progress: Progress | None = None,
) -> MeasuredBuffer:
    """Let every client that comes upload once, and release the buffer.

    Args:
        updates: the clients, each with what encodes its update; its time is not counted.
        count: how many there are.
    Raises:
        ThresholdNotMet: too few uploads were taken; nothing is released.
    """
    figures = BufferFigures()
    host = Host(enclave.configuration, _TimedEnclave(enclave, figures))
    host.open_buffer(model.version, model.digest)
    offer = enclave.offer.encode()
    for done, (client, payload_of) in enumerate(updates, start=1):
        payload = payload_of()
        started = perf_counter()
        verified = VerifiedEnclave(
            EnclaveOffer.decode(offer),
            enclave.evidence,
            configuration=enclave.configuration,
            judge=SimulatedJudge(),
            now=now,
        )
        upload = client.seal(payload, enclave=verified, model=model, now=now).encode()
        seconds = perf_counter() - started
        figures.client_seconds += seconds
        figures.slowest_client_seconds = max(figures.slowest_client_seconds, seconds)
        figures.bytes_down += len(offer)
        figures.bytes_up += len(upload)
        _deliver(host, client.client, upload, figures)
        if progress is not None:
            progress(done, count)
    started = perf_counter()
    aggregate, receipt = host.release()
    figures.host_seconds += perf_counter() - started - figures.release_seconds
    verified = VerifiedEnclave(
        EnclaveOffer.decode(offer),
        enclave.evidence,
        configuration=enclave.configuration,
        judge=SimulatedJudge(),
        now=now,
    )
    verified.verify_receipt(receipt)
    return MeasuredBuffer(aggregate, receipt, figures)


def _deliver(host: Host, client: ClientId, upload: bytes, figures: BufferFigures) -> None:
    before, started = figures.enclave_seconds, perf_counter()
    try:
        host.receive(upload)
        figures.answered.add(client)
    except PeerError as error:
        figures.failed[client] = str(error)
    figures.host_seconds += perf_counter() - started - (figures.enclave_seconds - before)
