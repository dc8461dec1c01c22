"""X25519 key pairs: known answers, the context of derived keys, and refused public keys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey as BackendPublicKey
from hypothesis import example, given
from hypothesis import strategies as st

from secagg.crypto.key_agreement import X25519KeyPair
from secagg.crypto.public_keys import KeyRole, X25519PublicKey
from secagg.crypto.secret import Secret
from secagg.errors import UNDECIDED, MalformedMessage, Misuse, PeerError, PeerMisbehaved, Reason, SecAggError
from secagg.identifiers import AttemptContext, ClientId, ServerId, SessionContext
from tests.harness.plain_hkdf import framed, hkdf_expand, hkdf_extract, shown

P = 2**255 - 19
ATTEMPT = AttemptContext(bytes(range(32)))
CONTEXT = SessionContext(bytes(range(32, 64)))
ALICE, BOB, CAROL = ClientId(1), ClientId(2), ClientId(3)
ALICE_ROOT, BOB_ROOT = b"\1" * 32, b"\2" * 32

# [RFC 7748] §6.1.
RFC_ALICE_PRIVATE = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"
RFC_ALICE_PUBLIC = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
RFC_BOB_PRIVATE = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"
RFC_BOB_PUBLIC = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
RFC_SHARED = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"

LOW_ORDER = {
    "order 4, zero": 0,
    "order 4 on the twist, one": 1,
    "order 8, first": 0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
    "order 8, second": 0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
    "order 2 or 4, minus one": P - 1,
}
TOP_BIT = 1 << 255


def encoded(coordinate: int) -> bytes:
    return coordinate.to_bytes(32, "little")


def pair_of(root: bytes, role: KeyRole, attempt: AttemptContext = ATTEMPT) -> X25519KeyPair:
    return X25519KeyPair(Secret("root", root), role, attempt)


def rfc_pair(private: str, role: KeyRole, monkeypatch: pytest.MonkeyPatch) -> X25519KeyPair:
    """Make a pair with the RFC's scalar instead of a derived one."""

    def scalar_of_the_rfc(*_: object) -> Secret:
        return Secret("scalar", bytes.fromhex(private))

    with monkeypatch.context() as patched:
        patched.setattr("secagg.crypto.key_agreement.expand", scalar_of_the_rfc)
        return pair_of(ALICE_ROOT, role)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Everything that a key between two clients is bound to."""

    function: str
    own_root: bytes = ALICE_ROOT
    peer_root: bytes = BOB_ROOT
    own_id: ClientId = ALICE
    peer_id: ClientId = BOB
    context: SessionContext = CONTEXT
    attempt: AttemptContext = ATTEMPT

    def compute(self) -> bytes:
        """Return the key on the own side."""
        role = role_of(self.function)
        own, peer = pair_of(self.own_root, role, self.attempt), pair_of(self.peer_root, role, self.attempt)
        return shown(getattr(own, self.function)(self.own_id, (self.peer_id, peer.public_key), self.context))

    def other_side(self) -> Agreement:
        """Return the same agreement as the peer computes it."""
        turned = {"channel_key_to": "channel_key_from", "channel_key_from": "channel_key_to"}
        return replace(
            self,
            function=turned.get(self.function, self.function),
            own_root=self.peer_root,
            peer_root=self.own_root,
            own_id=self.peer_id,
            peer_id=self.own_id,
        )


FUNCTIONS = ["pairwise_seed", "channel_key_to", "channel_key_from"]


def role_of(function: str) -> KeyRole:
    return KeyRole.MASK if function == "pairwise_seed" else KeyRole.CHANNEL


def test_the_key_agreement_of_the_rfc_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    alice = rfc_pair(RFC_ALICE_PRIVATE, KeyRole.MASK, monkeypatch)
    bob = rfc_pair(RFC_BOB_PRIVATE, KeyRole.MASK, monkeypatch)
    assert alice.public_key.encoded.hex() == RFC_ALICE_PUBLIC
    assert bob.public_key.encoded.hex() == RFC_BOB_PUBLIC
    info = framed(
        b"secagg/1/pairwise-seed",
        ALICE.encode(),
        BOB.encode(),
        bytes.fromhex(RFC_ALICE_PUBLIC),
        bytes.fromhex(RFC_BOB_PUBLIC),
    )
    expected = hkdf_expand(hkdf_extract(CONTEXT.digest, bytes.fromhex(RFC_SHARED)), info)
    assert shown(alice.pairwise_seed(ALICE, (BOB, bob.public_key), CONTEXT)) == expected
    assert shown(bob.pairwise_seed(BOB, (ALICE, alice.public_key), CONTEXT)) == expected


@pytest.mark.parametrize(
    ("role", "label"), [(KeyRole.CHANNEL, b"secagg/1/channel-x25519-key"), (KeyRole.MASK, b"secagg/1/mask-x25519-key")]
)
@given(root=st.binary(min_size=32, max_size=32), attempt=st.binary(min_size=32, max_size=32))
def test_a_pair_is_the_expansion_of_its_root(role: KeyRole, label: bytes, root: bytes, attempt: bytes) -> None:
    scalar = hkdf_expand(root, framed(label, attempt))
    expected = X25519PrivateKey.from_private_bytes(scalar).public_key().public_bytes_raw()
    assert pair_of(root, role, AttemptContext(attempt)).public_key.encoded == expected


@pytest.mark.parametrize(
    ("function", "label", "own_first"),
    [
        ("pairwise_seed", b"secagg/1/pairwise-seed", True),
        ("channel_key_to", b"secagg/1/channel-aead-key", True),
        ("channel_key_from", b"secagg/1/channel-aead-key", False),
    ],
)
def test_derived_keys_are_hkdf_of_the_raw_output_and_never_the_output(
    function: str,
    label: bytes,
    own_first: bool,  # noqa: FBT001 -- a column of the table
) -> None:
    role = role_of(function)
    pair_label = b"secagg/1/mask-x25519-key" if role is KeyRole.MASK else b"secagg/1/channel-x25519-key"
    private = X25519PrivateKey.from_private_bytes(hkdf_expand(ALICE_ROOT, framed(pair_label, ATTEMPT.digest)))
    alice, bob = pair_of(ALICE_ROOT, role).public_key.encoded, pair_of(BOB_ROOT, role).public_key.encoded
    raw = private.exchange(BackendPublicKey.from_public_bytes(bob))
    ids, keys = [ALICE.encode(), BOB.encode()], [alice, bob]
    if not own_first:
        ids.reverse()
        keys.reverse()
    derived = Agreement(function=function).compute()
    assert derived == hkdf_expand(hkdf_extract(CONTEXT.digest, raw), framed(label, *ids, *keys))
    assert derived != raw


@given(
    own_root=st.binary(min_size=32, max_size=32),
    peer_root=st.binary(min_size=32, max_size=32),
    ids=st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=2, unique=True),
    function=st.sampled_from(FUNCTIONS),
)
def test_both_sides_agree_whoever_has_the_lower_id(
    own_root: bytes, peer_root: bytes, ids: list[int], function: str
) -> None:
    if own_root == peer_root:
        return
    agreement = Agreement(
        function=function, own_root=own_root, peer_root=peer_root, own_id=ClientId(ids[0]), peer_id=ClientId(ids[1])
    )
    assert agreement.compute() == agreement.other_side().compute()


CHANGES: dict[str, dict[str, Any]] = {
    "context": {"context": SessionContext(b"\x99" * 32)},
    "attempt": {"attempt": AttemptContext(b"\x99" * 32)},
    "own id": {"own_id": CAROL},
    "peer id": {"peer_id": CAROL},
    "ids exchanged": {"own_id": BOB, "peer_id": ALICE},
    "own root": {"own_root": b"\3" * 32},
    "peer root": {"peer_root": b"\3" * 32},
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_another_view_of_the_session_gives_another_key(function: str, change: dict[str, Any]) -> None:
    agreement = Agreement(function=function)
    assert agreement.compute() != replace(agreement, **change).compute()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_public_keys_are_bound_and_not_only_what_they_agree_on(function: str) -> None:
    """Adding a point of order two turns u into 1/u: another canonical key with the same raw output."""
    role = role_of(function)
    alice, bob = pair_of(ALICE_ROOT, role), pair_of(BOB_ROOT, role).public_key
    twin = X25519PublicKey(encoded(pow(int.from_bytes(bob.encoded, "little"), -1, P)))
    assert twin != bob
    probe = X25519PrivateKey.from_private_bytes(bytes(range(32)))
    raw = {probe.exchange(BackendPublicKey.from_public_bytes(key.encoded)) for key in (bob, twin)}
    assert len(raw) == 1, "the twins do not share their raw output, and this test proves nothing"
    derive = getattr(alice, function)
    assert derive(ALICE, (BOB, bob), CONTEXT) != derive(ALICE, (BOB, twin), CONTEXT)


def test_the_key_for_the_one_message_to_a_peer_is_given_out_once() -> None:
    # A second message under it would have the same nonce.
    alice, bob = pair_of(ALICE_ROOT, KeyRole.CHANNEL), pair_of(BOB_ROOT, KeyRole.CHANNEL).public_key
    alice.channel_key_to(ALICE, (BOB, bob), CONTEXT)
    with pytest.raises(Misuse, match="send the same bytes again") as caught:
        alice.channel_key_to(ALICE, (BOB, bob), CONTEXT)
    assert caught.value.reason is Reason.ALREADY_SPENT
    alice.channel_key_to(ALICE, (BOB, bob), SessionContext(bytes(32)))


def test_no_pair_is_made_in_the_context_of_a_session() -> None:
    session: Any = CONTEXT
    with pytest.raises(Misuse, match="AttemptContext"):
        X25519KeyPair(Secret("root", ALICE_ROOT), KeyRole.MASK, session)


def test_a_refused_public_key_names_whom_its_reader_names() -> None:
    for encoding in (bytes(31), b"\xff" * 32, bytes(32)):
        for culprits in ((BOB, ServerId()), UNDECIDED):
            with pytest.raises(PeerError) as caught:
                X25519PublicKey(encoding, culprits)
            assert caught.value.culprits == (culprits if culprits is UNDECIDED else set(culprits))


def test_exactly_one_of_the_four_encodings_of_a_key_is_accepted() -> None:
    """The point with u = 9 also has the encodings u + p, and both with the top bit set; the backend accepts all."""
    probe = X25519PrivateKey.from_private_bytes(ALICE_ROOT)
    encodings = [encoded(9), encoded(9 + P), encoded(9 | TOP_BIT), encoded((9 + P) | TOP_BIT)]
    raw = {probe.exchange(BackendPublicKey.from_public_bytes(encoding)) for encoding in encodings}
    assert len(raw) == 1, "the backend has become strict; the comment in the library is out of date"
    assert X25519PublicKey(encodings[0]).encoded == encodings[0]
    for encoding in encodings[1:]:
        with pytest.raises(MalformedMessage) as caught:
            X25519PublicKey(encoding)
        assert caught.value.reason is Reason.PUBLIC_KEY_NOT_CANONICAL


@given(coordinate=st.integers(0, P - 1).filter(lambda u: u not in LOW_ORDER.values()))
@example(coordinate=2)
@example(coordinate=P - 2)
def test_every_coordinate_below_the_field_is_accepted_without_the_top_bit_alone(coordinate: int) -> None:
    assert X25519PublicKey(encoded(coordinate)).encoded == encoded(coordinate)
    with pytest.raises(MalformedMessage):
        X25519PublicKey(encoded(coordinate | TOP_BIT))


@pytest.mark.parametrize("excess", range(19))
def test_every_coordinate_that_fits_but_is_not_reduced_is_refused(excess: int) -> None:
    with pytest.raises(MalformedMessage) as caught:
        X25519PublicKey(encoded(P + excess))
    assert caught.value.reason is Reason.PUBLIC_KEY_NOT_CANONICAL


@pytest.mark.parametrize("coordinate", LOW_ORDER.values(), ids=LOW_ORDER.keys())
def test_a_low_order_point_is_refused_in_every_encoding(coordinate: int) -> None:
    with pytest.raises(PeerMisbehaved) as caught:
        X25519PublicKey(encoded(coordinate))
    assert caught.value.reason is Reason.PUBLIC_KEY_LOW_ORDER
    others = [coordinate | TOP_BIT]
    if coordinate + P < TOP_BIT:
        others += [coordinate + P, (coordinate + P) | TOP_BIT]
    for other in others:
        with pytest.raises(MalformedMessage) as refused:
            X25519PublicKey(encoded(other))
        assert refused.value.reason is Reason.PUBLIC_KEY_NOT_CANONICAL


@pytest.mark.parametrize("coordinate", LOW_ORDER.values(), ids=LOW_ORDER.keys())
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_backend_refuses_a_low_order_point_that_the_table_missed(
    coordinate: int, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secagg.crypto.public_keys._LOW_ORDER", frozenset[int]())
    missed = X25519PublicKey(encoded(coordinate))
    with pytest.raises(PeerMisbehaved) as caught:
        getattr(pair_of(ALICE_ROOT, role_of(function)), function)(ALICE, (BOB, missed), CONTEXT)
    assert caught.value.reason is Reason.PUBLIC_KEY_LOW_ORDER


OTHER_ROLE = {KeyRole.MASK: KeyRole.CHANNEL, KeyRole.CHANNEL: KeyRole.MASK}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_key_is_agreed_on_with_what_does_not_belong_to_it(function: str) -> None:
    role = role_of(function)
    alice, other = pair_of(ALICE_ROOT, role), pair_of(ALICE_ROOT, OTHER_ROLE[role])
    bob, reflected = pair_of(BOB_ROOT, role).public_key, X25519PublicKey(bytes(alice.public_key.encoded))
    refused: list[tuple[X25519KeyPair, tuple[Any, ...], type[Exception], str, Reason]] = [
        (alice, (ALICE, (BOB, reflected), CONTEXT), PeerMisbehaved, "own public key", Reason.PUBLIC_KEY_REUSED),
        (alice, (ALICE, (ALICE, bob), CONTEXT), Misuse, "client/1", Reason.API_MISUSE),
        (alice, (ALICE, (BOB, bob), ATTEMPT), Misuse, "SessionContext", Reason.API_MISUSE),
        (other, (ALICE, (BOB, bob), CONTEXT), Misuse, f"for the {OTHER_ROLE[role].value} role", Reason.API_MISUSE),
    ]
    for pair, arguments, error, words, reason in refused:
        with pytest.raises(error, match=words) as caught:
            getattr(pair, function)(*arguments)
        assert isinstance(caught.value, SecAggError)
        assert caught.value.reason is reason


def test_the_root_stays_the_callers() -> None:
    root = Secret("root", ALICE_ROOT)
    X25519KeyPair(root, KeyRole.MASK, ATTEMPT).wipe()
    assert shown(root) == ALICE_ROOT


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_wiped_pair_is_refused_and_still_has_its_public_key(function: str) -> None:
    role = role_of(function)
    pair, bob = pair_of(ALICE_ROOT, role), pair_of(BOB_ROOT, role).public_key
    pair.wipe()
    pair.wipe()
    with pytest.raises(Misuse) as caught:
        getattr(pair, function)(ALICE, (BOB, bob), CONTEXT)
    assert caught.value.reason is Reason.ALREADY_SPENT
    assert pair.public_key == pair_of(ALICE_ROOT, role).public_key


def test_the_derived_scalar_and_the_raw_output_are_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Secret] = []

    class WatchedSecret(Secret):
        """A secret that can be inspected after it is wiped."""

        __slots__ = ()

        def __init__(self, kind: str, data: bytes) -> None:
            super().__init__(kind, data)
            made.append(self)

    bob = pair_of(BOB_ROOT, KeyRole.MASK).public_key
    monkeypatch.setattr("secagg.crypto.key_derivation.Secret", WatchedSecret)
    monkeypatch.setattr("secagg.crypto.key_agreement.Secret", WatchedSecret)
    pair_of(ALICE_ROOT, KeyRole.MASK).pairwise_seed(ALICE, (BOB, bob), CONTEXT)
    assert {secret.kind: secret.is_wiped for secret in made} == {
        "x25519_private_key": True,
        "shared_secret": True,
        "pairwise_seed": False,
    }
