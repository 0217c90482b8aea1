"""What a report measures: metrics, thresholds, and the figures of one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from deir.experiments.report.statistics import Array, Band

ALL = "all tasks"
METRICS = {
    "return_mean": "return",
    "success_rate": "success rate",
    "episodic_efficiency": "episodic efficiency",
    "lifelong_efficiency": "lifelong efficiency",
    "intrinsic_reward_mean": "intrinsic reward",
}
AXES = ("frames", "seconds")
MEASURES = {"final": "final return", "auc": "area under the curve"}


@dataclass(frozen=True)
class Threshold:
    """A return to be reached: a share of the task's best return, or the return itself."""

    key: str
    label: str
    share: float | None = None
    value: float = float("nan")

    def of(self, best: float) -> float:
        """NaN if the task's best return is not above 0, so that a share of it says nothing."""
        if self.share is None:
            return self.value
        return self.share * best if best > 0 else float("nan")


THRESHOLDS = (
    Threshold("half_best", "0.5 of the best", share=0.5),
    Threshold("most_best", "0.9 of the best", share=0.9),
    Threshold("return_0.9", "return 0.9", value=0.9),
)


@dataclass(frozen=True)
class RunFigures:
    """One run in numbers."""

    final: float
    auc: float
    episodic: float
    lifelong: float
    reached: dict[str, float]  # frames by threshold; infinite: never; NaN: no whole run, or no such threshold


class Series(NamedTuple):
    """The curves of all methods."""

    x: dict[str, Array]
    bands: dict[str, Band]
    runs: dict[str, int]  # of each method, with a value anywhere

    @property
    def longest(self) -> float:
        return float(max(np.nanmax(x, initial=0) for x in self.x.values()))
