"""Secure aggregation: a server learns the sum of its clients' model updates and nothing else about any one of them.

The names here are the vocabulary that every room shares. Schemes are imported from ``secagg.compression`` and protocols
from ``secagg.protocols``, each by its own module.
"""

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
    "SessionContext",
    "Suite",
    "ThresholdNotMet",
    "UnexpectedMessage",
]
