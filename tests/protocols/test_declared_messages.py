"""Every message of every protocol has one encoding, whatever byte is flipped or length is changed.

Messages are recorded in whole sessions of each protocol, with the place in which they were read; kinds that no session
sends have an example here. A declared kind that is neither sent nor an example is a fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import secagg.protocols
from secagg.conformance.sessions import check_law
from secagg.contract import Aggregate, Layout, Payload
from secagg.crypto.secret import Secret
from secagg.declared import MessageIn
from secagg.errors import MalformedMessage, PeerError, Reason, UnexpectedMessage
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.enclave.client import Upload
from secagg.protocols.enclave.collateral import RelayedCollateral
from secagg.protocols.enclave.judge import Endorsement
from secagg.protocols.enclave.trusted.configuration import Start
from secagg.protocols.enclave.trusted.messages import (
    AnnounceModel,
    DestroyEnclave,
    GiveUpBuffer,
    ModelStamp,
    OpenBuffer,
    ReleaseBuffer,
)
from secagg.protocols.enclave.trusted.messages import Done as EnclaveDone
from secagg.protocols.light_secagg import client as light_secagg_client
from secagg.protocols.light_secagg import configuration as light_secagg_messages
from secagg.protocols.light_secagg import server as light_secagg_server
from secagg.protocols.light_secagg.configuration import Configuration
from secagg.protocols.one_message.client import ClientRecord
from secagg.protocols.pairwise_mask import ClientState, ServerState
from secagg.protocols.pairwise_mask.client_record import ClientRecord as PairwiseRecord
from secagg.protocols.pairwise_mask.client_record import Head
from secagg.protocols.pairwise_mask.configuration import ClientSet, Seat
from secagg.protocols.pairwise_mask.round2_masked_input import Complaint
from secagg.protocols.pairwise_mask.session import ServerRecord
from secagg.protocols.two_servers import server as two_servers
from secagg.protocols.two_servers.point_functions.one_hot_check import OneHotCommitment, OneHotOpening
from secagg.protocols.two_servers.point_functions.one_hot_proof import OneHotProof
from secagg.protocols.two_servers.server_keys import OperatorKeys, ServerKeys
from secagg.protocols.two_servers.server_messages import decode_batch, encode_batch
from secagg.session.frames import Refusal
from secagg.wire import MessageKind
from tests.harness.enclave_buffers import EnclaveSetup, InsecureEnclaveSession
from tests.harness.indexing_rounds import IndexingSetup, InsecureIndexingRound
from tests.harness.pairwise_sessions import InsecurePairwiseSession, stored
from tests.harness.session_worlds import SETTINGS, candidate_of

HEADER: Final = 7
"""Bytes before the fields: magic, version and kind."""
FLIPS: Final = 600
"""Maximum number of flipped bytes per message; in a longer one every second, third, ... byte is flipped."""
EXAMPLES: Final[tuple[MessageIn[Any], ...]] = (
    ClientRecord(task=b"a task", newest_epoch=3, next_round=9, models=(b"m" * 32,) * 2, upload=b"an upload"),
    OneHotCommitment(server=ServerId(1), statement=b"s" * 32, digest=b"d" * 32),
    RelayedCollateral((b"tcb info", b"", b"a chain"), b"an endorsement"),
    Endorsement(key=b"k" * 32, number=5, until=9, policy=b"a policy", signature=b"g" * 64),
    OperatorKeys(server=ServerId(1), signing_key=b"s" * 32, signature=b"g" * 64),
    Start(b"a configuration", ()),
    OpenBuffer(ModelStamp(version=7, digest=b"d" * 32)),
    AnnounceModel(ModelStamp(version=6, digest=b"d" * 32)),
    ReleaseBuffer(),
    GiveUpBuffer(),
    DestroyEnclave(),
    EnclaveDone(),
    Refusal(
        error=0, reason=b"r", sentence=b"s", expected=b"e", received=b"v", needed=1, present=2, culprits=(bytes(9),)
    ),
    PairwiseRecord(
        head=Head(b"n" * 16, 1, ClientId(2)),
        state=ClientState.AWAITING_DELIVERED_SHARES,
        offer=b"an offer",
        advertised_keys=b"keys",
        answered={MessageKind.SESSION_OFFER: (b"d" * 32, b"a reply")},
        coin_bytes=(32, 32),
        edges={3: b"an edge"},
    ),
)
"""Messages that are stored or passed on, but never sent in a session."""
ENCODED: Final[tuple[Any, ...]] = (Aggregate, Configuration, Layout, OneHotOpening, OneHotProof, Payload)
"""Messages with their own decoder."""
IN_THEIR_PLACE: Final = (OneHotOpening, OneHotProof)
"""Messages that are encoded for the shape or configuration in which they were read."""


@dataclass(frozen=True)
class Case:
    """A message as sent, and its receiver's decoder."""

    encoded: bytes
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]

    def altered(self) -> Iterator[bytes]:
        """Yield it with one flipped bit at each place, with the bits in turn."""
        for place in range(0, len(self.encoded), 1 + len(self.encoded) // FLIPS):
            altered = bytearray(self.encoded)
            altered[place] ^= 1 << place % 8
            yield bytes(altered)


_ROOMS: Final = ("secagg.protocols.", "secagg.session.")
"""Modules that declare messages of protocols; the transport and the command line test their own."""


def declared() -> dict[str, type[MessageIn[Any]]]:
    """Return every kind of message that the library declares."""
    for module in walk_packages(secagg.protocols.__path__, "secagg.protocols."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    left, found = list[type[MessageIn[Any]]]([MessageIn]), dict[str, type[MessageIn[Any]]]()
    while left:
        left += (kind := left.pop()).__subclasses__()
        if hasattr(kind, "kind") and kind.__module__.startswith(_ROOMS):
            found[name_of(kind)] = kind
    return found


def name_of(kind: type[MessageIn[Any]]) -> str:
    """Return where a kind of message is declared; a class with slots is created twice, under one name."""
    return f"{kind.__module__.removeprefix('secagg.').removeprefix('protocols.')}: {kind.__name__}"


DECLARED: Final = declared()
BATCHES: Final = ("INDEXING_PROPOSAL", "INDEXING_ANSWER", "INDEXING_CONCLUSION")
ENTRIES: Final = ("LIGHT_SECAGG_ROSTER", "LIGHT_SECAGG_PIECES", "LIGHT_SECAGG_DELIVERY", "LIGHT_SECAGG_SURVIVORS")
FIELDS: Final = ("LIGHT_SECAGG_KEY", "LIGHT_SECAGG_INPUT", "LIGHT_SECAGG_ANSWER")
NAMES: Final = (*sorted(DECLARED), *(f"own decoder: {one.__name__}" for one in ENCODED), *BATCHES, *ENTRIES, *FIELDS)


class Heard:
    """Messages by name, as read by whole sessions; two of each, of different lengths if possible."""

    def __init__(self) -> None:
        self.cases = defaultdict[str, dict[int, Case]](dict)

    def add(self, name: str, case: Case) -> None:
        kept = self.cases[name]
        if len(kept) < 2:
            kept.setdefault(len(case.encoded), case)

    def of(self, name: str) -> list[Case]:
        return list(self.cases[name].values())

    def listen(self, patch: pytest.MonkeyPatch) -> None:
        """Record everything that is decoded from now on."""
        decode: Any = MessageIn.__dict__["decode"]

        def placed(kind: type[MessageIn[Any]], message: bytes, place: object) -> Any:
            read = decode.__func__
            found = read(kind, message, place)
            self.add(
                name_of(kind), Case(bytes(message), lambda data: read(kind, data, place), lambda one: one.encode())
            )
            return found

        patch.setattr(MessageIn, "decode", classmethod(placed))
        for owner in ENCODED:
            patch.setattr(owner, "decode", classmethod(self.with_its_own(owner)))
        patch.setattr(two_servers, "decode_batch", self.batch(decode_batch))
        for side in (light_secagg_client, light_secagg_server):
            for decoder in ("decode_body", "decode_entries"):
                if hasattr(side, decoder):
                    patch.setattr(side, decoder, self.coded(getattr(side, decoder)))

    def with_its_own(self, owner: Any) -> Callable[..., Any]:
        read = owner.__dict__["decode"].__func__

        def decode(kind: Any, message: bytes, *place: Any) -> Any:
            found = read(kind, message, *place)
            beside = place[:1] if owner in IN_THEIR_PLACE else ()
            case = Case(bytes(message), lambda data: read(kind, data, *place), lambda one: one.encode(*beside))
            self.add(f"own decoder: {owner.__name__}", case)
            return found

        return decode

    def batch(self, read: Callable[..., Any]) -> Callable[..., Any]:
        def decode(message: bytes, kind: MessageKind, stamp: Any) -> Any:
            found = read(message, kind, stamp)
            self.add(
                kind.name,
                Case(message, lambda data: read(data, kind, stamp), lambda items: encode_batch(kind, stamp, items)),
            )
            return found

        return decode

    def coded(self, read: Callable[..., Any]) -> Callable[..., Any]:
        write = getattr(light_secagg_messages, read.__name__.replace("decode", "encode"))

        def decode(kind: MessageKind, place: Any, message: bytes) -> Any:
            found = read(kind, place, message)
            self.add(
                kind.name, Case(message, lambda data: read(kind, place, data), lambda one: write(kind, place, one))
            )
            return found

        return decode


@pytest.fixture(scope="module")
def heard() -> Heard:
    found = Heard()
    with pytest.MonkeyPatch.context() as patch:
        found.listen(patch)
        for one in EXAMPLES:
            type(one).decode(one.encode(), None)
        # The length of a complaint, which needs a lying dealer, follows from a roster.
        session = InsecurePairwiseSession()
        session.reach(ServerState.AWAITING_ENCRYPTED_SHARES)
        roster = session.server.roster
        complaint = Complaint(context=roster.context.tag, signature=bytes(64), accused=ClientSet.of(7, [1, 4]))
        Complaint.decode(complaint.encode(), Seat(roster, 0))
        session.reach(ServerState.AWAITING_UNMASKING_SHARES)
        ServerRecord.decode(stored(session.server))
        indices = InsecureIndexingRound(IndexingSetup(population=1))
        indices.upload(1)
        indices.check()
        for name in SETTINGS:
            check_law("sum_of_all", candidate_of(name))
        with ServerKeys(ServerId(1), Secret("seed", b"s" * 32)) as keys:
            ServerKeys.decode(keys.encode())
        enclave = InsecureEnclaveSession(EnclaveSetup())
        Upload.decode(enclave.seal(1).encode(), enclave.configuration)
        (offer, *_) = found.of("one_message.configuration: Offer")
        (made := offer.decode(offer.encoded).configuration).__class__.decode(made.encode())
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_message_has_one_encoding(name: str, heard: Heard) -> None:
    """A flipped byte makes it another message, or an invalid one."""
    assert heard.of(name), "neither a session nor EXAMPLES has it"
    for case in heard.of(name):
        assert case.encode(case.decode(case.encoded)) == case.encoded
        for altered in case.altered():
            try:
                other = case.decode(altered)
            except PeerError:
                continue
            assert case.encode(other) == altered


@pytest.mark.parametrize("name", NAMES)
def test_a_message_has_one_length(name: str, heard: Heard) -> None:
    for case in heard.of(name):
        for length in range(0, len(case.encoded), 1 + len(case.encoded) // FLIPS):
            with pytest.raises(MalformedMessage):
                case.decode(case.encoded[:length])
        for more in (b"\0", b"SAGG" * 9):
            with pytest.raises(MalformedMessage) as caught:
                case.decode(case.encoded + more)
            assert caught.value.reason is Reason.TRAILING_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_a_message_has_one_kind(name: str, heard: Heard) -> None:
    for case in heard.of(name)[:1]:
        for kind in MessageKind:
            other = case.encoded[:5] + kind.to_bytes(2, "big") + case.encoded[HEADER:]
            if other != case.encoded:
                with pytest.raises(UnexpectedMessage):
                    case.decode(other)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_and_nothing_else_happens(name: str, heard: Heard, data: bytes) -> None:
    case = heard.of(name)[0]
    for message in (data, case.encoded[:HEADER] + data, case.encoded[: len(case.encoded) // 2] + data):
        try:
            decoded = case.decode(message)
        except PeerError:
            continue
        assert case.encode(decoded) == message
