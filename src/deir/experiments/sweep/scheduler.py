"""Several runs side by side: started, watched, retried, stopped."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from deir.experiments.sweep.engines import Engine, Handle
from deir.experiments.sweep.jobs import Job

RETRIES = 2
PAUSE = 0.2  # seconds between two looks
Status = Literal["waiting", "running", "finished", "failed", "stopped"]


@dataclass(eq=False)
class Run:
    """A job in the hands of the pool."""

    job: Job
    status: Status = "waiting"
    failures: int = 0
    handle: Handle | None = field(default=None, repr=False)
    stopping: bool = False

    @property
    def active(self) -> bool:
        return self.status in ("waiting", "running")

    def poll(self, retries: int) -> str | None:
        """What has happened since the last look, in a word."""
        code = self.handle.poll() if self.handle else None
        if code is None:
            return None
        self.handle = None
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
        self.stopping = True
        if self.handle:
            self.handle.stop()
        elif self.active:
            self.status = "stopped"


Listener = Callable[[Run, str], None]


def advance(runs: Sequence[Run], engine: Engine, retries: int, tell: Listener) -> None:
    """One turn: sees which runs have ended, and starts as many of the waiting ones as there is room for."""
    for run in runs:
        event = run.poll(retries)
        if event:
            tell(run, event)
    running = sum(run.status == "running" for run in runs)
    for run in runs:
        if run.status == "waiting" and engine.has_room(running):
            run.handle, run.status = engine.start(run.job), "running"
            running += 1
            tell(run, "started")


def stop_all(runs: Sequence[Run], urgent: Callable[[], bool]) -> None:
    """Every run writes its checkpoint and ends; when it becomes `urgent` they are killed."""
    for run in runs:
        run.stop()
    killed = False
    while any(run.status == "running" for run in runs):
        for run in runs:
            if urgent() and not killed and run.handle:
                run.handle.kill()
            run.poll(retries=0)
        killed = killed or urgent()
        time.sleep(PAUSE)


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM are noted; the pool looks at the list."""
    noted: list[int] = []
    previous: dict[int, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        previous[number] = signal.signal(number, lambda received, frame: noted.append(received))
    try:
        yield noted
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


class Board:
    """Hears what happens, and looks at all runs a few times a second."""

    def tell(self, run: Run, event: str) -> None:
        print(f"{event:<9} {run.job.out}", flush=True)

    def show(self, runs: Sequence[Run]) -> None: ...


def run_all(jobs: Sequence[Job], engine: Engine, retries: int = RETRIES, board: Board | None = None) -> list[Run]:
    """Runs what is not finished, from its checkpoint if it has one. Interrupted, some are left `stopped`."""
    board = board or Board()
    runs = [Run(job, "finished" if job.finished else "waiting") for job in jobs]
    with stop_signals() as signals:
        try:
            while any(run.active for run in runs) and not signals:
                advance(runs, engine, retries, board.tell)
                board.show(runs)
                time.sleep(PAUSE)
        finally:
            stop_all(runs, urgent=lambda: len(signals) > 1)
            board.show(runs)
    return runs
