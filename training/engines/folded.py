"""Many clients as one wide network: their channels side by side, each client's layers connected to its own only.

A model is rewritten layer by layer: a convolution becomes a grouped one, or one product of matrices for each client; a
linear layer a product for each client. What lies between layers keeps channels apart by itself, as long as it works on
pixels: activations, pooling, sums. The first use compares with the model as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 -- the name that everybody gives it
from torch import nn

from secagg.errors import InvalidParameters
from secagg.training.models.keyed_dropout import KeyedDropout, dropped

from .suitability import layers_of, swapped

_FLAT: Final = 2
"""The axes of what a linear layer takes: examples, and the clients' values side by side."""


class FoldedConv2d(nn.Module):
    """A convolution whose parameters have a leading axis of clients."""

    def __init__(self, layer: nn.Conv2d, *, by_products: bool) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self._stride, self._padding, self._dilation = layer.stride, layer.padding, layer.dilation
        self._groups, self._kernel = layer.groups, layer.kernel_size
        self._by_products = by_products and layer.groups == 1 and not isinstance(layer.padding, str)

    def forward(self, shown: torch.Tensor) -> torch.Tensor:
        """Convolve each client's channels with its own weights."""
        clients, outputs = self.weight.shape[:2]
        if self._by_products:
            return self._products(shown, clients, outputs)
        bias = None if self.bias is None else self.bias.flatten()
        groups = clients * self._groups
        weight = self.weight.flatten(0, 1)
        return F.conv2d(shown, weight, bias, self._stride, self._padding, self._dilation, groups)

    def _products(self, shown: torch.Tensor, clients: int, outputs: int) -> torch.Tensor:
        examples, _, rows, columns = shown.shape
        padding = (0, 0) if isinstance(self._padding, str) else self._padding
        sizes = [
            (length + 2 * around - spread * (kernel - 1) - 1) // stride + 1
            for length, around, spread, kernel, stride in zip(
                (rows, columns), padding, self._dilation, self._kernel, self._stride, strict=True
            )
        ]
        patches = F.unfold(shown, self._kernel, self._dilation, padding, self._stride)
        patches = patches.reshape(examples, clients, -1, patches.shape[-1]).permute(1, 2, 0, 3).flatten(2)
        products = torch.bmm(self.weight.flatten(2), patches)
        if self.bias is not None:
            products = products + self.bias[..., None]
        found = products.reshape(clients, outputs, examples, sizes[0], sizes[1])
        return found.permute(2, 0, 1, 3, 4).flatten(1, 2)


class FoldedGroupNorm(nn.Module):
    """A group normalization whose parameters have a leading axis of clients."""

    def __init__(self, layer: nn.GroupNorm) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self._groups, self._eps = layer.num_groups, layer.eps

    def forward(self, shown: torch.Tensor) -> torch.Tensor:
        """Normalize each client's groups of channels."""
        groups = self.weight.shape[0] * self._groups
        return F.group_norm(shown, groups, self.weight.flatten(), self.bias.flatten(), self._eps)


class FoldedLinear(nn.Module):
    """A linear layer whose parameters have a leading axis of clients."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight = layer.weight
        self.bias: nn.Parameter | None = layer.bias

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Multiply each client's values with its own weights."""
        clients = self.weight.shape[0]
        if values.ndim != _FLAT:
            raise InvalidParameters(
                f"a linear layer takes values of {values.ndim} axes here, and clients lie side by side in the second; "
                "use the engine vmap or threads"
            )
        by_client = values.reshape(len(values), clients, -1).transpose(0, 1)
        products = torch.bmm(by_client, self.weight.transpose(1, 2))
        if self.bias is not None:
            products = products + self.bias[:, None]
        return products.transpose(0, 1).flatten(1)


class FoldedDropout(nn.Module):
    """Dropout with a key for each client."""

    key: torch.Tensor

    def __init__(self, layer: KeyedDropout) -> None:
        super().__init__()
        self._rate = layer.rate
        self.register_buffer("key", layer.key, persistent=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Drop what each client's key says."""
        if self._rate == 0:
            return values
        by_client = values.reshape(len(values), len(self.key), -1)
        return dropped(by_client, self.key[None, :, None], self._rate).reshape(values.shape)


def folded(model: nn.Module, *, by_products: bool) -> nn.Module:
    """Return a model for many clients side by side.

    Args:
        by_products: whether a convolution is one product of matrices for each client, instead of a grouped convolution.

    Raises:
        InvalidParameters: a layer with parameters is of a kind that is not known here.
    """

    def fold(layer: nn.Module) -> nn.Module | None:
        match layer:
            case nn.Conv2d() if layer.padding_mode == "zeros":
                return FoldedConv2d(layer, by_products=by_products)
            case nn.GroupNorm() if layer.affine:
                return FoldedGroupNorm(layer)
            case nn.Linear():
                return FoldedLinear(layer)
            case KeyedDropout():
                return FoldedDropout(layer)
            case _:
                return None

    copy = swapped(model, fold)
    known = (FoldedConv2d, FoldedGroupNorm, FoldedLinear)
    for name, layer in layers_of(copy):
        has_own = any(True for _ in layer.parameters(recurse=False))
        if (has_own and not isinstance(layer, known)) or isinstance(layer, nn.GroupNorm | nn.LayerNorm | nn.Flatten):
            if isinstance(layer, nn.Flatten) and layer.start_dim == 1:
                continue
            raise InvalidParameters(
                f"the layer {name or 'itself'} ({type(layer).__name__}) is none of Conv2d, GroupNorm and Linear, of "
                "which clients can lie side by side; use the engine vmap or threads"
            )
    return copy


def side_by_side(model: nn.Module, values: Mapping[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    """Run a folded model on inputs by client and example, and return its outputs likewise."""
    clients = inputs.shape[0]
    outputs: torch.Tensor = torch.func.functional_call(model, dict(values), (inputs.transpose(0, 1).flatten(1, 2),))
    return outputs.reshape(len(outputs), clients, -1).transpose(0, 1)
