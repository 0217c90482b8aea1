"""A run that is wanted, and how far it is on disk."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deir.config import Config, flatten, to_dict
from deir.errors import UserError, invalid
from deir.runs.run import RunDirectory, load_config

TAIL = 1 << 15  # bytes that hold the last row of any progress.csv


@dataclass(frozen=True)
class Job:
    config: Config
    out: Path

    @property
    def log(self) -> Path:
        """What the run printed, in all its attempts."""
        return self.out.parent / f"{self.out.name}.log"

    @property
    def summary(self) -> dict[str, Any] | None:
        path = RunDirectory(self.out).summary
        return json.loads(path.read_text()) if path.is_file() else None

    @property
    def finished(self) -> bool:
        summary = self.summary
        if summary is None or summary["status"] not in ("finished", "target reached"):
            return False
        return summary["status"] == "target reached" or summary["final"]["frames"] >= self.config.steps

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
        stored, wanted = flatten(to_dict(load_config(self.out))), flatten(to_dict(self.config))
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


def read_rows(progress: Path) -> list[dict[str, str]]:
    """The whole rows of a progress.csv that may be in the middle of being written."""
    if not progress.is_file():
        return []
    text = progress.read_text()
    return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))


def last_row(progress: Path) -> dict[str, str] | None:
    """The last whole row, without reading the rest."""
    if not progress.is_file():
        return None
    with progress.open("rb") as file:
        header = file.readline().decode()
        begin = file.tell()
        file.seek(0, 2)
        file.seek(max(begin, file.tell() - TAIL))
        lines = file.read().decode(errors="replace").split("\n")[:-1]
    return next(iter(csv.DictReader([header, lines[-1]]))) if lines else None


def last_lines(log: Path, count: int = 8) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-count:]) if log.is_file() else ""


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
