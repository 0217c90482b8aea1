"""Learning curves as pictures."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from deir.runs.progress import read_rows


def read_curve(progress: Path, column: str = "return_mean") -> tuple[list[int], list[float]]:
    """Frames and values of one column of a progress.csv, without the rows that have none."""
    rows = [(int(float(row["frames"])), row.get(column)) for row in read_rows(progress)]
    kept = [(frames, float(value)) for frames, value in rows if value]
    return [frames for frames, _ in kept], [value for _, value in kept]


def learning_curve(progress: Path, out: Path, title: str) -> None:
    """Return above, intrinsic reward below, against frames."""
    figure, axes = plt.subplots(2, 1, figsize=(6.4, 5.2), sharex=True, height_ratios=(2, 1), layout="constrained")
    for axis, column, label in zip(
        axes, ("return_mean", "intrinsic_reward_mean"), ("mean return (100 episodes)", "intrinsic reward"), strict=True
    ):
        axis.plot(*read_curve(progress, column), color="C0")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_title(title)
    axes[1].set_xlabel("frames")
    figure.savefig(out, dpi=120)
    plt.close(figure)


def exploration_maps(maps: Path, out: Path, title: str) -> None:
    """Visits on a logarithmic scale, and the mean intrinsic reward of arriving at each cell."""
    with np.load(maps) as arrays:
        visits, arrivals, intrinsic = (arrays[name] for name in ("visits", "arrivals", "intrinsic"))
    shares = np.where(visits > 0, visits / max(1, visits.sum()), np.nan)
    means = np.where(arrivals > 0, intrinsic / np.maximum(arrivals, 1), np.nan)
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.2), layout="constrained")
    norm = matplotlib.colors.LogNorm() if (visits > 0).any() else None
    for axis, values, scale, label in (
        (axes[0], shares, norm, "share of all steps"),
        (axes[1], means, middle_scale(means), "mean intrinsic reward of a step that leads here"),
    ):
        axis.set_facecolor("0.92")
        ends = "neither" if axis is axes[0] else "both"  # an arrow: the colour also stands for what is beyond
        image = axis.imshow(values, norm=scale, cmap="viridis")
        figure.colorbar(image, ax=axis, label=label, shrink=0.85, extend=ends)
        axis.set(xlabel="column", ylabel="row")
    figure.suptitle(title)
    figure.savefig(out, dpi=120)
    plt.close(figure)


def middle_scale(values: NDArray[np.float64], share: float = 0.96) -> Any:
    """Colours for the middle `share` of the known cells, so that one outlier does not leave the others one colour."""
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    low, high = np.quantile(known, [(1 - share) / 2, (1 + share) / 2])
    return matplotlib.colors.Normalize(low, high) if low < high else None


def compare_curves(table: Path, out: Path, title: str, column: str = "return_mean") -> None:
    """Mean of every variant with its standard error as a band, and each seed as a thin line."""
    with table.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row[column]]
    figure, axis = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for index, variant in enumerate(dict.fromkeys(row["variant"] for row in rows)):
        by_seed: dict[str, dict[int, float]] = {}
        for row in rows:
            if row["variant"] == variant:
                by_seed.setdefault(row["seed"], {})[int(row["frames"])] = float(row[column])
        for curve in by_seed.values():
            axis.plot(list(curve), list(curve.values()), color=f"C{index}", alpha=0.25, linewidth=0.8)
        frames = sorted(set.intersection(*(set(curve) for curve in by_seed.values())))
        values = np.array([[curve[f] for f in frames] for curve in by_seed.values()])  # [seeds, points]
        mean = values.mean(0)
        error = values.std(0, ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.zeros_like(mean)
        axis.plot(frames, mean, color=f"C{index}", label=f"{variant} ({len(values)} seeds)")
        axis.fill_between(frames, mean - error, mean + error, color=f"C{index}", alpha=0.2, linewidth=0)
    axis.set(xlabel="frames", ylabel="mean return (100 episodes)", title=title)
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(out, dpi=120)
    plt.close(figure)
