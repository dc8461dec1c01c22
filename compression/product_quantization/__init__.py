"""Product quantization: blocks of a tensor become indices into a common codebook, and histograms become sums.

``geometry`` holds the size rules, as functions of shapes alone; ``codebook`` what is broadcast; ``kmeans`` how it is
learned; ``nearest_codeword`` the client's hot path; ``scheme`` puts them together.
"""

from .nearest_codeword import (
    BlockGeometry,
    Codebook,
    block_geometry,
    block_size,
    codeword_count,
    is_quantizable,
    learn_codewords,
    nearest_codewords,
    sample_blocks,
)
from .scheme import ProductQuantization, calibrate

__all__ = [
    "BlockGeometry",
    "Codebook",
    "ProductQuantization",
    "block_geometry",
    "block_size",
    "calibrate",
    "codeword_count",
    "is_quantizable",
    "learn_codewords",
    "nearest_codewords",
    "sample_blocks",
]
