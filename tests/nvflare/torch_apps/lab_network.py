"""The example's network, which begins the same wherever it is made: a job makes it in the server's process."""

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
    """Has so many weights that what is told in their place is smaller."""

    def __init__(self) -> None:
        """Draw them."""
        torch.manual_seed(5)
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)
        )
