"""One message a client in one process, with standing holders, and its entry in the registry of protocols."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from secagg.contract import RingSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined, Secret
from secagg.errors import SecAggError
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode
from secagg.session.certificates import SigningKey, issue_certificate
from secagg.session.privacy_ledger import PrivacyLedgers
from secagg.session.registry import Clock, ProtocolEntry
from secagg.session.roles import Subject
from secagg.session.simulated_keys import new_signing_key

from .client import Ledger, OneMessageMember
from .epoch import NO_KEY, EpochRecord, HolderIdentity, draw_nonce
from .floors import Floors
from .holder import Holder
from .journal import ROOT_BYTES, Journal
from .plan import OneMessageSettings, costs, plan_epoch
from .session import (
    UPLOAD,
    OneMessageHelpers,
    Server,
    open_session,
)

_LONGEST: Final = 1 << 40
_MOST_CLIENTS: Final = 1 << 20


def describe(session: Server) -> tuple[str, ...]:
    """Return the plan, a line each."""
    agreement = session.agreement
    record, parameters = agreement.record, agreement.parameters
    certified = f"; {record.quorum} sign a list first" if record.quorum else ""
    noise = session.noise
    return (
        (
            f"masks of degree {parameters.degree} modulo 2^{parameters.modulus_bits}, by our estimate "
            f"{parameters.security_bits:.0f} bits; {record.mode.value} mode, {record.suite.value}"
        ),
        (
            f"{len(record.holders)} holders, of whom any {record.threshold} open a sum and {record.corrupted} with the "
            f"server learn nothing else{certified}"
        ),
        *(() if noise is None else noise.sentences()),
    )


class _Ledger(Ledger):
    """A ledger of a client that never has to send its upload again: a process of thousands holds none of them."""

    def keep(self, offer: bytes, upload: bytes) -> None:
        """Forget the upload."""


class OneMessageSimulation(Confined):
    """Holders, a server and its clients; see ``Simulation``. An epoch that is over is followed by another."""

    def __init__(
        self,
        settings: OneMessageSettings,
        *,
        coins: Coins,
        clock: Clock,
        threads: int = 1,
    ) -> None:
        """Draw the keys of the authority and of the holders; an epoch begins with the first session."""
        del threads  # A product of polynomials is not divided.
        self._settings, self._coins, self._clock = settings, coins, clock
        self._authority = self._key()
        self._holder_keys = [self._key() for _ in range(settings.holders)]
        self._client_keys = dict[ClientId, SigningKey]()
        self._privacy = PrivacyLedgers(settings.budget)
        self._ledgers = dict[tuple[ClientId, bytes], Ledger]()
        self._holders, self._number, self._bytes = list[Holder](), 0, 0
        self._record: EpochRecord | None = None

    def _key(self) -> SigningKey | None:
        return new_signing_key(self._coins) if self._settings.mode is SecurityMode.ACTIVE else None

    def open(self, subject: Subject, invited: frozenset[ClientId] | None) -> Server:
        """Begin a sum of the epoch that runs."""
        helpers = OneMessageHelpers(
            record=self._running(),
            keys=tuple(holder.keys for holder in self._holders),
            coins=self._coins,
            ask_all=self._ask_all,
        )
        return open_session(subject, self._settings, invited, helpers)

    def _running(self) -> EpochRecord:
        """Return the record of the epoch that runs; begin the next one when it is over."""
        now = self._clock()
        if self._record is not None and now.timestamp() < self._record.expiry:
            return self._record
        self.close()
        self._number += 1
        settings = self._settings
        record = plan_epoch(
            [
                HolderIdentity(number=number, public_key=NO_KEY if key is None else key.public_key)
                for number, key in enumerate(self._holder_keys)
            ],
            number=self._number,
            expiry=int((now + settings.lifetime).timestamp()),
            corrupted=settings.corrupted_holders,
            absent=settings.absent_holders,
            suite=settings.suite,
            rule=settings.rule,
            authority=NO_KEY if self._authority is None else self._authority.public_key,
        )
        self._record = record if self._authority is None else record.signed(self._authority)
        self._holders = [self._holder(self._record, position) for position in range(self._settings.holders)]
        return self._record

    def _holder(self, record: EpochRecord, position: int) -> Holder:
        with Secret.random("holder root", ROOT_BYTES, self._coins) as root:
            return Holder(
                record,
                position,
                root=root,
                nonce=draw_nonce(self._coins),
                journal=Journal(),
                floors=self._floors(),
                clock=self._clock,
                signing_key=self._holder_keys[position],
            )

    def _floors(self) -> Floors:
        settings = self._settings
        return Floors(
            authority=NO_KEY if self._authority is None else self._authority.public_key,
            suites=frozenset({settings.suite}),
            modes=frozenset({settings.mode}),
            least_holders=settings.holders,
            assumed_corrupted=settings.corrupted_holders,
            assumed_corrupted_clients=settings.corrupted,
            minimum_cohort=settings.minimum_cohort,
            minimum_modulus_bits=1,
            maximum_length=_LONGEST,
            maximum_capacity=_MOST_CLIENTS,
        )

    def _ask_all(self, requests: Mapping[int, bytes]) -> Iterable[tuple[int, bytes]]:
        for position, request in requests.items():
            try:
                answer = self._holders[position].respond(request)
            except SecAggError:
                continue
            self._bytes += len(request) + len(answer)
            yield position, answer

    def member(self, client: ClientId) -> OneMessageMember:
        """Return a client."""
        if self._authority is None:
            key, certificate = None, None
        else:
            key = self._client_keys.setdefault(client, new_signing_key(self._coins))
            certificate = issue_certificate(self._authority, client, key.public_key)
        return OneMessageMember(
            client,
            floors=self._floors(),
            ledger=lambda task: self._ledgers.setdefault((client, task), _Ledger(task, lambda _: None)),
            coins=self._coins,
            clock=self._clock,
            signing_key=key,
            certificate=certificate,
            noise=self._settings,
            privacy=self._privacy.of(client),
        )

    @property
    def bytes_between(self) -> int:
        """Bytes that went to and from the holders."""
        return self._bytes

    def close(self) -> None:
        """End the epoch: its keys are destroyed."""
        for holder in self._holders:
            holder.end()
        self._holders, self._record = [], None


ENTRY: Final = ProtocolEntry(
    name="one-message",
    summary="one message a client: masks whose sum has a short key, which holders share; clients may leave at once",
    settings=OneMessageSettings,
    segments=frozenset({RingSegment}),
    rounds=True,
    stages=(UPLOAD,),
    describe=describe,
    open_session=open_session,
    helpers=OneMessageHelpers,
    simulate=OneMessageSimulation,
    costs=costs,
    trust="an authority apart from the server and the holders; no more corrupted holders and clients than planned for; "
    "the server may be active",
)
