"""Simulates an enclave, its host and its clients in one process, and registers the protocol."""

from __future__ import annotations

from functools import partial
from typing import Final

from secagg.contract import IndexSegment, RingSegment
from secagg.contract.layout import RowSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined
from secagg.identifiers import ClientId
from secagg.session.client_policy import ClientPolicy
from secagg.session.registry import Clock, ProtocolEntry
from secagg.session.roles import Subject
from secagg.session.run import SimulatedKeys

from .client import ENFORCED
from .remote_enclave import SimulatedEnclave, SimulatedJudge
from .seal_ledger import SealLedger
from .server import STAGE, Server
from .session import EnclaveHelpers, EnclaveMember, EnclaveOptions, costs, open_session


def describe(session: Server) -> tuple[str, ...]:
    """Describe the epoch's configuration, one line per property."""
    configuration = session.configuration
    lines = [f"an enclave behind an untrusted host, {configuration.suite.value}"]
    if configuration.has_rows:
        lines.append("rows touched by few clients are not released")
    elif configuration.index_segments:
        form = configuration.form.name.lower().replace("_", " ")
        lines.append(f"the enclave counts in {configuration.accumulation.name.lower()} form and releases the {form}")
    if session.is_simulated:
        lines.append("the enclave is simulated: it protects nobody from this machine")
    return (*lines, f"nothing is released with fewer than {configuration.minimum_cohort} uploads")


class EnclaveSimulation(Confined):
    """A simulated enclave, its host and its clients; see ``Simulation``. Each task and layout starts a new epoch."""

    def __init__(self, settings: EnclaveOptions, *, coins: Coins, clock: Clock, threads: int = 1) -> None:
        """Draw the authority's key; the first session starts an epoch."""
        self._settings, self._coins, self._clock, self._threads = settings, coins, clock, threads
        self._keys = SimulatedKeys(coins)
        self._ledgers = dict[tuple[ClientId, bytes], SealLedger]()
        self._enclave: _CountedEnclave | None = None

    def open(self, subject: Subject, invited: frozenset[ClientId] | None) -> Server:
        """Open a buffer in the running epoch, or in a new one for another task or layout."""
        enclave = self._enclave
        wanted = (subject.task, subject.layout)
        if enclave is None or (enclave.configuration.task, enclave.configuration.layout) != wanted:
            count = self.bytes_between
            self.close()
            standing = self._keys.standing(self._clock)
            configuration = self._settings.plan(subject, self._keys.authority, self._clock(), standing)
            enclave = self._enclave = _CountedEnclave(configuration, coins=self._coins, threads=self._threads)
            enclave.bytes_between = count
        helpers = EnclaveHelpers(
            configuration=enclave.configuration,
            connection=enclave,
            offer=enclave.offer,
            evidence=enclave.evidence,
            certificates={client: self._keys.of(client)[1] for client in invited or ()},
        )
        return open_session(subject, self._settings, invited, helpers)

    def member(self, client: ClientId) -> EnclaveMember:
        settings, (key, certificate) = self._settings, self._keys.of(client)
        return EnclaveMember(
            certificate=certificate,
            signing_key=key,
            policy=ClientPolicy(
                suites=frozenset({settings.suite}),
                forms=frozenset({settings.form}),
                accumulations=frozenset({settings.accumulation}),
                authority=self._keys.authority.public_key,
                minimum_cohort=settings.least_cohort,
                maximum_length=1 << 40,
                minimum_codeword_bound=settings.codeword_bound or 1 << 40,
            ),
            judge=SimulatedJudge(),
            ledger=partial(self._ledger, client),
            clock=self._clock,
            coins=self._coins,
            threads=self._threads,
        )

    def _ledger(self, client: ClientId, task: bytes) -> SealLedger:
        return self._ledgers.setdefault((client, task), SealLedger(task))

    @property
    def bytes_between(self) -> int:
        return 0 if self._enclave is None else self._enclave.bytes_between

    def close(self) -> None:
        if self._enclave is not None:
            self._enclave.destroy()


class _CountedEnclave(SimulatedEnclave):
    """An enclave that counts the bytes of its messages, continuing from earlier epochs."""

    bytes_between = 0

    def receive(self, message: bytes) -> None:
        self.bytes_between += len(message)
        super().receive(message)

    def release(self) -> bytes:
        released = super().release()
        self.bytes_between += len(released)
        return released


ENTRY: Final = ProtocolEntry(
    name="enclave",
    summary="an attested enclave behind an untrusted host: one round trip, any segment",
    settings=EnclaveOptions,
    segments=frozenset({RingSegment, IndexSegment, RowSegment}),
    rounds=True,
    stages=(STAGE,),
    describe=describe,
    open_session=open_session,
    keeps=ENFORCED,
    helpers=EnclaveHelpers,
    simulate=EnclaveSimulation,
    costs=costs,
    is_certified=True,
    trust="the enclave's hardware and its attestation; an authority that the host does not control",
)
