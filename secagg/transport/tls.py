"""TLS 1.3 for servers, clients and operators, and where plain HTTP will do."""

from __future__ import annotations

import ipaddress
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from secagg.errors import InvalidParameters

from .logs import say


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A certificate and its private key, both PEM."""

    certificate: Path
    key: Path


class ServerTls:
    """The context of a server, made again when its files are renewed."""

    def __init__(self, own: Credentials, clients: Path | None = None) -> None:
        """Read the files.

        Args:
            clients: certificates of who may connect, or of who issues theirs; without it anybody may.
        Raises:
            InvalidParameters: they hold no certificate with its key, or none that can be believed.
        """
        self._own, self._clients = own, clients
        self.context = self._read()
        """Of the connections that come now; those that are there keep theirs."""

    def renew(self) -> None:
        """Read the files again; where they cannot be used, say so and keep what was read before."""
        try:
            self.context = self._read()
        except InvalidParameters as error:
            say("certificate not renewed, the one of before stays", logging.WARNING, why=str(error))
        else:
            say("certificate renewed", file=str(self._own.certificate))

    def _read(self) -> ssl.SSLContext:
        context = _context(self._own, is_server=True)
        if self._clients is not None:
            _trust(context, self._clients)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class PinnedTls(ServerTls):
    """The context of an operator's end that talks with one other certificate, whatever names stand in it."""

    def __init__(self, own: Credentials, peer: Path, *, is_server: bool) -> None:
        """Read the files, as for a server."""
        self._peer, self._is_server = peer, is_server
        super().__init__(own)

    def _read(self) -> ssl.SSLContext:
        context = _context(self._own, is_server=self._is_server)
        context.check_hostname = False
        _trust(context, self._peer)
        context.verify_mode = ssl.CERT_REQUIRED
        self.pin = certificate_in(self._peer)
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
    # A certificate that is named is believed as it stands, by any issuer.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
