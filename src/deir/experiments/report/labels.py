"""What a reader of a figure is told: names of methods, which seeds, and why there is nothing to see."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deir.experiments.report.analysis import Study

FEWEST_EPISODES = 20
"""A mean of fewer is luck: it is not drawn, and does not stretch an axis."""
FEWEST_RUNS = 10
"""A performance profile of fewer runs is a few rectangles."""
_NAMES = {"none": "PPO alone"}
_EPISODES = f"no run has ended {FEWEST_EPISODES} episodes"
_EFFICIENCY = "not measured: the task does not tell its states"
_WHY = {
    "return_mean": _EPISODES,
    "success_rate": _EPISODES,
    "episodic_efficiency": _EFFICIENCY,
    "lifelong_efficiency": _EFFICIENCY,
    "intrinsic_reward_mean": "no method here has an intrinsic reward",
}


def label(method: str) -> str:
    return _NAMES.get(method, method)


def numbers(values: Iterable[int]) -> str:
    """0, 1, 2, 5 -> 0–2, 5"""
    ordered = sorted(set(values))
    runs = [[value for _, value in group] for _, group in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0])]
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def seeds(study: Study, method: str, tasks: Sequence[str]) -> str:
    """`seeds 0–4`; with other seeds from task to task, how many."""
    found = [sorted(c.seed for c in study.of(task, method)) for task in tasks if study.of(task, method)]
    if not found:
        return "no runs"
    if all(one == found[0] for one in found):
        return f"{'seed' if len(found[0]) == 1 else 'seeds'} {numbers(found[0])}"
    counts = [len(one) for one in found]
    return f"{min(counts)} to {max(counts)} seeds" if min(counts) != max(counts) else _each(counts[0])


def seeds_of_all(study: Study) -> str:
    """Of all methods: `seeds 0–4`, or how many where they differ."""
    each = {seeds(study, method, study.tasks) for method in study.methods}
    if len(each) == 1:
        return each.pop()
    counts = [len(runs) for task in study.tasks for m in study.methods if (runs := study.of(task, m))]
    return _each(counts[0]) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)} seeds each"


def why_no_curve(metric: str) -> str:
    return _WHY[metric]


def why_no_profile(study: Study, view: str) -> str:
    most = max((sum(map(len, study.scores(view, method))) for method in study.methods), default=0)
    return f"a profile needs {FEWEST_RUNS} whole runs of a method; here are at most {most}"


def why_no_probability() -> str:
    return "it needs whole runs of two methods"


def why_no_reach() -> str:
    return "no whole run, or no best return above 0 to take a share of"


def _each(count: int) -> str:
    return "1 seed each" if count == 1 else f"{count} seeds each"
