"""The file operations of a new run and of one that resumes, as the preloaded library saw them."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from deir.runs import run

from .machine import OK, Note, child, go_on, noting, reference
from .preload import Op, Operation, arm, library, mark, read_trace
from .runs import TINY

_SCRATCH = tempfile.TemporaryDirectory(prefix="deir-faults-recorded-")
STOPPED = 2  # the iteration after which the run was interrupted that resumes


def interrupted(path: Path) -> None:
    """A run with some of its iterations done, and some to do."""

    def stop(config: Any, row: dict[str, Any]) -> None:
        if row["iteration"] == STOPPED:
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        run.start(run.configure(TINY), path, stop)
    except run.Interrupted:
        return
    raise AssertionError("the run was not interrupted")


@dataclass(frozen=True)
class Recorded:
    """Going on with `source`, or beginning where there is none."""

    source: Path | None
    place: str  # the directory the operations were in
    operations: list[Operation]

    @classmethod
    def of(cls, scratch: Path, name: str, source: Path | None) -> Recorded:
        place, trace, note = (scratch / name).resolve(), scratch / f"{name}.trace", Note()
        handle = os.open(trace, os.O_CREAT | os.O_RDWR | os.O_TRUNC)
        begun = cls(source, str(place), [])
        path = begun.begin(place, note)

        def work() -> None:
            arm(place, trace=handle)
            noting(note, mark)(lambda: go_on(path))

        end = child(work, scratch / "log")
        os.close(handle)
        if end.code != OK:
            raise RuntimeError(f"an undisturbed run failed: {end.text}")
        return cls(source, str(place), list(read_trace(trace)))

    @property
    def count(self) -> int:
        """Operations that the library counts."""
        return sum(operation.op != Op.MARK for operation in self.operations)

    def begin(self, place: Path, note: Note) -> Path:
        """The run directory in a new place, as it is before the operations; the note is what was promised by then."""
        place.mkdir()
        path = place / "run"
        if self.source is not None:
            shutil.copytree(self.source, path)
            note.set(STOPPED)
        return path


@cache
def recordings() -> dict[str, Recorded]:
    """Made once for all kinds of fault."""
    library()
    reference()
    scratch = Path(_SCRATCH.name)
    interrupted(scratch / "interrupted")
    return {
        "run": Recorded.of(scratch, "run", None),
        "resume": Recorded.of(scratch, "resume", scratch / "interrupted"),
    }
