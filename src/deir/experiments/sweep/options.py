"""The options of commands that start many runs: where they run, and what happens when one fails."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from pathlib import Path

from deir.errors import invalid
from deir.experiments.sweep.engines import Engine, EngineName, check_engine, make_engine
from deir.experiments.sweep.launch import GRACE
from deir.experiments.sweep.scheduler import RETRIES, STALL
from deir.runs.ranges import check_count


@dataclass(frozen=True, kw_only=True)
class ManyRuns:
    out: Path | None = None
    """Where the runs go; runs/<name> when not given."""
    engine: EngineName = "local"
    """Processes of this machine, or tasks of Ray."""
    jobs: int | None = None
    """Runs at the same time; this machine's cores (local) or what the cluster has room for (ray) when not given."""
    address: str | None = None
    """Ray: auto or ray://host:port for a cluster; a Ray of this machine alone when not given."""
    gpus: float | None = None
    """Ray: GPUs of a run, a share such as 0.25 where several fit; 1 when not given and the device is a GPU."""
    retries: int = RETRIES
    """How often a run that crashes is tried again."""
    stall: float = STALL
    """Minutes without progress after which a run is said to hang; 0: nothing is said."""
    grace: float = GRACE
    """Seconds a run may take to write its checkpoint when it is stopped; after them it is killed."""
    trust: bool = False
    """Import code that the file names (module:factory, package.module:Class)."""

    def check(self) -> None:
        check_count("retries", self.retries, least=0)
        if not 0 <= self.stall < float("inf"):
            raise invalid("stall", self.stall, "a number of minutes, 0 or more")

    def check_engine(self) -> None:
        check_engine(self.engine, self.jobs, self.address, self.gpus, self.grace)

    def make_engine(self) -> Engine:
        return make_engine(self.engine, self.jobs, self.address, self.gpus, self.grace)

    def words(self, *command: str) -> str:
        """What to type to go on: the command with the options that were given, quoted for a shell."""
        given = [(f.name, getattr(self, f.name)) for f in fields(ManyRuns) if getattr(self, f.name) != f.default]
        options = [word for name, value in given for word in ([f"--{name}"] if value is True else [f"--{name}", value])]
        return shlex.join(map(str, (*command, *options)))
