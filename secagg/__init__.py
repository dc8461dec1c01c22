"""Secure aggregation: a server learns the sum of its clients' model updates and nothing about any individual update.

This package exports the types and errors that all packages share. Each scheme is imported from its module in
``secagg.compression``, and each protocol from its module in ``secagg.protocols``. The quick interface
(``secagg.aggregate`` and others) is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from secagg.lazy import public_names

if TYPE_CHECKING:
    from secagg.contract import Aggregate as Aggregate
    from secagg.contract import IndexSegment as IndexSegment
    from secagg.contract import Layout as Layout
    from secagg.contract import LinearDecoder as LinearDecoder
    from secagg.contract import Payload as Payload
    from secagg.contract import RingSegment as RingSegment
    from secagg.contract import Segment as Segment
    from secagg.errors import AuthenticationFailed as AuthenticationFailed
    from secagg.errors import CapacityExceeded as CapacityExceeded
    from secagg.errors import ContractViolation as ContractViolation
    from secagg.errors import InternalError as InternalError
    from secagg.errors import InvalidParameters as InvalidParameters
    from secagg.errors import MalformedMessage as MalformedMessage
    from secagg.errors import Misuse as Misuse
    from secagg.errors import PeerError as PeerError
    from secagg.errors import PeerMisbehaved as PeerMisbehaved
    from secagg.errors import Reason as Reason
    from secagg.errors import SecAggError as SecAggError
    from secagg.errors import ThresholdNotMet as ThresholdNotMet
    from secagg.errors import UnexpectedMessage as UnexpectedMessage
    from secagg.identifiers import AttemptContext as AttemptContext
    from secagg.identifiers import ClientId as ClientId
    from secagg.identifiers import Party as Party
    from secagg.identifiers import ServerId as ServerId
    from secagg.identifiers import SessionContext as SessionContext
    from secagg.parameters import SecurityMode as SecurityMode
    from secagg.parameters import Suite as Suite
    from secagg.quick.in_process import aggregate as aggregate
    from secagg.quick.in_process import heavy_hitters as heavy_hitters
    from secagg.quick.in_process import histogram as histogram
    from secagg.quick.in_process import mean as mean
    from secagg.quick.model_session import Session as Session
    from secagg.quick.model_session import clip_for as clip_for
    from secagg.version import __version__ as __version__
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "contract": "Aggregate IndexSegment Layout LinearDecoder Payload RingSegment Segment",
            "errors": (
                "AuthenticationFailed CapacityExceeded ContractViolation InternalError InvalidParameters "
                "MalformedMessage Misuse PeerError PeerMisbehaved Reason SecAggError ThresholdNotMet "
                "UnexpectedMessage"
            ),
            "identifiers": "AttemptContext ClientId Party ServerId SessionContext",
            "parameters": "SecurityMode Suite",
            "quick.in_process": "aggregate heavy_hitters histogram mean",
            "quick.model_session": "Session clip_for",
            "version": "__version__",
        },
    )
