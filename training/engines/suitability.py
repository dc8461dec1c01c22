"""Models that an engine can train, and the rewriting of layers that cannot be mapped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Final, cast

import torch
from torch import nn

from secagg.errors import InvalidParameters
from secagg.training.models import KeyedDropout
from secagg.training.settings.parts import ModelFactory, Tensors


class WrittenOutLstm(nn.Module):
    """Computes what ``torch.nn.LSTM`` computes, with parameters of the same names."""

    def __init__(self, layer: nn.LSTM) -> None:
        """Take over the parameters of a layer."""
        super().__init__()
        self._layers, self._batch_first = layer.num_layers, layer.batch_first
        for name, parameter in list(layer.named_parameters()):
            self.register_parameter(name, parameter)

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Return the last layer's states, and all layers' last states and cells."""
        states = inputs if self._batch_first else inputs.transpose(0, 1)
        last = list[tuple[torch.Tensor, torch.Tensor]]()
        for layer in range(self._layers):
            states, state, cell = self._layer(layer, states)
            last.append((state, cell))
        ends = torch.stack([state for state, _ in last]), torch.stack([cell for _, cell in last])
        return states if self._batch_first else states.transpose(0, 1), ends

    def _layer(self, layer: int, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        recurrent = self._parameter(f"weight_hh_l{layer}")
        from_inputs = inputs @ self._parameter(f"weight_ih_l{layer}").T
        if f"bias_ih_l{layer}" in self._parameters:
            from_inputs = from_inputs + (self._parameter(f"bias_ih_l{layer}") + self._parameter(f"bias_hh_l{layer}"))
        state = inputs.new_zeros(inputs.shape[0], recurrent.shape[1])
        cell = torch.zeros_like(state)
        states = list[torch.Tensor]()
        for from_input in from_inputs.unbind(1):
            enter, keep, candidate, leave = (from_input + state @ recurrent.T).chunk(4, -1)
            cell = keep.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
            state = leave.sigmoid() * cell.tanh()
            states.append(state)
        return torch.stack(states, 1), state, cell

    def _parameter(self, name: str) -> torch.Tensor:
        return cast("torch.Tensor", getattr(self, name))


def written_out(layer: nn.Module) -> nn.Module | None:
    """Return what stands for an LSTM in one direction."""
    if isinstance(layer, nn.LSTM) and not layer.bidirectional and not layer.proj_size:
        return WrittenOutLstm(layer)
    return None


_BATCH_NORMS: Final = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_INSTANCE_NORMS: Final = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_UNKEYED: Final = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.RReLU)

Swap = Callable[[nn.Module], nn.Module | None]
"""Returns what stands for a layer, or None where it stays."""


def layers_of(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every layer with its name."""
    yield from cast("Iterator[tuple[str, nn.Module]]", model.named_modules())


def trainable(factory: ModelFactory) -> nn.Module:
    """Make a model for training, whose dropout follows from keys.

    Raises:
        InvalidParameters: what a layer does in training cannot be repeated, or would not reach the server.
    """
    model = factory()
    for name, layer in layers_of(model):
        if isinstance(layer, (*_BATCH_NORMS, *_INSTANCE_NORMS)) and layer.track_running_stats:
            raise InvalidParameters(
                f"the layer {_shown(name, layer)} keeps running statistics, which are no parameters and would never "
                "reach the server; use GroupNorm, or pass track_running_stats=False"
            )
        if isinstance(layer, _UNKEYED) or (isinstance(layer, nn.RNNBase) and layer.dropout > 0):
            raise InvalidParameters(
                f"the layer {_shown(name, layer)} draws from torch's own generator, which clients share, so that no "
                "run could be repeated; use torch.nn.Dropout in its place"
            )
    model = swapped(model, lambda layer: KeyedDropout(layer.p) if isinstance(layer, nn.Dropout) else None)
    return model.train()


def refuse_batch_norm(model: nn.Module, engine: str) -> None:
    """Refuse a layer that mixes the examples of a batch, where batches are padded.

    Raises:
        InvalidParameters: the model has one.
    """
    for name, layer in layers_of(model):
        if isinstance(layer, _BATCH_NORMS):
            raise InvalidParameters(
                f"the engine {engine} pads batches, and the layer {_shown(name, layer)} would mix the padding into its "
                "statistics; use GroupNorm, or the engine `threads` or `sequential`"
            )


def swapped(model: nn.Module, swap: Swap) -> nn.Module:
    """Return a copy of a model with some of its layers replaced; a layer that stands in two places stays one."""
    copy = deepcopy(model)
    made = dict[int, nn.Module | None]()

    def replacement(layer: nn.Module) -> nn.Module | None:
        if id(layer) not in made:
            made[id(layer)] = swap(layer)
        return made[id(layer)]

    whole = replacement(copy)
    if whole is not None:
        return whole
    # Without duplicates, the second of two places would keep the layer that was.
    places = cast("Iterator[tuple[str, nn.Module]]", copy.named_modules(remove_duplicate=False))
    for name, layer in list(places):
        new = replacement(layer)
        if new is not None:
            parent, _, own = name.rpartition(".")
            setattr(copy.get_submodule(parent), own, new)
    return copy


def values_of(model: nn.Module, start: Tensors, device: torch.device) -> list[torch.Tensor]:
    """Return the tensors of ``start`` in the order of a model's parameters, on a device.

    Raises:
        InvalidParameters: they are not the parameters of this model.
    """
    names = [name for name, _ in model.named_parameters()]
    if set(names) != set(start):
        odd = sorted(set(names) ^ set(start))
        raise InvalidParameters(f"the start is of another model: it and this engine's model differ in {', '.join(odd)}")
    return [start[name].detach().to(device) for name in names]


def _shown(name: str, layer: nn.Module) -> str:
    return f"{name or 'itself'} ({type(layer).__name__})"
