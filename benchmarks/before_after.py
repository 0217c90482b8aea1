"""Two revisions of this repository in turn: python benchmarks/before_after.py BEFORE [AFTER] [--runs 3] [--steps 66k]

Checks both out beside each other, trains with each in turn, in processes of their own, and prints the frames/s of every
run, their medians and the ratio. The first run of each is left out: it compiles. Needs git and a quiet machine.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = 2  # iterations at the start of a run, which warm up


def checked_out(revision: str, folder: Path) -> Path:
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", revision], check=True, capture_output=True).stdout
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    return folder


def frames_per_second(tree: Path, out: Path, words: list[str]) -> float:
    command = [sys.executable, "-m", "deir.cli", "train", *words, "--out", str(out)]
    own = {"PYTHONPATH": str(tree / "src"), "DEIR_CACHE": f"{tree}-cache"}  # revisions may keep layouts differently
    done = subprocess.run(command, cwd=out.parent, env={**os.environ, **own}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    with next(out.rglob("progress.csv")).open() as file:
        rows = list(csv.DictReader(file))
    first, last = rows[SKIPPED - 1], rows[-1]
    return (int(last["frames"]) - int(first["frames"])) / (float(last["seconds"]) - float(first["seconds"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="a revision, such as a commit")
    parser.add_argument("after", nargs="?", default="HEAD")
    parser.add_argument("--runs", type=int, default=3, help="of each, after the one that compiles")
    parser.add_argument("--steps", default="66k")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--env", default="DoorKey-8x8")
    options = parser.parse_args()
    words = ["--env", options.env, "--preset", "minigrid", "--steps", options.steps, "--threads", options.threads]
    with tempfile.TemporaryDirectory() as folder:
        revisions = {"before": options.before, "after": options.after}
        trees = {name: checked_out(revision, Path(folder, name)) for name, revision in revisions.items()}
        found: dict[str, list[float]] = {name: [] for name in trees}
        for run in range(options.runs + 1):
            for name, tree in trees.items():
                speed = frames_per_second(tree, Path(folder, f"{name}-{run}"), words)
                if run:
                    found[name].append(speed)
    for name, speeds in found.items():
        shown = ", ".join(f"{speed:,.0f}" for speed in speeds)
        print(f"{name:6} {revisions[name]:10} {median(speeds):8,.0f} frames/s   ({shown})")
    print(f"after / before: {median(found['after']) / median(found['before']):.2f}")


if __name__ == "__main__":
    main()
