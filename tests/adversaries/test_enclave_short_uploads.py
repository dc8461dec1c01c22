"""Short uploads, which leave out what the host puts back, and seals that hold the indices themselves.

| attack | defence |
|---|---|
| the host puts back another epoch, model, or certificate | the seal is bound to all of them |
| any byte is altered on the way | HPKE |
| a sealed secret is moved to another upload of its client | it is bound to its header |
| a client hands over the short upload of another | the session knows who sent it |
| a client that the host does not know | it is named, and nothing reaches the enclave |
| an upload for an older model is sent short | only invitations for the buffer's own model allow it |
| an invitation is completed with other tables than the enclave's | the attested configuration covers them |
| indices or a weight out of range inside of one seal | they are checked inside, before anything is counted |
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg.compression.joined_rotation import JoinedRotation
from secagg.compression.peak import PeakCode
from secagg.compression.public_stream import PublicStream
from secagg.contract import IndexSegment, Layout, RingSegment
from secagg.contract.codewords import CodewordTable
from secagg.errors import UNDECIDED, AuthenticationFailed, PeerError, PeerMisbehaved, Reason
from secagg.identifiers import ClientId, ServerId
from secagg.parameters import Suite
from secagg.protocols.enclave.plan import EnclaveSettings
from secagg.protocols.enclave.simulation import EnclaveSimulation
from secagg.protocols.enclave.trusted.buffer import ReleaseRules
from secagg.protocols.enclave.trusted.messages import (
    MOST_SEALED_INDICES,
    ModelStamp,
    SealedUpload,
    has_one_seal,
    sealed_indices_bytes,
)
from secagg.session.certificates import Certificate
from secagg.session.roles import LateUpdate, Subject, Update
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.enclave_buffers import MIXED_LAYOUT, NOW, EnclaveSetup, Host, InsecureEnclaveSession, crafted

HOST = ServerId()
FIRST, SECOND = ClientId(1), ClientId(2)
MODEL = ModelStamp(version=0, digest=bytes(32))
INDICES = Layout((IndexSegment(6, 5),))
"""Indices of three bits, two of whose eight values name no codeword, and no mask."""
LAYOUTS = {"rings and indices": MIXED_LAYOUT, "indices alone": INDICES}


def certificates(session: InsecureEnclaveSession) -> dict[ClientId, Certificate]:
    setup = session.setup
    numbers = range(1, setup.population + 1)
    return {ClientId(n): session.certificate_of(n, setup.signing_key_of(f"client {n}")) for n in numbers}


def opened(layout: Layout = MIXED_LAYOUT, **named: Any) -> InsecureEnclaveSession:
    """Return a session whose host knows every client, with one upload in its buffer."""
    session = InsecureEnclaveSession(EnclaveSetup(layout=layout, **named))
    session.host = Host(
        session.configuration,
        session.enclave,
        epoch=session.enclave.offer.epoch,
        certificates=certificates(session),
    )
    session.host.open_buffer(0, MODEL.digest)
    session.host.receive(session.seal(6).shortened())
    return session


def memory_of(session: InsecureEnclaveSession) -> Any:
    """Return all that enclave and host remember of the buffer."""
    inside: dict[str, Any] = vars(session.enclave)
    judge: ReleaseRules = inside["_rules"]
    rules = {name: copy.deepcopy(value) for name, value in vars(judge).items() if name != "_configuration"}
    keys = {weight: len(keys) for weight, keys in inside["_mask_keys"].items() if keys}
    counted = zip(inside["_histograms"], session.configuration.index_segments, strict=True)
    sums: list[Any] = vars(session.host.server)["_sums"]
    counts = [histogram.histogram(0, segment.blocks).tolist() for histogram, segment in counted]
    return rules, keys, counts, [total.tolist() for total in sums]


def is_refused(session: InsecureEnclaveSession, message: bytes) -> PeerError:
    before = memory_of(session)
    with pytest.raises(PeerError) as caught:
        session.host.receive(message)
    assert memory_of(session) == before
    return caught.value


def putting_back(session: InsecureEnclaveSession, **changes: Any) -> None:
    """Let the host put back something else."""
    for name, value in changes.items():
        setattr(session.host.server, f"_{name}", value)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("suite", Suite)
def test_the_enclave_gets_a_short_upload_byte_for_byte_as_a_long_one(name: str, suite: Suite) -> None:
    session = opened(LAYOUTS[name], suite=suite)
    upload = session.seal(1)
    short, long = (session.host.server.read(message) for message in (upload.shortened(), upload.encode()))
    assert short.sealed == long.sealed == upload.sealed.encode()
    for vectors in (short.vectors, long.vectors):
        assert all(np.array_equal(vector, masked) for vector, masked in zip(vectors, upload.masked, strict=True))


@pytest.mark.parametrize("is_short", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_no_other_bytes_are_taken_for_an_upload_that_was_taken(name: str, is_short: bool) -> None:  # noqa: FBT001
    session = opened(LAYOUTS[name])
    upload = session.seal(1)
    message = upload.shortened() if is_short else upload.encode()
    digest = session.host.receive(message, FIRST)
    assert session.host.server.read(message).digest == digest
    for at in range(len(message)):
        try:
            assert (
                session.host.server.read(message[:at] + bytes([message[at] ^ 1]) + message[at + 1 :]).digest != digest
            )
        except PeerError:
            continue


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(
    "changes",
    [
        {"epoch": bytes(32)},
        {"model": ModelStamp(version=1, digest=bytes(32))},
        {"model": ModelStamp(version=0, digest=b"m" * 32)},
    ],
    ids=["epoch", "version", "digest"],
)
def test_what_a_host_puts_back_is_what_the_client_sealed_or_the_upload_is_refused(
    name: str, changes: Mapping[str, Any]
) -> None:
    session = opened(LAYOUTS[name])
    message = session.seal(1).shortened()
    putting_back(session, **changes)
    is_refused(session, message)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_host_cannot_put_one_clients_certificate_under_the_upload_of_another(name: str) -> None:
    session = opened(LAYOUTS[name])
    message, known = session.seal(1).shortened(), certificates(session)
    putting_back(session, certificates={FIRST: known[SECOND]})
    error = is_refused(session, message)
    assert (type(error), error.culprits) == (AuthenticationFailed, frozenset({SECOND, HOST}))
    # Under the first one's name with the key of the second, which the authority never certified.
    mixed = Certificate(FIRST, known[SECOND].public_key, known[SECOND].signature)
    putting_back(session, certificates={FIRST: mixed})
    assert type(is_refused(session, message)) is AuthenticationFailed


@pytest.mark.parametrize("name", LAYOUTS)
def test_any_byte_that_is_altered_on_the_way_makes_an_upload_of_nobody(name: str) -> None:
    session = opened(LAYOUTS[name])
    message = bytearray(session.seal(1).shortened())
    for position in range(len(message)):
        message[position] ^= 1
        is_refused(session, bytes(message))
        message[position] ^= 1
    session.host.receive(bytes(message))


def test_a_client_that_the_host_does_not_know_is_named() -> None:
    session = opened(INDICES)
    putting_back(session, certificates={SECOND: certificates(session)[SECOND]})
    error = is_refused(session, session.seal(1).shortened())
    assert error.reason is Reason.NOT_ELIGIBLE
    assert error.culprits is UNDECIDED, "the name is one out of a header"


def test_nobody_hands_over_the_short_upload_of_another() -> None:
    session = opened()
    message, before = session.seal(1).shortened(), memory_of(session)
    with pytest.raises(PeerMisbehaved, match="hands over an upload of") as caught:
        session.host.receive(message, SECOND)
    assert caught.value.culprits == {SECOND, ServerId()}
    assert memory_of(session) == before


def test_a_short_upload_is_none_where_the_host_knows_nobody() -> None:
    session = InsecureEnclaveSession(EnclaveSetup())
    session.host.open_buffer(0, MODEL.digest)
    with pytest.raises(PeerError):
        session.host.receive(session.seal(1).shortened())


# --- One seal ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("packed", "weight"),
    [(b"\xff\xff", 1), (bytes(2), 0), (bytes(2), 2)],
    ids=["an index", "a weight of 0", "a weight above the greatest"],
)
def test_what_one_seal_holds_is_checked_before_it_is_counted(packed: bytes, weight: int) -> None:
    session = opened(INDICES)
    assert has_one_seal(session.configuration)
    message, before = crafted(session, packed=packed, weight=weight), memory_of(session)
    with pytest.raises(PeerError) as caught:
        session.enclave.receive(message)
    assert caught.value.culprits == {FIRST}
    assert memory_of(session) == before


def test_a_seal_is_of_no_other_upload() -> None:
    session = opened(INDICES)
    first, second = session.seal(1).sealed, session.seal(2).sealed
    moved, before = replace(first, sealed_seed=second.sealed_seed), memory_of(session)
    with pytest.raises(AuthenticationFailed) as caught:
        session.enclave.receive(moved.encode())
    assert caught.value.culprits == {FIRST, HOST}
    assert memory_of(session) == before


@pytest.mark.parametrize("suite", Suite)
def test_indices_are_under_the_seal_and_nowhere_in_the_clear(suite: Suite) -> None:
    session = opened(Layout((IndexSegment(256, 64),)), suite=suite)
    upload = session.seal(1)
    assert session.setup.payload_of(1).values[0].tobytes() not in upload.shortened()
    assert sealed_indices_bytes(session.configuration) == 0
    altered = bytearray(upload.sealed.sealed_seed)
    altered[-20] ^= 1
    with pytest.raises(AuthenticationFailed):
        session.enclave.receive(replace(upload.sealed, sealed_seed=bytes(altered)).encode())


@pytest.mark.parametrize(("blocks", "is_one"), [(MOST_SEALED_INDICES, True), (MOST_SEALED_INDICES + 1, False)])
def test_more_indices_than_one_seal_holds_stand_beside_it(blocks: int, is_one: bool) -> None:  # noqa: FBT001
    session = opened(Layout((IndexSegment(256, blocks),)))
    assert has_one_seal(session.configuration) == is_one
    upload = session.seal(1).sealed
    assert len(upload.sealed_indices) == (0 if is_one else blocks + 16)
    assert SealedUpload.decode(upload.encode(), session.configuration).encode() == upload.encode()
    rings = Layout((RingSegment(8, 1), IndexSegment(256, 8)))
    assert not has_one_seal(opened(rings).configuration)


def test_an_upload_of_indices_has_83_bytes_beside_them() -> None:
    """Header 7, client 8, encapsulation 32, proof 16, weight 4, tag 16."""
    session = opened(Layout((IndexSegment(256, 155),)))
    assert len(session.seal(1).shortened()) == 155 + 83


# --- Invitations ------------------------------------------------------------------------------------------------------


def peaks(places: int, seed: bytes = bytes(32)) -> PeakCode:
    stream = PublicStream(seed=seed, round_number=1, tensor_name="update", shape=(1024,))
    return PeakCode(rotation=JoinedRotation(stream=stream), places=places)


def subject_of(code: PeakCode, **changes: Any) -> Subject:
    given: dict[str, Any] = {"tables": code.tables, **changes}
    return Subject(
        task=b"a task", round_number=1, layout=code.layout, capacity=code.capacity, model_digest=b"m" * 32, **given
    )


@pytest.fixture
def simulation() -> EnclaveSimulation:
    settings = EnclaveSettings(suite=Suite.CLASSIC, minimum_cohort=3)
    return EnclaveSimulation(settings, coins=InsecureSeededCoins(b"an epoch"), clock=lambda: NOW)


def answered(simulation: EnclaveSimulation, invitation: bytes, subject: Subject, code: PeakCode) -> bytes:
    update = np.random.default_rng(1).standard_normal(1024).astype(np.float32)
    late = LateUpdate(lambda: Update(code.encode(update, InsecureSeededCoins(b"1")), b"m" * 32))
    return simulation.member(FIRST).join(subject, late).answer(invitation)


def test_an_invitation_leaves_out_the_tables_that_every_client_of_the_codec_has(simulation: EnclaveSimulation) -> None:
    code = peaks(128)
    session = simulation.open(subject_of(code), frozenset({FIRST, SECOND, ClientId(3)}))
    assert sum(len(table.encode()) for table in code.tables[0]) > 2**17
    assert len(session.invitation) < 512
    upload = answered(simulation, session.invitation, subject_of(code), code)
    assert len(upload) == code.layout.payload_bytes + 83
    session.receive(FIRST, upload)


def test_a_client_with_other_tables_seals_nothing(simulation: EnclaveSimulation) -> None:
    code = peaks(128)
    session = simulation.open(subject_of(code), frozenset({FIRST, SECOND, ClientId(3)}))
    (table,) = code.tables[0]
    altered = CodewordTable(table.blocks, table.entries * 2)
    for tables in ((), ((altered,),)):
        with pytest.raises(PeerError):
            answered(simulation, session.invitation, subject_of(code, tables=tables), code)


def test_a_host_that_has_not_everybodys_certificate_is_sent_long_uploads(simulation: EnclaveSimulation) -> None:
    code = peaks(128)
    session = simulation.open(subject_of(code), None)
    upload = answered(simulation, session.invitation, subject_of(code), code)
    assert len(upload) > code.layout.payload_bytes + 250
    session.receive(FIRST, upload)
