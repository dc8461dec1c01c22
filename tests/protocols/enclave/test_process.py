"""The trusted part in a process of its own: a real child, hostile hosts, and a host that trusts no answer either."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Self

import pytest

from secagg.errors import (
    InternalError,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    SecAggError,
    ThresholdNotMet,
    UnexpectedMessage,
)
from secagg.identifiers import ServerId
from secagg.protocols.enclave.client import Client, Upload
from secagg.protocols.enclave.machine.serving import serve_at
from secagg.protocols.enclave.remote_enclave import EnclaveLost, RemoteEnclave, SimulatedJudge, read_attested
from secagg.protocols.enclave.trusted.enclave import Enclave
from secagg.protocols.enclave.trusted.hosts import serve
from secagg.protocols.enclave.trusted.messages import BufferRelease, EnclaveOffer, ModelStamp
from secagg.protocols.enclave.trusted.service import SIMULATED, EnclaveService, request_limit
from secagg.protocols.enclave.verified_enclave import VerifiedEnclave
from secagg.session.frames import decode_refusal, encode_refusal, listening, receive_frame, send_frame
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.wire import MessageKind, Writer, message_kind
from tests.harness.enclave_buffers import (
    NOW,
    EnclaveSetup,
    Host,
    InsecureEnclaveSession,
    model_digest,
    sealed_by,
    start_of,
)
from tests.harness.planted import always

if sys.platform == "win32":
    pytest.skip("there are no Unix sockets", allow_module_level=True)

SESSION = InsecureEnclaveSession(EnclaveSetup(oldest=1))
CONFIGURATION = SESSION.configuration
SEED = b"a child and its twin"
ANSWERED_IN = 30
CHILD = """
import sys
from pathlib import Path
from secagg.protocols.enclave.trusted.hosts import serve
from secagg.protocols.enclave.trusted.service import SIMULATED
from secagg.session.frames import listening
from secagg.simulation.insecure_coins import InsecureSeededCoins

def quote(binding):
    return SIMULATED, binding

coins = InsecureSeededCoins(sys.argv[2].encode())
with listening(Path(sys.argv[1]), replaces_dead=True) as listener:
    print("ready", flush=True)
    serve(listener, coins=coins, quote=quote)
"""


START = start_of(CONFIGURATION)
RELEASE = Writer(MessageKind.RELEASE_BUFFER).finish()
GIVE_UP = Writer(MessageKind.GIVE_UP_BUFFER).finish()
DESTROY = Writer(MessageKind.DESTROY_ENCLAVE).finish()


def opening(version: int, kind: MessageKind = MessageKind.OPEN_BUFFER) -> bytes:
    return Writer(kind).integer(version, 8).fixed(model_digest(version), 32).finish()


def verified(offer: EnclaveOffer, evidence: object) -> VerifiedEnclave:
    return VerifiedEnclave(offer, evidence, configuration=CONFIGURATION, judge=SimulatedJudge(), now=NOW)


def upload_of(client: Client, enclave: VerifiedEnclave, version: int = 1) -> Upload:
    model, update = ModelStamp(version=version, digest=model_digest(version)), SESSION.setup.payload_of(version)
    return sealed_by(client, update, enclave=enclave, model=model, now=NOW)


def sealed(enclave: VerifiedEnclave, number: int, version: int = 1) -> bytes:
    return upload_of(SESSION.new_client(number), enclave, version).sealed.encode()


@dataclass
class Child:
    """A process that serves an enclave at a path, with coins that can be repeated."""

    path: Path
    seed: bytes = SEED
    process: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        command = [sys.executable, "-c", CHILD, str(self.path), self.seed.decode()]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 -- this interpreter
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def is_running(self) -> bool:
        return self.process.poll() is None

    def memory(self, line: str) -> int:
        """Return a figure of the process in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split(f"{line}:")[1].split()[0]) * 1024

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(ANSWERED_IN)
        self.path.unlink(missing_ok=True)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Generator[Child]:
    started = Child(tmp_path_factory.mktemp("e") / "s")
    yield started
    assert started.is_running(), "no test may end the process that all of them share"
    started.kill()


@pytest.fixture
def start_child(tmp_path: Path) -> Iterator[Callable[[], Child]]:
    children = list[Child]()

    def start() -> Child:
        children.append(Child(tmp_path / f"s{len(children)}"))
        return children[-1]

    yield start
    for each in children:
        each.kill()


class RawHost:
    """A host that sends whatever bytes it likes."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(ANSWERED_IN)
        self.socket.connect(str(path))

    def ask(self, request: bytes) -> bytes:
        send_frame(self.socket, request)
        return self.answer()

    def answer(self) -> bytes:
        return receive_frame(self.socket, 1 << 24)

    def refused(self, request: bytes) -> SecAggError:
        return decode_refusal(self.ask(request))

    def start(self) -> VerifiedEnclave:
        return verified(*read_attested(self.ask(START)))

    def is_closed(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


@pytest.fixture
def host(child: Child) -> Iterator[RawHost]:
    with RawHost(child.path) as connected:
        yield connected


DONE = Writer(MessageKind.ENCLAVE_DONE).finish()


def test_killing_the_process_loses_the_buffer_and_no_upload_is_opened_twice(start_child: Callable[[], Child]) -> None:
    first = start_child()
    remote = RemoteEnclave(first.path, timeout=ANSWERED_IN)
    trusted = verified(*remote.start(CONFIGURATION))
    relay = Host(CONFIGURATION, remote)
    relay.open_buffer(1, model_digest(1))
    clients = [SESSION.new_client(number) for number in (1, 2, 3)]
    uploads = [upload_of(each, trusted).encode() for each in clients]
    for upload in uploads[:2]:
        relay.receive(upload)
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait(ANSWERED_IN)
    with pytest.raises(EnclaveLost, match=r"the epoch and its buffer.*no longer be opened.*newer models"):
        relay.receive(uploads[2])
    with pytest.raises(EnclaveLost, match="its connection was closed"):
        relay.release()

    # The keys of the first process were in its memory alone, so other keys are drawn even from other coins alone.
    second = Child(first.path.with_name("second"), b"other coins")
    try:
        with RemoteEnclave(second.path, timeout=ANSWERED_IN) as again:
            trusted_again = verified(*again.start(CONFIGURATION))
            relay = Host(CONFIGURATION, again)
            relay.open_buffer(1, model_digest(1))
            for upload in uploads:
                with pytest.raises(PeerMisbehaved, match="another epoch") as caught:
                    relay.receive(upload)
                assert caught.value.reason is Reason.WRONG_SESSION
            with pytest.raises(ThresholdNotMet):
                relay.release()
            # Every client refuses to seal the same update again, whether or not it was taken; a newer one it seals.
            for each in clients:
                with pytest.raises(PeerMisbehaved) as refused:
                    upload_of(each, trusted_again)
                assert refused.value.reason is Reason.ALREADY_ANSWERED
                assert each.ledger.seals == 1
            relay.give_up_buffer()
            relay.open_buffer(2, model_digest(2))
            for each in clients:
                fresh = upload_of(each, trusted_again, version=2)
                relay.receive(fresh.encode())
            assert relay.release()[0].contributors == 3
    finally:
        second.kill()


def test_the_keys_of_an_epoch_are_gone_when_its_host_is_and_the_socket_when_the_process_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, destroyed, ready = list[Enclave](), list[Enclave](), Event()
    start, destroy = Enclave.open_buffer, Enclave.destroy

    def open_buffer(self: Enclave, version: int, model_digest: bytes) -> None:
        started.append(self)
        start(self, version, model_digest)

    def destroy_and_tell(self: Enclave) -> None:
        destroy(self)
        destroyed.append(self)

    def quote(binding: bytes) -> tuple[str, bytes]:
        if destroyed:
            # As a signal does that ends the process.
            raise SystemExit
        return SIMULATED, binding

    monkeypatch.setattr(Enclave, "open_buffer", open_buffer)
    monkeypatch.setattr(Enclave, "destroy", destroy_and_tell)
    path = tmp_path / "s"

    def run() -> None:
        with listening(path) as listener:
            ready.set()
            with pytest.raises(SystemExit):
                serve(listener, coins=InsecureSeededCoins(b"coins"), quote=quote)

    thread = Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(ANSWERED_IN)
    with RawHost(path) as first:
        first.start()
        first.ask(opening(1))
    with RawHost(path) as second:
        send_frame(second.socket, START)
        assert second.is_closed()
    thread.join(ANSWERED_IN)
    assert started == destroyed
    assert len(destroyed) == 1
    assert not path.exists()


def test_the_epoch_before_is_destroyed_before_another_has_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    destroyed, destroyed_by_then = list[Enclave](), list[int]()
    destroy = Enclave.destroy

    def destroy_and_tell(self: Enclave) -> None:
        destroy(self)
        destroyed.append(self)

    def quote(binding: bytes) -> tuple[str, bytes]:
        destroyed_by_then.append(len(destroyed))
        if len(destroyed_by_then) == 3:
            raise RuntimeError("the driver is gone")
        return SIMULATED, binding

    monkeypatch.setattr(Enclave, "destroy", destroy_and_tell)
    service = EnclaveService(coins=InsecureSeededCoins(b"coins"), quote=quote)
    for _ in range(2):
        assert message_kind(service.answer(START)) is MessageKind.ATTESTED_OFFER
    assert type(decode_refusal(service.answer(START))) is InternalError
    assert destroyed_by_then == [0, 1, 2]
    assert "no epoch is running" in str(decode_refusal(service.answer(opening(1))))


MALFORMED = {
    "nothing": (b"", Reason.TRUNCATED),
    "garbage": (b"\xff" * 100, Reason.NOT_CANONICAL),
    "a header that ends": (START[:5], Reason.TRUNCATED),
    "a kind that is none": (Writer(999).finish(), Reason.NOT_CANONICAL),
    "another version": (RELEASE[:4] + b"\x09" + RELEASE[5:], Reason.WRONG_VERSION),
    "a configuration that ends": (START[:-3], Reason.TRUNCATED),
    "a configuration with more": (START + b"\0", Reason.TRAILING_BYTES),
    "no configuration": (Writer(MessageKind.START_ENCLAVE).finish(), Reason.TRUNCATED),
    "a number that ends": (opening(2)[:-1], Reason.TRUNCATED),
    "a number with more": (opening(2) + b"\0", Reason.TRAILING_BYTES),
    "a release with more": (RELEASE + b"\0", Reason.TRAILING_BYTES),
    "giving up with more": (GIVE_UP + b"\0", Reason.TRAILING_BYTES),
    "an end with more": (DESTROY + b"\0", Reason.TRAILING_BYTES),
    "an answer": (Writer(MessageKind.ENCLAVE_DONE).integer(1, 2).finish(), Reason.WRONG_KIND),
    "a refusal": (encode_refusal(Misuse("no")), Reason.WRONG_KIND),
    "another message": (Writer(MessageKind.ENCLAVE_UPLOAD).integer(0, 4).finish(), Reason.WRONG_KIND),
    "an upload that ends": (Writer(MessageKind.SEALED_UPLOAD).integer(1, 100).finish(), Reason.TRUNCATED),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_request_is_refused_and_changes_nothing(host: RawHost, name: str) -> None:
    request, reason = MALFORMED[name]
    trusted = host.start()
    host.ask(opening(1))
    for number in (1, 2, 3):
        assert host.ask(sealed(trusted, number)) == DONE
        refusal = host.refused(request)
        assert type(refusal) in (MalformedMessage, UnexpectedMessage)
        assert isinstance(refusal, PeerError)
        assert (refusal.reason, refusal.culprits) == (reason, frozenset({ServerId()}))
    release = BufferRelease.decode(host.ask(RELEASE))
    trusted.verify_receipt(release.receipt)
    assert release.receipt.contributors == 3


def test_a_length_over_the_limit_ends_the_connection_and_nothing_is_allocated(child: Child) -> None:
    with RawHost(child.path) as host:
        host.start()
        before = child.memory("VmPeak")
        host.socket.sendall((1 << 62).to_bytes(8, "big"))
        assert decode_refusal(host.answer()).reason is Reason.LENGTH_OVER_LIMIT
        assert host.is_closed()
    with RawHost(child.path) as host:
        host.socket.sendall(request_limit(None).to_bytes(8, "big") + bytes(1000))
        host.socket.shutdown(socket.SHUT_WR)
        assert host.is_closed()
    with RawHost(child.path) as host:
        host.start()
    assert child.memory("VmPeak") - before < request_limit(None) // 8


def test_a_host_that_goes_before_its_answer_does_not_end_the_process(child: Child) -> None:
    for _ in range(20):
        with RawHost(child.path) as host:
            for _ in range(50):
                send_frame(host.socket, START)
    with RawHost(child.path) as host:
        host.start()


def test_a_second_host_is_let_go_and_touches_nothing(child: Child, host: RawHost) -> None:
    trusted = host.start()
    host.ask(opening(1))
    for number in (1, 2, 3):
        with RawHost(child.path) as second:
            assert second.is_closed()
        with pytest.raises(EnclaveLost), RemoteEnclave(child.path, timeout=ANSWERED_IN) as remote:
            remote.start(CONFIGURATION)
        assert host.ask(sealed(trusted, number)) == DONE
    assert message_kind(host.ask(RELEASE)) is MessageKind.BUFFER_RELEASE


def test_a_frame_may_come_byte_by_byte_and_requests_may_come_ahead(host: RawHost) -> None:
    for byte in len(START).to_bytes(8, "big") + START:
        host.socket.sendall(bytes([byte]))
    trusted = verified(*read_attested(host.answer()))
    uploads = [sealed(trusted, number, version=int(number < 4)) for number in range(1, 7)]
    for request in (opening(1), opening(0, MessageKind.ANNOUNCE_MODEL), *uploads, RELEASE):
        send_frame(host.socket, request)
    assert [host.answer() for _ in range(8)] == [DONE] * 8
    assert BufferRelease.decode(host.answer()).receipt.contributors == 6


def test_an_error_that_nobody_thought_of_ends_the_epoch_and_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    service = EnclaveService(coins=InsecureSeededCoins(b"coins"), quote=lambda binding: (SIMULATED, binding))
    service.answer(START)
    enclaves = list[Enclave]()

    def fail(self: Enclave, *_: object) -> None:
        enclaves.append(self)
        raise ZeroDivisionError("a value that nobody should read")

    monkeypatch.setattr(Enclave, "open_buffer", fail)
    refusal = decode_refusal(service.answer(opening(1)))
    assert type(refusal) is InternalError
    assert "value" not in str(refusal)
    assert "ZeroDivisionError" in str(refusal)
    assert str(enclaves[0].state) == "destroyed"
    assert "no epoch is running" in str(decode_refusal(service.answer(RELEASE)))


def test_closing_ends_the_epoch_also_where_a_fork_holds_the_connection(child: Child) -> None:
    remote = RemoteEnclave(child.path, timeout=ANSWERED_IN)
    held = remote._connection.connect().dup()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    remote.start(CONFIGURATION)
    remote.close()
    with RawHost(child.path) as host:
        host.start()
    held.close()


def test_an_upload_over_the_limit_of_a_frame_is_refused_before_it_ends_the_epoch(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secagg.protocols.enclave.remote_enclave.request_limit", always(1000))
    with RemoteEnclave(child.path, timeout=ANSWERED_IN) as remote:
        remote.start(CONFIGURATION)
        with pytest.raises(MalformedMessage) as caught:
            remote.receive(Writer(MessageKind.SEALED_UPLOAD).borrowed(bytes(1000)).finish())
        assert caught.value.reason is Reason.LENGTH_OVER_LIMIT
        remote.open_buffer(1, model_digest(1))


def test_a_path_that_exists_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("mine")
    with pytest.raises(InvalidParameters, match="use another path"):
        serve_at(f"unix:{path}", evidence="simulated", coins=InsecureSeededCoins(b""))
    assert path.read_text() == "mine"
