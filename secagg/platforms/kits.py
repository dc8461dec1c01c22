"""Platform credentials that vouch for a client when the authority certifies its key.

An NVFlare site has a certificate in its startup kit; a Flower SuperNode has a key that its SuperLink knows. The private
key of such a kit signs the client's request. The authority lists its sites, one ``NUMBER NAME`` per line. A name is the
common name of an NVFlare kit, or a SuperNode's public key in OpenSSH format. A kit vouches only for its number.

Security: anyone who controls the platform's root or the list can enrol clients. This protects clients from a
malicious server only if a different party controls them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
    load_pem_private_key,
    load_ssh_private_key,
)
from cryptography.x509.oid import NameOID

from secagg.crypto.labels import Label, bind
from secagg.errors import InvalidParameters
from secagg.session.identities import Request

_WORD: Final = "kit"
_HASH: Final = hashes.SHA256()
_PADDING: Final = padding.PSS(padding.MGF1(_HASH), padding.PSS.DIGEST_LENGTH)
_PARSING: Final = (x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)
_LINE_WORDS: Final = 3
_SITE: Final = re.compile(r"([0-9]{1,20})\s+(\S.*)", re.ASCII)


def _statement(request: Request, public: bytes) -> bytes:
    return bind(Label.KEY_VOUCHED, request.authority, request.client.encode(), request.public_key, public)


@dataclass(frozen=True, slots=True)
class Kit:
    """A site's private key, and its certificate if it has one."""

    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey = field(repr=False)
    certificate: bytes

    def vouch(self, request: Request) -> str:
        """Return the line with which the kit vouches for a request."""
        public = self.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        statement = _statement(request, public)
        if isinstance(self.key, rsa.RSAPrivateKey):
            signature = self.key.sign(statement, _PADDING, _HASH)
        else:
            signature = self.key.sign(statement, ec.ECDSA(_HASH))
        return " ".join((_WORD, self.certificate.hex() or "-", public.hex(), signature.hex())) + "\n"


def load_kit(kit: Path) -> Kit:
    """Read the folder of an NVFlare site or its ``startup``, or the file of a SuperNode's private key.

    Raises:
        InvalidParameters: there is no such kit, or its key is of an unsupported kind.
    """
    folder = kit / "startup" if (kit / "startup").is_dir() else kit
    try:
        shown = x509.load_pem_x509_certificate((folder / "client.crt").read_bytes()) if kit.is_dir() else None
        text = (folder / "client.key" if kit.is_dir() else kit).read_bytes()
        load = load_ssh_private_key if b"OPENSSH" in text else load_pem_private_key
        key = load(text, None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidParameters(
            f"{kit} is neither a site of NVFlare with client.crt and client.key nor a SuperNode's private key ({error})"
        ) from None
    if not isinstance(key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        raise InvalidParameters(f"{kit} has an unsupported key; use RSA or a NIST curve")
    return Kit(key, b"" if shown is None else shown.public_bytes(Encoding.DER))


def read_sites(path: Path) -> Mapping[int, str]:
    """Read the list of an authority's sites.

    Raises:
        InvalidParameters: the list cannot be read, or has a number or a site twice.
    """
    sites = dict[int, str]()
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip() and line[0] != "#"]
    except (OSError, ValueError) as error:
        raise InvalidParameters(f"{path} is not a list of sites with one NUMBER NAME per line ({error})") from None
    for line in lines:
        if (found := _SITE.fullmatch(line.strip())) is None:
            raise InvalidParameters(f"{path} is not a list of sites with one NUMBER NAME per line; it has {line:.60}")
        # A key in OpenSSH format may have a comment.
        is_key, name = found[2].startswith("ecdsa-"), found[2]
        sites[int(found[1])] = " ".join(name.split()[:2]) if is_key else name
    if len({*sites.values()}) < len(lines):
        raise InvalidParameters(f"{path} lists a number or a site twice; give each site one number")
    return sites


def require_vouched(
    request: Request, line: str, sites: Mapping[int, str], root: x509.Certificate | None, now: datetime
) -> None:
    """Refuse a request unless the kit of its number's site vouches for it.

    Args:
        line: the result of ``Kit.vouch``, which came with the request.
        root: the root of an NVFlare project; None if sites are SuperNodes.
    Raises:
        InvalidParameters: says what is wrong.
    """
    number = request.client.value
    if (site := sites.get(number)) is None:
        raise _unvouched(number, "the list of sites has no such number")
    word, *parts = line.split() or ("",)
    if word != _WORD or len(parts) != _LINE_WORDS:
        raise _unvouched(number, "its request came without a kit; make it with `secagg keys new --kit`")
    try:
        shown = None if parts[0] == "-" else x509.load_der_x509_certificate(bytes.fromhex(parts[0]))
        public, signature = bytes.fromhex(parts[1]), bytes.fromhex(parts[2])
        key = load_der_public_key(public)
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, _statement(request, public), _PADDING, _HASH)
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, _statement(request, public), ec.ECDSA(_HASH))
        else:
            raise _unvouched(number, "its kit has an unsupported key; use RSA or a NIST curve")
        if shown is not None and root is not None and shown.public_key() == key:
            shown.verify_directly_issued_by(root)
            _require_current(shown, root, number, now)
            (name,) = shown.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
            named = str(name.value)
        elif shown is None and root is None:
            named = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")
        else:
            is_named = "its kit has a certificate; name the root of the NVFlare project with --root"
            raise _unvouched(number, is_named if root is None else "its kit has no certificate of its key")
    except InvalidParameters:
        raise
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError, IndexError, *_PARSING) as error:
        raise _unvouched(number, f"the kit's signature or certificate is wrong ({type(error).__name__})") from None
    if named != site:
        raise _unvouched(number, f"the kit belongs to {named[-60:]}, but the number to {site[-60:]}")


def _require_current(shown: x509.Certificate, root: x509.Certificate, number: int, now: datetime) -> None:
    for whose, each, is_issuer in (("the kit's", shown, False), ("the root's", root, True)):
        if not each.not_valid_before_utc <= now <= each.not_valid_after_utc:
            raise _unvouched(
                number,
                f"{whose} certificate is valid from {each.not_valid_before_utc:%Y-%m-%d} to "
                f"{each.not_valid_after_utc:%Y-%m-%d}",
            )
        constraints = [extension.value for extension in each.extensions]
        if any(value.ca for value in constraints if isinstance(value, x509.BasicConstraints)) is not is_issuer:
            raise _unvouched(number, f"{whose} certificate may{' not' * is_issuer} issue others")


def _unvouched(number: int, why: str) -> InvalidParameters:
    return InvalidParameters(f"the platform does not vouch for client {number}: {why}")
