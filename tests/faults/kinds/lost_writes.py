"""A power cut after every file operation: what was not synced is gone, all of it or some."""

from __future__ import annotations

import random
from pathlib import Path

from ..base import Budget, Kind, Tally
from ..disk import Disk
from ..machine import finish, reference, spread
from ..preload import Op
from ..recorded import STOPPED, recordings

Case = tuple[str, int, int]  # which recording, operations done, luck (0: nothing survives that was not synced)
LUCKS = 3


def run(budget: Budget, scratch: Path, tally: Tally) -> None:
    both = recordings()
    cases: list[Case] = []
    for name, recorded in both.items():
        cases += [(name, count, luck) for count in range(1, len(recorded.operations) + 1) for luck in range(LUCKS)]
    last = {name: len(recorded.operations) for name, recorded in both.items()}

    def try_one(case: Case, place: Path, counts: Tally) -> None:
        name, count, luck = case
        recorded = both[name]
        disk, promised = Disk(recorded.place, recorded.source), STOPPED if recorded.source else 0
        for operation in recorded.operations[:count]:
            disk.apply(operation)
            if operation.op == Op.MARK:
                promised = operation.offset
        path = place / "place" / "run"
        disk.restore(path.parent, random.Random(f"{budget.seed} {case}") if luck else None)
        where = f"{name}, power cut after operation {count}, luck {luck}"
        if count == last[name] and (difference := reference().difference(path)):
            counts.loss(f"{where}: the run had ended well, but {difference}")
        else:
            finish(path, place / "log", promised, where, counts)

    spread(budget, cases, scratch, tally, try_one)


KIND = Kind("lost-writes", "power cut after each file operation: unsynced writes lost", run, full=2000, short=8)
