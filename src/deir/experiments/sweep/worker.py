"""One run in a process of its own, under a parent: `deir train` on a new directory, or on with what is there.

The parent writes one line of JSON to the process's input and leaves it open. When the input ends, the parent is gone,
however it went, and the run stops as after Ctrl-C, with a checkpoint: no run outlives the one who watches it. A run
that hangs cannot stop; a second, small process then ends it once its time of grace is over.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import yaml

from deir.experiments.sweep.launch import GRACE
from deir.files import held
from deir.imports import names_code

PATIENCE = 600.0  # seconds a run may wait for its orphaned predecessor to write its checkpoint
LOOK = 0.5  # seconds between two looks at the processes above


def _end_with_parent() -> None:
    while os.read(0, 1024):
        pass
    print("the parent process is gone: stopping", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)


def _start_watchdog(grace: float) -> None:
    """A fork of this process, while it is still small, that needs nothing of it: it may hang in whatever it likes."""
    worker = os.getpid()
    if not hasattr(os, "fork") or os.fork():
        return
    try:
        _watch(worker, grace)
    finally:
        os._exit(0)


def _watch(worker: int, grace: float) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    parent = select.poll()
    parent.register(0, 0)  # the end of the input is always told, what is in it never
    while os.getppid() == worker and not parent.poll(LOOK * 1000):
        pass
    deadline = time.monotonic() + grace
    while os.getppid() == worker and time.monotonic() < deadline:
        time.sleep(LOOK)
    if os.getppid() != worker:
        return
    print(
        f"the parent process is gone and the run has not stopped for {grace:g} s: killed", file=sys.stderr, flush=True
    )
    if os.getpgid(worker) == worker:
        os.killpg(worker, signal.SIGKILL)  # with all that the environment has started, and this process
    os.kill(worker, signal.SIGKILL)


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
    _start_watchdog(float(order.get("grace", GRACE)))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from deir.runs.directory import RunDirectory

    place, named = Path(order["out"]), _code_named(order["config"])
    _wait_until_free(place)
    if RunDirectory(place).config.is_file():
        _train("--resume", str(place), "--steps", str(order["config"]["steps"]), *named)
        return
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "config.yaml"
        file.write_text(yaml.safe_dump(order["config"]))
        _train("--config", str(file), "--out", str(place), *named)


def _code_named(config: dict[str, Any]) -> list[str]:
    """The code the parent asks for, by name: what lies in the run's directory is not trusted for it."""
    named = {"env": config["env"]["id"], "method": config["method"], "loggers": config.get("loggers", "")}
    return [word for field, name in named.items() if names_code(field, name) for word in (f"--{field}", name)]


def _train(*words: str) -> None:
    from deir import cli

    sys.argv = ["deir", "train", *words]
    cli.main()
