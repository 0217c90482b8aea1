"""Which cells of a view are seen, for all environments at once.

MiniGrid spreads light from the agent's row upwards. What becomes of one row depends on two bit masks only: which of
its cells are lit from below, and which are opaque. `light_row` is that function; for the usual view sizes a table
holds all its values. Bit i of a mask is column i of the view.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LARGEST_TABLE = 9  # 4^9 entries; wider views compute each row, which is slower but the same

Masks = NDArray[np.int64]


def light_row(lit: Masks, opaque: Masks, width: int) -> tuple[Masks, Masks]:
    """The row's final mask and what it lights in the row ahead, by MiniGrid's two sweeps.

    A lit see-through cell lights its neighbour in the direction of the sweep, the cell ahead of it and the one ahead
    of that neighbour. The sweep to the left sees what the sweep to the right has lit.
    """
    lit = lit.copy()
    ahead = np.zeros_like(lit)
    for column in range(width - 1):
        shines = (lit >> column) & (~opaque >> column) & 1
        lit |= shines << (column + 1)
        ahead |= shines * (0b11 << column)
    for column in range(width - 1, 0, -1):
        shines = (lit >> column) & (~opaque >> column) & 1
        lit |= shines << (column - 1)
        ahead |= shines * (0b11 << (column - 1))
    return lit, ahead


class Visibility:
    """Visible cells of square views of one size."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._columns = 1 << np.arange(size)  # [V]
        self._tabulated = size <= LARGEST_TABLE
        if self._tabulated:
            keys = np.arange(1 << (2 * size))  # lit mask above, opaque mask below
            lit, ahead = light_row(keys >> size, keys & ((1 << size) - 1), size)
            self._seen = lit
            self._ahead = ahead << size  # ready to be joined with the next row's opaque mask
            masks = np.arange(1 << size)[:, None] & self._columns  # [2^V, V]
            self._cells = np.where(masks > 0, np.uint16(0xFFFF), np.uint16(0))

    def masks(self, opaque: NDArray[np.int64]) -> NDArray[np.uint16]:
        """0xFFFF where seen and 0 elsewhere, for views [K, V, V] in MiniGrid's order (column, row).

        The agent stands in the middle of the last row; `opaque` is 1 where one cannot see through.
        """
        size = self.size
        rows = np.matmul(self._columns, opaque)  # [K, V] one bit mask for each row
        if not self._tabulated:
            return self._computed(rows)
        keys = np.empty((size, len(rows)), dtype=np.int64)  # [V, K]
        lit: Masks | int = 1 << (size // 2 + size)
        for row in range(size - 1, -1, -1):
            np.bitwise_or(rows[:, row], lit, out=keys[row])
            lit = self._ahead.take(keys[row])
        return self._cells.take(self._seen.take(keys), axis=0).transpose(1, 2, 0)  # [V, K, V] -> [K, V, V]

    def _computed(self, rows: Masks) -> NDArray[np.uint16]:
        seen = np.empty_like(rows)  # [K, V]
        lit = np.full(len(rows), 1 << (self.size // 2))
        for row in range(self.size - 1, -1, -1):
            seen[:, row], lit = light_row(lit, rows[:, row], self.size)
        cells = seen[:, None, :] & self._columns[:, None]  # [K, V, V]
        return np.where(cells > 0, np.uint16(0xFFFF), np.uint16(0))
