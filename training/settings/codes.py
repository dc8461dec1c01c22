"""Which schemes have which settings, and what scalar codes go together with."""

from __future__ import annotations

from typing import Final

from secagg.errors import InvalidParameters
from secagg.session.registry import ProtocolEntry

from .sections import NOISY_SCHEMES, CompressionSettings, Lengths, Scheme, Source

_CODES: Final = (Scheme.SCALAR, Scheme.PRUNING)
_BY_TENSOR: Final = (*_CODES, Scheme.PRODUCT)
_OF_CODES: Final = ("bits", "modulus_bits", "wrap", "stochastic", "calibration")
_BELONGING: Final[tuple[tuple[str, tuple[Scheme, ...]], ...]] = (
    ("cohort_bits", NOISY_SCHEMES),
    ("places", (Scheme.PEAK,)),
    ("kept", (Scheme.SKETCH,)),
    ("lengths", NOISY_SCHEMES),
    ("length", NOISY_SCHEMES),
    ("bits", (*_CODES, Scheme.SKETCH)),
    ("modulus_bits", (*_CODES, Scheme.ROTATED)),
    ("wrap", _CODES),
    ("stochastic", _CODES),
    ("sparsity", (Scheme.PRUNING,)),
    ("codewords", (Scheme.PRODUCT,)),
    ("block_size", (Scheme.PRODUCT,)),
    ("stages", (Scheme.PRODUCT,)),
    ("rotation", (Scheme.SCALAR,)),
    ("calibration", _BY_TENSOR),
    ("refresh", (*_BY_TENSOR, *NOISY_SCHEMES)),
    ("fraction_bits", (Scheme.NONE, *_BY_TENSOR, Scheme.ROTATED)),
    ("layers", _BY_TENSOR),
)
"""What some schemes alone read; others have a check of their own."""
_USUAL: Final = CompressionSettings()


def require_belonging(compression: CompressionSettings) -> None:
    """Refuse what was set and would be read by nobody; a complete file has the usual values of other schemes.

    Raises:
        InvalidParameters: saying which schemes it is for.
    """
    scheme = compression.scheme
    is_plain = scheme is Scheme.PRUNING and not compression.is_quantized
    for name, schemes in _BELONGING:
        value, usual = getattr(compression, name), getattr(_USUAL, name)
        if value == usual or (scheme in schemes and not (is_plain and name in _OF_CODES)):
            continue
        owners = "compression.is_quantized"
        if scheme not in schemes:
            owners = f"compression.scheme = {' or '.join(repr(one.value) for one in schemes)}"
        raise InvalidParameters(
            f"compression.{name} = {value} is for {owners}, and acts nowhere under {scheme.value!r}: "
            f"{'leave it out' if usual is None else f'take {usual}'}, or change the scheme"
        )
    if compression.length != _USUAL.length and compression.told is not Lengths.FIXED:
        raise InvalidParameters("compression.length is told by clients here: take compression.lengths = 'fixed'")
    if compression.cohort_bits != _USUAL.cohort_bits and (compression.places or compression.kept):
        raise InvalidParameters(
            "compression.cohort_bits says how many places or values there are: leave out compression.places and kept"
        )


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
