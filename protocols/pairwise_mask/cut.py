"""The masked vector of a session in pieces: a piece is added, and its masks taken off, from any coordinate on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from secagg.contract.pieces import Sums
from secagg.contract.ring_cut import RingCut
from secagg.crypto.mask_expansion import accumulate
from secagg.crypto.secret import Secret, overwrite
from secagg.errors import Misuse

from .configuration import SessionConfiguration
from .masking import MaskedVector, SignedKey


@dataclass(frozen=True)
class PairwiseCut(RingCut):
    """A ``Cut``: public values alone, until it is given the keys of the masks that are left."""

    configuration: SessionConfiguration

    @classmethod
    def of(cls, context: bytes, configuration: SessionConfiguration) -> PairwiseCut:
        """Cut the vectors of a session."""
        segments = configuration.segments
        return cls(context, tuple((one, configuration.check_words_of(one)) for one in segments), configuration)

    def open(self, total: Sums, number: int, key: bytes) -> Sums:
        """Take the masks of some keys off a piece.

        Args:
            key: the keys, as ``keys_of`` writes them.
        """
        signed = _keys_in(key, self.configuration.suite.mask_key_bytes)
        try:
            for part, vector in zip(self.parts[number], super().open(total, number, b""), strict=True):
                accumulate(
                    vector,
                    self.segment_of(part).ring,
                    add=[secret for is_added, secret in signed if is_added],
                    subtract=[secret for is_added, secret in signed if not is_added],
                    start=part.start,
                    first_segment=part.first,
                )
        finally:
            for _, secret in signed:
                secret.wipe()
        return total

    def joined(self, pieces: Sequence[Sums]) -> MaskedVector:
        """Put all pieces together, for the checks of a whole sum."""
        return MaskedVector(self.configuration, self.whole(pieces))


def keys_of(keys: Iterable[SignedKey]) -> bytearray:
    """Return keys as bytes: for each whether its mask is added, and itself; the caller overwrites them.

    Security: whoever has them can unmask the sum of the uploads, as the server can that recovered them.
    """
    written = bytearray()
    try:
        for is_added, key in keys:
            written.append(is_added)
            written += key.expose()
            key.wipe()
    except BaseException:
        overwrite(written)
        raise
    return written


def _keys_in(written: bytes, size: int) -> list[SignedKey]:
    if len(written) % (size + 1):
        raise Misuse(f"a key has {size} bytes behind its sign")
    starts = range(0, len(written), size + 1)
    return [(bool(written[at]), Secret("mask_key", written[at + 1 : at + 1 + size])) for at in starts]
