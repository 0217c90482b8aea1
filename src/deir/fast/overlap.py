"""The reward model in a thread of its own, beside the policy.

The policy's and the model's updates do not depend on each other. Where each is made of many small operations, which
leave a second core idle, the model learns while the policy learns and collects the next rollout. Threads serve because
an update is a few hundred matrix products and compiled loops that run without Python's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from deir.algorithm.overlap import Done, InTurn, Pending
from deir.fast.threads import another_party, begin_party, compute_alone, one_party_less

T = TypeVar("T")


class _Beside(Generic[T]):
    def __init__(self, future: Future[T]) -> None:
        self.future = future

    def result(self) -> T:
        with one_party_less():
            return self.future.result()


def _counted(work: Callable[[], T]) -> Callable[[], T]:
    def counted() -> T:
        with another_party():
            return work()

    return counted


class Beside:
    """A thread that does what it is asked for, one thing after the other. Only what is asked aside the caller does."""

    overlaps = True

    def __init__(self) -> None:
        self.worker = ThreadPoolExecutor(1, "deir-model", initializer=begin_party)

    def ask(self, work: Callable[[], T]) -> Pending[T]:
        return self.worker.submit(work)

    def ask_beside(self, work: Callable[[], T]) -> Pending[T]:
        return _Beside(self.worker.submit(_counted(work)))

    def ask_aside(self, work: Callable[[], T]) -> Pending[T]:
        return Done(work())

    def close(self) -> None:
        self.worker.shutdown(cancel_futures=True)


class Aside(InTurn):
    """Where no model learns: a thread counts while the policy's batches are made, which leaves a core idle."""

    def __init__(self) -> None:
        self.worker = ThreadPoolExecutor(1, "deir-aside", initializer=compute_alone)

    def ask_aside(self, work: Callable[[], T]) -> Pending[T]:
        return _Beside(self.worker.submit(_counted(work)))

    def close(self) -> None:
        self.worker.shutdown(cancel_futures=True)
