"""From the curves of many runs to all figures of a report. Computes; reads and writes nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np

from deir.algorithm.metrics import WINDOW
from deir.algorithm.rewards import METHODS
from deir.experiments.report import statistics
from deir.experiments.report.curves import Curve
from deir.experiments.report.labels import FEWEST_EPISODES, FEWEST_RUNS
from deir.experiments.report.measures import ALL, MEASURES, THRESHOLDS, RunFigures, Series
from deir.experiments.report.statistics import Array, Band, Interval

POINTS = 120  # of a curve, at most


class Study:
    """Curves with their tasks and methods; every figure is a method of it."""

    def __init__(self, curves: Sequence[Curve], resamples: int, notes: Sequence[str] = ()) -> None:
        self.curves = list(curves)
        self.resamples = resamples
        self.tasks = sorted({curve.env for curve in curves})
        self.methods = sorted({curve.method for curve in curves}, key=_method_order)
        self.longest = {task: max(self.of(task), key=lambda c: c.last) for task in self.tasks}
        self.best = {task: self._best(task) for task in self.tasks}
        self.shared = [task for task in self.tasks if self._shared(task)]
        self.figures = {id(curve): self._run_figures(curve) for curve in self.curves}
        self.notes = [*notes, *self._own_notes()]

    def of(self, task: str, method: str | None = None) -> list[Curve]:
        return [c for c in self.curves if c.env == task and method in (None, c.method)]

    @property
    def views(self) -> list[str]:
        """What can be looked at: all tasks together if there are several, then each of them."""
        return [ALL, *self.tasks] if len(self.shared) > 1 else list(self.tasks)

    def tasks_of(self, view: str) -> list[str]:
        return self.shared if view == ALL else [view]

    def complete(self, curve: Curve) -> bool:
        """Not cut short: its last iteration is the one in which the task's longest run ended, whatever their sizes."""
        frames = self.longest[curve.env].frames
        spacing = frames[-1] - frames[-2] if len(frames) > 1 else frames[-1]
        return bool(curve.last > frames[-1] - spacing)

    def _best(self, task: str) -> float:
        """The highest mean final return of a method."""
        finals = {method: self._finals(task, method) for method in self.methods}
        means = [np.mean(values) for values in finals.values() if len(values)]
        return float(max(means)) if means else float("nan")

    def _finals(self, task: str, method: str) -> Array:
        runs = [c for c in self.of(task, method) if self.complete(c)]
        values = np.array([statistics.final_value(c.frames, c.columns["return_mean"]) for c in runs])
        return values[np.isfinite(values)]

    def _shared(self, task: str) -> bool:
        """Compared over tasks is only what every method (that has any whole run) has run to its end."""
        started = [m for m in self.methods if any(len(self._finals(t, m)) for t in self.tasks)]
        return self.best[task] > 0 and all(len(self._finals(task, method)) for method in started)

    def _run_figures(self, curve: Curve) -> RunFigures:
        frames, columns = curve.frames, curve.columns
        # a mean over a few first episodes is luck, not a threshold reached
        settled = np.where(columns["episodes"] < WINDOW, np.nan, columns["return_mean"])
        reached = {}
        for threshold in THRESHOLDS:
            value = threshold.of(self.best[curve.env])
            told = self.complete(curve) and not math.isnan(value)
            reached[threshold.key] = statistics.first_reach(frames, settled, value) if told else float("nan")
        return RunFigures(
            statistics.final_value(frames, columns["return_mean"]),
            statistics.area(frames, columns["return_mean"]),
            statistics.area(frames, columns["episodic_efficiency"]),
            statistics.area(frames, columns["lifelong_efficiency"]),
            reached,
        )

    def _own_notes(self) -> list[str]:
        notes = []
        for curve in self.curves:
            if not self.complete(curve):
                notes.append(
                    f"{curve.name}, ends at {curve.last:,} of {self.longest[curve.env].last:,} frames: it is in the "
                    "curves as far as it goes, and in no figure of whole runs."
                )
            elif curve.planned and curve.last < curve.planned:
                notes.append(f"{curve.name}, has done {curve.last:,} of the {curve.planned:,} frames it was to do.")
        left_out = [task for task in self.tasks if task not in self.shared]
        if len(self.tasks) > 1 and left_out:
            notes.append(
                f"Not part of “{ALL}”: {', '.join(left_out)} (some method has no whole run there, or none "
                "has a return above 0)."
            )
        return notes

    def groups(self, view: str, method: str, measure: str) -> list[Array]:
        """A figure of all whole runs of a method, one array for each task; returns over tasks as shares of the best."""
        groups = []
        for task in self.tasks_of(view):
            runs = [self.figures[id(c)] for c in self.of(task, method) if self.complete(c)]
            values = np.array([getattr(figures, measure) for figures in runs])
            scale = self.best[task] if view == ALL and measure in MEASURES else 1.0
            groups.append(values[np.isfinite(values)] / scale)
        return groups if groups and all(len(group) for group in groups) else []

    def scores(self, view: str, method: str) -> list[Array]:
        """Final returns as shares of the task's best."""
        groups = self.groups(view, method, "final")
        return groups if view == ALL else [group / self.best[view] for group in groups if self.best[view] > 0]

    def series(self, view: str, metric: str, axis: str) -> Series | None:
        """Curves against an axis; over tasks against the share of each task's longest run.

        Against time, a point stands at the mean time in which the method's runs came to its frames.
        """
        if view == ALL and metric == "intrinsic_reward_mean":
            return None  # its unit is the method's and the task's own
        found, grid = self._bands(view, metric), self._grid(view)
        if not found:
            return None
        x = {m: grid if axis == "frames" else self._clock(view, m) for m in found}
        return Series(x, {m: band for m, (band, _) in found.items()}, {m: runs for m, (_, runs) in found.items()})

    @cache  # noqa: B019 - a study lives as long as its report
    def _bands(self, view: str, metric: str) -> dict[str, tuple[Band, int]]:
        """Of each method the statistics on the grid, and the number of its runs with any value."""
        found = {}
        for method in self.methods:
            groups = [self._on_grid(task, method, metric, view) for task in self.tasks_of(view)]
            if groups and all(len(group) for group in groups):
                found[method] = statistics.band(groups, self.resamples), sum(map(len, groups))
        return found

    def _grid(self, view: str) -> Array:
        if view == ALL:
            return np.linspace(0, 1, POINTS + 1)[1:]
        return statistics.common_grid([c.frames for c in self.of(view)], POINTS)

    def _clock(self, view: str, method: str) -> Array:
        """Mean seconds at the grid's frames, of whole runs (else of the longest one, as the mean would jump back)."""
        if view == ALL:
            return np.mean([self._task_clock(t, method, self._frames(t)) / self._end(t) for t in self.shared], axis=0)
        return self._task_clock(view, method, self._grid(view))

    def _task_clock(self, task: str, method: str, frames: Array) -> Array:
        runs = self.of(task, method)
        clocks = [c for c in runs if self.complete(c)] or [max(runs, key=lambda c: c.last)]
        start = [0.0]
        seconds = [
            statistics.interpolate(np.append(start, c.frames), np.append(start, c.columns["seconds"]), frames)
            for c in clocks
        ]
        return np.mean(seconds, axis=0)

    def _frames(self, task: str) -> Array:
        """The grid over tasks in frames of one task."""
        return self._grid(ALL) * self.longest[task].last

    @cache  # noqa: B019
    def _end(self, task: str) -> float:
        """The largest mean time of a method to its last frame."""
        clocks = [self._task_clock(task, m, self._frames(task)) for m in self.methods if self.of(task, m)]
        return float(np.nanmax(clocks))

    def _on_grid(self, task: str, method: str, metric: str, view: str) -> Array:
        """Runs with any value, on the grid: [runs, points]"""
        frames = self._frames(task) if view == ALL else self._grid(view)
        scale = self.best[task] if view == ALL and metric == "return_mean" else 1.0
        rows = [statistics.interpolate(c.frames, shown(c, metric), frames) / scale for c in self.of(task, method)]
        known = [row for row in rows if np.isfinite(row).any()]
        return np.array(known).reshape(len(known), len(frames))

    @cached_property
    def summary(self) -> list[dict[str, Any]]:
        """One row for each view and method."""
        return [self._summary_row(view, m) for view in self.views for m in self.methods if self._curves(view, m)]

    def _curves(self, view: str, method: str) -> list[Curve]:
        return [curve for task in self.tasks_of(view) for curve in self.of(task, method)]

    def _summary_row(self, view: str, method: str) -> dict[str, Any]:
        curves = self._curves(view, method)
        row: dict[str, Any] = {
            "env": view,
            "method": method,
            "runs": len(curves),
            "whole_runs": sum(map(self.complete, curves)),
            "frames": max(c.last for c in curves) if view != ALL else float("nan"),
            "best_return": self.best.get(view, float("nan")),
        }
        for measure in ("final", "auc", "episodic", "lifelong"):
            groups = self.groups(view, method, measure)
            mean, error = statistics.mean_and_error(groups) if groups else (np.nan, np.nan)
            row |= {f"{measure}_mean": float(mean), f"{measure}_stderr": float(error)}
            if measure in MEASURES:
                row |= _interval_cells(f"{measure}_iqm", self._iqm(groups))
        for threshold in THRESHOLDS:
            frames = np.array([self.figures[id(c)].reached[threshold.key] for c in curves])
            frames = frames[~np.isnan(frames)]
            median = float(np.median(frames)) if len(frames) and view != ALL else float("nan")
            row[f"{threshold.key}_reached"] = int(np.isfinite(frames).sum())
            row[f"{threshold.key}_of"] = len(frames)
            row[f"{threshold.key}_frames_median"] = median if np.isfinite(median) else float("nan")
        return row

    def _iqm(self, groups: list[Array]) -> Interval | None:
        if not groups:
            return None
        return statistics.interquartile_interval([group[:, None] for group in groups], self.resamples)

    @cached_property
    def probabilities(self) -> list[dict[str, Any]]:
        """How often a run of one method beats a run of another, for each view, measure and ordered pair."""
        rows = []
        for view in self.views:
            for measure in MEASURES:
                groups = {m: self.groups(view, m, measure) for m in self.methods}
                for method, other in ((a, b) for a in self.methods for b in self.methods if a != b):
                    if groups[method] and groups[other]:
                        found = statistics.probability_of_improvement(groups[method], groups[other], self.resamples)
                        labels = {"env": view, "measure": measure, "method": method, "other": other}
                        rows.append(labels | _interval_cells("probability", found))
        return rows

    @cached_property
    def profiles(self) -> list[dict[str, Any]]:
        """Share of runs above each score, for each view and each method with enough runs."""
        rows = []
        for view in self.views:
            scores = {m: s for m in self.methods if sum(map(len, s := self.scores(view, m))) >= FEWEST_RUNS}
            highest = max((group.max() for groups in scores.values() for group in groups), default=1.0)
            thresholds = np.arange(0, math.ceil(max(1.0, highest) * 50) + 1) / 50
            for method, groups in scores.items():
                found = statistics.performance_profile(groups, thresholds, self.resamples)
                for place, *values in zip(thresholds, *found, strict=True):
                    cells = dict(zip(("share", "share_low", "share_high"), map(float, values), strict=True))
                    rows.append({"env": view, "method": method, "score": float(place), **cells})
        return rows

    @cached_property
    def reaches(self) -> list[dict[str, Any]]:
        """Frames of every run to every threshold; infinite if it never got there."""
        return [
            {"env": c.env, "method": c.method, "seed": c.seed, "threshold": key, "frames": frames, "budget": budget}
            for c in self.curves
            for key, frames in self.figures[id(c)].reached.items()
            if not math.isnan(frames) and (budget := self.longest[c.env].last)
        ]


def shown(curve: Curve, metric: str) -> Array:
    """What is drawn of a run: means over a few first episodes are not."""
    values = curve.columns[metric]
    if metric not in ("return_mean", "success_rate"):
        return values
    return np.where(curve.columns["episodes"] < FEWEST_EPISODES, np.nan, values)


def _interval_cells(name: str, found: Interval | None) -> dict[str, float]:
    values = [float("nan")] * 3 if found is None else [float(np.ravel(value)[0]) for value in found]
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def _method_order(name: str) -> tuple[int, str]:
    """As `deir list methods`; other labels after them."""
    known = list(METHODS)
    return (known.index(name) if name in known else len(known), name)
