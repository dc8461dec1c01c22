"""A masked vector in pieces: what is added and unmasked piece by piece is what is added and unmasked whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.cli import main
from secagg.contract import Layout, RingSegment, ring_cut
from secagg.contract.pieces import LocalSum, pieces_of
from secagg.crypto.mask_expansion import SEGMENT_BYTES
from secagg.crypto.secret import Secret, overwrite
from secagg.errors import MalformedMessage, Misuse, ThresholdNotMet
from secagg.protocols.pairwise_mask.configuration import SessionConfiguration
from secagg.protocols.pairwise_mask.cut import PairwiseCut, keys_of
from secagg.protocols.pairwise_mask.masking import MaskedVector, SignedKey
from tests.protocols.pairwise_mask.test_masking import configuration_of

LAYOUTS = st.lists(
    st.one_of(
        st.builds(RingSegment, st.integers(1, 64), st.integers(1, 3000)),
        st.builds(RingSegment, st.integers(2, 40), st.integers(1, 3000), st.just(8)),
    ),
    min_size=1,
    max_size=4,
).map(lambda segments: Layout(tuple(segments)))


def key(number: int, *, is_added: bool) -> tuple[bool, Secret]:
    return is_added, Secret("mask_key", number.to_bytes(16, "big"))


def filled(configuration: SessionConfiguration, seed: int) -> MaskedVector:
    """Return words that an upload could have: rounded where they are sent rounded."""
    generator, vector = np.random.default_rng(seed), MaskedVector(configuration)
    for segment, words in zip(configuration.segments, vector.vectors, strict=True):
        drawn = generator.integers(0, 1 << 63, words.size, np.uint64) << np.uint64(1)
        words[:] = (drawn & np.uint64((1 << segment.ring.modulus_bits) - 1)).astype(words.dtype)
        if segment.fine_bits:
            words[: segment.length] = segment.rounded(words[: segment.length])
    return vector


@settings(max_examples=15, deadline=None)
@given(layout=LAYOUTS, data=st.data())
def test_pieces_are_added_and_unmasked_as_the_whole_is(layout: Layout, data: st.DataObject) -> None:
    """A stream's segment of some hundred bytes makes many pieces of small vectors."""
    configuration = configuration_of(layout)
    with pytest.MonkeyPatch.context() as patched:
        # Pieces at any multiple of eight coordinates; streams are made from there all the same.
        patched.setattr(ring_cut, "SEGMENT_BYTES", 8 * 8 * data.draw(st.integers(1, 40)))
        cut = PairwiseCut.of(bytes(32), configuration)
        assert sum(cut.lengths) == configuration.masked_bytes
        whole, local = MaskedVector(configuration), LocalSum(cut)
        for seed in range(3):
            packed = b"".join(filled(configuration, seed).pack())
            whole.add_packed(packed)
            local.add(None, (), packed)  # type: ignore[arg-type]
        signs = data.draw(st.lists(st.booleans(), min_size=1, max_size=5))
        whole.apply(
            [key(number, is_added=True)[1] for number, sign in enumerate(signs) if sign],
            [key(number, is_added=False)[1] for number, sign in enumerate(signs) if not sign],
        )
        opened = cut.joined(local.open(bytes(keys_of(key(number, is_added=sign) for number, sign in enumerate(signs)))))
    for one, other in zip(whole.vectors, opened.vectors, strict=True):
        assert np.array_equal(one, other)


def test_pieces_meet_where_streams_have_segments() -> None:
    cut = PairwiseCut.of(bytes(32), configuration_of(Layout((RingSegment(20, 600_000), RingSegment(9, 3)))))
    step = SEGMENT_BYTES // 4
    assert [part.start for piece in cut.parts for part in piece if part.vector == 0] == [0, step, 2 * step]
    assert len(cut.parts) == 3  # what is small stands behind


def shortened(piece: bytes) -> bytes:
    return piece[:-1]


def lengthened(piece: bytes) -> bytes:
    return piece + b"\0"


def all_ones(piece: bytes) -> bytes:
    return b"\xff" * len(piece)


@pytest.mark.parametrize("change", [shortened, lengthened, all_ones])
def test_a_piece_that_does_not_decode_adds_nothing(change: Callable[[bytes], bytes]) -> None:
    configuration = configuration_of(Layout((RingSegment(5, 4),)))
    cut, total = PairwiseCut.of(bytes(32), configuration), PairwiseCut.of(bytes(32), configuration).zeros(0)
    (piece,) = pieces_of(b"".join(filled(configuration, 1).pack()), cut.lengths)
    wrong = change(piece)
    with pytest.raises(MalformedMessage):
        cut.add(total, 0, wrong)
    assert not any(vector.any() for vector in total)


def test_keys_are_wiped_once_they_are_written_and_read_as_written() -> None:
    keys = [key(1, is_added=True), key(2, is_added=False)]
    written = keys_of(keys)
    assert written == b"\1" + (1).to_bytes(16, "big") + b"\0" + (2).to_bytes(16, "big")
    with pytest.raises(Misuse):
        keys[0][1].expose()
    cut = PairwiseCut.of(bytes(32), configuration_of(Layout((RingSegment(5, 3),))))
    with pytest.raises(Misuse, match="behind its sign"):
        cut.open(cut.zeros(0), 0, bytes(written[:-1]))


def test_keys_are_overwritten_if_one_cannot_be_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take off masks of clients that uploaded, and nothing is released without the rest."""
    seen = list[bytes]()

    def watching(buffer: bytearray) -> None:
        seen.append(bytes(buffer))
        overwrite(buffer)
        seen.append(bytes(buffer))

    def recovered() -> Iterator[SignedKey]:
        yield key(1, is_added=True)
        raise ThresholdNotMet(needed=2, present=1, what="shares")

    monkeypatch.setattr("secagg.protocols.pairwise_mask.cut.overwrite", watching)
    with pytest.raises(ThresholdNotMet):
        keys_of(recovered())
    assert seen == [b"\1" + (1).to_bytes(16, "big"), bytes(17)]


def test_a_session_whose_masks_others_take_off_is_exact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--clients", "30", "--dimension", "700", "--engine", "memory", "--storage", str(tmp_path)]
    assert main(["round", "--protocol", "pairwise", *options]) == 0
    assert "the sum is exactly the plain sum of their inputs" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
