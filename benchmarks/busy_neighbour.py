"""Beside a busy neighbour: every core has other work, and `deir` runs with one thread, with all, and as it would.

python benchmarks/busy_neighbour.py [--frames 4096] [--tasks views noise vectors images]

For each task the seconds of one run by number of threads, alone and beside a neighbour that keeps all cores busy, and
how many times as long the default takes as the best of them. `evaluate` is two episodes of the agent just trained.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TASKS = {
    "views": ["--env", "DoorKey-8x8"],
    "noise": ["--env", "DoorKey-8x8", "--env.noise", "0.1"],
    "vectors": ["--env", "CartPole-v1"],
    "images": ["--env", "procgen:jumper", "--ppo.rollout-steps", "8", "--ppo.epochs", "1", "--reward.epochs", "1"],
}
SHARE = {"images": 8}  # of the frames, where each takes longer
BUSY = "while True: sum(range(100000))"


def seconds(*words: str) -> float:
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "deir", *words], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return time.perf_counter() - begin


def measure(task: str, frames: int, place: Path, choices: dict[str, list[str]]) -> dict[str, float]:
    """Seconds of training by number of threads, and of an evaluation."""
    found = {}
    for label, choice in choices.items():
        out = str(place / f"{task}-{label}-{time.time_ns()}")
        steps = ["--steps", str(frames // SHARE.get(task, 1))]
        found[label] = seconds("train", *TASKS[task], *steps, *choice, "--out", out)
    found["evaluate"] = seconds("evaluate", out, "--episodes", "2")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=4096)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    args = parser.parse_args()
    cores = os.cpu_count() or 1
    choices: dict[str, list[str]] = {"1": ["--threads", "1"], str(cores): ["--threads", str(cores)], "default": []}
    columns = ("1 thread", f"{cores} threads", "default", "of best", "evaluate")
    head = f"{'task':8s} {'neighbour':9s} " + " ".join(f"{name:>9s}" for name in columns)
    print(head, flush=True)
    with tempfile.TemporaryDirectory() as place:
        for task in args.tasks:
            measure(task, args.frames // 8, Path(place), {"default": []})  # loops are compiled once
            for neighbour in ("idle", "busy"):
                count = cores if neighbour == "busy" else 0
                others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
                try:
                    found = measure(task, args.frames, Path(place), choices)
                finally:
                    for other in others:
                        other.kill()
                ratio = found["default"] / min(found["1"], found[str(cores)])
                times = f"{found['1']:9.1f} {found[str(cores)]:9.1f} {found['default']:9.1f}"
                print(f"{task:8s} {neighbour:9s} {times} {ratio:9.2f} {found['evaluate']:9.1f}", flush=True)


if __name__ == "__main__":
    main()
