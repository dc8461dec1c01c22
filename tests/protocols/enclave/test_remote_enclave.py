"""The host's side of the connection: errors arrive as they were, no answer is trusted, and nothing is sent twice."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from secagg.errors import (
    UNDECIDED,
    AuthenticationFailed,
    CapacityExceeded,
    ContractViolation,
    InternalError,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerMisbehaved,
    Reason,
    SecAggError,
    ThresholdNotMet,
    UnexpectedMessage,
)
from secagg.identifiers import ClientId, Party, ServerId
from secagg.protocols.enclave.attestation import Evidence, EvidenceFormat
from secagg.protocols.enclave.remote_enclave import EnclaveLost, RemoteEnclave, SimulatedEvidence, read_attested
from secagg.protocols.enclave.trusted.service import SIMULATED, EnclaveService
from secagg.session.frames import REFUSALS, decode_refusal, encode_refusal, receive_frame
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.wire import MessageKind, Writer
from tests.harness.enclave_buffers import RING_LAYOUT, EnclaveSetup, InsecureEnclaveSession, attested_of, start_of

if sys.platform == "win32":
    pytest.skip("there are no Unix sockets", allow_module_level=True)

ANSWERED_IN = 30


SETUP = EnclaveSetup(layout=RING_LAYOUT, oldest=1)
CONFIGURATION = InsecureEnclaveSession(SETUP).configuration
UPLOAD = Writer(MessageKind.SEALED_UPLOAD).finish()
"""As much of an upload as the host looks at."""
RELEASE = Writer(MessageKind.RELEASE_BUFFER).finish()

# --- Errors travel ----------------------------------------------------------------------------------------------------


ERRORS: list[SecAggError] = [
    InvalidParameters("no", reason=Reason.BACKEND_MISSING),
    Misuse("no"),
    MalformedMessage("ü\N{SNOWMAN}", reason=Reason.NOT_CANONICAL, culprits={ClientId(2**64 - 1)}),
    UnexpectedMessage(expected="this", received="that", culprits={ServerId()}),
    AuthenticationFailed(culprits={ClientId(0), ClientId(1), ServerId(0), ServerId(1)}),
    PeerMisbehaved("no", reason=Reason.REPLAYED, culprits=UNDECIDED),
    ThresholdNotMet(needed=2**40, present=3, what="uploads"),
    CapacityExceeded("no", reason=Reason.INPUT_OUT_OF_RANGE),
    ContractViolation("no"),
    InternalError("no"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_arrives_with_its_class_reason_and_culprits(error: SecAggError) -> None:
    arrived = decode_refusal(encode_refusal(error))
    assert (type(arrived), str(arrived), vars(arrived)) == (type(error), str(error), vars(error))


def test_every_error_has_a_place_and_a_long_sentence_is_cut() -> None:
    assert {type(error) for error in ERRORS} == set(REFUSALS)
    assert str(decode_refusal(encode_refusal(Misuse("ü" * 5000)))) == "ü" * 1024
    assert str(decode_refusal(encode_refusal(Misuse("\ud800")))) == "?"


def altered(position: int, value: int, error: SecAggError) -> bytes:
    message = bytearray(encode_refusal(error))
    message[position] = value
    return bytes(message)


def refusal_with(error: SecAggError, **fields: object) -> bytes:
    """Encode an error as another class than its own would be, by lending it the fields of another."""
    changed = type(error).__new__(type(error), str(error))
    vars(changed).update(vars(error) | fields)
    return encode_refusal(changed)


KIND = 7
"""Where in a refusal the place of its class stands, behind the header."""
NOT_CANONICAL_REFUSALS = {
    "no class": altered(KIND, len(REFUSALS), ERRORS[1]),
    "a reason of another class": refusal_with(AuthenticationFailed(culprits=UNDECIDED), reason=Reason.REPLAYED),
    "another reason for a cohort": refusal_with(ERRORS[6], reason=Reason.REPLAYED),
    "a reason that is none": encode_refusal(Misuse("no")).replace(b"api_misuse", b"api_misusf"),
    "text that is none": encode_refusal(Misuse("oh no")).replace(b"oh no", b"oh \xff\xff"),
    "blame for a misuse": encode_refusal(Misuse("no"))[:-1] + b"\1" + b"\1" + bytes(8),
    "a party that is none": encode_refusal(Misuse("no"))[:-1] + b"\1" + b"\2" + bytes(8),
    "a server that is none": encode_refusal(PeerMisbehaved("", reason=Reason.REPLAYED, culprits=UNDECIDED))[:-1]
    + b"\1\1"
    + (7).to_bytes(8, "big"),
    "one party twice": encode_refusal(PeerMisbehaved("", reason=Reason.REPLAYED, culprits=UNDECIDED))[:-1]
    + b"\2"
    + bytes(18),
    "numbers of another class": altered(KIND, 1, ERRORS[6]),
    "words of another class": altered(KIND, 2, ERRORS[3]),
    "an end too early": encode_refusal(ERRORS[3])[:-1],
    "more than the end": encode_refusal(ERRORS[3]) + b"\0",
}


def test_culprits_stand_in_one_order() -> None:
    clients, servers = [ClientId(3), ClientId(70), ClientId(500)], [ServerId(0), ServerId(1)]
    orders: list[list[Party]] = [[*clients, *servers], [*servers, *clients[::-1]]]
    encoded = b"".join(b"\0" + each.encode() for each in clients)
    encoded += b"".join(b"\1" + each.index.to_bytes(8, "big") for each in servers)
    for order in orders:
        assert encode_refusal(AuthenticationFailed(culprits=order)).endswith(b"\5" + encoded)


@pytest.mark.parametrize("name", NOT_CANONICAL_REFUSALS)
def test_a_refusal_has_one_form(name: str) -> None:
    with pytest.raises(MalformedMessage):
        decode_refusal(NOT_CANONICAL_REFUSALS[name])


# --- A host that trusts no answer -------------------------------------------------------------------------------------


class FakeProcess:
    """Something at a socket that answers each request with the next of some bytes, and counts the requests."""

    def __init__(self, path: Path, *answers: bytes | None) -> None:
        self._requests = list[bytes]()
        self._answers = answers
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(ANSWERED_IN)
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._listener.accept()[0] as connection:
            connection.settimeout(ANSWERED_IN)
            try:
                for answer in self._answers:
                    self._requests.append(receive_frame(connection, 1 << 24))
                    if answer is not None:
                        connection.sendall(answer)
                if self._answers[-1] is None:
                    connection.recv(1)
            except ConnectionError:
                return

    def requests(self) -> int:
        """Return how many there were, once there can be no more."""
        self._thread.join(ANSWERED_IN)
        assert not self._thread.is_alive()
        return len(self._requests)

    def end(self) -> None:
        """Close the socket, and hold the host to the one connection that it made."""
        self.requests()
        self._listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            self._listener.accept()
        self._listener.close()


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(8, "big") + message


FakeFactory = Callable[..., tuple[FakeProcess, RemoteEnclave]]


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeFactory]:
    made = list[tuple[FakeProcess, RemoteEnclave]]()

    def make(*answers: bytes | None, timeout: float = ANSWERED_IN) -> tuple[FakeProcess, RemoteEnclave]:
        path = tmp_path / f"f{len(made)}"
        process = FakeProcess(path, *answers)
        made.append((process, RemoteEnclave(path, timeout=timeout)))
        return made[-1]

    yield make
    for process, remote in made:
        remote.close()
        process.end()


@pytest.fixture(scope="module")
def offered() -> bytes:
    service = EnclaveService(coins=InsecureSeededCoins(b"coins"), quote=lambda binding: (SIMULATED, binding))
    return service.answer(start_of(CONFIGURATION))


def done(more: bytes = b"") -> bytes:
    return Writer(MessageKind.ENCLAVE_DONE).finish() + more


NO_ANSWERS = {
    "garbage": framed(b"garbage"),
    "nothing": framed(b""),
    "a request": framed(RELEASE),
    "more than done": framed(done() + b"\0"),
    "a length without end": (1 << 62).to_bytes(8, "big"),
    "an end within": framed(done())[:-1],
    "no refusal": framed(NOT_CANONICAL_REFUSALS["blame for a misuse"]),
}
CALLS: dict[str, tuple[Callable[[RemoteEnclave], object], tuple[bytes, ...]]] = {
    "open": (
        lambda remote: remote.open_buffer(1, bytes(32)),
        (framed(done(b"\0\1")), framed(encode_refusal(Misuse(""))[:-1])),
    ),
    "announce": (lambda remote: remote.announce_model(0, bytes(32)), (framed(done(b"\0\1")),)),
    "receive": (lambda remote: remote.receive(UPLOAD), (framed(done(b"\0\0")), framed(done(b"\0\1")))),
    "release": (lambda remote: remote.release(), (framed(done()), framed(b"\0" * (1 << 22)))),
    "give up": (lambda remote: remote.give_up_buffer(), (framed(done(b"\0\2")),)),
    "destroy": (lambda remote: remote.destroy(), (framed(done(b"\0\2")),)),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_answer_that_makes_no_sense_is_the_end_and_nothing_is_sent_again(
    fake: FakeFactory, offered: bytes, call: str
) -> None:
    ask, own = CALLS[call]
    for answer in (*NO_ANSWERS.values(), *own):
        process, remote = fake(framed(offered), answer)
        remote.start(CONFIGURATION)
        with pytest.raises(EnclaveLost, match="for newer models"):
            ask(remote)
        for again, _ in CALLS.values():
            with pytest.raises(EnclaveLost, match="its connection was closed"):
                again(remote)
        with pytest.raises(EnclaveLost):
            remote.start(CONFIGURATION)
        assert process.requests() == 2


def test_an_offer_for_another_configuration_is_not_taken(fake: FakeFactory, offered: bytes) -> None:
    for answer in (*NO_ANSWERS.values(), framed(offered[:-1]), framed(done())):
        _, remote = fake(answer)
        with pytest.raises(EnclaveLost):
            remote.start(CONFIGURATION)
    _, remote = fake(framed(offered))
    with pytest.raises(EnclaveLost, match="for a different configuration"):
        remote.start(replace(CONFIGURATION, minimum_cohort=2))


def test_an_enclave_that_does_not_answer_in_time_is_lost(fake: FakeFactory, offered: bytes) -> None:
    process, remote = fake(framed(offered), None, timeout=0.2)
    remote.start(CONFIGURATION)
    with pytest.raises(EnclaveLost, match="timed out"):
        remote.open_buffer(1, bytes(32))
    with pytest.raises(EnclaveLost):
        remote.open_buffer(1, bytes(32))
    assert process.requests() == 2


def test_no_answer_is_longer_than_what_it_can_hold(fake: FakeFactory, offered: bytes) -> None:
    for call, _ in CALLS.values():
        _, remote = fake(framed(offered), (1 << 22).to_bytes(8, "big"))
        remote.start(CONFIGURATION)
        with pytest.raises(EnclaveLost, match="but the limit is"):
            call(remote)


def test_an_interrupted_request_is_not_answered_by_the_next_answer(
    fake: FakeFactory, offered: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> bytes:
        raise KeyboardInterrupt

    process, remote = fake(framed(offered), framed(done()), framed(done()))
    remote.start(CONFIGURATION)
    with monkeypatch.context() as patched:
        patched.setattr("secagg.session.sockets.receive_frame", interrupt)
        with pytest.raises(KeyboardInterrupt):
            remote.open_buffer(1, bytes(32))
    with pytest.raises(EnclaveLost, match="its connection was closed"):
        remote.give_up_buffer()
    assert process.requests() == 2


# --- Evidence ---------------------------------------------------------------------------------------------------------


def test_evidence_keeps_its_format(offered: bytes) -> None:
    offer, _ = read_attested(offered)
    for evidence_format in EvidenceFormat:
        message = attested_of(offer, evidence_format.value, b"document")
        assert read_attested(message) == (offer, Evidence(evidence_format, b"document"))
    simulated = attested_of(offer, SIMULATED, offer.binding)
    assert read_attested(simulated) == (offer, SimulatedEvidence(offer.binding))


@pytest.mark.parametrize("name", ["", "simulatee", "SGX", "sgx\0", "Simulated"])
def test_evidence_of_another_format_is_none(offered: bytes, name: str) -> None:
    message = attested_of(read_attested(offered)[0], name, b"document")
    with pytest.raises(MalformedMessage):
        read_attested(message)


def test_an_offer_with_more_or_less_than_its_evidence_is_none(offered: bytes) -> None:
    for message, reason in ((offered + b"\0", Reason.TRAILING_BYTES), (offered[:-1], Reason.TRUNCATED)):
        with pytest.raises(MalformedMessage) as caught:
            read_attested(message)
        assert caught.value.reason is reason
