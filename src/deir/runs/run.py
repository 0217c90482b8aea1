"""A run on disk: its directory, its log, its checkpoints, and what happens when it is interrupted."""

from __future__ import annotations

import csv
import datetime
import io
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from deir.algorithm.metrics import WINDOW
from deir.algorithm.rewards import check_method
from deir.algorithm.trainer import Trainer
from deir.config import Config, load_yaml, merge, save_yaml
from deir.envs import check_env
from deir.errors import TrainingDiverged, UserError, invalid
from deir.files import LOCK, only_writer, write_whole
from deir.runs import checkpoint
from deir.runs.presets import resolve
from deir.runs.ranges import check, check_device

FIRST_COLUMNS = (
    "iteration",
    "frames",
    "seconds",
    "fps",
    "return_mean",
    "success_rate",
    "episode_length_mean",
    "intrinsic_reward_mean",
)
Row = dict[str, Any]
Listener = Callable[[Config, Row], None]  # called after every iteration


class RunDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.progress = path / "progress.csv"
        self.checkpoints = path / "checkpoints"
        self.summary = path / "summary.json"
        self.events = path / "tensorboard"
        self.figure = path / "learning_curve.png"
        self.maps = path / "maps.npz"

    @classmethod
    def existing(cls, path: Path, field: str) -> RunDirectory:
        run = cls(path)
        if not run.config.is_file():
            raise invalid(field, str(path), f"a run directory with a config.yaml{_nearest_run(path)}")
        return run


def _nearest_run(path: Path) -> str:
    from deir.errors import nearest

    runs = [str(p.parent) for p in Path("runs").glob("**/config.yaml")] if Path("runs").is_dir() else []
    close = nearest(str(path), runs)
    return f"; the nearest one is {close}" if close else ""


def validate(config: Config) -> None:
    """All that can be wrong with a configuration, before anything is created."""
    check(config)
    check_method(config.method)
    check_env(config.env)
    check_device(config.device)


def default_directory(config: Config) -> Path:
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name, method = (text.replace(":", "-").replace("/", "-") for text in (config.env.id, config.method))
    return Path("runs") / name / method / f"seed{config.seed}-{stamp}"


def check_vacant(path: Path) -> None:
    """An existing run is never overwritten."""
    ours = {LOCK, ".config.yaml.tmp"}  # all that is left where a process was killed before it began
    if path.exists() and (not path.is_dir() or any(p.name not in ours for p in path.iterdir())):
        raise invalid("out", str(path), f"a new or empty directory (`deir train --resume {path}` continues a run)")


def start(config: Config, out: Path | None = None, listener: Listener | None = None) -> tuple[Path, Row]:
    """Trains from the beginning. Gives the run directory and the last row of its progress."""
    validate(config)
    run = RunDirectory(out or default_directory(config))
    check_vacant(run.path)
    trainer = Trainer(config)
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        with only_writer(run.path):
            check_vacant(run.path)
            save_yaml(config, run.config)
            return run.path, _train(trainer, run, listener, [])
    finally:
        trainer.close()


def resume(path: Path, changes: dict[str, Any] | None = None, listener: Listener | None = None) -> tuple[Path, Row]:
    """Goes on from the last whole checkpoint; `changes` may lengthen the run."""
    run = RunDirectory.existing(path, "resume")
    config = merge(_saved_config(run), changes or {})
    validate(config)
    with only_writer(path):
        if checkpoint.exists(run.checkpoints):
            return path, _go_on(run, config, listener)
        return path, _begin_again(run, config, listener)


def _begin_again(run: RunDirectory, config: Config, listener: Listener | None) -> Row:
    """The run died before its first checkpoint: the same from the start. Its old log stays under another name."""
    if run.progress.is_file():
        earlier = len(list(run.path.glob("progress-*.csv")))
        run.progress.rename(run.path / f"progress-{earlier + 1}.csv")
    trainer = Trainer(config)
    try:
        save_yaml(config, run.config)
        return _train(trainer, run, listener, [])
    finally:
        trainer.close()


def _go_on(run: RunDirectory, config: Config, listener: Listener | None) -> Row:
    state, source, complaints = checkpoint.load_latest(run.checkpoints)
    for complaint in complaints:
        print(f"warning: {complaint}", file=sys.stderr)
    if complaints:
        print(f"warning: going on from {source}", file=sys.stderr)
    if config.steps < int(state["frames"]):
        raise invalid("steps", config.steps, f"at least the {state['frames']:,} frames the run has done already")
    # environments that cannot be saved begin fresh episodes, with seeds that name the checkpoint
    trainer = Trainer(config, generation=int(state["iteration"]))
    try:
        trainer.load_state_dict(state)
        rows = _rows_until(run.progress, trainer.iteration)
        save_yaml(config, run.config)
        return _train(trainer, run, listener, rows)
    finally:
        trainer.close()


def frames_done(path: Path) -> int | None:
    """Frames of the last row of progress.csv."""
    progress = RunDirectory(path).progress
    if not progress.is_file():
        return None
    with progress.open(newline="") as file:
        frames = [row["frames"] for row in csv.DictReader(file)]
    return int(frames[-1]) if frames else None


def _rows_until(progress: Path, iteration: int) -> list[Row]:
    """The rows up to the checkpoint; later ones will be made again."""
    if not progress.is_file():
        return []
    with progress.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["iteration"] or "").isdigit()]
    return [row for row in rows if int(row["iteration"]) <= iteration]


class ProgressLog:
    """progress.csv and TensorBoard events."""

    def __init__(self, run: RunDirectory, rows: list[Row], tensorboard: bool) -> None:
        self.path = run.progress
        self.columns: list[str] = list(rows[0]) if rows else []
        if rows:
            write_whole(self.path, _csv_text(self.columns, rows, header=True))
        self.writer = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            purge = int(rows[-1]["frames"]) + 1 if rows else None
            self.writer = SummaryWriter(str(run.events), purge_step=purge)  # type: ignore[no-untyped-call]

    def write(self, row: Row) -> None:
        header = not self.columns
        if header:
            self.columns = [*FIRST_COLUMNS, *(name for name in row if name not in FIRST_COLUMNS)]
        with self.path.open("a", newline="") as file:
            file.write(_csv_text(self.columns, [row], header))
        if self.writer is not None:
            for name, value in row.items():
                if value is not None and name not in ("iteration", "frames"):
                    self.writer.add_scalar(name, value, row["frames"])  # type: ignore[no-untyped-call]

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()  # type: ignore[no-untyped-call]


def _csv_text(columns: list[str], rows: list[Row], header: bool) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, restval="", lineterminator="\n", extrasaction="ignore")
    if header:
        writer.writeheader()
    writer.writerows({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    return buffer.getvalue()


class Interrupted(Exception):
    """Ctrl-C or SIGTERM."""


@contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """The first signal is noted, so that the iteration ends well; the second one is obeyed at once."""
    noted: list[int] = []
    previous: dict[int, Any] = {}

    def note(number: int, frame: Any) -> None:
        noted.append(number)
        signal.signal(number, previous[number])

    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(ValueError):  # not the main thread: the caller handles signals
            previous[number] = signal.signal(number, note)
    try:
        yield noted
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def _train(trainer: Trainer, run: RunDirectory, listener: Listener | None, rows: list[Row]) -> Row:
    config = trainer.config
    log = ProgressLog(run, rows, config.tensorboard)
    before = float(rows[-1]["seconds"]) if rows else 0.0
    row: Row = {k: _number(v) for k, v in rows[-1].items()} if rows else {"iteration": 0, "frames": 0, "seconds": 0.0}
    begin = time.perf_counter()
    status = "finished"
    try:
        with _signals_noted() as signals:
            while not trainer.finished and not target_reached(row, config):
                trainer.keep()
                started, frames = time.perf_counter(), trainer.frames
                try:
                    figures = trainer.iterate()
                except TrainingDiverged as error:
                    good = trainer.kept()
                    checkpoint.save(good, checkpoint.path_of(run.checkpoints, int(good["iteration"])))
                    status = f"diverged: {error}"
                    raise UserError(
                        f"training stopped at iteration {trainer.iteration + 1}: {error}. The last good state is in "
                        f"{run.checkpoints}. A smaller --ppo.learning-rate or --reward.beta is the usual remedy."
                    ) from None
                now = time.perf_counter()
                row = {
                    "iteration": trainer.iteration,
                    "frames": trainer.frames,
                    "seconds": before + now - begin,
                    "fps": (trainer.frames - frames) / (now - started),
                    **figures,
                }
                log.write(row)
                if listener:
                    listener(config, row)
                if trainer.iteration % config.checkpoint.every == 0 or signals:
                    _checkpoint(trainer, run)
                if signals:
                    status = "interrupted"
                    raise Interrupted
            status = "target reached" if target_reached(row, config) else "finished"
            _checkpoint(trainer, run)
    finally:
        log.close()
        write_whole(run.summary, json.dumps(_summary(trainer, row, status), indent=2) + "\n")
    return row


def _number(text: Any) -> Any:
    try:
        return float(text) if text not in ("", None) else None
    except ValueError:
        return text


def target_reached(row: Row, config: Config) -> bool:
    """The mean must be over a full window of episodes: one lucky episode is not a target reached."""
    mean = row.get("return_mean")
    if config.target_return is None or mean is None or int(row["episodes"]) < WINDOW:
        return False
    return float(mean) >= config.target_return


def _checkpoint(trainer: Trainer, run: RunDirectory) -> None:
    path = checkpoint.path_of(run.checkpoints, trainer.iteration)
    if not path.exists():
        checkpoint.save(trainer.state_dict(), path)
        if trainer.maps:
            _write_maps(run.maps, trainer.maps.arrays())
    checkpoint.prune(run.checkpoints, trainer.config.checkpoint.keep)


def _write_maps(path: Path, arrays: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}")
    np.savez_compressed(temporary, **arrays)
    os.replace(temporary, path)


def _summary(trainer: Trainer, row: Row, status: str) -> dict[str, Any]:
    config = trainer.config
    packages = ("deir", "torch", "numpy", "gymnasium", "minigrid")
    return {
        "status": status,
        "env": config.env.id,
        "method": config.method,
        "seed": config.seed,
        "networks": trainer.networks,
        "final": {name: row.get(name) for name in FIRST_COLUMNS},
        "frames_per_second": row["frames"] / row["seconds"] if row["seconds"] else None,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
    }


def load_config(path: Path, field: str = "run") -> Config:
    return _saved_config(RunDirectory.existing(path, field))


def _saved_config(run: RunDirectory) -> Config:
    saved = load_yaml(run.config)
    if isinstance(saved.get("reward"), dict):
        saved["reward"].pop("process", None)  # of runs whose model had a process instead of a thread
    return merge(Config(), saved)


def configure(overrides: dict[str, Any]) -> Config:
    """Defaults, then the preset of the task and method named in `overrides`, then the overrides themselves."""
    named = merge(Config(), overrides)
    config = resolve(
        replace(Config(), env=replace(Config().env, id=named.env.id), method=named.method, preset=named.preset)
    )
    return merge(config, {**overrides, "preset": config.preset})
