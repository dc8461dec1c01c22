"""Ring segments between the two servers: a mask that server 0 expands, and the difference, which server 1 is sent.

Nothing is checked of them: a client can put any ring element anywhere, and moves the sum as far as it likes.
"""

from __future__ import annotations

from collections.abc import Sequence

from secagg.contract import Payload
from secagg.contract.layout import RingSegment
from secagg.crypto.mask_expansion import accumulate, segment_count
from secagg.crypto.ring import RingVector
from secagg.crypto.secret import Secret
from secagg.protocols.two_servers.configuration import IndexingConfiguration
from secagg.protocols.two_servers.exchange import cut


def ring_bytes(configuration: IndexingConfiguration) -> int:
    """Return how many bytes server 1 is sent."""
    return sum(segment.payload_bytes for segment in configuration.ring_segments)


def masked_rings(
    configuration: IndexingConfiguration, payload: Payload, key: Secret, *, threads: int = 1
) -> Sequence[bytes | memoryview]:
    """Return what server 1 is sent, packed: each value less what server 0 expands the key into.

    Security: a key is used for one upload, once.
    """
    packed, first_segment = list[bytes | memoryview](), 0
    for segment, values in zip(configuration.layout.segments, payload.values, strict=True):
        if not isinstance(segment, RingSegment):
            continue
        vector = segment.ring.zeros(segment.length)
        vector[:] = values
        accumulate(vector, segment.ring, add=[], subtract=[key], first_segment=first_segment, threads=threads)
        first_segment += segment_count(segment.ring, segment.length)
        packed.append(segment.ring.pack_view(vector))
    return packed


def unpack_rings(configuration: IndexingConfiguration, packed: bytes | bytearray | memoryview) -> list[RingVector]:
    """Read back what server 1 was sent.

    Raises:
        MalformedMessage: wrong length, or a bit that fills a last byte is set.
    """
    segments = configuration.ring_segments
    pieces = cut(packed, [segment.payload_bytes for segment in segments])
    return [segment.ring.unpack(piece, segment.length) for segment, piece in zip(segments, pieces, strict=True)]
