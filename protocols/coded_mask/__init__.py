"""LightSecAgg: masks that are shared in coded pieces, so that a dropout costs nothing more than its pieces."""

from __future__ import annotations

from .configuration import DIGEST_BYTES, NONCE_BYTES, Configuration
from .field import ELEMENT_BYTES

__all__ = ["DIGEST_BYTES", "ELEMENT_BYTES", "NONCE_BYTES", "Configuration"]
