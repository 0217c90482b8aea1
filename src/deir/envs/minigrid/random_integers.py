"""NumPy's bounded random integers, the same numbers at a tenth of the price of single calls.

MiniGrid's generators draw one small integer at a time, hundreds of thousands for a large MultiRoom, and a call of
`Generator.integers` costs microseconds. `Draws` takes the raw output of the same bit generator in blocks and bounds
it in plain Python by the same rule (Lemire's, on 32-bit halves).
"""

from __future__ import annotations

from typing import Any

import numpy as np

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

    def seed(self, seed: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(seed))
        self._block = _FIRST_BLOCK
        self._halves = []

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

    def _refill(self) -> None:
        raw = self._bits.random_raw(self._block)
        self._halves = np.asarray(raw).astype("<u8").view("<u4")[::-1].tolist()  # the low half comes first
        self._block = min(2 * self._block, _LARGEST_BLOCK)

    def __getattr__(self, name: str) -> Any:
        raise UnknownDraw(name)
