"""The models of the paper's experiments as the shapes of their tensors.

The names are those of the usual implementations: a bias is a tensor whose own name begins with ``bias``. The paper
prints no architectures. CelebA's is public; its size tables pin down the other two. FEMNIST's tables count two
models: one input channel where updates are quantized or pruned, three where codebooks are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from secagg.compression.byte_accounting import Shape, Shapes


def _frozen(tensors: Iterator[tuple[str, Shape]]) -> Shapes:
    return MappingProxyType(dict(tensors))


def _convolutional_net() -> Iterator[tuple[str, Shape]]:
    """List four convolutions that share one group norm, and a linear head."""
    for layer, channels in enumerate((3, 32, 32, 32)):
        yield f"layers.{layer}.weight", (32, channels, 3, 3)
        yield f"layers.{layer}.bias", (32,)
    yield from _norm("gn", 32)
    yield from _linear("fc", 288, 2)


def _recurrent_net() -> Iterator[tuple[str, Shape]]:
    """List an embedding, two LSTM layers, a linear head, and a spare one that only the byte counts show."""
    yield "embedding.weight", (9931, 300)
    for layer, width in enumerate((300, 100)):
        yield f"lstm.weight_ih_l{layer}", (400, width)
        yield f"lstm.weight_hh_l{layer}", (400, 100)
        yield f"lstm.bias_ih_l{layer}", (400,)
        yield f"lstm.bias_hh_l{layer}", (400,)
    yield from _linear("fc", 100, 2)
    yield from _linear("spare_fc", 128, 2)


def _residual_net(input_channels: int) -> Iterator[tuple[str, Shape]]:
    """List ResNet-18 with group norms and a head for 62 characters."""
    widths = (64, 64, 128, 256, 512)
    yield "conv1.weight", (widths[0], input_channels, 7, 7)
    yield from _norm("bn1", widths[0])
    for stage, (before, width) in enumerate(pairwise(widths), start=1):
        for block, inputs in enumerate((before, width)):
            name = f"layer{stage}.{block}"
            for convolution, channels in enumerate((inputs, width), start=1):
                yield f"{name}.conv{convolution}.weight", (width, channels, 3, 3)
                yield from _norm(f"{name}.bn{convolution}", width)
            if inputs != width:
                yield f"{name}.downsample.0.weight", (width, inputs, 1, 1)
                yield from _norm(f"{name}.downsample.1", width)
    yield from _linear("fc", widths[-1], 62)


def _norm(name: str, width: int) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def _linear(name: str, inputs: int, outputs: int) -> Iterator[tuple[str, Shape]]:
    yield f"{name}.weight", (outputs, inputs)
    yield f"{name}.bias", (outputs,)


CELEBA: Final = _frozen(_convolutional_net())
SENT140: Final = _frozen(_recurrent_net())
FEMNIST_1_CHANNEL: Final = _frozen(_residual_net(1))
FEMNIST_3_CHANNEL: Final = _frozen(_residual_net(3))
