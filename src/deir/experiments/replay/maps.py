"""Where the agent was, what it found new and what it expected, summed over episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from deir.experiments.replay.recording import Recording

KEPT_DIGITS = 4


class Map:
    """Sums over cells, which are named by (column, row); relative ones may be negative."""

    def __init__(self) -> None:
        self.episodes = 0
        self.cells: dict[tuple[int, int], list[float]] = {}  # visits, their values, arrivals, their intrinsic rewards

    def add(
        self,
        places: NDArray[np.int64],  # [L or L+1, 2] where the agent stood; the last only if it is known
        values: NDArray[Any],  # [L] V(o_t)
        intrinsic: NDArray[Any],  # [L] earned by the step from t to t+1
    ) -> None:
        self.episodes += 1
        cells = [(int(x), int(y)) for x, y in places]
        for t, value in enumerate(values.tolist()):
            entry = self.cells.setdefault(cells[t], [0, 0.0, 0, 0.0])
            entry[0] += 1
            entry[1] += value
        for arrived, reward in zip(cells[1:], intrinsic.tolist(), strict=False):
            entry = self.cells.setdefault(arrived, [0, 0.0, 0, 0.0])
            entry[2] += 1
            entry[3] += reward

    def data(self) -> dict[str, Any]:
        """Columns, rows, visits, mean values and mean intrinsic rewards of the cells, null where there is none."""
        rows = sorted(self.cells.items())
        return {
            "episodes": self.episodes,
            "x": [cell[0] for cell, _ in rows],
            "y": [cell[1] for cell, _ in rows],
            "visits": [entry[0] for _, entry in rows],
            "value": [_mean(entry[1], entry[0]) for _, entry in rows],
            "intrinsic": [_mean(entry[3], entry[2]) for _, entry in rows],
        }


def _mean(total: float, count: float) -> float | None:
    return float(f"{total / count:.{KEPT_DIGITS}g}") if count else None


def map_of(recording: Recording, relative: bool) -> Map | None:
    """Over all episodes of a recording; `relative` to the cell where each began. None where there is no grid."""
    found = Map()
    for env, length in enumerate(recording.lengths.tolist()):
        places = recording.camera.positions(env, length)
        if places is None:
            return None
        values, raw = recording.values[:length, env].numpy(), recording.raw[:length, env].numpy()
        found.add(places - places[0] if relative else places, values, raw)
    return found
