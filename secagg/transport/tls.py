"""TLS 1.3 for servers, clients and operators, and where plain HTTP will do."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from secagg.errors import InvalidParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A certificate and its private key, both PEM."""

    certificate: Path
    key: Path


def server_context(own: Credentials, clients: Path | None = None) -> ssl.SSLContext:
    """Return the context of a server.

    Args:
        clients: certificates of who may connect, or of who issues theirs; without it anybody may.
    """
    context = _context(own, is_server=True)
    if clients is not None:
        _trust(context, clients)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(server: Path | None = None, own: Credentials | None = None) -> ssl.SSLContext:
    """Return the context of a client.

    Args:
        server: the server's certificate, or its issuer's; by default the system's issuers are believed.
    """
    context = _context(own, is_server=False)
    if server is None:
        context.load_default_certs()
    else:
        _trust(context, server)
    return context


def pinned_context(own: Credentials, peer: Path, *, is_server: bool) -> ssl.SSLContext:
    """Return the context of an operator's end that talks with one other certificate, whatever names stand in it."""
    context = _context(own, is_server=is_server)
    context.check_hostname = False
    _trust(context, peer)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def certificate_in(path: Path) -> bytes:
    """Return the certificate in a file, as TLS shows it.

    Raises:
        InvalidParameters: there is none.
    """
    try:
        return ssl.PEM_cert_to_DER_cert(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError):
        raise InvalidParameters(f"{path} holds no certificate in PEM form; name the file that the peer gave") from None


def is_loopback(host: str) -> bool:
    """Whether what is said to a host stays on this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _context(own: Credentials | None, *, is_server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if own is not None:
        try:
            context.load_cert_chain(own.certificate, own.key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidParameters(
                f"{own.certificate} and {own.key} are no certificate with its private key ({error})"
            ) from None
    return context


def _trust(context: ssl.SSLContext, path: Path) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise InvalidParameters(f"{path} holds no certificates that can be believed ({error})") from None
    # A certificate that is named is believed as it stands, whoever issued it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
