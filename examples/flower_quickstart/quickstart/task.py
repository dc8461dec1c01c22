"""Softmax regression in numpy, on points around five centres, with different frequencies at each client."""

import numpy as np

CLASSES, FEATURES = 5, 16
_CENTRES = np.random.default_rng(7).normal(0.0, 1.0, (CLASSES, FEATURES))


def new_model() -> dict[str, np.ndarray]:
    """Return the model before any training."""
    return {"weights": np.zeros((FEATURES, CLASSES), dtype=np.float32), "bias": np.zeros(CLASSES, dtype=np.float32)}


def load_data(partition: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points and their classes; one class is more frequent in each partition."""
    generator = np.random.default_rng([1, partition + 1])
    odds = np.ones(CLASSES)
    odds[partition % CLASSES] += 3
    classes = generator.choice(CLASSES, size, p=odds / odds.sum())
    points = _CENTRES[classes] + generator.normal(0.0, 1.0, (size, FEATURES))
    return points.astype(np.float32), classes


def train(model: dict[str, np.ndarray], points: np.ndarray, classes: np.ndarray, rate: float) -> float:
    """Take ten steps of gradient descent in place, and return the loss before the last."""
    targets, loss = np.eye(CLASSES, dtype=np.float32)[classes], 0.0
    for _ in range(10):
        odds = _probabilities(model, points)
        loss = float(-np.log(np.maximum((odds * targets).sum(axis=1), 1e-9)).mean())
        slope = (odds - targets) / len(points)
        model["weights"] -= rate * points.T @ slope
        model["bias"] -= rate * slope.sum(axis=0)
    return loss


def accuracy(model: dict[str, np.ndarray], points: np.ndarray, classes: np.ndarray) -> float:
    """Return the share of points that the model classifies correctly."""
    return float((_probabilities(model, points).argmax(axis=1) == classes).mean())


def _probabilities(model: dict[str, np.ndarray], points: np.ndarray) -> np.ndarray:
    scores = points @ model["weights"] + model["bias"]
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)
