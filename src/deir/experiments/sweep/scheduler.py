"""Several runs side by side: started, watched, retried, stopped."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from deir.experiments.sweep.engines import Engine, Handle
from deir.experiments.sweep.jobs import Job
from deir.experiments.sweep.launch import GRACE
from deir.runs.directory import RunDirectory
from deir.runs.stopping import say
from deir.runs.stopping import stop_signals as signals_heeded

RETRIES = 2
STALL = 15.0  # minutes without a new row of progress.csv after which a run is said to be stuck
PAUSE = 0.2  # seconds between two looks
Status = Literal["waiting", "running", "finished", "failed", "stopped"]


class Progress:
    """Whether a run gets on, told by its files, which any machine may write."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.log = _stamp(job.log)
        self.rows = _stamp(RunDirectory(job.out).progress)
        self.since: float | None = None  # None: it waits in a queue of Ray

    def look(self, now: float) -> float:
        """Seconds since the run has begun or written its last row."""
        rows = _stamp(RunDirectory(self.job.out).progress)
        if rows != self.rows or (self.since is None and _stamp(self.job.log) != self.log):
            self.rows, self.since = rows, now
        return 0.0 if self.since is None else now - self.since


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


@dataclass(eq=False)
class Run:
    """A job in the hands of the pool."""

    job: Job
    status: Status = "waiting"
    failures: int = 0
    handle: Handle | None = field(default=None, repr=False)
    stopping: bool = False
    killed: bool = False
    asked: float = 0.0  # when it was asked to stop
    progress: Progress | None = field(default=None, repr=False)  # of the present attempt

    @property
    def active(self) -> bool:
        return self.status in ("waiting", "running")

    def poll(self, retries: int) -> str | None:
        """What has happened since the last look, in a word."""
        code = self.handle.poll() if self.handle else None
        if code is None:
            return None
        self.handle, self.progress = None, None
        if code == 0:
            self.status = "finished"
            return "finished"
        if self.stopping:
            self.status = "stopped"
            return "stopped"
        self.failures += 1
        self.status = "failed" if self.failures > retries else "waiting"
        return "FAILED" if self.status == "failed" else f"ended with code {code}, tried again"

    def stop(self) -> None:
        """Asks the run to write its checkpoint and end; it will not be tried again."""
        if not self.stopping:
            self.asked = time.monotonic()
        self.stopping = True
        if self.handle:
            self.handle.stop()
        elif self.active:
            self.status = "stopped"

    def kill(self) -> None:
        if self.handle and not self.killed:
            self.killed = True
            self.handle.kill()

    def end_if_late(self, grace: float) -> str | None:
        """Kills a run that has not ended since it was asked to; says so."""
        if not self.stopping or self.killed or not self.handle or time.monotonic() - self.asked < grace:
            return None
        self.kill()
        return f"killed: asked to stop, it did not end for {grace:g} s"

    def stuck(self, minutes: float) -> str | None:
        """A word on a run that makes no progress, at most once in so many minutes."""
        if self.progress is None or not minutes:
            return None
        now = time.monotonic()
        idle = self.progress.look(now)
        if idle < 60 * minutes:
            return None
        self.progress.since = now
        return f"no progress for {minutes:g} min; it may hang"


Listener = Callable[[Run, str], None]


def advance(runs: Sequence[Run], engine: Engine, retries: int, tell: Listener, stall: float = STALL) -> None:
    """One turn: sees which runs have ended or hang, and starts as many of the waiting ones as there is room for."""
    for run in runs:
        event = run.poll(retries) or run.end_if_late(engine.grace) or run.stuck(stall)
        if event:
            tell(run, event)
    running = sum(run.status == "running" for run in runs)
    for run in runs:
        if run.status == "waiting" and engine.has_room(running):
            run.progress = Progress(run.job)
            run.handle, run.status = engine.start(run.job), "running"
            running += 1
            tell(run, "started")


def stop_all(
    runs: Sequence[Run], urgent: Callable[[], bool], grace: float = GRACE, tell: Listener | None = None
) -> None:
    """Every run writes its checkpoint and ends; when it takes longer than `grace`, or is `urgent`, it is killed."""
    for run in runs:
        run.stop()
    while any(run.status == "running" for run in runs):
        for run in runs:
            if urgent():
                run.kill()
            late = run.end_if_late(grace)
            if late and tell:
                tell(run, late)
            run.poll(retries=0)
        time.sleep(PAUSE)


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Ctrl-C, SIGTERM and a closed terminal are noted; the pool looks at the list."""
    noted: list[int] = []
    previous: dict[int, Any] = {}
    for number in signals_heeded():
        previous[number] = signal.signal(number, lambda received, frame: noted.append(received))
    try:
        yield noted
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


class Board:
    """Hears what happens, and looks at all runs a few times a second."""

    def tell(self, run: Run, event: str) -> None:
        say(f"{event:<9} {run.job.out}")

    def show(self, runs: Sequence[Run]) -> None: ...


def run_all(
    jobs: Sequence[Job], engine: Engine, retries: int = RETRIES, board: Board | None = None, stall: float = STALL
) -> list[Run]:
    """Runs what is not finished, from its checkpoint if it has one. Interrupted, some are left `stopped`."""
    board = board or Board()
    runs = [Run(job, "finished" if job.finished else "waiting") for job in jobs]
    with stop_signals() as signals:
        try:
            while any(run.active for run in runs) and not signals:
                advance(runs, engine, retries, board.tell, stall)
                board.show(runs)
                time.sleep(PAUSE)
        finally:
            stop_all(runs, lambda: len(signals) > 1, engine.grace, board.tell)
            board.show(runs)
    return runs
