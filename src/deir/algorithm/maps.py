"""Where the agent was on its grid, and where it was rewarded for novelty."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from deir.algorithm.types import Rollout
from deir.algorithm.visits import genuine_arrivals


class ExplorationMaps:
    """Sums over all of training; a cell is [row, column]. The maps grow to the largest cell seen.

    visits: how often the agent acted there. arrivals, intrinsic: how often a step led there, and the raw intrinsic
    reward it earned; what ended an episode is left out, because the grid shows the next episode by then.
    """

    def __init__(self) -> None:
        self.visits: NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self.arrivals: NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self.intrinsic: NDArray[np.float64] = np.zeros((0, 0))

    def update(self, rollout: Rollout, raw: Tensor) -> None:
        """raw: [T, N] intrinsic reward before normalisation."""
        assert rollout.positions is not None
        positions = rollout.positions.cpu()  # [T+1, N, 2]
        height, width = (positions.flatten(0, 1).amax(0) + 1).tolist()[::-1]
        self._grow(max(height, len(self.visits)), max(width, self.visits.shape[1]))
        acted = positions[:-1][rollout.valid.cpu()].numpy()  # [V, 2]
        known = genuine_arrivals(rollout).cpu()
        reached, earned = positions[1:][known].numpy(), raw.cpu()[known].numpy()  # [K, 2], [K]
        np.add.at(self.visits, (acted[:, 1], acted[:, 0]), 1)
        np.add.at(self.arrivals, (reached[:, 1], reached[:, 0]), 1)
        np.add.at(self.intrinsic, (reached[:, 1], reached[:, 0]), earned)

    def _grow(self, height: int, width: int) -> None:
        for name, old in self.arrays().items():
            grown = np.zeros((height, width), old.dtype)
            grown[: len(old), : old.shape[1]] = old
            setattr(self, name, grown)

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"visits": self.visits, "arrivals": self.arrivals, "intrinsic": self.intrinsic}

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {name: array.copy() for name, array in self.arrays().items()}

    def load_state_dict(self, state: dict[str, NDArray[Any]]) -> None:
        self.visits, self.arrivals = np.array(state["visits"]), np.array(state["arrivals"])
        self.intrinsic = np.array(state["intrinsic"])
