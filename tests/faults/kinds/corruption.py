"""A flipped bit, a lost end or a block of zeros in any file of an interrupted run; then every command that reads it."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import deir
from deir.errors import UserError
from deir.experiments.report.curves import read_run
from deir.experiments.sweep.jobs import Job
from deir.runs import checkpoint
from deir.runs.run import configure

from ..base import Budget, Kind, Tally
from ..machine import BROKEN, LOST, OK, Lost, child, finish, go_on, reference, spread
from ..recorded import interrupted
from ..runs import TINY, same

MAY_REFUSE = ("config.yaml", "progress.csv")  # nothing else holds what they say; the rest must not be missed
BLOCK = 512


def damaged(content: bytes, luck: random.Random) -> bytes:
    """Never the same; in large files as often in the first 4 kB, where the header is, as in the rest."""
    size = len(content)
    position = luck.randrange(min(size, 4096) if luck.random() < 0.5 else size)
    kind = luck.choice(["flip", "flip", "flip", "cut", "zeros"])
    if kind == "cut":
        return content[:position]
    changed = bytearray(content)
    if kind == "zeros" and any(content[position : position + BLOCK]):
        end = min(size, position + BLOCK)
        changed[position:end] = bytes(end - position)
    else:
        changed[position] ^= 1 << luck.randrange(8)
    return bytes(changed)


def read_everything(path: Path, policies: list[object]) -> None:
    """The other commands, which only read: what they take must be what was written."""
    job = Job(configure(TINY), path)
    if job.finished:
        raise Lost("a run that is not finished is called finished")
    for read in (read_run, deir.load, lambda place: job.check()):
        try:
            found = read(path)
        except UserError as mistake:
            print(f"error: {mistake}")
            continue
        if isinstance(found, deir.Agent) and not any(
            same(dict(found.policy.state_dict()), policy) for policy in policies
        ):
            raise Lost("a policy that no checkpoint holds")


def run(budget: Budget, scratch: Path, tally: Tally) -> None:
    reference()
    source = scratch / "interrupted"
    interrupted(source)
    states = [checkpoint.load(file) for file in sorted((source / "checkpoints").iterdir())]
    policies = [state["policy"] for state in states]
    files = sorted(str(path.relative_to(source)) for path in source.rglob("*") if path.is_file())

    def try_one(case: int, place: Path, counts: Tally) -> None:
        name, luck = files[case % len(files)], random.Random(f"{budget.seed} {case}")
        path, log = place / "run", place / "log"
        shutil.copytree(source, path)
        whole = (path / name).read_bytes()
        (path / name).write_bytes(damaged(whole, luck))
        where = f"case {case}, {name}"
        for work in (lambda: read_everything(path, policies), lambda: go_on(path)):
            end = child(work, log)
            if end.code == BROKEN:
                counts.traceback(f"{where}: {end.told}")
                return
            if end.code == LOST:
                counts.loss(f"{where}: {end.told}")
                return
        if end.code == OK:
            difference = reference().difference(path)
            counts.loss(f"{where}: said nothing, but {difference}") if difference else counts.exactly()
        elif name not in MAY_REFUSE:
            counts.loss(f"{where}: refused, though the rest would do: {end.told}")
        else:  # with the old file back, all is as it was
            (path / name).write_bytes(whole)
            finish(path, log, len(states), where, counts, told=True)

    spread(budget, range(budget.cases), scratch, tally, try_one)


KIND = Kind("corruption", "a flipped bit, a lost end, a block of zeros in any file of a run", run, full=1000, short=10)
