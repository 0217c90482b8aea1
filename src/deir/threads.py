"""How many threads compute, and when."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

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


@contextmanager
def all_threads() -> Iterator[None]:
    """For work that another process waits for, and that gives the same bits with any number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(_while_awaited or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
