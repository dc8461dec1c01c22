"""A whole model as one encoded update: which scheme for which tensor, under one layout and one version.

``codec`` is the update, a linear decoder over the tensors of a model; ``plan`` has a recipe for each tensor, calibrates
all of them and refreshes them from epoch to epoch; ``public_parameters`` is the server's broadcast.
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
