"""Adapters with PEFT's names, for tests without PEFT: two adapted layers, and a saved head."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

FEATURES, HIDDEN, CLASSES = 12, 10, 6


class Adapted(nn.Module):
    """A frozen layer with A and B, as ``peft.tuners.lora.Linear`` names them."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(requires_grad=False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, base.out_features, bias=False)})
        nn.init.zeros_(self.lora_B["default"].weight)  # type: ignore[arg-type]

    def get_base_layer(self) -> nn.Module:
        return self.base_layer

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.base_layer(features) + self.lora_B["default"](self.lora_A["default"](features))
        return found


class Config(SimpleNamespace):
    """The fields of a ``LoraConfig`` that a plan reads."""

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class Saved(nn.Module):
    """A fully trained layer, as in ``modules_to_save``."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.original_module = inner
        self.modules_to_save = nn.ModuleDict({"default": nn.Linear(inner.in_features, inner.out_features)})

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.modules_to_save["default"](features)
        return found


class Model(nn.Module):
    """As ``get_peft_model`` returns it."""

    def __init__(self, rank: int = 4, *, saved: bool = False, seed: int = 0, **config: Any) -> None:
        super().__init__()
        torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]
        self.first = Adapted(nn.Linear(FEATURES, HIDDEN), rank)
        head = nn.Linear(HIDDEN, CLASSES)
        self.second: nn.Module = Saved(head) if saved else Adapted(head, rank)
        found = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, "target_modules": {"first", "second"}, **config}
        self.peft_config = {"default": Config(**found)}

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(torch.relu(self.first(features)))
        return found
