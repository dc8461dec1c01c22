"""An LSTM in single operations: torch's own is one operation that cannot be mapped over stacked parameters."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn


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
