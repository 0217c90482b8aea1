"""A text file that is replaced again and again while its writer is killed: it is always the old one or the new one."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from deir.files import write_whole

from ..base import Budget, Kind, Tally


def run(budget: Budget, scratch: Path, tally: Tally) -> None:
    path = scratch / "summary.json"
    texts = ["old" * 10_000, "new" * 20_000]
    write_whole(path, texts[0])
    for case in budget.within(range(budget.cases)):
        child = os.fork()
        if child == 0:
            while True:
                for text in texts:
                    write_whole(path, text)
        time.sleep(0.0005 * (case % 20))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if path.read_text() in texts:
            tally.exactly()
        else:
            tally.loss(f"case {case}: neither the old text nor the new one")


KIND = Kind("torn-text", "a text file, its writer killed", run, full=1000, short=20)
