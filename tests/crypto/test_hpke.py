"""Sealing to one holder: a sealed message opens only for its holder, under its info, unaltered."""

from __future__ import annotations

import copy
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.crypto.hpke import CLASSIC_OVERHEAD_BYTES, ClassicSealingPair, sealing_key, sealing_pair, sealing_sizes
from secagg.crypto.hybrid_key_agreement import HybridKeyPair
from secagg.crypto.key_agreement import X25519KeyPair
from secagg.crypto.public_keys import KeyRole
from secagg.crypto.secret import Secret
from secagg.errors import AuthenticationFailed, MalformedMessage, Misuse, PeerError, PeerMisbehaved, Reason
from secagg.identifiers import AttemptContext, ClientId, ServerId
from secagg.parameters import Suite
from tests.harness.plain_hkdf import framed, hkdf_expand, hkdf_extract

P = 2**255 - 19
ATTEMPT = AttemptContext(bytes(range(32)))
ROOT = b"\1" * 32
PLAINTEXT = bytes(range(200, 236))
INFO = b"what it is bound to"
CULPRITS = (ClientId(4), ServerId())
Pair = ClassicSealingPair | HybridKeyPair
MAKERS: dict[str, Callable[[Secret], Pair | X25519KeyPair]] = {
    "classic sealing": lambda root: sealing_pair(Suite.CLASSIC, root, ATTEMPT),
    "hybrid sealing": lambda root: sealing_pair(Suite.HYBRID, root, ATTEMPT),
    "x25519 mask": lambda root: X25519KeyPair(root, KeyRole.MASK, ATTEMPT),
}
of_any_kind = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def pair_of(suite: Suite, root: bytes = ROOT, attempt: AttemptContext = ATTEMPT) -> Pair:
    return sealing_pair(suite, Secret("root", root), attempt)


def sealed_to(pair: Pair, info: bytes = INFO) -> bytes:
    return pair.public_key.seal(Secret("secret", PLAINTEXT), info)


def opened(pair: Pair, sealed: bytes, info: bytes = INFO, length: int = len(PLAINTEXT)) -> Secret:
    return pair.open("secret", sealed, length, info, culprits=CULPRITS)


def is_not_authentic(pair: Pair, sealed: bytes, info: bytes = INFO) -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        opened(pair, sealed, info)
    assert caught.value.culprits == set(CULPRITS)


@pytest.mark.parametrize("root", [ROOT, b"\2" * 32, bytes(32)])
def test_a_classic_pair_is_the_expansion_of_its_root(root: bytes) -> None:
    info = framed(b"secagg/1/sealing-x25519-key", ATTEMPT.digest)
    scalar = hkdf_expand(root, info)
    expected = X25519PrivateKey.from_private_bytes(scalar).public_key().public_bytes_raw()
    assert pair_of(Suite.CLASSIC, root).public_key.encoded == expected


@pytest.mark.parametrize("suite", Suite)
def test_roots_attempts_and_roles_have_keys_of_their_own(suite: Suite) -> None:
    keys = [
        pair_of(suite).public_key.encoded,
        pair_of(suite, b"\2" * 32).public_key.encoded,
        pair_of(suite, attempt=AttemptContext(bytes(32))).public_key.encoded,
    ]
    for role in (KeyRole.CHANNEL, KeyRole.MASK):
        with Secret("root", ROOT) as root:
            other = X25519KeyPair if suite is Suite.CLASSIC else HybridKeyPair
            keys.append(other(root, role, ATTEMPT).public_key.encoded)
    assert len({key[-32:] for key in keys}) == len(keys)
    assert len({key[:32] for key in keys}) == len(keys)


@of_any_kind
@pytest.mark.parametrize("length", [0, 16, 31, 33, 64])
def test_a_root_of_another_length_is_refused(make: Callable[[Secret], Pair], length: int) -> None:
    with pytest.raises(Misuse, match=f"root, {length} bytes"):
        make(Secret("root", b"\xee" * length))


@of_any_kind
def test_a_pair_is_made_from_a_secret_that_is_there(make: Callable[[Any], Pair]) -> None:
    root = Secret("root", ROOT)
    root.wipe()
    with pytest.raises(Misuse) as caught:
        make(root)
    assert caught.value.reason is Reason.ALREADY_SPENT
    for length in (10, 32):
        with pytest.raises(Misuse, match="Secret") as caught:
            make((b"NEVER-SHOW-THIS!" * 2)[:length])
        assert "NEVER" not in str(caught.value)


@pytest.mark.parametrize("suite", Suite)
def test_a_wiped_pair_opens_nothing_and_still_has_its_public_key(suite: Suite) -> None:
    pair = pair_of(suite)
    sealed, key = sealed_to(pair), pair.public_key.encoded
    pair.wipe()
    with pytest.raises(Misuse) as caught:
        opened(pair, sealed)
    assert caught.value.reason is Reason.ALREADY_SPENT
    assert pair.public_key.encoded == key


@of_any_kind
@pytest.mark.parametrize("attempt", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"])
def test_a_pair_is_not_copied_or_pickled(make: Callable[[Secret], Pair], attempt: Callable[[object], object]) -> None:
    with pytest.raises(Misuse) as caught:
        attempt(make(Secret("root", ROOT)))
    assert caught.value.reason is Reason.SECRET_EXPOSURE


def test_a_pair_shows_its_role_and_no_key() -> None:
    pairs = [make(Secret("root", ROOT)) for make in MAKERS.values()]
    shown = ["<ClassicSealingPair>", "<HybridKeyPair sealing>", "<X25519KeyPair mask>"]
    assert [f"{pair}" for pair in pairs] == [f"{pair!r}" for pair in pairs] == shown


@pytest.mark.parametrize("suite", Suite)
def test_what_was_sealed_opens(suite: Suite) -> None:
    pair = pair_of(suite)
    sealed = sealed_to(pair)
    assert len(sealed) == len(PLAINTEXT) + sealing_sizes(suite)[1]
    found = opened(pair, sealed)
    assert bytes(found.expose()) == PLAINTEXT
    assert found.kind == "secret"
    assert sealed_to(pair) != sealed, "every message has an encapsulation of its own"


def test_sizes_are_those_of_the_suites() -> None:
    assert sealing_sizes(Suite.CLASSIC) == (32, CLASSIC_OVERHEAD_BYTES) == (32, 48)
    assert sealing_sizes(Suite.HYBRID) == (1216, 1136)


@given(length=st.integers(0, 200), info=st.binary(max_size=50), suite=st.sampled_from(Suite))
@settings(max_examples=20)
def test_plaintexts_of_any_length_open_under_their_info_alone(length: int, info: bytes, suite: Suite) -> None:
    pair, plaintext = pair_of(suite), bytes(index % 251 for index in range(length))
    sealed = pair.public_key.seal(Secret("secret", plaintext), info)
    assert bytes(opened(pair, sealed, info, length).expose()) == plaintext
    for other in (info + b"\0", info[:-1] if info else b"\1", b"", b"another"):
        if other != info:
            with pytest.raises(AuthenticationFailed):
                opened(pair, sealed, other, length)


def labelled_extract(suite: bytes, salt: bytes, label: bytes, key: bytes) -> bytes:
    return hkdf_extract(salt, b"HPKE-v1" + suite + label + key)


def labelled_expand(suite: bytes, key: bytes, label: bytes, info: bytes, length: int) -> bytes:
    return hkdf_expand(key, length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info, length)


def test_the_classic_suite_is_that_of_the_standard() -> None:
    """Open a message step by step as in [RFC 9180] sections 4 and 5, with only HMAC, X25519 and AES-GCM."""
    info = framed(b"secagg/1/sealing-x25519-key", ATTEMPT.digest)
    private = X25519PrivateKey.from_private_bytes(hkdf_expand(ROOT, info))
    sealed = sealed_to(pair_of(Suite.CLASSIC))
    encapsulated, ciphertext = sealed[:32], sealed[32:]
    kem, suite = b"KEM\x00\x20", b"HPKE\x00\x20\x00\x01\x00\x01"
    shared = private.exchange(X25519PublicKey.from_public_bytes(encapsulated))
    prk = labelled_extract(kem, b"", b"eae_prk", shared)
    both = encapsulated + private.public_key().public_bytes_raw()
    secret = labelled_expand(kem, prk, b"shared_secret", both, 32)
    hashes = [
        labelled_extract(suite, b"", label, data) for label, data in ((b"psk_id_hash", b""), (b"info_hash", INFO))
    ]
    schedule, of_secret = b"\0" + b"".join(hashes), labelled_extract(suite, secret, b"secret", b"")
    key = labelled_expand(suite, of_secret, b"key", schedule, 16)
    nonce = labelled_expand(suite, of_secret, b"base_nonce", schedule, 12)
    assert AESGCM(key).decrypt(nonce, ciphertext, b"") == PLAINTEXT


@pytest.mark.parametrize("suite", Suite)
def test_nobody_else_opens_it(suite: Suite) -> None:
    sealed = sealed_to(pair_of(suite))
    is_not_authentic(pair_of(suite, b"\2" * 32), sealed)
    is_not_authentic(pair_of(suite, attempt=AttemptContext(bytes(32))), sealed)


@pytest.mark.parametrize("suite", Suite)
def test_no_bit_of_it_can_be_altered(suite: Suite) -> None:
    pair = pair_of(suite)
    sealed = sealed_to(pair)
    # Every bit of the short encapsulation; some bits of every byte of the long one; then the tag.
    for position in range(len(sealed)):
        for bit in range(8) if suite is Suite.CLASSIC else (position % 8,):
            altered = bytearray(sealed)
            altered[position] ^= 1 << bit
            is_not_authentic(pair, bytes(altered))


@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize("coordinate", [0, 1, P - 1, P, P + 1])
def test_a_low_order_share_does_not_open(suite: Suite, coordinate: int) -> None:
    pair, start = pair_of(suite), sealing_sizes(suite)[1] - 48
    sealed = sealed_to(pair)
    is_not_authentic(pair, sealed[:start] + coordinate.to_bytes(32, "little") + sealed[start + 32 :])


@pytest.mark.parametrize("suite", Suite)
def test_another_length_is_malformed_and_blamed(suite: Suite) -> None:
    pair = pair_of(suite)
    sealed = sealed_to(pair)
    for length in (0, 1, 31, 32, 47, 48, len(sealed) - 1, len(sealed) + 1, 2 * len(sealed)):
        with pytest.raises(MalformedMessage, match=f"got {length}") as caught:
            opened(pair, (sealed * 2)[:length])
        assert caught.value.reason is (Reason.TRUNCATED if length < len(sealed) else Reason.TRAILING_BYTES)
        assert caught.value.culprits == set(CULPRITS)
    for due in (len(PLAINTEXT) - 1, len(PLAINTEXT) + 1):
        with pytest.raises(MalformedMessage):
            opened(pair, sealed, length=due)


@pytest.mark.parametrize("suite", Suite)
def test_only_secrets_are_sealed_and_only_to_bytes_of_info(suite: Suite) -> None:
    key = pair_of(suite).public_key
    plain: Any = PLAINTEXT
    with pytest.raises(Misuse, match="Secret"):
        key.seal(plain, INFO)
    info: Any
    for info in (None, "info", bytearray(INFO), memoryview(INFO)):
        with pytest.raises(Misuse, match="info"):
            key.seal(Secret("secret", PLAINTEXT), info)
    gone = Secret("secret", PLAINTEXT)
    gone.wipe()
    with pytest.raises(Misuse) as caught:
        key.seal(gone, INFO)
    assert caught.value.reason is Reason.ALREADY_SPENT


@pytest.mark.parametrize("suite", Suite)
def test_the_failure_carries_no_detail(suite: Suite) -> None:
    pair = pair_of(suite)
    with pytest.raises(AuthenticationFailed) as caught:
        opened(pair, sealed_to(pair), b"other")
    assert caught.value.__suppress_context__
    assert str(caught.value) == "authentication failed"
    frames = caught.tb.tb_next
    rendered = "".join(traceback.TracebackException(caught.type, caught.value, frames, capture_locals=True).format())
    assert "in open" in rendered
    assert "InvalidTag" not in rendered
    assert PLAINTEXT.hex() not in rendered
    assert repr(PLAINTEXT)[2:-1] not in rendered


@pytest.mark.parametrize("suite", Suite)
def test_a_public_key_is_read_back(suite: Suite) -> None:
    pair = pair_of(suite)
    key = sealing_key(suite, pair.public_key.encoded, culprits=CULPRITS)
    assert key == pair.public_key
    assert bytes(opened(pair, key.seal(Secret("secret", PLAINTEXT), INFO)).expose()) == PLAINTEXT


@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize("length", [0, 31, 33, 1184, 1215, 1217])
def test_a_public_key_of_another_length_is_refused(suite: Suite, length: int) -> None:
    with pytest.raises(MalformedMessage) as caught:
        sealing_key(suite, (pair_of(suite).public_key.encoded * 60)[:length], culprits=CULPRITS)
    assert caught.value.reason is (Reason.TRUNCATED if length < sealing_sizes(suite)[0] else Reason.TRAILING_BYTES)
    assert caught.value.culprits == set(CULPRITS)


@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize(
    ("coordinate", "error", "reason"),
    [
        (0, PeerMisbehaved, Reason.PUBLIC_KEY_LOW_ORDER),
        (1, PeerMisbehaved, Reason.PUBLIC_KEY_LOW_ORDER),
        (P - 1, PeerMisbehaved, Reason.PUBLIC_KEY_LOW_ORDER),
        (P, MalformedMessage, Reason.PUBLIC_KEY_NOT_CANONICAL),
        (P + 9, MalformedMessage, Reason.PUBLIC_KEY_NOT_CANONICAL),
        (9 + (1 << 255), MalformedMessage, Reason.PUBLIC_KEY_NOT_CANONICAL),
    ],
)
def test_a_weak_or_second_encoding_is_refused(
    suite: Suite, coordinate: int, error: type[PeerError], reason: Reason
) -> None:
    encoded = pair_of(suite).public_key.encoded[:-32] + coordinate.to_bytes(32, "little")
    with pytest.raises(error) as caught:
        sealing_key(suite, encoded, culprits=CULPRITS)
    assert caught.value.reason is reason
    assert caught.value.culprits == set(CULPRITS)


@pytest.mark.parametrize("suite", Suite)
@pytest.mark.parametrize("kind_of_buffer", [bytearray, memoryview])
def test_an_encoding_that_could_change_after_its_check_is_refused(
    suite: Suite, kind_of_buffer: Callable[[bytes], Any]
) -> None:
    with pytest.raises((Misuse, MalformedMessage)):
        sealing_key(suite, kind_of_buffer(pair_of(suite).public_key.encoded))
