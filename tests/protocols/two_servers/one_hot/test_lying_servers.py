"""Servers that lie: what one of the two can learn, and what it can only break."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from secagg.errors import MalformedMessage, Misuse, PeerError, PeerMisbehaved, Reason, UnexpectedMessage
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers.point_functions.one_hot_check import (
    REJECTED,
    OneHotCommitment,
    OneHotOpening,
    OneHotVerifier,
)
from secagg.protocols.two_servers.point_functions.one_hot_proof import Challenges, CheckShape, prove
from secagg.simulation.insecure_coins import InsecureSeededCoins

ZERO, ONE = ServerId(0), ServerId(1)
SHAPE = CheckShape(127, 4, 6, 3)
BLOCK = 4
"""The block that is aimed at: row 1, column 1 of the three that are counted from 0."""


def upload_of(plain: ModuleType, shape: CheckShape, assignments: list[int], nonce: int = 0, **changes: Any) -> Any:
    context = plain.a_context(shape, nonce=nonce.to_bytes(16, "big"), **changes)
    matrix = np.eye(shape.codewords, dtype=np.int64)[assignments]
    shares = plain.shares_of(shape, matrix, context.nonce)
    digests = (shares[0].digest, shares[1].digest)
    proofs = prove(context, np.array(assignments), digests, InsecureSeededCoins(context.nonce))
    return plain.Upload(context, shares, proofs)


def shifted(plain: ModuleType, upload: Any, old: int, new: int) -> Any:
    """Return server 1's share with e_new - e_old added to one block, under the digest of the share it was given."""
    modulus, lanes = upload.context.shape.modulus, upload.shares[1].matrix.copy()
    lanes[BLOCK, new] = (int(lanes[BLOCK, new]) + 1) % modulus
    lanes[BLOCK, old] = (int(lanes[BLOCK, old]) + modulus - 1) % modulus
    share = plain.MatrixShare(lanes)
    share.digest = upload.shares[1].digest
    return share


class Liar:
    """Server 1, which shifts a share and repairs what it can of its opening."""

    def __init__(self, plain: ModuleType, upload: Any, old: int, new: int) -> None:
        self.context, self.shape = upload.context, upload.context.shape
        share, proof = shifted(plain, upload, old, new), upload.proofs[1]
        verifier = OneHotVerifier(self.context, share, proof, plain.round_challenges(self.context))
        nothing = OneHotCommitment.to(ZERO, self.context.statement, b"").encode()
        self.opening = OneHotOpening.decode(verifier.open(nothing), self.shape)
        joint = self.opening.joint
        challenges = Challenges.of(self.shape, joint)
        point = plain.round_challenges(self.context).point(self.context, joint, b"")
        field, self.field = self.shape.field, self.shape.field
        self.row, column = divmod(BLOCK, self.shape.columns)
        r, self.rho = challenges.codeword, challenges.row[self.row]
        weight = self.shape.row_points.weights_at(point)[column + 1]
        self.moved = field.multiply(weight, field.subtract(r[new], r[old]))
        squares = field.subtract(field.multiply(r[new], r[new]), field.multiply(r[old], r[old]))
        self.unbalanced = field.multiply(field.multiply(challenges.square[column], self.rho), squares)

    def with_repaired_linear_part(self) -> OneHotOpening:
        """Undo the change of the linear part, which is known whatever the index is."""
        return replace(self.opening, linear=self.field.add(self.opening.linear, self.unbalanced))

    def with_guess(self, honest_row: Any) -> OneHotOpening:
        """Change the polynomial by rho (2 f moved + moved^2), where f is what only both servers can open."""
        field = self.field
        twice = field.multiply(field.add(honest_row, honest_row), self.moved)
        change = field.multiply(self.rho, field.add(twice, field.multiply(self.moved, self.moved)))
        repaired = self.with_repaired_linear_part()
        return replace(repaired, polynomial=field.add(repaired.polynomial, change))


def honest_server(plain: ModuleType, upload: Any) -> OneHotVerifier:
    return OneHotVerifier(upload.context, upload.shares[0], upload.proofs[0], plain.round_challenges(upload.context))


def accepts(server: OneHotVerifier, opening: OneHotOpening) -> bool:
    """Let a liar commit to an opening and then show it."""
    shown = opening.encode(server.context.shape)
    server.open(OneHotCommitment.to(ONE, server.context.statement, shown).encode())
    try:
        server.decide(shown)
    except PeerMisbehaved:
        return False
    return True


# --- A shift that is valid for one index only -------------------------------------------------------------------------


def naive_sketch_accepts(upload: Any, share: Any) -> bool:
    """Compare <r, y>^2 and <r^2, y> of the block, which both servers open without masks."""
    q = upload.context.shape.modulus
    r = np.array([3, 14, 15, 92])
    total = (upload.shares[0].matrix[BLOCK].astype(int) + share.matrix[BLOCK]) % q
    return bool(int((total @ r) ** 2 - total @ r**2) % q == 0 and int(total.sum()) % q == 1)


def test_a_shift_tells_the_index_to_a_naive_sketch_and_nothing_here(plain: ModuleType) -> None:
    naive, here = {True: set[bool](), False: set[bool]()}, {True: set[bool](), False: set[bool]()}
    for nonce in range(40):
        index = 2 if nonce % 2 else nonce // 2 % 4
        upload = upload_of(plain, SHAPE, [0, 1, 2, 3, index, 1], nonce)
        naive[index == 2].add(naive_sketch_accepts(upload, shifted(plain, upload, 2, 3)))
        liar = Liar(plain, upload, 2, 3)
        for opening in (liar.opening, liar.with_repaired_linear_part(), liar.with_guess(SHAPE.field.scalar(nonce))):
            here[index == 2].add(accepts(honest_server(plain, upload), opening))
    assert naive == {True: {True}, False: {False}}, "the attack works where nothing defends"
    assert here == {True: {False}, False: {False}}


def test_a_guess_succeeds_for_one_value_in_the_field_whatever_the_index(plain: ModuleType, field_of_127: int) -> None:
    """Over a field of 127 elements all guesses can be tried: the chance is 1 / |F| for every index."""
    shape = CheckShape(127, 4, 6, 3)
    for index in range(4):
        upload = upload_of(plain, shape, [0, 1, 2, 3, index, 1], index)
        liar, successes = Liar(plain, upload, 2, 3), 0
        assert liar.moved.any()
        assert liar.rho.any()
        for guess in range(field_of_127):
            successes += accepts(honest_server(plain, upload), liar.with_guess(shape.field.scalar(guess)))
        assert successes == 1


@pytest.mark.parametrize("index", [0, 3])
def test_what_is_opened_for_a_row_is_uniform_whatever_the_index(
    plain: ModuleType, field_of_127: int, index: int
) -> None:
    shape = CheckShape(127, 4, 12_700, 1)
    upload = upload_of(plain, shape, [index] * shape.blocks)
    zero, one = plain.verifiers(upload)
    opened = shape.field.add(plain.opening_of(zero).rows, plain.opening_of(one).rows)[:, 0]
    seen = np.bincount(opened, minlength=field_of_127)
    statistic = float(((seen - 100) ** 2).sum() / 100)
    assert 70 < statistic < 200, "chi-square with 126 degrees of freedom"


# --- One challenge ----------------------------------------------------------------------------------------------------


def test_two_query_points_on_one_upload_would_open_its_rows(plain: ModuleType) -> None:
    """Show why the point follows from the round's key and the upload, and why a second answer is refused."""
    shape = CheckShape(127, 4, 6, 3)
    assignments = [2, 0, 3, 1, 1, 2]
    upload = upload_of(plain, shape, assignments)
    field, opened, weights, joint = shape.field, list[Any](), list[Any](), b""
    for pair_key in (bytes(32), b"\1" * 32):
        servers = [
            OneHotVerifier(upload.context, share, proof, plain.round_challenges(upload.context, pair_key))
            for share, proof in zip(upload.shares, upload.proofs, strict=True)
        ]
        openings = [plain.opening_of(server) for server in servers]
        opened.append(field.add(openings[0].rows, openings[1].rows))
        joint = openings[0].joint
        point = plain.round_challenges(upload.context, pair_key).point(upload.context, joint, b"")
        weights.append(shape.row_points.weights_at(point))
    r = Challenges.of(shape, joint).codeword
    recovered = list[int]()
    for row in range(shape.rows):
        candidates = list[tuple[int, ...]]()
        for guess in product(range(4), repeat=3):
            masked = [
                field.subtract(rows[row], field.inner_product(weight[1:], r[list(guess)]))
                for rows, weight in zip(opened, weights, strict=True)
            ]
            # Each point gives the mask times its weight, if the guess is right.
            if np.array_equal(field.multiply(masked[0], weights[1][0]), field.multiply(masked[1], weights[0][0])):
                candidates.append(guess)
        assert len(candidates) == 1
        recovered += candidates[0]
    assert recovered == assignments


def test_a_server_that_is_asked_with_two_commitments_opens_once(plain: ModuleType) -> None:
    upload = upload_of(plain, SHAPE, [0] * 6)
    zero = honest_server(plain, upload)
    zero.open(OneHotCommitment.to(ONE, upload.context.statement, b"one").encode())
    with pytest.raises(Misuse, match="one commitment") as caught:
        zero.open(OneHotCommitment.to(ONE, upload.context.statement, b"another").encode())
    assert caught.value.reason is Reason.ALREADY_SPENT


def test_a_decision_is_taken_once_and_after_a_commitment(plain: ModuleType) -> None:
    zero, one = plain.verifiers(upload_of(plain, SHAPE, [0] * 6))
    opening = one.open(zero.commit())
    with pytest.raises(Misuse, match="commitment before it decides"):
        zero.decide(opening)
    zero.open(one.commit())
    zero.decide(opening)
    with pytest.raises(Misuse, match="decides only once"):
        zero.decide(opening[:-1] + bytes([opening[-1] ^ 1]))


def test_a_rejection_stays_one(plain: ModuleType) -> None:
    upload = upload_of(plain, SHAPE, [0] * 6)
    zero, one = plain.verifiers(upload)
    zero.open(one.commit())
    right = one.open(zero.commit())
    wrong = right[:-1] + bytes([right[-1] ^ 1])
    for _ in range(2):
        with pytest.raises(PeerMisbehaved, match="differs from its commitment"):
            zero.decide(wrong)
    with pytest.raises(Misuse, match="decides only once"):
        zero.decide(right)


def test_a_commitment_belongs_to_one_server_one_upload_and_one_opening() -> None:
    made = {
        OneHotCommitment.to(server, statement, opening).digest
        for server in (ZERO, ONE)
        for statement in (bytes(32), b"\1" * 32)
        for opening in (b"", b"\0")
    }
    assert len(made) == 8


def test_a_rejection_that_is_kept_keeps_no_frames_alive(plain: ModuleType) -> None:
    zero, one = plain.verifiers(upload_of(plain, SHAPE, [0] * 6))
    zero.open(one.commit())
    for _ in range(2):
        with pytest.raises(PeerMisbehaved):
            zero.decide(b"")
        assert zero._decided[1].__traceback__ is None  # noqa: SLF001


# --- Blame ------------------------------------------------------------------------------------------------------------


def test_openings_that_contradict_each_other_blame_the_client_and_both_servers(plain: ModuleType) -> None:
    upload = upload_of(plain, SHAPE, [0] * 6)
    zero, liar = honest_server(plain, upload), Liar(plain, upload, 0, 1)
    shown = liar.opening.encode(SHAPE)
    zero.open(OneHotCommitment.to(ONE, upload.context.statement, shown).encode())
    with pytest.raises(PeerMisbehaved, match="contradict") as caught:
        zero.decide(shown)
    assert caught.value.reason is REJECTED
    assert caught.value.culprits == {upload.context.client, ZERO, ONE}


def test_an_opening_for_another_joint_value_is_rejected(plain: ModuleType) -> None:
    upload = upload_of(plain, SHAPE, [0] * 6)
    zero, one = plain.verifiers(upload)
    honest = OneHotOpening.decode(one.open(zero.commit()), SHAPE)
    assert accepts(honest_server(plain, upload), honest)
    assert not accepts(zero, replace(honest, joint=bytes(32)))


@pytest.mark.parametrize(
    "change", [{"server": ZERO}, {"statement": bytes(32)}], ids=["the other server's", "another upload's"]
)
def test_messages_of_other_servers_and_uploads_are_refused(plain: ModuleType, change: dict[str, Any]) -> None:
    upload = upload_of(plain, SHAPE, [0] * 6)
    zero, one = plain.verifiers(upload)
    opening = replace(OneHotOpening.decode(one.open(zero.commit()), SHAPE), **change).encode(SHAPE)
    commitment = OneHotCommitment.to(ONE, upload.context.statement, opening)
    with pytest.raises(PeerMisbehaved, match="another") as caught:
        zero.open(replace(commitment, **change).encode())
    assert (caught.value.reason, set(caught.value.culprits)) == (Reason.WRONG_SESSION, {ZERO, ONE})
    zero.open(commitment.encode())
    with pytest.raises(PeerMisbehaved, match="another") as caught:
        zero.decide(opening)
    assert (caught.value.reason, set(caught.value.culprits)) == (Reason.WRONG_SESSION, {ZERO, ONE})


@pytest.mark.parametrize("damage", [b"", b"\0", b"SAGG\1\0\1" + bytes(80)])
def test_malformed_messages_blame_both_servers(plain: ModuleType, damage: bytes) -> None:
    upload = upload_of(plain, SHAPE, [0] * 6)
    zero = honest_server(plain, upload)
    with pytest.raises((MalformedMessage, UnexpectedMessage)) as caught:
        zero.open(damage)
    assert caught.value.culprits == {ZERO, ONE}
    zero.open(OneHotCommitment.to(ONE, upload.context.statement, damage).encode())
    for _ in range(2):
        with pytest.raises((MalformedMessage, UnexpectedMessage)) as caught:
            zero.decide(damage)
        assert caught.value.culprits == {ZERO, ONE}


def test_a_seed_without_lanes_blames_the_client(plain: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = CheckShape(127, 4, 2000, 1)
    upload = upload_of(plain, shape, [0] * 2000)
    challenges = plain.round_challenges(upload.context)
    point = plain.round_challenges(upload.context).point(upload.context, bytes(32), b"")

    def known(*_: object) -> Any:
        return point

    monkeypatch.setattr(challenges, "point", known)
    monkeypatch.setattr("secagg.protocols.two_servers.point_functions.lanes.ATTEMPTS", 1)
    with pytest.raises(PeerError) as caught:
        OneHotVerifier(upload.context, upload.shares[0], upload.proofs[0], challenges)
    assert caught.value.culprits == {upload.context.client}


# --- A victim's upload under another name -----------------------------------------------------------------------------


def test_a_server_cannot_hand_a_clients_upload_in_for_a_client_that_it_invents(plain: ModuleType) -> None:
    victim = upload_of(plain, SHAPE, [0, 1, 2, 3, 1, 2])
    invented = replace(victim.context, client=ClientId(99))

    def server_0() -> OneHotVerifier:
        return OneHotVerifier(invented, victim.shares[0], victim.proofs[0], plain.round_challenges(invented))

    # Server 1 has the victim's messages to itself, and computes under either name.
    for context in (invented, victim.context):
        one = OneHotVerifier(context, victim.shares[1], victim.proofs[1], plain.round_challenges(context))
        opening = replace(plain.opening_of(one), statement=invented.statement)
        assert not accepts(server_0(), opening)
        # Not even if it could guess the joint value, which it cannot: the victim's other part is blinded by a seed.
        assert not accepts(server_0(), replace(opening, joint=plain.opening_of(server_0()).joint))


@pytest.mark.parametrize("deceit", ["none", "another name", "another part"])
def test_server_0_cannot_test_guesses_by_having_server_1_compute_something_else(plain: ModuleType, deceit: str) -> None:
    """Predict server 1's linear part from a guess: without deceit every guess of unit vectors fits."""
    right, wrong = [0, 1, 2, 3, 1, 2], [0, 1, 2, 3, 1, 3]
    victim = upload_of(plain, SHAPE, right)
    context = replace(victim.context, client=ClientId(99)) if deceit == "another name" else victim.context
    proof = replace(victim.proofs[1], other_part=bytes(32)) if deceit == "another part" else victim.proofs[1]
    verifier = OneHotVerifier(context, victim.shares[1], proof, plain.round_challenges(context))
    opened = plain.opening_of(verifier)
    joint = victim.context.joint(victim.proofs[1].other_part, victim.proofs[0].other_part)
    mask, proved = victim.context.polynomial_mask(ZERO, victim.proofs[0].seed, joint), Challenges.of(SHAPE, joint)
    used = Challenges.of(SHAPE, opened.joint)
    field, fits = SHAPE.field, dict[str, bool]()
    for guess_name, guess in (("right", right), ("wrong", wrong)):
        lanes = (np.eye(4, dtype=np.int64)[guess] - victim.shares[0].matrix) % SHAPE.modulus
        predicted = field.zeros()
        for column in range(SHAPE.columns):
            codewords = [guess[row * SHAPE.columns + column] for row in range(SHAPE.rows)]
            squares = field.multiply(proved.codeword, proved.codeword)[codewords]
            value = field.subtract(field.inner_product(proved.row, squares), mask[1 + column])
            over_rows = np.einsum("ij,is->js", lanes.reshape(SHAPE.rows, SHAPE.columns, 4)[:, column], used.row) % 127
            value = field.subtract(value, field.inner_product(field.multiply(used.codeword, used.codeword), over_rows))
            total = field.multiply(used.total[column], over_rows.sum(axis=0) % 127)
            predicted = field.add(predicted, field.add(field.multiply(used.square[column], value), total))
        fits[guess_name] = np.array_equal(predicted, opened.linear)
    assert fits == dict.fromkeys(("right", "wrong"), deceit == "none")
