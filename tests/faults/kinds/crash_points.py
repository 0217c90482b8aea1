"""The process dies before, in the middle of and after every file operation of a run, and of a run that resumes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..base import Budget, Kind, Tally
from ..machine import Note, child, finish, go_on, noting, spread
from ..preload import Action, Op, Operation, arm
from ..recorded import recordings

Case = tuple[str, int, Action]


def points(operations: list[Operation]) -> Iterator[tuple[int, Action]]:
    counted = [operation for operation in operations if operation.op != Op.MARK]
    for number, operation in enumerate(counted):
        yield number, Action.BEFORE
        if operation.op == Op.WRITE:
            yield number, Action.MIDDLE
    yield len(counted) - 1, Action.AFTER  # after one is before the next, but for the last


def run(budget: Budget, scratch: Path, tally: Tally) -> None:
    both = recordings()
    cases = [(name, *point) for name, recorded in both.items() for point in points(recorded.operations)]

    def try_one(case: Case, place: Path, counts: Tally) -> None:
        name, number, action = case
        note, log = Note(), place / "log"
        path = both[name].begin(place / "place", note)

        def work() -> None:
            arm(path.parent, number, action)
            noting(note)(lambda: go_on(path))

        end = child(work, log)
        where = f"{name}, {action.name.lower()} operation {number}"
        if end.code is not None:
            counts.loss(f"{where}: did not die there (code {end.code}) {end.told}")
        else:
            finish(path, log, note.get(), where, counts)

    spread(budget, cases, scratch, tally, try_one)


KIND = Kind("crash-points", "killed before, in and after each file operation", run, full=2000, short=6)
