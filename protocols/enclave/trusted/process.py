"""The enclave's process: requests of a host and their answers, the Unix socket, and the privileges that it gives up.

The host is trusted with nothing. Whatever it sends, it gets the answer that the enclave gives, or a refusal.
"""

from __future__ import annotations

import ctypes
import platform
import select
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Final

from secagg.blame import from_server
from secagg.crypto.entropy import Coins
from secagg.crypto.secret import Confined
from secagg.errors import (
    CapacityExceeded,
    InternalError,
    MalformedMessage,
    Misuse,
    Reason,
    SecAggError,
    UnexpectedMessage,
    blaming,
)
from secagg.protocols.enclave.trusted.configuration import MAXIMUM_START_BYTES, EnclaveConfiguration, decode_start
from secagg.protocols.enclave.trusted.enclave import DEFAULT_MEMORY_BYTES, Enclave
from secagg.protocols.enclave.trusted.messages import (
    DIGEST_BYTES,
    EnclaveOffer,
    ModelStamp,
    sealed_upload_bytes,
)
from secagg.session.frames import encode_refusal, listening, receive_frame, send_frame
from secagg.wire import MessageKind, Reader, Writer, message_kind

# --- Requests ---------------------------------------------------------------------------------------------------------

MAXIMUM_OFFER_BYTES: Final = 1 << 14
MAXIMUM_WORD_BYTES: Final = 1 << 6
MAXIMUM_DOCUMENT_BYTES: Final = 1 << 20
VERSION_BYTES: Final = 8
SIMULATED: Final = "simulated"
"""The format of evidence that no hardware has made."""
_BARE_REQUESTS: Final = (
    MessageKind.OPEN_BUFFER,
    MessageKind.ANNOUNCE_MODEL,
    MessageKind.RELEASE_BUFFER,
    MessageKind.GIVE_UP_BUFFER,
    MessageKind.DESTROY_ENCLAVE,
)

Quote = Callable[[bytes], tuple[str, bytes]]
"""Makes evidence that holds 64 bytes: the name of its format, as ``EvidenceFormat`` has it, and the document."""


class EnclaveService(Confined):
    """One epoch of an enclave at most, and its answers to requests; it knows nothing of sockets."""

    def __init__(
        self, *, coins: Coins, quote: Quote, threads: int = 1, memory_bytes: int = DEFAULT_MEMORY_BYTES
    ) -> None:
        self._coins = coins
        self._quote = quote
        self._threads = threads
        self._memory_bytes = memory_bytes
        self._enclave: Enclave | None = None

    @property
    def maximum_request_bytes(self) -> int:
        return request_limit(None if self._enclave is None else self._enclave.configuration)

    def answer(self, request: bytes) -> bytes:
        """Do what a request asks for, and return the message that answers it; never raise for what a host sent."""
        try:
            try:
                return self._answered(request)
            except SecAggError as error:
                return encode_refusal(error)
        except MemoryError:
            self.destroy()
            sentence = "the machine has less memory than the enclave may use, which has ended its epoch; lower --memory"
            return encode_refusal(CapacityExceeded(sentence, reason=Reason.CAPACITY_EXCEEDED))
        except Exception as error:  # noqa: BLE001 -- nothing that a host sends ends the process
            # Nobody has thought of this error, so nobody can say that the rest of the epoch is in order.
            self.destroy()
            return encode_refusal(InternalError(f"the enclave met a {type(error).__name__} and has ended its epoch"))

    def destroy(self) -> None:
        if self._enclave is not None:
            self._enclave.destroy()
        self._enclave = None

    def _answered(self, request: bytes) -> bytes:
        with blaming(*from_server()):
            kind = message_kind(request)
            if kind is MessageKind.START_ENCLAVE:
                return self._start(decode_start(request))
            of_client = MessageKind.SEALED_UPLOAD, MessageKind.SEALED_PIECE
            read = None if kind in of_client else _read_bare(request, kind)
        if kind is MessageKind.DESTROY_ENCLAVE:
            self.destroy()
            return Writer(MessageKind.ENCLAVE_DONE).finish()
        if self._enclave is None:
            raise Misuse("no epoch runs here; start one with a configuration first")
        match kind, read:
            case MessageKind.SEALED_UPLOAD, _:
                self._enclave.receive(request)
            case MessageKind.SEALED_PIECE, _:
                self._enclave.receive_piece(request)
            case MessageKind.RELEASE_BUFFER, _:
                return self._enclave.release()
            case MessageKind.OPEN_BUFFER, ModelStamp() as model:
                self._enclave.open_buffer(model.version, model.digest)
            case MessageKind.ANNOUNCE_MODEL, ModelStamp() as model:
                self._enclave.announce_model(model.version, model.digest)
            case _:
                self._enclave.give_up_buffer()
        return Writer(MessageKind.ENCLAVE_DONE).finish()

    def _start(self, configuration: EnclaveConfiguration) -> bytes:
        self.destroy()
        enclave = Enclave(
            configuration,
            coins=self._coins,
            quote=self._quote,
            threads=self._threads,
            memory_bytes=self._memory_bytes,
        )
        answer = encode_attested_offer(enclave.offer, *enclave.evidence)
        self._enclave = enclave
        return answer

    def __repr__(self) -> str:
        return f"<EnclaveService {self._enclave!r}>"


# --- Messages ---------------------------------------------------------------------------------------------------------


def encode_attested_offer(offer: EnclaveOffer, evidence_format: str, document: bytes) -> bytes:
    """Return an offer with the evidence that vouches for it, as one message that a host relays to clients."""
    writer = Writer(MessageKind.ATTESTED_OFFER).variable(offer.encode(), MAXIMUM_OFFER_BYTES)
    writer.variable(evidence_format.encode(), MAXIMUM_WORD_BYTES)
    return writer.variable(document, MAXIMUM_DOCUMENT_BYTES).finish()


def request_limit(configuration: EnclaveConfiguration | None) -> int:
    """Return the longest request while an epoch of this configuration runs, or none."""
    upload = 0 if configuration is None else sealed_upload_bytes(configuration)
    return max(MAXIMUM_START_BYTES, upload)


def _read_bare(request: bytes, kind: MessageKind) -> ModelStamp | None:
    if kind not in _BARE_REQUESTS:
        raise UnexpectedMessage(expected="a request of a host", received=kind.name)
    reader = Reader(request, kind)
    read: ModelStamp | None = None
    if kind in (MessageKind.OPEN_BUFFER, MessageKind.ANNOUNCE_MODEL):
        read = ModelStamp(version=reader.integer(VERSION_BYTES), digest=reader.fixed(DIGEST_BYTES))
    reader.finish()
    return read


# --- The process ------------------------------------------------------------------------------------------------------

FRAME_SECONDS: Final = 60.0
"""Seconds that one message may take, from its first byte to its last, in either direction."""
SILENCE_SECONDS: Final = 600.0
"""Seconds that a host may be silent before another takes its place."""
_FIRST_WORD_SECONDS: Final = 1.0
"""Seconds a second connection may stay silent before it is closed; a port scan must not end the epoch."""


class _Patient:
    """A connection with one deadline for all bytes."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._last = monotonic() + seconds

    def recv(self, size: int) -> bytes:
        self._connection.settimeout(max(1e-3, self._last - monotonic()))
        return self._connection.recv(size)


def serve(  # noqa: PLR0913 -- all but three have defaults
    socket_path: Path,
    *,
    coins: Coins,
    quote: Quote,
    threads: int = 1,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    frame_seconds: float = FRAME_SECONDS,
    silence_seconds: float = SILENCE_SECONDS,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Answer one host after the other, until the process is told to end; then remove the socket.

    Args:
        quote: the hardware's driver, or a simulation's.
        frame_seconds: how long one message may take.
        silence_seconds: after how long another host may take the place of a silent one.
        ready: called once, when a host can connect.
    """
    with listening(socket_path, replaces_dead=True) as listener:
        ready()
        following: socket.socket | None = None
        while True:
            service = EnclaveService(coins=coins, quote=quote, threads=threads, memory_bytes=memory_bytes)
            with following or listener.accept()[0] as connection:
                following = None
                # A host that goes away, or whose message is too long or too slow, ends its epoch and nothing else.
                with suppress(OSError, MemoryError, MalformedMessage):
                    following = _serve_host(connection, listener, service, frame_seconds, silence_seconds)


def _serve_host(
    connection: socket.socket,
    listener: socket.socket,
    service: EnclaveService,
    frame_seconds: float,
    silence_seconds: float,
) -> socket.socket:
    """Answer one host until it goes away, or was silent and another comes, which is returned."""
    heard = monotonic()
    try:
        while True:
            select.select([connection, listener], [], [])
            # Polled again, after the listener: a host that left and came back must not count as a second one.
            if select.select([connection], [], [], 0)[0]:
                request = receive_frame(_Patient(connection, frame_seconds), service.maximum_request_bytes)
                answer = service.answer(request)
                connection.settimeout(frame_seconds)
                send_frame(connection, answer)
                heard = monotonic()
                continue
            beside = listener.accept()[0]
            if monotonic() - heard >= silence_seconds and _has_something_to_say(beside):
                return beside
            # There is one host. Another is let go, with nothing said or changed.
            beside.close()
    finally:
        service.destroy()


def _has_something_to_say(beside: socket.socket) -> bool:
    with suppress(OSError):
        if select.select([beside], [], [], _FIRST_WORD_SECONDS)[0]:
            return bool(beside.recv(1, socket.MSG_PEEK))
    return False


# --- What the process gives up ----------------------------------------------------------------------------------------

_SET_DUMPABLE: Final = 4
_SET_NO_NEW_PRIVILEGES: Final = 38
_SECCOMP_FILTER: Final = 1
_ALL_THREADS: Final = 1
_LOCK_PRESENT_AND_FUTURE: Final = 3
_PERMISSION_DENIED: Final = 0x0005_0001
_NO_SUCH_CALL: Final = 0x0005_0026
_ALLOW: Final = 0x7FFF_0000
_LOAD, _EQUAL, _AT_LEAST, _HAS_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Instructions of a filter; a comparison skips as many of the following as it says, if it holds and if it does not."""
_THREAD: Final = 0x0001_0000
"""Flag of clone: a thread of this process, not a process."""

_ARCHITECTURES: Final[dict[str, tuple[int, int, int, int, tuple[int, ...]]]] = {
    # The kernel's name; seccomp, clone, clone3; and then: socket, connect, socketpair, fork, vfork, execve, ptrace,
    # process_vm_readv, process_vm_writev, execveat, io_uring_setup, as far as there are such calls.
    "x86_64": (0xC000_003E, 317, 56, 435, (41, 42, 53, 57, 58, 59, 101, 310, 311, 322, 425)),
    "aarch64": (0xC000_00B7, 277, 220, 435, (198, 199, 203, 221, 117, 270, 271, 281, 425)),
}


def give_up_privileges(memory_bytes: int) -> list[str]:
    """Take each step, and return the protections that this process lacks, in words.

    Call it once everything is open: afterwards no socket is made, no program started and no process forked.
    """
    if sys.platform != "linux":
        return ["nothing is given up, which takes Linux"]
    import resource  # noqa: PLC0415 -- not everywhere

    libc, missing = ctypes.CDLL(None, use_errno=True), list[str]()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0):
        missing.append("others of its user may look into it")
    if libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
        missing.append("it may gain privileges")
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    # With a smaller limit the lock would hold, and a later allocation fail.
    if 0 <= limit < memory_bytes or libc.mlockall(_LOCK_PRESENT_AND_FUTURE):
        missing.append("its memory may be written to swap (raise RLIMIT_MEMLOCK above --memory)")
    if not _filter_calls(libc):
        missing.append("it may start programs and open connections")
    return missing


def _filter_calls(libc: ctypes.CDLL) -> bool:
    """Refuse, for every thread and for good, the calls that serving does not need."""
    known = _ARCHITECTURES.get(platform.machine())
    if known is None or sys.maxsize < 1 << 32:
        return False
    name, seccomp, clone, clone3, refused = known
    program = b"".join(
        struct.pack("=HBBI", *each)
        for each in (
            (_LOAD, 0, 0, 4),  # The architecture; on another one, calls have other numbers.
            (_EQUAL, 1, 0, name),
            (_RETURN, 0, 0, _PERMISSION_DENIED),
            (_LOAD, 0, 0, 0),  # The number of the call; those of x32 are above 2^30.
            (_AT_LEAST, 0, 1, 1 << 30),
            (_RETURN, 0, 0, _PERMISSION_DENIED),
            *(each for number in refused for each in ((_EQUAL, 0, 1, number), (_RETURN, 0, 0, _PERMISSION_DENIED))),
            (_EQUAL, 0, 1, clone3),  # Its flags are in memory, which a filter cannot read; without it, clone is used.
            (_RETURN, 0, 0, _NO_SUCH_CALL),
            (_EQUAL, 0, 3, clone),
            (_LOAD, 0, 0, 16),
            (_HAS_BIT, 1, 0, _THREAD),
            (_RETURN, 0, 0, _PERMISSION_DENIED),
            (_RETURN, 0, 0, _ALLOW),
        )
    )
    instructions = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    return bool(libc.syscall(seccomp, _SECCOMP_FILTER, _ALL_THREADS, described) == 0)
