"""Parties of rounds with two servers, and everything that each can send: keys, rounds, uploads, one server's state.

The library's own ``Client`` makes the uploads and its own ``HalfOpener`` opens them, with ideal signatures and
ciphertexts. A client's update is one ring element that no other client has, so a sum identifies its addends.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import combinations, product
from typing import Any

from secagg.contract import Layout, Payload, RingSegment
from secagg.crypto.secret import Secret
from secagg.errors import MalformedMessage, Misuse, PeerMisbehaved, Reason
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import Suite
from secagg.protocols.two_servers import opened_upload
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.offers import Due, Entry, Invitation, RoundOffers, RoundStamp, UploadHalves
from secagg.protocols.two_servers.opened_upload import OpenedUpload, RoundTotals, ring_bytes
from secagg.protocols.two_servers.server import IndexingServer
from secagg.protocols.two_servers.server_messages import AcceptedList, OutputShare, entries_digest
from secagg.protocols.two_servers.session import TwoServersMember
from secagg.protocols.two_servers.upload import HalfForm, Upload
from secagg.session.certificates import Certificate, SigningKey, Standing
from secagg.session.client_policy import ClientPolicy
from secagg.session.ledger import SpentUpdates
from secagg.session.roles import LazyUpdate, Subject, Update
from secagg.session.signing_keys import issue_certificate
from secagg.simulation.insecure_coins import InsecureSeededCoins

NOW = datetime(2026, 1, 1, tzinfo=UTC)
COHORT = 2
REJECTIONS = 1
WIDTH = 60
HONEST = frozenset({1, 2, 4})
"""The honest clients; 3 and 5 are corrupted, and nobody certified 9."""


def signing_key_of(party: str) -> SigningKey:
    """Return the identity key of a party."""
    with Secret("signing key", hashlib.sha256(party.encode()).digest()) as seed:
        return SigningKey(seed)


class UnboundMember(TwoServersMember):
    """A client whose servers count its layout, for any model."""

    def layout_for(self, subject: Subject, model: bytes) -> Layout:  # noqa: ARG002 -- the method's signature
        """Return the client's own layout."""
        return subject.layout


@dataclass(frozen=True, slots=True)
class Sent:
    """An existing upload: its identity, and its half for each server."""

    client: int
    update: str
    entry: Entry
    halves: tuple[bytes, bytes]
    values: tuple[int, int]
    """The values that each server adds for it."""
    is_unit: bool = True
    """Whether its check passes between two honest servers."""
    is_authentic: bool = True
    """Whether the client that it names is certified and made it."""

    @property
    def name(self) -> str:
        """Its name in traces."""
        return f"{self.client}{self.update}"


@dataclass
class IdealExchange:
    """A check that identifies who cheated: it accepts unit vectors, and others if a corrupted server vouches.

    Messages about an upload name it. An answer repeats its proposal, so answers to two proposals differ. As in the
    library,
    no decision is made before a message was exchanged.
    """

    server: ServerId
    entry: Entry
    has_said: bool = False

    def says(self, what: bytes) -> bytes:
        """Return a message about this upload."""
        return self.entry.upload_id[:4] + what

    def propose(self) -> bytes:
        """As server 1, propose what server 0 answers."""
        self.has_said = True
        return self.says(b"1")

    def answer(self, proposal: bytes) -> bytes:
        """As server 0, answer."""
        if proposal[:4] != self.says(b""):
            raise MalformedMessage("this is about another upload", reason=Reason.NOT_CANONICAL)
        self.has_said = True
        return self.says(proposal[4:] + (b"+" if self.entry.upload_id not in REFUTED else b"-"))

    def conclude(self, answer: bytes) -> bytes:
        """As server 1, decide."""
        self._decide(answer)
        return self.says(b"+")

    def settle(self, conclusion: bytes) -> None:
        """As server 0, decide."""
        self._decide(conclusion)

    def _decide(self, heard: bytes) -> None:
        if not self.has_said:
            raise Misuse("a verifier takes the other server's commitment first, and decides then")
        if heard[:4] != self.says(b"") or not heard.endswith(b"+"):
            raise PeerMisbehaved("the openings contradict each other", reason=Reason.ONE_HOT_REFUTED, culprits=())

    def add_to(self, totals: RoundTotals) -> None:
        """Add nothing, because there are no index segments."""

    def wipe(self) -> None:
        """Erase nothing, because there are no seeds."""


REFUTED = set[bytes]()
"""The ids of uploads that are not unit vectors."""


def exchange(_: object, upload: Upload, entry: Entry, *__: object) -> IdealExchange:
    """Replace ``HalfOpener._exchange``."""
    return IdealExchange(upload.server, entry)


class Place:
    """One round of one layout: its configuration and its possible messages."""

    def __init__(self, round_number: int, *, width: int = WIDTH, room: int = 6) -> None:
        """Choose the parties."""
        self.round_number = round_number
        self.layout = Layout((RingSegment(width, 1),))
        self.server_keys = [signing_key_of(f"server {index}") for index in (0, 1)]
        self.authority = signing_key_of("authority")
        self.configuration = IndexingConfiguration(
            task=b"model",
            suite=Suite.CLASSIC,
            authority=self.authority.public_key,
            server_keys=(self.server_keys[0].public_key, self.server_keys[1].public_key),
            layout=self.layout,
            minimum_cohort=COHORT,
            maximum_cohort=room,
            maximum_rejections=REJECTIONS,
            expiry=1 << 31,
            standing=Standing(number=int(NOW.timestamp())).signed(self.authority),
        )
        self.sent = dict[str, Sent]()

    def stamp(self, index: int) -> RoundStamp:
        """Return the stamp of one server in this round."""
        return RoundStamp(context=self.configuration.context, round_number=self.round_number, server=ServerId(index))

    def values(self, share: bytes, index: int) -> tuple[Any, ...]:
        """Return the values in one server's share of the sum."""
        return OutputShare.decode(share, Due(self.stamp(index), self.configuration)).values(self.configuration)

    def server(self, index: int, *, life: int = 0) -> IndexingServer:
        """Start a server, in its first or second run."""
        with Secret("pair key", bytes(32)) as pair_key:
            return IndexingServer(
                self.configuration,
                ServerId(index),
                round_number=self.round_number,
                signing_key=self.server_keys[index],
                pair_key=pair_key,
                coins=self.root_of(index, life),
            )

    def root_of(self, index: int, life: int) -> InsecureSeededCoins:
        """Return the coins from which a server draws its root."""
        return InsecureSeededCoins(bytes([index, life]))

    @cached_property
    def fresh(self) -> tuple[IndexingServer, IndexingServer]:
        """Both servers at their start."""
        return self.server(0), self.server(1)

    @property
    def offers(self) -> tuple[bytes, bytes]:
        """The offer to clients."""
        return self.fresh[0].offer, self.fresh[1].offer

    def payload(self, client: int, update: str) -> Payload:
        """Return a client's update."""
        digest = hashlib.sha256(f"{client}/{update}".encode()).digest()
        ring = self.layout.segments[0].ring
        value = ring.zeros(1)
        value[0] = int.from_bytes(digest[:8], "big") >> (64 - WIDTH)
        return Payload(self.layout, (value,))

    def certified(self, number: int) -> tuple[Certificate, SigningKey]:
        """Return a client's key and its certificate."""
        signing_key = signing_key_of(f"client {number}")
        return issue_certificate(self.authority, ClientId(number), signing_key.public_key), signing_key

    def send(self, client: int, update: str = "", *, is_unit: bool = True) -> Sent:
        """Let a client upload, with a ledger that knows no other upload."""
        halves = self.shared(client, update, SpentUpdates())
        return self.remember(client, update, halves, is_unit=is_unit)

    def send_in_the_name_of(self, client: int, *, certified: bool) -> Sent:
        """Upload in the name of a client without its key, or in the name of an uncertified client."""
        own, key = self.certified(3)
        named = self.certified(client)[0] if certified else issue_certificate(key, ClientId(client), own.public_key)
        halves = self.shared(3, "forged", SpentUpdates(), named=(named, key), payload=self.payload(client, "forged"))
        return self.remember(client, "forged", halves, is_authentic=False)

    def shared(
        self,
        client: int,
        update: str,
        ledger: SpentUpdates,
        *,
        named: tuple[Certificate, SigningKey] | None = None,
        payload: Payload | None = None,
    ) -> tuple[Upload, Upload]:
        """Let an honest client share an update in this round; it requires this round's servers and layout."""
        configuration, (certificate, signing_key) = self.configuration, self.certified(client)
        model = hashlib.sha256(update.encode()).digest()
        made = Update(payload or self.payload(client, update), model)
        member = UnboundMember(
            certificate=certificate,
            signing_key=signing_key,
            policy=ClientPolicy(
                suites=frozenset({Suite.CLASSIC}),
                authority=configuration.authority,
                server_keys=configuration.server_keys,
                minimum_cohort=COHORT,
                maximum_length=1,
            ),
            charge=ledger.charge,
            clock=lambda: NOW,
            coins=InsecureSeededCoins(f"{client}{update}{self.round_number}".encode() + self.layout.digest),
        )
        maker: Any = member.join(
            Subject(task=configuration.task, round_number=self.round_number, layout=self.layout, capacity=1 << 20),
            LazyUpdate(lambda: made, model),
        )
        if named is not None:
            maker._member = replace(member, certificate=named[0], signing_key=named[1])  # noqa: SLF001
            maker.client = named[0].client
        shown = RoundOffers(is_simulated=False, offers=self.offers)
        answer = maker.answer(Invitation(self.round_number, configuration, shown).encode())
        zero, one = UploadHalves.decode(answer).both
        return (
            Upload.decode(zero, HalfForm(configuration, ServerId(0), 0, 0)),
            Upload.decode(one, HalfForm(configuration, ServerId(1), ring_bytes(configuration), 0)),
        )

    def remember(
        self,
        client: int,
        update: str,
        halves: tuple[Upload, Upload],
        *,
        is_unit: bool = True,
        is_authentic: bool = True,
    ) -> Sent:
        """Record what an upload is, and what each server adds for it."""
        header = halves[0].header
        entry = Entry(header.client, halves[0].upload_id(self.configuration))
        values = tuple(self._value(index, half) for index, half in enumerate(halves))
        encoded = halves[0].encode(), halves[1].encode()
        sent = Sent(client, update, entry, encoded, (values[0], values[1]), is_unit, is_authentic)
        if not is_unit:
            REFUTED.add(entry.upload_id)
        self.sent[sent.name] = sent
        return sent

    def _value(self, index: int, half: Upload) -> int:
        server: Any = self.fresh[index]
        totals = RoundTotals(self.configuration, ServerId(index))
        server._opener.open(half).add_to(totals)  # noqa: SLF001
        return total_of(totals)

    def signed_list(self, index: int, entries: tuple[Entry, ...], signer: SigningKey | None = None) -> bytes:
        """Return a server's list of these uploads, signed with its key or another."""
        return AcceptedList.signed(self.stamp(index), entries, signer or self.server_keys[index]).encode()

    def subsets(self) -> Iterator[tuple[Entry, ...]]:
        """Return every set of uploads that a list can name."""
        entries = sorted(sent.entry for sent in self.sent.values())
        for size in range(1, len(entries) + 1):
            yield from combinations(entries, size)

    @cached_property
    def named_by(self) -> dict[bytes, tuple[Entry, ...]]:
        """The clients behind the digest of a list."""
        return {entries_digest(entries): entries for entries in self.subsets()}

    @cached_property
    def addends(self) -> tuple[dict[int, dict[str, int]], dict[int, dict[str, int]]]:
        """The uploads in a share of the sum, and how often each is in it."""
        found: tuple[dict[int, dict[str, int]], dict[int, dict[str, int]]] = ({}, {})
        uploads = list(self.sent.values())
        for often in product(range(3), repeat=len(uploads)):
            counted = {sent.name: times for sent, times in zip(uploads, often, strict=True) if times}
            for index in (0, 1):
                value = sum(times * sent.values[index] for sent, times in zip(uploads, often, strict=True))
                found[index][value % (1 << self.layout.segments[0].modulus_bits)] = counted
        return found


def total_of(totals: RoundTotals) -> int:
    """Return a server's share of the sum."""
    kept: Any = totals
    return int(kept._vectors[0][0])  # noqa: SLF001


def copied(server: IndexingServer) -> IndexingServer:
    """Return a copy of a server that shares no mutable state with it."""
    made: Any = shallow(server)
    rules, release, opener, totals = map(shallow, (made._rules, made._release, made._opener, made._totals))  # noqa: SLF001
    for name in ("_entries", "_standing", "_clients", "_waiting"):
        setattr(rules, name, dict(getattr(rules, name)))
    rules._numbers = Counter(rules._numbers)  # noqa: SLF001
    opener._pair = shallow(opener._pair)  # noqa: SLF001
    totals._vectors = [vector.copy() for vector in totals._vectors]  # noqa: SLF001
    made._rules, made._release, made._opener, made._totals = rules, release, opener, totals  # noqa: SLF001
    made._pending = {upload_id: _copied_upload(upload) for upload_id, upload in made._pending.items()}  # noqa: SLF001
    made._rejected = dict(made._rejected)  # noqa: SLF001
    if not made._nonce_key.is_wiped:  # noqa: SLF001
        made._nonce_key = Secret("nonce key", bytes(made._nonce_key.expose()))  # noqa: SLF001
    return made  # type: ignore[no-any-return]


def memory_of(server: Any) -> tuple[Any, ...]:  # noqa: ANN401 -- a server, with its memory
    """Return everything that a server remembers, except the order of uploads and the reasons of refusals."""
    rules, release, totals = server._rules, server._release, server._totals  # noqa: SLF001
    return (
        server.offer,
        rules.state.value,
        rules.counted,
        tuple(sorted((upload_id, standing.value) for upload_id, standing in rules._standing.items())),  # noqa: SLF001
        tuple(sorted(rules._entries.items())),  # noqa: SLF001
        tuple(sorted((client.value, upload_id) for client, upload_id in rules._clients.items())),  # noqa: SLF001
        tuple(sorted((standing.value, number) for standing, number in rules._numbers.items() if number)),  # noqa: SLF001
        tuple(sorted(rules._waiting)),  # noqa: SLF001
        total_of(totals),
        tuple(sorted((upload_id, _remembered(upload)) for upload_id, upload in server._pending.items())),  # noqa: SLF001
        tuple(sorted(client.value for client in server._rejected)),  # noqa: SLF001
        server._concluded,  # noqa: SLF001
        (release.signed_list, release.peer_commitment, release.share),
        server._opener._pair.is_wiped,  # noqa: SLF001
    )


def _remembered(upload: Any) -> tuple[Any, ...]:  # noqa: ANN401 -- a pending upload
    return upload.asked or b"", upload.exchange.has_said


def _copied_upload(upload: Any) -> OpenedUpload:  # noqa: ANN401 -- a pending upload
    key, said = upload.mask_key, upload.exchange
    return OpenedUpload(
        upload.entry,
        IdealExchange(said.server, said.entry, said.has_said),
        key and Secret(key.kind, bytes(key.expose())),
        upload.vectors,
        upload.asked,
    )


def shallow(kept: Any) -> Any:  # noqa: ANN401 -- any object with a dictionary; the library's own refuse to be copied
    """Return a copy with its own attributes."""
    made = object.__new__(type(kept))
    vars(made).update(vars(kept))
    return made


PATCHES = ((opened_upload.HalfOpener, "_exchange", exchange),)
"""Replaces the check of unit vectors."""
