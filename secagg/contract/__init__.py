"""The contract between schemes and protocols: layouts, payloads, aggregates, and linear decoders."""

from .decoder import (
    DIGEST_BYTES,
    MAXIMUM_WEIGHT,
    Aggregate,
    Histogram,
    IndexedDecoder,
    LinearDecoder,
    Payload,
    encode_update,
    ideal_aggregate,
    public_parameters_digest,
)
from .layout import IndexSegment, Layout, RingSegment, Segment

__all__ = [
    "DIGEST_BYTES",
    "MAXIMUM_WEIGHT",
    "Aggregate",
    "Histogram",
    "IndexSegment",
    "IndexedDecoder",
    "Layout",
    "LinearDecoder",
    "Payload",
    "RingSegment",
    "Segment",
    "encode_update",
    "ideal_aggregate",
    "public_parameters_digest",
]
