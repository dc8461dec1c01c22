"""Ring segments in two halves: each alone is noise."""

from __future__ import annotations

import numpy as np

from secagg.contract import Layout, Payload, RingSegment
from secagg.crypto.ring import RingVector
from secagg.crypto.secret import Secret
from secagg.protocols.two_servers.opened_upload import unpack_rings
from secagg.protocols.two_servers.upload import masked_rings
from tests.harness.indexing_rounds import indexing_configuration

LAYOUT = Layout((RingSegment(16, 4000), RingSegment(16, 4000)))


def halves_of_zeros(key: int) -> list[RingVector]:
    made, zeros = indexing_configuration(layout=LAYOUT), (np.zeros(4000, np.uint16), np.zeros(4000, np.uint16))
    secret = Secret("ring mask key", bytes([key] * 16))
    return unpack_rings(made, b"".join(masked_rings(made, Payload(LAYOUT, zeros), secret)))


def test_what_one_server_is_sent_is_as_good_as_noise() -> None:
    """Of zeros, the half is the mask: every bit is set about as often as not, and no two segments share a stream."""
    halves = halves_of_zeros(7)
    for half in halves:
        ones = np.unpackbits(half.view(np.uint8)).mean()
        assert abs(ones - 0.5) < 0.01
    assert (halves[0] == halves[1]).mean() < 0.01
    assert (halves[0] == halves_of_zeros(8)[0]).mean() < 0.01
