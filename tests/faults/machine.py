"""Runs in forked children of one warm interpreter: killed, disturbed, resumed, judged."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import struct
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from deir.errors import UserError
from deir.runs import checkpoint, run
from deir.runs.stopping import run_command

from .base import Budget, Tally
from .runs import TINY, Reference

PATIENCE = 120.0  # seconds after which a child hangs
OK, BROKEN, REFUSED, LOST = 0, 1, 2, 3


class Lost(Exception):
    """A child saw something that must not be."""


@dataclass(frozen=True)
class End:
    """How a child ended."""

    code: int | None  # None: killed by a signal
    text: str  # what it said

    @property
    def told(self) -> str:
        return " ".join(self.text.split()[-60:])


class Note:
    """A number that a child leaves to its parent, however it ends."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 8)
        self.set(0)

    def set(self, number: int) -> None:
        self.memory[:] = struct.pack("<q", number)

    def get(self) -> int:
        return int(struct.unpack("<q", self.memory[:])[0])


def child(work: Callable[[], None], log: Path, kill_after: float | None = None) -> End:
    """Does the work in a fork. What ends it as one message at the command line is told apart from a traceback."""
    number = os.fork()
    if number == 0:
        os._exit(_guarded(work, log))
    before, passed, killed = time.monotonic(), 0.0, False
    while True:
        done, code = os.waitpid(number, os.WNOHANG)
        now = time.monotonic()
        passed += min(now - before, 1.0)  # seconds in which all is stopped are none
        before = now
        if done:
            break
        if not killed and passed > (PATIENCE if kill_after is None else kill_after):
            os.kill(number, signal.SIGKILL)
            killed = True
        time.sleep(0.001)
    text = log.read_text(errors="replace") if log.is_file() else ""
    if killed and kill_after is None:
        text += " hangs"
    return End(os.WEXITSTATUS(code) if os.WIFEXITED(code) else None, text)


def _guarded(work: Callable[[], None], log: Path) -> int:
    try:
        with log.open("w") as file, redirect_stdout(file), redirect_stderr(file):
            try:
                work()
            except run.Interrupted as error:
                print(f"error: {error}", file=file)
                return REFUSED
            except (UserError, OSError) as error:
                return _told(error)
            except Lost as loss:
                print(loss, file=file)
                return LOST
            except BaseException:
                traceback.print_exc(file=file)
                return BROKEN
    except BaseException:
        return BROKEN
    return OK


def _told(error: Exception) -> int:
    """What the command line makes of it: one message and exit code 2, or else it is broken."""

    def fail() -> None:
        raise error

    try:
        run_command(fail)
    except SystemExit as end:
        if end.code == 2:
            return REFUSED
    print(f"the command line does not tell of it: {error!r}")
    return BROKEN


def go_on(path: Path, config: dict[str, Any] = TINY) -> None:
    """What a worker of a sweep does: on with what is there, or a new run."""
    if (path / "config.yaml").is_file():
        run.resume(path)
    else:
        run.start(run.configure(config), path)


def noting(note: Note, mark: Callable[[int], None] = lambda number: None) -> Callable[[Callable[[], None]], None]:
    """Runs something with a note of the last checkpoint that was promised to be on disk."""

    def doing(work: Callable[[], None]) -> None:
        save = checkpoint.save

        def noted(state: dict[str, Any], path: Path, log: str = "") -> None:
            save(state, path, log)
            note.set(int(state["iteration"]))
            mark(int(state["iteration"]))

        checkpoint.save = noted
        try:
            work()
        finally:
            checkpoint.save = save

    return doing


def newest_whole(path: Path) -> int:
    """The iteration of the newest checkpoint that can be read; 0 if there is none."""
    for file in sorted((path / "checkpoints").glob("*.safetensors"), reverse=True):
        try:
            return int(checkpoint.load(file)["iteration"])
        except checkpoint.DamagedCheckpoint:
            continue
    return 0


@cache
def reference() -> Reference:
    """Of the tiny run; made in this process, which is warm after it."""
    with tempfile.TemporaryDirectory(prefix="deir-faults-") as scratch:
        path = Path(scratch) / "run"
        run.start(run.configure(TINY), path)
        return Reference(path)


def finish(path: Path, log: Path, promised: int, where: str, tally: Tally, told: bool = False) -> bool:
    """Goes on with a disturbed run and counts what comes out of it: the run nothing happened to, or a loss.

    `promised`: the iteration whose checkpoint was said to be on disk. `told`: the disturbed process ended with a clear
    error, which is what is counted then.
    """
    kept = newest_whole(path)
    if kept < promised:
        tally.loss(f"{where}: checkpoint {promised} was on disk, {kept or 'none'} is left")
        return False
    end = child(lambda: go_on(path), log)
    if end.code == BROKEN:
        tally.traceback(f"{where}, going on: {end.told}")
        return False
    difference = reference().difference(path) if end.code == OK else f"cannot go on (code {end.code}): {end.told}"
    if difference:
        tally.loss(f"{where}: {difference}")
        return False
    tally.clear_error() if told else tally.exactly()
    return True


def spread(
    budget: Budget, cases: Iterable[Any], scratch: Path, tally: Tally, try_one: Callable[[Any, Path, Tally], None]
) -> None:
    """Tries the cases that the budget allows, in as many processes as it allows; each case has an empty directory."""
    wanted = list(cases)
    reference()  # before the fork, so that all are warm
    workers = []
    for number in range(budget.jobs):
        place = scratch / f"worker{number}"
        place.mkdir()
        share = wanted[number :: budget.jobs]
        if budget.jobs == 1:
            _try_all(budget, share, place, tally, try_one)
            return
        worker = os.fork()
        if worker == 0:
            own = Tally()
            code = 1
            try:
                _try_all(budget, share, place, own, try_one)
                (scratch / f"tally{number}").write_text(json.dumps(asdict(own)))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        workers.append(worker)
    for number, worker in enumerate(workers):
        if os.waitpid(worker, 0)[1]:
            raise RuntimeError(f"worker {number} of the fault tests broke")
        tally.add(Tally(**json.loads((scratch / f"tally{number}").read_text())))


def _try_all(
    budget: Budget, cases: list[Any], place: Path, tally: Tally, try_one: Callable[[Any, Path, Tally], None]
) -> None:
    share = Budget(-(-budget.cases // budget.jobs), budget.seconds, budget.seed)
    for case in share.within(cases):
        try_one(case, place, tally)
        for left in place.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
