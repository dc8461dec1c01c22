"""What scalar codes go together with: rounding under the mask, pruning, scales by channel."""

from __future__ import annotations

from secagg.errors import InvalidParameters
from secagg.session.registry import ProtocolEntry

from .sections import CompressionSettings, Scheme, Source


def require_codes(compression: CompressionSettings, protocol: ProtocolEntry) -> None:
    """Refuse codes beside what they do not go together with.

    Raises:
        InvalidParameters: saying what to take instead.
    """
    if compression.calibration is Source.PRIOR and compression.has_codes:
        raise InvalidParameters("scalar quantization has no prior: take compression.calibration = 'stat'")
    if compression.is_quantized and compression.scheme is not Scheme.PRUNING:
        raise InvalidParameters(
            "compression.is_quantized is for what pruning keeps: take compression.scheme = 'pruning'"
        )
    if compression.rotation and compression.is_quantized:
        raise InvalidParameters("what pruning keeps is not rotated: take compression.rotation = 0")
    is_told = compression.source is Source.STAT or compression.fine_bits > 0 or compression.rotation > 0
    if compression.per_channel and (compression.scheme is not Scheme.SCALAR or is_told):
        raise InvalidParameters(
            "compression.per_channel takes scales from a sample of the tensors themselves: take compression.scheme = "
            "'sq' with the calibration 'public', 'mock' or 'agg', without rotation and fine_bits"
        )
    if compression.fine_bits:
        _require_rounding(compression, protocol)


def _require_rounding(compression: CompressionSettings, protocol: ProtocolEntry) -> None:
    for is_wrong, sentence in (
        (compression.scheme is not Scheme.SCALAR, "codes are scalar: take compression.scheme = 'sq'"),
        (compression.wrap, "sums keep to the ring: take compression.wrap = false"),
        (compression.stochastic, "the mask rounds at random already: take compression.stochastic = false"),
        (not protocol.rounds, f"{protocol.name} does not round: take secagg.protocol = 'pairwise'"),
    ):
        if is_wrong:
            raise InvalidParameters(f"compression.fine_bits is above 0, and {sentence}, or compression.fine_bits = 0")
