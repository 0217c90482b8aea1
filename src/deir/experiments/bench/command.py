"""`deir bench`: frames/s, time by phase, memory, and how that compares with what the machine could do at best.

efficiency = frames/s × arithmetic of the plain algorithm per frame ÷ the machine's measured peak

The arithmetic is counted from the layers' shapes on the plain path: one encoder pass for each use of an observation,
forward once and backward twice, all epochs. Above 1, training is faster than the plain algorithm would be if every core
did nothing but matrix products. Every pair runs in a process of its own, so that its memory is its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from deir.config import parse_yaml
from deir.errors import invalid
from deir.experiments.bench.measuring import in_own_process, peak_gflops
from deir.experiments.bench.scaling import ONE_THREAD, add_both
from deir.experiments.bench.table import line, print_table
from deir.fast.bf16 import HAS_BF16
from deir.fast.threads import available_threads
from deir.files import check_file
from deir.runs.presets import nested
from deir.runs.ranges import check_count
from deir.runs.run import configure, validate

PAIRS = (
    "DoorKey-8x8/deir",
    "DoorKey-8x8/deir/minigrid",
    "DoorKey-8x8/none",
    "KeyCorridorS6R3/deir",
    "ObstructedMaze-Full/deir",
)
ENVS_CURVE = (1, 4, 16, 64, 256)
LENGTH_CURVE = (100, 500, 1000, 5000)
QUEUE_CURVE = (10_000, 100_000, 1_000_000)
VARIANTS: dict[str, dict[str, Any]] = {
    "3x3 view": {"env": {"view_size": 3}},
    "noise 0.1": {"env": {"noise": 0.1}},
    "noise 0.1, bf16": {"env": {"noise": 0.1}, "precision": "bf16"},
    "noise 0.1, none": {"method": "none", "env": {"noise": 0.1}},
    "mlp encoder": {"method": "none", "network": {"encoder": "mlp"}},
}


@dataclass(frozen=True)
class Bench:
    """Measure speed, memory and efficiency."""

    pairs: tuple[str, ...] = ()
    """Pairs to measure, as ENV/METHOD (a preset may follow: ObstructedMaze-Full/deir/minigrid)."""
    iterations: int = 5
    """Iterations measured after warming up, each of at least 8,192 frames: short rollouts are counted together."""
    warm_up: int | None = None
    """Iterations before those; two, or one with more than 16 environments, when not given."""
    settings: tuple[str, ...] = ()
    """Configuration of the pairs, as KEY=VALUE (ppo.epochs=1)."""
    whole_run: bool = False
    """Also train DEIR on DoorKey-8x8 for 200k frames: fresh, half-trained, trained, and the average."""
    curves: tuple[Literal["variants", "environments", "length", "queue"], ...] = ()
    """Also frames/s of variants, or against the number of environments, the episode length, the queue size."""
    peers: bool = False
    """Also stable-baselines3's PPO and sb3-contrib's RecurrentPPO on the same task (development extras)."""
    json: Path | None = None
    """Write all figures to this file."""


def _with_efficiency(figures: dict[str, Any], threads: int) -> dict[str, Any]:
    """The peak is measured right beside each pair, since machines change their speed."""
    peak = peak_gflops(threads)
    if "mflop_per_frame" not in figures:
        return {**figures, "peak_gflops": peak}
    return {**figures, "peak_gflops": peak, "efficiency": figures["fps"] * figures["mflop_per_frame"] / peak / 1e3}


def parse_pair(text: str) -> dict[str, Any]:
    env, *rest = text.rsplit("/", 2) if text.count("/") >= 2 else text.split("/")
    if not env or not rest:
        raise invalid("pairs", text, "ENV/METHOD, such as DoorKey-8x8/deir")
    return {"env": {"id": env}, "method": rest[0], **({"preset": rest[1]} if len(rest) > 1 else {})}


def parse_settings(words: tuple[str, ...]) -> dict[str, Any]:
    """('ppo.epochs=1',) -> {'ppo': {'epochs': 1}}"""
    values = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise invalid("settings", word, "KEY=VALUE, such as ppo.epochs=1")
        values[key] = parse_yaml(value, f"settings: {key}")
    return nested(values)


def _wanted(args: Bench) -> list[dict[str, Any]]:
    """What to measure, as overrides of the configuration; refused before anything runs when it cannot be."""
    check_count("iterations", args.iterations)
    if args.warm_up is not None:
        check_count("warm_up", args.warm_up, least=0)
    if args.json:
        check_file("json", args.json)
    settings = parse_settings(args.settings)
    env_settings = settings.pop("env", {})
    pairs = [parse_pair(text) for text in args.pairs or PAIRS]
    wanted = [{**settings, **pair, "env": {**env_settings, **pair["env"]}} for pair in pairs]
    for overrides in wanted:
        validate(configure(overrides))
    return wanted


def run(args: Bench) -> None:
    threads, wanted = available_threads(None), _wanted(args)
    results: list[dict[str, Any]] = []

    def add(kind: str, job: str, *arguments: Any, **labels: Any) -> None:
        figures = _with_efficiency(in_own_process(job, *arguments), 1 if kind == ONE_THREAD else threads)
        results.append({"kind": kind, **labels, **figures})
        print(line(results[-1]), flush=True)

    for overrides in wanted:
        add_both(add, "pair", overrides, threads, args.iterations, args.warm_up)
    if args.whole_run:
        add("whole run", "measure_run", {"env": {"id": "DoorKey-8x8"}})
    if args.peers:
        for peer in ("stable-baselines3 PPO", "sb3-contrib RecurrentPPO"):
            add("peer", "measure_peer", peer, "MiniGrid-DoorKey-8x8-v0", max(1, args.iterations // 2))
    for curve in (name for name in args.curves if name in CURVES):
        CURVES[curve](add, args.iterations)
    for label, overrides in VARIANTS.items() if "variants" in args.curves else ():
        if overrides.get("precision") == "bf16" and not HAS_BF16:
            print(f"{label}: not measured, this CPU has no products of bf16 numbers", flush=True)
            continue
        add_both(add, "variant", overrides, threads, args.iterations, args.warm_up, variant=label)
    print_table(results, threads)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


def _environments_curve(add: Any, iterations: int) -> None:
    for n_envs in ENVS_CURVE:
        overrides = {"env": {"id": "DoorKey-8x8", "n_envs": n_envs}}
        add("environments", "measure", overrides, max(1, iterations * 16 // max(16, n_envs)), environments=n_envs)


def _length_curve(add: Any, iterations: int) -> None:
    for length in LENGTH_CURVE:  # without a goal in reach, so that every episode is as long as it may be
        overrides = {"env": {"id": "DoorKey-16x16", "max_steps": length}}
        add("episode length", "measure", overrides, max(iterations, 2 + length // 512), episode_length=length)


def _queue_curve(add: Any, iterations: int) -> None:
    for size in QUEUE_CURVE:
        add("queue size", "measure", {"reward": {"deir": {"queue_size": size}}}, iterations, queue_size=size)


CURVES: dict[str, Callable[[Any, int], None]] = {
    "environments": _environments_curve,
    "length": _length_curve,
    "queue": _queue_curve,
}
