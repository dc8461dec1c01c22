"""Revocation lists: what an authority has taken back, as of a time that the list itself states."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple

from cryptography import x509

from secagg.errors import Reason

from .certificate_chains import PARSER_REFUSALS, Certificate, has_begun, require_scheme
from .der import INTEGER, SEQUENCE, read_signed
from .refusals import invalid, malformed, stale
from .signatures import SignatureScheme

MAXIMUM_LIST_BYTES: Final = 1 << 20
LEADING_FIELDS: Final = (INTEGER, SEQUENCE, SEQUENCE)
"""The tags of version, algorithm and issuer."""


class Spoken(NamedTuple):
    """From when to when a list speaks."""

    since: datetime
    until: datetime


def check_not_revoked(
    certificates: Iterable[Certificate],
    revocation_list: bytes,
    *,
    issuer: Certificate,
    scheme: SignatureScheme,
    now: datetime,
) -> Spoken:
    """Check certificates of one issuer against its list, and return when the list speaks.

    Implements: [RFC 5280] section 6.3, for complete lists signed by the issuer itself.
    Raises:
        MalformedMessage: the list does not decode.
        PeerMisbehaved: the list is not the issuer's, is of another time, or names one of the certificates.
    """
    content = _verified_list(revocation_list, issuer, scheme)
    next_update = content.next_update_utc
    if next_update is None:
        raise malformed("a revocation list must say when the next one is due")
    if not has_begun(content.last_update_utc, now) or now > next_update:
        raise stale(
            f"the revocation list of {issuer.common_name()!r} speaks from {content.last_update_utc} to {next_update} "
            f"and it is {now}; fetch the current one"
        )
    for certificate in certificates:
        if content.get_revoked_certificate_by_serial_number(certificate.serial) is not None:
            raise invalid(f"{issuer.common_name()!r} has revoked the certificate of {certificate.common_name()!r}")
    return Spoken(content.last_update_utc, next_update)


def _verified_list(
    revocation_list: bytes, issuer: Certificate, scheme: SignatureScheme
) -> x509.CertificateRevocationList:
    if len(revocation_list) > MAXIMUM_LIST_BYTES:
        raise malformed(
            f"a revocation list holds at most {MAXIMUM_LIST_BYTES} bytes; this one {len(revocation_list)}",
            Reason.LENGTH_OVER_LIMIT,
        )
    signed = read_signed(revocation_list)
    if tuple(field.tag for field in signed.fields[: len(LEADING_FIELDS)]) != LEADING_FIELDS:
        raise malformed("the fields of a revocation list are not those of X.509 version 2")
    if signed.fields[1].encoded != signed.algorithm:
        raise malformed("a revocation list states two signature algorithms")
    require_scheme(signed.algorithm, scheme)
    if signed.fields[2].encoded != issuer.subject:
        raise invalid(f"the revocation list is not one of {issuer.common_name()!r}")
    if not issuer.signs_lists:
        raise invalid(f"the key of {issuer.common_name()!r} is not for signing revocation lists")
    scheme.verify(issuer.public_key, signed.signature, signed.message, "a revocation list")
    try:
        content = x509.load_der_x509_crl(revocation_list)
        # A critical extension may say that the list is partial, or that it speaks for other issuers.
        partial = any(extension.critical for extension in content.extensions)
    except PARSER_REFUSALS:
        raise malformed("a revocation list does not decode") from None
    if partial:
        raise invalid("a revocation list with critical extensions is not read")
    return content
