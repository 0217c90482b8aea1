"""The package from Python: train, load a run, act."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from deir.agent import Agent, load, load_reward
from deir.config import Config
from deir.runs import run
from deir.runs.directory import RunDirectory

__all__ = ["Agent", "TrainResult", "draw_curve", "load", "load_reward", "train"]


class TrainResult(NamedTuple):
    path: Path
    final: dict[str, Any]  # the last row of progress.csv


def train(
    env: str | dict[str, Any] = "DoorKey-8x8",
    method: str = "deir",
    steps: int | str = 200_000,
    seed: int = 0,
    out: str | Path | None = None,
    listener: run.Listener | None = None,
    **overrides: Any,
) -> TrainResult:
    """Trains an agent as `deir train` does.

    `env` is a name, or a mapping such as {"id": "DoorKey-8x8", "view_size": 3}; `overrides` are other configuration
    keys, such as ppo={"gamma": 0.997}.
    """
    task = {"id": env} if isinstance(env, str) else env
    config = run.configure({"env": task, "method": method, "steps": steps, "seed": seed, **overrides})
    path, final = run.start(config, Path(out) if out else None, listener)
    draw_curve(path, config)
    return TrainResult(path, final)


def draw_curve(path: Path, config: Config) -> None:
    """learning_curve.png of a run, and maps.png where it has maps."""
    from deir.experiments.report.figures import exploration_maps, learning_curve

    directory, title = RunDirectory(path), f"{config.method} on {config.env.id}, seed {config.seed}"
    learning_curve(directory.progress, directory.figure, title)
    if directory.maps.is_file():
        exploration_maps(directory.maps, directory.maps.with_suffix(".png"), title)
