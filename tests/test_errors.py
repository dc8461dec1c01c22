"""Every reason is one that a real call gives: no reason is only a word, and whom an error blames is always a set."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from secagg.compression.fixed_point import FixedPoint
from secagg.contract import IndexSegment, Layout, Payload, RingSegment, encode_update
from secagg.crypto.aead import AeadHeader, SealingKey, open_sealed
from secagg.crypto.entropy import Coins
from secagg.crypto.hybrid_key_agreement import require_mlkem
from secagg.crypto.key_agreement import X25519KeyPair
from secagg.crypto.prime_field import PRIME
from secagg.crypto.public_keys import KeyRole, X25519PublicKey
from secagg.crypto.ring import Ring, require_capacity
from secagg.crypto.secret import Secret
from secagg.crypto.shamir import Share, check_value, correct, reconstruct, split_many
from secagg.errors import PeerError, Reason, SecAggError
from secagg.identifiers import AttemptContext, ClientId, Party, ServerId, SessionContext
from secagg.parameters import SecurityMode, Suite
from secagg.protocols.enclave.attestation import Verifier
from secagg.protocols.enclave.attestation.certificates import ECDSA_P256, Certificate, check_not_revoked, verify_chain
from secagg.protocols.enclave.trusted.buffer import Entry, ReleaseRules
from secagg.protocols.pairwise_mask.client import CLIENT_TRANSITIONS, ClientState, advance
from secagg.protocols.pairwise_mask.floors import ClientFloors
from secagg.protocols.two_servers.configuration import SharingMode
from secagg.protocols.two_servers.offers import RoundStamp
from secagg.protocols.two_servers.opened_upload import PointFunctionExchange
from secagg.protocols.two_servers.point_functions.one_hot_check import RoundChallenges
from secagg.protocols.two_servers.server_messages import AcceptedList
from secagg.protocols.two_servers.upload import SharedIndices, UploadHeader
from secagg.session.certificates import issue_certificate
from secagg.simulation.insecure_coins import InsecureSeededCoins
from secagg.wire import MessageKind, Reader, Writer
from tests.harness.enclave_buffers import RING_LAYOUT, EnclaveSetup, InsecureEnclaveSession
from tests.harness.indexing_rounds import IndexingSetup, InsecureIndexingRound
from tests.harness.pairwise_sessions import Delivery, InsecurePairwiseSession, SessionSetup

ALICE, BOB = ClientId(1), ClientId(2)
CONTEXT = SessionContext(bytes(32))
HEADER = AeadHeader(message_kind=1, context=CONTEXT, sender=ALICE, receiver=BOB)
CODEC = FixedPoint(length=2, clip=1.0, fraction_bits=4, modulus_bits=8)
P = 2**255 - 19


class UnlistedError(SecAggError):
    """An error that the table of what peers are told does not know."""


class DeceptiveScheme(FixedPoint):
    """A scheme that declares one layout and encodes in another."""

    def __init__(self) -> None:
        super().__init__(length=2, clip=1.0, fraction_bits=4, modulus_bits=8)
        object.__setattr__(self, "layout", Layout((RingSegment(16, 2),)))

    def encode(self, update: npt.NDArray[np.floating[Any]], coins: Coins) -> Payload:
        """Encode in the layout of an honest scheme."""
        return CODEC.encode(update, coins)


def shares(count: int) -> list[Share]:
    secret = Secret("seed", b"\x11" * 32)
    return split_many([secret], threshold=3, holders=5, coins=InsecureSeededCoins(b"shares"))[0][:count]


def offer_a_small_cohort() -> None:
    floors = ClientFloors(
        suites=frozenset(Suite),
        modes=frozenset(SecurityMode),
        minimum_cohort=100,
        minimum_threshold=67,
        minimum_modulus_bits=20,
        maximum_length=1000,
        maximum_population=500,
        assumed_corrupted=25,
        privacy_bits=40,
    )
    SessionSetup().plan(b"a" * 32).configuration.require_floors(floors)


def use_a_backend_without_mlkem() -> None:
    def refuse(_: bytes) -> object:
        raise UnsupportedAlgorithm("this build has no ML-KEM")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MLKEM768PrivateKey, "from_seed_bytes", refuse)
        require_mlkem()


def seal_twice() -> object:
    key = SealingKey(Secret("channel_key", b"\7" * 32))
    key.seal(HEADER, Secret("shares", b"one"))
    return key.seal(HEADER, Secret("shares", b"two"))


def open_an_altered_message() -> object:
    sealed = bytearray(SealingKey(Secret("channel_key", b"\7" * 32)).seal(HEADER, Secret("shares", b"one")))
    sealed[0] ^= 1
    return open_sealed(Secret("channel_key", b"\7" * 32), HEADER, bytes(sealed), kind="shares", length=3)


def decode_for_another_layout() -> object:
    payload = CODEC.encode(np.zeros(2), InsecureSeededCoins(b"rounding"))
    return Payload.decode(payload.encode(), Layout((RingSegment(16, 1),)))


def meet_ones_own_public_key() -> object:
    pair = X25519KeyPair(Secret("root", b"\1" * 32), KeyRole.MASK, AttemptContext(bytes(32)))
    return pair.pairwise_seed(ALICE, (BOB, pair.public_key), CONTEXT)


def reconstruct_with_too_many_wrong_shares() -> object:
    wrong = [Share(share.point, Secret("share", bytes([share.point] * 32))) for share in shares(5)[:2]]
    return correct([*wrong, *shares(5)[2:]], threshold=3)


def present_a_share_above_the_prime() -> None:
    check_value(1, memoryview(PRIME.to_bytes(32, "big")), culprits=[ALICE])


def chain_to_a_root_of_nobody() -> object:
    return verify_chain([b"leaf", b"root"], roots=frozenset(), scheme=ECDSA_P256, now=datetime(2031, 2, 1, tzinfo=UTC))


def present_last_months_revocation_list() -> object:
    key = ec.derive_private_key(7, ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
    start, end, now = (datetime(2031, month, 1, tzinfo=UTC) for month in (1, 2, 3))
    listed = x509.CertificateRevocationListBuilder(name, start, end).sign(key, hashes.SHA256())
    issuer = Certificate(1, name.public_bytes(), name.public_bytes(), "authority", key.public_key(), start, now, ())
    return check_not_revoked([], listed.public_bytes(Encoding.DER), issuer=issuer, scheme=ECDSA_P256, now=now)


def attest_without_hardware() -> object:
    simulated: Any = object()
    return Verifier().verify(simulated, None, datetime(2031, 2, 1, tzinfo=UTC))


def buffer_with(*entries: Entry, weights: tuple[int, ...] = (1, 1)) -> ReleaseRules:
    """Open a buffer for model 1 in an epoch with small limits, and let uploads in."""
    setup = EnclaveSetup(
        layout=RING_LAYOUT,
        minimum_cohort=2,
        maximum_cohort=2,
        staleness_weights=(1, 1),
        noise_multiplier=Fraction(1) if max(weights) == 1 else None,
        l2_bounds=(9, 9),
    )
    rules = ReleaseRules(InsecureEnclaveSession(setup).configuration)
    rules.open(1, bytes(32))
    for entry, weight in zip(entries, weights, strict=False):
        rules.staleness_weight(entry)
        rules.enter(entry, weight, 1)
    return rules


def entry_of(client: ClientId, *, upload: int, version: int = 1, model: bytes = bytes(32)) -> Entry:
    return Entry(client, bytes([upload] * 16), version, model)


def spend_the_budget_of_an_epoch() -> object:
    rules = buffer_with(entry_of(ALICE, upload=1))
    rules.close()
    rules.open(2, b"\2" * 32)
    return rules.staleness_weight(entry_of(ALICE, upload=2, version=2, model=b"\2" * 32))


def dominate_a_buffer() -> None:
    buffer_with(entry_of(ALICE, upload=1), entry_of(BOB, upload=2), weights=(64, 1)).require_releasable()


def vote_for_nothing() -> object:
    setup = IndexingSetup(layout=Layout((IndexSegment(3, 1),)))
    made, client = setup.configuration, setup.signing_key_of("client 1")
    indices = SharedIndices(made, 7, ALICE, setup.payload_of(1), InsecureSeededCoins(b"indices"))
    certificate = issue_certificate(setup.signing_key_of("authority"), ALICE, client.public_key)
    header = UploadHeader(round_number=7, certificate=certificate, weight=1, segments=indices.headers)
    bodies = indices.bodies(header)
    bodies[1][0] ^= 1
    with setup.pair_key() as pair_key:
        zero, one = (
            PointFunctionExchange(
                made, ServerId(index), header, bodies[index], b"", RoundChallenges(pair_key, made.context, 7)
            )
            for index in (0, 1)
        )
    return one.conclude(zero.answer(one.propose()))


def sign_a_list_of_somebody_else() -> None:
    session = InsecureIndexingRound(IndexingSetup(mode=SharingMode.UNCHECKED_POINT_FUNCTIONS))
    for number in (1, 2):
        session.upload(number)
    session.check()
    stamp = RoundStamp(context=session.configuration.context, round_number=7, server=ServerId(1))
    other = AcceptedList.signed(stamp, [], session.setup.signing_key_of("server 1"))
    session.zero.close()
    session.zero.agree(other.encode())


def leave_for_an_unusable_seed() -> None:
    """No call raises it: it is among the faults that a server has recorded, on the word of a client that left."""
    setup = SessionSetup(population=5, corrupted=0, mode=SecurityMode.SEMI_HONEST, suite=Suite.HYBRID)
    ann, bob, *_ = setup.client_ids

    def alter(delivery: Delivery) -> tuple[Delivery]:
        if delivery.kind is not MessageKind.DELIVERED_SHARES or delivery.receiver != bob:
            return (delivery,)
        message = bytearray(delivery.message)
        # Behind header, context, set, sealed shares and commitment stands the first seed, which the first client sent.
        message[7 + 32 + 1 + 1200 + 32] ^= 1
        return (replace(delivery, message=bytes(message)),)

    session = InsecurePairwiseSession(setup, adversary=alter)
    session.finish()
    raise next(fault for fault in session.server.faults if {ann, bob} <= fault.culprits)


PRODUCERS: dict[Reason, Callable[[], object]] = {
    Reason.PARAMETER_OUT_OF_RANGE: lambda: ClientId(-1),
    Reason.BELOW_FLOOR: offer_a_small_cohort,
    Reason.BACKEND_MISSING: use_a_backend_without_mlkem,
    Reason.API_MISUSE: lambda: X25519KeyPair(Secret("root", b""), KeyRole.MASK, AttemptContext(bytes(32))),
    Reason.ALREADY_SPENT: seal_twice,
    Reason.SECRET_EXPOSURE: lambda: bytes(Secret("seed", b"\1" * 32)),
    Reason.TRUNCATED: lambda: Reader(b"SAGG", 1),
    Reason.TRAILING_BYTES: lambda: Reader(Writer(1).finish() + b"\0", 1).finish(),
    Reason.LENGTH_OVER_LIMIT: lambda: Reader(Writer(1).variable(b"abc", 3).finish(), 1).variable(2),
    Reason.NOT_CANONICAL: lambda: Reader(b"not a message", 1),
    Reason.WRONG_VERSION: lambda: Reader(b"SAGG\xff\0\1", 1),
    Reason.WRONG_KIND: lambda: Reader(Writer(2).finish(), 1),
    Reason.LAYOUT_MISMATCH: decode_for_another_layout,
    Reason.AUTHENTICATION_FAILED: open_an_altered_message,
    Reason.PUBLIC_KEY_NOT_CANONICAL: lambda: X25519PublicKey((P + 2).to_bytes(32, "little")),
    Reason.PUBLIC_KEY_LOW_ORDER: lambda: X25519PublicKey(bytes(32)),
    Reason.PUBLIC_KEY_REUSED: meet_ones_own_public_key,
    Reason.SHARE_OUT_OF_RANGE: present_a_share_above_the_prime,
    Reason.SHARE_DUPLICATE: lambda: reconstruct([*shares(3), *shares(1)], threshold=3),
    Reason.SHARES_IRRECONCILABLE: reconstruct_with_too_many_wrong_shares,
    Reason.THRESHOLD_NOT_MET: lambda: reconstruct(shares(2), threshold=3),
    Reason.CAPACITY_EXCEEDED: lambda: require_capacity(CODEC.capacity + 1, CODEC.capacity),
    Reason.INPUT_OUT_OF_RANGE: lambda: Ring(8).from_integers([128]),
    Reason.CONTRACT_VIOLATION: lambda: encode_update(DeceptiveScheme(), np.zeros(2), InsecureSeededCoins(b"coins")),
    Reason.INTERNAL_ERROR: lambda: advance(CLIENT_TRANSITIONS, ClientState.COMPLETED, MessageKind.SESSION_OFFER),
    Reason.EDGE_UNUSABLE: leave_for_an_unusable_seed,
    Reason.ATTESTATION_INVALID: chain_to_a_root_of_nobody,
    Reason.COLLATERAL_STALE: present_last_months_revocation_list,
    Reason.ATTESTATION_REFUSED: attest_without_hardware,
    Reason.REPLAYED: lambda: buffer_with(entry_of(ALICE, upload=1)).staleness_weight(entry_of(ALICE, upload=1)),
    Reason.STALE_UPDATE: lambda: buffer_with().staleness_weight(entry_of(ALICE, upload=1, version=2)),
    Reason.MODEL_MISMATCH: lambda: buffer_with(entry_of(ALICE, upload=1)).staleness_weight(
        entry_of(BOB, upload=2, model=bytes([1] * 32))
    ),
    Reason.BUDGET_SPENT: spend_the_budget_of_an_epoch,
    Reason.BUFFER_FULL: lambda: buffer_with(entry_of(ALICE, upload=1), entry_of(BOB, upload=2)).staleness_weight(
        entry_of(ClientId(3), upload=3)
    ),
    Reason.WEIGHTS_UNEVEN: dominate_a_buffer,
    Reason.ONE_HOT_REFUTED: vote_for_nothing,
    Reason.SERVERS_DISAGREE: sign_a_list_of_somebody_else,
}
"""For each reason a call into the library that ends in it."""

BLAME: dict[Reason, set[Party]] = {
    Reason.TRUNCATED: set(),
    Reason.TRAILING_BYTES: set(),
    Reason.LENGTH_OVER_LIMIT: set(),
    Reason.NOT_CANONICAL: set(),
    Reason.WRONG_VERSION: set(),
    Reason.WRONG_KIND: set(),
    Reason.LAYOUT_MISMATCH: set(),
    Reason.AUTHENTICATION_FAILED: {ALICE, ServerId()},
    Reason.PUBLIC_KEY_NOT_CANONICAL: set(),
    Reason.PUBLIC_KEY_LOW_ORDER: set(),
    Reason.PUBLIC_KEY_REUSED: {BOB, ServerId()},
    Reason.SHARE_OUT_OF_RANGE: {ALICE},
    Reason.SHARE_DUPLICATE: set(),
    Reason.SHARES_IRRECONCILABLE: set(),
    Reason.EDGE_UNUSABLE: {ClientId(1000), ClientId(1007), ServerId()},
    Reason.ATTESTATION_INVALID: set(),
    Reason.COLLATERAL_STALE: set(),
    Reason.ATTESTATION_REFUSED: set(),
    Reason.REPLAYED: {ALICE, ServerId()},
    Reason.STALE_UPDATE: {ALICE, ServerId()},
    Reason.MODEL_MISMATCH: {BOB, ServerId()},
    Reason.BUDGET_SPENT: {ALICE, ServerId()},
    Reason.BUFFER_FULL: {ServerId()},
    Reason.WEIGHTS_UNEVEN: set(),
    Reason.ONE_HOT_REFUTED: {ALICE, ServerId(0)},
    Reason.SERVERS_DISAGREE: {ServerId(0), ServerId(1)},
}
"""Whom the calls above blame: nobody where the function cannot know who sent what it was given."""


def error_of(reason: Reason) -> SecAggError:
    with pytest.raises(SecAggError) as caught:
        PRODUCERS[reason]()
    return caught.value


@pytest.mark.parametrize("reason", list(PRODUCERS), ids=str)
def test_a_call_produces_the_reason(reason: Reason) -> None:
    error = error_of(reason)
    assert error.reason is reason
    assert str(error), "an error says what happened"


def test_the_table_and_the_negative_vectors_cover_every_reason(repository: Path) -> None:
    vectors = (json.loads(file.read_text()) for file in (repository / "tests" / "vectors").glob("*/*.json"))
    expected = {vector["operations"][-1]["expect"] for vector in vectors if "base" in vector}
    assert {*PRODUCERS, *(Reason(reason) for reason in expected - {"ok"})} == set(Reason)


def test_every_peer_error_says_whom_it_blames() -> None:
    errors = {reason: error_of(reason) for reason in PRODUCERS}
    blamed = {reason: error.culprits for reason, error in errors.items() if isinstance(error, PeerError)}
    assert all(isinstance(culprits, frozenset) for culprits in blamed.values())
    assert blamed == BLAME
