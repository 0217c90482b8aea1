"""Starts a worker, from a pool or from a task of Ray. Imports nothing heavy: a task of Ray loads it first of all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from deir.imports import python

GRACE = 120.0  # seconds a run that is asked to stop may take to end its iteration and write its checkpoint
Order = dict[str, Any]
"""All a worker must know, as plain data: `out`, `log`, the `config` as a tree, and its seconds of `grace`."""


def launch(order: Order) -> subprocess.Popen[bytes]:
    """Starts the process. Its own session: Ctrl-C reaches the parent, who then asks it to stop."""
    log = Path(order["log"])
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch()  # by which whoever watches sees that it is no longer in a queue
    environment = {**os.environ, "OMP_NUM_THREADS": str(order["config"]["threads"] or 1)}
    with log.open("ab") as output:
        process = subprocess.Popen(
            python("deir.experiments.sweep.worker", "main"),
            stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment, start_new_session=True,
        )  # fmt: skip
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended already; its exit code tells
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
    return process


def run_task(order: Order) -> int:
    """A task of Ray, on any machine: the exit code of the worker. Ray repeats a cancellation until the task ends."""
    # whoever starts Ray in the background (nohup, &) has it ignore the signal by which it cancels
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = launch(order)
    asked = False
    while True:
        try:
            if process.poll() is not None:
                return process.returncode
            time.sleep(0.2)
        except KeyboardInterrupt:
            if not asked:  # a second signal would cut the checkpoint short
                process.terminate()
                asked = True
