"""A small network with BatchNorm, on points around five centres, scaled differently at each site."""

import torch
from torch import nn

CLASSES, FEATURES = 5, 16
_CENTRES = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(7))


class Network(nn.Module):
    """A model whose state has weights, running statistics, and a counter of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, CLASSES))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        """Return a score for each class."""
        found: torch.Tensor = self.layers(points)
        return found


def load_data(site: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points and their classes; each site has a different scale."""
    draw = torch.Generator().manual_seed(site + 2)
    classes = torch.randint(CLASSES, (size,), generator=draw)
    points = _CENTRES[classes] + torch.randn(size, FEATURES, generator=draw)
    return points * (1 + 0.2 * max(site, 0)), classes


def train(model: nn.Module, points: torch.Tensor, classes: torch.Tensor, rate: float = 0.3) -> None:
    """Take ten steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    model.train()
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(points), classes).backward()
        optimizer.step()


def accuracy(model: nn.Module, points: torch.Tensor, classes: torch.Tensor) -> float:
    """Return the share of points that the model classifies correctly, with its running statistics."""
    model.eval()
    with torch.no_grad():
        return float((model(points).argmax(dim=1) == classes).float().mean())
