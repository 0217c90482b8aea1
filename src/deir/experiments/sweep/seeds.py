"""`deir train --seeds`: the same run with several seeds, side by side."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

from deir.config import Config
from deir.errors import UserError
from deir.experiments.sweep.engines import LocalEngine
from deir.experiments.sweep.jobs import Job, parse_seeds
from deir.experiments.sweep.live_table import SweepBoard
from deir.experiments.sweep.scheduler import run_all
from deir.files import make_writable
from deir.runs import run
from deir.runs.ranges import check_count


def train_seeds(config: Config, seeds: str, jobs_at_once: int, out: Path | None) -> None:
    """Single-thread runs side by side waste nothing on balance between threads."""
    check_count("jobs", jobs_at_once)
    run.validate(config)
    config = dataclasses.replace(config, threads=config.threads or 1)
    wanted = [dataclasses.replace(config, seed=seed) for seed in parse_seeds(seeds)]
    places = [out / f"seed{c.seed}" if out else run.default_directory(c) for c in wanted]
    for place in places:
        run.check_vacant(place)
    make_writable("out", places[0].parent)
    begin = time.perf_counter()
    jobs = [Job(c, place) for c, place in zip(wanted, places, strict=True)]
    with SweepBoard(Path.cwd()) as board:
        runs = run_all(jobs, LocalEngine(jobs_at_once), board=board)
    frames = sum(run.frames_done(job.out) or 0 for job in jobs)
    seconds = time.perf_counter() - begin
    print(f"{frames:,} frames in {seconds:.0f} s: {frames / seconds:,.0f} frames/s in total")
    failed = [r.job for r in runs if r.status == "failed"]
    if failed:
        raise UserError(f"{len(failed)} runs failed: {', '.join(str(job.log) for job in failed)} tells why")
    if any(r.status == "stopped" for r in runs):
        print("interrupted; each run goes on with: deir train --resume RUN", file=sys.stderr)
        raise SystemExit(130)
