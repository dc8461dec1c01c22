"""LightSecAgg: masks are shared in coded pieces, so that dropouts need no recovery round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from secagg.lazy import public_names

if TYPE_CHECKING:
    from .session import LightSecAggHelpers as LightSecAggHelpers
    from .session import LightSecAggMember as LightSecAggMember
    from .session import LightSecAggOptions as LightSecAggOptions
    from .session import open_session as open_session
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__, {"session": "LightSecAggHelpers LightSecAggMember LightSecAggOptions open_session"}
    )
