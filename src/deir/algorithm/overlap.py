"""When the reward model works: in turn with the policy. `deir.fast.overlap` has it work beside the policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
Given = TypeVar("Given", covariant=True)


class Pending(Protocol[Given]):
    """Work that was asked for."""

    def result(self) -> Given: ...


class Overlap(Protocol):
    overlaps: bool  # the next rollout may be collected while the model learns

    def ask(self, work: Callable[[], T]) -> Pending[T]:
        """For work that is waited for soon."""

    def ask_beside(self, work: Callable[[], T]) -> Pending[T]:
        """For work while others compute too."""

    def close(self) -> None: ...


class _WhenAsked(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self.result = work


class InTurn:
    """Work is done when it is waited for."""

    overlaps = False

    def ask(self, work: Callable[[], T]) -> Pending[T]:
        return _WhenAsked(work)

    def ask_beside(self, work: Callable[[], T]) -> Pending[T]:
        return _WhenAsked(work)

    def close(self) -> None:
        """Nothing to release."""
