"""Engines train many clients from one model; all give the same updates but for float rounding.

``threads`` and ``sequential`` train one client after the other in the ordinary way; ``vmap`` trains many clients in one
computation. All take the same examples in the same order, since a client's schedule follows from its seed.
"""

from .choice import ENGINES, Choice, fastest_engine, make_engine, seconds_of_a_round
from .settings import Loss, cross_entropy, device_named

__all__ = [
    "ENGINES",
    "Choice",
    "Loss",
    "cross_entropy",
    "device_named",
    "fastest_engine",
    "make_engine",
    "seconds_of_a_round",
]
