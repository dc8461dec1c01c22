"""Networks of the studies, selected by name in configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, cast

import torch
import torch.nn.functional as F  # noqa: N812 -- its usual name
from torch import Tensor, nn

from secagg.errors import InvalidParameters

from .parts import ModelFactory, Seed, torch_seeded

_WORD: Final = 0xFFFF_FFFF
_KEY_NAME: Final = "key"


class KeyedDropout(torch.nn.Module):
    """Replaces ``torch.nn.Dropout``; the engines set its key before each step."""

    key: torch.Tensor

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer(_KEY_NAME, torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Drop activations in training and scale up the others; the first axis is examples."""
        if not self.training or self.rate == 0:
            return inputs
        return dropped(inputs, self.key, self.rate)


def dropped(inputs: torch.Tensor, key: torch.Tensor, rate: float) -> torch.Tensor:
    """Drop the values chosen by the key; an example's result does not depend on the number of later ones.

    Args:
        key: a number of 32 bits, or an array of them that broadcasts.
    """
    positions = torch.arange(inputs.numel() // key.numel(), dtype=torch.int64, device=inputs.device)
    axes = [1 if size > 1 else length for size, length in zip(_sizes_of(key, inputs.ndim), inputs.shape, strict=True)]
    is_kept = hashed(positions.reshape(axes), key) >= int(rate * (_WORD + 1))
    return inputs * is_kept.to(inputs.dtype) / (1 - rate)


def _sizes_of(key: torch.Tensor, axes: int) -> list[int]:
    return [1] * (axes - key.ndim) + list(key.shape)


def hashed(positions: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Hash positions with a key of 32 bits to pseudorandom words: MurmurHash3's finalizer, twice."""
    mixed = finalized((positions * 0x9E37_79B1 + key) & _WORD)
    return finalized((mixed ^ key) & _WORD)


def finalized(words: torch.Tensor) -> torch.Tensor:
    """Diffuse each bit of a word over the word."""
    for multiplier, shift in ((0x85EB_CA6B, 16), (0xC2B2_AE35, 13)):
        words = ((words ^ (words >> shift)) * multiplier) & _WORD
    return words ^ (words >> 16)


def key_names(model: torch.nn.Module) -> list[str]:
    """Return the names of the key buffers, in the order of the layers."""
    return [f"{name}.{_KEY_NAME}" if name else _KEY_NAME for name, _ in _dropouts(model)]


def key_buffers(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return the key buffers, in the same order."""
    return [layer.key for _, layer in _dropouts(model)]


def _dropouts(model: torch.nn.Module) -> list[tuple[str, KeyedDropout]]:
    named = cast("Iterable[tuple[str, torch.nn.Module]]", model.named_modules())
    return [(name, layer) for name, layer in named if isinstance(layer, KeyedDropout)]


_IMAGE_AXES: Final = 3


class StrideNet(nn.Module):
    """Three convolutions of stride 2 and one layer: 19,338 parameters for 28x28 images in ten classes."""

    def __init__(self, *, channels: int = 1, side: int = 28, classes: int = 10) -> None:
        super().__init__()
        widths = (16, 32, 32)
        self.conv1 = nn.Conv2d(channels, widths[0], 3, stride=2, padding=1)
        self.norm1 = nn.GroupNorm(4, widths[0])
        self.conv2 = nn.Conv2d(widths[0], widths[1], 3, stride=2, padding=1)
        self.norm2 = nn.GroupNorm(8, widths[1])
        self.conv3 = nn.Conv2d(widths[1], widths[2], 3, stride=2, padding=1)
        self.norm3 = nn.GroupNorm(8, widths[2])
        self.head = nn.Linear(widths[2] * (-(-side // 8)) ** 2, classes)

    def forward(self, images: Tensor) -> Tensor:
        shown = F.relu(self.norm1(self.conv1(images)))
        shown = F.relu(self.norm2(self.conv2(shown)))
        shown = F.relu(self.norm3(self.conv3(shown)))
        scores: Tensor = self.head(shown.flatten(1))
        return scores


class SimpleConvNet(nn.Module):
    """The paper's network for CelebA: 29,282 parameters, since one GroupNorm serves all four convolutions."""

    def __init__(self, *, channels: int = 3, classes: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        width = 32
        self.layers = nn.ModuleList(nn.Conv2d(channels if i == 0 else width, width, 3, padding=2) for i in range(4))
        self.norm = nn.GroupNorm(width, width)
        self.dropout = KeyedDropout(dropout)
        self.head = nn.Linear(width * 9, classes)

    def forward(self, images: Tensor) -> Tensor:
        shown = images
        for layer in self.layers:
            shown = F.max_pool2d(F.relu(self.norm(layer(shown))), 2)
        scores: Tensor = self.head(self.dropout(shown.flatten(1)))
        return scores


class ResidualBlock(nn.Module):
    """Two convolutions with a shortcut around them."""

    def __init__(self, before: int, width: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.GroupNorm(groups, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.GroupNorm(groups, width)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or before != width:
            shortcut = nn.Conv2d(before, width, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.GroupNorm(groups, width))

    def forward(self, shown: Tensor) -> Tensor:
        changed = F.relu(self.bn1(self.conv1(shown)))
        around: Tensor = self.downsample(shown)
        return F.relu(self.bn2(self.conv2(changed)) + around)


class ResNet18(nn.Module):
    """ResNet-18 with GroupNorm, under torchvision's names: 11,202,046 parameters for one channel and 62 classes."""

    def __init__(self, *, channels: int = 1, classes: int = 62, groups: int = 32) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.GroupNorm(groups, 64)
        self.layer1 = _stage(64, 64, groups)
        self.layer2 = _stage(64, 128, groups)
        self.layer3 = _stage(128, 256, groups)
        self.layer4 = _stage(256, 512, groups)
        self.fc = nn.Linear(512, classes)

    def forward(self, images: Tensor) -> Tensor:
        shown = F.max_pool2d(F.relu(self.bn1(self.conv1(images))), 3, stride=2, padding=1)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            shown = stage(shown)
        scores: Tensor = self.fc(F.adaptive_avg_pool2d(shown, 1).flatten(1))
        return scores


def _stage(before: int, width: int, groups: int) -> nn.Sequential:
    stride = 1 if width == before else 2
    return nn.Sequential(ResidualBlock(before, width, stride, groups), ResidualBlock(width, width, 1, groups))


class TextLstm(nn.Module):
    """An embedding, LSTM layers and a linear layer; it reads the last state, or the maximum over time.

    Args:
        leftover: number of inputs of a second, unused head. The paper's sizes for Sent140 include one of 128 inputs;
        with it, an embedding of 9,931 x 300 and two layers of 100, there are 3,221,360 parameters.
    """

    def __init__(  # noqa: PLR0913 -- the sizes of a model
        self,
        *,
        vocabulary: int,
        width: int = 300,
        hidden: int = 100,
        layers: int = 2,
        classes: int = 2,
        pooled: float = False,
        leftover: int = 0,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)
        if leftover:
            self.leftover = nn.Linear(leftover, classes)
        self.pooled = bool(pooled)

    def forward(self, tokens: Tensor) -> Tensor:
        states: Tensor = self.lstm(self.embedding(tokens))[0]
        scores: Tensor = self.head(states.amax(1) if self.pooled else states[:, -1])
        return scores


class TextConv(nn.Module):
    """An embedding, two convolutions over the text, and a linear layer: 56,697 parameters for 12 of 97 characters."""

    def __init__(self, *, vocabulary: int, length: int, classes: int, width: int = 24, hidden: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.conv1 = nn.Conv1d(width, hidden, 3, padding=1)
        self.conv2 = nn.Conv1d(hidden, hidden, 3, stride=2, padding=1)
        self.head = nn.Linear(hidden * -(-length // 2), classes)

    def forward(self, tokens: Tensor) -> Tensor:
        shown = F.relu(self.conv1(self.embedding(tokens).transpose(1, 2)))
        scores: Tensor = self.head(F.relu(self.conv2(shown)).flatten(1))
        return scores


MODELS: Final = ("stride", "simple-conv", "resnet18", "lstm", "text-conv")


def model_factory(
    name: str,
    *,
    classes: int,
    shape: tuple[int, ...],
    vocabulary: int | None = None,
    options: Mapping[str, float] | None = None,
) -> ModelFactory:
    """Return a factory of models for inputs of a shape.

    Args:
        options: further arguments of the model: ``dropout``; ``groups``; ``width``, ``hidden``, ``layers``, ``pooled``
            and ``leftover``.
    """
    chosen = dict(options or {})
    is_text = name in {"lstm", "text-conv"}
    if name in MODELS and (is_text is (vocabulary is None) or (not is_text and len(shape) != _IMAGE_AXES)):
        raise InvalidParameters(
            f"the model {name} takes {'tokens' if is_text else 'images'}, but inputs have the shape {shape}"
            f"{'' if vocabulary is None else f' and are tokens of a vocabulary of {vocabulary}'}; use another model"
        )
    factory: Callable[[], nn.Module]
    match name:
        case "stride":
            factory = lambda: StrideNet(channels=shape[0], side=shape[1], classes=classes, **chosen)  # noqa: E731
        case "simple-conv":
            factory = lambda: SimpleConvNet(channels=shape[0], classes=classes, **chosen)  # noqa: E731
        case "resnet18":
            factory = lambda: ResNet18(channels=shape[0], classes=classes, **_whole(chosen))  # noqa: E731
        case "lstm":
            factory = lambda: TextLstm(vocabulary=vocabulary or 0, classes=classes, **_whole(chosen))  # noqa: E731
        case "text-conv":
            factory = lambda: TextConv(  # noqa: E731
                vocabulary=vocabulary or 0, length=shape[0], classes=classes, **_whole(chosen)
            )
        case _:
            raise InvalidParameters(f"unknown model {name!r}; the models are {', '.join(MODELS)}")
    return factory


def _whole(options: Mapping[str, float]) -> dict[str, int]:
    return {name: int(value) for name, value in options.items()}


def initial_parameters(factory: ModelFactory, seed: Seed) -> dict[str, Tensor]:
    """Return a new model's parameters, derived from a seed; torch's generators do not change."""
    with torch_seeded(seed):
        return {name: parameter.detach().clone() for name, parameter in factory().named_parameters()}
