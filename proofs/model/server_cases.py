"""What each case of the two servers lets happen, and the defects that are planted, so that each is found."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ideal
from defects import Replacement, planted
from indexing_cast import PATCHES, REFUTED, MemoryJournal, Place, signing_key_of
from secagg.errors import PeerError
from secagg.protocols.two_servers import server_messages
from secagg.protocols.two_servers.journal import Event
from secagg.protocols.two_servers.ledger import UploadLedger
from secagg.protocols.two_servers.release import Release
from secagg.protocols.two_servers.round_rules import Entry, RoundRules, RoundState
from secagg.protocols.two_servers.server import IndexingServer
from secagg.protocols.two_servers.server_messages import OutputCommitment, encode_batch
from secagg.protocols.two_servers.server_state import ServerState
from secagg.protocols.two_servers.uploads.upload import Upload
from secagg.session.certificates import Authority
from secagg.wire import MessageKind
from two_servers import STARTS_AGAIN, Action, Report, Search

PROPOSAL, ANSWER, CONCLUSION = (
    MessageKind.INDEXING_PROPOSAL,
    MessageKind.INDEXING_ANSWER,
    MessageKind.INDEXING_CONCLUSION,
)


def network(journal: type[MemoryJournal]) -> Search:
    """Both servers are honest; the network and client 3 are not."""
    at = Place(7)
    at.send(1)
    at.send(2)
    at.send(3, "x", is_unit=False)
    at.send(3, "y")
    search = Search([at], ((0, 0), (0, 1)), journal)
    elsewhere = _of_another_round()
    forger = signing_key_of("client 3")
    for driven in search.driven:
        index = driven.index
        forged = [at.signed_list(1 - index, entries, forger) for entries in at.subsets()]
        driven.actions += [
            *_receipts(at, index),
            *(
                [Action(f"propose {sent.name}", "propose", ((sent.entry.upload_id,),)) for sent in at.sent.values()]
                * index
            ),
            Action("close", "close"),
            Action(STARTS_AGAIN, STARTS_AGAIN),
            *(Action("agree (forged)", "agree", (message,)) for message in forged),
            *elsewhere[index],
        ]
    return search


def batches(journal: type[MemoryJournal]) -> Search:
    """Both servers are honest, and server 1 asks about all uploads at once."""
    at = Place(7)
    at.send(1)
    at.send(2)
    both = tuple(sent.entry.upload_id for sent in at.sent.values())
    search = Search([at], ((0, 0), (0, 1)), journal)
    for driven in search.driven:
        driven.actions += [*_receipts(at, driven.index), Action("close", "close"), Action(STARTS_AGAIN, STARTS_AGAIN)]
        driven.actions.append(Action("give up", "give_up", ("the operator wants it so",)))
    search.driven[1].actions += [
        Action("propose both", "propose", (both,)),
        Action("propose 2", "propose", (both[1:],)),
    ]
    return search


def corrupted_1(journal: type[MemoryJournal]) -> Search:
    """Server 1 is corrupted, and server 0 is driven."""
    return _with_one_corrupted(0, journal)


def corrupted_0(journal: type[MemoryJournal]) -> Search:
    """Server 0 is corrupted, and server 1 is driven."""
    return _with_one_corrupted(1, journal)


def names(journal: type[MemoryJournal]) -> Search:
    """Server 1 is corrupted, and clients upload twice, or in the names of others."""
    search = _one_corrupted(0, journal)
    at = search.places[0]
    at.send(1)
    at.send(3, "x")
    at.send(3, "y")
    at.send_in_the_name_of(2, certified=True)
    at.send_in_the_name_of(9, certified=False)
    return _with_lists(search, [(sent.name, b"1", b"+") for sent in at.sent.values()])


def _with_one_corrupted(index: int, journal: type[MemoryJournal]) -> Search:
    search = _one_corrupted(index, journal)
    at = search.places[0]
    at.send(1)
    at.send(2)
    at.send(3, "x")
    at.send(3, "y", weight=2)
    # What is proposed or answered, and what is concluded: for one upload or another, everything that can be.
    good, words = (
        (b"1", [("1", b"2", b"-"), ("2", None, None)]) if index == 0 else (b"1+", [("1", b"1-", b""), ("2", None, b"")])
    )
    return _with_lists(search, [*((name, good, b"+") for name in at.sent), *words])


def _one_corrupted(index: int, journal: type[MemoryJournal]) -> Search:
    return Search([Place(7)], ((0, index),), journal)


def _with_lists(search: Search, words: list[tuple[str, bytes | None, bytes | None]]) -> Search:
    """Have one server hear of uploads what the words say, and every list that the other one can sign."""
    (at,), (driven,) = search.places, search.driven
    index, peer = driven.index, 1 - driven.index
    stamp = at.stamp(peer)
    for name, first, last in words:
        upload_id = at.sent[name].entry.upload_id

        def said(kind: MessageKind, what: bytes | None, upload_id: bytes = upload_id) -> tuple[bytes]:
            return (encode_batch(kind, stamp, [(upload_id, None if what is None else upload_id[:4] + what)]),)

        if index == 0:
            driven.actions += [
                Action(f"answer ({name}: {_shown(first)})", "answer", said(PROPOSAL, first)),
                Action(f"settle ({name}: {_shown(last)})", "settle", said(CONCLUSION, last)),
            ]
        else:
            driven.actions += [
                Action(f"propose {name}", "propose", ((upload_id,),)),
                Action(f"conclude ({name}: {_shown(first)})", "conclude", said(ANSWER, first)),
            ]
    lists = [at.signed_list(peer, entries) for entries in at.subsets()]
    search.genuine.update(lists)
    commitments = [OutputCommitment(stamp=stamp, digest=bytes([number]) * 32).encode() for number in (1, 2)]
    driven.actions += [
        *_receipts(at, index),
        Action("close", "close"),
        Action(STARTS_AGAIN, STARTS_AGAIN),
        *(Action(f"agree ({number})", "agree", (message,)) for number, message in enumerate(lists)),
        *(Action(f"open ({number})", "open", (message,)) for number, message in enumerate(commitments)),
    ]
    driven.actions = list(dict.fromkeys(driven.actions))
    return search


def _shown(what: bytes | None) -> str:
    return "refused" if what is None else what.decode()


def two_rounds(journal: type[MemoryJournal]) -> Search:
    """Server 1 is corrupted, and asks client 1 to upload in two rounds of one layout."""
    return _with_two_places(Place(7), Place(8), journal)


def two_layouts(journal: type[MemoryJournal]) -> Search:
    """Server 1 is corrupted, and asks client 1 to upload for two layouts in rounds of one number."""
    return _with_two_places(Place(7), Place(7, width=61), journal)


def _with_two_places(one: Place, other: Place, journal: type[MemoryJournal]) -> Search:
    places, updates = [one, other], ("u", "v")
    for at in places:
        for update in updates:
            at.send(1, update)
        at.send(3)
    search = Search(places, ((0, 0), (1, 0)), journal, {1: updates})
    for driven, elsewhere in zip(search.driven, reversed(places), strict=True):
        at = driven.at
        stamp = at.stamp(1)
        for sent in at.sent.values():
            upload_id = sent.entry.upload_id
            for method, kind, what in (("answer", PROPOSAL, b"1"), ("settle", CONCLUSION, b"+")):
                message = encode_batch(kind, stamp, [(upload_id, upload_id[:4] + what)])
                driven.actions.append(Action(f"{method} ({sent.name})", method, (message,)))
        lists = [at.signed_list(1, entries) for entries in at.subsets()]
        search.genuine.update(lists)
        driven.actions += [
            *_receipts(at, 0, {3}),
            *_receipts(elsewhere, 0),
            Action("close", "close"),
            Action(STARTS_AGAIN, STARTS_AGAIN),
            *(Action(f"agree ({number})", "agree", (message,)) for number, message in enumerate(lists)),
            Action("open", "open", (OutputCommitment(stamp=stamp, digest=bytes(32)).encode(),)),
        ]
    return search


def _receipts(at: Place, index: int, clients: set[int] | None = None) -> list[Action]:
    return [
        Action(f"receive {sent.name}", "receive", (sent.halves[index],))
        for sent in at.sent.values()
        if clients is None or sent.client in clients
    ]


def _of_another_round() -> tuple[list[Action], list[Action]]:
    """Return, for each server, everything that it hears in a whole round of another number."""
    at = Place(8)
    zero, one = at.server(0), at.server(1)
    for sent in (at.send(1), at.send(2)):
        zero.receive(sent.halves[0])
        one.receive(sent.halves[1])
    proposal = one.propose(one.waiting())
    answer = zero.answer(proposal)
    conclusion = one.conclude(answer)
    zero.settle(conclusion)
    lists = zero.close(), one.close()
    commitments = zero.agree(lists[1]), one.agree(lists[0])
    shares = zero.open(commitments[1]), one.open(commitments[0])
    heard = ([("answer", proposal), ("settle", conclusion)], [("conclude", answer)])
    return tuple(  # type: ignore[return-value]
        [
            *(Action(f"{method} (another round)", method, (message,)) for method, message in heard[index]),
            *_receipts(at, index),
            *(
                Action(f"{method} (another round)", method, (messages[server],))
                for method, messages in (("agree", lists), ("open", commitments), ("combine", shares))
                for server in (0, 1)
            ),
        ]
        for index in (0, 1)
    )


# --- Defects ----------------------------------------------------------------------------------------------------------

_REQUIRE, _OPEN, _LIST = RoundRules.require, IndexingServer.open, RoundRules.list_to_sign
_ONLY_ASKED = ServerState._take  # noqa: SLF001


def _still_collecting(self: RoundRules, *states: RoundState) -> None:
    if RoundState.COLLECTING not in states or self.state is not RoundState.SIGNED:
        _REQUIRE(self, *states)


def _still_its_turn(self: Any, received: str, *states: RoundState) -> None:  # noqa: ANN401 -- a server
    if RoundState.COLLECTING not in states or self._rules.state is not RoundState.SIGNED:
        _TURN(self, received, *states)


def _close_again(self: Any) -> bytes:  # noqa: ANN401 -- a server
    signed = self._release.sign(self._rules.list_to_sign())
    if signed != self._release.signed_list:
        self._state.write(Event.SIGNED, signed)
    return self._release.signed_list  # type: ignore[no-any-return]


def _nothing(*_: object, **__: object) -> None:
    """Check nothing."""


def _everybody(self: RoundRules) -> tuple[Entry, ...]:
    self.require(RoundState.COLLECTING)
    return tuple(sorted(self.taken())) or _LIST(self)


def _enough_in_all(self: RoundRules) -> tuple[Entry, ...]:
    _LIST(self)
    return _everybody(self)


def _open_early(self: Any, peer_commitment: bytes) -> bytes:  # noqa: ANN401 -- a server
    if self._rules.state is RoundState.SIGNED:
        state = self._state
        state._agree(b"", self._release.encode_share(state._nonce_key, state.totals, self._rules.counted))  # noqa: SLF001
    return _OPEN(self, peer_commitment)


def _another_of_the_client(self: RoundRules, entry: Entry) -> bool:
    self.require(RoundState.COLLECTING)
    return entry.upload_id not in self._entries


def _take_again(self: Any, upload_id: bytes) -> None:  # noqa: ANN401 -- a state
    # Added when it is written down, and once more where the record is read back.
    pending = self.pending[upload_id]
    pending.add_to(self.totals)
    _ONLY_ASKED(self, upload_id)


def _ask_again(self: Any, upload_id: bytes, heard: bytes, say: Callable[[], bytes]) -> bytes | None:  # noqa: ANN401
    self._pending[upload_id].asked = None
    return _SAID(self, upload_id, heard, say)


def _take_anyway(self: Any, upload_id: bytes, heard: bytes | None, decide: Callable[..., bytes]) -> bytes | None:  # noqa: ANN401
    if heard is None:
        return _DECIDED(self, upload_id, heard, decide)
    with suppress(PeerError):
        return _decided_by(self, upload_id, heard, decide)
    return heard


def _decided_by(self: Any, upload_id: bytes, heard: bytes, decide: Callable[..., bytes]) -> bytes:  # noqa: ANN401
    pending = self._pending[upload_id]
    self._revive(pending)
    return decide(pending.exchange, heard)


_TURN: Any = IndexingServer._require_turn  # noqa: SLF001
_SAID: Any = IndexingServer._say  # noqa: SLF001
_DECIDED: Any = IndexingServer._decide  # noqa: SLF001


class _Losing(MemoryJournal):
    """A journal that loses records of one kind."""

    lost: Event

    def append(self, event: Event, *fields: bytes) -> None:
        """Write a record down, or not."""
        if event is not self.lost:
            super().append(event, *fields)


class LosesAsked(_Losing):
    """Forgets what was asked."""

    lost = Event.ASKED


class LosesSigned(_Losing):
    """Forgets what was signed."""

    lost = Event.SIGNED


class LosesOpened(_Losing):
    """Forgets against what a share was opened."""

    lost = Event.OPENED


class LosesFailed(_Losing):
    """Forgets that a round was given up."""

    lost = Event.FAILED


@dataclass(frozen=True, slots=True)
class Case:
    """A search, and what is planted."""

    name: str
    make: Callable[[type[MemoryJournal]], Search]
    defects: tuple[Replacement, ...] = ()
    journal: type[MemoryJournal] = MemoryJournal
    attacked: bool = False

    def explore(self) -> Report:
        """Run it, with ideal cryptography."""
        REFUTED.clear()
        logging.disable(logging.WARNING)
        with ideal.installed():
            with planted(*PATCHES):
                search = self.make(self.journal)
            with planted(*PATCHES, *self.defects):
                return search.explore()


def cases() -> tuple[Case, ...]:
    """Return every case: the servers as they are, then with each defect."""
    shipped = [
        Case("two servers: server 1 corrupted", corrupted_1),
        Case("two servers: server 0 corrupted", corrupted_0),
        Case("two servers: uploads in others' names", names),
        Case("two servers: both honest, 4 uploads", network),
        Case("two servers: both honest, batches", batches),
        Case("two servers: two rounds, one layout", two_rounds),
        Case("two servers: two layouts, one round", two_layouts),
    ]
    return (*shipped, *(_defective(*defect) for defect in DEFECTS))


def _defective(
    name: str,
    make: Callable[[type[MemoryJournal]], Search],
    defects: tuple[Replacement, ...] = (),
    journal: type[MemoryJournal] = MemoryJournal,
) -> Case:
    return Case(f"two servers: {name}", make, defects, journal, attacked=True)


DEFECTS: tuple[tuple[Any, ...], ...] = (
    (
        "no latch on the list",
        corrupted_1,
        (
            (RoundRules, "require", _still_collecting),
            (IndexingServer, "_require_turn", _still_its_turn),
            (IndexingServer, "close", _close_again),
        ),
    ),
    ("signature of the list not checked", network, ((server_messages, "verify_signature", _nothing),)),
    ("lists not compared", corrupted_1, ((Release, "require_same_list", _nothing),)),
    ("released before both have signed", network, ((IndexingServer, "open", _open_early),)),
    ("cohort not checked", corrupted_1, ((RoundRules, "list_to_sign", _everybody),)),
    ("cohort of each weight not checked", corrupted_0, ((RoundRules, "list_to_sign", _enough_in_all),)),
    ("a client counts twice", names, ((RoundRules, "require_new", _another_of_the_client),)),
    ("an upload added twice", network, ((ServerState, "_take", _take_again),)),
    ("authority of the client not checked", names, ((Authority, "verify", _nothing),)),
    ("signature of the client not checked", names, ((Upload, "verify", _nothing),)),
    ("check of unit vectors not heeded", network, ((IndexingServer, "_decide", _take_anyway),)),
    ("asked twice", corrupted_1, ((IndexingServer, "_say", _ask_again),)),
    ("the journal loses what was asked", corrupted_1, (), LosesAsked),
    ("the journal loses the list", corrupted_0, (), LosesSigned),
    ("the journal loses the commitment", corrupted_0, (), LosesOpened),
    ("the journal loses that a round was given up", corrupted_1, (), LosesFailed),
    ("uploads not in the ledger, two rounds", two_rounds, ((UploadLedger, "charge", _nothing),)),
    ("uploads not in the ledger, two layouts", two_layouts, ((UploadLedger, "charge", _nothing),)),
)
