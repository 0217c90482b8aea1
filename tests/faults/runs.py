"""Tiny runs, and whether what is left of one equals what an undisturbed one gives."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deir.runs import checkpoint

ITERATIONS = 4
FRAMES = 2 * 8  # of one iteration
TINY: dict[str, Any] = {
    "env": {"id": "DoorKey-5x5", "n_envs": 2, "layout_worker": False, "max_steps": 12},
    "ppo": {"rollout_steps": 8, "minibatch_size": 8, "epochs": 1},
    "reward": {"minibatch_size": 8, "epochs": 1, "deir": {"queue_size": 64}},
    "network": {"hidden": 8, "features": 8, "mlp": 8},
    "checkpoint": {"every": 1, "keep": 2},
    "maps": True,
    "loggers": "csv",
    "threads": 1,
    "steps": FRAMES * ITERATIONS,
}


def untimed(path: Path) -> list[dict[str, str]]:
    with (path / "progress.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if not k.startswith("seconds") and k != "fps"} for row in rows]


def status(path: Path) -> str:
    return str(json.loads((path / "summary.json").read_text())["status"])


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return bool(a == b or (a != a and b != b))


class Reference:
    """What an undisturbed run leaves."""

    def __init__(self, path: Path) -> None:
        self.rows = untimed(path)
        self.newest = sorted((path / "checkpoints").glob("*.safetensors"))[-1].name
        self.state = checkpoint.load(path / "checkpoints" / self.newest)

    def difference(self, path: Path) -> str | None:
        """Why a run that says it is finished does not equal it; None if it does, to the last bit."""
        if status(path) != "finished":
            return f"its status is {status(path)!r}"
        if untimed(path) != self.rows:
            return "its progress.csv differs"
        newest = path / "checkpoints" / self.newest
        if not newest.is_file():
            return f"there is no checkpoint {self.newest}"
        try:
            state = checkpoint.load(newest)
        except checkpoint.DamagedCheckpoint as error:
            return str(error)
        if not same(state, self.state):
            return "the state of its last checkpoint differs"
        left = [p.name for p in path.rglob("*") if p.name.startswith(".")]
        return f"it left {left}" if left else None
