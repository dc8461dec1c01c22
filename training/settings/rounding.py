"""What codes that are rounded under the mask go together with."""

from __future__ import annotations

from secagg.errors import InvalidParameters
from secagg.session.registry import ProtocolEntry

from .sections import CompressionSettings, Scheme


def require_rounding(compression: CompressionSettings, protocol: ProtocolEntry) -> None:
    """Refuse fine bits beside what they do not go together with.

    Raises:
        InvalidParameters: saying what to take instead.
    """
    for is_wrong, sentence in (
        (compression.scheme is not Scheme.SCALAR, "codes are scalar: take compression.scheme = 'sq'"),
        (compression.wrap, "sums keep to the ring: take compression.wrap = false"),
        (compression.stochastic, "the mask rounds at random already: take compression.stochastic = false"),
        (not protocol.rounds, f"{protocol.name} does not round: take secagg.protocol = 'pairwise'"),
    ):
        if is_wrong:
            raise InvalidParameters(f"compression.fine_bits is above 0, and {sentence}, or compression.fine_bits = 0")
