"""Wycheproof's cases through the library's own functions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_der_public_key

from secagg.crypto.aead import AEAD_KEY_BYTES, TAG_BYTES, open_sealed
from secagg.crypto.hybrid_key_agreement import HybridPublicKey
from secagg.crypto.key_agreement import X25519KeyPair
from secagg.crypto.key_derivation import derive
from secagg.crypto.labels import Label
from secagg.crypto.public_keys import KeyRole, X25519PublicKey
from secagg.crypto.secret import Secret
from secagg.errors import Reason
from secagg.identifiers import AttemptContext, ClientId
from secagg.protocols.enclave.attestation.certificates import (
    ECDSA_P256,
    ECDSA_P384,
    RSA_PSS,
    SignatureScheme,
    joined_signature,
)
from secagg.session.certificates import verify_signature
from tests.harness.suites import Judged, groups

PEER = ClientId(2)
POINT = bytes([9]) + bytes(31)
"""An X25519 key that is never refused."""


def unbound(label: Label, *parts: bytes) -> bytes:
    """Omit the label, which the library prefixes and a suite cannot know."""
    del label
    return b"".join(parts)


def of(case: dict[str, Any], name: str) -> bytes:
    return bytes.fromhex(case[name])


def test_x25519() -> None:
    judged = Judged(
        "Wycheproof X25519",
        {
            Reason.PUBLIC_KEY_LOW_ORDER: (15, "keys of low order, which make the secret a constant"),
            Reason.PUBLIC_KEY_NOT_CANONICAL: (29, "second encodings of a key, which would pass for another client's"),
        },
    )
    for _, case in groups("x25519_test"):

        def ours(case: dict[str, Any] = case) -> bool:
            pair = X25519KeyPair(Secret("root", bytes(32)), KeyRole.MASK, AttemptContext(bytes(32)))
            pair._private = X25519PrivateKey.from_private_bytes(of(case, "private"))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            with pair._exchange(PEER, X25519PublicKey(of(case, "public"))) as shared:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
                return bytes(shared.expose()) == of(case, "shared")

        judged.add(case["tcId"], is_accepted=case["result"] != "invalid", ours=ours)
    judged.close(518)


def test_ed25519() -> None:
    judged = Judged("Wycheproof Ed25519")
    for group, case in groups("ed25519_test"):

        def ours(group: dict[str, Any] = group, case: dict[str, Any] = case) -> bool:
            verify_signature(of(group["publicKey"], "pk"), of(case, "sig"), Label.CERTIFICATE, of(case, "msg"))
            return True

        with patch("secagg.session.certificates.bind", unbound):
            judged.add(case["tcId"], is_accepted=case["result"] == "valid", ours=ours)
    judged.close(151)


def test_ml_kem_keys() -> None:
    judged = Judged("Wycheproof ML-KEM-768 keys")
    for _, case in groups("mlkem_768_encaps_test"):

        def ours(case: dict[str, Any] = case) -> bool:
            return bool(HybridPublicKey(of(case, "ek") + POINT))

        judged.add(case["tcId"], is_accepted=case["result"] == "valid", ours=ours)
    judged.close(265)


def test_hkdf() -> None:
    judged = Judged("Wycheproof HKDF-SHA256")
    for _, case in groups("hkdf_sha256_test"):

        def ours(case: dict[str, Any] = case) -> bool:
            source = Secret("source", of(case, "ikm"))
            with derive("okm", case["size"], source, of(case, "salt"), Label.CERTIFICATE, of(case, "info")) as derived:
                return bytes(derived.expose()) == of(case, "okm")

        with patch("secagg.crypto.key_derivation.bind", unbound):
            judged.add(case["tcId"], is_accepted=case["result"] == "valid", ours=ours)
    judged.close(86)


def test_aes_gcm() -> None:
    judged = Judged("Wycheproof AES-256-GCM, nonces of 96 bits")
    cases = [case for group, case in groups("aes_gcm_test") if (group["keySize"], group["ivSize"]) == (256, 96)]
    for case in cases:
        assert len(of(case, "key")) == AEAD_KEY_BYTES
        assert len(of(case, "tag")) == TAG_BYTES
        header = SimpleNamespace(nonce=of(case, "iv"), associated_data=of(case, "aad"), sender=PEER)

        def ours(case: dict[str, Any] = case, header: SimpleNamespace = header) -> bool:
            key, sealed = Secret("key", of(case, "key")), of(case, "ct") + of(case, "tag")
            with open_sealed(key, cast("Any", header), sealed, kind="text", length=len(of(case, "ct"))) as text:
                return bytes(text.expose()) == of(case, "msg")

        judged.add(case["tcId"], is_accepted=case["result"] == "valid", ours=ours)
    judged.close(66)


@pytest.mark.parametrize(
    ("name", "scheme", "length", "count"),
    [
        ("ecdsa_secp256r1_sha256_p1363_test", ECDSA_P256, 64, 262),
        ("ecdsa_secp384r1_sha384_p1363_test", ECDSA_P384, 96, 280),
    ],
)
def test_ecdsa(name: str, scheme: SignatureScheme, length: int, count: int) -> None:
    """Signatures of evidence are in fields of fixed length, so others never reach the check."""
    judged = Judged(f"Wycheproof {scheme.name}")
    for group, case in groups(name):

        def ours(group: dict[str, Any] = group, case: dict[str, Any] = case) -> bool:
            key: Any = load_der_public_key(of(group, "publicKeyDer"))
            signature = of(case, "sig")
            if len(signature) != length:
                return False
            scheme.verify(key, joined_signature(signature), of(case, "msg"), "a case")
            return True

        judged.add(case["tcId"], is_accepted=case["result"] == "valid", ours=ours)
    judged.close(count)


def test_rsa_pss() -> None:
    judged = Judged("Wycheproof RSASSA-PSS, 4096 bits")
    for group, case in groups("rsa_pss_4096_sha384_mgf1_48_test"):

        def ours(group: dict[str, Any] = group, case: dict[str, Any] = case) -> bool:
            key: Any = load_der_public_key(of(group, "publicKeyDer"))
            RSA_PSS.verify(key, of(case, "sig"), of(case, "msg"), "a case")
            return True

        judged.add(case["tcId"], is_accepted=case["result"] == "valid", ours=ours)
    judged.close(141)
