"""`deir sweep FILE.yaml`: tasks x methods x seeds, safe to interrupt, on this machine or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from deir.config import Config
from deir.experiments.report.curves import SWEEP
from deir.experiments.sweep.engines import LocalEngine
from deir.experiments.sweep.grid import Grid, read_grid
from deir.experiments.sweep.jobs import Job, check_all
from deir.experiments.sweep.live_table import SweepBoard, duration
from deir.experiments.sweep.options import ManyRuns
from deir.experiments.sweep.scheduler import Run, run_all
from deir.files import make_writable, only_writer, write_whole
from deir.runs.directory import RunDirectory
from deir.runs.run import frames_done as frames_done_in
from deir.runs.summary import read_summary

GUESSES = {"MiniGrid": 2_000, "MiniGrid with noise": 400, "vectors": 1_500, "other tasks": 50}
"""Frames/s of a run with one thread, to plan with before anything was measured."""


@dataclass(frozen=True)
class Sweep(ManyRuns):
    """Run tasks x methods x seeds. Finished runs are skipped, broken ones go on from their checkpoint."""

    file: tyro.conf.Positional[Path]
    """YAML file of the sweep (docs/sweeps.md)."""
    dry_run: bool = False
    """Only show the runs, their frames and an estimate of the time."""


def sweep(args: Sweep) -> int:
    """The exit code: 0 when all runs are finished, 1 when any failed, 130 when interrupted."""
    args.check()
    grid = read_grid(args.file, args.engine == "local", args.trust)
    out = args.out or Path("runs") / grid.name
    jobs = grid.jobs(out)
    check_all(jobs)
    if args.dry_run:
        print_plan(grid, jobs, args.jobs)
        return 0
    args.check_engine()
    make_writable("out", out)
    engine = args.make_engine()
    try:
        with only_writer(out), SweepBoard(out) as board:
            write_whole(out / SWEEP, args.file.read_text())  # by which a report knows whose labels the directories are
            runs = run_all(jobs, engine, args.retries, board, args.stall)
            print(board.total(runs))
    finally:
        engine.close()
    return conclude(runs, args.words("deir", "sweep", str(args.file)))


def conclude(runs: Sequence[Run], command: str) -> int:
    """Says what is left to do; gives the exit code."""
    failed = [run for run in runs if run.status == "failed"]
    if failed:
        print(f"{len(failed)} runs failed; their logs:")
        for run in failed:
            print(f"  {run.job.log}")
    if any(run.status == "stopped" for run in runs):
        print(f"interrupted; the same command goes on: {command}")
        return 130
    return 1 if failed else 0


def print_plan(grid: Grid, jobs: Sequence[Job], parallel: int | None) -> None:
    """The table of runs, the frames, the time."""
    table = Table(box=None, pad_edge=False)
    for column in ("env", "method", "seeds", "frames each", "runs", "state"):
        table.add_column(column, overflow="fold")
    remaining = iter(jobs)
    for cell in grid.cells:
        own = [next(remaining) for _ in cell.configs]
        states = [job.state for job in own]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        seeds = ",".join(str(config.seed) for config in cell.configs)
        table.add_row(cell.env, cell.method, seeds, f"{cell.configs[0].steps:,}", str(len(own)), counts)
    Console().print(table)
    left = [job for job in jobs if not job.finished]
    frames = sum(job.config.steps for job in jobs)
    to_do = {job: max(0, job.config.steps - frames_done(job)) for job in left}
    print(f"{len(jobs)} runs, {frames:,} frames; {len(left)} runs and {sum(to_do.values()):,} frames to do")
    if left:
        slots = min(len(left), LocalEngine(parallel).jobs)
        seconds, basis = estimate(to_do, jobs)
        print(f"about {duration(seconds / slots)} with {slots} at a time ({basis})")


def frames_done(job: Job) -> int:
    return frames_done_in(job.out) or 0


def estimate(to_do: dict[Job, int], jobs: Sequence[Job]) -> tuple[float, str]:
    """Seconds if one run followed the other, and what that is based on."""
    speeds: dict[Path, list[float]] = {}
    for job in jobs:
        summary = read_summary(RunDirectory(job.out).summary) if job.finished else None
        if summary and summary.get("frames_per_second"):
            speeds.setdefault(job.out.parent, []).append(summary["frames_per_second"])
    measured = {cell: sum(values) / len(values) for cell, values in speeds.items()}
    seconds = 0.0
    for job, frames in to_do.items():
        seconds += frames / measured.get(job.out.parent, guess(job.config))
    known = sum(job.out.parent in measured for job in to_do)
    if known == len(to_do):
        return seconds, "by the frames/s of finished runs of the same task and method here"
    guesses = ", ".join(f"{name} {speed:,}" for name, speed in GUESSES.items())
    others = f"; {known} of {len(to_do)} runs by finished ones" if known else ""
    return seconds, f"a guess, in frames/s of one thread: {guesses}{others}"


def guess(config: Config) -> float:
    from deir.envs.minigrid.catalogue import resolve

    if config.preset in ("control", "continuous"):
        return GUESSES["vectors"]
    if resolve(config.env.id) is None:
        return GUESSES["other tasks"]
    return GUESSES["MiniGrid with noise" if config.env.noise else "MiniGrid"]
