"""One run in a process of its own, under a parent: `deir train` on a new directory, or on with what is there.

The parent writes one line of JSON to the process's input and leaves it open. When the input ends, the parent is gone,
however it went, and the run stops as after Ctrl-C, with a checkpoint: no run outlives the one who watches it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from deir.config import to_dict
from deir.experiments.jobs import Job
from deir.files import held
from deir.run import RunDirectory

PATIENCE = 600.0  # seconds a run may wait for its orphaned predecessor to write its checkpoint
INTERRUPTED = 130


def order_of(job: Job) -> dict[str, Any]:
    """All a worker must know, as plain data."""
    return {"out": str(job.out.resolve()), "log": str(job.log.resolve()), "config": to_dict(job.config)}


def launch(order: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Starts the process. Its own session: Ctrl-C reaches the parent, who then asks it to stop."""
    log = Path(order["log"])
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(order["config"]["threads"] or 1)}
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "deir.experiments.worker"],
            stdin=subprocess.PIPE, stdout=output, stderr=output, env=environment, start_new_session=True,
        )  # fmt: skip
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended already; its exit code tells
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
    return process


def _end_with_parent() -> None:
    while os.read(0, 1024):
        pass
    print("the parent process is gone: stopping", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)


def _wait_until_free(place: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while held(place) and time.monotonic() < deadline:
        time.sleep(0.1)


def _read_line() -> str:
    """Unbuffered, so that the thread that waits for the end sees everything after it."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise SystemExit(INTERRUPTED)
        line += byte
    return line.decode()


def main() -> None:
    order = json.loads(_read_line())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    place = Path(order["out"])
    _wait_until_free(place)
    if RunDirectory(place).config.is_file():
        _train("--resume", str(place), "--steps", str(order["config"]["steps"]))
        return
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "config.yaml"
        file.write_text(yaml.safe_dump(order["config"]))
        _train("--config", str(file), "--out", str(place))


def _train(*words: str) -> None:
    from deir import cli

    sys.argv = ["deir", "train", *words]
    cli.main()


if __name__ == "__main__":
    main()
