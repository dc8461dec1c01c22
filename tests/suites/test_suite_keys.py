"""CCTV's ML-KEM keys, HPKE with the keys of RFC 9180 and hpke-pq, and messages sealed in JavaScript."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hmac import HMAC
from cryptography.hazmat.primitives.hpke import MLKEM768X25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from secagg.crypto.hpke import sealing_key, sealing_pair, sealing_sizes
from secagg.crypto.hybrid_key_agreement import HybridPublicKey
from secagg.crypto.secret import Secret
from secagg.identifiers import AttemptContext
from secagg.parameters import Suite
from tests.harness.suites import Judged, folder, read

POINT = bytes([9]) + bytes(31)
ROOT, ATTEMPT = Secret("root", bytes(32)), AttemptContext(bytes(32))
PLAINTEXT = b"Beauty is truth, truth beauty"


def test_keys_of_cctv_with_a_coefficient_out_of_range() -> None:
    place = folder()
    assert place is not None
    judged = Judged("CCTV ML-KEM-768 moduli")
    keys = gzip.decompress((place / "cctv" / "ML-KEM-768-modulus.txt.gz").read_bytes()).decode().split()
    for number, encoded in enumerate(keys):

        def ours(encoded: str = encoded) -> bool:
            return bool(HybridPublicKey(bytes.fromhex(encoded) + POINT))

        judged.add(number, is_accepted=False, ours=ours)
    judged.close(780)


@dataclass
class Schedule:
    """The key schedule of base mode, in the plainest form.

    Implements: [RFC 9180] §4 and §5.1.
    """

    kem: int
    aead: int

    @property
    def _suite(self) -> bytes:
        return b"HPKE" + b"".join(part.to_bytes(2, "big") for part in (self.kem, 1, self.aead))

    def _extract(self, salt: bytes, label: bytes, secret: bytes, suite: bytes) -> bytes:
        mac = HMAC(salt or bytes(32), hashes.SHA256())
        mac.update(b"HPKE-v1" + suite + label + secret)
        return mac.finalize()

    def _expand(self, key: bytes, label: bytes, info: bytes, length: int, suite: bytes) -> bytes:
        bound = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
        return HKDFExpand(hashes.SHA256(), length, bound).derive(key)

    def shared(self, private: bytes, public: bytes, encapsulated: bytes) -> bytes:
        """Return the secret of DHKEM(X25519)."""
        suite = b"KEM" + self.kem.to_bytes(2, "big")
        exchanged = X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(encapsulated)
        )
        key = self._extract(b"", b"eae_prk", exchanged, suite)
        return self._expand(key, b"shared_secret", encapsulated + public, 32, suite)

    def keys(self, shared: bytes, info: bytes) -> tuple[bytes, bytes]:
        """Return key and nonce of the first message."""
        context = bytes(1) + self._extract(b"", b"psk_id_hash", b"", self._suite)
        context += self._extract(b"", b"info_hash", info, self._suite)
        secret = self._extract(shared, b"secret", b"", self._suite)
        length = {1: 16, 2: 32, 3: 32}[self.aead]
        return (
            self._expand(secret, b"key", context, length, self._suite),
            self._expand(secret, b"base_nonce", context, 12, self._suite),
        )


def opened(suite: Suite, pair: Any, sealed: bytes, info: bytes) -> bool:
    length = len(sealed) - sealing_sizes(suite)[1]
    with pair.open("text", sealed, length, info) as text:
        return bytes(text.expose()) == PLAINTEXT


def test_classic_hpke_at_the_keys_of_rfc_9180() -> None:
    """The suite is A.1's, with the schedule's key and nonce; its sealed message has associated data, ours none."""
    case = next(each for each in read("hpke/rfc9180_x25519_hkdf_sha256.json") if each["aead_id"] == 1)
    private, public, encapsulated, info = (bytes.fromhex(case[name]) for name in ("skRm", "pkRm", "enc", "info"))
    schedule = Schedule(32, 1)
    key, nonce = schedule.keys(schedule.shared(private, public, encapsulated), info)
    assert (key.hex(), nonce.hex()) == ("4531685d41d65f03dc48f6b8302c05b0", "56d890e5accaaf011cff4b7d")
    pair: Any = sealing_pair(Suite.CLASSIC, ROOT, ATTEMPT)
    pair._private = X25519PrivateKey.from_private_bytes(private)  # noqa: SLF001 -- keys come from roots
    judged = Judged("RFC 9180 A.1")
    sealed = encapsulated + AESGCM(key).encrypt(nonce, PLAINTEXT, b"")
    judged.add("opened", is_accepted=True, ours=lambda: opened(Suite.CLASSIC, pair, sealed, info))
    judged.add("another info", is_accepted=False, ours=lambda: opened(Suite.CLASSIC, pair, sealed, info + b"!"))
    ours = sealing_key(Suite.CLASSIC, public).seal(Secret("text", PLAINTEXT), info)
    judged.add("sealed here", is_accepted=True, ours=lambda: opened(Suite.CLASSIC, pair, ours, info))
    judged.close(3)


def test_hybrid_hpke_at_the_keys_of_hpke_pq() -> None:
    """The vector's cipher is ChaCha20-Poly1305 and ours AES-256-GCM; the schedule is checked with the former."""
    (case,) = read("hpke/mlkem768_x25519.json")
    info, shared = bytes.fromhex(case["info"]), bytes.fromhex(case["shared_secret"])
    key, nonce = Schedule(case["kem_id"], 3).keys(shared, info)
    assert (key.hex(), nonce.hex()) == (case["key"], case["base_nonce"])
    first = case["encryptions"][0]
    assert ChaCha20Poly1305(key).decrypt(nonce, bytes.fromhex(first["ct"]), bytes.fromhex(first["aad"]))
    public, expanded = bytes.fromhex(case["pkRm"]), _expanded(bytes.fromhex(case["skRm"]))
    mlkem = MLKEM768PrivateKey.from_seed_bytes(expanded[:64])
    x25519 = X25519PrivateKey.from_private_bytes(expanded[64:])
    assert mlkem.public_key().public_bytes_raw() + x25519.public_key().public_bytes_raw() == public
    pair: Any = sealing_pair(Suite.HYBRID, ROOT, ATTEMPT)
    pair._private = MLKEM768X25519PrivateKey(mlkem, x25519)  # noqa: SLF001 -- keys come from roots
    key, nonce = Schedule(case["kem_id"], 2).keys(shared, info)
    sealed = bytes.fromhex(case["enc"]) + AESGCM(key).encrypt(nonce, PLAINTEXT, b"")
    judged = Judged("hpke-pq MLKEM768-X25519")
    judged.add("opened", is_accepted=True, ours=lambda: opened(Suite.HYBRID, pair, sealed, info))
    judged.add("another info", is_accepted=False, ours=lambda: opened(Suite.HYBRID, pair, sealed, info + b"!"))
    ours = sealing_key(Suite.HYBRID, public).seal(Secret("text", PLAINTEXT), info)
    judged.add("sealed here", is_accepted=True, ours=lambda: opened(Suite.HYBRID, pair, ours, info))
    judged.close(3)


def _expanded(seed: bytes) -> bytes:
    shake = hashes.Hash(hashes.SHAKE256(96))
    shake.update(seed)
    return shake.finalize()


@pytest.mark.parametrize("suite", [Suite.CLASSIC, Suite.HYBRID])
def test_what_javascript_sealed(suite: Suite) -> None:
    cases = [case for case in read("hpke/sealed_by_hpke_js.json") if case["suite"] == suite.name.lower()]
    judged = Judged(f"sealed in JavaScript, {suite.name.lower()}")
    for number, case in enumerate(cases):
        sealed, info, text = (bytes.fromhex(case[name]) for name in ("sealed", "info", "plaintext"))
        pair = sealing_pair(
            suite, Secret("root", bytes.fromhex(case["root"])), AttemptContext(bytes.fromhex(case["attempt"]))
        )

        def ours(pair: Any = pair, sealed: bytes = sealed, info: bytes = info, text: bytes = text) -> bool:
            with pair.open("text", sealed, len(text), info) as found:
                return bytes(found.expose()) == text

        judged.add(number, is_accepted=True, ours=ours)
    judged.close(len(cases))
    assert len(cases) == 3
