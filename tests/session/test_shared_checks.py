"""Signatures that a process verifies once for many clients, or in several threads: no other signature is accepted."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from secagg.crypto.entropy import SystemCoins
from secagg.crypto.labels import Label
from secagg.crypto.secret import Secret
from secagg.errors import AuthenticationFailed
from secagg.identifiers import ClientId
from secagg.protocols.pairwise_mask.round0_advertise_keys import in_parallel
from secagg.session import certificates
from secagg.session.certificates import IDENTITY_KEY_BYTES, SigningKey, verify_signature
from secagg.simulation import rehearsal as sharing
from secagg.simulation.rehearsal import shared_checks

LABEL = Label.SIGNED_VIEW


def signing_key() -> SigningKey:
    with Secret.random("identity seed", IDENTITY_KEY_BYTES, SystemCoins()) as seed:
        return SigningKey(seed)


class Counted:
    """A verification key of the backend that counts its calls."""

    verified = 0

    def __init__(self, key: Ed25519PublicKey) -> None:
        self._key = key

    @classmethod
    def from_public_bytes(cls, encoded: bytes) -> Counted:
        return cls(Ed25519PublicKey.from_public_bytes(encoded))

    def verify(self, signature: bytes, statement: bytes) -> None:
        Counted.verified += 1
        self._key.verify(signature, statement)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[Counted]:
    monkeypatch.setattr(certificates, "Ed25519PublicKey", Counted)
    Counted.verified = 0
    return Counted


def test_a_signature_is_verified_once_while_checks_are_shared(counted: type[Counted]) -> None:
    key = signing_key()
    signature = key.sign(LABEL, b"statement")
    with shared_checks():
        for _ in range(3):
            verify_signature(key.public_key, signature, LABEL, b"statement")
    assert counted.verified == 1
    for _ in range(2):
        verify_signature(key.public_key, signature, LABEL, b"statement")
    assert counted.verified == 3, "sharing has ended"


@pytest.mark.parametrize("changed", ["key", "signature", "label", "statement", "boundary"])
def test_a_verified_signature_vouches_for_nothing_else(changed: str) -> None:
    key, other = signing_key(), signing_key()
    signature = key.sign(LABEL, b"ab", b"c")
    arguments = {
        "key": (other.public_key, signature, LABEL, b"ab", b"c"),
        "signature": (key.public_key, signature[:-1] + bytes([signature[-1] ^ 1]), LABEL, b"ab", b"c"),
        "label": (key.public_key, signature, Label.SIGNED_SHARES, b"ab", b"c"),
        "statement": (key.public_key, signature, LABEL, b"ab", b"d"),
        "boundary": (key.public_key, signature, LABEL, b"a", b"bc"),
    }[changed]
    with shared_checks():
        verify_signature(key.public_key, signature, LABEL, b"ab", b"c")
        with pytest.raises(AuthenticationFailed):
            verify_signature(*arguments)


def test_a_failed_check_is_not_remembered_as_verified() -> None:
    key = signing_key()
    with shared_checks():
        for _ in range(2):
            with pytest.raises(AuthenticationFailed):
                verify_signature(key.public_key, bytes(64), LABEL, b"statement")


def test_shared_checks_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch, counted: type[Counted]) -> None:
    monkeypatch.setattr(sharing, "SHARED_CHECKS", 2)
    key = signing_key()
    signed = {part: key.sign(LABEL, part) for part in (b"1", b"2", b"3")}
    with shared_checks():
        for part in (b"1", b"2", b"3", b"3", b"1"):
            verify_signature(key.public_key, signed[part], LABEL, part)
    assert counted.verified == 4, "the oldest is forgotten and verified again"


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize("count", [0, 1, 7, 30])
def test_threads_keep_the_order_and_check_all_signatures(threads: int, count: int) -> None:
    assert in_parallel(lambda one: 2 * one, list(range(count)), threads) == [2 * one for one in range(count)]


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize("bad", [(0,), (29,), (5, 28), (14, 15)])
def test_the_first_invalid_signature_is_named_whichever_thread_finds_it(threads: int, bad: tuple[int, ...]) -> None:
    def check(one: int) -> int:
        if one in bad:
            raise AuthenticationFailed(culprits={ClientId(one)})
        return one

    with pytest.raises(AuthenticationFailed) as caught:
        in_parallel(check, list(range(30)), threads)
    assert caught.value.culprits == {ClientId(bad[0])}
