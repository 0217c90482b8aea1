"""Several runs side by side on one machine: one process and one thread each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from deir.config import Config, save_yaml
from deir.errors import invalid


@dataclass(frozen=True)
class Job:
    config: Config
    out: Path

    @property
    def finished(self) -> bool:
        summary = self.out / "summary.json"
        return summary.is_file() and json.loads(summary.read_text())["status"] in ("finished", "target reached")

    @property
    def resumable(self) -> bool:
        return any((self.out / "checkpoints").glob("*.safetensors"))


def parse_seeds(text: str) -> list[int]:
    """'0-3' -> [0, 1, 2, 3]; '1,5' -> [1, 5]"""
    try:
        parts = [part.split("-") for part in text.split(",")]
        seeds = [seed for part in parts for seed in range(int(part[0]), int(part[-1]) + 1)]
    except ValueError:
        raise invalid("seeds", text, "whole numbers such as 0-3 or 1,5,7") from None
    if not seeds or len(set(seeds)) < len(seeds):
        raise invalid("seeds", text, "a rising range such as 0-3, or distinct numbers")
    return seeds


def run_all(jobs: list[Job], workers: int, report: Callable[[str], None] = print) -> list[Job]:
    """Runs what is not finished, `workers` at a time, from its checkpoint if it has one. Gives those that failed."""
    waiting = [job for job in jobs if not job.finished]
    running: dict[subprocess.Popen[bytes], Job] = {}
    failed: list[Job] = []
    with tempfile.TemporaryDirectory() as scratch:
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.pop(0)
                running[_launch(job, Path(scratch))] = job
                report(f"started  {job.out}")
            time.sleep(0.2)
            for process in [p for p in running if p.poll() is not None]:
                job = running.pop(process)
                report(f"{'finished' if process.returncode == 0 else 'FAILED  '} {job.out}")
                if process.returncode:
                    failed.append(job)
    return failed


def _launch(job: Job, scratch: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "deir.cli", "train"]
    if job.resumable:
        words += ["--resume", str(job.out)]
    else:
        config = scratch / f"{abs(hash(job.out))}.yaml"
        save_yaml(replace(job.config, threads=job.config.threads or 1), config)
        words += ["--config", str(config), "--out", str(job.out)]
    job.out.parent.mkdir(parents=True, exist_ok=True)
    log = (job.out.parent / f"{job.out.name}.log").open("ab")
    return subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
