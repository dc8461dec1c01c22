"""The size columns of the paper's tables, as they are printed; nothing here is computed.

Sizes are in KB of 1024 bytes. The accuracy columns are results of experiments and stand elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class PrintedRow:
    """One row: the model, what the method was configured with, and two cells."""

    dataset: str
    parameters: Mapping[str, str]
    size: str
    """The size of an upload or of all codebooks, in KB."""
    ratio: str
    """The compression factor, or for codebooks the percentage of the model's size."""


def _rows(table: str) -> tuple[PrintedRow, ...]:
    """Read the rows under a head: the dataset, the parameters by their heads, and the two cells."""
    (_, *heads), *rows = [line.split() for line in table.strip().splitlines()]
    return tuple(
        PrintedRow(dataset, dict(zip(heads[:-2], cells[:-2], strict=True)), *cells[-2:]) for dataset, *cells in rows
    )


SCALAR_QUANTIZATION: Final = _rows(
    """
    dataset   p       KB  factor
    CelebA    1      4.3    26.6
    CelebA    2      7.9    14.6
    CelebA    3     11.4    10.0
    CelebA    4     15.0     7.6
    CelebA    5     18.5     6.2
    CelebA    6     22.1     5.2
    CelebA    7     25.6     4.5
    CelebA    8     29.2     3.9
    CelebA    9     32.7     3.5
    CelebA   10     36.3     3.2
    CelebA   11     39.8     2.9
    CelebA   12     43.4     2.6
    CelebA   13     46.9     2.4
    CelebA   14     50.5     2.3
    CelebA   15     54.0     2.1
    Sent140   1    399.3    31.5
    Sent140   2    792.3    15.9
    Sent140   3   1185.4    10.6
    Sent140   4   1578.4     8.0
    Sent140   5   1971.4     6.4
    Sent140   6   2364.5     5.3
    Sent140   7   2757.5     4.6
    Sent140   8   3150.6     4.0
    Sent140   9   3543.6     3.6
    Sent140  10   3936.6     3.2
    Sent140  11   4329.7     2.9
    Sent140  12   4722.7     2.7
    Sent140  13   5115.7     2.5
    Sent140  14   5508.8     2.3
    Sent140  15   5901.8     2.1
    FEMNIST   1   1404.0    31.2
    FEMNIST   2   2770.3    15.8
    FEMNIST   3   4136.5    10.6
    FEMNIST   4   5502.8     8.0
    FEMNIST   5   6869.0     6.4
    FEMNIST   6   8235.3     5.3
    FEMNIST   7   9601.5     4.6
    FEMNIST   8  10967.8     4.0
    FEMNIST   9  12334.1     3.6
    FEMNIST  10  13700.3     3.2
    FEMNIST  11  15066.6     2.9
    """
)
"""[PGC+22] the table of scalar quantization with weighted aggregation; p is the width of the ring."""

SCALAR_QUANTIZATION_UNWEIGHTED: Final = _rows(
    """
    dataset   p       KB  factor
    CelebA    1      4.3    26.5
    CelebA    2      7.9    14.6
    CelebA    3     11.4    10.0
    CelebA    4     15.0     7.6
    CelebA    5     18.5     6.2
    CelebA    6     22.1     5.2
    CelebA    7     25.6     4.5
    CelebA    8     29.2     3.9
    CelebA    9     32.7     3.5
    CelebA   10     36.3     3.2
    CelebA   11     39.8     2.9
    CelebA   12     43.4     2.6
    CelebA   13     46.9     2.4
    CelebA   14     50.5     2.3
    CelebA   15     54.0     2.1
    Sent140   1    399.3    31.5
    Sent140   2    792.3    15.9
    Sent140   3   1185.4    10.6
    Sent140   4   1578.4     8.0
    Sent140   5   1971.4     6.4
    Sent140   6   2364.5     5.3
    Sent140   7   2757.5     4.6
    Sent140   8   3150.6     4.0
    Sent140   9   3543.6     3.6
    Sent140  10   3936.6     3.2
    Sent140  11   4329.7     2.9
    Sent140  12   4722.7     2.7
    Sent140  13   5115.7     2.5
    Sent140  14   5508.8     2.3
    Sent140  15   5901.8     2.1
    FEMNIST   1   1404.0    31.2
    FEMNIST   2   2770.3    15.8
    FEMNIST   3   4136.5    10.6
    FEMNIST   4   5502.8     8.0
    FEMNIST   5   6869.0     6.4
    FEMNIST   6   8235.3     5.3
    FEMNIST   7   9601.5     4.6
    FEMNIST   8  10967.8     4.0
    FEMNIST   9  12334.1     3.5
    FEMNIST  10  13700.3     3.2
    FEMNIST  11  15066.6     2.9
    """
)
"""[PGC+22] the table of scalar quantization with unweighted aggregation."""

PRUNING: Final = _rows(
    """
    dataset  sparsity       KB  factor
    CelebA        0.1    103.0     1.1
    CelebA        0.2     91.6     1.2
    CelebA        0.3     80.3     1.4
    CelebA        0.4     68.9     1.7
    CelebA        0.5     57.5     2.0
    CelebA        0.6     46.1     2.5
    CelebA        0.7     34.8     3.3
    CelebA        0.8     23.4     4.9
    CelebA        0.9     12.0     9.5
    CelebA       0.91     10.9    10.5
    CelebA       0.92      9.8    11.7
    CelebA       0.93      8.6    13.3
    CelebA       0.94      7.5    15.3
    CelebA       0.95      6.3    18.1
    CelebA       0.96      5.2    22.0
    CelebA       0.97      4.1    28.2
    CelebA       0.98      2.9    39.1
    CelebA       0.99      1.8    64.1
    Sent140       0.1  11325.7     1.1
    Sent140       0.2  10068.0     1.2
    Sent140       0.3   8810.3     1.4
    Sent140       0.4   7552.6     1.7
    Sent140       0.5   6294.9     2.0
    Sent140       0.6   5037.1     2.5
    Sent140       0.7   3779.4     3.3
    Sent140       0.8   2521.7     5.0
    Sent140       0.9   1264.0    10.0
    Sent140      0.91   1138.2    11.1
    Sent140      0.92   1012.4    12.4
    Sent140      0.93    886.7    14.2
    Sent140      0.94    760.9    16.5
    Sent140      0.95    635.1    19.8
    Sent140      0.96    509.4    24.7
    Sent140      0.97    383.6    32.8
    Sent140      0.98    257.8    48.8
    Sent140      0.99    132.0    95.3
    FEMNIST       0.1  39384.2     1.1
    FEMNIST       0.2  35010.3     1.2
    FEMNIST       0.3  30636.4     1.4
    FEMNIST       0.4  26262.5     1.7
    FEMNIST       0.5  21888.5     2.0
    FEMNIST       0.6  17514.7     2.5
    FEMNIST       0.7  13140.8     3.3
    FEMNIST       0.8   8766.9     5.0
    FEMNIST       0.9   4393.0    10.0
    FEMNIST      0.91   3955.6    11.1
    FEMNIST      0.92   3518.2    12.4
    FEMNIST      0.93   3080.8    14.2
    FEMNIST      0.94   2643.4    16.6
    FEMNIST      0.95   2206.0    19.8
    FEMNIST      0.96   1768.6    24.7
    FEMNIST      0.97   1331.2    32.9
    FEMNIST      0.98    893.9    49.0
    FEMNIST      0.99    456.5    95.9
    """
)
"""[PGC+22] the table of random pruning."""

PRODUCT_QUANTIZATION: Final = _rows(
    """
    dataset   k   d      KB  factor
    CelebA    8   4     3.4    33.2
    CelebA    8   9     1.9    58.9
    CelebA    8  18     1.4    83.7
    CelebA   16   4     4.3    26.3
    CelebA   16   9     2.3    49.0
    CelebA   16  18     1.6    73.0
    CelebA   32   4     5.2    21.8
    CelebA   32   9     2.7    42.2
    CelebA   32  18     1.8    65.2
    CelebA   64   4     6.1    18.7
    CelebA   64   9     3.1    37.1
    CelebA   64  18     1.9    58.9
    Sent140   8   4   301.0    41.8
    Sent140   8   9   204.2    61.6
    Sent140   8  18    86.3   145.8
    Sent140  16   4   399.3    31.5
    Sent140  16   9   270.2    46.6
    Sent140  16  18   113.0   111.3
    Sent140  32   4   497.5    25.3
    Sent140  32   9   336.2    37.4
    Sent140  32  18   139.7    90.1
    Sent140  64   4   595.8    21.1
    Sent140  64   9   402.2    31.3
    Sent140  64  18   166.4    75.6
    FEMNIST   8   4  1063.3    41.2
    FEMNIST   8   9   494.6    88.5
    FEMNIST   8  18   266.4   164.3
    FEMNIST  16   4  1405.1    31.1
    FEMNIST  16   9   646.8    67.6
    FEMNIST  16  18   342.6   127.7
    FEMNIST  32   4  1747.0    25.0
    FEMNIST  32   9   799.1    54.8
    FEMNIST  32  18   418.8   104.5
    FEMNIST  64   4  2088.9    20.9
    FEMNIST  64   9   951.4    46.0
    FEMNIST  64  18   495.1    88.4
    """
)
"""[PGC+22] the table of product quantization; k codewords at most, of d numbers at most."""

CODEBOOKS: Final = _rows(
    """
    dataset   k   d    KB  percent
    CelebA    8   4   0.6      0.5
    CelebA    8  18   2.5      2.2
    CelebA   64   4   4.2      3.7
    CelebA   64  18  14.6     12.8
    Sent140   8   4   0.9      0.0
    Sent140   8  18   2.3      0.0
    Sent140  64   4   5.4      0.0
    Sent140  64  18  15.4      0.1
    FEMNIST   8   4   2.6      0.0
    FEMNIST   8  18  11.2      0.0
    FEMNIST  64   4  20.8      0.0
    FEMNIST  64  18  89.8      0.2
    """
)
"""[PGC+22] the table of the codebooks that are broadcast."""
