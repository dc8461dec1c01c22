"""The bytes that a client uploads: one encoding, and lengths are checked before anything is allocated."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from secagg.contract.layout import IndexSegment, Layout
from secagg.errors import InvalidParameters, MalformedMessage, Misuse, Reason
from secagg.protocols.two_servers.point_functions import shares
from secagg.protocols.two_servers.point_functions.generation import ServerShare
from secagg.protocols.two_servers.point_functions.lanes import LaneField, LaneGroup, RingLanes
from secagg.protocols.two_servers.point_functions.shape import PointFunctionShape
from secagg.protocols.two_servers.point_functions.shares import CorrectionWords, ExplicitShare, TreeShare
from tests.harness.indexing_rounds import IndexingSetup, InsecureIndexingRound

Share = Callable[..., tuple[ServerShare, ServerShare]]

SHAPES = [
    PointFunctionShape(codewords=codewords, group=group, depth=depth)
    for codewords, depth in ((8, 3), (11, 2), (40, 1))
    for group in (RingLanes(7), RingLanes(8), RingLanes(17), RingLanes(64), LaneField(127), LaneField(131071))
]
BLOCKS = 13


def tree(share: Share, shape: PointFunctionShape, blocks: int = BLOCKS) -> TreeShare:
    mine = share(shape, np.arange(blocks) % shape.codewords)[0]
    assert isinstance(mine, TreeShare)
    return mine


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_correction_words_survive_their_encoding(shape: PointFunctionShape, share: Share) -> None:
    mine = tree(share, shape)
    encoded = mine.correction.encode()
    decoded = CorrectionWords.decode(encoded, shape, BLOCKS)
    assert decoded.encode() == encoded
    assert decoded.digest == mine.correction.digest
    for part in ("left", "difference", "leaf"):
        assert (getattr(decoded, part) == getattr(mine.correction, part)).all()
    again = TreeShare(0, mine.binding, mine.seed, decoded)
    assert (again.lanes(0, BLOCKS) == mine.lanes(0, BLOCKS)).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("change", "reason"), [(-1, Reason.TRUNCATED), (1, Reason.TRAILING_BYTES)])
def test_another_length_is_refused_before_anything_is_allocated(
    shape: PointFunctionShape, change: int, reason: Reason, share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = tree(share, shape).correction.encode()
    wrong = encoded[:-1] if change < 0 else encoded + b"\0"

    class NoArrays:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

    monkeypatch.setattr(shares, "np", NoArrays())
    with pytest.raises(MalformedMessage) as caught:
        CorrectionWords.decode(wrong, shape, BLOCKS)
    assert caught.value.reason is reason
    with pytest.raises(MalformedMessage):
        CorrectionWords.decode(b"", shape, 1 << 26)


@pytest.mark.parametrize(
    ("shape", "position"),
    [
        # 3 levels of 13 blocks are 78 bits of difference and 2 to fill the byte; 13 lanes of 7 bits are 91 and 5.
        (PointFunctionShape(codewords=8, group=RingLanes(7), depth=3), 3 * 13 * 16 + 9),
        (PointFunctionShape(codewords=8, group=RingLanes(7), depth=3), -1),
        (PointFunctionShape(codewords=8, group=LaneField(127), depth=3), -1),
    ],
    ids=str,
)
def test_a_bit_that_fills_a_byte_is_zero(shape: PointFunctionShape, position: int, share: Share) -> None:
    encoded = bytearray(tree(share, shape).correction.encode())
    encoded[position] ^= 0x80
    with pytest.raises(MalformedMessage) as caught:
        CorrectionWords.decode(encoded, shape, BLOCKS)
    assert caught.value.reason is Reason.NOT_CANONICAL


@pytest.mark.parametrize("modulus", [127, 8191, 131071])
def test_a_lane_of_the_field_has_one_encoding(modulus: int, share: Share) -> None:
    shape = PointFunctionShape(codewords=8, group=LaneField(modulus), depth=1)
    encoded = bytearray(tree(share, shape, 8).correction.encode())
    # 32 lanes fill their bytes; all of them are q here.
    encoded[-4 * shape.group.bits :] = b"\xff" * (4 * shape.group.bits)
    with pytest.raises(MalformedMessage) as caught:
        CorrectionWords.decode(encoded, shape, 8)
    assert caught.value.reason is Reason.NOT_CANONICAL


def test_the_encoding_is_where_the_specification_puts_it(share: Share) -> None:
    shape = PointFunctionShape(codewords=4, group=RingLanes(4), depth=1)
    correction = tree(share, shape, 3).correction
    words = b"".join(int(word).to_bytes(8, "little") for word in correction.left[0].reshape(-1))
    bits = sum(int(bit) << place for place, bit in enumerate(correction.difference.reshape(-1)))
    lanes = [int(lane) for block in correction.leaf[0] for lane in block[:2]]
    packed = sum(lane << (4 * place) for place, lane in enumerate(lanes))
    assert correction.encode() == words + bits.to_bytes(1, "little") + packed.to_bytes(3, "little")


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.codewords != 11], ids=str)
def test_any_altered_bit_changes_some_servers_lanes_and_the_digest(shape: PointFunctionShape, share: Share) -> None:
    """What a relay can do that nobody checks: the sum is wrong, in a way that may depend on alpha.

    The digest is what the other server compares before it evaluates.
    """
    mine = tree(share, shape)
    other = share(shape, np.arange(BLOCKS) % shape.codewords)[1]
    assert isinstance(other, TreeShare)
    encoded = mine.correction.encode()
    honest = [one.lanes(0, BLOCKS) for one in (mine, other)]
    for position in range(0, len(encoded) - 1, max(1, len(encoded) // 40)):
        altered = bytearray(encoded)
        altered[position] ^= 1
        try:
            correction = CorrectionWords.decode(altered, shape, BLOCKS)
        except MalformedMessage:
            # The altered lane became q; no other change of one bit can be refused.
            assert isinstance(shape.group, LaneField)
            continue
        assert correction.digest != mine.correction.digest
        changed = [
            (TreeShare(one.server_index, one.binding, one.seed, correction).lanes(0, BLOCKS) != before).any()
            for one, before in zip((mine, other), honest, strict=True)
        ]
        assert any(changed)


@pytest.mark.parametrize("group", [RingLanes(7), RingLanes(16), LaneField(127)], ids=str)
def test_explicit_shares_survive_their_encoding_and_have_one(group: LaneGroup, share: Share) -> None:
    shape = PointFunctionShape(codewords=5, group=group, depth=0)
    mine = share(shape, np.arange(BLOCKS) % 5)[1]
    assert isinstance(mine, ExplicitShare)
    encoded = mine.encode()
    assert len(encoded) == ExplicitShare.encoded_bytes(shape, BLOCKS)
    decoded = ExplicitShare.decode(encoded, shape, BLOCKS, mine.binding)
    assert decoded.digest == mine.digest
    assert (decoded.lanes(0, BLOCKS) == mine.lanes(0, BLOCKS)).all()
    for wrong, reason in ((encoded[:-1], Reason.TRUNCATED), (encoded + b"\0", Reason.TRAILING_BYTES)):
        with pytest.raises(MalformedMessage) as caught:
            ExplicitShare.decode(wrong, shape, BLOCKS, mine.binding)
        assert caught.value.reason is reason
    with pytest.raises(MalformedMessage):
        ExplicitShare.decode(b"", shape, 1 << 26, mine.binding)
    ones = bytearray(b"\xff" * len(encoded))
    if group.order % 2 or BLOCKS * shape.sent_lanes * group.bits % 8:
        with pytest.raises(MalformedMessage):
            ExplicitShare.decode(ones, shape, BLOCKS, mine.binding)


def test_correction_words_belong_to_trees() -> None:
    explicit = PointFunctionShape(codewords=8, group=RingLanes(7), depth=0)
    with pytest.raises(InvalidParameters, match="depth 0"):
        CorrectionWords.decode(b"", explicit, 1)
    with pytest.raises(Misuse):
        CorrectionWords.zeros(8, 1)  # type: ignore[arg-type]
    shape = PointFunctionShape(codewords=8, group=RingLanes(7), depth=1)
    words = CorrectionWords.zeros(shape, 2)
    with pytest.raises(Misuse):
        CorrectionWords(shape, words.left[:, :1], words.difference, words.leaf)
    with pytest.raises(Misuse):
        CorrectionWords(shape, words.left, words.difference, words.leaf[:, :, :1])
    for blocks in (0, -1, (1 << 26) + 1, 1.0):
        with pytest.raises(InvalidParameters):
            CorrectionWords.decode(b"", shape, blocks)  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="contiguous"):
        CorrectionWords.decode(memoryview(bytes(80))[::2], shape, 1)


def test_correction_words_are_hashed_once_by_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are most of an upload: hashed for the header, the proof and each share anew, they took a third of it."""
    hashed = list[int]()
    genuine = shares._digest  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    def counted(shape: PointFunctionShape, encoded: bytes) -> bytes:
        hashed.append(len(encoded))
        return genuine(shape, encoded)

    monkeypatch.setattr(shares, "_digest", counted)
    made = InsecureIndexingRound(IndexingSetup(layout=Layout((IndexSegment(200, 4),))))
    zero, one = made.share(1)
    assert len(hashed) == 1
    made.one.receive(one.encode())
    assert len(hashed) == 2
    made.zero.receive(zero.encode())
    made.check()
    assert len(hashed) == 3
    assert made.zero.waiting() == made.one.waiting() == ()
