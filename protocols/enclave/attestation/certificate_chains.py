"""Certificate chains that end in a pinned root, checked from the root down.

A certificate is parsed after its signature has been checked, so that nothing but a vendor's own bytes reaches the
parser. The rules of [RFC 5280] section 6 that matter for chains of a few certificates without names or policies are
all here; a critical extension beyond them is refused.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.x509.oid import ExtensionOID, NameOID

from secagg.errors import Reason

from .der import Signed, read_signed
from .refusals import invalid, malformed
from .roots import sha256
from .signatures import SignatureScheme

MAXIMUM_CERTIFICATE_BYTES: Final = 8192
MAXIMUM_CHAIN: Final = 6
LEADING_FIELDS: Final = (0xA0, 0x02, 0x30, 0x30, 0x30, 0x30, 0x30)
"""The tags of version, serial number, algorithm, issuer, validity, subject and key."""
CLOCK_SKEW: Final = timedelta(minutes=5)
"""How far a client's clock may be behind that of the maker of evidence or collateral; an end has no slack."""
CHECKED_EXTENSIONS: Final = frozenset({ExtensionOID.BASIC_CONSTRAINTS, ExtensionOID.KEY_USAGE})
PEM_BLOCK: Final = re.compile(rb"-----BEGIN CERTIFICATE-----\n([A-Za-z0-9+/=\n]+?)-----END CERTIFICATE-----\n")
PARSER_REFUSALS: Final = (
    ValueError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate whose signature was checked."""

    serial: int
    issuer: bytes
    subject: bytes
    content: x509.Certificate

    @property
    def public_key(self) -> PublicKeyTypes:
        """The key that the certificate is about."""
        try:
            return self.content.public_key()
        except PARSER_REFUSALS:
            raise invalid("a certificate holds a key that cannot be used") from None

    @property
    def extensions(self) -> x509.Extensions:
        """What the certificate says beyond names, times and a key."""
        try:
            return self.content.extensions
        except PARSER_REFUSALS:
            raise invalid("the extensions of a certificate do not decode") from None

    @property
    def signs_lists(self) -> bool:
        """Whether the key may sign revocation lists; without a word on its use it may."""
        usages = [each.value for each in self.extensions if isinstance(each.value, x509.KeyUsage)]
        return all(usage.crl_sign for usage in usages)

    def common_name(self) -> str:
        """Return the one common name of the subject, or nothing."""
        names = self.content.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(names[0].value) if len(names) == 1 else ""

    def vendor_extension(self, oid: str) -> bytes:
        """Return the bytes of an extension that X.509 does not know."""
        for extension in self.extensions:
            if extension.oid.dotted_string == oid and isinstance(extension.value, x509.UnrecognizedExtension):
                return extension.value.value
        raise invalid(f"the certificate of {self.common_name()!r} lacks the extension {oid}")


@dataclass(frozen=True, slots=True)
class Chain:
    """A checked chain, the leaf first and the root last."""

    certificates: tuple[Certificate, ...]
    root_fingerprint: bytes
    not_after: datetime

    @property
    def leaf(self) -> Certificate:
        """The certificate that the chain is for."""
        return self.certificates[0]


def verify_chain(encoded: Sequence[bytes], *, roots: frozenset[bytes], scheme: SignatureScheme, now: datetime) -> Chain:
    """Check a chain of DER certificates, the leaf first and the root last.

    Implements: [RFC 5280] section 6.1, for the extensions that these chains use.
    Raises:
        MalformedMessage: a certificate does not decode.
        PeerMisbehaved: the root is not pinned, or a link does not hold at this time.
    """
    if not 2 <= len(encoded) <= MAXIMUM_CHAIN:  # noqa: PLR2004 -- a leaf and a root
        raise invalid(f"a chain holds from 2 to {MAXIMUM_CHAIN} certificates; this one holds {len(encoded)}")
    fingerprint = sha256(encoded[-1])
    if fingerprint not in roots:
        raise invalid(f"the chain ends in {fingerprint.hex()}, which is not a pinned root certificate")
    certificates = [_parse(encoded[-1], _read(encoded[-1], scheme))]
    for der in reversed(encoded[:-1]):
        signed = _read(der, scheme)
        issuer = certificates[0]
        scheme.verify(issuer.public_key, signed.signature, signed.message, "a certificate")
        certificate = _parse(der, signed)
        if certificate.issuer != issuer.subject:
            raise invalid("a certificate names another issuer than the one that signed it")
        certificates.insert(0, certificate)
    for below, certificate in enumerate(certificates):
        _check_validity(certificate, now)
        _check_extensions(certificate, below)
    not_after = min(certificate.content.not_valid_after_utc for certificate in certificates)
    return Chain(tuple(certificates), fingerprint, not_after)


def read_pem_chain(data: bytes) -> list[bytes]:
    """Read certificates from PEM that has one form: lines of 64 characters and nothing between the blocks.

    The newline after the last block may be missing. PEM is signed by nobody, so a second form would be a second text
    of the same evidence.
    """
    text = data if data.endswith(b"\n") else data + b"\n"
    encoded: list[bytes] = []
    for block in PEM_BLOCK.finditer(text[: MAXIMUM_CHAIN * 2 * MAXIMUM_CERTIFICATE_BYTES]):
        try:
            encoded.append(base64.b64decode(block[1].replace(b"\n", b"")))
        except binascii.Error:
            raise malformed("a certificate in a PEM chain is not base64") from None
    if b"".join(map(_pem, encoded)) != text:
        raise malformed("a PEM chain is CERTIFICATE blocks of lines of 64 characters, and nothing else")
    return encoded


def _pem(der: bytes) -> bytes:
    text = base64.b64encode(der)
    lines = [text[start : start + 64] for start in range(0, len(text), 64)]
    return b"\n".join([b"-----BEGIN CERTIFICATE-----", *lines, b"-----END CERTIFICATE-----", b""])


def _read(der: bytes, scheme: SignatureScheme) -> Signed:
    if len(der) > MAXIMUM_CERTIFICATE_BYTES:
        raise malformed(
            f"a certificate holds at most {MAXIMUM_CERTIFICATE_BYTES} bytes; this one {len(der)}",
            Reason.LENGTH_OVER_LIMIT,
        )
    signed = read_signed(der)
    if tuple(field.tag for field in signed.fields[: len(LEADING_FIELDS)]) != LEADING_FIELDS:
        raise malformed("the fields of a certificate are not those of X.509 version 3")
    if signed.fields[2].encoded != signed.algorithm:
        raise malformed("a certificate states two signature algorithms")
    require_scheme(signed.algorithm, scheme)
    return signed


def require_scheme(algorithm: bytes, scheme: SignatureScheme) -> None:
    """Refuse an algorithm other than the one that the vendor's chain uses."""
    if not algorithm[2:].startswith(scheme.identifier):
        raise invalid(f"a chain of this vendor is signed by {scheme.name}; a certificate or list says otherwise")


def _parse(der: bytes, signed: Signed) -> Certificate:
    version, serial = signed.fields[0], signed.fields[1]
    number = int.from_bytes(serial.content, "big", signed=True)
    if number <= 0:
        # AMD numbers its chip certificates 0, which the parser announces to refuse in a future release.
        # Safe because: the signature was checked over the original bytes; only the copy that is parsed is renumbered.
        prefix = version.encoded + serial.encoded[: len(serial.encoded) - len(serial.content)]
        der = der.replace(prefix + serial.content, prefix + b"\1" * len(serial.content), 1)
    try:
        content = x509.load_der_x509_certificate(der)
    except PARSER_REFUSALS:
        raise malformed("a certificate does not decode") from None
    return Certificate(number, signed.fields[3].encoded, signed.fields[5].encoded, content)


def _check_validity(certificate: Certificate, now: datetime) -> None:
    start, end = certificate.content.not_valid_before_utc, certificate.content.not_valid_after_utc
    if not has_begun(start, now) or now > end:
        raise invalid(
            f"the certificate of {certificate.common_name()!r} is valid from {start} to {end} and it is {now}; collect "
            "fresh evidence, or set the clock"
        )


def has_begun(start: datetime, now: datetime) -> bool:
    """Tell whether a time has come, for a clock that is a little behind."""
    return start <= now or start - now <= CLOCK_SKEW


def _check_extensions(certificate: Certificate, below: int) -> None:
    """Hold the leaf to be no authority, and an authority to sign certificates with at most so many below it."""
    name = certificate.common_name()
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
            raise invalid(f"the key of {name!r} is for one use that is named, which is not attestation")
    if below == 0:
        _check_leaf(name, constraints, usage)
    else:
        _check_authority(name, constraints, usage, below - 1)


def _check_leaf(name: str, constraints: x509.BasicConstraints | None, usage: x509.KeyUsage | None) -> None:
    if constraints is not None and constraints.ca:
        raise invalid(f"the certificate of {name!r} is an authority's and must not attest")
    if usage is not None and not usage.digital_signature:
        raise invalid(f"the key of {name!r} is not for signatures")


def _check_authority(
    name: str, constraints: x509.BasicConstraints | None, usage: x509.KeyUsage | None, authorities_below: int
) -> None:
    if constraints is None or not constraints.ca:
        raise invalid(f"the certificate of {name!r} is no authority's and must not sign certificates")
    if constraints.path_length is not None and constraints.path_length < authorities_below:
        raise invalid(f"the authority {name!r} has more authorities below it than it may")
    if usage is not None and not usage.key_cert_sign:
        raise invalid(f"the key of {name!r} is not for signing certificates")
