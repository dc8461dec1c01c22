"""Sources of evidence inside an enclave: each produces a document that contains 64 given bytes.

``SourceApart`` runs a source in a separate process, forked before the service has secrets and installs its filter. The
service then needs no access to files, drivers or other programs, and a driver that needs root keeps it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from time import monotonic
from types import MappingProxyType
from typing import Final, NoReturn, Protocol

from secagg.errors import InvalidParameters
from secagg.protocols.enclave.trusted.protection import give_up_calls
from secagg.protocols.enclave.trusted.service import SIMULATED

REPORT_BYTES: Final = 64
MOST_DOCUMENT_BYTES: Final = 1 << 16


class Source(Protocol):
    """A driver that has hardware vouch for 64 bytes."""

    @property
    def format(self) -> str:
        """The value of its ``EvidenceFormat``."""
        ...

    def quote(self, report: bytes) -> bytes:
        """Return a document that contains these bytes; raises ``OSError`` if the hardware refuses."""
        ...


# --- AWS Nitro --------------------------------------------------------------------------------------------------------

_NSM_REQUEST: Final = 0xC020_0A00
"""_IOWR(0x0A, 0, struct nsm_raw): address and length of the request and of the answer."""
_NSM_PAIRS: Final = struct.Struct("<QQQQ")
_NSM_ANSWER_BYTES: Final = 0x3000
_NSM_OPENING: Final = b"\xa1\x6bAttestation\xa1\x68document"
_NSM_WIDTHS: Final = {0x58: 1, 0x59: 2, 0x5A: 4}
_BYTE_STRING: Final = 2
Ioctl = Callable[[int, int, "ctypes.Array[ctypes.c_char]"], int]


def _ioctl(file: int, request: int, message: ctypes.Array[ctypes.c_char]) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ioctl(file, ctypes.c_ulong(request), message) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return 0


class SecurityModule:
    """/dev/nsm of a Nitro enclave; each quote is one ioctl."""

    format = "nitro"

    def __init__(self, path: str = "/dev/nsm", ioctl: Ioctl = _ioctl) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._ioctl = ioctl

    def quote(self, report: bytes) -> bytes:
        request = _nsm_request(report)
        sent = ctypes.create_string_buffer(request, len(request))
        answer = ctypes.create_string_buffer(_NSM_ANSWER_BYTES)
        pairs = (ctypes.addressof(sent), len(request), ctypes.addressof(answer), _NSM_ANSWER_BYTES)
        message = ctypes.create_string_buffer(_NSM_PAIRS.pack(*pairs), _NSM_PAIRS.size)
        self._ioctl(self._file, _NSM_REQUEST, message)
        _, _, _, length = _NSM_PAIRS.unpack(message.raw)
        return _nsm_document(answer.raw[:length])


def _nsm_request(report: bytes) -> bytes:
    """Return {"Attestation": {"user_data": report, "nonce": null, "public_key": null}} in CBOR."""
    fields = b"\x69user_data\x58" + bytes([len(report)]) + report + b"\x65nonce\xf6\x6apublic_key\xf6"
    return b"\xa1\x6bAttestation\xa3" + fields


def _nsm_document(answer: bytes) -> bytes:
    """Read {"Attestation": {"document": bytes}}; anything else is a refusal."""
    if not answer.startswith(_NSM_OPENING) or len(answer) == len(_NSM_OPENING):
        raise OSError(f"the security module refused: {answer[:64]!r}")
    head, rest = answer[len(_NSM_OPENING)], answer[len(_NSM_OPENING) + 1 :]
    width = _NSM_WIDTHS.get(head, 0)
    size = int.from_bytes(rest[:width], "big") if width else head & 0x1F
    if head >> 5 != _BYTE_STRING or len(rest) != width + size:
        raise OSError("the security module's answer must be one byte string")
    return rest[width:]


# --- AMD SEV-SNP and Intel TDX ----------------------------------------------------------------------------------------


class TsmReport:
    """configfs-tsm (Linux 6.7 and later), with an entry that nobody else may use between request and answer."""

    _FORMATS: Final = MappingProxyType({"sev_guest": "sev-snp", "tdx_guest": "tdx"})

    def __init__(self, root: Path = Path("/sys/kernel/config/tsm/report")) -> None:
        self._entry = root / "secagg"
        self._entry.mkdir(exist_ok=True)
        provider = (self._entry / "provider").read_text().strip()
        if provider not in self._FORMATS:
            raise OSError(f"unknown evidence provider {provider!r}; known: {', '.join(self._FORMATS)}")
        self.format = self._FORMATS[provider]

    def _generation(self) -> int:
        return int((self._entry / "generation").read_text())

    def quote(self, report: bytes) -> bytes:
        first = self._generation()
        # Use one write: the kernel accepts the request when the file is closed.
        (self._entry / "inblob").write_bytes(report)
        written = self._generation()
        document = (self._entry / "outblob").read_bytes()
        if not first + 1 == written == self._generation():
            raise OSError("another process used this configfs entry; only one process may request evidence")
        return document


# --- Intel SGX under Gramine ------------------------------------------------------------------------------------------


class GramineQuote:
    """/dev/attestation of Gramine."""

    format = "sgx"

    def __init__(self, root: Path = Path("/dev/attestation")) -> None:
        self._root = root
        kind = (root / "attestation_type").read_text().strip()
        if kind != "dcap":
            raise OSError(f"the manifest requests {kind!r} attestation; set sgx.remote_attestation to dcap")

    def quote(self, report: bytes) -> bytes:
        (self._root / "user_report_data").write_bytes(report)
        return (self._root / "quote").read_bytes()


# --- Which source -----------------------------------------------------------------------------------------------------


class SimulatedSource:
    """Evidence without hardware: only clients that are configured for it accept it."""

    format = SIMULATED

    def quote(self, report: bytes) -> bytes:
        return report


SOURCES: Final[Mapping[str, Callable[[], Source]]] = MappingProxyType(
    {"nsm": SecurityModule, "tsm": TsmReport, "gramine": GramineQuote, "simulated": SimulatedSource}
)


def source_named(name: str) -> Source:
    """Return a source by name; there is no fallback.

    Raises:
        InvalidParameters: the name is unknown, or this machine does not have the source.
    """
    if name not in SOURCES:
        raise InvalidParameters(f"unknown source of evidence {name!r}; known: {', '.join(SOURCES)}")
    try:
        return SOURCES[name]()
    except (OSError, ValueError) as error:
        raise InvalidParameters(f"this machine cannot provide {name!r} evidence: {error}") from None


# --- A source in a separate process -----------------------------------------------------------------------------------

_REQUEST: Final = struct.Struct(f">Q{REPORT_BYTES}s")
_ANSWER: Final = struct.Struct(">QBI")
_MOST_SENTENCE_BYTES: Final = 1024
_SECONDS: Final = 60.0
"""Time limit of the hardware for one document."""
_ENDING: Final = (signal.SIGINT, signal.SIGTERM)


class SourceApart:
    """A source in a separate process; the first failure ends it, and it is not restarted."""

    def __init__(self, source: Source, *, seconds: float = _SECONDS) -> None:
        """Fork the process; call it before threads start, secrets are drawn and the filter is installed."""
        self.format = source.format
        self._lock, self._number, self._seconds = Lock(), 0, seconds
        self._here, there = socket.socketpair()
        # The other process must not run this one's signal handlers; it ends when its connection closes.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        self._process = os.fork()
        if not self._process:
            _run_apart(source, self._here, there)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        there.close()

    def quote(self, report: bytes) -> tuple[str, bytes]:
        """Return the format and a document that contains these bytes.

        Raises:
            OSError: the hardware refuses, or the process failed; after a failure every later call raises too.
        """
        with self._lock:
            self._number += 1
            try:
                self._here.sendall(_REQUEST.pack(self._number, report))
                is_refused, said = _answer_to(self._number, self._here, monotonic() + self._seconds)
            except OSError as error:
                self.close()
                raise OSError(f"the source of evidence has ended ({error}); restart the enclave") from None
        if is_refused:
            raise OSError(said.decode(errors="replace"))
        return self.format, said

    def close(self) -> None:
        """End the process."""
        self._here.close()
        # The service's filter refuses to send signals; the process then ends because its connection is closed.
        with suppress(OSError):
            os.kill(self._process, signal.SIGKILL)


def _run_apart(source: Source, here: socket.socket, there: socket.socket) -> NoReturn:
    """Answer until the service closes the connection; never return to the code that forked."""
    try:
        here.close()
        # A missing protection needs no report: the service lacks it too and reports it.
        give_up_calls(device_request=_NSM_REQUEST)
        _answer_quotes(source, there)
    finally:
        os._exit(0)


def _answer_quotes(source: Source, there: socket.socket) -> None:
    with suppress(OSError):
        while True:
            number, report = _REQUEST.unpack(_received(there, _REQUEST.size))
            try:
                is_refused, said = 0, source.quote(report)
            except Exception as error:  # noqa: BLE001 -- sent to the service, which reports it to the host
                is_refused, said = 1, f"{type(error).__name__}: {error}".encode()[:_MOST_SENTENCE_BYTES]
            there.sendall(_ANSWER.pack(number, is_refused, len(said)) + said)


def _answer_to(number: int, connection: socket.socket, last: float) -> tuple[int, bytes]:
    answered, is_refused, size = _ANSWER.unpack(_received(connection, _ANSWER.size, last))
    if answered != number or size > MOST_DOCUMENT_BYTES:
        raise OSError(f"expected an answer to request {number}; got one to request {answered} with {size} bytes")
    return is_refused, _received(connection, size, last)


def _received(connection: socket.socket, size: int, last: float | None = None) -> bytes:
    received = bytearray()
    while len(received) < size:
        if last is not None:
            connection.settimeout(max(1e-3, last - monotonic()))
        piece = connection.recv(size - len(received))
        if not piece:
            raise OSError("the other process closed the connection")
        received += piece
    return bytes(received)
