"""The page of a report: one HTML file with its plots, data and library inside."""

from __future__ import annotations

import gzip
import json
import math
from base64 import b64encode
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deir.experiments.report.analysis import Study
from deir.experiments.report.labels import (
    label,
    seeds,
    seeds_of_all,
    why_no_curve,
    why_no_probability,
    why_no_profile,
    why_no_reach,
)
from deir.experiments.report.measures import ALL, MEASURES, METRICS, THRESHOLDS
from deir.experiments.report.styles import Style, styles
from deir.experiments.report.summary_text import counted, interval_text, plus_minus, reach_text, runs_text

COLUMNS = (
    "method",
    "runs",
    "final return",
    "IQM [95%]",
    "area under the curve",
    "episodic efficiency",
    "lifelong efficiency",
    *(f"frames to {threshold.label}" for threshold in THRESHOLDS),
)
_STROKES = {"solid": "", "dash": "6 3", "dot": "2 2.5", "dashdot": "6 2 2 2", "longdash": "9 3"}


def render(study: Study, title: str) -> str:
    """All that comes from the user is escaped: by Jinja in the page, as JSON in the data, by the script in plots."""
    from jinja2 import Environment
    from jinja2.utils import htmlsafe_json_dumps
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    templates = files("deir.experiments.report") / "templates"
    look = styles(study.methods)
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string((templates / "report.html").read_text()).render(
        title=title,
        facts=_facts(study),
        tasks=study.tasks,
        notes=study.notes,
        views=study.views,
        several=ALL in study.views,
        methods=[{**_method(name, look[name], study), "stroke": _STROKES[look[name].dash]} for name in study.methods],
        metrics=METRICS,
        measures=MEASURES,
        thresholds=THRESHOLDS,
        columns=COLUMNS,
        rows=_rows(study),
        resamples=study.resamples,
        style=Markup((templates / "report.css").read_text()),
        script=Markup((templates / "report.js").read_text()),
        library=b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode(),  # 2 MB instead of 5
        data=htmlsafe_json_dumps(_data(study), dumps=json.dumps, allow_nan=False, separators=(",", ":")),
    )


def _facts(study: Study) -> str:
    """What was run, in one line."""
    budgets = [study.longest[task].last for task in study.tasks]
    frames = f"{min(budgets):,}" if min(budgets) == max(budgets) else f"{min(budgets):,} to {max(budgets):,}"
    parts = (counted(len(study.tasks), "task"), counted(len(study.methods), "method"), seeds_of_all(study))
    return f"{', '.join(parts)}, {frames} frames a run."


def _method(name: str, style: Style, study: Study) -> dict[str, Any]:
    told = {"name": name, "label": label(name), "seeds": seeds(study, name, study.tasks)}
    return {**told, "color": style.color, "dark": style.dark, "dash": style.dash, "width": style.width}


def _rows(study: Study) -> list[dict[str, Any]]:
    look = styles(study.methods)
    return [
        {
            "view": study.views.index(row["env"]),
            "method": study.methods.index(row["method"]),
            "color": look[row["method"]].color,
            "dark": look[row["method"]].dark,
            "cells": _cells(row),
        }
        for row in study.summary
    ]


def _cells(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Text, a second line, and the value to sort by (nothing if unknown)."""

    def cell(text: str, value: float | str, small: str = "") -> dict[str, Any]:
        return {"text": text, "small": small, "value": "" if isinstance(value, float) and math.isnan(value) else value}

    def reach(key: str) -> dict[str, Any]:
        text, _, small = reach_text(row, key).partition(" (")
        value = row[f"{key}_reached"] if row["env"] == ALL else row[f"{key}_frames_median"]
        return cell(text, value, small.rstrip(")"))

    iqm, _, interval = interval_text(row, "final_iqm").partition(" [")
    return [
        cell(label(row["method"]), row["method"]),
        cell(runs_text(row), row["runs"]),
        cell(plus_minus(row, "final"), row["final_mean"]),
        cell(iqm, row["final_iqm"], f"[{interval}" if interval else ""),
        *(cell(plus_minus(row, name), row[f"{name}_mean"]) for name in ("auc", "episodic", "lifelong")),
        *(reach(threshold.key) for threshold in THRESHOLDS),
    ]


def _data(study: Study) -> dict[str, Any]:
    """What the script draws; unknown numbers are null."""
    look = styles(study.methods)
    renamed = {"probability_low": "low", "probability_high": "high"}
    return {
        "methods": [_method(name, look[name], study) for name in study.methods],
        "views": study.views,
        "all": ALL if ALL in study.views else None,
        "shared": study.shared,
        "best": {task: _number(best) for task, best in study.best.items()},
        "metrics": METRICS,
        "curves": {view: _curves(study, view) for view in study.views},
        "heights": {metric: _heights(study, metric) for metric in METRICS},
        "why": {
            "curves": {metric: why_no_curve(metric) for metric in METRICS},
            "profile": {view: why_no_profile(study, view) for view in study.views},
            "probability": why_no_probability(),
            "reach": why_no_reach(),
        },
        "profiles": {view: _profiles(study, view) for view in study.views},
        "probabilities": [{renamed.get(k, k): _number(v) for k, v in row.items()} for row in study.probabilities],
        "reaches": [{k: _number(v) for k, v in row.items()} for row in study.reaches],
    }


def _curves(study: Study, view: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for metric in METRICS:
        series = study.series(view, metric, "frames")
        if series is None:
            continue
        clock = study.series(view, metric, "seconds")
        assert clock is not None
        found[metric] = {
            method: {
                "frames": _numbers(series.x[method]),
                "seconds": _numbers(clock.x[method]),
                "of": series.runs[method],
                **{name: _numbers(values) for name, values in band._asdict().items()},
            }
            for method, band in series.bands.items()
        }
    return found


def _heights(study: Study, metric: str) -> list[Any] | None:
    """The lowest and highest value on any task: one y-axis for all of them, but where the unit is a task's own."""
    found = [series for task in study.tasks if (series := study.series(task, metric, "frames"))]
    if not found or metric == "intrinsic_reward_mean":
        return None
    bands = [band for series in found for band in series.bands.values()]
    edges = [
        edge
        for b in bands
        for edge in (b.mean - np.nan_to_num(b.error), b.mean + np.nan_to_num(b.error), b.low, b.high)
    ]
    values = np.concatenate(edges)
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    margin = 0.05 * max(float(np.ptp(values)), 1e-6)
    return [_number(float(values.min()) - margin), _number(float(values.max()) + margin)]


def _profiles(study: Study, view: str) -> dict[str, Any]:
    found: dict[str, dict[str, list[Any]]] = {}
    for row in study.profiles:
        if row["env"] == view:
            columns = found.setdefault(row["method"], {"score": [], "share": [], "low": [], "high": []})
            for name, key in zip(columns, ("score", "share", "share_low", "share_high"), strict=True):
                columns[name].append(_number(row[key]))
    return found


def _numbers(values: NDArray[Any]) -> list[Any]:
    return [_number(value) for value in values.tolist()]


def _number(value: Any) -> Any:
    """Five digits; null for what JSON has no word for."""
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else float(f"{value:.5g}")
