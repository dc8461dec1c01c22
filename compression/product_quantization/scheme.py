"""One tensor as indices into common codebooks, and its aggregate decoded from a histogram for each block."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from secagg.compression.checks import finite, require_floats, require_sum
from secagg.compression.public_stream import require_shape
from secagg.contract import Aggregate, Histogram, IndexSegment, Layout, Payload, public_parameters_digest
from secagg.contract.codewords import CodewordTable, Tables, require_summed
from secagg.crypto.entropy import Coins
from secagg.crypto.ring import require_capacity
from secagg.errors import InvalidParameters, Misuse
from secagg.parameters import require_integer

from .nearest_codeword import (
    EXACT_WEIGHT,
    ITERATIONS,
    SAMPLE_BLOCKS,
    Codebook,
    Search,
    block_geometry,
    learn_codewords,
    nearest_codewords,
    sample_blocks,
    search,
)

Tensor = npt.NDArray[np.floating[Any]]
MAXIMUM_STAGES: Final = 8
_LEAST_NORM: Final = 2.0**-149


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProductQuantization:
    """A tensor cut into blocks, each of which becomes the index of its nearest codeword.

    With more than one codebook, each quantizes what those before it left over, and the decoded blocks are the sums of
    their codewords. The layout has one index segment for each codebook.

    Implements: [PGC+22], product quantization with secure indexing.
    Security: a histogram reveals more than a sum: it shows how often each codeword was chosen for each block. Give it
        to nobody before it holds enough clients.
    """

    shape: tuple[int, ...]
    codebooks: tuple[Codebook, ...]
    layout: Layout = field(init=False, repr=False)
    """One index segment for each codebook; the blocks of each row of the tensor are consecutive."""
    _searches: tuple[Search, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require_shape(self.shape)
        if type(self.codebooks) is not tuple or any(type(codebook) is not Codebook for codebook in self.codebooks):
            raise Misuse("codebooks are a tuple of Codebook, one for each stage")
        if not 1 <= len(self.codebooks) <= MAXIMUM_STAGES:
            raise InvalidParameters(f"there are 1 to {MAXIMUM_STAGES} codebooks; got {len(self.codebooks)}")
        if any(codebook.block_size != self.block_size for codebook in self.codebooks):
            raise InvalidParameters("the codebooks of all stages have codewords of one size; learn them together")
        if len(self.shape) <= 1 or prod(self.shape[1:]) % self.block_size:
            raise InvalidParameters(
                f"codewords of {self.block_size} values do not divide the rows of a tensor of shape {self.shape}; "
                "block_size() says which sizes do"
            )
        object.__setattr__(self, "layout", self._layout())
        object.__setattr__(self, "_searches", tuple(Search(codebook.values) for codebook in self.codebooks))

    @property
    def block_size(self) -> int:
        """Number of values of a block."""
        return self.codebooks[0].block_size

    @property
    def blocks(self) -> int:
        """Number of blocks of the tensor."""
        return prod(self.shape) // self.block_size

    def _layout(self) -> Layout:
        segments = tuple(IndexSegment(codebook.codewords, self.blocks) for codebook in self.codebooks)
        numbers = (len(self.shape), *self.shape, len(self.codebooks))
        encoded = b"".join(number.to_bytes(8, "big") for number in numbers)
        version = public_parameters_digest(
            "product_quantization", encoded + b"".join(codebook.encode() for codebook in self.codebooks)
        )
        return Layout(segments, version)

    @property
    def capacity(self) -> int:
        """The largest total weight for which the sums of codewords are exact; a histogram has no ring to leave."""
        return EXACT_WEIGHT

    @property
    def tables(self) -> Tables:
        """The codebook of each stage, in its integer steps, for a protocol that releases sums of codewords."""
        return tuple((CodewordTable(self.blocks, codebook.steps),) for codebook in self.codebooks)

    @property
    def largest_norm(self) -> float:
        """The greatest length that a single decoded update can have, whatever codewords a client chooses."""
        longest = (
            float(np.linalg.norm(codebook.values.astype(np.float64), axis=1).max()) for codebook in self.codebooks
        )
        return math.sqrt(self.blocks) * max(sum(longest), _LEAST_NORM)

    @property
    def downlink_bytes(self) -> int:
        """Bytes of the values of the codebooks in a broadcast."""
        return sum(codebook.downlink_bytes for codebook in self.codebooks)

    def encode(self, update: Tensor, coins: Coins) -> Payload:  # noqa: ARG002 -- the contract's
        """Find the codeword nearest to each block; ``nearest_codeword`` says what it approximates."""
        require_floats(update, self.shape)
        return Payload(self.layout, tuple(search(_blocks(finite(update), self.block_size), self._searches)))

    def decode(self, aggregate: Aggregate) -> npt.NDArray[np.float64]:
        """Return the sum of the contributors' quantized updates: codewords times the histogram of each block.

        The sum over each codebook is exact; those of several codebooks are added in float64.

        Raises:
            Misuse: the aggregate belongs to another layout.
            CapacityExceeded: the contributors' weight exceeds the capacity.
        Claim CO-2: a histogram is all that the sum of codewords needs.
        """
        require_sum(aggregate, self.layout, self.capacity)
        histograms: tuple[Histogram, ...] = aggregate.values
        sums = np.zeros((self.blocks, self.block_size))
        for codebook, histogram in zip(self.codebooks, histograms, strict=True):
            sums += codebook.sum_of_codewords(histogram)
        return sums.reshape(self.shape)

    def decode_summed(self, aggregate: Aggregate) -> npt.NDArray[np.float64]:
        """Return what ``decode`` returns, bit for bit, from the sum of the codewords of each stage in their steps."""
        require_summed(aggregate.layout, self.layout, self.tables, aggregate.total_weight)
        require_capacity(aggregate.total_weight, self.capacity)
        sums = np.zeros((self.blocks, self.block_size))
        stages = zip(self.codebooks, aggregate.layout.require_rings(), aggregate.values, strict=True)
        for codebook, segment, value in stages:
            sums += codebook.from_steps(segment.ring.lift(value)).reshape(sums.shape)
        return sums.reshape(self.shape)


def calibrate(  # noqa: PLR0913 -- the parameters of what it makes
    sample: Tensor,
    *,
    block_size: int,
    codewords: int,
    seed: bytes,
    stages: int = 1,
    iterations: int = ITERATIONS,
    keep_zero: bool = True,
    previous: ProductQuantization | None = None,
) -> ProductQuantization:
    """Return the quantizer whose codebooks are learned from a sample; its shape caps block size and codewords.

    Args:
        sample: an array of the tensor's shape that may be public: of a public batch, or of the previous aggregate.
        block_size: the largest size that a block may have.
        codewords: the largest number of codewords of each stage.
        seed: 32 public bytes, from which all that is drawn is derived.
        stages: how many codebooks, each for what those before it leave over.
        iterations: how often each codebook is improved, at most.
        keep_zero: whether a block of zeros is decoded as zeros, at the price of one codeword in each stage.
        previous: the scheme to refresh, whose codebooks are where this round's begin.

    Raises:
        Misuse: the sample is not an array of floats.
        InvalidParameters: the sample is too small for a codebook, or holds NaN, infinity or what a float32 cannot hold;
            a number is out of range; the previous scheme is of another geometry.

    Security: the codebooks are broadcast. Those of a client's own update reveal it in part.
    """
    if getattr(sample, "dtype", np.dtype(bool)).kind != "f":
        raise Misuse("a sample is an array of floats in the shape of the tensor")
    geometry = block_geometry(sample.shape, block_size, codewords)
    require_integer("stages", stages, 1, MAXIMUM_STAGES)
    if previous is not None and (previous.shape != sample.shape or len(previous.codebooks) != stages):
        raise InvalidParameters("the previous scheme is for another shape or number of stages; start without it")
    blocks = _blocks(sample, geometry.block_size)
    wanted = geometry.codewords * SAMPLE_BLOCKS
    points = sample_blocks(blocks, wanted, seed=seed, without_zeros=keep_zero).astype(np.float64)
    codebooks = list[Codebook]()
    for stage in range(stages):
        learned = learn_codewords(
            points,
            geometry.codewords,
            seed=seed,
            iterations=iterations,
            start=None if previous is None else previous.codebooks[stage].values,
            keep_zero=keep_zero,
        )
        codebooks.append(Codebook(learned))
        if stage + 1 < stages:
            (nearest,) = nearest_codewords(points, [codebooks[-1].values])
            points -= codebooks[-1].values[nearest]
    return ProductQuantization(shape=sample.shape, codebooks=tuple(codebooks))


def _blocks(update: Tensor, size: int) -> Tensor:
    return update.reshape(-1, size)
