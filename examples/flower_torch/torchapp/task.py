"""A small network with BatchNorm, on points around five centres, scaled differently at each client."""

import torch
from torch import nn

CLASSES, FEATURES = 5, 16
_CENTRES = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(7))


def new_model() -> nn.Module:
    """Return the network; its state has weights, running statistics, and a counter of whole numbers."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, CLASSES))


def load_data(partition: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points and their classes; each partition has a different scale."""
    draw = torch.Generator().manual_seed(partition + 2)
    classes = torch.randint(CLASSES, (size,), generator=draw)
    points = _CENTRES[classes] + torch.randn(size, FEATURES, generator=draw)
    return points * (1 + 0.2 * max(partition, 0)), classes


def train(model: nn.Module, points: torch.Tensor, classes: torch.Tensor, rate: float) -> float:
    """Take ten steps, and return the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    model.train()
    loss = torch.tensor(0.0)
    for _ in range(10):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(points), classes)
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def accuracy(model: nn.Module, points: torch.Tensor, classes: torch.Tensor) -> float:
    """Return the share of points that the model classifies correctly, with its running statistics."""
    model.eval()
    with torch.no_grad():
        return float((model(points).argmax(dim=1) == classes).float().mean())
