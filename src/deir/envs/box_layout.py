"""How an array of numbers is laid out: the one rule for environments and for a user's own arrays.

An image comes to height-width-channel order, in uint8 where that loses nothing; a vector becomes float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from deir.envs.spaces import SeenBox

SMALLEST_PICTURE = 16  # a smaller Box of 2 dimensions that is not of bytes is a stack of vectors


class BoxLayout:
    """From arrays of `given` to arrays of `space`, and back. NumPy's and PyTorch's arrays serve alike."""

    def __init__(self, given: spaces.Box, channels_first: bool | None = None) -> None:
        """`channels_first`: seen from the shape when not given. A Box that cannot be laid out is a ValueError."""
        self.given = given
        order = "as it is" if isinstance(given, SeenBox) else axis_order(given, channels_first)
        if order is None:
            raise ValueError(f"{len(given.shape)} dimensions")
        self.order: str = order
        self.space: SeenBox = given if isinstance(given, SeenBox) else self._laid_out()

    @property
    def channels_first(self) -> bool:
        return self.order.endswith("CHW")

    def _laid_out(self) -> SeenBox:
        dtype: Any = np.uint8 if self.order != "flat" and fits_uint8(self.given) else np.float32
        low, high = (self.arrange(bound[None])[0].astype(dtype) for bound in (self.given.low, self.given.high))
        return SeenBox(low, high, dtype=dtype)

    def arrange(self, array: Any) -> Any:
        """[B, *given] -> [B, *obs], with the numbers' type unchanged"""
        if self.order == "as it is":
            return array
        if self.order == "flat":
            return array.reshape(len(array), -1)
        if self.order == "HW":
            return array[..., None]
        if self.channels_first:
            array = _permuted(array, [*range(array.ndim - 3), -2, -1, -3])
        if self.order.startswith("K"):  # [B, K, H, W, C] -> [B, H, W, K * C]
            array = _permuted(array, [0, 2, 3, 1, 4])
            array = array.reshape(*array.shape[:3], -1)
        return array

    def restore(self, array: Any) -> Any:
        """[B, *obs] -> [B, *given]"""
        if self.order == "as it is":
            return array
        if self.order == "flat":
            return array.reshape(len(array), *self.given.shape)
        if self.order == "HW":
            return array[..., 0]
        if self.order.startswith("K"):
            array = array.reshape(*array.shape[:3], self.given.shape[0], -1)
            array = _permuted(array, [0, 3, 1, 2, 4])
        return _permuted(array, [*range(array.ndim - 3), -1, -3, -2]) if self.channels_first else array


def _permuted(array: Any, axes: list[int]) -> Any:
    places = [axis % array.ndim for axis in axes]
    return array.permute(places) if hasattr(array, "permute") else array.transpose(places)


def axis_order(box: spaces.Box, channels_first: bool | None = None) -> str | None:
    """What the axes of a Box are: K frames, Height, Width, Channels; or a vector, to be made flat; None: too many."""
    dims = len(box.shape)
    if dims < 2:
        return "flat"
    if dims == 2:
        picture = min(box.shape) > 1 if fits_uint8(box) else min(box.shape) >= SMALLEST_PICTURE
        return "HW" if picture else "flat"
    shape = box.shape[-3:]
    first = looks_channels_first(shape) if channels_first is None else channels_first
    if min(shape[1:] if first else shape[:2]) == 1:  # too narrow for a convolution
        return "flat"
    last = "CHW" if first else "HWC"
    return {3: last, 4: f"K{last}"}.get(dims)


def looks_channels_first(shape: tuple[int, ...]) -> bool:
    """Few channels, or 1, 3 or 4 of them, stand before a larger height and width, and none of these behind them."""
    first, rest = shape[0], min(shape[1:])
    return (first in (1, 3, 4) or 2 * first <= rest) and rest > first and shape[-1] not in (1, 3, 4)


def fits_uint8(box: spaces.Box) -> bool:
    return bool(np.issubdtype(box.dtype, np.integer) and box.low.min() >= 0 and box.high.max() <= 255)
