"""Runs that are killed at any moment, again and again, and go on."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

from ..base import Budget, Kind, Tally
from ..machine import Note, child, finish, go_on, noting, reference, spread

AGAIN = 0.5  # how likely a run is killed once more


def run(budget: Budget, scratch: Path, tally: Tally) -> None:
    reference()
    begin = time.monotonic()
    child(lambda: go_on(scratch / "timed"), scratch / "log")
    whole = time.monotonic() - begin

    def try_one(case: int, place: Path, counts: Tally) -> None:
        luck = random.Random(f"{budget.seed} {case}")
        path, log, note, kills = place / "run", place / "log", Note(), 0
        after = luck.uniform(0, whole)
        while not kills or luck.random() < AGAIN:
            end = child(lambda: noting(note)(lambda: go_on(path)), log, kill_after=after)
            if end.code is None:
                kills, after = kills + 1, luck.uniform(0, whole)
            elif kills:
                break
            else:  # it was faster: once more, and killed sooner
                shutil.rmtree(path)
                note.set(0)
                after /= 2
        if finish(path, log, note.get(), f"case {case}, killed {kills} times", counts):
            for _ in range(kills - 1):  # every kill counts
                counts.exactly()

    spread(budget, range(budget.cases), scratch, tally, try_one)


KIND = Kind("kills", "killed at a random moment, once or again and again", run, full=750, short=5)
