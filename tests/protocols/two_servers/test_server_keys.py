"""The keys of a server's operator: one pair key for both, one encoding, and nothing left in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from secagg.crypto.secret import Secret
from secagg.errors import AuthenticationFailed, InvalidParameters, MalformedMessage, Misuse
from secagg.identifiers import ServerId
from secagg.protocols.two_servers.server_keys import OperatorKeys, ServerKeys, trial_server_keys
from tests.harness.indexing_rounds import IndexingSetup

COINS = IndexingSetup().coins_of("two operators")
ZERO, ONE = trial_server_keys(COINS)
SERVER_AT = 7
"""Behind the header stands which server it is."""


def is_refused(decode: type[OperatorKeys | ServerKeys], message: bytes) -> None:
    for damaged in (message[:-1], message + b"\0", message[:SERVER_AT] + b"\2" + message[SERVER_AT + 1 :]):
        with pytest.raises(MalformedMessage):
            decode.decode(damaged)


def test_both_operators_derive_one_key_and_a_stranger_another() -> None:
    stranger, _ = trial_server_keys(COINS)
    with ZERO.pair_key(ONE.public) as zero, ONE.pair_key(ZERO.public) as one, ONE.pair_key(stranger.public) as other:
        assert bytes(zero.expose()) == bytes(one.expose()) != bytes(other.expose())


def test_what_an_operator_gives_away_is_read_back_and_nothing_else_is() -> None:
    message = ONE.public.encode()
    assert OperatorKeys.verified(message) == ONE.public
    is_refused(OperatorKeys, message)
    for place in (SERVER_AT, SERVER_AT + 40, len(message) - 1):
        altered = message[:place] + bytes([message[place] ^ 1]) + message[place + 1 :]
        with pytest.raises(AuthenticationFailed):
            OperatorKeys.verified(altered)


def test_a_key_file_is_read_back_and_nothing_else_is() -> None:
    message = ZERO.encode()
    with ServerKeys.decode(message) as again:
        assert again.public == ZERO.public
        assert again.encode() == message
    is_refused(ServerKeys, message)


def test_a_server_shares_no_key_with_itself() -> None:
    disguised = replace(ZERO.public, server=ServerId(1))
    other_zero = replace(ONE.public, server=ServerId(0))
    for peer in (ZERO.public, disguised, other_zero):
        with pytest.raises(InvalidParameters, match="shares a key with the other server"):
            ZERO.pair_key(peer)
    with pytest.raises(AuthenticationFailed):
        ZERO.pair_key(replace(ONE.public, signing_key=bytes(32)))


@pytest.mark.parametrize("size", [31, 33])
def test_a_seed_is_of_its_length(size: int) -> None:
    with pytest.raises(Misuse, match="32 bytes"):
        ServerKeys(ServerId(0), Secret.random("seed", size, COINS))


def test_keys_are_overwritten() -> None:
    with ServerKeys.random(ServerId(0), COINS) as keys:
        assert not keys.signing_seed.is_wiped
    assert keys.signing_seed.is_wiped
