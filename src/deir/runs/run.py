"""A run on disk: its directory, its log, its checkpoints, and what happens when it is interrupted."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Collection
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from deir.algorithm.metrics import WINDOW
from deir.algorithm.networks import check_encoder
from deir.algorithm.rewards import check_method
from deir.algorithm.trainer import Trainer
from deir.config import Config, load_yaml, merge, to_dict, with_old_keys
from deir.envs import check_env
from deir.errors import TrainingDiverged, UserError, invalid
from deir.files import HOLDER, LOCK, TRIAL, check_seal, make_writable, only_writer, replacing, sealed, write_whole
from deir.imports import check_trusted
from deir.runs import checkpoint, progress
from deir.runs.directory import RunDirectory
from deir.runs.loggers import Loggers, check_loggers
from deir.runs.presets import resolve
from deir.runs.progress import ProgressLog, Row, StoredLog
from deir.runs.ranges import check, check_device
from deir.runs.stopping import Interrupted, signals_noted
from deir.runs.summary import ENDED_WELL, write_summary
from deir.runs.training import make_ops, make_trainer, networks_of

Listener = Callable[[Config, Row], None]  # called after every iteration


def validate(config: Config) -> None:
    """All that can be wrong with a configuration, before anything is created."""
    check(config)
    check_method(config.method)
    check_encoder("network.encoder", config.network.encoder)
    check_encoder("reward.encoder", config.reward.encoder)
    check_loggers(config.loggers)
    check_env(config.env)
    check_device(config.device)
    make_ops(config)


def default_directory(config: Config) -> Path:
    stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    name, method = (text.replace(":", "-").replace("/", "-") for text in (config.env.id, config.method))
    return Path("runs") / name / method / f"seed{config.seed}-{stamp}"


def check_vacant(path: Path) -> None:
    """An existing run is never overwritten."""
    ours = {LOCK, HOLDER, TRIAL, ".config.yaml.tmp"}  # all that is left where a process was killed before it began
    if path.exists() and (not path.is_dir() or any(p.name not in ours for p in path.iterdir())):
        raise invalid("out", str(path), f"a new or empty directory (`deir train --resume {path}` continues a run)")


def start(config: Config, out: Path | None = None, listener: Listener | None = None) -> tuple[Path, Row]:
    """Trains from the beginning. Gives the run directory and the last row of its progress."""
    validate(config)
    run = RunDirectory(out or default_directory(config))
    check_vacant(run.path)
    make_writable("out", run.path)
    trainer = make_trainer(config)
    try:
        with only_writer(run.path):
            check_vacant(run.path)
            _save_config(run, config)
            return run.path, _train(trainer, run, listener, [])
    finally:
        trainer.close()


def resume(
    path: Path,
    changes: dict[str, Any] | None = None,
    listener: Listener | None = None,
    trust: bool | Collection[str] = (),
) -> tuple[Path, Row]:
    """Goes on from the last whole checkpoint; `changes` may lengthen the run.

    `trust`: True, or names of code in the run's config.yaml that may be imported.
    """
    run = RunDirectory.existing(path, "resume")
    saved = _saved_config(run, trust)
    config = merge(saved, changes or {})
    validate(config)
    with only_writer(path):
        checkpoint.tidy(run.checkpoints)
        if checkpoint.exists(run.checkpoints):
            return path, _go_on(run, config, config.steps < saved.steps, listener)
        return path, _begin_again(run, config, listener)


def _begin_again(run: RunDirectory, config: Config, listener: Listener | None) -> Row:
    """The run died before its first checkpoint: the same from the start. Its old log stays under another name."""
    trainer = make_trainer(config)
    try:
        if run.progress.is_file():
            earlier = len(list(run.path.glob("progress-*.csv")))
            run.progress.rename(run.path / f"progress-{earlier + 1}.csv")
        _save_config(run, config)
        return _train(trainer, run, listener, [])
    finally:
        trainer.close()


def _go_on(run: RunDirectory, config: Config, shortened: bool, listener: Listener | None) -> Row:
    trainer, rows = _restored(run, config)
    try:
        if shortened and config.steps < trainer.frames:
            raise invalid("steps", config.steps, f"at least the {trainer.frames:,} frames the run has done already")
        checkpoint.set_aside(run.checkpoints, checkpoint.path_of(run.checkpoints, trainer.iteration))
        _save_config(run, config)
        return _train(trainer, run, listener, rows, saved=trainer.iteration)
    finally:
        trainer.close()


def _restored(run: RunDirectory, config: Config) -> tuple[Trainer, list[Row]]:
    """The trainer as it was at the newest checkpoint it can go on from, and the rows until then."""
    log = StoredLog.of(run.progress)
    restored: list[tuple[Trainer, list[Row]]] = []

    def accept(found: checkpoint.Found) -> None:
        iteration = int(found.state["iteration"])
        rows = log.until(iteration, found.log)
        # environments that cannot be saved begin fresh episodes, with seeds that name the checkpoint
        trainer = make_trainer(config, generation=iteration)
        try:
            trainer.load_state_dict(found.state)
        except Exception as error:  # a state of another network or task can fail in any way
            trainer.close()
            raise checkpoint.UnfitCheckpoint(f"{found.path} does not fit the run's configuration: {error}") from None
        restored.append((trainer, rows))

    _, source, complaints = checkpoint.load_latest(run.checkpoints, accept)
    checkpoint.tell(complaints, source)
    return restored[0]


def frames_done(path: Path) -> int | None:
    """Frames of the last row of progress.csv."""
    return progress.frames_done(RunDirectory(path).progress)


def _train(
    trainer: Trainer, run: RunDirectory, listener: Listener | None, rows: list[Row], saved: int | None = None
) -> Row:
    """`saved`: the iteration of the checkpoint that the trainer comes from."""
    config = trainer.config
    row: Row = {"iteration": trainer.iteration, "frames": trainer.frames, "seconds": 0.0}
    if rows:
        row = {name: _number(text) for name, text in rows[-1].items()}
    others, status = Loggers(config, run.path, int(row["frames"]) if rows else None), "running"
    networks = networks_of(config, trainer.envs.observation_space, trainer.envs.action_space)
    write_summary(run.summary, config, networks, row, status)
    log = ProgressLog(run.progress, rows)
    begin = time.perf_counter() - row["seconds"]
    try:
        with signals_noted() as signals:
            while not (trainer.finished or target_reached(row, config)):
                row = _iterate(trainer, begin)
                log.write(row)
                others.write(row)
                if listener:
                    listener(config, row)
                done = trainer.finished or target_reached(row, config)
                if trainer.iteration % config.checkpoint.every == 0 or (signals and not done):
                    saved = _checkpoint(trainer, run, log, saved)
                if signals and not done:  # with all its frames done, a run just ends
                    raise Interrupted
            _checkpoint(trainer, run, log, saved)
        status = "target reached" if target_reached(row, config) else "finished"
    except TrainingDiverged as error:
        good = trainer.kept()
        checkpoint.save(good, checkpoint.path_of(run.checkpoints, int(good["iteration"])), log.settle())
        status = f"diverged: {error}"
        raise UserError(
            f"training stopped at iteration {trainer.iteration + 1}: {error}. The last good state is in "
            f"{run.checkpoints}. A smaller --ppo.learning-rate or --reward.beta is the usual remedy."
        ) from None
    except (Interrupted, KeyboardInterrupt):
        status = "interrupted"
        raise
    except Exception as error:
        status = f"failed: {type(error).__name__}: {error}"
        raise
    finally:
        ended_well = status in ENDED_WELL
        with nullcontext() if ended_well else suppress(OSError):  # the first error is the one to be told
            others.close(status)
            write_summary(run.summary, config, networks, row, status)
    return row


def _iterate(trainer: Trainer, begin: float) -> Row:
    trainer.keep()
    started, frames = time.perf_counter(), trainer.frames
    figures = trainer.iterate()
    now = time.perf_counter()
    return {
        "iteration": trainer.iteration,
        "frames": trainer.frames,
        "seconds": now - begin,
        "fps": (trainer.frames - frames) / (now - started),
        **figures,
    }


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


def _checkpoint(trainer: Trainer, run: RunDirectory, log: ProgressLog, saved: int | None) -> int:
    """The rows it counts are on disk before it is."""
    if trainer.iteration != saved:
        rows = log.settle()
        checkpoint.save(trainer.state_dict(), checkpoint.path_of(run.checkpoints, trainer.iteration), rows)
    if trainer.maps:
        with replacing(run.maps) as file:
            np.savez_compressed(file, **trainer.maps.arrays())  # type: ignore[arg-type]
    checkpoint.prune(run.checkpoints, trainer.config.checkpoint.keep)
    return trainer.iteration


def _save_config(run: RunDirectory, config: Config) -> None:
    text = sealed(yaml.safe_dump(to_dict(config), sort_keys=False))
    if not run.config.is_file() or run.config.read_bytes() != text.encode():
        write_whole(run.config, text)


def load_config(path: Path, field: str = "run", trust: bool | Collection[str] = ()) -> Config:
    """The configuration of a run. Names of code in it are refused, but for those that are trusted."""
    return _saved_config(RunDirectory.existing(path, field), trust)


def _saved_config(run: RunDirectory, trust: bool | Collection[str]) -> Config:
    check_seal(run.config)
    saved = load_yaml(run.config)
    if not {"env", "method", "seed"} <= saved.keys():
        raise UserError(f"{run.config}: expected the configuration of a run, with env, method and seed")
    if isinstance(saved.get("reward"), dict):
        saved["reward"].pop("process", None)  # of runs whose model had a process instead of a thread
    config = merge(Config(), with_old_keys(saved))
    check_trusted(config, run.config, trust)
    return config


def configure(overrides: dict[str, Any]) -> Config:
    """Defaults, then the preset of the task and method named in `overrides`, then the overrides themselves."""
    overrides = with_old_keys(overrides)
    named = merge(Config(), overrides)
    config = resolve(
        replace(Config(), env=replace(Config().env, id=named.env.id), method=named.method, preset=named.preset)
    )
    return merge(config, {**overrides, "preset": config.preset})
