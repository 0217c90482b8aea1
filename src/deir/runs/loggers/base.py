"""The contract of a logger: it is told every row of progress.csv, and keeps or sends it somewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deir.config import Config
from deir.files import write_whole

Row = dict[str, Any]
_ROLLOUT = ("return_", "success_", "episod", "lifelong_", "intrinsic_reward_")
_TIME = ("seconds", "fps")
_COUNTERS = ("iteration", "frames")


@dataclass(frozen=True)
class LogContext:
    """What a logger may know of its run."""

    directory: Path
    """The run's directory. A logger keeps its files in a directory of its own there."""
    config: Config
    resumed_at: int | None = None
    """Frames of the last row that counts, where the run goes on; rows after it are told again. None for a new run."""

    @property
    def title(self) -> str:
        return f"{self.config.method} on {self.config.env.id}, seed {self.config.seed}"

    def kept(self, name: str, new: str) -> str:
        """A text that stays the same when the run is resumed, such as the run's id at a service: `new` the first time.

        It is in the file <name>/id of the run's directory.
        """
        path = self.directory / name / "id"
        if not path.is_file():
            path.parent.mkdir(exist_ok=True)
            write_whole(path, new)
        return path.read_text().strip()


class Logger:
    """Derive from it, and name the class as package.module:Class in --loggers.

    What `__init__` raises ends the run before it begins. What `write` and `close` raise is told once, and the run goes
    on without the logger.
    """

    def __init__(self, context: LogContext) -> None:
        self.context = context

    def write(self, row: Row) -> None:
        """A row of progress.csv: figures by name, None where there is none yet."""
        raise NotImplementedError

    def close(self, status: str) -> None:
        """The run has ended: "finished", "target reached", "interrupted", or why it failed."""


def tag(name: str) -> str:
    """A column under its group: `rollout/return_mean`, `time/fps`, `train/entropy`."""
    group = "time" if name.startswith(_TIME) else "rollout" if name.startswith(_ROLLOUT) else "train"
    return f"{group}/{name}"


def scalars(row: Row) -> dict[str, float]:
    """The figures of a row that are known, by tag; without the counters, which are the axis."""
    return {tag(name): value for name, value in row.items() if value is not None and name not in _COUNTERS}
