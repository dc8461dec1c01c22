"""Secure aggregation for NVFlare: one line makes a FedAvg recipe secure. Names are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from secagg.platforms import needing

if TYPE_CHECKING:
    from .analytics import statistics_job as statistics_job
    from .recipe import secure as secure
else:
    __getattr__, __dir__, __all__ = needing("nvflare", __name__, {"recipe": "secure", "analytics": "statistics_job"})
