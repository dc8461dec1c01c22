"""The hybrid suite: key pairs derived from a root, seeds that open for only one edge, and refused keys."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from secagg.crypto import hybrid_key_agreement
from secagg.crypto.hybrid_key_agreement import (
    HYBRID_PUBLIC_KEY_BYTES,
    MLKEM768_BYTES,
    HybridKeyPair,
    HybridPublicKey,
    edge_seed,
    open_edge_seed,
    seal_edge_seed,
)
from secagg.crypto.public_keys import KeyRole
from secagg.crypto.secret import Secret
from secagg.errors import AuthenticationFailed, InvalidParameters, MalformedMessage, Misuse, Reason
from secagg.identifiers import AttemptContext, ClientId, ServerId, SessionContext
from tests.harness.plain_hkdf import framed, hkdf_expand, shown

ATTEMPT = AttemptContext(bytes(range(32)))
CONTEXT = SessionContext(bytes(range(32, 64)))
ALICE, BOB, CAROL = ClientId(1), ClientId(2), ClientId(3)
ALICE_ROOT, BOB_ROOT = b"\1" * 32, b"\2" * 32
SEED = b"\x5e" * 32


def pair_of(root: bytes, role: KeyRole = KeyRole.MASK, attempt: AttemptContext = ATTEMPT) -> HybridKeyPair:
    return HybridKeyPair(Secret("root", root), role, attempt)


BOB_PAIR = pair_of(BOB_ROOT)


@dataclass(frozen=True)
class Edge:
    """Context under which a seed is sealed or opened."""

    sender: ClientId = ALICE
    receiver: ClientId = BOB
    context: SessionContext = CONTEXT

    def seal(self, key: HybridPublicKey = BOB_PAIR.public_key) -> bytes:
        """Seal the test's seed along this edge."""
        return seal_edge_seed(Secret("pairwise_seed", SEED), key, self.sender, self.receiver, self.context)

    def open(self, sealed: bytes, pair: HybridKeyPair = BOB_PAIR) -> bytes:
        """Open a seed as sent along this edge."""
        return shown(open_edge_seed(pair, sealed, self.sender, self.receiver, self.context))


EDGE = Edge()
SEALED = EDGE.seal()


@pytest.mark.parametrize("role", KeyRole)
@pytest.mark.parametrize("root", [ALICE_ROOT, BOB_ROOT, bytes(32)])
def test_a_pair_is_the_expansion_of_its_root(role: KeyRole, root: bytes) -> None:
    mlkem_seed = hkdf_expand(root, framed(f"secagg/1/{role.value}-hybrid-mlkem768-seed".encode(), ATTEMPT.digest), 64)
    scalar = hkdf_expand(root, framed(f"secagg/1/{role.value}-hybrid-x25519-key".encode(), ATTEMPT.digest))
    mlkem = MLKEM768PrivateKey.from_seed_bytes(mlkem_seed).public_key().public_bytes_raw()
    x25519 = X25519PrivateKey.from_private_bytes(scalar).public_key().public_bytes_raw()
    assert pair_of(root, role).public_key.encoded == mlkem + x25519


@given(
    root=st.binary(min_size=32, max_size=32),
    ids=st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=2, unique=True),
    context=st.binary(min_size=32, max_size=32),
)
def test_an_edge_seed_is_the_expansion_of_the_senders_root(root: bytes, ids: list[int], context: bytes) -> None:
    sender, receiver = map(ClientId, ids)
    info = framed(b"secagg/1/edge-seed", context, sender.encode(), receiver.encode())
    seed = edge_seed(Secret("root", root), sender, receiver, SessionContext(context))
    assert shown(seed) == hkdf_expand(root, info)


def test_a_client_has_no_edge_to_itself() -> None:
    with pytest.raises(Misuse, match="client/1"):
        edge_seed(Secret("root", ALICE_ROOT), ALICE, ALICE, CONTEXT)


def test_a_recovered_root_opens_what_was_sealed_to_the_pair() -> None:
    with Secret("recovered root", BOB_ROOT) as recovered:
        again = HybridKeyPair(recovered, KeyRole.MASK, ATTEMPT)
    assert again.public_key == BOB_PAIR.public_key
    assert EDGE.open(SEALED, again) == SEED


@pytest.mark.parametrize(
    "edge",
    [
        Edge(sender=BOB, receiver=ALICE),
        Edge(sender=CAROL),
        Edge(receiver=CAROL),
        Edge(context=SessionContext(CONTEXT.digest[:-1] + b"\0")),
    ],
    ids=["direction", "sender", "receiver", "context"],
)
def test_a_seed_opens_along_its_own_edge_alone(edge: Edge) -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        edge.open(SEALED)
    assert caught.value.culprits == {edge.sender, ServerId()}


@pytest.mark.parametrize("half", ["mlkem", "x25519"])
def test_a_seed_sealed_to_a_key_with_one_foreign_half_does_not_open(half: str) -> None:
    own, foreign = BOB_PAIR.public_key.encoded, pair_of(ALICE_ROOT).public_key.encoded
    mixed = (
        foreign[:MLKEM768_BYTES] + own[MLKEM768_BYTES:]
        if half == "mlkem"
        else own[:MLKEM768_BYTES] + foreign[MLKEM768_BYTES:]
    )
    with pytest.raises(AuthenticationFailed):
        EDGE.open(EDGE.seal(HybridPublicKey(mixed)))


def test_a_channel_pair_opens_no_edge_seed() -> None:
    channel = pair_of(BOB_ROOT, KeyRole.CHANNEL)
    with pytest.raises(Misuse, match="channel"):
        EDGE.open(EDGE.seal(channel.public_key), channel)


@pytest.mark.parametrize("length", [31, 33])
def test_a_seed_of_another_length_is_not_sealed(length: int) -> None:
    with pytest.raises(Misuse, match=f"{length} bytes"):
        seal_edge_seed(Secret("pairwise_seed", SEED[:1] * length), BOB_PAIR.public_key, ALICE, BOB, CONTEXT)


def with_coefficient(index: int, value: int) -> bytes:
    """Return Bob's key with one of its 768 coefficients, 12 bits each, replaced."""
    key = BOB_PAIR.public_key.encoded
    packed = int.from_bytes(key[:MLKEM768_BYTES], "little")
    packed &= ~(0xFFF << (12 * index))
    packed |= value << (12 * index)
    return packed.to_bytes(MLKEM768_BYTES, "little") + key[MLKEM768_BYTES:]


@pytest.mark.parametrize("index", [0, 1, 255, 256, 766, 767])
@pytest.mark.parametrize("value", [3329, 3330, 4095])
def test_an_mlkem_key_with_an_unreduced_coefficient_is_refused(index: int, value: int) -> None:
    greatest = with_coefficient(index, 3328)
    assert HybridPublicKey(greatest).encoded == greatest
    with pytest.raises(MalformedMessage, match="3329") as caught:
        HybridPublicKey(with_coefficient(index, value), (BOB, ServerId()))
    assert caught.value.reason is Reason.PUBLIC_KEY_NOT_CANONICAL
    assert caught.value.culprits == {BOB, ServerId()}


def refuse(*_: object) -> NoReturn:
    raise UnsupportedAlgorithm("this build has no ML-KEM")


def test_importing_the_suite_fails_where_the_backend_has_no_mlkem(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_afresh() -> Any:
        spec = importlib.util.spec_from_file_location(
            "secagg.crypto.fresh_hybrid_key_agreement", hybrid_key_agreement.__file__
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Dataclasses look their module up by name.
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    assert import_afresh().HYBRID_PUBLIC_KEY_BYTES == HYBRID_PUBLIC_KEY_BYTES
    monkeypatch.setattr(MLKEM768PrivateKey, "from_seed_bytes", refuse)
    with pytest.raises(InvalidParameters, match="install a wheel") as caught:
        import_afresh()
    assert caught.value.reason is Reason.BACKEND_MISSING
    assert caught.value.__suppress_context__


def test_a_seed_that_was_sealed_by_an_earlier_version_still_opens(repository: Path) -> None:
    # It also pins the algorithms inside HPKE, on which nothing else here depends.
    vector = json.loads((repository / "tests" / "vectors" / "core" / "sealed_edge_seed.json").read_text())
    pair = pair_of(bytes.fromhex(vector["receiver_root"]), attempt=AttemptContext(bytes.fromhex(vector["attempt"])))
    edge = Edge(
        ClientId(int(vector["sender"])),
        ClientId(int(vector["receiver"])),
        SessionContext(bytes.fromhex(vector["context"])),
    )
    assert edge.open(bytes.fromhex(vector["sealed"]), pair).hex() == vector["seed"]


def test_contexts_of_the_wrong_kind_are_refused() -> None:
    attempt: Any = ATTEMPT
    with pytest.raises(Misuse, match="SessionContext"):
        Edge(context=attempt).seal()


@pytest.mark.parametrize("length", [10, 32])
def test_a_seed_in_plain_bytes_is_neither_sealed_nor_printed(length: int) -> None:
    plain: Any = (b"NEVER-SHOW-THIS!" * 2)[:length]
    with pytest.raises(Misuse) as caught:
        seal_edge_seed(plain, BOB_PAIR.public_key, ALICE, BOB, CONTEXT)
    assert "NEVER" not in str(caught.value)
