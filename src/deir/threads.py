"""How many threads compute, and when."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

Item = TypeVar("Item")
_while_awaited: int | None = None


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


def lend_threads(threads: int) -> None:
    """Says how many threads this process may use while another one waits for it."""
    global _while_awaited
    _while_awaited = threads


def in_parallel(job: Callable[[Item], None], items: Sequence[Item], device: torch.device) -> None:
    """Runs jobs that do not depend on each other, on the CPU as many at once as there are threads.

    For work that others wait for: it takes the threads that are lent, too. Every job computes with one thread, so its
    bits do not depend on their number. Python threads serve here because each job is a few large operations.
    """
    threads = min(_while_awaited or torch.get_num_threads(), len(items))
    if threads <= 1 or device.type != "cpu":
        for item in items:
            job(item)
        return
    graph = torch.is_grad_enabled()

    def guarded(item: Item) -> None:
        with torch.set_grad_enabled(graph):
            job(item)

    list(_pool(threads).map(guarded, items))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "deir", initializer=torch.set_num_threads, initargs=(1,))
