"""The figures of a report in words: cells of its tables, and summary.md."""

from __future__ import annotations

import math
import re
from typing import Any

from deir.experiments.report.analysis import Study
from deir.experiments.report.labels import label
from deir.experiments.report.measures import ALL


def markdown(study: Study) -> str:
    """The summary as one table for each task."""
    head = (
        "method",
        "runs",
        "final return",
        "IQM [95%]",
        "area under the curve",
        "episodic efficiency",
        "lifelong efficiency",
        "frames to 0.9 of the best",
        "frames to return 0.9",
    )
    parts = []
    for view in study.views:
        what = f"{len(study.shared)} tasks, returns ÷ the task's best" if view == ALL else _budget(study, view)
        parts += [f"### {_plain(view)}", "", what, "", f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
        for row in (row for row in study.summary if row["env"] == view):
            cells = (
                _plain(label(row["method"])),
                runs_text(row),
                plus_minus(row, "final"),
                interval_text(row, "final_iqm"),
                *(plus_minus(row, name) for name in ("auc", "episodic", "lifelong")),
                reach_text(row, "most_best"),
                reach_text(row, "return_0.9"),
            )
            parts.append(f"| {' | '.join(cells)} |")
        parts.append("")
    notes = [f"- {_plain(note)}" for note in study.notes]
    legend = "Mean ± standard error over runs; frames: median over runs (runs that got there)."
    return "\n".join([*parts, legend, *(["", *notes] if notes else [])]) + "\n"


def _budget(study: Study, task: str) -> str:
    return f"{study.longest[task].last:,} frames, best return {study.best[task]:.3f}"


def _plain(text: str) -> str:
    """A label can hold any character. These would break a table, or be a link, a picture or HTML."""
    escaped = re.sub(r"([\\`*\[\]|~])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))
    escaped = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", escaped)  # inside a word it is no emphasis
    return re.sub(r"^(\s*)([#+-])", r"\1\\\2", " ".join(escaped.split()))


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def runs_text(row: dict[str, Any]) -> str:
    return str(row["runs"]) if row["whole_runs"] == row["runs"] else f"{row['whole_runs']} of {row['runs']}"


def plus_minus(row: dict[str, Any], name: str) -> str:
    mean, error = row[f"{name}_mean"], row[f"{name}_stderr"]
    if math.isnan(mean):
        return "–"
    return f"{mean:.3f}" if math.isnan(error) else f"{mean:.3f} ± {error:.3f}"


def interval_text(row: dict[str, Any], name: str) -> str:
    middle, low, high = (row[key] for key in (name, f"{name}_low", f"{name}_high"))
    if math.isnan(middle):
        return "–"
    return f"{middle:.3f}" if math.isnan(low) else f"{middle:.3f} [{low:.3f}, {high:.3f}]"


def reach_text(row: dict[str, Any], key: str) -> str:
    reached, of, median = row[f"{key}_reached"], row[f"{key}_of"], row[f"{key}_frames_median"]
    if not of:
        return "–"
    count = f"{reached} of {of}"
    if row["env"] == ALL:
        return count
    return f"{'–' if math.isnan(median) else f'{median:,.0f}'} ({count})"
