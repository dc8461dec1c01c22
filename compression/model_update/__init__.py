"""Encodes a whole model as one update: a scheme for each tensor, one layout and one version.

``codec`` is the update, a linear decoder over a model's tensors. ``plan`` has a recipe for each tensor, calibrates them
and refreshes them each epoch. ``public_parameters`` is the server's broadcast.
"""

from .codec import CalibrationSource, ModelUpdate, Tensors, TensorScheme
from .plan import Calibration, Codebooks, Dithered, Plain, Pruned, Quantized, Recipe, Rotated, Sketched, UpdatePlan
from .public_parameters import decode_parameters, downlink_bytes, encode_parameters

__all__ = [
    "Calibration",
    "CalibrationSource",
    "Codebooks",
    "Dithered",
    "ModelUpdate",
    "Plain",
    "Pruned",
    "Quantized",
    "Recipe",
    "Rotated",
    "Sketched",
    "TensorScheme",
    "Tensors",
    "UpdatePlan",
    "decode_parameters",
    "downlink_bytes",
    "encode_parameters",
]
