"""A whole model as one encoded update: which scheme for which tensor, under one layout and one version.

``codec`` is the update itself, a linear decoder over the tensors of a model; ``recipes`` say how a tensor's scheme is
made; ``plan`` gives each tensor a recipe, calibrates all of them and refreshes them from epoch to epoch;
``public_parameters`` is what the server broadcasts, in bytes, and what a round costs.
"""

from .codec import CalibrationSource, ModelUpdate
from .plan import Calibration, Codebooks, Dithered, Plain, Pruned, Quantized, Recipe, Rotated, Sketched, UpdatePlan
from .public_parameters import RoundBytes, decode_parameters, downlink_bytes, encode_parameters, round_bytes
from .tensors import Tensors, TensorScheme

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
    "RoundBytes",
    "Sketched",
    "TensorScheme",
    "Tensors",
    "UpdatePlan",
    "decode_parameters",
    "downlink_bytes",
    "encode_parameters",
    "round_bytes",
]
