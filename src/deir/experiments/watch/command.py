"""`deir watch`, and the same beside `deir train --watch`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import tyro

from deir.errors import invalid

PATIENCE = 5  # priority below that of training


@dataclass(frozen=True)
class Watch:
    """A page that follows runs as they go on: their report, and the newest episode of each. On this machine only."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = (Path("runs"),)
    """Run directories, or directories above some; new runs below them are found."""
    port: int = 0
    """Port of the page on 127.0.0.1; 0 takes any that is free."""
    trust: bool = False
    """Import code that the runs name (module:factory, package.module:Class), to replay them."""


def run(args: Watch) -> None:
    from deir.experiments.watch.runs import Watched
    from deir.experiments.watch.server import Server
    from deir.runs.directory import told_nearest
    from deir.runs.ranges import check_count

    check_count("port", args.port, 0)
    for place in args.runs:
        if not place.is_dir():
            expected = "a run directory, or a directory above some"
            raise invalid("runs", str(place), f"{expected}{told_nearest(place, above=True)}")
    server = Server(Watched(args.runs, args.trust), args.port)
    print(f"{server.address}   Ctrl-C ends it", flush=True)
    with suppress(KeyboardInterrupt):
        server.serve_forever()
    server.server_close()


@contextmanager
def watching(path: Path, wanted: bool, trust: bool = False) -> Iterator[None]:
    """While a run trains, a server beside it in a process of its own: pages are made without holding training up."""
    if not wanted:
        yield
        return
    code = "import sys; from deir.experiments.watch.command import follow; follow(sys.argv[1], sys.argv[2] == 'trust')"
    words = [sys.executable, "-c", code, str(path), "trust" if trust else "-"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        print(f"watch it at {child.stdout.readline().strip() or 'nowhere: the server did not start'}", flush=True)
        try:
            yield
        finally:
            child.stdin.close()  # which tells it to end; the system does so too if this process is killed


def follow(path: str, trust: bool) -> None:
    """Serves a run that may not have begun, until standard input ends."""
    import signal

    from deir.experiments.watch.runs import Watched
    from deir.experiments.watch.server import Server

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for training, which ends this
    if hasattr(os, "nice"):
        os.nice(PATIENCE)
    server = Server(Watched([Path(path)], trust), 0)
    Thread(target=server.serve_forever, daemon=True).start()
    print(server.address, flush=True)
    sys.stdin.read()
