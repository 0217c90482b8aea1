"""What a person sees of several runs: a live table on a terminal, a plain line an event elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from deir.experiments.sweep.jobs import last_lines
from deir.experiments.sweep.scheduler import Board, Run
from deir.runs.directory import RunDirectory
from deir.runs.progress import last_row
from deir.runs.stopping import output_failed, say

SHOWN = 20  # rows of the live table
LOOK = 1.0  # seconds between two looks at the runs' progress
ENDED = ("finished", "failed")
LINE = 60.0  # seconds between two lines where there is no terminal


def duration(seconds: float) -> str:
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    return f"{hours} h {minutes % 60:02d} min" if hours else f"{minutes} min" if minutes else f"{seconds:.0f} s"


class SweepBoard(Board):
    """Reads each run's progress.csv, so it can show runs of any machine that writes to the same place."""

    def __init__(self, root: Path, console: Console | None = None) -> None:
        self.root = root
        self.console = console or Console()
        self.rows: dict[Run, dict[str, str]] = {}
        self.begin = time.monotonic()
        self.frames_at_begin: int | None = None
        self.looked = self.said = 0.0
        self.live = Live(console=self.console, auto_refresh=False) if self.console.is_terminal else None

    def __enter__(self) -> SweepBoard:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def tell(self, run: Run, event: str) -> None:
        self._look([run])
        # not by the console, which would break long lines
        say(f"{event:<9} {self._name(run)}  {self._progress(run)}")
        if event == "FAILED":
            say(f"  the last lines of {run.job.log}:")
            for line in last_lines(run.job.log).splitlines():
                say(f"    {line}")

    def show(self, runs: Sequence[Run]) -> None:
        now = time.monotonic()
        if now - self.looked < LOOK:
            return
        self.looked = now
        self._look([run for run in runs if run.status == "running" or run not in self.rows])
        if self.frames_at_begin is None:
            self.frames_at_begin = self._frames(runs)
        if self.live:
            try:
                self.live.update(Group(self._table(runs), self.total(runs)), refresh=True)
            except OSError as error:
                output_failed(error)
        elif now - max(self.said, self.begin) >= LINE:
            self.said = now
            say(self.total(runs))

    def _look(self, runs: Sequence[Run]) -> None:
        for run in runs:
            self.rows[run] = last_row(RunDirectory(run.job.out).progress) or {}

    def _name(self, run: Run) -> str:
        out = run.job.out
        return str(out.relative_to(self.root)) if out.is_relative_to(self.root) else str(out)

    def _done(self, run: Run) -> int:
        return int(float(self.rows.get(run, {}).get("frames") or 0))

    def _frames(self, runs: Sequence[Run]) -> int:
        return sum(min(self._done(run), run.job.config.steps) for run in runs)

    def _progress(self, run: Run) -> str:
        row = self.rows.get(run, {})
        figures = f"{self._done(run):,} / {run.job.config.steps:,} frames"
        return f"{figures}  return {float(row['return_mean']):.3f}" if row.get("return_mean") else figures

    def total(self, runs: Sequence[Run]) -> str:
        """Counts, and the time left at the mean speed since the start."""
        counts = {status: sum(run.status == status for run in runs) for status in ("finished", "running", "failed")}
        done, wanted = self._frames(runs), sum(run.job.config.steps for run in runs if run.status != "failed")
        # a run that reached its target return has no frames left
        left = sum(max(0, run.job.config.steps - self._done(run)) for run in runs if run.status not in ENDED)
        rate = (done - (self.frames_at_begin or 0)) / max(1e-9, time.monotonic() - self.begin)
        eta = f"{duration(left / rate)} left" if rate > 0 and left else "no estimate yet" if left else "no frames left"
        words = ", ".join(f"{count} {status}" for status, count in counts.items() if count or status != "failed")
        return f"{words} of {len(runs)} runs; {done:,} / {wanted:,} frames, {rate:,.0f}/s in total, {eta}"

    def _table(self, runs: Sequence[Run]) -> Table:
        order = {"running": 0, "failed": 1, "stopped": 2, "waiting": 3, "finished": 4}
        table = Table(box=None, pad_edge=False)
        for column in ("run", "state", "progress", "frames/s", "return", "success"):
            table.add_column(column, justify="left" if column in ("run", "state") else "right")
        ranked = sorted(runs, key=lambda run: order[run.status])
        for run in ranked[:SHOWN]:
            table.add_row(*self._cells(run))
        if len(ranked) > SHOWN:
            table.add_row(f"… and {len(ranked) - SHOWN} more")
        return table

    def _cells(self, run: Run) -> tuple[str, ...]:
        row: dict[str, Any] = self.rows.get(run, {})
        share = min(1.0, self._done(run) / run.job.config.steps)
        state = f"{run.status}, try {run.failures + 1}" if run.failures and run.active else run.status

        def figure(name: str, form: str) -> str:
            return format(float(row[name]), form) if row.get(name) else "–"

        speed = figure("fps", ",.0f") if run.status == "running" else ""
        return (
            self._name(run), state, f"{share:.0%} of {run.job.config.steps:,}", speed,
            figure("return_mean", ".3f"), figure("success_rate", ".0%"),
        )  # fmt: skip
