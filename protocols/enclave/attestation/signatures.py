"""The three signature schemes that the vendors use, each with its one curve, hash and padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from secagg.errors import PeerMisbehaved

from .refusals import invalid

Check = Callable[[PublicKeyTypes, bytes, bytes], None]


@dataclass(frozen=True, slots=True)
class SignatureScheme:
    """A scheme by name, with its identifier in certificates and the check of one signature.

    The scheme is the vendor's and never the certificate's choice: what a certificate says must agree with it.
    """

    name: str
    identifier: bytes
    check: Check

    def verify(self, key: PublicKeyTypes, signature: bytes, message: bytes, what: str) -> None:
        """Check a signature.

        Raises:
            PeerMisbehaved: the key is of another kind, or the signature is not one of this key over this message.
        """
        try:
            self.check(key, signature, message)
        except InvalidSignature:
            raise invalid(f"the signature of {what} does not verify") from None


def _ecdsa(curve: type[ec.EllipticCurve], algorithm: hashes.HashAlgorithm) -> Check:
    def check(key: PublicKeyTypes, signature: bytes, message: bytes) -> None:
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, curve):
            raise _wrong_kind(f"is not on {curve.name}")
        key.verify(signature, message, ec.ECDSA(algorithm))

    return check


def _rsa_pss(key: PublicKeyTypes, signature: bytes, message: bytes) -> None:
    if not isinstance(key, rsa.RSAPublicKey):
        raise _wrong_kind("is not an RSA key")
    algorithm = hashes.SHA384()
    key.verify(signature, message, padding.PSS(padding.MGF1(algorithm), algorithm.digest_size), algorithm)


def _wrong_kind(what: str) -> PeerMisbehaved:
    return invalid(f"a key that signs {what}; it belongs to another chain")


ECDSA_P256 = SignatureScheme(
    "ECDSA on P-256 with SHA-256", bytes.fromhex("06082a8648ce3d040302"), _ecdsa(ec.SECP256R1, hashes.SHA256())
)
ECDSA_P384 = SignatureScheme(
    "ECDSA on P-384 with SHA-384", bytes.fromhex("06082a8648ce3d040303"), _ecdsa(ec.SECP384R1, hashes.SHA384())
)
RSA_PSS = SignatureScheme("RSASSA-PSS with SHA-384", bytes.fromhex("06092a864886f70d01010a"), _rsa_pss)


def big_endian_signature(data: bytes) -> bytes:
    """Turn ``r || s``, big-endian and of equal length, into the encoding that ``verify`` takes."""
    half = len(data) // 2
    return encode_dss_signature(int.from_bytes(data[:half], "big"), int.from_bytes(data[half:], "big"))


def little_endian_signature(data: bytes) -> bytes:
    """Turn ``r || s``, little-endian and of equal length, into the encoding that ``verify`` takes."""
    half = len(data) // 2
    return encode_dss_signature(int.from_bytes(data[:half], "little"), int.from_bytes(data[half:], "little"))


def p256_public_key(point: bytes) -> ec.EllipticCurvePublicKey:
    """Read a public key that is ``x || y``.

    Raises:
        PeerMisbehaved: the point is not on the curve.
    """
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), b"\x04" + point)
    except (ValueError, UnsupportedAlgorithm):
        raise invalid("the attestation key is no point of its curve") from None
