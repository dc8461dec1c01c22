"""The sums and counts that come out of an enclave: those of the contract's ideal, in every form and over every ring."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from threading import Event, Thread
from time import sleep
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.choices import ReleaseForm
from secagg.contract import Aggregate, IndexSegment, Layout, Payload, RingSegment, ideal_aggregate
from secagg.crypto.ring import RingVector, add_into, low_bits
from secagg.errors import (
    NOBODY,
    AuthenticationFailed,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    UnexpectedMessage,
)
from secagg.identifiers import ClientId
from secagg.protocols.enclave import server as server_module
from secagg.protocols.enclave.client import Client
from secagg.protocols.enclave.remote_enclave import SimulatedEnclave
from secagg.protocols.enclave.run import run
from secagg.protocols.enclave.server import Server
from secagg.protocols.enclave.session import EnclaveHelpers, EnclaveOptions, open_session
from secagg.protocols.enclave.trusted import enclave as enclave_module
from secagg.protocols.enclave.trusted.buffer import BufferState, Entry, ReleaseRules
from secagg.protocols.enclave.trusted.histogram import HistogramAccumulator
from secagg.protocols.enclave.trusted.messages import BufferRelease, Receipt, SealedUpload, uploads_digest
from secagg.session.roles import LazyUpdate, Subject, Update
from secagg.wire import MessageKind, Writer
from tests.harness.enclave_buffers import RING_LAYOUT, EnclaveSetup, Host, InsecureEnclaveSession, model_digest
from tests.harness.planted import always

MORE_THAN_A_STREAM_SEGMENT = Layout((RingSegment(64, (1 << 17) + 3), RingSegment(8, 5)))


def any_payload(layout: Layout, number: int) -> Payload:
    """Return an input that is uniform over its rings and its codebooks."""
    generator, values = np.random.default_rng(number), list[RingVector]()
    for segment in layout.segments:
        most = segment.codewords - 1 if isinstance(segment, IndexSegment) else low_bits(segment.modulus_bits)
        drawn = generator.integers(0, most, segment.length, dtype=np.uint64, endpoint=True)
        values.append(drawn.astype(segment.ring.word))
    return Payload(layout, tuple(values))


def expected(session: InsecureEnclaveSession, payloads: Sequence[Payload]) -> list[list[int]]:
    """Return what has to be released, by plain integers: sums of codewords where there are tables."""
    ideal = ideal_aggregate(session.setup.layout, payloads)
    values, tables = list[list[int]](), iter(session.configuration.tables)
    for segment, value in zip(session.setup.layout.segments, ideal.values, strict=True):
        if isinstance(segment, RingSegment) or session.setup.form is ReleaseForm.HISTOGRAM:
            values.append(value.reshape(-1).tolist())
            continue
        counts, start = value.tolist(), 0
        for table in next(tables):
            entries = table.entries.tolist()
            rows = counts[start : start + table.blocks]
            values.append(
                [
                    sum(count * entry[column] for count, entry in zip(row, entries, strict=True))
                    for row in rows
                    for column in range(table.width)
                ]
            )
            start += table.blocks
    return values


def shown(aggregate: Aggregate, session: InsecureEnclaveSession) -> list[list[int]]:
    """Return the values of an aggregate, and sums of codewords as the signed integers that they stand for."""
    is_decoded, tables = list[bool](), iter(session.configuration.tables)
    for segment in session.setup.layout.segments:
        is_sum = isinstance(segment, IndexSegment) and session.setup.form is ReleaseForm.DECODED_SUM
        is_decoded += [True] * len(next(tables)) if is_sum else [False]
    return [
        segment.ring.lift(value).tolist() if decoded else value.reshape(-1).tolist()
        for segment, value, decoded in zip(aggregate.layout.segments, aggregate.values, is_decoded, strict=True)
    ]


def summed(setup: EnclaveSetup, uploads: Iterable[tuple[int, int]], version: int = 0) -> None:
    """Let clients upload updates of models, and compare the release with plain sums."""
    session = InsecureEnclaveSession(setup)
    session.host.open_buffer(version, model_digest(version))
    payloads = list[Payload]()
    for number, of_version in uploads:
        payloads.append(any_payload(setup.layout, number))
        session.host.announce_model(of_version, model_digest(of_version))
        upload = session.seal(number, version=of_version, payload=payloads[-1])
        session.host.receive(upload.encode())
    aggregate, receipt = session.host.release()
    assert shown(aggregate, session) == expected(session, payloads)
    assert aggregate.contributors == receipt.contributors == len(payloads)
    assert aggregate.layout == session.configuration.released


@pytest.mark.parametrize("bits", [1, 8, 20, 32, 64])
def test_sums_wrap_with_the_ring_and_not_before(bits: int) -> None:
    layout = Layout((RingSegment(bits, 50),))
    setup = EnclaveSetup(layout=layout, oldest=1, minimum_cohort=2)
    summed(setup, [(1, 1), (2, 1), (3, 1), (4, 0), (5, 1), (6, 0)], version=1)


@given(data=st.data())
@settings(max_examples=15)
def test_any_clients_of_any_age_are_summed(data: st.DataObject) -> None:
    segments = data.draw(
        st.lists(
            st.one_of(
                st.builds(RingSegment, st.integers(1, 64), st.integers(1, 20)),
                st.builds(IndexSegment, st.integers(2, 40), st.integers(1, 20)),
            ),
            min_size=1,
            max_size=4,
        )
    )
    oldest = data.draw(st.integers(0, 2))
    form = data.draw(st.sampled_from(ReleaseForm))
    setup = EnclaveSetup(layout=Layout(tuple(segments)), form=form, oldest=oldest, minimum_cohort=2)
    numbers = data.draw(st.permutations(range(1, 7)))[: data.draw(st.integers(2, 6))]
    summed(setup, [(number, 9 - data.draw(st.integers(0, oldest))) for number in numbers], version=9)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_nothing(threads: int) -> None:
    session = InsecureEnclaveSession(EnclaveSetup(layout=MORE_THAN_A_STREAM_SEGMENT))
    enclave = SimulatedEnclave(session.configuration, coins=session.setup.coins_of("threads"), threads=threads)
    session.enclave, session.host = enclave, Host(session.configuration, enclave)
    session.host.open_buffer(0, bytes(32))
    for number in (1, 2, 3):
        session.upload(number)
    payloads = [session.setup.payload_of(number) for number in (1, 2, 3)]
    assert shown(session.host.release()[0], session) == expected(session, payloads)


@pytest.mark.parametrize("configuration", [None, {}, "a configuration", b""])
def test_an_enclave_runs_a_configuration_and_nothing_else(configuration: Any) -> None:
    with pytest.raises(Misuse, match="must be an EnclaveConfiguration"):
        SimulatedEnclave(configuration, coins=EnclaveSetup().coins_of("enclave"))


def test_two_threads_do_not_hand_over_one_upload_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    session, outcomes = InsecureEnclaveSession(EnclaveSetup()), list[object]()
    session.enclave.open_buffer(0, bytes(32))
    message, checked = session.seal(1).sealed.encode(), ReleaseRules.admit

    def slowly(self: ReleaseRules, entry: Entry) -> None:
        checked(self, entry)
        sleep(0.05)  # Here everything has passed, and nothing is recorded yet.

    def hand_over() -> None:
        try:
            session.enclave.receive(message)
            outcomes.append("taken")
        except PeerError as error:
            outcomes.append(error.reason)

    monkeypatch.setattr(ReleaseRules, "admit", slowly)
    threads = [Thread(target=hand_over) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, outcomes)) == ["replayed", "replayed", "taken"]


# --- Receipts ---------------------------------------------------------------------------------------------------------


def test_a_receipt_says_what_was_released() -> None:
    session = InsecureEnclaveSession(EnclaveSetup())
    session.host.open_buffer(4, model_digest(4))
    ids = list[bytes]()
    for number in (3, 1, 2):
        upload = session.seal(number, version=4)
        ids.append(SealedUpload.decode(upload.sealed.encode(), session.configuration).upload_id)
        session.host.receive(upload.encode())
    release = BufferRelease.decode(session.enclave.release())
    receipt = release.receipt
    session.verified().verify_receipt(receipt)
    assert receipt.uploads_digest == uploads_digest(sorted(ids))
    assert receipt.released_digest == hashlib.sha256(release.aggregate).digest()
    assert (receipt.buffer, receipt.contributors, receipt.releases) == (4, 3, 1)
    assert (receipt.context, receipt.epoch) == (session.configuration.context, session.enclave.offer.epoch)


# --- The host ---------------------------------------------------------------------------------------------------------


def test_what_is_no_sealed_upload_is_not_relayed_to_the_enclave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose bytes they are knows only who gave them to the host."""
    session = InsecureEnclaveSession(EnclaveSetup())
    session.host.open_buffer(0, bytes(32))

    def reached(message: bytes) -> None:
        raise AssertionError(message)

    monkeypatch.setitem(vars(session.enclave), "receive", reached)
    upload = session.seal(1)
    sealed = upload.sealed.encode()
    masked = upload.encode()[-sum(segment.payload_bytes for segment in session.configuration.ring_segments) :]
    wrong: dict[bytes, type[PeerError]] = {
        b"": MalformedMessage,
        sealed[:-1]: MalformedMessage,
        sealed + b"\0": MalformedMessage,
        sealed[:4] + b"\2" + sealed[5:]: MalformedMessage,
        Writer(MessageKind.RELEASE_BUFFER).finish(): MalformedMessage,
    }
    for part, kind in wrong.items():
        message = Writer(MessageKind.ENCLAVE_UPLOAD).variable(part, 1 << 20).borrowed(masked)
        with pytest.raises(PeerError) as caught:
            session.host.receive(message.finish())
        assert (type(caught.value), caught.value.culprits) == (kind, frozenset())
    with pytest.raises(AssertionError):
        session.host.receive(upload.encode())


def test_a_host_does_not_take_a_release_that_its_receipt_is_not_for() -> None:
    session = InsecureEnclaveSession(EnclaveSetup())
    session.host.open_buffer(0, bytes(32))
    for number in (1, 2, 3):
        session.upload(number)
    released = session.enclave.release()
    for bit in range(8 * len(BufferRelease.decode(released).aggregate)):
        flipped = bytearray(released)
        flipped[-1 - bit // 8] ^= 1 << bit % 8
        vars(session.enclave)["release"] = always(bytes(flipped))
        with pytest.raises(MalformedMessage, match="does not match its receipt"):
            session.host.release()
    # Nothing is lost: the enclave releases the same bytes again, and they may come as they are.
    del vars(session.enclave)["release"]
    payloads = [session.setup.payload_of(number) for number in (1, 2, 3)]
    assert shown(session.host.release()[0], session) == expected(session, payloads)


@pytest.mark.parametrize("call", ["release", "give_up_buffer"])
def test_what_the_enclave_has_taken_is_added_before_anything_else_is_done(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    session, taken = InsecureEnclaveSession(EnclaveSetup(layout=RING_LAYOUT)), Event()
    session.host.open_buffer(0, bytes(32))
    for number in (1, 2):
        session.upload(number)
    third, outcomes, order = session.seal(3).encode(), list[Any](), list[str]()

    def slowly(total: RingVector, vector: RingVector) -> None:
        taken.set()
        sleep(0.05)  # Here the enclave counts an upload that is not in the host's sum yet.
        add_into(total, vector)
        order.append("added")

    def upload() -> None:
        session.host.receive(third)

    monkeypatch.setattr(server_module, "add_into", slowly)
    thread = Thread(target=upload)
    thread.start()
    assert taken.wait(30)
    calls: dict[str, Any] = {"release": session.host.release, "give_up_buffer": session.host.give_up_buffer}
    try:
        outcomes.append(calls[call]())
    except Misuse:
        outcomes.append(None)
    order.append("done")
    thread.join()
    assert order == ["added"] * len(RING_LAYOUT.segments) + ["done"]
    if call == "release":
        payloads = [session.setup.payload_of(number) for number in (1, 2, 3)]
        assert shown(outcomes[0][0], session) == expected(session, payloads)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_buffer_for_whose_counters_there_is_no_memory_does_not_open(
    monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    layout = Layout((IndexSegment(8, 5), RingSegment(20, 6), IndexSegment(4, 3)))
    session = InsecureEnclaveSession(EnclaveSetup(layout=layout))
    session.host.open_buffer(0, bytes(32))
    for number in (1, 2, 3):
        session.upload(number)
    released, made = session.enclave.release(), list[object]()

    def starved(*args: Any) -> HistogramAccumulator:
        made.append(args)
        if len(made) == failing:
            raise MemoryError
        return HistogramAccumulator(*args)

    with monkeypatch.context() as patched:
        patched.setattr(enclave_module, "HistogramAccumulator", starved)
        with pytest.raises(MemoryError):
            session.enclave.open_buffer(1, model_digest(1))
    assert session.enclave.state is BufferState.CLOSED
    assert session.enclave.release() == released, "what was released can still be fetched"
    # The number is not used up either, and nobody's model is known by it.
    session.host.open_buffer(1, b"m" * 32)
    for number in (1, 2, 3):
        session.host.receive(session.seal(number, version=1, digest=b"m" * 32).encode())
    payloads = [session.setup.payload_of(number) for number in (1, 2, 3)]
    assert shown(session.host.release()[0], session) == expected(session, payloads)


# --- The page ---------------------------------------------------------------------------------------------------------


def on_one_page(session: InsecureEnclaveSession, *numbers: int) -> tuple[Server, list[Client]]:
    """Return a server, and clients with updates."""
    enclave, subject = session.enclave, session.subject
    helpers = EnclaveHelpers(
        configuration=session.configuration, connection=enclave, offer=enclave.offer, evidence=enclave.evidence
    )
    settings = EnclaveOptions(minimum_cohort=session.setup.minimum_cohort)

    def update(number: int) -> LazyUpdate:
        return LazyUpdate(lambda: Update(session.setup.payload_of(number), bytes(32)))

    clients = [session.new_client(number, update=update(number)) for number in numbers]
    return open_session(subject, settings, None, helpers), clients


def test_the_protocol_on_one_page_skips_who_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    session = InsecureEnclaveSession(EnclaveSetup(form=ReleaseForm.HISTOGRAM))
    sent = list[ClientId]()
    server, clients = on_one_page(session, 1, 2, 3, 4, 2)
    with caplog.at_level(logging.WARNING):
        released = run(server, clients, sent=lambda client, _: sent.append(client))
    assert sent == [ClientId(number) for number in (1, 2, 3, 4, 2)]
    aggregate, receipt = released.aggregate, Receipt.decode(released.receipt)
    session.verified().verify_receipt(receipt)
    assert "the upload of client/2 was refused" in caplog.text
    payloads = [session.setup.payload_of(number) for number in (1, 2, 3, 4)]
    assert shown(aggregate, session) == expected(session, payloads)
    assert receipt.contributors == 4


def test_a_client_answers_for_its_own_task_round_and_model_and_charges_them() -> None:
    session = InsecureEnclaveSession(EnclaveSetup())
    server, (client,) = on_one_page(session, 1)
    update = LazyUpdate(lambda: Update(session.setup.payload_of(2), bytes(32)))
    others: dict[str, dict[str, Any]] = {
        "task differs": {"task": b"another"},
        "round differs": {"round_number": 1},
        "model, capacity or terms differ": {"terms": b"others"},
    }
    for saying, changes in others.items():
        about: Subject = replace(session.subject, **changes)
        other = session.new_client(2, update=update, about=about)
        with pytest.raises(InvalidParameters, match=saying) as caught:
            other.answer(server.invitation)
        assert (caught.value.reason, other.ledger.seals) == (Reason.BELOW_FLOOR, 0)
    stricter = session.new_client(2, update=update, policy=replace(session.policy, minimum_cohort=4))
    with pytest.raises(InvalidParameters, match="cohort of 3 is below 4"):
        stricter.answer(server.invitation)
    assert stricter.ledger.seals == 0
    client.answer(server.invitation)
    assert client.ledger.seals == 1


def test_training_that_outlasts_the_enclaves_keys_is_sealed_all_the_same() -> None:
    """A refusal after the charge would spend the update, and tell the host how long the client trained."""
    session = InsecureEnclaveSession(EnclaveSetup())
    server, _ = on_one_page(session)
    end = session.verified().not_after

    def train() -> Update:
        session.now = end + timedelta(hours=1)
        return Update(session.setup.payload_of(1), bytes(32))

    client = session.new_client(1, update=LazyUpdate(train))
    upload = client.answer(server.invitation)
    assert session.now > end
    server.receive(ClientId(1), upload)
    # And before the charge they are not sealed to.
    late = session.new_client(2, update=LazyUpdate(train))
    with pytest.raises(PeerMisbehaved, match="start a new epoch"):
        late.answer(server.invitation)
    assert (late.ledger.seals, len(server.awaited or ())) == (0, 0)


@pytest.mark.parametrize("was_taken", [False, True], ids=["the update's ledger refuses", "the update was taken"])
def test_no_seal_is_spent_on_an_update_that_is_not_made(was_taken: bool) -> None:  # noqa: FBT001 -- a parameter
    def refuse() -> None:
        raise PeerMisbehaved("a ledger of its own", reason=Reason.ALREADY_ANSWERED, culprits=NOBODY)

    session = InsecureEnclaveSession(EnclaveSetup())
    server, _ = on_one_page(session)
    payload = session.setup.payload_of(1)
    update = LazyUpdate(lambda: Update(payload, bytes(32)), charge=(lambda: None) if was_taken else refuse)
    if was_taken:
        update.take(payload.layout)
    client = session.new_client(1, update=update)
    with pytest.raises(Misuse if was_taken else PeerMisbehaved):
        client.answer(server.invitation)
    assert client.ledger.seals == 0


# --- What a call that is refused leaves -------------------------------------------------------------------------------


def released_once() -> tuple[InsecureEnclaveSession, bytes]:
    """Return an epoch whose first buffer was released, and the release."""
    session = InsecureEnclaveSession(EnclaveSetup())
    session.host.open_buffer(0, bytes(32))
    for number in (1, 2, 3):
        session.upload(number)
    released = session.enclave.release()
    session.host.release()
    return session, released


def test_a_buffer_that_is_refused_leaves_the_last_release_to_be_fetched_again() -> None:
    session, released = released_once()
    with pytest.raises(PeerMisbehaved, match="versions must increase"):
        session.enclave.open_buffer(0, bytes(32))
    assert session.enclave.release() == released


def test_without_a_buffer_nothing_is_read() -> None:
    session, _ = released_once()
    with pytest.raises(Misuse, match="no buffer is open"):
        session.enclave.receive(b"anything")


def test_a_session_that_ends_late_leaves_the_next_ones_buffer_open() -> None:
    session, _ = released_once()
    ended = session.host.server
    session.host.open_buffer(1, model_digest(1))
    ended.abort()
    assert session.enclave.state is BufferState.OPEN
    with pytest.raises(Misuse, match="open another session"):
        ended.unmasked()


def test_bytes_behind_an_upload_are_refused() -> None:
    session = InsecureEnclaveSession(EnclaveSetup())
    session.host.open_buffer(0, bytes(32))
    with pytest.raises(MalformedMessage) as caught:
        session.host.receive(session.seal(1).encode() + b"\0")
    assert caught.value.reason is Reason.TRAILING_BYTES


@pytest.mark.parametrize("field", ["task", "layout", "minimum_cohort"])
def test_a_session_is_for_what_its_epoch_was_started_for(field: str) -> None:
    session = InsecureEnclaveSession(EnclaveSetup())
    enclave = session.enclave
    changed: dict[str, Any] = {"task": b"another", "layout": RING_LAYOUT, "minimum_cohort": 2}
    change = {field: changed[field]}
    helpers = EnclaveHelpers(
        configuration=session.configuration, connection=enclave, offer=enclave.offer, evidence=enclave.evidence
    )
    subject, settings_ = session.subject, EnclaveOptions(minimum_cohort=3)
    if field in {"task", "layout"}:
        subject = replace(subject, **change)
    else:
        settings_ = replace(settings_, **change)
    with pytest.raises(InvalidParameters, match=f"has a different {field}"):
        open_session(subject, settings_, None, helpers)
    with pytest.raises(InvalidParameters, match="2 clients are invited"):
        open_session(session.subject, EnclaveOptions(minimum_cohort=3), frozenset(map(ClientId, (1, 2))), helpers)
    assert enclave.state is BufferState.CLOSED


def test_a_vector_is_digested_once_and_its_digest_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    session = InsecureEnclaveSession(EnclaveSetup(layout=Layout((RingSegment(20, 4000),))))
    server, (client, other, third) = on_one_page(session, 1, 2, 3)
    upload, digested, sha256 = client.answer(server.invitation), list[int](), hashlib.sha256

    class Counted:
        """A hash that notes how much it is given."""

        def __init__(self, data: bytes = b"") -> None:
            self._hash = sha256()
            self.update(data)

        def update(self, data: bytes) -> None:
            digested.append(len(data))
            self._hash.update(data)

        def digest(self) -> bytes:
            return self._hash.digest()

    monkeypatch.setattr(hashlib, "sha256", Counted)
    server.receive(client.client, upload)
    assert sum(digested) < len(upload) + 2000 < 2 * len(upload)
    altered = upload[:-1] + bytes([upload[-1] ^ 1])
    for sender in (client, other):
        with pytest.raises(AuthenticationFailed):
            server.receive(sender.client, altered)
    # The bytes that were taken change nothing, also when nothing else is taken any more.
    server.receive(client.client, upload)
    server.receive(other.client, other.answer(server.invitation))
    server.receive(third.client, third.answer(server.invitation))
    server.close_stage()
    server.receive(client.client, upload)
    with pytest.raises(UnexpectedMessage):
        server.receive(client.client, altered)
    assert server.release().counted == {client.client, other.client, third.client}


def test_uploads_that_come_from_several_threads_are_all_in_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    session = InsecureEnclaveSession(EnclaveSetup(layout=RING_LAYOUT))
    session.host.open_buffer(0, bytes(32))

    def slowly(total: RingVector, vector: RingVector) -> None:
        seen = total.copy()
        sleep(0.01)  # Here another thread would add to what this one overwrites.
        total[:] = seen + vector

    monkeypatch.setattr(server_module, "add_into", slowly)
    messages = [session.seal(number).encode() for number in range(1, 7)]
    threads = [Thread(target=session.host.receive, args=(message,)) for message in messages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    payloads = [session.setup.payload_of(number) for number in range(1, 7)]
    assert shown(session.host.release()[0], session) == expected(session, payloads)
