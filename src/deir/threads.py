"""How many threads compute, and when.

A run's threads are divided between the trainer and the reward model's process. Whoever finds that the other one is idle
borrows its threads, for work that is made of independent jobs and gives the same bits with any number of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")
_shared = 0  # threads of this process and the other one together
_other_idle: Callable[[], bool] = bool  # never, until told


def available_threads(wanted: int | None) -> int:
    """All cores unless told otherwise; OMP_NUM_THREADS is respected."""
    if wanted is not None:
        return wanted
    given = os.environ.get("OMP_NUM_THREADS", "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(given) if given.isdigit() and int(given) > 0 else cores


def share_threads(threads: int) -> int:
    """Of a run's threads, those the reward model learns with while the policy learns with the others."""
    return threads - threads // 2


def borrow_threads(shared: int, other_idle: Callable[[], bool]) -> None:
    """Lets `in_parallel` use all `shared` threads of a run whenever the other process is idle."""
    global _shared, _other_idle
    _shared, _other_idle = shared, other_idle


def in_parallel(job: Callable[[Item], Result], items: Sequence[Item], device: torch.device) -> list[Result]:
    """The results of jobs that do not depend on each other, on the CPU as many at once as there are threads.

    Every job computes with one thread, so its bits do not depend on their number. Python threads serve here because
    each job is a few large operations.
    """
    threads = max(torch.get_num_threads(), _shared if _other_idle() else 0)
    if min(threads, len(items)) <= 1 or device.type != "cpu":
        return [job(item) for item in items]
    graph = torch.is_grad_enabled()

    def guarded(item: Item) -> Result:
        with torch.set_grad_enabled(graph):
            return job(item)

    return list(_pool(threads).map(guarded, items))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "deir", initializer=torch.set_num_threads, initargs=(1,))
