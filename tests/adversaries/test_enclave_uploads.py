"""Uploads that an enclave does not take: replayed, moved, altered, crafted by a corrupt client, or of nobody."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from secagg.compression.common import PublicStream
from secagg.compression.peak import PeakCode
from secagg.compression.rotation import JoinedRotation
from secagg.contract import IndexSegment, Layout, Payload, RingSegment
from secagg.crypto.labels import Label
from secagg.crypto.secret import Secret
from secagg.errors import UNDECIDED, AuthenticationFailed, MalformedMessage, PeerError, PeerMisbehaved, Reason
from secagg.identifiers import AttemptContext, ClientId, Party, ServerId
from secagg.parameters import Suite
from secagg.protocols.enclave.client import Upload, seal_indices, vector_digest
from secagg.protocols.enclave.release_privacy import PrivacyLimit
from secagg.protocols.enclave.session import EnclaveOptions
from secagg.protocols.enclave.simulation import EnclaveSimulation
from secagg.protocols.enclave.trusted import enclave as enclave_module
from secagg.protocols.enclave.trusted.buffer import ReleaseRules
from secagg.protocols.enclave.trusted.messages import (
    MOST_SEALED_INDICES,
    PROOF_BYTES,
    ModelStamp,
    SealedUpload,
    Seed,
    has_one_seal,
    mask_key,
    proof_of,
    sealed_indices_bytes,
    sealing_info,
)
from secagg.session.certificates import Certificate
from secagg.session.roles import LazyUpdate, Subject, Update
from secagg.session.signing_keys import agreed, issue_certificate
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.enclave_buffers import (
    MIXED_LAYOUT,
    NOW,
    EnclaveSetup,
    Host,
    InsecureEnclaveSession,
    crafted,
    masked_of,
    model_digest,
)

trusted: Any = enclave_module
HOST = ServerId()
FIRST, SECOND = ClientId(1), ClientId(2)
BLOCKS, CODEWORDS = 5, 6
LAYOUT = Layout((RingSegment(20, 6), IndexSegment(CODEWORDS, BLOCKS), RingSegment(7, 3)))
"""Indices of three bits, two of whose eight values name no codeword."""


def memory_of(session: InsecureEnclaveSession) -> Any:
    """Return all that enclave and host remember, to compare with what they remember later."""
    inside: dict[str, Any] = vars(session.enclave)
    judge: ReleaseRules = inside["_rules"]
    rules = {name: copy.deepcopy(value) for name, value in vars(judge).items() if name != "_configuration"}
    keys = [bytes(key.expose()) for key in inside["_mask_keys"]]
    counted = zip(inside["_histograms"], session.configuration.index_segments, strict=True)
    sums: list[Any] = vars(session.host.server)["_sums"]
    counts = [histogram.histogram(0, segment.blocks).tolist() for histogram, segment in counted]
    return rules, keys, counts, [total.tolist() for total in sums]


@pytest.fixture
def session() -> InsecureEnclaveSession:
    made = InsecureEnclaveSession(EnclaveSetup(layout=LAYOUT))
    made.host.open_buffer(0, bytes(32))
    made.upload(6)
    return made


def sealed(session: InsecureEnclaveSession, number: int, **named: Any) -> SealedUpload:
    return session.seal(number, **named).sealed


def is_refused(
    session: InsecureEnclaveSession, message: bytes, kind: type[PeerError], reason: Reason, *culprits: Party
) -> None:
    """Check that an enclave refuses an upload with this error and blame, and remembers exactly what it did before."""
    before = memory_of(session)
    with pytest.raises(PeerError) as caught:
        session.enclave.receive(message)
    assert (type(caught.value), caught.value.reason) == (kind, reason), str(caught.value)
    assert caught.value.culprits == frozenset(culprits)
    assert memory_of(session) == before


def is_not_authentic(session: InsecureEnclaveSession, message: bytes, *culprits: Party) -> None:
    is_refused(session, message, AuthenticationFailed, Reason.AUTHENTICATION_FAILED, *culprits)


# --- Replays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["release", "give_up_buffer"])
def test_an_upload_is_not_taken_in_a_later_buffer(end: str) -> None:
    session = InsecureEnclaveSession(EnclaveSetup(layout=LAYOUT, oldest=1))
    session.host.open_buffer(0, bytes(32))
    uploads = [session.seal(number) for number in (1, 2, 3)]
    for upload in uploads:
        session.enclave.receive(upload.sealed.encode())
    getattr(session.enclave, end)()
    session.enclave.open_buffer(1, model_digest(1))
    for number, upload in enumerate(uploads, start=1):
        is_refused(session, upload.sealed.encode(), PeerMisbehaved, Reason.REPLAYED, ClientId(number), HOST)


def test_what_was_sealed_to_an_epoch_is_not_taken_by_the_next(session: InsecureEnclaveSession) -> None:
    upload = sealed(session, 1)
    session.restart()
    session.host.open_buffer(0, bytes(32))
    is_refused(session, upload.encode(), PeerMisbehaved, Reason.WRONG_SESSION, FIRST, HOST)
    moved = replace(upload, header=replace(upload.header, epoch=session.enclave.offer.epoch))
    is_not_authentic(session, moved.encode(), FIRST, HOST)


def test_what_was_sealed_under_a_configuration_is_not_taken_under_another(session: InsecureEnclaveSession) -> None:
    """Both enclaves have the same coins, and with them the same epoch."""
    upload = sealed(session, 1)
    other = InsecureEnclaveSession(replace(session.setup, task=b"another task"))
    other.host.open_buffer(0, bytes(32))
    assert other.enclave.offer.epoch == session.enclave.offer.epoch
    assert other.enclave.offer.sealing_key != session.enclave.offer.sealing_key
    is_not_authentic(other, upload.encode(), FIRST, HOST)


# --- Sealed seeds under another header --------------------------------------------------------------------------------


def test_a_sealed_seed_beside_another_clients_vector_is_not_summed(session: InsecureEnclaveSession) -> None:
    """The sum would lack one mask and hold another, and nobody would know whose upload was wrong."""
    one, other = session.seal(1), session.seal(2)
    mixed = replace(one, packed=other.packed, nonce=other.nonce)
    for upload in (mixed, replace(one, packed=other.packed), replace(one, nonce=other.nonce)):
        error = host_refuses(session, upload.encode())
        assert (type(error), error.culprits) == (AuthenticationFailed, frozenset())
    for upload in (one, other):
        session.host.receive(upload.encode())
    aggregate, _ = session.host.release()
    assert aggregate.contributors == 3


def test_a_commitment_does_not_let_anybody_try_out_vectors(session: InsecureEnclaveSession) -> None:
    upload = session.seal(1)
    committed = upload.sealed.header.vector_digest
    assert vector_digest(upload.nonce, upload.packed) == committed
    assert vector_digest(bytes(32), upload.packed) != committed
    assert upload.nonce not in upload.sealed.encode(), "the enclave does not get it"


def test_indices_serve_no_other_upload(session: InsecureEnclaveSession) -> None:
    one, other = sealed(session, 1), sealed(session, 2)
    is_not_authentic(session, replace(one, sealed_indices=bytes(other.sealed_indices)).encode(), FIRST, HOST)
    for upload in (one, other):
        session.enclave.receive(upload.encode())


@pytest.mark.parametrize("suite", Suite)
def test_nobody_but_a_client_seals_in_its_name(suite: Suite) -> None:
    """Otherwise a host could seal seeds that it knows in the names of all clients but one, and have that one's sum."""
    session = InsecureEnclaveSession(EnclaveSetup(layout=LAYOUT, suite=suite))
    session.host.open_buffer(0, bytes(32))
    session.upload(6)
    one, other = sealed(session, 1), session.setup.signing_key_of("client 2")
    digest = one.header.digest(session.configuration.context)
    own, receipt_key = session.setup.signing_key_of("client 1"), session.enclave.offer.receipt_key
    made = (
        proof_of(other, receipt_key, digest),
        proof_of(other, one.header.certificate.public_key, digest),
        proof_of(own, receipt_key, bytes(32)),
        proof_of(own, other.public_key, digest),
        agreed(own, receipt_key, PROOF_BYTES, Label.ENCLAVE_SEALING, digest),
    )
    # Nothing; a proof by a key of its own; one of the client's for another header, enclave or purpose, which leaked.
    for known in (bytes(PROOF_BYTES), *(bytes(proof.expose()) for proof in made)):
        with Secret("both", known + bytes(32)) as both:
            resealed = session.verified().seal(both, sealing_info(digest))
        is_not_authentic(session, replace(one, sealed_seed=resealed).encode(), FIRST, HOST)
    session.enclave.receive(one.encode())


def test_a_client_is_not_blamed_for_what_a_host_repeats_under_its_name(session: InsecureEnclaveSession) -> None:
    """What does not open says nothing of its client, whatever its header says."""
    one = sealed(session, 1)
    session.enclave.receive(one.encode())
    header = replace(one.header, model=ModelStamp(version=9, digest=bytes(32)))
    is_not_authentic(session, replace(one, header=header).encode(), FIRST, HOST)
    is_not_authentic(session, replace(one, sealed_seed=bytes(len(one.sealed_seed))).encode(), FIRST, HOST)


# --- Values out of range ----------------------------------------------------------------------------------------------


def packed_indices(values: list[int]) -> bytes:
    ring = IndexSegment(CODEWORDS, BLOCKS).ring
    return ring.pack(np.array(values, dtype=ring.word))


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.parametrize("index", [CODEWORDS, 7])
def test_an_index_that_names_no_codeword_is_refused_wherever_it_stands(
    session: InsecureEnclaveSession, block: int, index: int
) -> None:
    values = [1] * BLOCKS
    values[block] = index
    message = crafted(session, 1, packed=packed_indices(values))
    is_refused(session, message, MalformedMessage, Reason.INPUT_OUT_OF_RANGE, FIRST)
    session.enclave.receive(crafted(session, 2, packed=packed_indices([CODEWORDS - 1] * BLOCKS)))


@pytest.mark.parametrize("wrong", [0, 1])
def test_nothing_is_counted_of_an_upload_of_which_one_segment_is_wrong(wrong: int) -> None:
    """Otherwise a corrupt client would be in the histogram of one segment and not among the contributors."""
    both = Layout((IndexSegment(CODEWORDS, BLOCKS), RingSegment(20, 6), IndexSegment(CODEWORDS, BLOCKS)))
    session = InsecureEnclaveSession(EnclaveSetup(layout=both))
    session.host.open_buffer(0, bytes(32))
    parts = [packed_indices([1] * BLOCKS), packed_indices([1] * BLOCKS)]
    parts[wrong] = packed_indices([1] * (BLOCKS - 1) + [CODEWORDS])
    message = crafted(session, 1, packed=b"".join(parts))
    is_refused(session, message, MalformedMessage, Reason.INPUT_OUT_OF_RANGE, FIRST)


# --- Altered bytes ----------------------------------------------------------------------------------------------------


def test_bytes_that_change_while_they_are_looked_at_are_those_that_came(
    session: InsecureEnclaveSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that shares its memory could have one thing checked and another one counted."""
    message, genuine = bytearray(session.seal(1).sealed.encode()), trusted.open_indices

    def after_a_change(*args: Any, **named: Any) -> bytearray:
        message[:] = bytes(len(message))
        opened: bytearray = genuine(*args, **named)
        return opened

    monkeypatch.setattr(trusted, "open_indices", after_a_change)
    given: Any = message
    session.enclave.receive(given)
    _, _, (counts,), _ = memory_of(session)
    expected = np.zeros((BLOCKS, CODEWORDS), dtype=np.int64)
    for number in (1, 6):
        expected[np.arange(BLOCKS), session.setup.payload_of(number).values[1]] += 1
    assert counts == expected.tolist()
    assert not any(message)


# --- Invented clients -------------------------------------------------------------------------------------------------


def test_a_client_that_nobody_certified_is_not_counted(session: InsecureEnclaveSession) -> None:
    own = session.setup.signing_key_of("an invented client")
    for issuer in (own, session.setup.signing_key_of("an authority of the host")):
        certificate = issue_certificate(issuer, ClientId(77), own.public_key)
        message = crafted(session, 77, certificate=certificate, signing_key=own)
        is_not_authentic(session, message, ClientId(77), HOST)


def test_a_certificate_serves_nobody_without_its_key(session: InsecureEnclaveSession) -> None:
    victim, thief = (session.setup.signing_key_of(f"client {number}") for number in (1, 2))
    stolen = session.certificate_of(1, victim)
    is_not_authentic(session, crafted(session, 1, certificate=stolen, signing_key=thief), FIRST, HOST)
    for changed in (replace(stolen, public_key=thief.public_key), replace(stolen, client=SECOND)):
        message = crafted(session, 1, certificate=changed, signing_key=thief)
        is_not_authentic(session, message, changed.client, HOST)


def test_one_certified_client_does_not_fill_a_buffer(session: InsecureEnclaveSession) -> None:
    """Any number of uploads, ids and seeds of one identity count as one contributor, and release nothing."""
    session.enclave.receive(session.seal(1).sealed.encode())
    key = session.setup.signing_key_of("client 1")
    for number in range(10, 20):
        message = crafted(session, number, certificate=session.certificate_of(1, key), signing_key=key)
        is_refused(session, message, PeerMisbehaved, Reason.ALREADY_ANSWERED)
    with pytest.raises(Exception, match="not enough uploads: 3 needed, got 2"):
        session.enclave.release()


@pytest.mark.parametrize("fault", ["index", "seed", "twice"])
def test_without_an_authority_no_client_is_blamed_alone(fault: str) -> None:
    """The host certifies a key of its own for any client's name, and signs what it likes."""
    setup = EnclaveSetup(
        layout=LAYOUT,
        has_authority=False,
        noise_multiplier=Fraction(1),
        l2_bounds=(99, 99),
        privacy=PrivacyLimit(epsilon=1e6, delta=1e-6),
    )
    session = InsecureEnclaveSession(setup)
    session.host.open_buffer(0, bytes(32))
    own = session.setup.signing_key_of("the host's")
    named: Any = {"certificate": issue_certificate(own, FIRST, own.public_key), "signing_key": own}
    both = FIRST, HOST
    match fault:
        case "index":
            message = crafted(session, 1, packed=packed_indices([CODEWORDS] * BLOCKS), **named)
            is_refused(session, message, MalformedMessage, Reason.INPUT_OUT_OF_RANGE, *both)
        case "seed":
            genuine = SealedUpload.decode(crafted(session, 1, **named), session.configuration)
            is_not_authentic(session, replace(genuine, sealed_seed=bytes(len(genuine.sealed_seed))).encode(), *both)
        case _:
            session.enclave.receive(session.seal(1).sealed.encode())
            is_refused(session, crafted(session, 1, **named), PeerMisbehaved, Reason.ALREADY_ANSWERED, *both)
    session.enclave.receive(session.seal(2).sealed.encode())


# --- Coins that repeat ------------------------------------------------------------------------------------------------

WIDE = Layout((RingSegment(64, 64), IndexSegment(256, 64)))


def masks(upload: Upload, payload: Payload) -> set[int]:
    return set(WIDE.segments[0].ring.subtract(masked_of(upload, WIDE)[0], payload.values[0]).tolist())


@pytest.mark.parametrize("suite", Suite)
def test_a_client_whose_coins_repeat_shares_no_mask_and_no_key_between_epochs(suite: Suite) -> None:
    session = InsecureEnclaveSession(EnclaveSetup(layout=WIDE, suite=suite))
    first = session.seal(1)
    session.restart()
    # A client that is restored from a snapshot has its coins of before, and a ledger that has forgotten.
    session.clients[0] = session.new_client(1)
    second = session.seal(1)
    opened = [upload.sealed for upload in (first, second)]
    assert first.nonce == second.nonce, "all that was drawn is the same"
    assert opened[0].header.vector_digest != opened[1].header.vector_digest
    payload = session.setup.payload_of(1)
    assert masks(first, payload).isdisjoint(masks(second, payload)), "64 words of 64 bits: no accident"
    ciphertexts = [bytes(upload.sealed_indices) for upload in opened]
    assert not any(one == other for one, other in zip(*map(eights, ciphertexts), strict=True))


def eights(data: bytes) -> list[bytes]:
    return [data[start : start + 8] for start in range(0, len(data), 8)]


def test_no_two_segments_and_no_two_clients_share_a_mask() -> None:
    """Two vectors under one mask would tell their difference."""
    layout = Layout((RingSegment(64, 64), RingSegment(64, 65), RingSegment(64, 64)))
    session, seen = InsecureEnclaveSession(EnclaveSetup(layout=layout)), set[int]()
    for number in (1, 2):
        payload, upload = session.setup.payload_of(number), session.seal(number)
        for segment, masked, plain in zip(
            session.configuration.ring_segments, masked_of(upload, layout), payload.values, strict=True
        ):
            mask = set(segment.ring.subtract(masked, plain).tolist())
            assert len(mask) == segment.length
            assert mask.isdisjoint(seen)
            seen |= mask


def test_one_seed_gives_no_two_uploads_epochs_or_configurations_a_key_in_common() -> None:
    one, other = AttemptContext(b"c" * 32), AttemptContext(b"d" * 32)
    places = [
        (one, b"e" * 32, FIRST, 0),
        (other, b"e" * 32, FIRST, 0),
        (one, b"f" * 32, FIRST, 0),
        (one, b"e" * 32, SECOND, 0),
        (one, b"e" * 32, FIRST, 1),
    ]
    keys = set[bytes]()
    with Seed("upload_seed", bytes(32)) as seed:
        for place in places:
            for suite in Suite:
                keys.add(bytes(mask_key(seed, suite, *place).expose())[:16])
        for header in (b"h" * 32, b"i" * 32):
            keys.add(bytes(seal_indices(seed, header, bytes(32)))[:32])
    # A mask key of 16 bytes is the beginning of that of 32 bytes; no enclave has both suites.
    assert len(keys) == len(places) + 2


# --- Short uploads, and seals that hold the indices themselves --------------------------------------------------------

MODEL = ModelStamp(version=0, digest=bytes(32))
INDICES = Layout((IndexSegment(6, 5),))
"""Indices of three bits, two of whose eight values name no codeword, and no mask."""
LAYOUTS = {"rings and indices": MIXED_LAYOUT, "indices alone": INDICES}


def certificates_of(session: InsecureEnclaveSession) -> dict[ClientId, Certificate]:
    setup = session.setup
    numbers = range(1, setup.population + 1)
    return {ClientId(n): session.certificate_of(n, setup.signing_key_of(f"client {n}")) for n in numbers}


def opened(layout: Layout = MIXED_LAYOUT, **named: Any) -> InsecureEnclaveSession:
    session = InsecureEnclaveSession(EnclaveSetup(layout=layout, **named))
    session.host = Host(
        session.configuration, session.enclave, epoch=session.enclave.offer.epoch, certificates=certificates_of(session)
    )
    session.host.open_buffer(0, MODEL.digest)
    session.host.receive(session.seal(6).shortened())
    return session


def host_refuses(session: InsecureEnclaveSession, message: bytes, sender: ClientId | None = None) -> PeerError:
    before = memory_of(session)
    with pytest.raises(PeerError) as caught:
        session.host.receive(message, sender)
    assert memory_of(session) == before
    return caught.value


def putting_back(session: InsecureEnclaveSession, **changes: Any) -> None:
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
        pairs = zip(vectors, masked_of(upload, LAYOUTS[name]), strict=True)
        assert all(np.array_equal(vector, masked) for vector, masked in pairs)


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
    host_refuses(session, message)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_host_cannot_put_one_clients_certificate_under_the_upload_of_another(name: str) -> None:
    session = opened(LAYOUTS[name])
    message, known = session.seal(1).shortened(), certificates_of(session)
    putting_back(session, certificates={FIRST: known[SECOND]})
    error = host_refuses(session, message)
    assert (type(error), error.culprits) == (AuthenticationFailed, frozenset({SECOND, HOST}))
    # Under the first one's name with the key of the second, which the authority never certified.
    mixed = Certificate(FIRST, known[SECOND].public_key, known[SECOND].grant)
    putting_back(session, certificates={FIRST: mixed})
    assert type(host_refuses(session, message)) is AuthenticationFailed


@pytest.mark.parametrize("name", LAYOUTS)
def test_any_byte_that_is_altered_on_the_way_makes_an_upload_of_nobody(name: str) -> None:
    session = opened(LAYOUTS[name])
    message = bytearray(session.seal(1).shortened())
    for position in range(len(message)):
        message[position] ^= 1
        host_refuses(session, bytes(message))
        message[position] ^= 1
    session.host.receive(bytes(message))


def test_a_client_that_the_host_does_not_know_is_named() -> None:
    session = opened(INDICES)
    putting_back(session, certificates={SECOND: certificates_of(session)[SECOND]})
    error = host_refuses(session, session.seal(1).shortened())
    assert error.reason is Reason.NOT_ELIGIBLE
    assert error.culprits is UNDECIDED, "the name is one out of a header"


def test_nobody_hands_over_the_short_upload_of_another() -> None:
    session = opened()
    error = host_refuses(session, session.seal(1).shortened(), SECOND)
    assert "sent an upload with the certificate of" in str(error)
    assert error.culprits == {SECOND, HOST}


def test_a_short_upload_is_none_where_the_host_knows_nobody() -> None:
    session = InsecureEnclaveSession(EnclaveSetup())
    session.host.open_buffer(0, MODEL.digest)
    host_refuses(session, session.seal(1).shortened())


# --- One seal ---------------------------------------------------------------------------------------------------------


def test_what_one_seal_holds_is_checked_before_it_is_counted() -> None:
    session = opened(INDICES)
    assert has_one_seal(session.configuration)
    message = crafted(session, packed=b"\xff\x7f")
    is_refused(session, message, MalformedMessage, Reason.INPUT_OUT_OF_RANGE, FIRST)


@pytest.mark.parametrize("suite", Suite)
def test_indices_are_under_the_seal_and_nowhere_in_the_clear(suite: Suite) -> None:
    session = opened(Layout((IndexSegment(256, 64),)), suite=suite)
    upload = session.seal(1)
    assert session.setup.payload_of(1).values[0].tobytes() not in upload.shortened()
    assert sealed_indices_bytes(session.configuration) == 0
    altered = bytearray(upload.sealed.sealed_seed)
    altered[-20] ^= 1
    is_not_authentic(session, replace(upload.sealed, sealed_seed=bytes(altered)).encode(), FIRST, HOST)


@pytest.mark.parametrize(("blocks", "is_one"), [(MOST_SEALED_INDICES, True), (MOST_SEALED_INDICES + 1, False)])
def test_more_indices_than_one_seal_holds_stand_beside_it(blocks: int, is_one: bool) -> None:  # noqa: FBT001
    session = opened(Layout((IndexSegment(256, blocks),)))
    assert has_one_seal(session.configuration) == is_one
    upload = session.seal(1).sealed
    assert len(upload.sealed_indices) == (0 if is_one else blocks + 16)
    assert SealedUpload.decode(upload.encode(), session.configuration).encode() == upload.encode()
    rings = Layout((RingSegment(8, 1), IndexSegment(256, 8)))
    assert not has_one_seal(opened(rings).configuration)


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
    settings = EnclaveOptions(suite=Suite.CLASSIC, minimum_cohort=3)
    return EnclaveSimulation(settings, coins=InsecureSeededCoins(b"an epoch"), clock=lambda: NOW)


def answered(simulation: EnclaveSimulation, invitation: bytes, subject: Subject, code: PeakCode) -> bytes:
    update = np.random.default_rng(1).standard_normal(1024).astype(np.float32)
    late = LazyUpdate(lambda: Update(code.encode(update, InsecureSeededCoins(b"1")), b"m" * 32))
    return simulation.member(FIRST).join(subject, late).answer(invitation)


def test_an_invitation_leaves_out_the_tables_that_every_client_of_the_codec_has(simulation: EnclaveSimulation) -> None:
    code = peaks(128)
    session = simulation.open(subject_of(code), frozenset({FIRST, SECOND, ClientId(3)}))
    assert sum(len(table.encode()) for table in code.tables[0]) > 2**17
    assert len(session.invitation) < 640
    upload = answered(simulation, session.invitation, subject_of(code), code)
    assert len(upload) == code.layout.payload_bytes + 79
    session.receive(FIRST, upload)


def test_a_host_that_has_not_everybodys_certificate_is_sent_long_uploads(simulation: EnclaveSimulation) -> None:
    code = peaks(128)
    session = simulation.open(subject_of(code), None)
    upload = answered(simulation, session.invitation, subject_of(code), code)
    assert len(upload) > code.layout.payload_bytes + 250
    session.receive(FIRST, upload)


@pytest.mark.parametrize("buffers", [1, 2])
def test_a_client_has_one_upload_for_a_model_over_all_buffers(buffers: int) -> None:
    session = InsecureEnclaveSession(EnclaveSetup(layout=LAYOUT, oldest=1))
    session.host.open_buffer(0, bytes(32))
    session.upload(1)
    if buffers == 2:
        session.host.give_up_buffer()
        session.host.open_buffer(1, model_digest(1))
    is_refused(session, crafted(session), PeerMisbehaved, Reason.ALREADY_ANSWERED)
