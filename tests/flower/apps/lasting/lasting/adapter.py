"""An adapter with PEFT's names in NumPy, and its plan: B and A take turns."""

import numpy as np

from secagg.adapters import AdapterPlan

SHAPES = {"model.lora_A.weight": (4, 12), "model.lora_B.weight": (10, 4)}
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["model"]}
ZEROS = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
plan = AdapterPlan.of_state(ZEROS, CONFIG, "alternate")
