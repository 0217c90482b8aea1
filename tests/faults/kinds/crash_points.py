"""The process dies before, in the middle of and after every file operation of a run, and of a run that resumes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from deir.runs import run

from ..base import Budget, Kind, Tally
from ..machine import OK, Note, child, finish, go_on, noting, reference, spread
from ..preload import Action, Op, arm, mark, read_trace
from ..runs import FRAMES, TINY

HALF = {**TINY, "steps": FRAMES * 2}


def recorded(path: Path, trace: Path, log: Path) -> list[Op]:
    """The operations of going on with what is at `path`."""
    path.parent.mkdir(exist_ok=True)
    handle = os.open(trace, os.O_CREAT | os.O_RDWR | os.O_TRUNC)
    note = Note()

    def work() -> None:
        arm(path.parent, trace=handle)
        noting(note, mark)(lambda: go_on(path))

    end = child(work, log)
    os.close(handle)
    assert end.code == OK, end.text
    return [operation.op for operation in read_trace(trace) if operation.op != Op.MARK]


def half(path: Path) -> None:
    """A run that was made to be longer than it is: it will resume."""
    run.start(run.configure(HALF), path)
    text = (path / "config.yaml").read_text().split("\n", 1)[1]
    (path / "config.yaml").write_text(text.replace(f"steps: {FRAMES * 2}\n", f"steps: {TINY['steps']}\n"))


def points(operations: list[Op]) -> Iterator[tuple[int, Action]]:
    for number, op in enumerate(operations):
        yield number, Action.BEFORE
        if op == Op.WRITE:
            yield number, Action.MIDDLE
    yield len(operations) - 1, Action.AFTER  # after one is before the next but for the last


def run_kind(budget: Budget, scratch: Path, tally: Tally) -> None:
    reference()
    begun = scratch / "half"
    half(begun)
    fresh = recorded(scratch / "fresh" / "run", scratch / "trace", scratch / "log")
    shutil.copytree(begun, scratch / "resumed" / "run")
    resumed = recorded(scratch / "resumed" / "run", scratch / "trace", scratch / "log")
    cases = [("run", *p) for p in points(fresh)] + [("resume", *p) for p in points(resumed)]

    def try_one(case: tuple[str, int, Action], place: Path, counts: Tally) -> None:
        kind, number, action = case
        path, note, log = place / "place" / "run", Note(), place / "log"
        path.parent.mkdir()
        if kind == "resume":
            shutil.copytree(begun, path)
            note.set(2)

        def work() -> None:
            arm(path.parent, number, action)
            noting(note)(lambda: go_on(path))

        end = child(work, log)
        where = f"{kind}, {action.name.lower()} operation {number}"
        if end.code is not None:
            counts.loss(f"{where}: did not die there (code {end.code}) {end.told}")
            return
        finish(path, log, note.get(), where, counts)

    spread(budget, cases, scratch, tally, try_one)


KIND = Kind("crash-points", "killed before, in and after each file operation", run_kind, full=2000, short=12)
