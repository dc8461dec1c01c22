"""Certificates and revocation lists of authorities that exist in tests only, right and wrong in one way each."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

NOW = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
START = NOW - timedelta(days=2)
END = NOW + timedelta(days=20)
PSS = padding.PSS(padding.MGF1(hashes.SHA384()), 48)

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


@dataclass(frozen=True)
class Issued:
    """A certificate with the key that it certifies."""

    name: str
    der: bytes
    key: Key
    serial: int


@cache
def p256(number: int) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(number + 1000, ec.SECP256R1())


@cache
def p384(number: int) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(number + 1000, ec.SECP384R1())


@cache
def rsa_key(number: int) -> rsa.RSAPrivateKey:
    del number
    return rsa.generate_private_key(65537, 2048)


def name_of(common_name: str) -> x509.Name:
    organization = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Nobody")
    return x509.Name([organization, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def hash_for(key: Key) -> hashes.SHA256 | hashes.SHA384:
    return hashes.SHA256() if isinstance(key, ec.EllipticCurvePrivateKey) and key.key_size == 256 else hashes.SHA384()


def sign(key: Key, message: bytes) -> bytes:
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(message, PSS, hashes.SHA384())
    return key.sign(message, ec.ECDSA(hash_for(key)))


def usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool | None = None
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign if crl_sign is None else crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def issue(  # noqa: PLR0913 -- each argument is one thing that may be wrong
    name: str,
    key: Key,
    issuer: Issued | None = None,
    *,
    ca: bool = False,
    path_length: int | None = None,
    key_usage: x509.KeyUsage | None = None,
    constraints: bool = True,
    extensions: Iterable[tuple[x509.ExtensionType, bool]] = (),
    start: datetime = START,
    end: datetime = END,
    serial: int | None = None,
    issuer_name: str | None = None,
    digest: hashes.HashAlgorithm | None = None,
) -> Issued:
    """Issue a certificate; without an issuer it is a root."""
    signer = key if issuer is None else issuer.key
    serial = 1000 + sum(name.encode()) if serial is None else serial
    builder = (
        x509.CertificateBuilder()
        .subject_name(name_of(name))
        .issuer_name(name_of(issuer_name or (name if issuer is None else issuer.name)))
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(start)
        .not_valid_after(end)
    )
    if constraints:
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=path_length), critical=True)
    key_usage = key_usage or usage(digital_signature=not ca, key_cert_sign=ca)
    builder = builder.add_extension(key_usage, critical=True)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    chosen = digest or hash_for(signer)
    rsa_padding = PSS if isinstance(signer, rsa.RSAPrivateKey) else None
    certificate = builder.sign(signer, chosen, rsa_padding=rsa_padding)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return Issued(name, certificate.public_bytes(Encoding.DER), key, serial)


def der(tag: int, *parts: bytes) -> bytes:
    """Encode one value."""
    content = b"".join(parts)
    size = len(content)
    if size < 128:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def signed_again(issued: Issued, issuer: Issued, old: bytes, new: bytes) -> Issued:
    """Change the signed part of a certificate, where no builder would, and have its issuer sign it."""
    certificate = x509.load_der_x509_certificate(issued.der)
    message = certificate.tbs_certificate_bytes
    assert message.count(old) == 1
    message = message.replace(old, new)
    algorithm = issued.der[
        issued.der.index(certificate.tbs_certificate_bytes) + len(certificate.tbs_certificate_bytes) :
    ]
    algorithm = algorithm[: 2 + algorithm[1]]
    return Issued(issued.name, der(0x30, message, algorithm, der(3, b"\0", sign(issuer.key, message))), issued.key, 0)


def revocation_list(  # noqa: PLR0913 -- each argument is one thing that may be wrong
    issuer: Issued,
    revoked: Iterable[int] = (),
    *,
    start: datetime = START,
    end: datetime = END,
    critical: bool = False,
    issuer_name: str | None = None,
) -> bytes:
    builder = x509.CertificateRevocationListBuilder().issuer_name(name_of(issuer_name or issuer.name))
    builder = builder.last_update(start).next_update(end).add_extension(x509.CRLNumber(1), critical=critical)
    for serial in revoked:
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(start).build()
        builder = builder.add_revoked_certificate(entry)
    rsa_padding = PSS if isinstance(issuer.key, rsa.RSAPrivateKey) else None
    signed = builder.sign(issuer.key, hash_for(issuer.key), rsa_padding=rsa_padding)
    return signed.public_bytes(Encoding.DER)


def pem(*chain: Issued) -> bytes:
    blocks: list[bytes] = []
    for issued in chain:
        text = base64.b64encode(issued.der)
        lines = b"\n".join(text[start : start + 64] for start in range(0, len(text), 64))
        blocks.append(b"-----BEGIN CERTIFICATE-----\n" + lines + b"\n-----END CERTIFICATE-----\n")
    return b"".join(blocks)
