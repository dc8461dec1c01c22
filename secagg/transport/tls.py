"""TLS 1.3 for servers and clients; plain HTTP is only allowed on one machine."""

from __future__ import annotations

import ipaddress
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from secagg.errors import InvalidParameters
from secagg.transport.description import say


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A certificate and its private key, both PEM."""

    certificate: Path
    key: Path


class ServerTls:
    """Context of a server, rebuilt when its files are renewed."""

    def __init__(self, own: Credentials, clients: Path | None = None) -> None:
        """Read the files; ``clients`` has certificates of admitted clients or their issuers (default: admit all)."""
        self._own, self._clients = own, clients
        self.context = self._read()
        """Context of new connections; existing ones keep theirs."""

    def renew(self) -> None:
        """Reload the files; if they are unusable, log this and keep the previous ones."""
        try:
            self.context = self._read()
        except InvalidParameters as error:
            say("certificate not renewed, the previous one stays", logging.WARNING, why=str(error))
        else:
            say("certificate renewed", file=str(self._own.certificate))

    def _read(self) -> ssl.SSLContext:
        context = _context(self._own, is_server=True)
        if self._clients is not None:
            _trust(context, self._clients)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def client_context(server: Path | None = None, own: Credentials | None = None) -> ssl.SSLContext:
    """Return a client's context; ``server`` is the certificate of the server or its issuer (default: the system's)."""
    context = _context(own, is_server=False)
    if server is None:
        context.load_default_certs()
    else:
        _trust(context, server)
    return context


def is_loopback(host: str) -> bool:
    """Whether traffic to a host stays on this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _context(own: Credentials | None, *, is_server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if own is not None:
        _require_there(own.certificate, own.key)
        try:
            context.load_cert_chain(own.certificate, own.key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidParameters(
                f"{own.certificate} and {own.key} are not a certificate and its private key ({error})"
            ) from None
    return context


def _require_there(*paths: Path) -> None:
    if missing := [path for path in paths if not path.exists()]:
        raise InvalidParameters(f"there is no file {missing[0]}; give the path of a PEM file")


def _trust(context: ssl.SSLContext, path: Path) -> None:
    _require_there(path)
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise InvalidParameters(f"{path} contains no usable certificates ({error})") from None
    # A named certificate is trusted directly, whatever its issuer.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
