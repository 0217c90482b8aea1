"""How soon runs learn: `python -m deir.experiments.report.learning_speed RUNS… [--out FIGURE.png] [--curves FILE]`.

Prints, for each task and method, the frames after which the mean return over 100 episodes first passes each threshold,
draws the curves, and writes them into one file. Unlike a report, it compares runs of different lengths. RUNS are those
of `deir report`; curves of other programs that name no number of episodes count from their first row.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from deir.experiments.report.curves import Curve, read_all, write_table
from deir.experiments.report.labels import FEWEST_EPISODES, label, numbers
from deir.runs.options import read

WINDOW = 100  # episodes of a full mean
Groups = dict[tuple[str, str], list[Curve]]


@dataclass(frozen=True)
class LearningSpeed:
    """Frames to given returns, and the curves."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories, directories above some, or curves.csv files."""
    out: Path | None = None
    """Draw the curves into this file."""
    curves: Path | None = None
    """Write the curves into this file."""
    thresholds: tuple[float, ...] = (0.5, 0.9)
    """Returns to reach."""
    columns: int = 3
    """Panels beside each other."""


def frames_to(curve: Curve, threshold: float) -> float:
    """Frames at the first full mean that is no lower than the threshold; infinite if there is none."""
    episodes = curve.columns["episodes"]
    full = np.isnan(episodes) | (episodes >= WINDOW)
    reached = curve.frames[full & (curve.columns["return_mean"] >= threshold)]
    return float(reached[0]) if len(reached) else float("inf")


def grouped(curves: list[Curve]) -> Groups:
    groups: Groups = {}
    for curve in curves:
        groups.setdefault((curve.env, curve.method), []).append(curve)
    return groups


def table(groups: Groups, thresholds: tuple[float, ...]) -> str:
    """A Markdown table: median [fastest, slowest] frames to each threshold, and how many runs got there."""
    header = ["task", "method", "seeds", "frames", *(f"frames to {t:g}" for t in thresholds), "last return"]
    lines = [header, ["---"] * len(header)]
    for (env, method), group in groups.items():
        longest = max(curve.last for curve in group)
        last = [float(curve.columns["return_mean"][-1]) for curve in group]
        cells = [_reached([frames_to(curve, t) for curve in group]) for t in thresholds]
        lines.append([env, method, str(len(group)), f"{longest:,}", *cells, f"{statistics.median(last):.3f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _reached(frames: list[float]) -> str:
    def shown(value: float) -> str:
        return f"{value:,.0f}" if np.isfinite(value) else "–"

    got_there = sum(np.isfinite(frames))
    return (
        f"{shown(statistics.median(frames))} [{shown(min(frames))}, {shown(max(frames))}], {got_there} of {len(frames)}"
    )


def draw(groups: Groups, out: Path, columns: int) -> None:
    """One panel a task: each run thin, the mean of each method thick, as far as all its runs go."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import EngFormatter

    from deir.experiments.report.styles import styles

    tasks = list(dict.fromkeys(env for env, _ in groups))
    looks = styles(dict.fromkeys(method for _, method in groups))
    rows, columns = -(-len(tasks) // columns), min(columns, len(tasks))
    size = (4.2 * columns, 3.1 * rows) if len(tasks) > 1 else (7, 4.2)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, sharey=True, layout="constrained")
    for axis in axes.flat[len(tasks) :]:
        axis.set_axis_off()
    for task, axis in zip(tasks, axes.flat, strict=False):
        for (env, method), group in groups.items():
            if env != task:
                continue
            look, drawn = looks[method], [_shown(curve) for curve in group]
            for frames, returns in drawn:
                axis.plot(frames, returns, color=look.color, alpha=0.25, linewidth=0.7)
            common = np.unique(np.concatenate([frames for frames, _ in drawn]))
            common = common[(common >= max(f[0] for f, _ in drawn)) & (common <= min(f[-1] for f, _ in drawn))]
            mean = np.mean([np.interp(common, *pair) for pair in drawn], 0)
            name = f"{label(method)}, {'seed' if len(group) == 1 else 'seeds'} {numbers(c.seed for c in group)}"
            axis.plot(common, mean, color=look.color, linestyle=look.linestyle, linewidth=2, label=name)
        axis.set(title=task, xlabel="frames")
        axis.xaxis.set_major_formatter(EngFormatter())
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    for axis in axes[:, 0]:
        axis.set_ylabel("mean return (100 episodes)")
    figure.savefig(out, dpi=130, metadata={"Software": None})
    plt.close(figure)


def _shown(curve: Curve) -> tuple[np.ndarray, np.ndarray]:
    returns, episodes = curve.columns["return_mean"], curve.columns["episodes"]
    kept = ~np.isnan(returns) & (np.isnan(episodes) | (episodes >= FEWEST_EPISODES))
    kept[-1] = True
    return curve.frames[kept], returns[kept]


def main() -> None:
    args = read(LearningSpeed, sys.argv[1:], "python -m deir.experiments.report.learning_speed")
    curves, _ = read_all(args.runs)
    groups = grouped(curves)
    print(table(groups, args.thresholds))
    if args.curves:
        write_table(curves, args.curves)
    if args.out:
        draw(groups, args.out, args.columns)


if __name__ == "__main__":
    main()
