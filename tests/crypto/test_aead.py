"""One message per key, bound to its header; anything altered, cut or moved elsewhere does not open."""

from __future__ import annotations

import copy
import pickle
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from secagg.crypto.aead import AEAD_KEY_BYTES, TAG_BYTES, AeadHeader, SealingKey, open_sealed
from secagg.crypto.secret import Secret
from secagg.errors import AuthenticationFailed, InvalidParameters, MalformedMessage, Misuse, Reason
from secagg.identifiers import ClientId, ServerId, SessionContext

KEY = b"\7" * 32
PLAINTEXT = b"the plaintext"
HEADER = AeadHeader(
    message_kind=0x0102, context=SessionContext(bytes(range(32, 64))), sender=ClientId(1), receiver=ClientId(2)
)
OTHER_HEADERS = {
    "kind": replace(HEADER, message_kind=0x0103),
    "kind, high byte": replace(HEADER, message_kind=0x0202),
    "context": replace(HEADER, context=SessionContext(bytes(range(33, 65)))),
    "sender": replace(HEADER, sender=ClientId(3)),
    "receiver": replace(HEADER, receiver=ClientId(3)),
    "direction": replace(HEADER, sender=ClientId(2), receiver=ClientId(1)),
}


def seal(plaintext: bytes = PLAINTEXT, header: AeadHeader = HEADER, key: bytes = KEY) -> bytes:
    return SealingKey(Secret("channel_key", key)).seal(header, Secret("shares", plaintext))


def unseal(sealed: bytes, header: AeadHeader = HEADER, key: bytes = KEY, length: int = len(PLAINTEXT)) -> Secret:
    return open_sealed(Secret("channel_key", key), header, sealed, kind="shares", length=length)


@given(
    key=st.binary(min_size=32, max_size=32),
    plaintext=st.binary(max_size=100),
    kind=st.integers(0, 0xFFFF),
    context=st.binary(min_size=32, max_size=32),
    ids=st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=2, unique=True),
)
def test_what_was_sealed_opens(key: bytes, plaintext: bytes, kind: int, context: bytes, ids: list[int]) -> None:
    header = AeadHeader(
        message_kind=kind, context=SessionContext(context), sender=ClientId(ids[0]), receiver=ClientId(ids[1])
    )
    sealed = seal(plaintext, header, key)
    assert len(sealed) == len(plaintext) + TAG_BYTES
    opened = unseal(sealed, header, key, len(plaintext))
    assert bytes(opened.expose()) == plaintext
    assert opened.kind == "shares"


def test_sealing_is_aes_256_gcm_with_the_documented_nonce_and_header() -> None:
    nonce = bytes(10) + b"\x01\x02"
    parts = [b"\x01\x02", bytes(range(32, 64)), bytes(7) + b"\1", bytes(7) + b"\2"]
    associated = b"secagg/1/aead-header" + b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    assert (HEADER.nonce, HEADER.associated_data) == (nonce, associated)
    assert seal() == AESGCM(KEY).encrypt(nonce, PLAINTEXT, associated)


def test_the_key_is_taken_over_at_once_and_gone_after_its_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    key = Secret("channel_key", KEY)
    view = key.expose()
    sealing_key = SealingKey(key)
    assert key.is_wiped
    assert not any(view)
    assert repr(sealing_key) == "<SealingKey>"
    wiped: list[bytes] = []

    def remember(secret: Secret) -> None:
        wiped.append(bytes(secret.expose()))

    monkeypatch.setattr(Secret, "wipe", remember)
    sealing_key.seal(HEADER, Secret("shares", PLAINTEXT))
    assert wiped == [KEY]
    assert repr(sealing_key) == "<SealingKey, spent>"


@pytest.mark.parametrize("header", [HEADER, *OTHER_HEADERS.values()])
def test_a_second_message_under_a_key_is_refused(header: AeadHeader) -> None:
    sealing_key = SealingKey(Secret("channel_key", KEY))
    sealing_key.seal(HEADER, Secret("shares", PLAINTEXT))
    with pytest.raises(Misuse) as caught:
        sealing_key.seal(header, Secret("shares", b"another"))
    assert caught.value.reason is Reason.ALREADY_SPENT


def test_one_secret_makes_no_second_sealing_key() -> None:
    key = Secret("channel_key", KEY)
    SealingKey(key)
    with pytest.raises(Misuse) as caught:
        SealingKey(key)
    assert caught.value.reason is Reason.ALREADY_SPENT


def test_two_threads_do_not_seal_under_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    sealing_key = SealingKey(Secret("channel_key", KEY))
    outcomes: list[object] = []
    rivals: list[threading.Thread] = []

    def try_to_seal() -> None:
        try:
            outcomes.append(sealing_key.seal(HEADER, Secret("shares", b"another")))
        except Misuse as refusal:
            outcomes.append(refusal.reason)

    class SlowCipher:
        """A cipher during whose first use another thread asks the same key for a second message."""

        def __init__(self, key: memoryview) -> None:
            self._cipher = AESGCM(key)
            self.decrypt_into = self._cipher.decrypt_into

        def encrypt(self, nonce: bytes, plaintext: memoryview, header: bytes) -> bytes:
            if not rivals:
                rivals.append(threading.Thread(target=try_to_seal))
                rivals[0].start()
                rivals[0].join(timeout=0.2)  # If a lock protects the key, the rival waits longer than this.
            return self._cipher.encrypt(nonce, plaintext, header)

    monkeypatch.setattr("secagg.crypto.aead.AESGCM", SlowCipher)
    sealed = sealing_key.seal(HEADER, Secret("shares", PLAINTEXT))
    rivals[0].join()
    assert outcomes == [Reason.ALREADY_SPENT]
    assert unseal(sealed) == Secret("shares", PLAINTEXT)


def test_a_plaintext_that_is_gone_does_not_spend_the_key() -> None:
    gone, sealing_key = Secret("shares", PLAINTEXT), SealingKey(Secret("channel_key", KEY))
    gone.wipe()
    with pytest.raises(Misuse, match="shares") as caught:
        sealing_key.seal(HEADER, gone)
    assert caught.value.reason is Reason.ALREADY_SPENT
    assert sealing_key.seal(HEADER, Secret("shares", PLAINTEXT)) == seal()


def test_a_key_is_gone_where_the_cipher_fails_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class FailingCipher:
        """A cipher whose nonce may have been used by the time it fails."""

        def __init__(self, _: memoryview) -> None:
            raise MemoryError

    key = Secret("channel_key", KEY)
    sealing_key = SealingKey(key)
    with monkeypatch.context() as patched:
        patched.setattr("secagg.crypto.aead.AESGCM", FailingCipher)
        with pytest.raises(MemoryError):
            sealing_key.seal(HEADER, Secret("shares", PLAINTEXT))
    assert key.is_wiped
    with pytest.raises(Misuse):
        sealing_key.seal(HEADER, Secret("shares", PLAINTEXT))


def test_a_wiped_key_seals_and_opens_nothing() -> None:
    sealed = seal()
    key = Secret("channel_key", KEY)
    key.wipe()
    for use in (
        lambda: SealingKey(key).seal(HEADER, Secret("shares", PLAINTEXT)),
        lambda: open_sealed(key, HEADER, sealed, kind="shares", length=len(PLAINTEXT)),
    ):
        with pytest.raises(Misuse) as caught:
            use()
        assert caught.value.reason is Reason.ALREADY_SPENT


@pytest.mark.parametrize("header", OTHER_HEADERS.values(), ids=OTHER_HEADERS.keys())
def test_a_message_opens_under_its_own_header_alone(header: AeadHeader) -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        unseal(seal(), header)
    assert caught.value.culprits == {header.sender, ServerId()}


def test_another_key_does_not_open() -> None:
    with pytest.raises(AuthenticationFailed):
        unseal(seal(), key=b"\7" * 31 + b"\6")


def test_a_message_to_oneself_is_refused() -> None:
    with pytest.raises(InvalidParameters, match="client/1"):
        replace(HEADER, receiver=ClientId(1))


def test_a_message_with_any_bit_flipped_does_not_open() -> None:
    sealed = seal()
    for position in range(len(sealed)):
        for bit in range(8):
            altered = bytearray(sealed)
            altered[position] ^= 1 << bit
            with pytest.raises(AuthenticationFailed) as caught:
                unseal(bytes(altered))
            assert caught.value.culprits == {ClientId(1), ServerId()}


def test_a_message_of_another_length_is_malformed() -> None:
    sealed = seal()
    for length in (*range(len(sealed)), len(sealed) + 1, 3 * len(sealed)):
        with pytest.raises(MalformedMessage, match=f"got {length}") as caught:
            unseal((3 * sealed)[:length])
        assert caught.value.reason is (Reason.TRUNCATED if length < len(sealed) else Reason.TRAILING_BYTES)
        assert caught.value.culprits == {ClientId(1), ServerId()}
    for difference in (-1, 1):
        with pytest.raises(MalformedMessage):
            unseal(sealed, length=len(PLAINTEXT) + difference)


def test_the_failure_carries_no_detail_and_no_plaintext() -> None:
    key, altered = Secret("channel_key", KEY), bytearray(seal())
    altered[-1] ^= 1
    with pytest.raises(AuthenticationFailed) as caught:
        open_sealed(key, HEADER, bytes(altered), kind="shares", length=len(PLAINTEXT))
    failure = caught.value
    assert failure.__cause__ is None
    assert failure.__suppress_context__
    assert str(failure) == "authentication failed"
    rendered = "".join(traceback.TracebackException.from_exception(failure, capture_locals=True).format())
    assert "open_sealed" in rendered
    assert "InvalidTag" not in rendered, "the backend's error is shown beside ours"
    assert PLAINTEXT.decode() not in rendered
    assert "7, 7, 7" not in rendered
    assert "x07" not in rendered


@pytest.mark.parametrize("length", [0, 16, 24, 31, 33])
def test_a_key_of_another_length_is_refused(length: int) -> None:
    """AES-GCM itself would accept 16 and 24 bytes."""
    with pytest.raises(InvalidParameters, match=f"{AEAD_KEY_BYTES} bytes; got <Secret short, {length} bytes>"):
        SealingKey(Secret("short", b"\xee" * length))
    with pytest.raises(InvalidParameters):
        open_sealed(Secret("short", b"\xee" * length), HEADER, seal(), kind="shares", length=len(PLAINTEXT))


@pytest.mark.parametrize("attempt", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"])
def test_a_sealing_key_is_not_copied_or_pickled(attempt: Callable[[object], object]) -> None:
    with pytest.raises(Misuse) as caught:
        attempt(SealingKey(Secret("channel_key", KEY)))
    assert caught.value.reason is Reason.SECRET_EXPOSURE


def test_opening_leaves_the_key_as_it_was() -> None:
    key = Secret("channel_key", KEY)
    open_sealed(key, HEADER, seal(), kind="shares", length=len(PLAINTEXT))
    assert bytes(key.expose()) == KEY


@pytest.mark.parametrize("changes", [{"sender": 1}, {"receiver": 2}, {"context": None}])
def test_a_header_of_other_types_is_not_made(changes: dict[str, Any]) -> None:
    fields: dict[str, Any] = {
        "message_kind": 1,
        "context": HEADER.context,
        "sender": HEADER.sender,
        "receiver": HEADER.receiver,
    }
    with pytest.raises(Misuse):
        AeadHeader(**(fields | changes))


def test_a_key_in_plain_bytes_is_refused() -> None:
    plain: Any = KEY
    with pytest.raises(Misuse, match="Secret"):
        SealingKey(plain)


@pytest.mark.parametrize("kind", [1.0, True, "1", -1, 1 << 16])
def test_a_message_kind_that_is_no_integer_of_two_bytes_is_refused(kind: Any) -> None:
    with pytest.raises(InvalidParameters, match="message kind"):
        AeadHeader(message_kind=kind, context=HEADER.context, sender=HEADER.sender, receiver=HEADER.receiver)
