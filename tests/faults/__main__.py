"""`python -m tests.faults [KIND ...] [--budget CASES] [--seconds S] [--jobs N] [--short] [--json FILE]`"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .base import Budget, Kind, Tally, Unavailable, kinds
from .preload import start_again_with_library

COLUMNS = ("tried", "bit for bit", "clear errors", "tracebacks", "lost", "seconds")


def arguments(known: dict[str, Kind]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description="Puts faults in and counts what they do."
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of: {', '.join(known)}; all when not given")
    parser.add_argument("--budget", type=int, help="cases of each kind; its own number when not given")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="at most so long for each kind")
    parser.add_argument("--jobs", type=int, default=1, help="processes at the same time")
    parser.add_argument("--seed", type=int, default=0, help="of the cases that are drawn")
    parser.add_argument("--short", action="store_true", help="the version of make test")
    parser.add_argument("--json", type=Path, help="write the figures there as well")
    args = parser.parse_args()
    for name in args.kinds:
        if name not in known:
            parser.error(f"unknown kind {name!r}, expected one of: {', '.join(known)}")
    return args


def tried(kind: Kind, args: argparse.Namespace) -> dict[str, Any]:
    tally, begin, skipped = Tally(), time.monotonic(), None
    cases = args.budget or (kind.short if args.short else kind.full)
    with tempfile.TemporaryDirectory(prefix="deir-faults-") as scratch:
        try:
            kind.run(Budget(cases, args.seconds, args.seed, args.jobs, args.short), Path(scratch), tally)
        except Unavailable as reason:
            skipped = str(reason)
    return {"kind": kind.name, **asdict(tally), "seconds": time.monotonic() - begin, "skipped": skipped}


def line(name: str, row: dict[str, Any]) -> str:
    if row["skipped"]:
        return f"| {name} | skipped: {row['skipped']} |"
    numbers = (row[key] for key in ("tried", "exact", "errors", "tracebacks", "lost"))
    return f"| {name} | " + " | ".join([*(f"{number:,}" for number in numbers), f"{row['seconds']:.0f}"]) + " |"


def main() -> int:
    start_again_with_library()
    known = kinds()
    args = arguments(known)
    print(f"| fault | {' | '.join(COLUMNS)} |\n|---|{'---:|' * len(COLUMNS)}", flush=True)
    rows = []
    for name in args.kinds or known:
        rows.append(tried(known[name], args))
        print(line(known[name].what, rows[-1]), flush=True)
    for row in rows:
        for fault in row["faults"]:
            print(f"{row['kind']}: {fault}", file=sys.stderr)
    if args.json:
        args.json.write_text(json.dumps(rows))
    return int(any(row["tracebacks"] or row["lost"] for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
