"""What is done to a MiniGrid view before the policy sees it: pure functions, vectorised over [N, H, W, C].

The order is view -> invisible obstacles -> noise.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

NoiseUnits = Literal["normalized", "raw"]
UNSEEN, EMPTY, WALL = 0, 1, 2  # object codes that Algorithm A5 makes one
LARGEST_CODES = np.array([10, 5, 2], dtype=np.float32)  # object (agent), colour (grey), state (locked)


def invisible_obstacles(observations: NDArray[Any]) -> NDArray[Any]:
    """Algorithm A5: unseen, empty and wall cells all become (0, 0, 0); every other cell stays as it is.

    `observations` is [..., 3] with the channels object, colour, state; the result is a new array.
    """
    kept = observations[..., 0] > WALL  # [...]
    return np.asarray(observations * kept[..., None].astype(observations.dtype))


def add_noise(
    observations: NDArray[Any], sigma: float, units: NoiseUnits, rng: np.random.Generator
) -> NDArray[np.float32]:
    """Algorithm A4: o' = o + n with n ~ N(0, sigma), one independent draw for each of the [..., 3] elements.

    `normalized` first divides each channel by its largest code (object 10, colour 5, state 2), so that o is in [0, 1];
    `raw` takes the integer codes as they are.
    """
    return with_noise(observations, sigma, units, rng.standard_normal(observations.shape, dtype=np.float32))


def with_noise(
    observations: NDArray[Any], sigma: float, units: NoiseUnits, drawn: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The same of draws from N(0, 1), in place."""
    drawn *= np.float32(sigma)
    drawn += observations / largest_codes(units)
    return drawn


def largest_codes(units: NoiseUnits) -> NDArray[np.float32]:
    """What the channels are divided by."""
    return LARGEST_CODES if units == "normalized" else np.ones_like(LARGEST_CODES)
