"""Parties of one-message sums: an epoch, its holders, uploads, and everything that can be sent.

The library's own ``Client`` makes the uploads and shares them over the library's own field; signatures and sealed
shares are ideal. No two shares are equal, so the words of an answer identify the added uploads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import numpy.typing as npt

import ideal
from indexing_cast import shallow, signing_key_of
from secagg import declared
from secagg.contract import Layout, Payload, RingSegment
from secagg.crypto.labels import Label
from secagg.crypto.secret import Secret
from secagg.errors import SecAggError
from secagg.identifiers import ClientId
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.one_message import client as one_message_client
from secagg.protocols.one_message import configuration, holder, parameters, requests
from secagg.protocols.one_message.client import Ledger, OneMessageMember
from secagg.protocols.one_message.configuration import Agreement, HolderSignature, Offer
from secagg.protocols.one_message.holder import Holder
from secagg.protocols.one_message.messages import Upload
from secagg.protocols.one_message.parameters import FIELD
from secagg.protocols.one_message.requests import DeliveredShare, Delivery, Listed, UploadList, verify_upload
from secagg.protocols.one_message.session import plan_offer
from secagg.protocols.one_message.sharing import Dealing, deal
from secagg.session.certificates import Standing
from secagg.session.client_policy import ClientPolicy
from secagg.session.roles import LazyUpdate, Subject, Update
from secagg.session.signing_keys import issue_certificate
from secagg.simulation.insecure_coins import InsecureSeededCoins

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TASK, MODEL = b"a task", bytes([7]) * 32
ROUNDS = 3
LAYOUT = Layout((RingSegment(20, 1),))
CAPACITY = 8
CROOKED = {8: "off its polynomial for the last holder", 9: "of two polynomials"}
"""Dealers whose shares are not on one polynomial."""


class Name(NamedTuple):
    """An upload: its client, its round, and whether the server forged it."""

    client: int
    place: int
    is_forged: bool = False

    def __str__(self) -> str:
        return f"{self.client}{'abc'[self.place]}{'*' * self.is_forged}"


Names = frozenset[Name]


@dataclass(frozen=True, slots=True)
class Sent:
    """An existing upload, and what each holder receives of it."""

    name: Name
    digest: bytes
    shares: tuple[DeliveredShare, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """The holders, and the clients that upload for each round."""

    holders: int
    corrupted: int
    """As signed by the authority."""
    packing: int = 1
    uploads: tuple[tuple[int, tuple[int, ...]], ...] = ((1, (0,)), (2, (0,)), (3, (0,)))
    """Each client, and the rounds for which it uploads."""
    bad_clients: tuple[int, ...] = ()
    """Clients that collude with the server; the cohort allows for them."""
    forged: tuple[tuple[int, int], ...] = ()
    """Uploads that the server forges in others' names."""
    liars: int | None = None
    """Number of holders that collude with the server, if it differs from the tolerated number."""
    at_once: bool = False
    """Whether all shares for a round arrive in one delivery instead of one by one."""

    @property
    def lying(self) -> int:
        """Number of holders that collude with the server: the first ones."""
        return self.corrupted if self.liars is None else self.liars

    @property
    def honest(self) -> range:
        """The positions of the honest holders."""
        return range(self.lying, self.holders)

    @property
    def cohort(self) -> int:
        """Minimum number of clients on a list."""
        return len(self.bad_clients) + 2


class Cast:
    """One epoch with some rounds, another configuration of the first round, and the existing uploads."""

    def __init__(self, setting: Setting, number: int = 1) -> None:
        """Start the epoch."""
        self.setting, self.sent = setting, dict[Name, Sent]()
        self.authority = signing_key_of("authority")
        self.keys = [signing_key_of(f"holder {position}") for position in range(setting.holders)]
        count, corrupted, rho = setting.holders, setting.corrupted, setting.packing
        record = configuration.EpochRecord(
            number=number,
            mode=SecurityMode.ACTIVE,
            suite=Suite.CLASSIC,
            corrupted=corrupted,
            threshold=parameters.least_threshold(corrupted, rho),
            packing=rho,
            quorum=parameters.least_quorum(count, corrupted),
            expiry=1 << 40,
            authority=self.authority.public_key,
            holders=tuple(
                configuration.HolderIdentity(number=50 + position, public_key=key.public_key)
                for position, key in enumerate(self.keys)
            ),
        )
        self.record = record.signed(self.authority)
        self.begin(tuple(self.holder(position).keys for position in range(count)))

    def begin(self, announced: tuple[bytes, ...]) -> None:
        """Take the keys that the holders announce."""
        self.announced = announced
        self.offers = tuple(map(self.offer, range(ROUNDS)))
        self.elsewhere = self.offer(0, CAPACITY + 1)
        self.agreement: Agreement = self.offers[0].agree()

    @property
    def policy(self) -> ClientPolicy:
        """The policy of clients, and of holders on their behalf."""
        return ClientPolicy(
            authority=self.authority.public_key,
            suites=frozenset({Suite.CLASSIC}),
            modes=frozenset({SecurityMode.ACTIVE}),
            minimum_holders=self.setting.holders,
            assumed_corrupted_holders=self.setting.corrupted,
            assumed_corrupted=len(self.setting.bad_clients),
            minimum_cohort=self.setting.cohort,
            minimum_modulus_bits=1,
            maximum_length=1,
            maximum_population=CAPACITY + 1,
        )

    def subject(self, round_number: int, capacity: int = CAPACITY, model: bytes = MODEL) -> Subject:
        """Return the subject that a client trains for."""
        return Subject(task=TASK, round_number=round_number, layout=LAYOUT, capacity=capacity, model_digest=model)

    def offer(self, round_number: int, capacity: int = CAPACITY, model: bytes = MODEL, above: int = 0) -> Offer:
        """Return an offer in this epoch, with the receipts of all holders."""
        offer = plan_offer(
            self.record,
            self.announced,
            self.subject(round_number, capacity, model),
            capacity=capacity,
            minimum_cohort=self.setting.cohort + above,
            corrupted_clients=len(self.setting.bad_clients),
            standing=Standing(number=int(NOW.timestamp())).signed(self.authority),
        )
        agreement, found = offer.agree(), list[HolderSignature]()
        for position, key in enumerate(self.keys):
            parts = position.to_bytes(2, "big"), offer.terms.digest
            signature = agreement.sign(key, Label.ONE_MESSAGE_OFFER_RECEIPT, *parts)
            found.append(HolderSignature(holder=position, signature=signature))
        return replace(offer, receipts=tuple(found))

    # --- Holders ------------------------------------------------------------------------------------------------------

    def holder(self, position: int, start: int = 0) -> Holder:
        """Start a holder; each start draws other coins."""
        return Holder(
            self.record,
            position,
            coins=InsecureSeededCoins(b"holder %d, start %d" % (position, start)),
            policy=self.policy,
            clock=lambda: NOW,
            signing_key=self.keys[position],
            ticks=lambda: 0.0,
        )

    def restarted(self, position: int) -> Holder:
        """Restart a holder; its memory and its keys are lost."""
        return self.holder(position, 1)

    def delivery(self, shares: Iterable[DeliveredShare], t0: bytes = b"") -> bytes:
        """Return the request that delivers shares of uploads to a holder."""
        return Delivery(t0=t0 or self.agreement.t0, shares=tuple(shares)).encode()

    def upload_list(self, place: int, names: Iterable[Name], t0: bytes = b"") -> UploadList:
        """Return the list that requests the sum of these uploads for a round."""
        return UploadList(
            t0=t0 or self.agreement.t0,
            terms=self.offers[place].terms,
            listed=tuple(Listed(client=ClientId(name.client), upload=self.sent[name].digest) for name in names),
        )

    def accepted(self, position: int) -> dict[Name, npt.NDArray[np.int64]]:
        """Return the words of each share that a holder accepts."""
        holder: Any = self.holder(position)
        holder.respond(self.offers[0].encode())
        holder.respond(self.delivery(one.shares[position] for one in self.sent.values()))
        held = holder._work[self.agreement.t0].accepted  # noqa: SLF001
        return {
            name: held[one.digest].share.secret_words().astype(np.int64)
            for name, one in self.sent.items()
            if one.digest in held
        }

    def words(self, position: int) -> dict[bytes, Names]:
        """Return, for each sum of shares of this holder, the uploads in it."""
        held = self.accepted(position)
        zeros = np.zeros(self.agreement.parameters.secret_columns, np.int64)
        found = dict[bytes, Names]()
        for size in range(len(held) + 1):
            for names in combinations(sorted(held), size):
                total = sum((held[name] for name in names), zeros) % FIELD
                found[total.astype("<u2").tobytes()] = frozenset(names)
        return found

    # --- Clients ------------------------------------------------------------------------------------------------------

    def client(
        self, number: int, stored: bytes | None, store: Callable[[bytes], None], coins: str, *, forged: bool = False
    ) -> OneMessageMember:
        """Start a client with its stored ledger; the key of a forged client is not certified."""
        key = signing_key_of(f"client {number}{' made up' * forged}")
        ledger = Ledger(TASK, store, stored, attempts=1)
        return OneMessageMember(
            ClientId(number),
            policy=self.policy,
            ledger=lambda _: ledger,
            coins=InsecureSeededCoins(f"{number}/{coins}".encode()),
            clock=lambda: NOW,
            signing_key=key,
            certificate=issue_certificate(key if forged else self.authority, ClientId(number), key.public_key),
        )

    def update(self, client: int, name: str, model: bytes = MODEL) -> LazyUpdate:
        """Return a client's trained update."""
        value = LAYOUT.require_rings()[0].ring.from_integers([hashlib.sha256(f"{client}{name}".encode()).digest()[0]])
        return LazyUpdate(lambda: Update(Payload(LAYOUT, (value,)), model))

    def send(self) -> None:
        """Let every client upload once for each of its rounds, each time with a new update."""
        named = [Name(client, place) for client, places in self.setting.uploads for place in places]
        for name in (*named, *(Name(client, place, is_forged=True) for client, place in self.setting.forged)):
            self.sent[name] = self._upload(name)

    def _upload(self, name: Name) -> Sent:
        coins = f"{name.place}{name.is_forged}"
        client = self.client(name.client, None, lambda _: None, coins, forged=name.is_forged)
        offer = self.offers[name.place]
        with ExitStack() as stack:
            if name.client in self.setting.bad_clients and name.client in CROOKED:
                stack.enter_context(mock.patch.object(one_message_client, "deal", _crooked(name.client)))
            encoded = client.join(self.subject(name.place), self.update(name.client, f"for {name.place}")).answer(
                offer.encode()
            )
            if name.is_forged:
                stack.enter_context(mock.patch.object(requests, "require_signed", return_value=None))
            digest, shares = verify_upload(self.agreement, offer.terms, ClientId(name.client), Upload.decode(encoded))
        return Sent(name, digest, shares)


def _crooked(client: int) -> Callable[..., Dealing]:
    """Return a dealer whose shares were changed afterwards; its commitment to the polynomial is valid."""

    def dealt(secret: Any, values: Any, contexts: Any, coins: Any) -> Dealing:  # noqa: ANN401 -- the arguments of the original
        made = deal(secret, values, contexts, coins)
        first = len(made.shares) - 1 if client == min(CROOKED) else values.seeds
        made.shares = tuple(
            share if position < first else _shifted(share, client + position * position)
            for position, share in enumerate(made.shares)
        )
        return made

    return dealt


def _shifted(share: Secret, by: int) -> Secret:
    words = (np.frombuffer(share.expose(), "<u2").astype(np.int64) + by) % FIELD
    return Secret("share of a ring secret", words.astype("<u2").tobytes())


# --- Copies of holders ----------------------------------------------------------------------------------------------


def copied(holder: Holder) -> Holder:
    """Return a holder that answers as this one would; the library refuses to copy objects with secrets."""
    made: Any = shallow(holder)
    made._work = {t0: _copied_work(work) for t0, work in made._work.items()}  # noqa: SLF001
    made._list_of = dict(made._list_of)  # noqa: SLF001
    return made  # type: ignore[no-any-return]


def _copied_work(work: Any) -> Any:  # noqa: ANN401 -- what a holder has of one T0
    accepted = dict[bytes, Any]()
    for upload, one in work.accepted.items():
        share = shallow(one.share)
        share._words = share._words.copy()  # noqa: SLF001
        accepted[upload] = replace(one, share=share)
    return replace(work, accepted=accepted, signed=dict(work.signed), answered=dict(work.answered))


@contextmanager
def remembered_decoding() -> Iterator[None]:
    """Decode equal bytes only once: the decoded message and the digest of a list depend on nothing else."""
    decoded = dict[tuple[type[declared.Message], bytes], Any]()
    decode = declared.Message.__dict__["decode"].__func__

    def decode_once(cls: type[declared.Message], data: bytes) -> Any:  # noqa: ANN401 -- the message
        key = cls, bytes(data)
        if key not in decoded:
            try:
                decoded[key] = decode(cls, data)
            except SecAggError as error:
                decoded[key] = error
        if isinstance(decoded[key], SecAggError):
            raise decoded[key].with_traceback(None)
        return decoded[key]

    digest = property(lru_cache(None)(requests.UploadList.__dict__["digest"].fget))
    agree = lru_cache(None)(configuration.Offer.agree)
    with (
        mock.patch.object(declared.Message, "decode", classmethod(decode_once)),
        mock.patch.object(requests.UploadList, "digest", digest),
        mock.patch.object(configuration.Offer, "agree", agree),
    ):
        yield


PATCHES = ((configuration, "sealing_key", ideal.IdealSealingKey), (holder, "sealing_pair", ideal.IdealSealingPair))
"""Ideal sealing for an epoch's keys; signatures are ideal in every case."""
