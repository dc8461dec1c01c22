"""The example's network, which begins the same wherever it is made: a job makes it in the server's process."""

from __future__ import annotations

import torch
from network import Network


class Seeded(Network):
    """Begins with the same weights each time."""

    def __init__(self) -> None:
        """Draw them."""
        torch.manual_seed(5)
        super().__init__()
