"""Messages: one encoding each, and the README has the tables that the declarations give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secagg.errors import InvalidParameters, MalformedMessage, PeerError, Reason
from secagg.fields import CLIENT, At, Field, Message, fixed, repeated, unsigned, variable
from secagg.identifiers import ClientId
from secagg.protocols.one_message.client import ClientRecord
from secagg.protocols.one_message.configuration import Offer
from secagg.protocols.one_message.epoch import EpochRecord, HolderKeys
from secagg.protocols.one_message.journal import Entry, Event, HolderSecret, JournalHead
from secagg.protocols.one_message.messages import NoHolder, Upload
from secagg.protocols.one_message.parameters import ThresholdRule
from secagg.protocols.one_message.requests import MESSAGES
from secagg.protocols.one_message.tally import Tally
from secagg.wire import Reader, Writer, message_kind
from tests.harness.message_tables import table_of
from tests.harness.one_message_sums import COINS, InsecureSum, SumSetup

STORED = (Entry, HolderSecret, JournalHead, ClientRecord)


@pytest.fixture(scope="module")
def sent() -> dict[type[Message], bytes]:
    """One message of every kind, out of a real sum."""
    world = InsecureSum(SumSetup(rule=ThresholdRule.CERTIFIED))
    server = world.collected()
    client = world.setup.clients[0]
    found: dict[type[Message], bytes] = {Upload: world.stored_upload(client), ClientRecord: world.stored[client]}
    server.fix_list()
    signing = server.requests()
    world.ask(server, signing)
    server.certify()
    certified = server.requests()
    kinds: tuple[type[Message], ...] = (*MESSAGES, Offer, EpochRecord, HolderKeys)
    by_kind = {declared.kind: declared for declared in kinds}
    more = [*signing.values(), *certified.values(), world.holders[0].respond(signing[0]), server.offer]
    more += [world.holders[0].respond(certified[0]), world.record.encode(), world.holders[0].keys, *server.receipts[0]]
    late = Tally(world.offer(), world.setup.sum_id, COINS)
    late.receive_upload(client, world.stored_upload(client))
    for message in (*more, late.deliver()[0]):
        found[by_kind[message_kind(message)]] = message
    found[NoHolder] = world.member(client).join(world.setup.subject).answer(world.record.encode())
    found[Entry] = Entry(event=Event.LISTED, parts=(b"a list", b"a reply")).encode()
    found[HolderSecret] = HolderSecret(record=b"r" * 32, boot_id=b"boot", root=b"s" * 32, nonce=b"n" * 32).encode()
    found[JournalHead] = JournalHead(number=2, made=1 << 60, length=9, chain=b"c" * 32, first=b"a record").encode()
    return found


KINDS = (*MESSAGES, NoHolder, Offer, EpochRecord, HolderKeys, *STORED)


@pytest.mark.parametrize("declared", KINDS)
def test_every_message_has_one_encoding(declared: type[Message], sent: dict[type[Message], bytes]) -> None:
    message = sent[declared]
    assert declared.decode(message).encode() == message
    for cut in {0, 3, 7, 8, len(message) // 2, len(message) - 1}:
        with pytest.raises(MalformedMessage):
            declared.decode(message[:cut])
    with pytest.raises(MalformedMessage) as refused:
        declared.decode(message + b"\0")
    assert refused.value.reason is Reason.TRAILING_BYTES


@pytest.mark.parametrize("declared", KINDS)
def test_altered_bytes_decode_canonically_or_not_at_all(
    declared: type[Message], sent: dict[type[Message], bytes]
) -> None:
    message = sent[declared]
    for start in [*range(min(len(message), 300)), len(message) - 1]:
        altered = message[:start] + bytes([message[start] ^ 0x81]) + message[start + 1 :]
        try:
            decoded = declared.decode(altered)
        except PeerError:
            continue
        assert decoded.encode() == altered


@pytest.mark.parametrize("declared", KINDS)
def test_the_readme_has_the_table_of_every_message(declared: type[Message], repository: Path) -> None:
    text = (repository / "protocols/one_message/README.md").read_text(encoding="utf-8")
    assert f"### {declared.__name__} (kind {declared.kind.value})\n\n{table_of(declared)}" in text


def test_the_readme_names_attacks_that_are_run(repository: Path) -> None:
    readme = (repository / "protocols" / "one_message" / "README.md").read_text(encoding="utf-8")
    table = readme.partition("## Attacks")[2].partition("## Deviations")[0]
    named = set(re.findall(r"`(test_\w+)`", table))
    written = "".join(path.read_text(encoding="utf-8") for path in (repository / "tests").rglob("test_*.py"))
    assert len(named) > 20
    assert not {name for name in named if f"def {name}(" not in written}


def test_secrets_are_not_shown(sent: dict[type[Message], bytes]) -> None:
    assert repr(HolderSecret.decode(sent[HolderSecret])) == "<HolderSecret>"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (unsigned(1), 256),
        (fixed(2), b"abc"),
        (variable(2), b"abc"),
        (repeated(unsigned(1), 2), (1, 2, 3)),
    ],
)
def test_values_that_their_field_cannot_hold(field: Field, value: object) -> None:
    with pytest.raises(InvalidParameters):
        field.write(Writer(1), value)


@given(st.integers(0, (1 << 64) - 1))
def test_clients_are_eight_bytes(number: int) -> None:
    writer = Writer(1)
    CLIENT.write(writer, ClientId(number))
    assert CLIENT.read(Reader(writer.finish(), 1), At(None, {})) == ClientId(number)
