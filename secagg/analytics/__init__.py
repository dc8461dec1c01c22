"""Federated analytics: counts, means, tables and survival curves over several sites; a server only learns sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from secagg.lazy import public_names

if TYPE_CHECKING:
    from .data import Site as Site
    from .data import read_site as read_site
    from .declaration import Declaration as Declaration
    from .declaration import Statistic as Statistic
    from .declaration import Variable as Variable
    from .plan import Plan as Plan
    from .plan import Results as Results
    from .plan import summed as summed
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {"declaration": "Declaration Statistic Variable", "plan": "Plan Results summed", "data": "Site read_site"},
    )
