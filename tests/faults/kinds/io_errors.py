"""Every file operation of a run fails once with EIO, from each one on all fail with ENOSPC; reads fail with EIO."""

from __future__ import annotations

import errno
from pathlib import Path

from ..base import Budget, Kind, Tally
from ..machine import BROKEN, OK, REFUSED, Note, child, finish, go_on, noting, reference, spread
from ..preload import Action, arm, library
from ..recorded import Recorded, recordings

Case = tuple[str, int, int, bool]


def run(budget: Budget, scratch: Path, tally: Tally) -> None:
    both = recordings()
    cases: list[Case] = []
    for name, recorded in both.items():
        cases += [
            (name, number, error, False) for number in range(recorded.count) for error in (errno.EIO, errno.ENOSPC)
        ]
    cases += [("resume", number, errno.EIO, True) for number in range(_reads(both["resume"], scratch))]

    def try_one(case: Case, place: Path, counts: Tally) -> None:
        name, number, error, reads = case
        note, log = Note(), place / "log"
        path = both[name].begin(place / "place", note)

        def work() -> None:
            full = error == errno.ENOSPC
            arm(path.parent, number, Action.FAIL, error, for_good=full, reads=reads)
            noting(note)(lambda: go_on(path))

        end = child(work, log)
        where = f"{name}, {errno.errorcode[error]} at operation {number}{' with reads' if reads else ''}"
        if end.code == BROKEN:
            counts.traceback(f"{where}: {end.told}")
        elif end.code not in (OK, REFUSED):
            counts.loss(f"{where}: ended by a signal or hung {end.told}")
        elif end.code == OK and (difference := reference().difference(path)):
            counts.loss(f"{where}: said nothing, but {difference}")
        else:
            finish(path, log, note.get(), where, counts, told=end.code == REFUSED)

    spread(budget, cases, scratch, tally, try_one)


def _reads(recorded: Recorded, scratch: Path) -> int:
    """Operations of a resume, reads among them."""
    note, seen = Note(), Note()
    path = recorded.begin(scratch / "reads", note)

    def work() -> None:
        arm(path.parent, reads=True)
        go_on(path)
        seen.set(int(library().faults_seen()))

    child(work, scratch / "log")
    return seen.get()


KIND = Kind("io-errors", "EIO at each file operation, ENOSPC from each one on", run, full=2000, short=6)
