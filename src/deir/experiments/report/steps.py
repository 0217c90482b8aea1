"""What a command is doing, for a person who waits: one line that changes on a terminal, a line a step elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Tell = Callable[[str], None]


def silent(step: str) -> None:
    """For callers without anyone who waits."""


@contextmanager
def told_steps() -> Iterator[Tell]:
    """On standard error, so that what a command prints stays its result. Details after a colon only on a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        seen: set[str] = set()

        def line(step: str) -> None:
            head = step.partition(":")[0]
            if head not in seen:
                print(f"{head} …", file=sys.stderr, flush=True)
            seen.add(head)

        yield line
        return
    with console.status("starting …") as status:
        yield lambda step: status.update(f"{step} …")
