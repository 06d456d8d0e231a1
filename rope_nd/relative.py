"""Learned tables of offsets: T5's, with buckets that widen with distance, and Swin's, with an entry for each offset."""

from __future__ import annotations

import math
from itertools import product

import torch
from torch import Tensor, nn

from ._check import check_extent, choose
from .bias import Bias, offsets, read
from .positions import Extent

MOST = 2**20  # rows of a product table, or of a table of offsets, that are still a table


def bucket_starts(count: int, reach: int) -> tuple[int, ...]:
    """The shortest distance of buckets 1, 2, .. of the `count` of one direction (bucket 0 is distance 0).

    The first half holds one distance each, the other widens so that distance d is in bucket e + floor((n - e) ln(d / e) /
    ln(reach / e)) for n = count, e = n // 2; the last one holds what is beyond. Distances beyond `reach` count as `reach`.
    """
    exact = count // 2
    if reach <= exact:
        return tuple(range(1, reach + 1))
    far = [exact * (reach / exact) ** (k / (count - exact)) for k in range(1, count - exact)]
    return (*range(1, exact + 1), *(math.ceil(start - 1e-9) for start in far))


def bucket(offset: Tensor, count: int, reach: int) -> Tensor:
    """The T5 bucket, 0 .. `count` - 1, of real offsets key - query: the lower half looks back, the upper half ahead."""
    whole = offset.round().clamp(-reach, reach)
    starts = torch.tensor(bucket_starts(count // 2, reach), dtype=whole.dtype, device=whole.device)
    return torch.bucketize(whole.abs(), starts, right=True) + (whole > 0) * (count // 2)


class T5(Bias):
    """Relative buckets (Raffel 2020), one table an axis: bias[h, i, j] = sum_a table[a, bucket(x_ja - x_ia), h].

    Half the buckets are for keys behind, half for keys ahead; of each half, one half holds one distance each (0 .. 7 of 32
    buckets), the others widen logarithmically up to `max_distance`, and the last one holds all that is beyond. Offsets that
    are no whole numbers are rounded. All layers share the tables, as in T5; they start normal with deviation `std`.

    `max_distance` is one number or one an axis. T5's, 128, is for text: on a grid of 14 the far buckets would never be
    trained, and a larger grid would read them. So, by default, it is the longest offset of `trained_extent`, T - 1, and what
    is farther reads the last trained bucket; without a trained extent it is 128. Use it where offsets along the axes matter
    one by one, and sizes vary; the joint table, `T5Joint`, also knows directions between the axes.
    """

    def __init__(
        self,
        heads: int,
        axes: int,
        *,
        buckets: int = 32,
        max_distance: int | tuple[int, ...] | None = None,
        trained_extent: tuple[int, ...] | None = None,
        std: float = 0.02,
    ) -> None:
        super().__init__(heads, axes)
        if isinstance(buckets, bool) or not isinstance(buckets, int) or buckets < 2 or buckets % 2:
            raise ValueError(f"buckets={buckets!r}: give an even number of at least 2, for example 32: half of them look ahead")
        self.buckets, self.std = buckets, std
        self.max_distance = _reach(max_distance, trained_extent, axes)
        self.table = nn.Parameter(torch.empty(*self._rows(), heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.std)

    def between(self, query: Tensor, key: Tensor, extent: Extent | None) -> Tensor:
        each = self._buckets(query, key)
        total = read(self.table[0], each[0])
        for table, index in zip(self.table[1:], each[1:]):
            total = total + read(table, index)
        return total

    def _rows(self) -> tuple[int, ...]:
        return self.axes, self.buckets

    def _buckets(self, query: Tensor, key: Tensor) -> list[Tensor]:
        """The bucket of each pair along each axis, A tensors `[.., Nq, Nk]`."""
        return [bucket(o, self.buckets, reach) for o, reach in zip(offsets(query, key), self.max_distance)]


class T5Joint(T5):
    """Relative buckets, one table for all axes together: bias[h, i, j] = table[bucket(x_j1 - x_i1), .., bucket(x_jA - x_iA), h].

    As `T5` but with an entry for each combination, buckets^A of them, flat, the last axis fastest. Any function of the
    buckets can be learned, which the sum of `T5` cannot; with three axes take fewer buckets.
    """

    def between(self, query: Tensor, key: Tensor, extent: Extent | None) -> Tensor:
        first, *others = self._buckets(query, key)
        for index in others:
            first = first * self.buckets + index
        return read(self.table, first)

    def _rows(self) -> tuple[int, ...]:
        if self.buckets**self.axes > MOST:
            fewer = int((MOST + 0.5) ** (1 / self.axes)) // 2 * 2
            raise ValueError(f"buckets={self.buckets}: {self.buckets}^{self.axes} entries are too many; give at most {fewer}")
        return (self.buckets**self.axes,)


class RelativeTable(Bias):
    """A learned entry for each offset of the trained grid (Swin, Liu 2021; BEiT), read between its entries.

    bias[h, i, j] = table[x_i - x_j + T - 1, h], T the trained extent; (2 T - 1)^A entries, flat, the last axis fastest, as
    Swin keeps them. Between whole offsets the table is read multilinearly, beyond it the border entry is read.

    - `scaling="pi"`: offsets are multiplied by T_a / N_a, N the grid at hand, as a learned table of positions is stretched:
      tokens that are the same share of the image apart read the same entry. (Swin resizes by (2 T - 1) / (2 N - 1), which is
      close; (T - 1) / (N - 1) would keep the corners together, and move every nearer pair to do so.)
    - `scaling="none"`: offsets are counted in tokens at every size.

    Each layer has its own, which starts truncated normal with deviation `std`. Use it where the trained size is the one that
    counts: it is the most free of all biases, and knows nothing of sizes that it has not seen.
    """

    layered = True

    def __init__(
        self,
        heads: int,
        axes: int,
        *,
        trained_extent: tuple[int, ...] | None = None,
        scaling: str | None = "pi",
        std: float = 0.02,
    ) -> None:
        super().__init__(heads, axes)
        if trained_extent is None or len(trained_extent) != axes:
            raise ValueError(f"trained_extent={trained_extent!r}: a table of offsets needs its size, {axes} token counts")
        self.extent = check_extent(tuple(trained_extent), "trained_extent")
        self.sized = choose("scaling for a table of offsets", scaling or "none", ("pi", "none")) == "pi"
        self.std = std
        rows = math.prod(2 * count - 1 for count in self.extent)
        if rows > MOST:
            raise ValueError(f"trained_extent={self.extent!r}: a table of {rows} offsets is too large; use bias 't5' or 'fire'")
        self.table = nn.Parameter(torch.empty(rows, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.table, std=self.std)

    def between(self, query: Tensor, key: Tensor, extent: Extent | None) -> Tensor:
        size = self.whole(extent if self.sized else self.extent)  # [A]
        near = []  # for each axis the two entries around an offset, and their weights
        for axis, (count, offset) in enumerate(zip(self.extent, offsets(query, key))):
            at = (count - 1 - offset * (count / size[axis])).clamp(0, 2 * count - 2)  # [.., Nq, Nk], query - key
            below = at.floor()
            share = (at - below).float()
            near.append([(below.long(), 1 - share), ((below.long() + 1).clamp(max=2 * count - 2), share)])
        corners = map(self._corner, product(*near))
        row, weight = next(corners)
        total = read(self.table, row) * weight
        for row, weight in corners:
            total = torch.addcmul(total, read(self.table, row), weight)
        return total

    def _corner(self, corner: tuple[tuple[Tensor, Tensor], ...]) -> tuple[Tensor, Tensor]:
        """One of the entries around each pair, by `(index, weight)` an axis: its row `[.., Nq, Nk]`, weight `[.., 1, Nq, Nk]`."""
        row, weight = corner[0]
        for count, (index, share) in zip(self.extent[1:], corner[1:]):
            row, weight = row * (2 * count - 1) + index, weight * share
        return row, weight[..., None, :, :]


def _reach(max_distance: int | tuple[int, ...] | None, trained_extent: tuple[int, ...] | None, axes: int) -> tuple[int, ...]:
    """The distance along each axis beyond which all are alike."""
    if trained_extent is not None and len(check_extent(tuple(trained_extent), "trained_extent")) != axes:
        raise ValueError(f"trained_extent={trained_extent!r} has {len(trained_extent)} entries for axes={axes}")
    if max_distance is None:
        return (128,) * axes if trained_extent is None else tuple(count - 1 for count in trained_extent)
    each = tuple(max_distance) if isinstance(max_distance, (tuple, list)) else (max_distance,) * axes
    if len(each) != axes or any(isinstance(d, bool) or not isinstance(d, int) or d < 1 for d in each):
        raise ValueError(f"max_distance={max_distance!r}: give a whole number of at least 1, or {axes} of them, one an axis")
    return each
