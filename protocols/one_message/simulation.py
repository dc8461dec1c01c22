"""Simulates one-message sums and their holders in one process, and registers the protocol."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from secagg.contract import Layout, RingSegment
from secagg.crypto.entropy import Coins
from secagg.crypto.hpke import sealing_sizes
from secagg.crypto.secret import Confined, Secret
from secagg.errors import SecAggError
from secagg.identifiers import ClientId
from secagg.parameters import LEAST_COHORT, SecurityMode, Suite
from secagg.privacy.noise_table import SeededCoins
from secagg.session.certificates import SIGNATURE_BYTES, SigningKey
from secagg.session.client_policy import ClientPolicy
from secagg.session.ledger import PrivacyLedgers
from secagg.session.registry import Clock, ProtocolEntry
from secagg.session.roles import Subject
from secagg.session.run import ONE_IN, Costs, SimulatedKeys, Work
from secagg.session.signing_keys import new_signing_key

from .client import Ledger, OneMessageMember
from .configuration import DIGEST_BYTES, ENFORCED, NO_KEY, NONCE_BYTES, EpochRecord, HolderIdentity, HolderSignature
from .holder import Holder
from .messages import IDENTITY_BYTES, Upload, UploadHeader
from .session import UPLOAD, OneMessageHelpers, OneMessageOptions, Server, open_session, plan_epoch, plan_offer

_WORDS_OF_A_PRODUCT: Final = 64
"""A client's work per coefficient: product of polynomials, noise, packing and digest."""
_WORDS_OF_AN_ADDITION: Final = 4
_LONGEST: Final = 1 << 40
_MOST_CLIENTS: Final = 1 << 20


def describe(session: Server) -> tuple[str, ...]:
    """Return the plan, one line per fact."""
    agreement = session.agreement
    record, parameters = agreement.record, agreement.parameters
    noise = session.noise
    return (
        (
            f"masks of degree {parameters.degree} modulo 2^{parameters.modulus_bits}, by our estimate "
            f"{parameters.security_bits:.0f} bits; {record.mode.value} mode, {record.suite.value}"
        ),
        (
            f"{len(record.holders)} holders; any {record.threshold} open a sum, {record.corrupted} colluding with "
            f"the server learn only the sum; {record.quorum} must sign a list first;  {record.committee.stands} may "
            "be lost"
        ),
        *(() if noise is None else noise.sentences()),
    )


class _Ledger(Ledger):
    """Ledger that stores no uploads, so that a simulation of thousands of clients fits in memory."""

    def keep(self, offer: bytes, upload: bytes) -> None:
        """Forget the upload."""


class OneMessageSimulation(Confined):
    """Holders, a server and its clients; see ``Simulation``. When an epoch expires, the next one begins."""

    def __init__(self, settings: OneMessageOptions, *, coins: Coins, clock: Clock, threads: int = 1) -> None:
        del threads  # A product of polynomials is not divided.
        self._settings, self._coins, self._clock = settings, coins, clock
        self._keys = SimulatedKeys(coins) if settings.mode is SecurityMode.ACTIVE else None
        self._holder_keys = [self._key() for _ in range(settings.holders)]
        self._privacy = PrivacyLedgers(settings.budget)
        self._ledgers = dict[tuple[ClientId, bytes], Ledger]()
        self._holders, self._number, self._bytes = list[Holder](), 0, 0
        self._record: EpochRecord | None = None

    def _key(self) -> SigningKey | None:
        return new_signing_key(self._coins) if self._settings.mode is SecurityMode.ACTIVE else None

    def open(self, subject: Subject, invited: frozenset[ClientId] | None) -> Server:
        record, keys = self.epoch()
        helpers = OneMessageHelpers(record=record, keys=keys, coins=self._coins, ask_all=self._ask_all)
        if self._keys is not None:
            helpers = replace(helpers, standing=self._keys.standing(self._clock))
        return open_session(subject, self._settings, invited, helpers)

    def epoch(self) -> tuple[EpochRecord, tuple[bytes, ...]]:
        """Return the record of the running epoch, and its holders' keys."""
        record = self._running()
        return record, tuple(holder.respond(record.encode()) for holder in self._holders)

    def _running(self) -> EpochRecord:
        """Return the record of the running epoch; begin the next one when it has expired."""
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
            authority=NO_KEY if self._keys is None else self._keys.authority.public_key,
        )
        self._record = record if self._keys is None else record.signed(self._keys.root)
        self._holders = [self._holder(self._record, position) for position in range(self._settings.holders)]
        return self._record

    def _holder(self, record: EpochRecord, position: int) -> Holder:
        key = self._holder_keys[position]
        return Holder(
            record,
            position,
            coins=self._coins,
            policy=self._policy(),
            clock=self._clock,
            signing_key=key,
            ticks=lambda: self._clock().timestamp(),
        )

    def _policy(self) -> ClientPolicy:
        settings = self._settings
        return ClientPolicy(
            suites=frozenset({settings.suite}),
            modes=frozenset({settings.mode}),
            authority=None if self._keys is None else self._keys.authority.public_key,
            minimum_cohort=settings.least_cohort,
            minimum_modulus_bits=1,
            maximum_length=_LONGEST,
            maximum_population=_MOST_CLIENTS,
            assumed_corrupted=settings.corrupted,
            minimum_holders=settings.holders,
            assumed_corrupted_holders=settings.corrupted_holders,
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
        key, certificate = (None, None) if self._keys is None else self._keys.of(client)
        return OneMessageMember(
            client,
            policy=self._policy(),
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
        return self._bytes

    def close(self) -> None:
        for holder in self._holders:
            holder.end()
        self._holders, self._record = [], None


def costs(layout: Layout, clients: int, suite: Suite) -> Iterator[Costs]:
    """Plan for five holders, and count the costs."""
    rare, settings = clients // ONE_IN, OneMessageOptions(suite=suite)
    coins = SeededCoins(Secret("costs", bytes(16)))  # Costs need no secrets.
    simulation = OneMessageSimulation(settings, coins=coins, clock=lambda: datetime.now(UTC))
    offer = plan_offer(
        *simulation.epoch(),
        Subject(task=b"a plan", round_number=1, layout=layout, capacity=clients),
        capacity=clients,
        minimum_cohort=max(LEAST_COHORT, rare + 2),
        corrupted_clients=rare,
    )
    receipts = (HolderSignature(holder=at, signature=bytes(SIGNATURE_BYTES)) for at in range(settings.holders))
    offer, parameters = replace(offer, receipts=tuple(receipts)), offer.configuration.parameters
    upload = Upload(
        t0=bytes(DIGEST_BYTES),
        header=UploadHeader(
            client=ClientId(0), identity=bytes(IDENTITY_BYTES), terms=offer.terms, nonce=bytes(NONCE_BYTES)
        ),
        pieces=(bytes(DIGEST_BYTES),) * len(parameters.piece_bytes),
        vector=b"",
        polynomial=bytes(parameters.polynomial_bytes),
        sealed=tuple(
            bytes(parameters.share_bytes(place) + sealing_sizes(suite)[1]) for place in range(settings.holders)
        ),
        signature=bytes(SIGNATURE_BYTES),
    )
    sent = len(upload.encode())
    shown = len(replace(upload, pieces=(bytes(DIGEST_BYTES),)).encode())
    padded = parameters.polynomials * parameters.degree
    yield Costs(
        plan=f"masks of degree {parameters.degree} modulo 2^{parameters.modulus_bits} with {parameters.guard_bits} "
        f"guard bits, {parameters.security_bits:.0f} bits of security by our estimate; {settings.holders} "
        f"holders, of which any {parameters.threshold} open a sum and {parameters.corrupted} may be corrupted; "
        f"{parameters.committee.stands} may be lost; a coefficient for each value, because no bounds are set",
        payload_bytes=layout.payload_bytes,
        up_bytes=sent + parameters.upload_bytes,
        down_bytes=len(offer.encode()),
        # Every holder receives all of an upload except the vector and the other holders' shares.
        between_bytes=settings.holders * shown - (settings.holders - 1) * sum(map(len, upload.sealed)),
        client=Work(word_operations=_WORDS_OF_A_PRODUCT * padded),
        server=Work(word_operations=(clients * _WORDS_OF_AN_ADDITION + _WORDS_OF_A_PRODUCT) * padded, steps=clients),
    )


ENTRY: Final = ProtocolEntry(
    name="one-message",
    summary="one message per client: masks whose sum has a short key, which holders share; clients may leave at once",
    settings=OneMessageOptions,
    segments=frozenset({RingSegment}),
    rounds=True,
    stages=(UPLOAD,),
    describe=describe,
    open_session=open_session,
    keeps=ENFORCED,
    helpers=OneMessageHelpers,
    simulate=OneMessageSimulation,
    costs=costs,
    is_certified=True,
    trust="an authority independent of server and holders; corrupted holders and clients within the plan; "
    "the server may be active",
)
