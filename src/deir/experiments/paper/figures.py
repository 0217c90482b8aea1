"""The pictures of `deir probe` and `deir distances`, laid out as Figures 7 and A1."""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray

from deir.config import Config
from deir.envs import make_envs

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

COLOURS = {"discriminator": "C0", "inverse": "C1", "forward": "C2", "untrained": "0.6", "constant": "0.3"}
CONTROLS = {"untrained": ":", "constant": "--"}
PANELS = {
    "key": ((0, 0), "key in hand", "cross-entropy"),
    "door": ((0, 1), "door open", "cross-entropy"),
    "key_distance": ((1, 0), "distance to the key", "squared error"),
    "door_distance": ((1, 1), "distance to the door", "squared error"),
    "goal_distance": ((1, 2), "distance to the goal", "squared error"),
}


def probe_figure(table: Path, out: Path, config: Config) -> None:
    """Validation losses: key and door above, distances below, an example of the task upper right."""
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    figure, axes = plt.subplots(2, 3, figsize=(11, 6), layout="constrained")
    for label, (place, title, unit) in PANELS.items():
        for model in dict.fromkeys(row["model"] for row in rows):
            frames, values = _by_seed([row for row in rows if row["model"] == model], label)
            _band(axes[place], frames, values, model)
        axes[place].set(title=title, xlabel="frames", ylabel=unit, yscale="log")
        axes[place].xaxis.set_major_formatter(EngFormatter(sep=""))
        axes[place].grid(alpha=0.3)
    axes[0, 2].imshow(_picture(config))
    axes[0, 2].axis("off")
    axes[0, 2].set_title(config.env.id)
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names))
    seeds = len({row["seed"] for row in rows})
    spread = ", mean ± standard error" if seeds > 1 else ""
    figure.suptitle(f"Validation losses of probes on trajectory embeddings (seeds: {seeds}{spread})")
    figure.savefig(out, dpi=120)
    plt.close(figure)


def _by_seed(rows: list[dict[str, str]], column: str) -> tuple[list[int], NDArray[np.float64]]:
    """Frames [P] that all seeds have (they may end at different ones), and values [S, P] there."""
    curves: dict[str, dict[int, float]] = {}
    for row in rows:
        curves.setdefault(row["seed"], {})[int(row["frames"])] = float(row[column])
    frames = sorted(set.intersection(*(set(curve) for curve in curves.values())))
    return frames, np.array([[curve[f] for f in frames] for curve in curves.values()])


def _band(axis: Axes, frames: list[int], values: NDArray[np.float64], model: str) -> None:
    mean, colour = values.mean(0), COLOURS[model]
    axis.plot(frames, mean, color=colour, linestyle=CONTROLS.get(model, "-"), label=model)
    if len(values) > 1:
        error = values.std(0, ddof=1) / len(values) ** 0.5
        axis.fill_between(frames, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)


def _picture(config: Config) -> NDArray[np.uint8]:
    envs = make_envs(config.env, config.seed)
    try:
        envs.reset()
        return envs.render(0)
    finally:
        envs.close()


def distances_figure(directory: Path, config: Config) -> None:
    """From the tables of `deir distances`: the first half of training in one, and every snapshot on its own."""
    with (directory / "distances.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with (directory / "fits.csv").open(newline="") as file:
        fits = {row["frames"]: row for row in csv.DictReader(file)}
    whole, *snapshots = fits
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    low, high, density, expected = _bars(rows, whole)
    left.bar(low, density, high - low, align="edge", color="C0", alpha=0.5, label="all pairs")
    fit = f"exponential, mean {float(fits[whole]['mean']):.2f} (misfit {float(fits[whole]['misfit']):.2f})"
    left.plot((low + high) / 2, expected, color="C3", label=fit)
    left.set_title(f"from {whole} of training")
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.95, len(snapshots)))
    for label, colour in zip(snapshots, colours, strict=True):
        low, high, density, expected = _bars(rows, label)
        misfit = float(fits[label]["misfit"])
        right.stairs(density, [*low, high[-1]], color=colour, label=f"{int(label):,} frames (misfit {misfit:.2f})")
        right.plot((low + high) / 2, expected, color=colour, linestyle=":", linewidth=1)
    top = max(float(row["density"]) for row in rows)
    right.set(title="snapshots (dotted: their fits)", yscale="log", ylim=(1e-4, 2 * top))
    for axis in (left, right):
        axis.set(xlabel="dist(o$_{t+1}$, o$_i$)", ylabel="density", xlim=(0, high[-1]))
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    figure.suptitle(f"Distances between observations of an episode: {config.env.id}, {variant(config)}")
    figure.savefig(directory / "distances.png", dpi=120)
    plt.close(figure)


def variant(config: Config) -> str:
    """The settings of the task in words."""
    env = config.env
    words = [
        f"view {env.view_size}" if env.view_size else "",
        f"noise {env.noise} ({env.noise_units})" if env.noise else "",
    ]
    words.append("invisible obstacles" if env.invisible_obstacles else "")
    return ", ".join(word for word in words if word) or "standard"


def _bars(rows: list[dict[str, str]], label: str) -> tuple[NDArray[np.float64], ...]:
    chosen = [row for row in rows if row["frames"] == label]
    return tuple(np.array([float(row[name]) for row in chosen]) for name in ("from", "to", "density", "exponential"))
