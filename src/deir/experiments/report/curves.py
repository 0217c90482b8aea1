"""Finds runs on disk and reads their curves; writes and reads curves.csv, the curves of many runs in one file."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deir.config import EnvConfig, flatten, load_yaml
from deir.errors import UserError, invalid
from deir.files import as_cell, check_seal, from_cell
from deir.runs.directory import told_nearest
from deir.runs.progress import read_rows
from deir.runs.ranges import LARGEST_WHOLE

Array = NDArray[np.float64]
LABELS = ("env", "method", "seed")
COLUMNS = (
    "frames",
    "seconds",
    "return_mean",
    "success_rate",
    "episode_length_mean",
    "intrinsic_reward_mean",
    "episodic_efficiency",
    "lifelong_efficiency",
    "episodes",
)
LONGEST_LABEL = 300  # characters
SWEEP = "sweep.yaml"  # stands at the root of a sweep's runs
_NOT_THE_TASK = {"n_envs", "layout_worker"}
_NOT_THE_METHOD = (
    "env", "method", "steps", "seed", "target_return", "device", "threads", "ops", "loggers", "checkpoint",
    "tensorboard",  # of earlier versions
)  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """One run: its labels and the columns of its progress."""

    env: str
    method: str
    seed: int
    columns: dict[str, Array]  # each [points]; NaN where unknown
    source: Path
    planned: int | None = None  # frames its configuration asks for
    settings: dict[str, Any] = field(default_factory=dict)  # all that makes the method, flat

    @property
    def frames(self) -> Array:
        return self.columns["frames"]

    @property
    def last(self) -> int:
        return int(self.frames[-1])

    @property
    def name(self) -> str:
        return f"{self.method} on {self.env}, seed {self.seed}"


def read_all(places: Sequence[Path], by_directory: bool = False) -> tuple[list[Curve], list[str]]:
    """The curves of all runs at or below the places, each run once, and what the reader must be told about them."""
    found: list[Curve] = []
    notes: list[str] = []
    for place in places:
        runs, tables = _search(place)
        if not runs and not tables:
            expected = "a run directory (config.yaml, progress.csv), a directory above some, or a report's curves.csv"
            raise invalid("runs", str(place), f"{expected}{told_nearest(place, above=True)}")
        for path in runs:
            curve = read_run(path, by_directory)
            if curve is None:
                notes.append(f"{path} has no finished iteration yet and is left out.")
            else:
                found.append(curve)
        for path in tables:
            found += read_table(path)
    if not found:
        raise invalid("runs", ", ".join(map(str, places)), "at least one run with a finished iteration")
    curves, repeated = _each_once(found)
    return curves, notes + repeated + _mixed(curves)


def _search(place: Path) -> tuple[list[Path], list[Path]]:
    """Run directories and curves.csv files at or below a place."""
    if place.is_file():
        return [], [place]
    runs = {path.parent for path in place.rglob("config.yaml") if (path.parent / "progress.csv").is_file()}
    return sorted(runs), sorted(place.rglob("curves.csv"))


def read_run(path: Path, by_directory: bool = False) -> Curve | None:
    """The curve of a run directory; None before its first iteration."""
    check_seal(path / "config.yaml")
    config = load_yaml(path / "config.yaml")
    if not isinstance(config.get("env"), dict) or not {"method", "seed"} <= config.keys():
        raise UserError(f"{path / 'config.yaml'}: expected the configuration of a run, with env, method and seed")
    for name in ("seed", "steps"):
        _check_whole(config, name, path / "config.yaml")
    rows = read_rows(path / "progress.csv")
    if not rows:
        return None
    env, method = _labels(path, config, by_directory)
    settings = {k: v for k, v in flatten(config).items() if k.split(".")[0] not in _NOT_THE_METHOD}
    columns = _columns(rows, path / "progress.csv")
    return Curve(env, method, config["seed"], columns, path, config.get("steps"), settings)


def _check_whole(config: dict[str, Any], name: str, path: Path) -> None:
    value = config.get(name, 0)
    if type(value) is not int or not 0 <= value <= LARGEST_WHOLE:
        raise invalid(f"{path}: {name}", value, "a whole number, 0 or more, as a run writes it")


def _labels(path: Path, config: dict[str, Any], by_directory: bool) -> tuple[str, str]:
    """Labels of a sweep are its directories; else the task and its variants as configured, and the method."""
    whole = path.resolve()
    below_seed = re.match(r"seed\d+", whole.name)
    if below_seed and len(whole.parts) > 3 and (whole.parents[2] / SWEEP).is_file():
        return _printable(whole.parents[1].name), _printable(whole.parents[0].name)
    method = whole.parent.name if by_directory and below_seed else str(config["method"])
    return _printable(task_name(config["env"])), _printable(method)


def _printable(text: str) -> str:
    """A label without what a terminal would obey, and not endless: it may come from a stranger's file."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text[:LONGEST_LABEL])


def task_name(env: dict[str, Any]) -> str:
    """The task and whatever makes it another task: `DoorKey-8x8 noise=0.1`."""
    defaults = asdict(EnvConfig())
    changed = [
        f"{f.name}={str(env[f.name]).lower() if isinstance(env[f.name], bool) else env[f.name]}"
        for f in fields(EnvConfig)
        if f.name not in _NOT_THE_TASK | {"id"} and f.name in env and env[f.name] != defaults[f.name]
    ]
    return " ".join([str(env.get("id", defaults["id"])), *changed])


def read_table(path: Path) -> list[Curve]:
    """The curves of a curves.csv."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        missing = {*LABELS, "frames", "seconds", "return_mean"} - set(reader.fieldnames or ())
        if missing:
            raise UserError(f"runs: {path} is no curves.csv of a report: it has no column {', '.join(sorted(missing))}")
        by_run: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
        for row in reader:
            env, method = from_cell(row["env"] or ""), from_cell(row["method"] or "")
            by_run.setdefault((env, method, row["seed"] or ""), []).append(row)
    return [
        Curve(env, method, _whole(seed, path), _columns(rows, path), path)
        for (env, method, seed), rows in by_run.items()
    ]


def _whole(text: str, path: Path) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise invalid(f"{path}: seed", text, "a whole number")
    return int(text)


def _columns(rows: list[dict[str, Any]], path: Path) -> dict[str, Array]:
    try:
        columns = {name: np.array([float(row.get(name) or "nan") for row in rows]) for name in COLUMNS}
    except ValueError as error:
        raise UserError(f"{path}: {error}; expected numbers or empty cells") from None
    if not (np.diff(columns["frames"], prepend=0) > 0).all():
        raise UserError(f"{path}: expected frames that rise from row to row")
    return columns


def write_table(curves: Iterable[Curve], path: Path) -> None:
    """curves.csv: one row for each run and iteration."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*LABELS, *COLUMNS])
        for curve in curves:
            for point in zip(*(curve.columns[name] for name in COLUMNS), strict=True):
                writer.writerow([as_cell(curve.env), as_cell(curve.method), curve.seed, *map(_cell, point)])


def _cell(value: float) -> str:
    if np.isnan(value):
        return ""
    return str(int(value)) if float(value).is_integer() else f"{value:.6g}"


def _each_once(found: list[Curve]) -> tuple[list[Curve], list[str]]:
    """Of several curves of one task, method and seed the longest; said aloud unless they are the same run."""
    longest: dict[tuple[str, str, int], Curve] = {}
    notes = []
    for curve in found:
        key = (curve.env, curve.method, curve.seed)
        other = longest.get(key)
        if other is None:
            longest[key] = curve
            continue
        left, kept = sorted((curve, other), key=lambda c: (c.last, bool(c.settings)))  # a directory rather than a table
        longest[key] = kept
        if not _begins_with(kept, left):
            notes.append(f"Two runs are {kept.name}: {kept.source} is reported, {left.source} is left out.")
    return sorted(longest.values(), key=lambda c: (c.env, c.method, c.seed)), notes


def _begins_with(longer: Curve, shorter: Curve) -> bool:
    count = len(shorter.frames)
    return all(
        np.array_equal(longer.columns[name][:count], shorter.columns[name], equal_nan=True)
        for name in ("frames", "return_mean")
    )


def _mixed(curves: list[Curve]) -> list[str]:
    """A method whose runs differ in more than their seed is more than one method."""
    notes = []
    groups: dict[tuple[str, str], list[Curve]] = {}
    for curve in curves:
        if curve.settings:
            groups.setdefault((curve.env, curve.method), []).append(curve)
    for (env, method), group in groups.items():
        names = {name for curve in group for name in curve.settings}
        differ = sorted(n for n in names if any(c.settings.get(n) != group[0].settings.get(n) for c in group))
        if differ:
            notes.append(f"The runs of {method} on {env} do not share one configuration: {', '.join(differ)} differ.")
    return notes
