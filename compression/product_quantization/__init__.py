"""Product quantization: blocks of a tensor become indices into a common codebook, and histograms become sums.

``geometry`` holds the size rules, as functions of shapes alone; ``codebook`` what is broadcast; ``kmeans`` how it is
learned; ``nearest_codeword`` the client's hot path; ``scheme`` puts them together.
"""

from secagg.compression.product_quantization.codebook import Codebook
from secagg.compression.product_quantization.geometry import (
    BlockGeometry,
    block_geometry,
    block_size,
    codeword_count,
    is_quantizable,
)
from secagg.compression.product_quantization.kmeans import learn_codewords, sample_blocks
from secagg.compression.product_quantization.nearest_codeword import nearest_codewords
from secagg.compression.product_quantization.scheme import ProductQuantization, calibrate

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
