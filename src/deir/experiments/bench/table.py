"""The figures of `deir bench` in words."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from deir.experiments.bench.scaling import ONE_THREAD, lines


def _name(figures: dict[str, Any]) -> str:
    extra = [f"{k} {figures[k]:,}" for k in ("environments", "episode_length", "queue_size") if k in figures]
    extra += [str(figures[k]) for k in ("variant",) if k in figures]
    extra += [figures["kind"]] if figures["kind"] in ("whole run", ONE_THREAD) else []
    extra += [f"preset {figures['preset']}"] if "preset" in figures else []
    return " ".join([figures["env"].removeprefix("MiniGrid-"), figures["method"], *extra])


def line(figures: dict[str, Any]) -> str:
    efficiency = f"  efficiency {figures['efficiency']:.2f}" if "efficiency" in figures else ""
    return f"{_name(figures):60s} {figures['fps']:>8,.0f} frames/s{efficiency}"


def print_table(results: list[dict[str, Any]], threads: int) -> None:
    table = Table(title=f"{threads} threads", title_justify="left")
    for column in ("what", "frames/s", "MFLOP/frame", "peak GFLOP/s", "efficiency", "MB", "largest child's MB"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for r in results:
        mflop = f"{r['mflop_per_frame']:.1f}" if "mflop_per_frame" in r else ""
        efficiency = f"{r['efficiency']:.2f}" if "efficiency" in r else ""
        memory = [f"{r[name]:.0f}" for name in ("memory_mb", "largest_child_mb")]
        numbers = [f"{r['fps']:,.0f}", mflop, f"{r['peak_gflops']:.0f}", efficiency, *memory]
        table.add_row(_name(r), *numbers)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    for ratio in lines(results, threads, [_name(r) for r in results]):
        print(ratio)
    print("seconds of each phase in one iteration; where the model learns beside the policy, model_update is the wait")
    for r in results:
        if "phases" in r:
            print(f"  {_name(r)}: " + ", ".join(f"{name} {seconds:.2f}" for name, seconds in r["phases"].items()))
    for r in results:
        if "fps_fresh" in r:
            stages = ", ".join(f"{k.removeprefix('fps_')} {r[k]:,.0f}" for k in r if k.startswith("fps_"))
            print(
                f"frames/s over the whole run: {stages}, average {r['fps']:,.0f}; final return {r['final_return']:.3f}"
            )
