"""What point functions cost, and which shapes there are."""

from typing import Any

import pytest

from secagg.errors import InvalidParameters
from secagg.protocols.two_servers.point_functions.lanes import LaneField, RingLanes
from secagg.protocols.two_servers.point_functions.shape import PointFunctionShape, greatest_depth, tree_bits
from secagg.protocols.two_servers.point_functions.shares import CorrectionWords, ExplicitShare

# Codewords, bits of a lane, (a) the explicit share without its last lane, (b) the tree, and its depth.
TABLE = [
    (8, 7, 49, 56, 0),
    (16, 7, 105, 112, 0),
    (32, 7, 217, 224, 0),
    (64, 7, 441, 354, 1),
    (128, 7, 889, 484, 2),
    (256, 7, 1785, 614, 3),
    (1024, 7, 7161, 874, 5),
    (4096, 7, 28665, 1134, 7),
    (8, 17, 119, 136, 0),
    (16, 17, 255, 266, 1),
    (32, 17, 527, 396, 2),
    (64, 17, 1071, 526, 3),
    (128, 17, 2159, 656, 4),
    (256, 17, 4335, 786, 5),
    (1024, 17, 17391, 1046, 7),
    (4096, 17, 69615, 1306, 9),
]


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_the_cost_model_is_the_published_table(row: tuple[int, ...]) -> None:
    codewords, bits, explicit, tree, depth = row
    group = RingLanes(bits)
    without_last = PointFunctionShape(codewords=codewords, group=group, depth=0)
    assert without_last.upload_bits == explicit
    depths = range(greatest_depth(codewords) + 1)
    assert min((tree_bits(codewords, bits, each), each) for each in depths) == (tree, depth)
    assert PointFunctionShape.cheapest(codewords, group).upload_bits == min(explicit, tree)


@pytest.mark.parametrize("codewords", [2, 3, 5, 31, 33, 100, 4095])
@pytest.mark.parametrize("group", [RingLanes(1), RingLanes(9), RingLanes(64), LaneField(8191)], ids=str)
def test_no_depth_is_cheaper_than_the_default(codewords: int, group: Any) -> None:
    depths = range(greatest_depth(codewords) + 1)
    shapes = [PointFunctionShape(codewords=codewords, group=group, depth=depth) for depth in depths]
    cheapest = PointFunctionShape.cheapest(codewords, group)
    assert cheapest.upload_bits == min(shape.upload_bits for shape in shapes)


@pytest.mark.parametrize("codewords", [5, 32, 100])
@pytest.mark.parametrize("group", [RingLanes(7), LaneField(131071)], ids=str)
def test_the_bytes_on_the_wire_are_the_bits_of_the_model(codewords: int, group: Any) -> None:
    blocks = 1000
    for depth in range(greatest_depth(codewords) + 1):
        shape = PointFunctionShape(codewords=codewords, group=group, depth=depth)
        encoded = CorrectionWords.encoded_bytes(shape, blocks) if depth else ExplicitShare.encoded_bytes(shape, blocks)
        assert 0 <= encoded - shape.upload_bits * blocks / 8 < 2


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"codewords": 1}, InvalidParameters),
        ({"codewords": 4097}, InvalidParameters),
        ({"depth": 4}, InvalidParameters),
        ({"depth": -1}, InvalidParameters),
    ],
    ids=str,
)
def test_a_shape_that_is_none_is_refused(wrong: dict[str, Any], error: type[Exception]) -> None:
    right: dict[str, Any] = {"codewords": 8, "group": RingLanes(7), "depth": 0}
    with pytest.raises(error):
        PointFunctionShape(**(right | wrong))
