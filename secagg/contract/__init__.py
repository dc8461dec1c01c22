"""The contract between schemes and protocols: layouts, payloads, aggregates, and linear decoders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from secagg.lazy import public_names

if TYPE_CHECKING:
    from .decoder import Aggregate as Aggregate
    from .decoder import Histogram as Histogram
    from .decoder import IndexedDecoder as IndexedDecoder
    from .decoder import LinearDecoder as LinearDecoder
    from .decoder import capacity as capacity
    from .decoder import capacity_between as capacity_between
    from .decoder import encode_update as encode_update
    from .decoder import ideal_aggregate as ideal_aggregate
    from .decoder import public_parameters_digest as public_parameters_digest
    from .layout import DIGEST_BYTES as DIGEST_BYTES
    from .layout import MAXIMUM_CONTRIBUTORS as MAXIMUM_CONTRIBUTORS
    from .layout import IndexSegment as IndexSegment
    from .layout import Layout as Layout
    from .layout import Payload as Payload
    from .layout import RingSegment as RingSegment
    from .layout import Segment as Segment
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "decoder": (
                "Aggregate Histogram IndexedDecoder LinearDecoder capacity capacity_between encode_update "
                "ideal_aggregate public_parameters_digest"
            ),
            "layout": "DIGEST_BYTES IndexSegment Layout MAXIMUM_CONTRIBUTORS Payload RingSegment Segment",
        },
    )
