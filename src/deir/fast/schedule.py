"""Which operations of a program may run at the same time, or one after the other without waiting for all jobs.

Operations are put into stages; threads wait for each other between two stages and nowhere else. A stage holds chains of
operations. Those of a chain have the same number of jobs, and job j of each touches, of what the others of its chain
touch, only what their job j does: so a thread can do job j of all of them in turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from deir.compiled import Array
from deir.fast import machine as m
from deir.fast import model_machine as models

ROWS, COLUMNS, PLACES = "rows", "columns", "places"
LINE = 16  # counters that two threads must not both write to: see program.LINE


class Division(NamedTuple):
    """What an operation is divided by, and which of its operands are addresses of what it reads and writes."""

    by: str
    size: int  # the operand that says how many there are
    reads: tuple[int, ...]  # a job reads its part
    writes: tuple[int, ...]
    reads_all: tuple[int, ...] = ()  # a job may read all of it
    writes_all: tuple[int, ...] = ()


DIVISIONS = {
    m.FILL: Division(ROWS, 1, (), (0,), (3,)),
    m.PRODUCT: Division(ROWS, 8, (2,), (0,), (5,)),
    m.NORMALISE: Division(COLUMNS, 6, (0,), (9, 10, 11, 12, 13), (2, 4, 7, 8, 14)),
    m.NORMALISE_GRADIENT: Division(COLUMNS, 7, (0, 1, 2, 9), (10, 12, 13), (3, 5, 8)),
    m.MOMENTS_OF_ROWS: Division(ROWS, 1, (0,), (3,)),
    m.NORMALISE_ROWS: Division(ROWS, 1, (0,), (6, 7), (3, 4, 5, 11), (8, 9, 10)),
    m.GRADIENT_SUMS: Division(ROWS, 1, (0, 4, 5), (3,)),
    m.NORMALISE_ROWS_GRADIENT: Division(ROWS, 1, (0, 4, 5), (8,), (3, 6, 7), (9, 10)),
    m.STANDARDISE: Division(COLUMNS, 2, (0,), (4, 5, 6, 7), (3,)),
    m.RELU: Division(ROWS, 1, (), (0,)),
    m.RELU_GRADIENT: Division(ROWS, 1, (3,), (0,)),
    m.GRU: Division(ROWS, 3, (4, 5), (8, 9, 10), (0, 2)),
    m.GRU_GRADIENT: Division(ROWS, 4, (0, 2, 3, 6, 7), (8, 9, 10)),
    m.BY_CORNER: Division(ROWS, 1, (), (3,), (0,)),
    m.NOT_BY_CORNER: Division(ROWS, 1, (3,), (), (), (0,)),
    m.BY_POSITION: Division(COLUMNS, 1, (), (), (0,), (4,)),
    m.NOT_BY_POSITION: Division(COLUMNS, 1, (), (), (4,), (0,)),
    m.PLACED: Division(PLACES, 6, (7,), (9, 10), (0, 3, 5)),
    m.PLACED_GRADIENT: Division(PLACES, 6, (0, 3, 7), (9, 10), (5,)),
    m.SCATTER: Division(COLUMNS, 2, (0,), (4,), (3,)),
    m.COLUMN_SUMS: Division(COLUMNS, 2, (0,), (3,)),
    m.PPO: Division(ROWS, 1, (0, 3), (9, 10, 11), (4, 5, 6, 7, 8)),
    m.DISCRIMINATION: Division(ROWS, 1, (), (5,), (0, 2), (4,)),
    m.SCALE_COLUMNS: Division(ROWS, 1, (), (4,), (0, 3)),
    m.UNSCALE_COLUMNS: Division(COLUMNS, 2, (0,), (5, 6), (3, 4)),
    models.GATHER: Division(ROWS, 4, (), (5,), (0, 3), (6,)),
    models.CATEGORIES: Division(ROWS, 1, (0,), (4, 5), (3,)),
    models.SQUARED_ERRORS: Division(ROWS, 1, (0,), (7, 8, 9), (3, 5, 6)),
    models.DISTANCES: Division(ROWS, 0, (2,), (5, 6, 7), (4,)),
    models.CONTRAST_ROWS: Division(ROWS, 0, (11, 12), (7, 8, 10), (2, 3, 4, 5, 13, 14)),
    models.CONTRAST_COLUMNS: Division(COLUMNS, 1, (7,), (9, 10), (2, 3, 4, 5)),
    models.CONTRAST_GRADIENT: Division(ROWS, 0, (7, 11), (12, 13), (2, 3, 4, 5, 8, 9)),
    models.DISTANCES_GRADIENT: Division(ROWS, 0, (), (), (2, 4, 5, 6, 7), (8, 9)),
}  # SQUARES and ADAM touch every parameter: they have stages of their own, as any other that is not named here


class Operation(NamedTuple):
    code: int
    jobs: int
    operands: tuple[int, ...]  # registers; the first one holds 0, which is the address of nothing


class Touch(NamedTuple):
    part_of: int | None  # which part of the memory, if not all of it
    writes: bool
    divided: tuple[str, int, int] | None  # by what, how many, into how many jobs; None: a job may touch any of it


class Record(NamedTuple):
    touch: Touch
    stage: int
    operation: int


class Plan(NamedTuple):
    """What `machine.run` needs beside the operations."""

    steps: Array  # [sum of the chains' lengths] operations
    tasks: Array  # [tasks, 3] one job of a chain: where its steps begin and end, and the job
    stages: Array  # [stages+1, 2] where the tasks of each begin, and where its counters do


def touched(operation: Operation, views: Mapping[int, int]) -> list[tuple[int, Touch]]:
    """The memory that an operation reads and writes. views: the memory that registers are parts of"""
    code, jobs, operands = operation
    division = DIVISIONS[code]
    divided = division.by, operands[division.size], jobs
    aside: set[int] = set()  # operands of which a job does not touch its part alone
    if code == m.GRU and operands[3] != operands[6]:
        aside = {4, 5}
    elif code == m.GRU_GRADIENT and operands[1] != operands[4]:
        aside = {0, 6, 7, 8}
    found = []
    for place in (*division.reads, *division.writes, *division.reads_all, *division.writes_all):
        memory, writes = operands[place], place in division.writes or place in division.writes_all
        if not memory:
            continue
        own = place in division.reads or place in division.writes
        by = divided if own and place not in aside else None
        if code == m.PRODUCT and place == 2 and operands[4]:
            by = COLUMNS, *divided[1:]  # of the transposed
        root = views.get(memory)
        found.append((memory if root is None else root, Touch(None if root is None else memory, writes, by)))
    return found


def _apart(one: Touch, other: Touch) -> bool:
    """Whether it does not matter which comes first."""
    if not (one.writes or other.writes):
        return True
    return one.part_of is not None and other.part_of is not None and one.part_of != other.part_of


def _in_step(one: Touch, other: Touch, jobs: tuple[int, int]) -> bool:
    """Whether job j of the later one waits for job j of the earlier one alone."""
    return jobs == (1, 1) or (one.divided is not None and one.divided == other.divided)


def stages_of(operations: Sequence[Operation], views: Mapping[int, int]) -> list[list[list[int]]]:
    """The chains of each stage: every operation as early as it can be."""
    history: dict[int, list[Record]] = {}
    stages: list[list[list[int]]] = []
    first = 0  # nothing may come before it
    for number, operation in enumerate(operations):
        if operation.code not in DIVISIONS:
            stages.append([[number]])
            first = len(stages)
            continue
        together: set[int] = set()  # earlier ones of the same stage that it goes in step with
        touches, stage = touched(operation, views), first
        for memory, touch in touches:
            for before in history.get(memory, ()):
                if _apart(touch, before.touch):
                    continue
                jobs = operation.jobs, operations[before.operation].jobs
                in_step = _in_step(touch, before.touch, jobs)
                earliest = before.stage + (not in_step)
                if earliest > stage:
                    stage, together = earliest, set()
                if in_step and before.stage == stage:
                    together.add(before.operation)
        for memory, touch in touches:
            history.setdefault(memory, []).append(Record(touch, stage, number))
        if stage == len(stages):
            stages.append([])
        joined = [chain for chain in stages[stage] if together.intersection(chain)]
        others = [chain for chain in stages[stage] if not together.intersection(chain)]
        stages[stage] = [*others, [*sorted(n for chain in joined for n in chain), number]]
    return stages


@lru_cache(maxsize=16)
def plan_of(operations: tuple[Operation, ...], views: frozenset[tuple[int, int]]) -> Plan:
    """The tasks of each stage, ordered so that the first half of them is the first half of every chain."""
    steps: list[int] = []
    tasks: list[tuple[int, int, int]] = []
    bounds = [(0, 0)]
    for chains in stages_of(operations, dict(views)):
        found = []
        for chain in chains:
            begin, jobs = len(steps), operations[chain[0]].jobs
            steps += chain
            found += [(2 * job // jobs, begin, len(steps), job) for job in range(jobs)]
        tasks += [task[1:] for task in sorted(found)]
        bounds.append((len(tasks), bounds[-1][1] + -(-(len(found) + 1) // LINE) * LINE))
    return Plan(np.array(steps), np.array(tasks), np.array(bounds))
