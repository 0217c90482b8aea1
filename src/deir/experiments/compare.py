"""Compares labelled configurations over seeds: runs them, and gathers their curves in one CSV and one picture.

    python -m deir.experiments.compare FILE.yaml --jobs 2

FILE names `env`, `steps`, `seeds`, `variants` (label -> configuration keys) and optionally `overrides` for all and
`title`. The runs go to runs/compare/<file name>/, the CSV and the picture beside FILE.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from deir.config import load_yaml
from deir.errors import UserError
from deir.experiments.figures import compare_curves
from deir.experiments.pool import Job, parse_seeds, run_all
from deir.run import configure, validate

COLUMNS = ("frames", "seconds", "return_mean", "success_rate", "episode_length_mean", "intrinsic_reward_mean")


@dataclass(frozen=True)
class Arguments:
    file: tyro.conf.Positional[Path]
    """YAML file of the comparison."""
    jobs: int = 2
    """Runs at the same time, one thread each."""
    runs: Path = Path("runs/compare")
    """Where the runs go."""


def jobs_of(plan: dict[str, Any], runs: Path) -> list[tuple[str, int, Job]]:
    jobs = []
    for label, changes in plan["variants"].items():
        for seed in parse_seeds(str(plan["seeds"])):
            base = _merged(plan.get("overrides") or {}, changes or {})
            env = {"id": plan["env"], **base.pop("env", {})}
            config = configure({**base, "env": env, "steps": plan["steps"], "seed": seed})
            validate(config)
            jobs.append((label, seed, Job(config, runs / label / f"seed{seed}")))
    return jobs


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def gather(jobs: list[tuple[str, int, Job]], out: Path) -> None:
    """One row an iteration of every run."""
    with out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["variant", "seed", *COLUMNS])
        for label, seed, job in jobs:
            with (job.out / "progress.csv").open(newline="") as progress:
                for row in csv.DictReader(progress):
                    writer.writerow([label, seed, *(row[column] for column in COLUMNS)])


def summary(jobs: list[tuple[str, int, Job]], threshold: float = 0.9) -> str:
    """Markdown: final return, frames to the threshold, and area under the curve (mean ± standard error)."""
    lines = [
        "| variant | final return | mean return over the run | reached 0.9 | frames to 0.9 (median) |",
        "|---|---|---|---|---|",
    ]
    for label in dict.fromkeys(label for label, _, _ in jobs):
        finals, areas, reached = [], [], []
        for _, _, job in (entry for entry in jobs if entry[0] == label):
            with (job.out / "progress.csv").open(newline="") as file:
                curve = [(int(r["frames"]), float(r["return_mean"] or 0)) for r in csv.DictReader(file)]
            finals.append(curve[-1][1])
            areas.append(float(np.mean([value for _, value in curve])))
            reached.append(next((frames for frames, value in curve if value >= threshold), None))
        known = [frames for frames in reached if frames is not None]
        median = f"{int(np.median(known)):,}" if len(known) > len(reached) / 2 else "–"
        cells = [_plus_minus(finals), _plus_minus(areas), f"{len(known)} of {len(reached)}", median]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _plus_minus(values: list[float]) -> str:
    error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{np.mean(values):.3f} ± {error:.3f}"


def main() -> None:
    args = tyro.cli(Arguments, prog="python -m deir.experiments.compare")
    try:
        plan = load_yaml(args.file)
        missing = {"env", "steps", "seeds", "variants"} - plan.keys()
        if missing:
            raise UserError(f"{args.file}: missing {', '.join(sorted(missing))}")
        jobs = jobs_of(plan, args.runs / args.file.stem)
    except UserError as mistake:
        raise SystemExit(f"error: {mistake}") from None
    failed = run_all([job for _, _, job in jobs], args.jobs)
    if failed:
        raise SystemExit(f"{len(failed)} runs failed; their logs stand beside them: {failed[0].out}.log …")
    out = args.file.with_suffix(".csv")
    gather(jobs, out)
    compare_curves(out, args.file.with_suffix(".png"), plan.get("title", args.file.stem))
    print(summary(jobs))


if __name__ == "__main__":
    main()
