"""Verifies certificate chains up to a pinned root, and revocation lists.

This module splits a certificate and checks its signature before an X.509 parser sees it, so that the parser only
receives bytes that the vendor signed. It implements the rules of [RFC 5280] section 6 for short chains without name
constraints or policies; other critical extensions are refused.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.x509.oid import ExtensionOID, NameOID

from secagg.errors import PeerMisbehaved, Reason

from .claims import invalid, malformed, sha256, stale

INTEGER: Final = 0x02
BIT_STRING: Final = 0x03
OCTET_STRING: Final = 0x04
OBJECT_IDENTIFIER: Final = 0x06
SEQUENCE: Final = 0x30
LONG_FORM: Final = 0x80
MAXIMUM_LENGTH_BYTES: Final = 3
MAXIMUM_ELEMENTS: Final = 64
"""Limit on consecutive values; real certificates, lists and extensions have less than half as many."""


@dataclass(frozen=True, slots=True)
class Element:
    """One DER value: its tag, its content, and its whole encoding."""

    tag: int
    content: bytes
    encoded: bytes

    def children(self) -> tuple[Element, ...]:
        return elements(self.content)

    def expect(self, tag: int) -> Element:
        """Return this value if it has the tag; raise otherwise."""
        if self.tag != tag:
            raise malformed(f"expected DER tag {tag:#04x}; got {self.tag:#04x}")
        return self


@dataclass(frozen=True, slots=True)
class Signed:
    """Parts of a signed X.509 object: a certificate or a revocation list."""

    message: bytes
    fields: tuple[Element, ...]
    algorithm: bytes
    signature: bytes


def elements(data: bytes) -> tuple[Element, ...]:
    """Split data into DER values; lengths must be minimal, and no bytes may be left over."""
    found: list[Element] = []
    position = 0
    while position < len(data):
        start = position
        header = data[position : position + 2 + MAXIMUM_LENGTH_BYTES]
        if len(header) < 2:  # noqa: PLR2004 -- a tag and a length
            raise malformed("a DER value ends within its header", Reason.TRUNCATED)
        length, size = header[1], 0
        if length >= LONG_FORM:
            size = length - LONG_FORM
            length = int.from_bytes(header[2 : 2 + size], "big")
            if not 1 <= size <= MAXIMUM_LENGTH_BYTES or length < LONG_FORM or length >> (8 * size - 8) == 0:
                raise malformed("a DER length is not minimal")
        position += 2 + size + length
        if position > len(data):
            raise malformed("a DER value ends early", Reason.TRUNCATED)
        if len(found) == MAXIMUM_ELEMENTS:
            # Without a limit, a list of empty values would take seconds before any signature is checked.
            raise malformed(f"more than {MAXIMUM_ELEMENTS} consecutive DER values", Reason.LENGTH_OVER_LIMIT)
        found.append(Element(header[0], data[start + 2 + size : position], data[start:position]))
    return tuple(found)


def only(data: bytes, tag: int) -> Element:
    """Read data that must be exactly one DER value."""
    found = elements(data)
    if len(found) != 1:
        raise malformed(f"expected one DER value; got {len(found)}")
    return found[0].expect(tag)


def read_signed(data: bytes) -> Signed:
    """Split a certificate or revocation list into signed content, algorithm and signature."""
    parts = only(data, SEQUENCE).children()
    if [part.tag for part in parts] != [SEQUENCE, SEQUENCE, BIT_STRING]:
        raise malformed("a certificate or revocation list must have content, an algorithm and a signature")
    content, algorithm, signature = parts
    if signature.content[:1] != b"\0":
        raise malformed("a signature must be a whole number of bytes")
    return Signed(content.encoded, content.children(), algorithm.encoded, signature.content[1:])


def small_integer(encoded: bytes, limit: int) -> int:
    """Read a non-negative integer up to a limit."""
    content = only(encoded, INTEGER).content
    value = int.from_bytes(content, "big", signed=True)
    if not content or not 0 <= value <= limit or len(content) != value.bit_length() // 8 + 1:
        raise malformed(f"expected an integer from 0 to {limit}")
    return value


Check = Callable[[PublicKeyTypes, bytes, bytes], None]


@dataclass(frozen=True, slots=True)
class SignatureScheme:
    """A signature scheme: its name, its identifier in certificates, and a function that checks a signature.

    The vendor determines the scheme; a certificate that names another one is refused.
    """

    name: str
    identifier: bytes
    check: Check

    def verify(self, key: PublicKeyTypes, signature: bytes, message: bytes, what: str) -> None:
        try:
            self.check(key, signature, message)
        except (InvalidSignature, UnsupportedAlgorithm, ValueError):
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
    return invalid(f"a signing key {what}; it is from another vendor's chain")


ECDSA_P256 = SignatureScheme(
    "ECDSA on P-256 with SHA-256", bytes.fromhex("06082a8648ce3d040302"), _ecdsa(ec.SECP256R1, hashes.SHA256())
)
ECDSA_P384 = SignatureScheme(
    "ECDSA on P-384 with SHA-384", bytes.fromhex("06082a8648ce3d040303"), _ecdsa(ec.SECP384R1, hashes.SHA384())
)
RSA_PSS = SignatureScheme("RSASSA-PSS with SHA-384", bytes.fromhex("06092a864886f70d01010a"), _rsa_pss)


def joined_signature(data: bytes, order: Literal["big", "little"] = "big") -> bytes:
    """Encode ``r || s``, of equal length, as the DER signature that ``verify`` takes."""
    half = len(data) // 2
    return encode_dss_signature(int.from_bytes(data[:half], order), int.from_bytes(data[half:], order))


def p256_public_key(point: bytes) -> ec.EllipticCurvePublicKey:
    """Read a public key from ``x || y``."""
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), b"\x04" + point)
    except (ValueError, UnsupportedAlgorithm):
        raise invalid("the attestation key is not a point on its curve") from None


MAXIMUM_CERTIFICATE_BYTES: Final = 8192
MAXIMUM_CHAIN: Final = 6
CLOCK_SKEW: Final = timedelta(minutes=5)
"""How far a client's clock may lag at the start of a validity period; there is no tolerance at its end."""
CHECKED_EXTENSIONS: Final = frozenset({ExtensionOID.BASIC_CONSTRAINTS, ExtensionOID.KEY_USAGE})
PEM_BLOCK: Final = re.compile(rb"-----BEGIN CERTIFICATE-----\n([A-Za-z0-9+/=\n]+?)-----END CERTIFICATE-----\n")


class _Form(NamedTuple):
    """A kind of signed object: its name, X.509 version, maximum length, and first tags."""

    name: str
    version: int
    most: int
    leading: tuple[int, ...]


# The first tags: version, serial number (only in certificates), algorithm, issuer, and the fields after them.
_CERTIFICATE: Final = _Form("certificate", 3, MAXIMUM_CERTIFICATE_BYTES, (0xA0, INTEGER, *[SEQUENCE] * 5))
_LIST: Final = _Form("revocation list", 2, 1 << 20, (INTEGER, SEQUENCE, SEQUENCE))


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate whose signature was checked."""

    serial: int
    issuer: bytes
    subject: bytes
    name: str
    """The subject's common name; empty unless there is exactly one."""
    public_key: PublicKeyTypes
    not_before: datetime
    not_after: datetime
    extensions: tuple[x509.Extension[x509.ExtensionType], ...]

    @property
    def signs_lists(self) -> bool:
        """Whether the key may sign revocation lists; a certificate without key usage allows it."""
        usages = [each.value for each in self.extensions if isinstance(each.value, x509.KeyUsage)]
        return all(usage.crl_sign for usage in usages)

    def vendor_extension(self, oid: str) -> bytes | None:
        """Return the bytes of a vendor's extension, or None."""
        for extension in self.extensions:
            if extension.oid.dotted_string == oid and isinstance(extension.value, x509.UnrecognizedExtension):
                return extension.value.value
        return None

    def required_extension(self, oid: str) -> bytes:
        value = self.vendor_extension(oid)
        if value is None:
            raise invalid(f"the certificate of {self.name!r} lacks the extension {oid}")
        return value


@dataclass(frozen=True, slots=True)
class Chain:
    """A verified chain, leaf first and root last."""

    certificates: tuple[Certificate, ...]
    root_fingerprint: bytes
    not_after: datetime

    @property
    def leaf(self) -> Certificate:
        return self.certificates[0]


def verify_chain(encoded: Sequence[bytes], *, roots: frozenset[bytes], scheme: SignatureScheme, now: datetime) -> Chain:
    """Verify a chain of DER certificates, leaf first and root last.

    Implements: [RFC 5280] section 6.1, for the extensions that these chains use.
    """
    if not 2 <= len(encoded) <= MAXIMUM_CHAIN:  # noqa: PLR2004 -- a leaf and a root
        raise invalid(f"a chain must have 2 to {MAXIMUM_CHAIN} certificates; this one has {len(encoded)}")
    fingerprint = sha256(encoded[-1])
    if fingerprint not in roots:
        raise invalid(f"the chain ends in {fingerprint.hex()}, which is not a pinned root certificate")
    certificates = [_parse(encoded[-1], _read(encoded[-1], _CERTIFICATE, scheme))]
    for der in reversed(encoded[:-1]):
        signed = _read(der, _CERTIFICATE, scheme)
        issuer = certificates[0]
        scheme.verify(issuer.public_key, signed.signature, signed.message, "a certificate")
        certificate = _parse(der, signed)
        if certificate.issuer != issuer.subject:
            raise invalid("a certificate names an issuer that did not sign it")
        certificates.insert(0, certificate)
    for below, certificate in enumerate(certificates):
        _check_validity(certificate, now)
        _check_extensions(certificate, below)
    not_after = min(certificate.not_after for certificate in certificates)
    return Chain(tuple(certificates), fingerprint, not_after)


def read_pem_chain(data: bytes) -> list[bytes]:
    """Read PEM certificates in one strict form: lines of 64 characters and nothing between the blocks.

    The last newline may be missing. PEM is not signed, so a second form would allow different texts of one evidence.
    """
    text = data if data.endswith(b"\n") else data + b"\n"
    encoded: list[bytes] = []
    for block in PEM_BLOCK.finditer(text[: MAXIMUM_CHAIN * 2 * MAXIMUM_CERTIFICATE_BYTES]):
        try:
            encoded.append(base64.b64decode(block[1].replace(b"\n", b"")))
        except binascii.Error:
            raise malformed("a certificate in a PEM chain is not base64") from None
    if b"".join(map(_pem, encoded)) != text:
        raise malformed("a PEM chain must be CERTIFICATE blocks with lines of 64 characters, and nothing else")
    return encoded


def _pem(der: bytes) -> bytes:
    text = base64.b64encode(der)
    lines = [text[start : start + 64] for start in range(0, len(text), 64)]
    return b"\n".join([b"-----BEGIN CERTIFICATE-----", *lines, b"-----END CERTIFICATE-----", b""])


def _read(der: bytes, form: _Form, scheme: SignatureScheme) -> Signed:
    if len(der) > form.most:
        raise malformed(f"a {form.name} has {len(der)} bytes; the limit is {form.most}", Reason.LENGTH_OVER_LIMIT)
    signed = read_signed(der)
    if tuple(field.tag for field in signed.fields[: len(form.leading)]) != form.leading:
        raise malformed(f"the fields of a {form.name} are not those of X.509 version {form.version}")
    if signed.fields[form.leading.index(SEQUENCE)].encoded != signed.algorithm:
        raise malformed(f"a {form.name} names two different signature algorithms")
    if not signed.algorithm[2:].startswith(scheme.identifier):
        raise invalid(f"a {form.name} names a different signature algorithm from its vendor's, {scheme.name}")
    return signed


def _parse(der: bytes, signed: Signed) -> Certificate:
    version, serial = signed.fields[0], signed.fields[1]
    number = int.from_bytes(serial.content, "big", signed=True)
    if number <= 0:
        # AMD's chip certificates have serial number 0, which a future release of the parser will refuse.
        # Safe because: the signature was checked over the original bytes; only the parsed copy gets a different number.
        prefix = version.encoded + serial.encoded[: len(serial.encoded) - len(serial.content)]
        der = der.replace(prefix + serial.content, prefix + b"\1" * len(serial.content), 1)
    try:
        content = x509.load_der_x509_certificate(der)
        names = content.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return Certificate(
            serial=number,
            issuer=signed.fields[3].encoded,
            subject=signed.fields[5].encoded,
            name=str(names[0].value) if len(names) == 1 else "",
            public_key=content.public_key(),
            not_before=content.not_valid_before_utc,
            not_after=content.not_valid_after_utc,
            extensions=tuple(content.extensions),
        )
    except Exception as error:  # noqa: BLE001 -- the parser decodes each part when it is read, with errors of many types
        raise malformed(f"a certificate does not decode: {type(error).__name__}") from None


def _check_validity(certificate: Certificate, now: datetime) -> None:
    start, end = certificate.not_before, certificate.not_after
    if not has_begun(start, now) or now > end:
        raise invalid(
            f"the certificate of {certificate.name!r} is valid from {start} to {end}, but it is {now}; collect "
            "fresh evidence, or correct the clock"
        )


def has_begun(start: datetime, now: datetime) -> bool:
    """Return whether a validity period has begun, allowing for a clock that is slightly behind."""
    return start <= now or start - now <= CLOCK_SKEW


def _check_extensions(certificate: Certificate, below: int) -> None:
    """Require that the leaf is not an authority, and that each authority may issue the certificates below it."""
    name = certificate.name
    constraints: x509.BasicConstraints | None = None
    usage: x509.KeyUsage | None = None
    for extension in certificate.extensions:
        if extension.critical and extension.oid not in CHECKED_EXTENSIONS:
            raise invalid(f"the certificate of {name!r} has the critical extension {extension.oid.dotted_string}")
        if isinstance(extension.value, x509.BasicConstraints):
            constraints = extension.value
        if isinstance(extension.value, x509.KeyUsage):
            usage = extension.value
        if isinstance(extension.value, x509.ExtendedKeyUsage):
            raise invalid(f"the certificate of {name!r} has an extended key usage, which cannot be attestation")
    if below == 0:
        _check_leaf(name, constraints, usage)
    else:
        _check_authority(name, constraints, usage, below - 1)


def _check_leaf(name: str, constraints: x509.BasicConstraints | None, usage: x509.KeyUsage | None) -> None:
    if constraints is not None and constraints.ca:
        raise invalid(f"the certificate of {name!r} is an authority's and must not sign evidence")
    if usage is not None and not usage.digital_signature:
        raise invalid(f"the key usage of {name!r} does not allow signatures")


def _check_authority(
    name: str, constraints: x509.BasicConstraints | None, usage: x509.KeyUsage | None, authorities_below: int
) -> None:
    if constraints is None or not constraints.ca:
        raise invalid(f"the certificate of {name!r} is not an authority's and must not sign certificates")
    if constraints.path_length is not None and constraints.path_length < authorities_below:
        raise invalid(f"the authority {name!r} has more authorities below it than its path length allows")
    if usage is not None and not usage.key_cert_sign:
        raise invalid(f"the key usage of {name!r} does not allow signing certificates")


class ListValidity(NamedTuple):
    """Validity period of a revocation list, and the digest of its issuer's name."""

    issuer: bytes
    since: datetime
    until: datetime


def check_not_revoked(
    certificates: Iterable[Certificate],
    revocation_list: bytes,
    *,
    issuer: Certificate,
    scheme: SignatureScheme,
    now: datetime,
) -> ListValidity:
    """Check certificates of one issuer against its revocation list, and return the list's validity period.

    Implements: [RFC 5280] section 6.3, for complete lists signed by the issuer itself.
    """
    _require_signed(revocation_list, issuer, scheme)
    try:
        content = x509.load_der_x509_crl(revocation_list)
        # A critical extension may mean that the list is partial or for other issuers.
        is_partial = any(extension.critical for extension in content.extensions)
        since, until = content.last_update_utc, content.next_update_utc
        revoked = [
            each.name
            for each in certificates
            if content.get_revoked_certificate_by_serial_number(each.serial) is not None
        ]
    except Exception as error:  # noqa: BLE001 -- the parser decodes each part when it is read, with errors of many types
        raise malformed(f"a revocation list does not decode: {type(error).__name__}") from None
    if is_partial:
        raise invalid("revocation lists with critical extensions are not supported")
    if until is None:
        raise malformed("a revocation list must say when the next one will be issued")
    if not has_begun(since, now) or now > until:
        raise stale(
            f"the revocation list of {issuer.name!r} is valid from {since} to {until}, but it is {now}; fetch the "
            "current one"
        )
    if revoked:
        raise invalid(f"{issuer.name!r} has revoked the certificate of {', '.join(map(repr, revoked))}")
    return ListValidity(sha256(issuer.subject), since, until)


def _require_signed(revocation_list: bytes, issuer: Certificate, scheme: SignatureScheme) -> None:
    signed = _read(revocation_list, _LIST, scheme)
    if signed.fields[2].encoded != issuer.subject:
        raise invalid(f"the revocation list was not issued by {issuer.name!r}")
    if not issuer.signs_lists:
        raise invalid(f"the key usage of {issuer.name!r} does not allow signing revocation lists")
    scheme.verify(issuer.public_key, signed.signature, signed.message, "a revocation list")
