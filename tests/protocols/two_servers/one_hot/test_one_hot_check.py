"""Honest clients and servers: every unit matrix is accepted, in every shape; everything is bound, and happens once."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from secagg.crypto.secret import Secret
from secagg.errors import CapacityExceeded, InvalidParameters, MalformedMessage, Misuse, PeerMisbehaved, Reason
from secagg.identifiers import AttemptContext, ClientId, ServerId
from secagg.protocols.two_servers.point_functions import one_hot_check, one_hot_proof
from secagg.protocols.two_servers.point_functions.one_hot_check import (
    OneHotCommitment,
    OneHotOpening,
    query_point,
    sketch,
)
from secagg.protocols.two_servers.point_functions.one_hot_proof import (
    Challenges,
    CheckShape,
    OneHotProof,
    prove,
    row_square_sum,
)
from secagg.simulation.insecure_coins import InsecureSeededCoins
from tests.harness.recorded_coins import InsecureRecordedCoins

ZERO, ONE = ServerId(0), ServerId(1)
SMALL = CheckShape(127, 5, 11, 3)
SHAPES = pytest.mark.parametrize(
    "shape",
    [
        CheckShape(127, 8, 64, 4),
        CheckShape(127, 32, 61, 7),
        CheckShape(127, 2, 1, 1),
        CheckShape(127, 3, 130, 62),
        CheckShape(127, 256, 12, 5),
        CheckShape(8191, 16, 97, 5),
        CheckShape(8191, 4, 10, 10),
        CheckShape(131071, 32, 50, 7),
        CheckShape(131071, 7, 9, 1),
    ],
    ids=lambda shape: f"q={shape.modulus},k={shape.codewords},B={shape.blocks},G={shape.columns}",
)


def honest(plain: ModuleType, shape: CheckShape, **changes: Any) -> Any:
    """Return what the package's own client uploads."""
    context = plain.a_context(shape, **changes)
    matrix = plain.unit_matrix(shape)
    shares = plain.shares_of(shape, matrix)
    proofs = prove(context, matrix.argmax(axis=1), (shares[0].digest, shares[1].digest), InsecureSeededCoins(b"seeds"))
    return plain.Upload(context, shares, proofs)


# --- Completeness -----------------------------------------------------------------------------------------------------


@SHAPES
def test_an_honest_client_is_accepted(plain: ModuleType, shape: CheckShape) -> None:
    upload = honest(plain, shape)
    assert plain.is_accepted(upload)
    total = upload.shares[0].matrix.copy()
    shape.base.add_into(total, upload.shares[1].matrix)
    assert np.array_equal(total, plain.unit_matrix(shape))


@SHAPES
def test_the_polynomial_is_what_its_definition_says(plain: ModuleType, shape: CheckShape) -> None:
    challenges = Challenges.of(shape, bytes(32))
    with Secret("one-hot seed", bytes(32)) as seed:
        masks = plain.a_context(shape).masks(ZERO, seed, bytes(32))
    matrix = plain.unit_matrix(shape)
    placed = np.zeros(shape.rows * shape.columns, dtype=np.intp)
    placed[: shape.blocks] = matrix.argmax(axis=1)
    made = row_square_sum(shape, challenges, masks, placed.reshape(shape.rows, shape.columns))
    assert made.tolist() == plain.row_square_sum(shape, challenges, masks.tolist(), matrix)


@pytest.mark.parametrize("modulus", [127, 8191])
def test_chunks_and_threads_change_nothing(plain: ModuleType, modulus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = CheckShape(modulus, 6, 101, 4)
    upload = honest(plain, shape)
    openings = openings_of(plain, upload)
    monkeypatch.setattr(one_hot_check, "_CHUNK_LANES", 50)
    monkeypatch.setattr(one_hot_check, "RUN_BLOCKS", 8)
    monkeypatch.setattr(one_hot_proof, "_CHUNK_VALUES", 300)
    again = honest(plain, shape)
    assert [proof.encode(shape) for proof in again.proofs] == [proof.encode(shape) for proof in upload.proofs]
    for threads in (1, 2, 3, 100):
        assert openings_of(plain, again, threads=threads) == openings


def openings_of(plain: ModuleType, upload: Any, **options: Any) -> list[bytes]:
    made = list[bytes]()
    for server in (ZERO, ONE):
        verifier = one_verifier(plain, upload, server, **options)
        made.append(verifier.open(commitment_of(upload, ServerId(1 - server.index))))
    return made


def one_verifier(plain: ModuleType, upload: Any, server: ServerId, **options: Any) -> Any:
    share, proof = upload.shares[server.index], upload.proofs[server.index]
    challenges = plain.round_challenges(upload.context)
    return plain.OneHotVerifier(upload.context, share, proof, challenges, **options)


def commitment_of(upload: Any, server: ServerId, opening: bytes = b"") -> bytes:
    return OneHotCommitment.to(server, upload.context.statement, opening).encode()


def test_the_widest_polynomials_over_the_largest_field_are_exact(
    plain: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums that left the exact range would depend on how many rows are taken at a time."""
    shape = CheckShape(131071, 4, 15_000, 512)
    placed = np.zeros(shape.rows * shape.columns, dtype=np.intp)
    placed[: shape.blocks] = plain.unit_matrix(shape).argmax(axis=1)
    challenges = Challenges.of(shape, bytes(32))
    masks = shape.field.zeros(shape.rows)
    at_once = row_square_sum(shape, challenges, masks, placed.reshape(shape.rows, shape.columns))
    monkeypatch.setattr(one_hot_proof, "_CHUNK_VALUES", 1)
    assert np.array_equal(row_square_sum(shape, challenges, masks, placed.reshape(shape.rows, shape.columns)), at_once)


def test_the_blocks_that_fill_the_last_row_are_the_servers_and_public(plain: ModuleType) -> None:
    upload = honest(plain, SMALL)
    assert SMALL.rows * SMALL.columns - SMALL.blocks == 1
    asked = list[tuple[int, int]]()

    class Watched:
        def __init__(self, share: Any) -> None:
            self.share, self.digest = share, share.digest

        def lanes(self, first: int, count: int) -> Any:
            asked.append((first, count))
            return self.share.lanes(first, count)

    watched = plain.Upload(upload.context, tuple(Watched(share) for share in upload.shares), upload.proofs)
    assert plain.is_accepted(watched)
    assert {first + count for first, count in asked} == {SMALL.blocks}


@pytest.mark.parametrize("threads", [0, -1, 1.0])
def test_fewer_than_one_thread_is_refused(plain: ModuleType, threads: int) -> None:
    with pytest.raises(InvalidParameters, match="threads"):
        one_verifier(plain, honest(plain, SMALL), ZERO, threads=threads)


# --- Shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("largest_count", "modulus", "columns"), [(126, 127, 50), (127, 8191, 48), (8191, 131071, 41)])
def test_a_planned_proof_for_100000_blocks_is_below_1_8_kilobytes(
    plain: ModuleType, largest_count: int, modulus: int, columns: int
) -> None:
    shape = CheckShape.plan(largest_count=largest_count, codewords=32, blocks=100_000)
    assert (shape.modulus, shape.columns) == (modulus, columns)
    context = plain.a_context(shape)
    seeds = plain.seeds_of(b"")
    nothing, values = shape.field.zeros(0), shape.field.zeros(shape.proof_points)
    proofs = (
        OneHotProof(server=ZERO, seed=seeds[0], other_part=bytes(32), polynomial=nothing),
        OneHotProof(server=ONE, seed=seeds[1], other_part=bytes(32), polynomial=values),
    )
    assert sum(len(proof.encode(shape)) for proof in proofs) + 2 * len(context.nonce) <= 1800


@pytest.mark.parametrize(("blocks", "columns"), [(1, 1), (2, 2), (4, 2), (10, 4), (100, 10), (2500, 50), (2501, 50)])
def test_a_small_shape_is_planned_square(blocks: int, columns: int) -> None:
    assert CheckShape.plan(largest_count=5, codewords=4, blocks=blocks).columns == columns


@pytest.mark.parametrize(
    ("modulus", "codewords", "blocks", "columns"),
    [
        (128, 4, 10, 2),
        (127, 1, 10, 2),
        (127, 4097, 10, 2),
        (127, 4, 0, 0),
        (127, 4, (1 << 26) + 1, 2),
        (127, 4, 200, 63),
        (127, 4, 10, 11),
        (8191, 4, 1000, 513),
        (127, 4, 10, 0),
        (127, 4.0, 10, 2),
    ],
)
def test_an_impossible_shape_is_refused(modulus: int, codewords: int, blocks: int, columns: int) -> None:
    with pytest.raises(InvalidParameters):
        CheckShape(modulus, codewords, blocks, columns)


@pytest.mark.parametrize("blocks", [0, -5, (1 << 26) + 1, 2.5])
def test_an_impossible_number_of_blocks_is_not_planned_for(blocks: int) -> None:
    with pytest.raises(InvalidParameters, match="blocks"):
        CheckShape.plan(largest_count=1, codewords=4, blocks=blocks)


# --- What is bound ----------------------------------------------------------------------------------------------------

OTHER: dict[str, Any] = {
    "attempt": AttemptContext(bytes(32)),
    "round_number": 4,
    "client": ClientId(8),
    "layout_digest": bytes(32),
    "segment": 1,
    "shape": CheckShape(127, 5, 11, 4),
    "correction_digest": bytes(32),
    "nonce": b"\1" * 16,
}


@pytest.mark.parametrize("field", OTHER)
def test_everything_public_is_bound_into_parts_challenges_and_keys(plain: ModuleType, field: str) -> None:
    context = plain.a_context(SMALL)
    other = replace(context, **{field: OTHER[field]})
    seed, _ = plain.seeds_of(b"")
    assert context.statement != other.statement
    assert context.part(ZERO, bytes(32), seed) != other.part(ZERO, bytes(32), seed)
    assert context.joint(bytes(32), bytes(32)) != other.joint(bytes(32), bytes(32))
    point = query_point(SMALL, seed, context.statement, bytes(32))
    assert not np.array_equal(point, query_point(SMALL, seed, other.statement, bytes(32)))


@pytest.mark.parametrize(
    "shape",
    [CheckShape(8191, 5, 11, 3), CheckShape(127, 6, 11, 3), CheckShape(127, 5, 12, 3), CheckShape(127, 5, 11, 2)],
)
def test_every_number_of_a_shape_is_bound(plain: ModuleType, shape: CheckShape) -> None:
    assert plain.a_context(SMALL).statement != plain.a_context(shape).statement


def test_a_part_binds_the_server_the_share_and_the_seed(plain: ModuleType) -> None:
    context, (seed, other_seed) = plain.a_context(SMALL), plain.seeds_of(b"")
    parts = {
        context.part(ZERO, bytes(32), seed),
        context.part(ONE, bytes(32), seed),
        context.part(ZERO, b"\1" * 32, seed),
        context.part(ZERO, bytes(32), other_seed),
    }
    assert len(parts) == 4
    joints = {
        context.joint(bytes(32), bytes(32)),
        context.joint(b"\1" * 32, bytes(32)),
        context.joint(bytes(32), b"\1" * 32),
    }
    assert len(joints) == 3


def test_every_challenge_follows_from_the_joint_value() -> None:
    one, other = Challenges.of(SMALL, bytes(32)), Challenges.of(SMALL, bytes(31) + b"\1")
    for name in ("codeword", "row", "square", "total"):
        assert (getattr(one, name) != getattr(other, name)).any(axis=-1).all()


def test_all_challenges_and_masks_are_different_elements(plain: ModuleType) -> None:
    context, seeds = plain.a_context(SMALL), plain.seeds_of(b"")
    challenges = Challenges.of(SMALL, bytes(32))
    places = [
        (ZERO, seeds[0], bytes(32)),
        (ONE, seeds[0], bytes(32)),
        (ONE, seeds[1], bytes(32)),
        (ONE, seeds[1], b"\1" * 32),
    ]
    masks = [expand(*place) for expand in (context.masks, context.polynomial_mask) for place in places]
    drawn = [
        *challenges.codeword.tolist(),
        *challenges.row.tolist(),
        *challenges.square.tolist(),
        *challenges.total.tolist(),
        *(element for mask in masks for element in mask.tolist()),
    ]
    assert len(drawn) == 5 + 4 + 3 + 3 + 4 * 4 + 4 * 7
    assert len({tuple(element) for element in drawn}) == len(drawn)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("attempt", bytes(32), Misuse),
        ("client", 7, Misuse),
        ("shape", (127, 5, 11, 3), Misuse),
        ("round_number", -1, InvalidParameters),
        ("round_number", 1 << 64, InvalidParameters),
        ("segment", 1 << 32, InvalidParameters),
        ("layout_digest", bytes(31), InvalidParameters),
        ("correction_digest", bytearray(32), InvalidParameters),
        ("nonce", bytes(15), InvalidParameters),
    ],
)
def test_a_context_with_a_wrong_field_is_refused(
    plain: ModuleType, field: str, value: object, error: type[Exception]
) -> None:
    with pytest.raises(error):
        replace(plain.a_context(SMALL), **{field: value})


@pytest.mark.parametrize("assignments", [np.zeros(10, np.int64), np.zeros((11, 1), np.int64), np.zeros(11), [0] * 11])
def test_assignments_of_another_form_are_refused(plain: ModuleType, assignments: Any) -> None:
    with pytest.raises(Misuse, match="assignments"):
        prove(plain.a_context(SMALL), assignments, (bytes(32), bytes(32)), InsecureSeededCoins(b""))


@pytest.mark.parametrize("index", [-1, 5, 1 << 40])
def test_an_assignment_that_is_no_codeword_is_refused(plain: ModuleType, index: int) -> None:
    assignments = np.zeros(11, np.int64)
    assignments[10] = index
    with pytest.raises(CapacityExceeded) as caught:
        prove(plain.a_context(SMALL), assignments, (bytes(32), bytes(32)), InsecureSeededCoins(b""))
    assert caught.value.reason is Reason.INPUT_OUT_OF_RANGE


def test_a_client_draws_two_seeds_and_nothing_else(plain: ModuleType) -> None:
    coins = InsecureRecordedCoins(b"a" * 32 + b"b" * 32)
    zero, one = prove(plain.a_context(SMALL), np.zeros(11, np.int64), (bytes(32), bytes(32)), coins)
    assert coins.is_exhausted
    assert (bytes(zero.seed.expose()), bytes(one.seed.expose())) == (b"a" * 32, b"b" * 32)
    for proof in (zero, one):
        assert "aaaa" not in repr(proof)
        assert "bbbb" not in repr(proof)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_digest_of_a_share_has_32_bytes(plain: ModuleType, size: int) -> None:
    with pytest.raises(InvalidParameters, match="digest of a share"):
        prove(plain.a_context(SMALL), np.zeros(11, np.int64), (bytes(size), bytes(32)), InsecureSeededCoins(b""))


# --- The query point --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quadratic_field")
def test_a_query_point_in_the_base_field_is_drawn_again() -> None:
    shape = CheckShape(127, 5, 11, 3)
    assert (shape.modulus, shape.field.degree) == (127, 2)
    first_was_low = 0

    def never(*_: object) -> bool:
        return False

    with Secret("round key", bytes(32)) as key:
        for trial in range(600):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(type(shape.field), "is_in_base_field", never)
                unchecked = query_point(shape, key, bytes(32), trial.to_bytes(32, "big"))
            point = query_point(shape, key, bytes(32), trial.to_bytes(32, "big"))
            assert not shape.field.is_in_base_field(point)
            first_was_low += shape.field.is_in_base_field(unchecked)
            assert np.array_equal(point, unchecked) != shape.field.is_in_base_field(unchecked)
    assert first_was_low, "about 5 of 600"


def test_a_server_never_computes_at_a_point_of_the_base_field(plain: ModuleType) -> None:
    upload = honest(plain, SMALL)
    challenges, seed = Challenges.of(SMALL, bytes(32)), upload.proofs[0].seed
    for at in range(2 * SMALL.columns + 3):
        with pytest.raises(InvalidParameters, match="outside the base field"):
            sketch(
                SMALL,
                ZERO,
                upload.shares[0],
                challenges,
                masks=upload.context.masks(ZERO, seed, bytes(32)),
                polynomial=upload.context.polynomial_mask(ZERO, seed, bytes(32)),
                point=SMALL.field.scalar(at),
            )


def test_both_servers_have_one_point_and_another_round_key_gives_another(plain: ModuleType) -> None:
    context = plain.a_context(SMALL)

    def points(**options: Any) -> list[list[int]]:
        return [plain.round_challenges(context, **options).point(context, bytes(32), b"").tolist() for _ in range(2)]

    one, other = points()
    assert one == other
    assert points(pair_key=b"\1" * 32)[0] != one


def test_the_key_of_a_round_follows_from_attempt_and_round(plain: ModuleType) -> None:
    joint, made = bytes(32), set[tuple[int, ...]]()
    statement = plain.a_context(SMALL).statement
    for changes in ({}, {"round_number": 4}, {"attempt": AttemptContext(bytes(32))}):
        challenges = plain.round_challenges(plain.a_context(SMALL, **changes))
        made.add(tuple(query_point(SMALL, challenges._key, statement, joint).tolist()))  # noqa: SLF001
    assert len(made) == 3


# --- Once -------------------------------------------------------------------------------------------------------------


def test_a_second_verifier_for_an_upload_is_refused(plain: ModuleType) -> None:
    upload = honest(plain, SMALL)
    challenges = plain.round_challenges(upload.context)
    plain.OneHotVerifier(upload.context, upload.shares[0], upload.proofs[0], challenges)
    with pytest.raises(Misuse, match="queried only once") as caught:
        plain.OneHotVerifier(upload.context, upload.shares[0], upload.proofs[0], challenges)
    assert caught.value.reason is Reason.ALREADY_SPENT


def test_the_same_upload_with_another_polynomial_is_a_second_upload(plain: ModuleType) -> None:
    upload = honest(plain, SMALL)
    challenges = plain.round_challenges(upload.context)
    plain.OneHotVerifier(upload.context, upload.shares[1], upload.proofs[1], challenges)
    changed = replace(upload.proofs[1], polynomial=SMALL.field.zeros(SMALL.proof_points))
    with pytest.raises(PeerMisbehaved, match="twice"):
        plain.OneHotVerifier(upload.context, upload.shares[1], changed, challenges)


def test_other_clients_and_other_segments_are_queried_in_the_same_round(plain: ModuleType) -> None:
    first = honest(plain, SMALL)
    challenges = plain.round_challenges(first.context)
    for changes in ({}, {"client": ClientId(8)}, {"segment": 1}, {"layout_digest": bytes(32)}):
        upload = honest(plain, SMALL, **changes)
        plain.OneHotVerifier(upload.context, upload.shares[0], upload.proofs[0], challenges)


@pytest.mark.parametrize("changes", [{"round_number": 4}, {"attempt": AttemptContext(bytes(32))}])
def test_a_round_does_not_answer_for_another(plain: ModuleType, changes: dict[str, Any]) -> None:
    upload = honest(plain, SMALL)
    challenges = plain.round_challenges(plain.a_context(SMALL, **changes))
    with pytest.raises(Misuse, match="another round"):
        plain.OneHotVerifier(upload.context, upload.shares[0], upload.proofs[0], challenges)


# --- Messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["proof for server 1", "opening"])
def test_a_lane_that_is_not_below_q_or_a_filling_bit_is_refused(plain: ModuleType, name: str) -> None:
    upload = honest(plain, SMALL)
    zero, one = plain.verifiers(upload)
    is_proof = name == "proof for server 1"
    message = upload.proofs[1].encode(SMALL) if is_proof else zero.open(one.commit())
    decode = OneHotProof.decode if is_proof else OneHotOpening.decode
    spare = -(7 if is_proof else 1) * 18 * 7 % 8
    assert spare
    for damaged in (message[:-3] + b"\xff\xff" + message[-1:], message[:-1] + bytes([message[-1] | 0x80])):
        with pytest.raises(MalformedMessage) as caught:
            decode(damaged, SMALL)
        assert caught.value.reason is Reason.NOT_CANONICAL


def test_proofs_are_made_from_secrets_parts_and_servers(plain: ModuleType) -> None:
    seed, nothing = plain.seeds_of(b"")[0], SMALL.field.zeros(0)
    wrong: list[tuple[Any, type[Exception]]] = [
        ({"seed": bytes(32)}, Misuse),
        ({"seed": Secret("short", bytes(16))}, InvalidParameters),
        ({"server": 0}, Misuse),
        ({"other_part": bytes(31)}, InvalidParameters),
        ({"other_part": bytearray(32)}, Misuse),
    ]
    for change, error in wrong:
        arguments: Any = {"server": ZERO, "seed": seed, "other_part": bytes(32), "polynomial": nothing} | change
        with pytest.raises(error):
            OneHotProof(**arguments)


@pytest.mark.parametrize("server", [0, 1])
def test_a_proof_of_another_shape_is_refused_before_anything_is_spent(plain: ModuleType, server: int) -> None:
    upload = honest(plain, SMALL)
    challenges = plain.round_challenges(upload.context)
    for values in (SMALL.field.zeros(6), SMALL.field.zeros(7)[:, :17], SMALL.field.zeros(7, 1)):
        wrong = replace(upload.proofs[server], polynomial=values)
        with pytest.raises(Misuse, match="coefficients"):
            plain.OneHotVerifier(upload.context, upload.shares[server], wrong, challenges)
        with pytest.raises(Misuse, match="coefficients"):
            wrong.encode(SMALL)
    plain.OneHotVerifier(upload.context, upload.shares[server], upload.proofs[server], challenges)


# --- Shares -----------------------------------------------------------------------------------------------------------


def test_a_share_of_another_form_is_refused(plain: ModuleType) -> None:
    upload = honest(plain, SMALL)
    lanes = upload.shares[0].matrix
    too_large = lanes.copy()
    too_large[10, 4] = 127
    wrong: list[tuple[Any, type[Exception]]] = [
        (lanes[:10], Misuse),
        (lanes[:, :4], Misuse),
        (lanes.reshape(-1), Misuse),
        (lanes.astype(np.int64), Misuse),
        (too_large, CapacityExceeded),
    ]
    for matrix, error in wrong:
        changed = plain.Upload(upload.context, (plain.MatrixShare(matrix), upload.shares[1]), upload.proofs)
        with pytest.raises(error):
            one_verifier(plain, changed, ZERO)
