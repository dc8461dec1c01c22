"""The plug-ins' own logger: one INFO line for each stage, and never a secret; a platform says where it writes."""

from __future__ import annotations

import logging
from typing import Final

LOG: Final = logging.getLogger("secagg.platforms")
