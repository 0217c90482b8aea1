"""The figures of a report for a paper: PNG and PDF, one panel a task, one colour a method."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from deir.experiments.report.analysis import Study
from deir.experiments.report.labels import label, seeds, why_no_curve, why_no_profile
from deir.experiments.report.measures import ALL, AXES, MEASURES, METRICS, THRESHOLDS, Series
from deir.experiments.report.steps import Tell, silent
from deir.experiments.report.styles import EMPHASISED, Style, styles

matplotlib.use("Agg")
from matplotlib import pyplot as plt

STATISTICS = {"mean": "mean ± standard error", "iqm": "IQM, 95% interval"}
LETTER, HANDLE = 0.065, 0.55  # inches of a legend: a letter, and the line before a name
BESIDE = 16  # names that fit one below the other
_LOOK: Any = {
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # letters stay letters
    "svg.hashsalt": "deir",
}


def draw_all(study: Study, out: Path, only: Container[str] | None = None, tell: Tell = silent) -> list[str]:
    """Every figure (or only those named) into the directory; gives their names without suffix."""
    drawn: list[str] = []

    def save(name: str, make: Callable[..., Any], *arguments: Any) -> None:
        if only is not None and name not in only:
            return
        tell(f"drawing figures: {name}")
        figure = make(study, *arguments)
        if figure is None:
            return
        figure.savefig(out / f"{name}.png", dpi=160, metadata={"Software": None})
        figure.set_layout_engine("none")  # it is laid out
        figure.savefig(out / f"{name}.pdf", metadata={"CreationDate": None})
        plt.close(figure)
        drawn.append(name)

    with plt.rc_context(_LOOK):
        for axis in AXES:
            for statistic in STATISTICS:
                for metric in METRICS:
                    save(f"{_slug(METRICS[metric])}-{axis}-{statistic}", _curves, metric, axis, statistic)
                save(f"all-tasks-{axis}-{statistic}", _over_tasks, axis, statistic)
        save("performance-profile", _profile)
        for measure in MEASURES:
            save(f"probability-{measure}", _probability, measure)
        for threshold in THRESHOLDS:
            save(f"frames-to-{_slug(threshold.key)}", _reach, threshold.key, threshold.label)
    return drawn


def _slug(text: str) -> str:
    return text.replace(" ", "-").replace("_", "-")


@contextmanager
def _panels(
    titles: Sequence[str], legend: dict[str, Style] | None, width: float = 3.1, same_height: bool = True
) -> Iterator[tuple[Any, Any]]:
    """A figure with one panel for each title and one legend for all. `same_height`: one y-axis for a row of panels."""
    columns = min(4, len(titles), 3 if len(titles) in (3, 5, 6, 9) else 4)
    rows = math.ceil(len(titles) / columns)
    longest = max(map(len, legend or [""])) * LETTER + HANDLE  # inches
    beside = math.ceil(len(legend or ()) / BESIDE)  # columns of names beside a single panel
    size = (width * columns, 2.35 * rows + 0.45) if columns > 1 else (6.0 + max(0, beside - 1) * longest, 3.2)
    figure, axes = plt.subplots(
        rows, columns, figsize=size, squeeze=False, layout="constrained",
        sharey="row" if same_height else False,
    )  # fmt: skip
    for axis, title in zip(axes.flat, titles, strict=False):
        axis.set_title(title)
    for axis in axes.flat[len(titles) :]:
        axis.remove()
    yield figure, axes.flat[: len(titles)]
    if legend:
        lines = [Line2D([], [], **_line(style)) for style in legend.values()]
        if columns == 1:
            figure.legend(lines, list(legend), loc="outside right center", ncols=beside)
        else:
            fitting = max(1, int(size[0] / longest))
            figure.legend(lines, list(legend), loc="outside upper center", ncols=min(len(legend), fitting))


def _line(style: Style) -> dict[str, Any]:
    return {"color": style.color, "linestyle": style.linestyle, "linewidth": 0.85 * style.width}


def _curves(study: Study, metric: str, axis: str, statistic: str) -> Any:
    found = {task: study.series(task, metric, axis) for task in study.tasks}
    drawn = [series for series in found.values() if series]
    if not drawn:
        return None
    look = styles(study.methods)
    methods = [m for m in study.methods if any(m in series.bands for series in drawn)]
    told = {m: seeds(study, m, study.tasks) for m in methods}
    same = f", {told[methods[0]]}" if len(set(told.values())) == 1 else ""
    legend = {label(m) if same else f"{label(m)}, {told[m]}": look[m] for m in methods}
    with _panels(list(found), legend, same_height=metric != "intrinsic_reward_mean") as (figure, panels):
        for panel, series in zip(panels, found.values(), strict=True):
            if series is None:
                _nothing(panel, why_no_curve(metric))
                continue
            scale, unit = time_unit(series.longest) if axis == "seconds" else (1.0, "frames")
            _draw_series(panel, series, statistic, look, scale)
            panel.set_xlabel(unit)
            if axis == "frames":
                panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        figure.supylabel(f"{METRICS[metric]} ({STATISTICS[statistic]}{same})", fontsize=8.5)
    return figure


def _over_tasks(study: Study, axis: str, statistic: str) -> Any:
    if ALL not in study.views:
        return None
    found = {metric: series for metric in METRICS if (series := study.series(ALL, metric, axis))}
    look = styles(study.methods)
    titles = ["return ÷ best return" if m == "return_mean" else METRICS[m] for m in found]
    with _panels(titles, _named(look), same_height=False) as (figure, panels):
        for panel, series in zip(panels, found.values(), strict=True):
            _draw_series(panel, series, statistic, look, 1.0)
            panel.set_xlabel(f"share of the {'frames' if axis == 'frames' else 'time'}")
        figure.supylabel(f"{len(study.shared)} tasks ({STATISTICS[statistic]})", fontsize=8.5)
    return figure


def _named(look: dict[str, Style]) -> dict[str, Style]:
    return {label(method): style for method, style in look.items()}


def _nothing(panel: Any, reason: str) -> None:
    """An empty panel says why it is empty."""
    lines = textwrap.fill(reason, 28)
    panel.text(0.5, 0.5, lines, ha="center", va="center", transform=panel.transAxes, fontsize=7.5, color="0.4")
    panel.grid(False)
    panel.set_xticks([])


def time_unit(seconds: float) -> tuple[float, str]:
    """What to divide seconds by, and the name of the unit."""
    if seconds < 300:
        return 1.0, "seconds"
    return (60.0, "minutes") if seconds < 3 * 3600 else (3600.0, "hours")


def _draw_series(panel: Any, series: Series, statistic: str, look: dict[str, Style], scale: float) -> None:
    """Where some runs have no value the line is thin and pale."""
    for method, band in series.bands.items():
        style = look[method]
        order = 4 if style.emphasised else 3
        if statistic == "mean":
            middle, low, high = band.mean, band.mean - band.error, band.mean + band.error
        else:
            middle, low, high = band.iqm, band.low, band.high
        x = series.x[method] / scale
        whole = np.where(band.runs == series.runs[method], middle, np.nan)
        line = {**_line(style), "zorder": order}
        panel.plot(x, middle, **{**line, "linewidth": 0.8, "alpha": 0.5})
        panel.plot(x, whole, **line)
        panel.fill_between(x, low, high, color=style.color, alpha=0.16, linewidth=0, zorder=order - 2)


def _profile(study: Study) -> Any:
    rows = study.profiles
    look = styles(study.methods)
    if not rows:
        return None
    shown = dict.fromkeys(row["method"] for row in rows)
    with _panels(study.views, _named({method: look[method] for method in shown})) as (figure, panels):
        for panel, view in zip(panels, study.views, strict=True):
            for method in study.methods:
                mine = [row for row in rows if (row["env"], row["method"]) == (view, method)]
                if not mine:
                    continue
                x, y, low, high = ([row[k] for row in mine] for k in ("score", "share", "share_low", "share_high"))
                style = look[method]
                panel.step(x, y, where="post", **_line(style))
                panel.fill_between(x, low, high, step="post", color=style.color, alpha=0.14, linewidth=0)
            if not any(row["env"] == view for row in rows):
                _nothing(panel, why_no_profile(study, view))
            panel.set(xlabel="final return ÷ best return (τ)", ylim=(-0.03, 1.03))
        figure.supylabel("share of runs above τ", fontsize=8.5)
    return figure


def _probability(study: Study, measure: str) -> Any:
    reference = EMPHASISED if EMPHASISED in study.methods else study.methods[0]
    rows = [r for r in study.probabilities if r["measure"] == measure and r["method"] == reference]
    if not rows:
        return None
    look = styles(study.methods)
    views = list(dict.fromkeys(row["env"] for row in rows))
    others = [m for m in reversed(study.methods) if m != reference]

    def draw(panel: Any, view: str) -> None:
        for row in (row for row in rows if row["env"] == view):
            height, color = others.index(row["other"]), look[row["other"]].color
            interval = [row["probability_low"], row["probability_high"]]
            panel.plot(interval, [height] * 2, color=color, linewidth=5, alpha=0.3)
            panel.plot(row["probability"], height, "o", color=color, markersize=6, clip_on=False, zorder=4)
        panel.axvline(0.5, color="0.4", linewidth=0.8, linestyle="--", zorder=0)
        panel.set(xlim=(-0.03, 1.03), xlabel=f"P({label(reference)} > method)")

    return _by_method(views, others, draw, f"{MEASURES[measure]}, 95% interval")


def _by_method(views: list[str], methods: list[str], draw: Callable[[Any, str], None], quantity: str) -> Any:
    """Panels with a line for each method, from below upwards."""
    with _panels(views, None) as (figure, panels):
        for panel, view in zip(panels, views, strict=True):
            draw(panel, view)
            panel.set_yticks(range(len(methods)), map(label, methods))
            panel.set_ylim(-0.6, len(methods) - 0.4)
            panel.grid(False, axis="y")
        figure.supylabel(quantity, fontsize=8.5)
    return figure


def _reach(study: Study, key: str, goal: str) -> Any:
    rows = [row for row in study.reaches if row["threshold"] == key]
    tasks = [t for t in study.tasks if any(r["env"] == t and np.isfinite(r["frames"]) for r in rows)]
    if not tasks:
        return None
    look = styles(study.methods)
    methods = list(reversed(study.methods))

    def draw(panel: Any, task: str) -> None:
        for height, method in enumerate(methods):
            frames = np.array([r["frames"] for r in rows if (r["env"], r["method"]) == (task, method)])
            if not len(frames):
                continue
            known, color = frames[np.isfinite(frames)], look[method].color
            panel.plot(known, [height] * len(known), "o", color=color, markersize=5, alpha=0.55, markeredgewidth=0)
            if np.isfinite(median := np.median(frames)):
                panel.plot([median] * 2, [height - 0.3, height + 0.3], color=color, linewidth=2)
            text = f"{len(known)}/{len(frames)}"
            panel.text(1.02, height, text, transform=panel.get_yaxis_transform(), va="center", fontsize=7.5)
        panel.set(xlim=(0, 1.03 * study.longest[task].last), xlabel="frames")
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))

    return _by_method(tasks, methods, draw, f"frames to {goal}")
