"""Identities: certificates by one authority for one client and one key, and signatures that fit nothing else."""

import copy
import hashlib
import pickle
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from secagg.crypto.key_derivation import derive
from secagg.crypto.labels import Label
from secagg.crypto.secret import Secret
from secagg.errors import AuthenticationFailed, InvalidParameters, Misuse, Reason
from secagg.identifiers import ClientId, ServerId
from secagg.session.certificates import (
    GRANT_BYTES,
    HOUR,
    IDENTITY_KEY_BYTES,
    MOST_REVOKED,
    SIGNATURE_BYTES,
    Authority,
    Certificate,
    SigningKey,
    Standing,
    VerifiedIdentity,
)
from secagg.session.signing_keys import agreed, issue_certificate

ANN, BOB = ClientId(1), ClientId(2)
LABEL = Label.SIGNED_VIEW


def signing_key(seed: bytes) -> SigningKey:
    with Secret("identity seed", seed.ljust(IDENTITY_KEY_BYTES, b".")) as secret:
        return SigningKey(secret)


AUTHORITY = signing_key(b"authority")
ANNS_KEY = signing_key(b"ann")


def known_ann() -> VerifiedIdentity:
    certificate = issue_certificate(AUTHORITY, ANN, ANNS_KEY.public_key)
    return Authority(AUTHORITY.public_key).verify(certificate)


def flipped(data: bytes, bit: int) -> bytes:
    return bytes(byte ^ (1 << bit % 8 if place == bit // 8 else 0) for place, byte in enumerate(data))


# --- Signatures -------------------------------------------------------------------------------------------------------


def test_the_first_vector_of_rfc_8032_gives_its_public_key() -> None:
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    public = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    assert SigningKey(Secret("seed", seed)).public_key == public


@given(st.lists(st.binary(max_size=12), max_size=4))
def test_a_signature_verifies_and_is_deterministic(parts: list[bytes]) -> None:
    signature = ANNS_KEY.sign(LABEL, *parts)
    assert len(signature) == SIGNATURE_BYTES
    assert ANNS_KEY.sign(LABEL, *parts) == signature
    known_ann().verify(signature, LABEL, *parts)


@given(st.lists(st.binary(max_size=6), max_size=3), st.lists(st.binary(max_size=6), max_size=3))
def test_a_signature_fits_no_other_parts(signed: list[bytes], shown: list[bytes]) -> None:
    signature = ANNS_KEY.sign(LABEL, *signed)
    if signed == shown:
        known_ann().verify(signature, LABEL, *shown)
        return
    with pytest.raises(AuthenticationFailed):
        known_ann().verify(signature, LABEL, *shown)


@pytest.mark.parametrize("label", [label for label in Label if label is not LABEL], ids=lambda label: label.name)
def test_a_signature_fits_no_other_label(label: Label) -> None:
    with pytest.raises(AuthenticationFailed):
        known_ann().verify(ANNS_KEY.sign(label, b"part"), LABEL, b"part")


@pytest.mark.parametrize("bit", range(0, 8 * SIGNATURE_BYTES, 7))
def test_a_flipped_bit_is_refused(bit: int) -> None:
    signature = ANNS_KEY.sign(LABEL, b"part")
    with pytest.raises(AuthenticationFailed):
        known_ann().verify(flipped(signature, bit), LABEL, b"part")


def test_a_failure_names_exactly_the_parties_that_the_caller_gives() -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        known_ann().verify(bytes(64), LABEL, b"part", culprits={ANN, ServerId()})
    assert caught.value.culprits == {ANN, ServerId()}
    assert str(caught.value) == "authentication failed"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    with pytest.raises(AuthenticationFailed) as caught:
        known_ann().verify(bytes(64), LABEL, b"part")
    assert caught.value.culprits == frozenset()


# --- Certificates -----------------------------------------------------------------------------------------------------


def test_a_certificate_is_valid_for_one_authority_one_client_and_one_key() -> None:
    authority, issued = Authority(AUTHORITY.public_key), issue_certificate(AUTHORITY, ANN, ANNS_KEY.public_key)
    identity = authority.verify(issued)
    assert (identity.client, identity.public_key) == (ANN, ANNS_KEY.public_key)
    for forged in (
        Certificate(BOB, issued.public_key, issued.grant),
        Certificate(ANN, signing_key(b"bob").public_key, issued.grant),
        Certificate(ANN, issued.public_key, flipped(issued.grant, 300)),
        Certificate(ANN, issued.public_key, bytes(GRANT_BYTES)),
        Certificate(ANN, issued.public_key, flipped(issued.grant, 30)),
        Certificate(ANN, issued.public_key, flipped(issued.grant, 40)),
        issue_certificate(signing_key(b"another authority"), ANN, ANNS_KEY.public_key),
        issue_certificate(ANNS_KEY, ANN, ANNS_KEY.public_key),
    ):
        with pytest.raises(AuthenticationFailed) as caught:
            authority.verify(forged, culprits={ServerId()})
        assert caught.value.culprits == {ServerId()}


PRIME = 2**255 - 19
ORDER_EIGHT = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
WEAK_KEYS = [
    (height + sign * 2**255).to_bytes(32, "little")
    for height in (0, 1, PRIME - 1, PRIME, PRIME + 1, ORDER_EIGHT, PRIME - ORDER_EIGHT)
    for sign in (0, 1)
]
"""The points of small order in all their encodings, including encodings with y not below the prime."""


@pytest.mark.parametrize("key", WEAK_KEYS, ids=bytes.hex)
def test_a_key_of_small_order_is_refused_as_authority_and_as_client(key: bytes) -> None:
    """With such a key, a signature of zeros fits one in a few messages, without any private key."""
    with pytest.raises(InvalidParameters, match="small order"):
        Authority(key)
    with pytest.raises(InvalidParameters, match="small order"):
        issue_certificate(AUTHORITY, ANN, key)
    # A certificate for such a key is useless, even if the authority was tricked into issuing it.
    signature = AUTHORITY.sign(Label.CERTIFICATE, AUTHORITY.public_key, ANN.encode(), key, bytes(8))
    identity = VerifiedIdentity(ANN, key)
    for forged in (bytes(64), (1).to_bytes(32, "little") + bytes(32), key + bytes(32)):
        for attempt in range(16):
            with pytest.raises(AuthenticationFailed):
                identity.verify(forged, Label.SIGNED_VIEW, attempt.to_bytes(2, "big"))
    with pytest.raises(AuthenticationFailed):
        Authority(AUTHORITY.public_key).verify(Certificate(ANN, key, bytes(8) + signature))


@pytest.mark.parametrize("key", [b"\xff" * 32, (PRIME + 3).to_bytes(32, "little")])
def test_a_second_encoding_of_a_key_is_refused(key: bytes) -> None:
    with pytest.raises(InvalidParameters, match="canonical"):
        Authority(key)


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33), bytearray(32), "0" * 32, None])
def test_the_key_of_an_authority_must_be_well_formed(key: Any) -> None:
    with pytest.raises(InvalidParameters, match="32 bytes"):
        Authority(key)


@pytest.mark.parametrize(
    "fields", [(1, bytes(32), bytes(72)), (ANN, bytearray(32), bytes(72)), (ANN, bytes(32), "grant")]
)
def test_a_certificate_requires_the_right_types(fields: tuple[Any, Any, Any]) -> None:
    with pytest.raises(Misuse, match="ClientId"):
        Certificate(*fields)


@pytest.mark.parametrize(("key", "grant"), [(31, 72), (33, 72), (32, 71), (32, 73), (0, 0)])
def test_a_certificate_requires_parts_of_the_right_size(key: int, grant: int) -> None:
    with pytest.raises(InvalidParameters, match="72"):
        Certificate(ANN, bytes(key), bytes(grant))


def test_a_standing_lists_a_limited_number_of_revoked_keys_in_order() -> None:
    assert len(Standing(revoked=tuple(range(MOST_REVOKED))).revoked) == MOST_REVOKED
    for wrong in (tuple(range(MOST_REVOKED + 1)), (2, 1), (1, 1)):
        with pytest.raises(InvalidParameters, match=f"at most {MOST_REVOKED} revoked numbers, in increasing order"):
            Standing(revoked=wrong)


def test_a_certificate_is_valid_until_it_is_revoked_or_expires() -> None:
    certificate = issue_certificate(AUTHORITY, ANN, ANNS_KEY.public_key, number=3, until=10)
    Standing(number=10 * HOUR - 1, revoked=(2, 4)).require_valid(certificate)
    for standing in (Standing(number=1, revoked=(2, 3)), Standing(number=10 * HOUR)):
        with pytest.raises(AuthenticationFailed) as caught:
            standing.require_valid(certificate, culprits={ANN})
        assert caught.value.culprits == {ANN}


# --- The private key --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 31, 33, 64])
def test_a_key_is_made_from_a_seed_of_32_bytes(size: int) -> None:
    with pytest.raises(InvalidParameters, match="32 bytes"):
        SigningKey(Secret("seed", b"s" * size))


def test_a_seed_in_plain_bytes_is_refused() -> None:
    seed: Any = b"s" * 32
    with pytest.raises(Misuse, match="expected a Secret"):
        SigningKey(seed)


def test_a_wiped_key_cannot_sign_or_agree() -> None:
    key = signing_key(b"short-lived")
    key.wipe()
    key.wipe()
    with pytest.raises(Misuse, match="wiped") as caught:
        key.sign(LABEL, b"part")
    assert caught.value.reason is Reason.ALREADY_SPENT
    with pytest.raises(Misuse):
        issue_certificate(key, ANN, ANNS_KEY.public_key)
    with pytest.raises(Misuse):
        agreed(key, ANNS_KEY.public_key, 16, Label.ENCLAVE_PROOF)


def test_a_key_outlives_its_seed() -> None:
    seed = Secret("seed", b"s" * 32)
    key = SigningKey(seed)
    seed.wipe()
    assert key.sign(LABEL) == SigningKey(Secret("seed", b"s" * 32)).sign(LABEL)


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"])
def test_a_key_cannot_be_pickled_or_copied(take: Any) -> None:
    with pytest.raises(Misuse) as caught:
        take(signing_key(b"confined"))
    assert caught.value.reason is Reason.SECRET_EXPOSURE


def test_the_repr_of_a_key_reveals_nothing() -> None:
    assert repr(ANNS_KEY) == str(ANNS_KEY) == "<SigningKey>"


def test_an_authority_only_issues_with_a_signing_key() -> None:
    for wrong in (AUTHORITY.public_key, None, object()):
        nobody: Any = wrong
        with pytest.raises(Misuse, match="needs the authority's SigningKey"):
            issue_certificate(nobody, ANN, ANNS_KEY.public_key)


# --- Key agreement ----------------------------------------------------------------------------------------------------


def agreed_bytes(
    own: SigningKey, peer: bytes, *parts: bytes, length: int = 16, label: Label = Label.ENCLAVE_PROOF
) -> bytes:
    return bytes(agreed(own, peer, length, label, *parts).expose())


@given(st.binary(max_size=16), st.binary(max_size=16), st.lists(st.binary(max_size=8), max_size=3))
def test_two_keys_agree_in_both_directions(one: bytes, other: bytes, parts: list[bytes]) -> None:
    first, second = signing_key(one), signing_key(other)
    assert agreed_bytes(first, second.public_key, *parts) == agreed_bytes(second, first.public_key, *parts)


def test_an_agreed_key_depends_on_both_keys_the_label_and_every_part() -> None:
    bob, third = signing_key(b"bob"), signing_key(b"third")
    made = [
        agreed_bytes(ANNS_KEY, bob.public_key, b"a", b"b"),
        agreed_bytes(ANNS_KEY, bob.public_key, b"ab"),
        agreed_bytes(ANNS_KEY, third.public_key, b"a", b"b"),
        agreed_bytes(third, bob.public_key, b"a", b"b"),
        agreed_bytes(ANNS_KEY, bob.public_key, b"a", b"b", label=Label.ENCLAVE_SEALING),
        # X25519 ignores the sign of a point, so the derivation binds both keys as encoded.
        agreed_bytes(ANNS_KEY, flipped(bob.public_key, 255), b"a", b"b"),
    ]
    assert len(set(made)) == len(made)
    assert len(agreed_bytes(ANNS_KEY, bob.public_key, length=40)) == 40


def test_keys_of_both_curves_are_one_point() -> None:
    """The first key of [RFC 8032] §7.1, converted as elsewhere; X25519 uses the private scalar of that text."""
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    mapped = bytes.fromhex("d85e07ec22b0ad881537c2f44d662d1a143cf830c57aca4305d85c7a90f6b62e")
    key, scalar = SigningKey(Secret("seed", seed)), hashlib.sha512(seed).digest()[:32]
    assert X25519PrivateKey.from_private_bytes(scalar).public_key().public_bytes_raw() == mapped
    peer = bytes(range(32))
    other = X25519PrivateKey.from_private_bytes(hashlib.sha512(peer).digest()[:32])
    with Secret("shared", other.exchange(X25519PublicKey.from_public_bytes(mapped))) as shared:
        own = SigningKey(Secret("seed", peer)).public_key
        due = derive("due", 16, shared, b"", Label.ENCLAVE_PROOF, *sorted((key.public_key, own)))
    assert agreed_bytes(key, own) == bytes(due.expose())


@pytest.mark.parametrize("key", WEAK_KEYS, ids=bytes.hex)
def test_no_key_is_agreed_on_with_a_key_of_small_order(key: bytes) -> None:
    """Everybody would know the result."""
    with pytest.raises(AuthenticationFailed) as caught:
        agreed(ANNS_KEY, key, 16, Label.ENCLAVE_PROOF, culprits={ServerId()})
    assert caught.value.culprits == {ServerId()}
