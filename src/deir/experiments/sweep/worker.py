"""One run in a process of its own, under a parent: `deir train` on a new directory, or on with what is there.

The parent writes one line of JSON to the process's input and leaves it open. When the input ends, the parent is gone,
however it went, and the run stops as after Ctrl-C, with a checkpoint: no run outlives the one who watches it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import yaml

from deir.files import held
from deir.runs.run import RunDirectory

PATIENCE = 600.0  # seconds a run may wait for its orphaned predecessor to write its checkpoint


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
            raise SystemExit(130)
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
