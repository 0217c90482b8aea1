"""How many threads compute, and when.

The trainer and the reward model may work at the same time: two parties, which then share a run's threads. Work that is
made of independent jobs uses as many as there are for its party, and gives the same bits with any number of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")
TURN = 5e-4  # seconds
_lock = Lock()
_threads = 1  # of the run
_parties = 1  # at work


def available_threads(wanted: int | None) -> int:
    """All cores unless told otherwise; OMP_NUM_THREADS is respected."""
    if wanted is not None:
        return wanted
    given = os.environ.get("OMP_NUM_THREADS", "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(given) if given.isdigit() and int(given) > 0 else cores


def use_threads(threads: int, overlap: bool) -> None:
    """Divides a run's threads between PyTorch's own operations and the parties that may work at the same time."""
    global _threads
    _threads = threads
    torch.set_num_threads(max(1, threads // 2) if overlap else threads)


@contextmanager
def another_party() -> Iterator[None]:
    """While a second party works, in a thread; the two take turns at the interpreter more often than Python would."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(min(interval, TURN))
    try:
        yield from _parties_changed(1)
    finally:
        sys.setswitchinterval(interval)


@contextmanager
def one_party_less() -> Iterator[None]:
    """While this party waits for the other one."""
    yield from _parties_changed(-1)


def _parties_changed(by: int) -> Iterator[None]:
    global _parties
    with _lock:
        _parties += by
    try:
        yield
    finally:
        with _lock:
            _parties -= by


def in_parallel(job: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The results of jobs that do not depend on each other, as many at once as there are threads.

    Every job computes with one thread, so its bits do not depend on their number. Python threads serve here because
    each job is a few large operations.
    """
    threads = max(1, _threads // max(1, _parties))
    if min(threads, len(items)) <= 1:
        return [job(item) for item in items]
    graph = torch.is_grad_enabled()

    def guarded(item: Item) -> Result:
        with torch.set_grad_enabled(graph):
            return job(item)

    return list(_pool(threads).map(guarded, items))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "deir", initializer=torch.set_num_threads, initargs=(1,))
