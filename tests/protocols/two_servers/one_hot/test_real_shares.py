"""The check on the shares that clients really send: seeds and explicit lanes, and trees."""

from __future__ import annotations

import hashlib
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from secagg.errors import PeerMisbehaved
from secagg.protocols.two_servers.point_functions.generation import generate_shares
from secagg.protocols.two_servers.point_functions.lanes import LaneField
from secagg.protocols.two_servers.point_functions.one_hot_proof import CheckShape, prove
from secagg.protocols.two_servers.point_functions.shape import PointFunctionShape
from secagg.simulation.insecure_coins import InsecureSeededCoins

SHARES = pytest.mark.parametrize(
    ("modulus", "depth", "blocks"),
    [
        (127, 0, 50),
        (127, 1, 50),
        (127, 3, 50),
        (8191, 0, 20_000),
        (8191, 2, 17_000),
        (131071, 2, 33),
    ],
)


def upload_of(plain: ModuleType, modulus: int, depth: int, blocks: int) -> Any:
    shape = CheckShape(modulus, 12, blocks, 7)
    points = PointFunctionShape(codewords=12, group=LaneField(modulus), depth=depth)
    coins, context = InsecureSeededCoins(b"real shares"), plain.a_context(shape)
    assignments = plain.unit_matrix(shape).argmax(axis=1)
    shares = generate_shares(points, assignments, context=context.attempt.digest, client=context.client, coins=coins)
    corrections = getattr(shares[0], "correction", None)
    correction_digest = hashlib.sha256(b"").digest() if corrections is None else corrections.digest
    bound = plain.a_context(shape, nonce=shares[0].binding.nonce, correction_digest=correction_digest)
    proofs = prove(bound, assignments, (shares[0].digest, shares[1].digest), coins)
    return plain.Upload(bound, shares, proofs)


@SHARES
def test_a_share_that_fits_another_client_is_rejected(plain: ModuleType, modulus: int, depth: int, blocks: int) -> None:
    upload = upload_of(plain, modulus, depth, blocks)
    shifted = plain.MatrixShare(np.roll(upload.shares[1].lanes(0, blocks), 1, axis=0))
    shifted.digest = upload.shares[1].digest
    with pytest.raises(PeerMisbehaved):
        plain.judge(*plain.verifiers(plain.Upload(upload.context, (upload.shares[0], shifted), upload.proofs)))
