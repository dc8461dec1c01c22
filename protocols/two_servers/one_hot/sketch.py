"""What a server computes from its share of an upload: the openings of the one-hot check.

Both large sums are matrix products over the share Y, M rows of G k lanes, and Y is made in chunks of rows: the
openings of the rows, Y (r (x) L(tau)), and the sums over the rows, rho^T Y. Each chunk is turned into floating-point
numbers once, used for both products while the cache holds it, and forgotten. The share itself is asked for in windows
of whole runs, in which shares are made fastest. Threads divide the rows. The result depends on none of this, because
every product is exact.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from secagg.errors import Misuse
from secagg.identifiers import ServerId
from secagg.parameters import require_integer
from secagg.protocols.two_servers.lanes.exact_product import Floats, Integers, exact_product, float_type
from secagg.protocols.two_servers.lanes.extension_field import Elements
from secagg.protocols.two_servers.lanes.fields import LaneVector, centre, reduce, reduce_signed
from secagg.protocols.two_servers.point_functions.shape import RUN_BLOCKS

from .statement import Challenges, CheckShape, OneHotShare

_CHUNK_LANES = 1 << 17
"""Lanes that are turned into floating-point numbers at a time; with their products they fit a second-level cache."""
_WINDOW_LANES = 1 << 22
"""With more lanes than this in a run, windows are parts of runs, so that they take at most 16 MiB."""


@dataclass(frozen=True, slots=True, eq=False)
class OneHotSketch:
    """Shares of f_i(tau) for every row, of p(tau) and of v."""

    rows: Elements = field(repr=False)
    polynomial: Elements = field(repr=False)
    linear: Elements = field(repr=False)


def sketch(  # noqa: PLR0913 -- each is named where it is passed
    shape: CheckShape,
    server: ServerId,
    share: OneHotShare,
    challenges: Challenges,
    *,
    masks: Elements,
    polynomial: Elements,
    point: Elements,
    threads: int = 1,
) -> OneHotSketch:
    """Return one server's share of what is opened.

    Args:
        masks: this server's shares of f_i(0).
        polynomial: this server's share of the values of p.
        point: the query point tau.
    Raises:
        InvalidParameters: the point lies in the base field; fewer than one thread.
        CapacityExceeded, Misuse: the share is no matrix of lanes of this shape.
    """
    base = shape.field
    weights = shape.row_points.weights_at(point)
    polynomial_weights = shape.polynomial_points.weights_at(point)
    sums = _Sums(shape, server, share, challenges, weights)
    per_row, over_rows = sums.compute(threads)
    opened = base.add(per_row, base.scale(masks, weights[0]))
    by_column = over_rows.reshape(shape.columns, shape.codewords, base.degree)
    squares = base.multiply(challenges.codeword, challenges.codeword)
    not_boolean = base.subtract(polynomial[1 : shape.columns + 1], base.inner_product(by_column, squares))
    totals = reduce(by_column.sum(axis=1), shape.base.bits, shape.codewords * shape.modulus)
    if server.index == 0:
        row_sum = reduce(challenges.row.sum(axis=0), shape.base.bits, shape.rows * shape.modulus)
        totals = base.subtract(totals, row_sum)
    linear = base.add(base.inner_product(challenges.square, not_boolean), base.inner_product(challenges.total, totals))
    return OneHotSketch(opened, base.inner_product(polynomial_weights, polynomial), linear)


class _Sums:
    """The two matrix products over a share."""

    def __init__(
        self, shape: CheckShape, server: ServerId, share: OneHotShare, challenges: Challenges, weights: Elements
    ) -> None:
        self.shape, self.server, self.share = shape, server, share
        # Lanes in [0, q) meet centred coefficients, so products are at most (q - 1)^2 / 2 in magnitude.
        self.greatest = (shape.modulus - 1) ** 2 // 2
        self.float = float_type(self.greatest)
        field = shape.field
        by_lane = field.multiply(weights[1:, np.newaxis], challenges.codeword).reshape(-1, field.degree)
        self.by_lane: Floats = centre(by_lane, shape.base.bits).astype(self.float)
        self.by_row: Floats = centre(challenges.row, shape.base.bits).astype(self.float)

    def compute(self, threads: int) -> tuple[Elements, Elements]:
        """Return sum_g L_g(tau) <r, y_ig> for every row, and sum_i rho_i y_igj for every column and codeword."""
        require_integer("threads", threads, 1)
        shape, bits = self.shape, self.shape.base.bits
        per_row = np.empty((shape.rows, shape.field.degree), dtype=np.int64)
        edges = [shape.rows * index // threads for index in range(threads + 1)]
        parts = [slice(low, high) for low, high in pairwise(edges) if low < high]
        if len(parts) == 1:
            over_rows = self._over(parts[0], per_row)
        else:
            with ThreadPoolExecutor(len(parts)) as pool:
                jobs = [pool.submit(self._over, part, per_row) for part in parts]
                over_rows = sum((job.result() for job in jobs[1:]), start=jobs[0].result())
        lanes = shape.columns * shape.codewords
        return (
            reduce_signed(per_row, bits, lanes * self.greatest),
            reduce_signed(over_rows, bits, shape.rows * self.greatest),
        )

    def _over(self, part: slice, per_row: Integers) -> Integers:
        """Go through some of the rows; write what belongs to each and return what is summed over them."""
        width = self.shape.columns * self.shape.codewords
        step = max(1, _CHUNK_LANES // width)
        buffer = np.empty((min(step, part.stop - part.start), width), dtype=self.float)
        windows = _Windows(self.shape, self.share)
        total = np.zeros((width, self.shape.field.degree), dtype=np.int64)
        for first in range(part.start, part.stop, step):
            last = min(first + step, part.stop)
            rows = buffer[: last - first]
            self._fill(rows, first, last, windows)
            per_row[first:last] = exact_product(rows, self.by_lane, self.greatest)
            total += exact_product(rows.T, self.by_row[first:last], self.greatest)
        buffer.fill(0)
        return total

    def _fill(self, rows: Floats, first: int, last: int, windows: _Windows) -> None:
        """Write the lanes of some rows, and in what fills the last row the servers' public constants."""
        by_block = rows.reshape(-1, self.shape.codewords)
        start, stop = first * self.shape.columns, min(last * self.shape.columns, self.shape.blocks)
        windows.copy_into(by_block[: stop - start], start)
        by_block[stop - start :] = 0
        by_block[stop - start :, 0] = 1 - self.server.index


class _Windows:
    """The share in windows that begin at multiples of a power of two, of which the last one is kept."""

    def __init__(self, shape: CheckShape, share: OneHotShare) -> None:
        self.shape, self.share = shape, share
        self.size = min(RUN_BLOCKS, 1 << (_WINDOW_LANES // shape.codewords).bit_length() - 1)
        self._first, self._lanes = -1, shape.base.zeros(0)

    def copy_into(self, target: Floats, start: int) -> None:
        """Write the lanes of as many blocks as the target has rows."""
        position, stop = start, start + len(target)
        while position < stop:
            first = position // self.size * self.size
            end = min(stop, first + self.size)
            target[position - start : end - start] = self._window(first)[position - first : end - first]
            position = end

    def _window(self, first: int) -> LaneVector:
        if first != self._first:
            count = min(self.size, self.shape.blocks - first)
            lanes = self.shape.base.require_lanes(self.share.lanes(first, count))
            if lanes.shape != (count, self.shape.codewords):
                raise Misuse(f"a share gives {count} blocks of {self.shape.codewords} lanes; got {lanes.shape}")
            self._first, self._lanes = first, lanes
        return self._lanes
