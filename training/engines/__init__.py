"""Engines train many clients from one model; all give the same updates but for float rounding.

``threads`` and ``sequential`` train one client after the other in the ordinary way; ``vmap`` trains many clients in one
computation. All take the same examples in the same order, since a client's schedule follows from its seed.
"""

from .choice import ENGINES, make_engine
from .settings import Loss, cross_entropy, device_named

__all__ = [
    "ENGINES",
    "Loss",
    "cross_entropy",
    "device_named",
    "make_engine",
]
