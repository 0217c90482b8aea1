"""A soak: one process trains, stops with a checkpoint and resumes, over and over, and must not grow.

    python benchmarks/soak.py --minutes 60 --out docs/results/soak.csv

Every few seconds it notes the memory, open files and threads of the process that trains, and how many processes that
one has started. DoorKey-8x8 with the defaults (layouts from a process of their own, TensorBoard events) and maps, one
thread. The run gets SIGTERM every `--segment` seconds and is resumed by the same process, so whatever a stop leaves
behind adds up. At the end it draws a picture beside the CSV, and says what is flat: memory if a straight line through
the last three quarters rises by less than 2% an hour, the counts if their maximum in the last quarter is that of the
second quarter. Exits with 1 if something is not flat.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from deir.runs import run
from deir.runs.progress import last_row

RISE = 0.02  # of the memory, in an hour
COLUMNS = ("seconds", "rss_mb", "open_files", "threads", "processes", "frames", "resumes")
COUNTS = ("open_files", "threads", "processes")
TASK: dict[str, Any] = {"env": {"id": "DoorKey-8x8"}, "maps": True, "steps": 10**12, "threads": 1, "seed": 0}


def work(path: Path, segment: float) -> None:
    """Trains without end; stopped by a signal every `segment` seconds, resumed at once."""
    begin = time.monotonic()

    def stop(config: Any, row: dict[str, Any]) -> None:
        if time.monotonic() - begin > segment:
            os.kill(os.getpid(), signal.SIGTERM)

    while True:
        begin = time.monotonic()
        try:
            run.resume(path, None, stop) if path.exists() else run.start(run.configure(TASK), path, stop)
        except run.Interrupted:
            with (path / "resumes").open("a") as file:
                file.write("\n")


def sample(process: int, path: Path) -> dict[str, float]:
    """Of the process that trains, from /proc."""
    place = Path(f"/proc/{process}")
    status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
    children = (task / "children" for task in (place / "task").iterdir())
    row = last_row(path / "progress.csv") or {}
    resumes = path / "resumes"
    return {
        "rss_mb": round(int(status["VmRSS"].split()[0]) / 1024, 1),
        "open_files": len(list((place / "fd").iterdir())),
        "threads": int(status["Threads"]),
        "processes": sum(len(file.read_text().split()) for file in children),
        "frames": float(row.get("frames", 0)),
        "resumes": len(resumes.read_text()) if resumes.is_file() else 0,
    }


def soak(minutes: float, every: float, segment: float, out: Path) -> bool:
    """Whether it came to its end; the samples are in `out`, line by line."""
    with tempfile.TemporaryDirectory(prefix="deir-soak-") as scratch, out.open("w", newline="") as file:
        path = Path(scratch) / "run"
        command = [sys.executable, __file__, "--work", str(path), "--segment", str(segment)]
        worker = subprocess.Popen(command)
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        begin = time.monotonic()
        try:
            while time.monotonic() - begin < 60 * minutes:
                time.sleep(every)
                if worker.poll() is not None:
                    print(f"the process that trains ended with code {worker.returncode}")
                    return False
                writer.writerow({"seconds": round(time.monotonic() - begin), **sample(worker.pid, path)})
                file.flush()
        finally:
            worker.kill()  # its layout process ends with it
            worker.wait()
    return True


def verdict(table: dict[str, np.ndarray]) -> bool:
    """Says what is flat, and whether all of it is."""
    hours, memory = table["seconds"] / 3600, table["rss_mb"]
    quarter = np.minimum(4 * hours / hours[-1], 3.999).astype(int)
    late = quarter > 0
    slope = float(np.polyfit(hours[late], memory[late], 1)[0])
    flat = [slope < RISE * float(np.median(memory[late]))]
    medians = ", ".join(f"{np.median(memory[quarter == k]):.0f}" for k in range(4))
    print(f"{hours[-1] * 60:.0f} minutes, {table['frames'][-1]:,.0f} frames, {table['resumes'][-1]:.0f} resumes")
    print(f"memory: {'flat' if flat[0] else 'GROWS'}; medians of the quarters {medians} MB, {slope:+.1f} MB an hour")
    for name in COUNTS:
        most = [int(table[name][quarter == k].max()) for k in range(4)]
        flat.append(most[3] <= most[1])
        print(f"{name.replace('_', ' ')}: {'flat' if flat[-1] else 'GROW'}; most in each quarter {most}")
    return all(flat)


def draw(table: dict[str, np.ndarray], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (above, below) = plt.subplots(2, 1, figsize=(8, 5), sharex=True, layout="constrained")
    minutes = table["seconds"] / 60
    above.plot(minutes, table["rss_mb"], color="#0072B2")
    above.set(ylabel="memory, MB", ylim=(0, None), title="One process that trains, stops and resumes")
    for name, color in zip(COUNTS, ("#D55E00", "#009E73", "#7A7A7A"), strict=True):
        below.plot(minutes, table[name], color=color, label=name.replace("_", " "))
    resumed = minutes[1:][np.diff(table["resumes"]) > 0]
    below.plot(resumed, np.zeros_like(resumed), "|", color="black", clip_on=False, label="resumed")
    highest = max(table[name].max() for name in COUNTS)
    below.set(xlabel="minutes", ylabel="count", ylim=(0, 1.4 * highest))
    below.legend(ncols=4, frameon=False, loc="upper center")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=100)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60, help="how long")
    parser.add_argument("--every", type=float, default=10, help="seconds between samples")
    parser.add_argument("--segment", type=float, default=180, help="seconds from one stop to the next")
    parser.add_argument("--out", type=Path, default=Path("soak.csv"), help="the samples; the picture goes beside it")
    parser.add_argument("--read", action="store_true", help="only judge and draw the samples that are there")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.work, args.segment)
    ended_well = args.read or soak(args.minutes, args.every, args.segment, args.out)
    with args.out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    table = {name: np.array([float(row[name]) for row in rows]) for name in COLUMNS}
    draw(table, args.out.with_suffix(".png"))
    return int(not (verdict(table) and ended_well))


if __name__ == "__main__":
    sys.exit(main())
