"""The reward model in a thread of its own, beside the policy.

The policy's and the model's updates do not depend on each other. Where each is made of many small operations, which
leave a second core idle, the model learns while the policy learns and collects the next rollout. Threads serve because
an update is a few hundred matrix products and compiled loops that run without Python's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from deir.algorithm.overlap import Pending
from deir.fast.threads import another_party, begin_party, one_party_less

T = TypeVar("T")


class _Beside(Generic[T]):
    def __init__(self, future: Future[T]) -> None:
        self.future = future

    def result(self) -> T:
        with one_party_less():
            return self.future.result()


class Beside:
    """A thread that does what it is asked for, one thing after the other."""

    overlaps = True

    def __init__(self) -> None:
        self.worker = ThreadPoolExecutor(1, "deir-model", initializer=begin_party)

    def ask(self, work: Callable[[], T]) -> Pending[T]:
        return self.worker.submit(work)

    def ask_beside(self, work: Callable[[], T]) -> Pending[T]:
        def counted() -> T:
            with another_party():
                return work()

        return _Beside(self.worker.submit(counted))

    def close(self) -> None:
        self.worker.shutdown(cancel_futures=True)
