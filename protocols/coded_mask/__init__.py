"""LightSecAgg: masks that are shared in coded pieces, so that a dropout costs nothing more than its pieces."""

from __future__ import annotations

from .floors import Floors
from .session import CodedMaskHelpers, CodedMaskMember, CodedMaskServerSession, open_session
from .settings import CodedMaskSettings

__all__ = [
    "CodedMaskHelpers",
    "CodedMaskMember",
    "CodedMaskServerSession",
    "CodedMaskSettings",
    "Floors",
    "open_session",
]
