"""The statistics of a report, as pure functions of arrays; runs are always the first axis.

`groups` are the runs of one method, one array for each task, so that every task weighs the same and the bootstrap draws
within tasks (Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import integrate, stats

Array = NDArray[np.float64]
FINAL_SHARE = 0.1  # of a run's frames: the window of its final return
LEVEL = 0.95  # of every interval
_CHUNK = 4_000_000  # numbers drawn at a time


class Interval(NamedTuple):
    """An estimate with its bootstrap interval; NaN where there are no two runs to draw from."""

    estimate: Array
    low: Array
    high: Array


def interpolate(x: Array, values: Array, grid: Array) -> Array:
    """Linear between the known points, NaN before the first and after the last one: nothing is extrapolated."""
    known = np.isfinite(values) & np.isfinite(x)
    if not known.any():
        return np.full(len(grid), np.nan)
    return np.interp(grid, x[known], values[known], left=np.nan, right=np.nan)


def common_grid(xs: Sequence[Array], points: int) -> Array:
    """All places where some run has a point; if there are more than `points`, as many of them, evenly picked."""
    union = np.unique(np.concatenate(xs))
    if len(union) <= points:
        return union
    return union[np.linspace(0, len(union) - 1, points).round().astype(int)]


def final_value(frames: Array, values: Array, share: float = FINAL_SHARE) -> float:
    """Mean of the known values in the last `share` of the run's frames; NaN if there are none."""
    window = values[(frames > (1 - share) * frames[-1]) & np.isfinite(values)]
    return float(window.mean()) if len(window) else float("nan")


def area(frames: Array, values: Array) -> float:
    """Area under the curve divided by the frames it covers (trapezoids): the mean over the run."""
    known = np.isfinite(values)
    x, y = frames[known], values[known]
    if len(x) < 2:
        return float(y[0]) if len(x) else float("nan")
    return float(integrate.trapezoid(y, x) / (x[-1] - x[0]))


def first_reach(frames: Array, values: Array, threshold: float) -> float:
    """Frames of the first point at or above the threshold, infinite if there is none."""
    above = np.flatnonzero(values >= threshold)  # NaN is never above
    return float(frames[above[0]]) if len(above) else float("inf")


def mean_and_error(groups: Sequence[Array]) -> tuple[Array, Array]:
    """Mean of the tasks' means, and its standard error: sqrt(sum of the tasks' squared errors) / tasks."""
    means = np.mean([group.mean(0) for group in groups], axis=0)
    errors = [stats.sem(group, axis=0) if len(group) > 1 else np.full(group.shape[1:], np.nan) for group in groups]
    return means, np.sqrt(np.sum(np.square(errors), axis=0)) / len(groups)


def interquartile_mean(groups: Sequence[Array]) -> Array:
    """Mean of the middle half of all runs: a quarter of them, rounded down, is cut off at each end."""
    return np.asarray(stats.trim_mean(np.concatenate(groups), 0.25, axis=0))


def draw(sizes: Sequence[int], resamples: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """For each task `resamples` draws of its runs with replacement: [resamples, size] indices."""
    return [rng.integers(0, size, (resamples, size)) for size in sizes]


def interquartile_interval(groups: Sequence[Array], resamples: int, seed: int = 0) -> Interval:
    """IQM of runs [n, points] with its stratified-bootstrap interval; whole runs are drawn."""
    return _by_points(groups, resamples, lambda part: _interquartile_interval(part, resamples, seed))


def _interquartile_interval(groups: Sequence[Array], resamples: int, seed: int) -> Interval:
    draws = draw([len(group) for group in groups], resamples, np.random.default_rng(seed))
    drawn = np.concatenate([group[index] for group, index in zip(groups, draws, strict=True)], axis=1)
    return _interval(interquartile_mean(groups), np.asarray(stats.trim_mean(drawn, 0.25, axis=1)), groups)


def _by_points(groups: Sequence[Array], resamples: int, function: Callable[[Sequence[Array]], Interval]) -> Interval:
    """Applies `function` to a few points at a time, which bounds the memory of the draws."""
    points, runs = groups[0].shape[1], sum(len(group) for group in groups)
    width = max(1, _CHUNK // (runs * resamples))
    parts = [function([group[:, i : i + width] for group in groups]) for i in range(0, points, width)]
    return Interval(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _interval(estimate: Array, drawn: Array, *methods: Sequence[Array]) -> Interval:
    """Percentiles of the draws [resamples, ...]; none if a method has nowhere two runs to draw from."""
    if any(max(len(group) for group in groups) < 2 for groups in methods):
        return Interval(estimate, np.full_like(estimate, np.nan), np.full_like(estimate, np.nan))
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return Interval(estimate, low, high)


def performance_profile(groups: Sequence[Array], thresholds: Array, resamples: int, seed: int = 0) -> Interval:
    """Share of runs [n] whose score is above each threshold, averaged over tasks."""
    above = [(group[:, None] > thresholds).astype(float) for group in groups]  # [n, thresholds]

    def profile(parts: Sequence[Array]) -> Interval:
        draws = draw([len(part) for part in parts], resamples, np.random.default_rng(seed))
        drawn = np.mean([part[index].mean(1) for part, index in zip(parts, draws, strict=True)], axis=0)
        return _interval(np.mean([part.mean(0) for part in parts], axis=0), drawn, parts)

    return _by_points(above, resamples, profile)


def probability_of_improvement(
    groups: Sequence[Array], others: Sequence[Array], resamples: int, seed: int = 0
) -> Interval:
    """P(X > Y) + P(X = Y)/2 for runs X [n] of one method and Y [m] of another, averaged over tasks.

    For one task this is the Mann-Whitney statistic U/(n·m).
    """
    rng = np.random.default_rng(seed)
    wins = [(np.sign(x[:, None] - y[None]) + 1) / 2 for x, y in zip(groups, others, strict=True)]  # [n, m]
    rows = draw([len(x) for x in groups], resamples, rng)
    columns = draw([len(y) for y in others], resamples, rng)
    drawn = [w[i[:, :, None], j[:, None, :]].mean((1, 2)) for w, i, j in zip(wins, rows, columns, strict=True)]
    estimate = np.asarray(np.mean([w.mean() for w in wins]))
    return _interval(estimate, np.mean(drawn, axis=0), groups, others)


class Band(NamedTuple):
    """One method's curve on a grid; NaN where some task has no run."""

    mean: Array
    error: Array
    iqm: Array
    low: Array
    high: Array
    runs: NDArray[np.int64]  # that have a value at each point


def band(groups: Sequence[Array], resamples: int, seed: int = 0) -> Band:
    """Statistics of runs [n, points] at each point, over the runs that have a value there."""
    known = np.isfinite(np.concatenate(groups))  # [runs, points]
    columns = np.full((5, known.shape[1]), np.nan)
    patterns, which = np.unique(known, axis=1, return_inverse=True)
    edges = np.cumsum([len(group) for group in groups])[:-1]
    for number, pattern in enumerate(patterns.T):
        present = np.split(pattern, edges)
        if not all(part.any() for part in present):
            continue
        points = which.ravel() == number
        parts = [group[part][:, points] for group, part in zip(groups, present, strict=True)]
        columns[:2, points] = mean_and_error(parts)
        columns[2:, points] = interquartile_interval(parts, resamples, seed)
    mean, error, middle, low, high = columns
    return Band(mean, error, middle, low, high, known.sum(0))
