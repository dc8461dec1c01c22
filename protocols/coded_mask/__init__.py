"""LightSecAgg: masks that are shared in coded pieces, so that a dropout costs nothing more than its pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from secagg.faces import lazy

if TYPE_CHECKING:
    from .floors import Floors as Floors
    from .session import CodedMaskHelpers as CodedMaskHelpers
    from .session import CodedMaskMember as CodedMaskMember
    from .session import CodedMaskSettings as CodedMaskSettings
    from .session import open_session as open_session
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "floors": "Floors",
            "session": "CodedMaskHelpers CodedMaskMember CodedMaskSettings open_session",
        },
    )
