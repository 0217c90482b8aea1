"""How many threads compute, and when.

The trainer and the reward model may work at the same time: two parties, which then share a run's threads. Work that is
made of independent jobs uses as many as there are for its party, and gives the same bits with any number of them.

Threads do not survive a fork. Ours are made anew in the child; PyTorch's own cannot be, and the child is told so: it
would wait for them for ever.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from threading import Lock
from typing import TypeVar

import numpy as np
import torch

from deir.errors import UserError
from deir.fast.blas import limit_threads

Item = TypeVar("Item")
Result = TypeVar("Result")
TURN = 5e-4  # seconds
_lock = Lock()
_threads = 1  # of the run
_parties = 1  # at work
_own = 1  # of PyTorch's operations, in each party
_several = False  # PyTorch has had several threads in this process
_running: list[Callable[[], None]] = []  # work that threads may join
_forked = False  # PyTorch has had several threads in a process that this one is a fork of


def available_threads(wanted: int | None) -> int:
    """All cores unless told otherwise; OMP_NUM_THREADS is respected."""
    if wanted is not None:
        return wanted
    given = os.environ.get("OMP_NUM_THREADS", "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(given) if given.isdigit() and int(given) > 0 else cores


def use_threads(threads: int, large: bool) -> None:
    """The threads of a run. `large`: PyTorch's own operations are large enough to be divided among all of them.

    Small ones would wait for each other longer than they compute, and beside other work many times as long. They use
    one thread each; a second core then serves the other party, and the jobs of `in_parallel` and `share_out`.
    """
    global _threads, _own, _several
    own = threads if large else 1
    if own > 1 and _forked:
        raise UserError(
            f"threads: got {threads} in a fork of a process that has computed with several threads, which do not "
            "survive it: expected 1, or a new process (of multiprocessing the start method 'spawn')"
        )
    _threads, _own, _several = threads, own, _several or own > 1
    compute_with_own()


@contextmanager
def one_thread(alone: bool = True) -> Iterator[None]:
    """PyTorch's own operations use one thread meanwhile; with `alone` false as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if alone else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def compute_with_own() -> None:
    """For each party, in its thread."""
    _compute_with(_own)


def begin_party() -> None:
    """For a party that has a thread of its own."""
    compute_with_own()
    torch.set_flush_denormal(True)


@contextmanager
def flushing() -> Iterator[None]:
    """Numbers too small for their full precision, below 1e-38, are 0 in this thread meanwhile.

    Before a task has paid for the first time its gradients are as small as that, and many CPUs take a hundred times as
    long for each. All threads that share work must do the same: else the bits would depend on who did what.
    """
    flushed = np.float32(2e-38) * np.float32(0.1) == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(bool(flushed))


def _compute_with(threads: int) -> None:
    """This thread's operations from now on.

    A thread that PyTorch has not seen yet takes the number that any thread has set last, whatever it was told itself:
    so PyTorch must see it first.
    """
    torch.get_num_threads()
    torch.set_num_threads(threads)


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
    with contextmanager(_parties_changed)(-1):
        _reinforce()
        yield


def _parties_changed(by: int) -> Iterator[None]:
    global _parties
    with _lock:
        _parties += by
    try:
        yield
    finally:
        with _lock:
            _parties -= by


def free_threads() -> int:
    """How many of them this party may use now."""
    return max(1, _threads // max(1, _parties))


def in_parallel(job: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The results of jobs that do not depend on each other, as many at once as there are threads.

    Every job computes with one thread, so its bits do not depend on their number. Python threads serve here because
    each job is a few large operations.
    """
    threads = free_threads()
    if min(threads, len(items)) <= 1:
        with flushing():
            return [job(item) for item in items]
    graph = torch.is_grad_enabled()

    def guarded(item: Item) -> Result:
        with torch.set_grad_enabled(graph):
            return job(item)

    return list(_pool(threads).map(guarded, items))


def share_out(job: Callable[[int], None], count: int) -> None:
    """Does jobs 0 … count-1 that do not depend on each other, each a long stretch of compiled code with one thread.

    The calling thread takes part, and whoever is free takes the next job.
    """
    threads = min(free_threads(), count)
    jobs = iter(range(count))  # next() of it is one step to Python's lock
    core = _core() if threads > 1 else -1

    def work() -> None:
        for number in jobs:
            job(number)

    def work_aside() -> None:
        _step_aside(core)
        work()

    before = limit_threads(1)
    try:
        others = [_pool(threads).submit(work_aside) for _ in range(threads - 1)]
        with flushing():
            work()
        for other in others:
            other.result()
    finally:
        limit_threads(before)


def aside(work: Callable[[], Result]) -> Callable[[], Result]:
    """Has a thread that is free do some work; what is given back waits for it. Without such a thread: at once."""
    if free_threads() > 1:
        return _pool(_threads).submit(work).result
    result = work()
    return lambda: result


@cache
def _core_of_thread() -> Callable[[], int] | None:
    return getattr(ctypes.CDLL(None), "sched_getcpu", None) if sys.platform.startswith("linux") else None


def _core() -> int:
    """The one that this thread runs on; -1 where the system does not tell."""
    asked = _core_of_thread()
    return -1 if asked is None else asked()


def _step_aside(core: int) -> None:
    """Leaves the core of the thread that asked for this one. Linux may wake a thread there and move it only after some
    milliseconds, which is longer than a job takes."""
    if core < 0 or _core() != core:
        return
    allowed = os.sched_getaffinity(0)
    if len(allowed) > 1:
        with suppress(OSError):  # a container may refuse it
            os.sched_setaffinity(0, allowed - {core})
            os.sched_setaffinity(0, allowed)


def join_in(work: Callable[[], None]) -> None:
    """Does work that any number of threads may join at any time; it returns when all of it is done.

    A thread that comes late finds nothing to do, so nobody waits for it. It is asked for when the work begins, and when
    a party begins to wait for another.
    """
    core = _core() if _threads > 1 else -1

    def work_aside() -> None:
        _step_aside(core)
        work()

    _running.append(work_aside)
    before = limit_threads(1)
    try:
        _reinforce()
        with flushing():
            work()
    finally:
        limit_threads(before)
        _running.remove(work_aside)


def _reinforce() -> None:
    """Asks a thread for each core that no party uses."""
    with _lock:
        spare = max(1, _threads // max(1, _parties)) - 1
        running = _running[-1] if _running else None
    if running is not None:
        for _ in range(spare):
            _pool(_threads).submit(running)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "deir", initializer=_compute_alone)


def _compute_alone() -> None:
    """For each thread of the pool. Products that compiled code calls have a number of threads of their own."""
    _compute_with(1)
    limit_threads(1)
    torch.set_flush_denormal(True)


def _after_fork() -> None:
    global _lock, _parties, _forked
    _pool.cache_clear()
    _running.clear()
    _lock, _parties, _forked = Lock(), 1, _forked or _several


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
