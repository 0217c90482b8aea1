"""NumPy's bounded random integers, the same numbers at a tenth of the price of single calls.

MiniGrid's generators draw one small integer at a time, hundreds of thousands for a large MultiRoom, and a call of
`Generator.integers` costs microseconds. `Draws` takes the raw output of the same bit generator in blocks and bounds
it in plain Python by the same rule (Lemire's, on 32-bit halves).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FIRST_BLOCK, _LARGEST_BLOCK = 64, 4096
_LOW = 0xFFFFFFFF


class UnknownDraw(AttributeError):
    """Something other than bounded integers was asked for; a NumPy generator must do the whole episode."""


class Draws:
    """Stands in for the `np.random.Generator` that Gymnasium makes from a seed."""

    def __init__(self) -> None:
        self._bits = np.random.PCG64(0)
        self._block = _FIRST_BLOCK
        self._halves: list[int] = []  # reversed, so that the next one is popped from the end
        self._waiting: NDArray[np.uint32] = np.empty(0, np.uint32)  # those after them

    def seed(self, seed: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(seed))
        self._block = _FIRST_BLOCK
        self._halves = []
        self._waiting = np.empty(0, np.uint32)

    def integers(self, low: int, high: int | None = None, *more: Any, **named: Any) -> int:
        """A number in [low, high[, or in [0, low[."""
        if more or named:
            raise UnknownDraw("integers with options")
        return self.between(0, low) if high is None else self.between(low, high)

    def between(self, low: int, high: int) -> int:
        """A number in [low, high[."""
        span = high - low
        if span == 1:
            return low
        if not 1 < span <= _LOW:
            raise UnknownDraw(f"integers({low}, {high})")
        while True:
            if not self._halves:
                self._refill()
            product = self._halves.pop() * span
            leftover = product & _LOW
            # Lemire: the few products that would favour some numbers are drawn again.
            if leftover >= span or leftover >= (_LOW + 1 - span) % span:
                return low + (product >> 32)

    def spend(self, loop: Callable[[NDArray[np.uint32]], tuple[int, int]]) -> int:
        """What a compiled loop makes of the next halves; it also says how many it used. Below 0 it asks for more."""
        self._waiting = np.concatenate([np.array(self._halves[::-1], np.uint32), self._waiting])
        self._halves = []
        while True:
            result, used = loop(self._waiting)
            self._waiting = self._waiting[used:]
            if result >= 0:
                return result
            self._waiting = np.concatenate([self._waiting, self._drawn()])

    def _refill(self) -> None:
        numbers = self._waiting if self._waiting.size else self._drawn()
        self._halves = numbers[::-1].tolist()
        self._waiting = numbers[:0]

    def _drawn(self) -> NDArray[np.uint32]:
        raw = np.asarray(self._bits.random_raw(self._block))
        self._block = min(2 * self._block, _LARGEST_BLOCK)
        return raw.astype("<u8").view("<u4")  # the low half comes first

    def __getattr__(self, name: str) -> Any:
        raise UnknownDraw(name)
