"""Secure aggregation: a server learns the sum of its clients' model updates and nothing else about any one of them.

The names here are the vocabulary that every room shares. Schemes are imported from ``secagg.compression`` and protocols
from ``secagg.protocols``, each by its own module. The short way in, ``secagg.aggregate`` and its like, is loaded when
it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from secagg.contract import Aggregate, IndexSegment, Layout, LinearDecoder, Payload, RingSegment, Segment
from secagg.errors import (
    AuthenticationFailed,
    CapacityExceeded,
    ContractViolation,
    InternalError,
    InvalidParameters,
    MalformedMessage,
    Misuse,
    PeerError,
    PeerMisbehaved,
    Reason,
    SecAggError,
    ThresholdNotMet,
    UnexpectedMessage,
)
from secagg.identifiers import AttemptContext, ClientId, Party, ServerId, SessionContext
from secagg.parameters import SecurityMode, Suite

if TYPE_CHECKING:
    from secagg.short.analytics import heavy_hitters, histogram
    from secagg.short.in_process import aggregate, mean
    from secagg.short.model_session import Session

__all__ = [
    "Aggregate",
    "AttemptContext",
    "AuthenticationFailed",
    "CapacityExceeded",
    "ClientId",
    "ContractViolation",
    "IndexSegment",
    "InternalError",
    "InvalidParameters",
    "Layout",
    "LinearDecoder",
    "MalformedMessage",
    "Misuse",
    "Party",
    "Payload",
    "PeerError",
    "PeerMisbehaved",
    "Reason",
    "RingSegment",
    "SecAggError",
    "SecurityMode",
    "Segment",
    "ServerId",
    "Session",
    "SessionContext",
    "Suite",
    "ThresholdNotMet",
    "UnexpectedMessage",
    "aggregate",
    "heavy_hitters",
    "histogram",
    "mean",
]

_SHORT = {
    "Session": "secagg.short.model_session",
    "aggregate": "secagg.short.in_process",
    "heavy_hitters": "secagg.short.analytics",
    "histogram": "secagg.short.analytics",
    "mean": "secagg.short.in_process",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 -- whatever the module has under this name
    """Load the short way in when it is asked for, and nothing of it before."""
    if name not in _SHORT:
        raise AttributeError(f"module 'secagg' has no attribute {name!r}")
    return getattr(import_module(_SHORT[name]), name)
