"""What a person sees while a run goes on: a live panel on a terminal, a plain line an iteration elsewhere."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import cache
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from deir.algorithm.metrics import WINDOW
from deir.config import Config
from deir.envs import has_success
from deir.runs.stopping import output_failed, say

Row = dict[str, Any]


def _figure(value: Any, form: str = ".3f") -> str:
    return "–" if value in (None, "") else format(float(value), form)


def phase_shares(row: Row) -> dict[str, float]:
    """Shares of the iteration's time: collect, reward, update."""
    groups = {
        "collect": ("seconds_env", "seconds_forward"),
        "reward": ("seconds_reward",),
        "update": ("seconds_policy_update", "seconds_model_update"),
    }
    seconds = {name: sum(float(row.get(p) or 0) for p in parts) for name, parts in groups.items()}
    total = sum(seconds.values()) or 1.0
    return {name: s / total for name, s in seconds.items()}


def mean_of(row: Row) -> str:
    """How many episodes the return is a mean of."""
    count = min(WINDOW, int(row["episodes"] or 0))
    return f"{count} episode" if count == 1 else f"{count} episodes"


@cache
def shows_success(env: str) -> bool:
    return has_success(env)


def plain_line(config: Config, row: Row) -> str:
    shares = " ".join(f"{name} {share:.0%}" for name, share in phase_shares(row).items())
    success = f"  success {_figure(row['success_rate'], '.0%')}" if shows_success(config.env.id) else ""
    return (
        f"{int(row['frames']):>9,} / {config.steps:,} frames  {row['fps']:>6,.0f}/s"
        f"  return {_figure(row['return_mean'])} (of {mean_of(row)}){success}"
        f"  intrinsic {_figure(row['intrinsic_reward_mean'])}"
        f"  entropy {_figure(row['entropy'], '.2f')}  {shares}"
    )


class Told(logging.Handler):
    """What the package tells in passing, such as which encoder it chose, above the panel."""

    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


class Display:
    """Listens to a run."""

    def __init__(self, title: str, plain: bool | None = None) -> None:
        self.title = title
        self.console = Console()
        self.plain = not self.console.is_terminal if plain is None else plain
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
        )
        self.task = self.progress.add_task("", total=1)
        self.live: Live | None = None
        self.told = Told()

    def __enter__(self) -> Display:
        logging.getLogger("deir").addHandler(self.told)
        logging.getLogger("deir").setLevel(logging.INFO)
        if not self.plain:
            self.live = Live(self._panel("starting …"), console=self.console, refresh_per_second=4, transient=True)
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("deir").removeHandler(self.told)
        if self.live:
            with suppress(OSError):  # a terminal that was closed
                self.live.stop()

    def __call__(self, config: Config, row: Row) -> None:
        if self.live is None:
            say(plain_line(config, row))
            return
        self.progress.update(self.task, total=config.steps, completed=min(int(row["frames"]), config.steps))
        try:
            self.live.update(self._panel(self._figures(config, row)))
        except OSError as error:
            output_failed(error)

    def _panel(self, body: Any) -> Panel:
        grid = Table.grid()
        grid.add_row(self.progress)
        grid.add_row(body)
        return Panel(grid, title=self.title, expand=False)

    def _figures(self, config: Config, row: Row) -> Table:
        table = Table.grid(padding=(0, 2))
        shares = ", ".join(f"{name} {share:.0%}" for name, share in phase_shares(row).items())
        table.add_row("frames", f"{int(row['frames']):,} / {config.steps:,}", "frames/s", f"{row['fps']:,.0f}")
        success = ("success", _figure(row["success_rate"], ".0%")) if shows_success(config.env.id) else ()
        table.add_row(f"return of {mean_of(row)}", _figure(row["return_mean"]), *success)
        table.add_row(
            "intrinsic reward", _figure(row["intrinsic_reward_mean"]), "entropy", _figure(row["entropy"], ".2f")
        )
        table.add_row("time", shares)
        return table
