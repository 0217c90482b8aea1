"""A run that is wanted, and how far it is on disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from deir.config import Config, flatten, to_dict
from deir.errors import UserError, invalid
from deir.runs.directory import RunDirectory
from deir.runs.ranges import LARGEST_OF_COMMANDS
from deir.runs.run import load_config
from deir.runs.summary import ENDED_WELL, read_summary


@dataclass(frozen=True)
class Job:
    config: Config
    out: Path

    @property
    def log(self) -> Path:
        """What the run printed, in all its attempts."""
        return self.out.parent / f"{self.out.name}.log"

    @property
    def finished(self) -> bool:
        summary = read_summary(RunDirectory(self.out).summary)
        if summary is None or summary["status"] not in ENDED_WELL:
            return False
        return bool(summary["status"] == "target reached" or summary["final"]["frames"] >= self.config.steps)

    @property
    def state(self) -> str:
        if self.finished:
            return "finished"
        return "to resume" if RunDirectory(self.out).config.is_file() else "new"

    def check(self) -> None:
        """What is there must be this run, or a shorter part of it: nothing is overwritten."""
        run = RunDirectory(self.out)
        if not run.config.is_file():
            if run.progress.exists():
                raise UserError(f"{self.out} has a progress.csv but no config.yaml: not a run this can go on with")
            return
        known = load_config(self.out, trust=True)  # only compared: nothing that it names is imported
        stored, wanted = flatten(to_dict(known)), flatten(to_dict(self.config))
        for field, value in wanted.items():
            if value == stored[field] or (field == "steps" and value > stored[field]):
                continue
            raise UserError(
                f"{field}: the run in {self.out} has {stored[field]!r}, the file now says {value!r}; a run that is "
                "there can only be given more steps. Another --out or another label keeps both"
            )


def check_all(jobs: Iterable[Job]) -> None:
    for job in jobs:
        job.check()


def last_lines(log: Path, count: int = 8) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-count:]) if log.is_file() else ""


def parse_seeds(text: str) -> list[int]:
    """'0-3' -> [0, 1, 2, 3]; '1,5' -> [1, 5]"""
    try:
        parts = [[int(end) for end in part.split("-")] for part in text.split(",")]
    except ValueError:
        raise invalid("seeds", text, "whole numbers such as 0-3 or 1,5,7") from None
    if max(len(part) for part in parts) > 2:
        raise invalid("seeds", text, "whole numbers such as 0-3 or 1,5,7")
    if sum(max(0, part[-1] - part[0] + 1) for part in parts) > LARGEST_OF_COMMANDS["seeds"]:
        raise invalid("seeds", text, f"at most {LARGEST_OF_COMMANDS['seeds']:,} of them")
    seeds = [seed for part in parts for seed in range(part[0], part[-1] + 1)]
    if not seeds or len(set(seeds)) < len(seeds):
        raise invalid("seeds", text, "a rising range such as 0-3, or distinct numbers")
    return seeds
