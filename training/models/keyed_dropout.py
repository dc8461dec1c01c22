"""Dropout whose pattern follows from a key, so that it is the same in whatever way a client is trained.

Torch draws dropout from one generator for a whole process; with several clients at once, who gets which numbers is a
matter of chance. Here each step has a key, and an activation is kept or not by a hash of the key and its position.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

import torch

_WORD: Final = 0xFFFF_FFFF
_KEY_NAME: Final = "key"


class KeyedDropout(torch.nn.Module):
    """Stands for ``torch.nn.Dropout``; the engines set its key before each step."""

    key: torch.Tensor

    def __init__(self, rate: float) -> None:
        """Take the share of activations that are dropped."""
        super().__init__()
        self.rate = rate
        self.register_buffer(_KEY_NAME, torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Drop activations in training, and scale up what is left; the first axis counts examples."""
        if not self.training or self.rate == 0:
            return inputs
        return dropped(inputs, self.key, self.rate)


def dropped(inputs: torch.Tensor, key: torch.Tensor, rate: float) -> torch.Tensor:
    """Drop what the key says; what happens to an example does not depend on how many follow it.

    Args:
        key: a number of 32 bits, or one for each place along an axis with which it lines up.
    """
    positions = torch.arange(inputs.numel() // key.numel(), dtype=torch.int64, device=inputs.device)
    axes = [1 if size > 1 else length for size, length in zip(_sizes_of(key, inputs.ndim), inputs.shape, strict=True)]
    is_kept = hashed(positions.reshape(axes), key) >= int(rate * (_WORD + 1))
    return inputs * is_kept.to(inputs.dtype) / (1 - rate)


def _sizes_of(key: torch.Tensor, axes: int) -> list[int]:
    return [1] * (axes - key.ndim) + list(key.shape)


def hashed(positions: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Mix positions with a key of 32 bits into words that look random; MurmurHash3's finalizer, twice."""
    mixed = finalized((positions * 0x9E37_79B1 + key) & _WORD)
    return finalized((mixed ^ key) & _WORD)


def finalized(words: torch.Tensor) -> torch.Tensor:
    """Spread each bit of a word over all of it."""
    for multiplier, shift in ((0x85EB_CA6B, 16), (0xC2B2_AE35, 13)):
        words = ((words ^ (words >> shift)) * multiplier) & _WORD
    return words ^ (words >> 16)


def key_names(model: torch.nn.Module) -> list[str]:
    """Return the names of the buffers that hold keys, in the order of the layers."""
    return [f"{name}.{_KEY_NAME}" if name else _KEY_NAME for name, _ in _dropouts(model)]


def key_buffers(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return the buffers that hold keys, in the same order."""
    return [layer.key for _, layer in _dropouts(model)]


def _dropouts(model: torch.nn.Module) -> list[tuple[str, KeyedDropout]]:
    named = cast("Iterable[tuple[str, torch.nn.Module]]", model.named_modules())
    return [(name, layer) for name, layer in named if isinstance(layer, KeyedDropout)]
