"""The files of a run directory."""

from __future__ import annotations

import os
import shlex
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from deir.errors import invalid, nearest

CONFIG = "config.yaml"
MOST_LOOKED_AT = 2_000  # directories, to find a run whose name was mistyped


class RunDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / CONFIG
        self.progress = path / "progress.csv"
        self.checkpoints = path / "checkpoints"
        self.summary = path / "summary.json"
        self.figure = path / "learning_curve.png"
        self.maps = path / "maps.npz"

    @classmethod
    def existing(cls, path: Path, field: str) -> RunDirectory:
        run = cls(path)
        if not run.config.is_file():
            raise invalid(field, str(path), f"a run directory with a {CONFIG}{told_nearest(path)}")
        return run


def told_nearest(path: Path, above: bool = False) -> str:
    """What to type instead of a mistyped run, as the end of a message; with `above` also a directory above runs."""
    found = _nearest_run(path, above)
    return f"; the nearest one is {shlex.quote(str(found))}" if found else ""


def _nearest_run(path: Path, above: bool) -> Path | None:
    """The run that the path leads into, else one below the last directory of the path that exists, else in runs/."""
    base = next((place for place in (path, *path.parents) if place.is_dir()), Path())
    for place in (base, *base.parents):
        if _is_run(place):
            return place
    for place in (base, Path("runs")):
        runs = list(_runs_below(place))
        if path == place and runs:
            return runs[0]
        if above:
            runs += [p for run in runs for p in run.parents if p != place and p.is_relative_to(place)]
        names = {str(run.relative_to(base) if place == base else run): run for run in runs}
        close = nearest(str(path.relative_to(base) if place == base else path), names)
        if close:
            return names[close]
    return None


def _runs_below(base: Path) -> Iterator[Path]:
    """The nearest first, and not all of a disk."""
    waiting, looked = deque([] if base == Path(base.anchor) and base.anchor else [base]), 0
    while waiting and looked < MOST_LOOKED_AT:
        looked += 1
        with suppress(OSError):
            entries = list(os.scandir(waiting.popleft()))
            below = sorted(Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False))
            runs = [place for place in below if _is_run(place)]
            yield from runs
            waiting.extend(place for place in below if place not in runs and not place.name.startswith("."))


def _is_run(place: Path) -> bool:
    return (place / CONFIG).is_file()
