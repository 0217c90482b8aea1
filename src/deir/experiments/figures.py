"""Learning curves as pictures."""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def read_curve(progress: Path, column: str = "return_mean") -> tuple[list[int], list[float]]:
    """Frames and values of one column of a progress.csv, without the rows that have none."""
    with progress.open(newline="") as file:
        rows = [(int(float(row["frames"])), row.get(column)) for row in csv.DictReader(file)]
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
