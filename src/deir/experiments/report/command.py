"""`deir report`: runs in, one directory out: a page, figures, tables."""

from __future__ import annotations

import csv
import math
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from deir.errors import UserError, invalid
from deir.experiments.report.steps import Tell, silent, told_steps
from deir.files import as_cell, make_writable, sync_directory, sync_tree

if TYPE_CHECKING:
    from deir.experiments.report.analysis import Study
    from deir.experiments.report.curves import Curve

EXTRA = ("scipy", "plotly", "jinja2")
TABLES = ("curves.csv", "summary.csv", "probability.csv", "profile.csv", "summary.md")
PAGE = "report.html"
FIGURES = "figures"


@dataclass(frozen=True)
class Report:
    """Curves and statistics of many runs: a page that opens from disk, figures as PNG and PDF, tables as CSV."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories, directories above some, or curves.csv files of earlier reports."""
    out: Path
    """Directory of the report: new, empty, or an earlier report of the same runs (it is then renewed)."""
    title: str = "Exploration report"
    """Title of the page."""
    by_directory: bool = False
    """Name a method by the directory above seed<S>, as for variants of one method."""
    figures: bool = True
    """Draw the PNG and PDF figures; the page and the tables alone are quicker."""
    resamples: int = 1000
    """Draws of the bootstrap behind every interval."""


def run(args: Report) -> None:
    if not args.runs:
        raise UserError("runs: got none, expected run directories or one above some: deir report runs --out DIR")
    require_extra()
    from deir.experiments.report.analysis import Study
    from deir.experiments.report.curves import read_all
    from deir.experiments.report.summary_text import counted
    from deir.runs.ranges import check_count

    check_count("resamples", args.resamples, least=100)
    recover(args.out)
    check_out(args.out)
    make_writable("out", args.out.resolve().parent)
    with told_steps() as tell:
        tell("reading the runs")
        curves, notes = read_all(args.runs, args.by_directory)
        check_nothing_lost(args.out, curves)
        study = Study(curves, args.resamples, notes)
        for note in study.notes:
            print(f"warning: {note}", file=sys.stderr)
        write(study, args.out, args.title, args.figures, tell)
    counts = (len(study.curves), "run"), (len(study.tasks), "task"), (len(study.methods), "method")
    print(", ".join(counted(*pair) for pair in counts))
    drawn = ";  figures/ for a paper" if args.figures else ""
    print(f"  {args.out / PAGE}   the page{drawn};  summary.md, *.csv the numbers")


def require_extra() -> None:
    missing = [name for name in EXTRA if find_spec(name) is None]
    if missing:
        raise UserError(f"report: {', '.join(missing)} not installed; expected the extra: pip install 'deir[report]'")


def check_out(out: Path) -> None:
    """Refuses a directory that holds anything but an earlier report."""
    if not out.exists():
        return
    expected = "a new or empty directory, or an earlier report"
    if not out.is_dir():
        raise invalid("out", str(out), expected)
    for path in sorted(out.rglob("*")):
        inside = path.relative_to(out)
        ours = str(inside) in (*TABLES, PAGE, FIGURES) or (
            inside.parts[0] == FIGURES and len(inside.parts) == 2 and path.suffix in (".png", ".pdf")
        )
        if not ours:
            raise invalid("out", str(out), f"{expected}; it holds {inside}")


def check_nothing_lost(out: Path, curves: Sequence[Curve]) -> None:
    """Refuses to replace a report whose curves are not all in the new one: they may be the only copy."""
    from deir.experiments.report.curves import read_table

    table = out / "curves.csv"
    if not table.is_file():
        return
    last = {(c.env, c.method, c.seed): c.last for c in curves}
    lost = [c for c in read_table(table) if last.get((c.env, c.method, c.seed), 0) < c.last]
    if lost:
        expected = f"a report of no other runs; it holds {lost[0].name}; name {table} among the runs, too, to keep it"
        raise invalid("out", str(out), expected)


def write(study: Study, out: Path, title: str, figures: bool = True, tell: Tell = silent) -> None:
    """The whole report, built beside its place and then put there."""
    from deir.experiments.report import curves, page, static_figures, summary_text

    recover(out)
    new, before = _beside(out)
    new.mkdir()
    try:
        tell(f"computing statistics of {len(study.curves)} runs")
        curves.write_table(study.curves, new / "curves.csv")
        _write_rows(study.summary, new / "summary.csv")
        _write_rows(study.probabilities, new / "probability.csv")
        _write_rows(study.profiles, new / "profile.csv")
        (new / "summary.md").write_text(summary_text.markdown(study))
        if figures:
            (new / FIGURES).mkdir()
            static_figures.draw_all(study, new / FIGURES, tell=tell)
        tell("writing the page")
        (new / PAGE).write_text(page.render(study, title))
        sync_tree(new)  # a later report may have nothing but this one's curves.csv to go by
        if out.exists():
            out.rename(before)
        new.rename(out)
        sync_directory(out.parent)
    finally:
        recover(out)


def _beside(out: Path) -> tuple[Path, Path]:
    """Where a report is built, and where the one before it waits until the new one is in its place."""
    return out.parent / f".{out.name}.new", out.parent / f".{out.name}.before"


def recover(out: Path) -> None:
    """What a killed report left: the old one goes back if the new one is not in its place."""
    new, before = _beside(out)
    if before.exists() and not out.exists():
        before.rename(out)
    for left in (new, before):
        shutil.rmtree(left, ignore_errors=True)


def _write_rows(rows: list[dict[str, Any]], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)


def _cell(value: Any) -> Any:
    if not isinstance(value, float):
        return as_cell(value) if isinstance(value, str) else value
    return "" if math.isnan(value) else f"{value:.6g}" if not value.is_integer() else int(value)
