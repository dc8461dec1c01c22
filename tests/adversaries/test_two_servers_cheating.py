"""Clients that vote otherwise than once in every block, through the whole protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from secagg.contract.layout import IndexSegment, Layout, RingSegment
from secagg.crypto.secret import Secret
from secagg.errors import PeerMisbehaved, Reason, ThresholdNotMet
from secagg.identifiers import ClientId, ServerId
from secagg.protocols.two_servers import upload as upload_module
from secagg.protocols.two_servers.point_functions.generation import ServerShare, generate_shares
from secagg.protocols.two_servers.point_functions.lanes import LaneField
from secagg.protocols.two_servers.point_functions.one_hot_proof import OneHotProof, prove
from secagg.protocols.two_servers.point_functions.shares import ExplicitShare, TreeShare
from tests.harness.indexing_rounds import IndexingSetup, InsecureIndexingRound

Check = Callable[..., Any]
Shares = tuple[ServerShare, ServerShare]
Forge = Callable[[Any, Shares], Shares]
BLOCKS = 5
ONE_SEGMENT = Layout((RingSegment(20, 6), IndexSegment(8, BLOCKS)))
SETUP = IndexingSetup(layout=ONE_SEGMENT)
halves: Any = upload_module


def with_lanes(shares: Shares, added: dict[tuple[int, int], int]) -> Shares:
    """Add to lanes (block, lane) of what is sent, without or with a tree."""
    zero, one = shares
    shape = zero.shape
    order = shape.group.order
    if isinstance(one, ExplicitShare):
        lanes = shape.group.unpack(memoryview(one.encode()), one.blocks * shape.sent_lanes)
        rows = lanes.reshape(shape.sent_lanes, one.blocks)
        for (block, lane), value in added.items():
            rows[lane, block] = (int(rows[lane, block]) + value) % order
        return zero, ExplicitShare(shape, one.blocks, one.binding, lanes)
    assert isinstance(zero, TreeShare)
    assert isinstance(one, TreeShare)
    leaf = zero.correction.leaf.copy()
    for (block, lane), value in added.items():
        place = lane // shape.lanes_per_piece, block, lane % shape.lanes_per_piece
        leaf[place] = (int(leaf[place]) + value) % order
    correction = replace(zero.correction, leaf=leaf).freeze()
    return (TreeShare(0, zero.binding, zero.seed, correction), TreeShare(1, one.binding, one.seed, correction))


Added = dict[tuple[int, int], int]
FORGERIES: dict[str, Callable[[int], Added]] = {
    "two votes": lambda _: {(0, 0): 1, (0, 1): 1},
    "only in the last block": lambda _: {(BLOCKS - 1, 0): 2},
    "negative votes": lambda order: {(1, 0): order - 2},
    "halves of votes": lambda order: {(2, 0): (order + 1) // 2, (2, 1): (order + 1) // 2 - 1},
    "made up for": lambda order: {(0, 0): 1, (1, 0): order - 1, (0, 1): 1, (1, 1): order - 1},
    "many that wrap": lambda order: {(3, 0): 60, (3, 1): order - 60},
}
"""What to add to which lanes, given the order of their group."""


def forged_by(name: str) -> Forge:
    return lambda shape, shares: with_lanes(shares, FORGERIES[name](shape.group.order))


VALUES = {"nothing": 0, "two": 2, "minus one": 126, "half": 64}


def worth(value: int) -> Callable[..., Shares]:
    """Return what shares trees of vectors that are this value where they should be 1."""
    correction: Any = LaneField.correction

    def corrected(group: Any, target: Any, *rest: Any) -> Any:
        return correction(group, target * value, *rest)

    def generate_otherwise(*args: Any, **named: Any) -> Shares:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LaneField, "correction", corrected)
            return generate_shares(*args, **named)

    return generate_otherwise


def forging(forge: Forge) -> Callable[..., Shares]:
    def share_and_forge(shape: Any, *args: Any, **named: Any) -> Shares:
        return forge(shape, generate_shares(shape, *args, **named))

    return share_and_forge


def upload_forged(made: InsecureIndexingRound, number: int, forge: Forge, **named: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(halves, "generate_shares", forging(forge))
        forged = made.share(number, **named)
    made.deliver(forged)


def is_rejected_by_both(made: InsecureIndexingRound, *numbers: int) -> None:
    for server in made.servers:
        assert set(server.rejected) == {ClientId(number) for number in numbers}
        assert server.waiting() == ()


# --- Votes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("forgery", FORGERIES)
def test_whoever_does_not_vote_once_in_every_block_is_rejected_by_both_servers(
    forgery: str, depth: int, sum_is_exact: Check
) -> None:
    made = InsecureIndexingRound(replace(SETUP, depth=depth))
    made.upload(1)
    upload_forged(made, 2, forged_by(forgery))
    made.upload(3)
    made.check()
    is_rejected_by_both(made, 2)
    sum_is_exact(made, 1, 3)


@pytest.mark.parametrize("value", VALUES)
def test_a_tree_with_another_value_at_its_leaf_is_rejected(value: str, sum_is_exact: Check) -> None:
    made = InsecureIndexingRound(replace(SETUP, depth=1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(halves, "generate_shares", worth(VALUES[value]))
        made.upload(1)
    made.upload(2)
    made.upload(3)
    made.check()
    is_rejected_by_both(made, 1)
    sum_is_exact(made, 2, 3)


def test_the_second_of_two_segments_is_checked_as_well(sum_is_exact: Check) -> None:
    made = InsecureIndexingRound(IndexingSetup())

    def in_the_tree(_: Any, shares: Shares) -> Shares:
        return with_lanes(shares, {(0, 0): 2}) if shares[0].shape.depth else shares

    upload_forged(made, 1, in_the_tree)
    made.upload(2, 3)
    made.check()
    is_rejected_by_both(made, 1)
    sum_is_exact(made, 2, 3)


def test_three_votes_for_one_are_rejected(sum_is_exact: Check) -> None:
    made = InsecureIndexingRound(replace(SETUP, depth=1))
    made.upload(1, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(halves, "generate_shares", worth(3))
        made.upload(3)
    made.check()
    is_rejected_by_both(made, 3)
    sum_is_exact(made, 1, 2)


def test_a_rejected_client_has_no_second_vote(both_refuse: Check, sum_is_exact: Check) -> None:
    made = InsecureIndexingRound(SETUP)
    upload_forged(made, 1, forged_by("two votes"))
    made.upload(2, 3)
    made.check()
    made.clients[0] = made.new_client(1)
    both_refuse(made, made.share(1), PeerMisbehaved, Reason.ALREADY_ANSWERED)
    sum_is_exact(made, 2, 3)


# --- Proofs -----------------------------------------------------------------------------------------------------------


def upload_with_proofs(
    made: InsecureIndexingRound, number: int, change: Callable[[Any, Any], tuple[OneHotProof, OneHotProof]]
) -> None:
    """Let a client send other proofs; ``change`` gets the arguments of ``prove`` and the honest proofs."""

    def proving(*args: Any) -> tuple[OneHotProof, OneHotProof]:
        return change(args, prove(*args))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(halves, "prove", proving)
        made.deliver(made.share(number))


def again(args: Any, changes: dict[str, Any]) -> tuple[OneHotProof, OneHotProof]:
    context, *others = args
    proofs = prove(replace(context, **changes), *others)
    return proofs[0], proofs[1]


def other_polynomial(_: Any, proofs: Any) -> tuple[OneHotProof, OneHotProof]:
    return proofs[0], replace(proofs[1], polynomial=(proofs[1].polynomial + 1) % 127)


def other_seed(_: Any, proofs: Any) -> tuple[OneHotProof, OneHotProof]:
    return replace(proofs[0], seed=Secret("one-hot seed", bytes(32))), proofs[1]


def other_part(_: Any, proofs: Any) -> tuple[OneHotProof, OneHotProof]:
    return proofs[0], replace(proofs[1], other_part=bytes(32))


PROOFS: dict[str, Callable[[Any, Any], tuple[OneHotProof, OneHotProof]]] = {
    "polynomial": other_polynomial,
    "seed": other_seed,
    "part": other_part,
    "client": lambda args, _: again(args, {"client": ClientId(9)}),
    "round": lambda args, _: again(args, {"round_number": 8}),
    "nonce": lambda args, _: again(args, {"nonce": bytes(16)}),
    "segment": lambda args, _: again(args, {"segment": 0}),
    "layout": lambda args, _: again(args, {"layout_digest": bytes(32)}),
    "correction": lambda args, _: again(args, {"correction_digest": bytes(32)[:-1] + b"\1"}),
}


@pytest.mark.parametrize("what", PROOFS)
def test_a_proof_of_anything_else_is_rejected_by_both_servers(what: str, sum_is_exact: Check) -> None:
    made = InsecureIndexingRound(SETUP)
    upload_with_proofs(made, 1, PROOFS[what])
    made.upload(2, 3)
    made.check()
    is_rejected_by_both(made, 1)
    sum_is_exact(made, 2, 3)


# --- Many cheats ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cheats", [2, 3])
def test_too_many_cheats_end_the_round_at_both_servers(cheats: int, raises_exactly: Check, sum_is_exact: Check) -> None:
    made = InsecureIndexingRound(replace(SETUP, maximum_rejections=2))
    for number in range(1, 6):
        if number <= cheats:
            upload_forged(made, number, forged_by("two votes"))
        else:
            made.upload(number)
    made.check()
    if cheats == 2:
        sum_is_exact(made, 3, 4, 5)
        return
    suspects = ServerId(0), ServerId(1), *map(ClientId, (1, 2, 3))
    for server in made.servers:
        raises_exactly(server.close, PeerMisbehaved, Reason.ONE_HOT_REFUTED, *suspects)
        assert "failed" in repr(server)


def test_cheats_do_not_lead_below_the_minimum_cohort(raises_exactly: Check, sum_is_exact: Check) -> None:
    made = InsecureIndexingRound(replace(SETUP, minimum_cohort=3))
    for number in (1, 2):
        upload_forged(made, number, forged_by("two votes"))
    made.upload(3, 4)
    made.check()
    for server in made.servers:
        raises_exactly(server.close, ThresholdNotMet, Reason.THRESHOLD_NOT_MET, unchanged=[server])
    made.upload(5)
    made.check()
    sum_is_exact(made, 3, 4, 5)
