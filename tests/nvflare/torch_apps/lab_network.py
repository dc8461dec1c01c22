"""The example's network with equal initial weights in every process: a job creates it in the server's process."""

from __future__ import annotations

import torch
from network import CLASSES, FEATURES, Network
from torch import nn

HIDDEN = 512


class Seeded(Network):
    """Begins with the same weights each time."""

    def __init__(self) -> None:
        """Draw them."""
        torch.manual_seed(5)
        super().__init__()


class Wide(Network):
    """A network with enough weights that the compressed downlink is smaller."""

    def __init__(self) -> None:
        """Draw them."""
        torch.manual_seed(5)
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)
        )
