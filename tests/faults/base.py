"""What a kind of fault is, how much of it is tried, and how it is counted."""

from __future__ import annotations

import importlib
import pkgutil
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class Unavailable(Exception):
    """This kind cannot be tried here; the text says why."""


@dataclass
class Tally:
    """The outcomes of one kind. Every case is counted in `tried`; what is wrong with it is told in `faults`."""

    tried: int = 0
    exact: int = 0  # as if nothing had happened, to the last bit; for a command line: it did what was asked
    errors: int = 0  # one clear message, exit code 2 (or 130), and the reason for it was real
    tracebacks: int = 0
    lost: int = 0  # anything else: a wrong result without a word, a run that cannot go on, a process that hangs
    faults: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        for name in ("tried", "exact", "errors", "tracebacks", "lost"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.faults += other.faults

    def exactly(self) -> None:
        self.tried += 1
        self.exact += 1

    def clear_error(self) -> None:
        self.tried += 1
        self.errors += 1

    def traceback(self, where: str) -> None:
        self.tried += 1
        self.tracebacks += 1
        self.faults.append(f"traceback: {where}")

    def loss(self, where: str) -> None:
        self.tried += 1
        self.lost += 1
        self.faults.append(f"lost: {where}")


@dataclass(frozen=True)
class Budget:
    """How much of a kind is tried: `cases` of them, or fewer when `seconds` have passed."""

    cases: int
    seconds: float = float("inf")
    seed: int = 0
    jobs: int = 1  # processes at the same time
    short: bool = False  # the version of `make test`

    def within(self, cases: Iterable[Any]) -> Iterator[Any]:
        """The cases that the budget allows; a random choice of them, in their order, if there are more."""
        chosen = list(cases)
        if len(chosen) > self.cases:
            picked = sorted(random.Random(self.seed).sample(range(len(chosen)), self.cases))
            chosen = [chosen[k] for k in picked]
        end = time.monotonic() + self.seconds
        for case in chosen:
            if time.monotonic() > end:
                return
            yield case


@dataclass(frozen=True)
class Kind:
    name: str
    what: str  # in the table
    run: Callable[[Budget, Path, Tally], None]  # the directory is its own, empty, and removed afterwards
    full: int  # cases of `make faults`
    short: int  # cases of `make test`


def kinds() -> dict[str, Kind]:
    """Every kind there is, by its name, in the order of the modules' names."""
    package = importlib.import_module(f"{__package__}.kinds")
    found = [
        importlib.import_module(f"{package.__name__}.{m.name}").KIND for m in pkgutil.iter_modules(package.__path__)
    ]
    return {kind.name: kind for kind in found}
