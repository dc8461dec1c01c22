"""Who takes part in sums of one message a client: an epoch, its holders, clients that speak, and what can be sent.

Uploads are made by the library's own ``Client`` and shared over the library's own field; signatures and sealed shares
are ideal. No two shares are alike, so the words of an answer name the uploads that were added.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import combinations
from typing import Any

import numpy as np

import ideal
from indexing_cast import signing_key_of
from secagg.contract import Layout, Payload, RingSegment
from secagg.crypto.secret import Secret
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.one_message import epoch, parameters
from secagg.protocols.one_message.client import Client
from secagg.protocols.one_message.configuration import Agreement, Offer
from secagg.protocols.one_message.floors import Floors
from secagg.protocols.one_message.holder import Holder, Placements
from secagg.protocols.one_message.journal import Entry, Event, Journal
from secagg.protocols.one_message.ledger import Ledger
from secagg.protocols.one_message.messages import (
    DeliveredShare,
    Delivery,
    Upload,
    verify_upload,
)
from secagg.protocols.one_message.parameters import ThresholdRule
from secagg.protocols.one_message.plan import plan_offer
from secagg.protocols.one_message.sharing_field import FIELD
from secagg.session.certificates import issue_certificate
from secagg.session.roles import LateUpdate, Subject, Update
from secagg.simulation.insecure_coins import InsecureSeededCoins

NOW = datetime(2026, 1, 1, tzinfo=UTC)
COHORT = 2
CLIENTS = (1, 2, 3)
"""All follow the protocol; what a corrupted client has uploaded is known, and changes no rank."""
TASK, MODEL = b"a task", bytes([7]) * 32
SUM_IDS = (b"the first sum...", b"the second sum..")
LAYOUT = Layout((RingSegment(20, 1),))
CAPACITY = 8
Names = frozenset[str]


@dataclass
class MemoryJournal:
    """Records that outlast a process; what a class below this one loses, a crash loses."""

    written: list[tuple[Event, tuple[bytes, ...]]] = field(default_factory=list[tuple[Event, tuple[bytes, ...]]])
    fails: str = ""
    """When the process ends in the midst of writing: ``before`` the record is on the disk, or ``after``."""

    def append(self, event: Event, *parts: bytes) -> None:
        """Write a record down."""
        if self.fails != "before":
            self.written.append((event, parts))
        if self.fails:
            raise OSError(self.fails)

    def records(self) -> Iterator[Entry]:
        """Return what was written before."""
        return iter([Entry(event=event, parts=parts) for event, parts in self.written])

    def erase(self) -> None:
        """Forget everything."""
        self.written.clear()

    def copied(self) -> MemoryJournal:
        """Return a journal in the same state."""
        return type(self)(list(self.written))

    def on_disk(self) -> MemoryJournal:
        """Return what a process finds that starts again."""
        return self.copied()

    def remembered(self) -> Any:  # noqa: ANN401 -- anything that can be compared
        """Return what the disk holds, without its order."""
        return tuple(sorted(self.written))


@dataclass(frozen=True, slots=True)
class Sent:
    """An upload that exists, and what each holder is shown of it."""

    name: str
    client: int
    update: str
    place: int
    """Which of the two sums it is for."""
    digest: bytes
    shares: tuple[DeliveredShare, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """The holders, and their rule."""

    holders: int
    corrupted: int
    rule: ThresholdRule
    packing: int = 1
    places: tuple[int, ...] = (0, 1)
    """The sums for which clients are asked."""

    @property
    def honest(self) -> range:
        """The positions of the holders that follow the protocol."""
        return range(self.corrupted, self.holders)


class Cast:
    """One epoch, two sums in it, and another configuration of the first."""

    def __init__(self, setting: Setting, number: int = 1) -> None:
        """Begin the epoch."""
        self.setting, self.places, self.sent = setting, setting.places, dict[str, Sent]()
        self.made_of = dict[bytes, str]()
        """Of which update an upload was made."""
        self.authority = signing_key_of("authority")
        self.keys = [signing_key_of(f"holder {position}") for position in range(setting.holders)]
        count, corrupted, rho = setting.holders, setting.corrupted, setting.packing
        is_certified = setting.rule is ThresholdRule.CERTIFIED
        record = epoch.EpochRecord(
            number=number,
            mode=SecurityMode.ACTIVE,
            suite=Suite.CLASSIC,
            rule=setting.rule,
            corrupted=corrupted,
            threshold=parameters.least_threshold(setting.rule, count, corrupted, rho),
            packing=rho,
            quorum=parameters.least_quorum(count, corrupted) if is_certified else 0,
            expiry=1 << 40,
            authority=self.authority.public_key,
            holders=tuple(
                epoch.HolderIdentity(number=50 + position, public_key=key.public_key)
                for position, key in enumerate(self.keys)
            ),
        )
        self.record = record.signed(self.authority)
        self.begin(tuple(self.holder(position, MemoryJournal()).keys for position in range(count)))

    def begin(self, announced: tuple[bytes, ...]) -> None:
        """Take the keys that the holders announce."""
        self.announced = announced
        self.offers = tuple(self._offer(place) for place in (0, 1))
        self.elsewhere = self._offer(0, CAPACITY + 1)
        self.agreement: Agreement = self.offers[0].agree()

    @property
    def floors(self) -> Floors:
        """What clients insist on, and holders in their place."""
        return Floors(
            authority=self.authority.public_key,
            suites=frozenset({Suite.CLASSIC}),
            modes=frozenset({SecurityMode.ACTIVE}),
            least_holders=self.setting.holders,
            assumed_corrupted=self.setting.corrupted,
            assumed_corrupted_clients=0,
            minimum_cohort=COHORT,
            minimum_modulus_bits=1,
            maximum_length=1,
            maximum_capacity=CAPACITY + 1,
        )

    def subject(self, place: int, capacity: int = CAPACITY) -> Subject:
        """Return what a client trains for."""
        return Subject(task=TASK, round_number=place, layout=LAYOUT, capacity=capacity, model_digest=MODEL)

    def _offer(self, place: int, capacity: int = CAPACITY) -> Offer:
        return plan_offer(
            self.record,
            self.announced,
            self.subject(place, capacity),
            sum_id=SUM_IDS[place],
            capacity=capacity,
            minimum_cohort=COHORT,
            corrupted_clients=0,
        )

    # --- Holders ------------------------------------------------------------------------------------------------------

    def holder(self, position: int, journal: Journal, root: Secret | None = None, nonce: bytes = b"") -> Holder:
        """Start a holder, or start it again with its journal."""
        fixed = hashlib.sha256(b"root %d" % position).digest()
        return Holder(
            self.record,
            position,
            root=root or Secret("holder root", fixed),
            nonce=nonce or hashlib.sha256(fixed).digest(),
            journal=journal,
            floors=self.floors,
            clock=lambda: NOW,
            signing_key=self.keys[position],
        )

    def delivery(self, names: Iterable[str], position: int, t0: bytes = b"") -> bytes:
        """Return the request that hands a holder its shares of uploads."""
        shares = tuple(self.sent[name].shares[position] for name in names)
        return Delivery(t0=t0 or self.agreement.t0, shares=shares).encode()

    def words(self, position: int) -> dict[bytes, Names]:
        """Return, for each sum of shares of this holder, of which uploads it is."""
        holder: Any = self.holder(position, MemoryJournal())
        holder.respond(self.offers[0].encode())
        for place in (0, 1):
            holder.respond(self.delivery([one.name for one in self.sent.values() if one.place == place], position))
        accepted = holder._work[self.agreement.t0].accepted  # noqa: SLF001
        held = {one.name: accepted[one.digest].share.secret_words().astype(np.int64) for one in self.sent.values()}
        found = dict[bytes, Names]()
        for size in range(1, len(held) + 1):
            for names in combinations(sorted(held), size):
                total = sum((held[name] for name in names), np.zeros_like(held[names[0]])) % FIELD
                found[total.astype("<u2").tobytes()] = frozenset(names)
        return found

    # --- Clients ------------------------------------------------------------------------------------------------------

    def client(self, number: int, stored: bytes | None, store: Callable[[bytes], None], coins: str) -> Client:
        """Start a client with the ledger that it has stored."""
        key = signing_key_of(f"client {number}")
        return Client(
            ClientId(number),
            floors=self.floors,
            ledger=Ledger(TASK, store, stored),
            coins=InsecureSeededCoins(f"{number}/{coins}".encode()),
            clock=lambda: NOW,
            signing_key=key,
            certificate=issue_certificate(self.authority, ClientId(number), key.public_key),
        )

    def update(self, client: int, name: str) -> LateUpdate:
        """Return what a client has trained."""
        value = LAYOUT.require_rings()[0].ring.from_integers([hashlib.sha256(f"{client}{name}".encode()).digest()[0]])
        return LateUpdate(lambda: Update(Payload(LAYOUT, (value,)), MODEL, 1))

    def remember(self, client: int, update: str, place: int, encoded: bytes) -> None:
        """Take an upload into the catalogue, unless it is there."""
        digest, shares = verify_upload(
            self.agreement, self.offers[place].terms, ClientId(client), Upload.decode(encoded)
        )
        if digest not in {one.digest for one in self.sent.values()}:
            again = sum((one.client, one.place) == (client, place) for one in self.sent.values())
            name = f"{client}{'ab'[place]}{chr(39) * again}"
            self.sent[name] = Sent(name, client, update, place, digest, shares)


# --- What a holder is, and a second one like it -----------------------------------------------------------------------


def copied(holder: Holder) -> Holder:
    """Return a holder that will answer as this one would; the library refuses to copy what holds secrets."""
    made: Any = _shallow(holder)
    made._work = {t0: _copied_work(work) for t0, work in made._work.items()}  # noqa: SLF001
    placements, made._placements = made._placements, Placements()  # noqa: SLF001
    vars(made._placements).update({name: dict(kept) for name, kept in vars(placements).items()})  # noqa: SLF001
    made._journal = made._journal.copied()  # noqa: SLF001
    return made  # type: ignore[no-any-return]


def _copied_work(work: Any) -> Any:  # noqa: ANN401 -- what a holder has of one T0
    accepted = dict[bytes, Any]()
    for upload, one in work.accepted.items():
        share = _shallow(one.share)
        share._words = share._words.copy()  # noqa: SLF001
        accepted[upload] = replace(one, share=share)
    return replace(work, accepted=accepted, signed=dict(work.signed), answered=dict(work.answered))


def _shallow(kept: Any) -> Any:  # noqa: ANN401 -- anything with a dictionary
    made = object.__new__(type(kept))
    vars(made).update(vars(kept))
    return made


def memory_of(holder: Any) -> tuple[Any, ...]:  # noqa: ANN401 -- a holder, with what it remembers
    """Return all that a holder remembers, without the order in which it came."""
    work = tuple(
        (
            t0,
            tuple(sorted((upload, bool(one.share.secret_words().any())) for upload, one in of.accepted.items())),
            tuple(sorted(of.signed.items())),
            tuple(sorted(of.answered.items())),
        )
        for t0, of in sorted(holder._work.items())  # noqa: SLF001
    )
    placed = tuple(tuple(sorted(kept.items())) for kept in vars(holder._placements).values())  # noqa: SLF001
    return work, placed, holder._journal.remembered()  # noqa: SLF001


PATCHES = (
    (epoch, "sealing_key", ideal.IdealSealingKey),
    (epoch, "sealing_pair", ideal.IdealSealingPair),
)
"""Ideal sealing for an epoch's keys; signatures are ideal in every case."""
