"""`deir bench`: frames/s, time by phase, memory, and how that compares with what the machine could do at best.

efficiency = frames/s × arithmetic of the plain algorithm per frame ÷ the machine's measured peak

The arithmetic is counted from the layers' shapes on the plain path: one encoder pass for each use of an observation,
forward once and backward twice, all epochs. Above 1, training is faster than the plain algorithm would be if every core
did nothing but matrix products. Every pair runs in a process of its own, so that its memory is its own.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

from deir.algorithm.ops import PlainOps
from deir.algorithm.policy import Policy
from deir.algorithm.reward_model import RewardModel
from deir.algorithm.trainer import PHASES
from deir.algorithm.types import Rollout, no_indices
from deir.config import Config, parse_yaml
from deir.envs import make_envs
from deir.errors import UserError, invalid
from deir.fast.threads import available_threads
from deir.files import check_file
from deir.imports import python
from deir.runs.presets import nested
from deir.runs.ranges import check_count
from deir.runs.run import configure, validate
from deir.runs.training import make_trainer

PAIRS = (
    "DoorKey-8x8/deir",
    "DoorKey-8x8/deir/minigrid",
    "DoorKey-8x8/none",
    "KeyCorridorS6R3/deir",
    "ObstructedMaze-Full/deir",
)
FRAMES = 8192  # of one measured iteration, at least
ENVS_CURVE = (1, 4, 16, 64, 256)
LENGTH_CURVE = (100, 500, 1000, 5000)
QUEUE_CURVE = (10_000, 100_000, 1_000_000)
VARIANTS = {
    "3x3 view": {"env": {"view_size": 3}},
    "noise 0.1": {"env": {"noise": 0.1}},
    "one thread": {"threads": 1},
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


def peak_gflops(threads: int, size: int = 1024, repeats: int = 15) -> float:
    """Matrix products in single precision with all threads, the best of several."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    a, b, best = torch.randn(size, size), torch.randn(size, size), float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - begin)
    torch.set_num_threads(before)
    return 2 * size**3 / best / 1e9


def plain_mflop_per_frame(config: Config) -> float:
    """Arithmetic of one frame: acting, rewarding, and every epoch of both updates (backward is twice forward)."""
    envs = make_envs(config.env, 0)
    spaces = envs.observation_space, envs.action_space
    envs.close()
    policy = Policy(*spaces, config.network)
    count = 8
    observations = torch.from_numpy(np.stack([spaces[0].sample() for _ in range(count)]))
    forward = _flops(lambda: policy(observations, policy.initial_hidden(count))) / count
    total = forward + 3 * config.ppo.epochs * forward
    stage = RewardModel(config, *spaces)
    if stage.reward.learns:
        rollout = _plain_rollout(observations, torch.from_numpy(np.stack([spaces[1].sample() for _ in range(count)])))
        stage.state = stage.reward.initial_state(count)
        used: list[float] = []
        used.append(_flops(lambda: stage.compute(rollout, 0.0, policy.encoder)) / count)
        stage.reward.train()
        batch = next(iter(stage.reward.batches(rollout, stage.state, 1, count, stage.generator)))
        total += used[0] + 3 * config.reward.epochs * _flops(lambda: stage.reward.loss(batch)) / count
    return total / 1e6


def _plain_rollout(observations: torch.Tensor, actions: torch.Tensor) -> Rollout:
    """One step of every environment, with observations that are not taken to repeat."""
    count = len(observations)
    table, names = PlainOps().tabulate(torch.cat([observations, observations]), False)
    no = torch.zeros(1, count, dtype=torch.bool)
    starts = torch.tensor([[True], [False]]).repeat(1, count)
    states = torch.arange(2 * count).view(2, count)
    return Rollout(
        table,
        names.view(2, count),
        starts,
        actions[None],
        torch.zeros(1, count),
        no,
        no,
        ~no,
        no_indices(),
        no_indices(),
        states,
    )


def _flops(job: Any) -> float:
    with FlopCounterMode(display=False) as counter:
        job()
    return float(counter.get_total_flops())


def _memory_mb() -> dict[str, float]:
    """Largest resident memory of this process and of its largest child."""
    own, children = (
        resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return {"memory_mb": own, "largest_child_mb": children}


def measure(overrides: dict[str, Any], iterations: int, warm_up: int | None = None) -> dict[str, Any]:
    """One pair, in this process."""
    config = configure(overrides)
    trainer = make_trainer(config)
    together = max(1, FRAMES // (config.env.n_envs * config.ppo.rollout_steps))
    for _ in range(together * ((2 if config.env.n_envs <= 16 else 1) if warm_up is None else warm_up)):
        trainer.iterate()
    frames, begin = trainer.frames, time.perf_counter()
    rows = [trainer.iterate() for _ in range(together * iterations)]
    seconds = time.perf_counter() - begin
    frames = trainer.frames - frames
    trainer.close()
    phases = {phase: sum(row[f"seconds_{phase}"] or 0.0 for row in rows) / iterations for phase in PHASES}
    phases["rest"] = max(0.0, seconds / iterations - sum(phases.values()))
    return {
        "env": config.env.id,
        "method": config.method,
        "preset": config.preset,
        "fps": frames / seconds,
        "phases": phases,
        **_memory_mb(),
        "mflop_per_frame": plain_mflop_per_frame(config),
    }


def measure_run(overrides: dict[str, Any]) -> dict[str, Any]:
    """A whole run: frames/s of its first, middle and last iterations, and the average."""
    config = configure(overrides)
    trainer = make_trainer(config)
    begin, rows, frames, seconds = time.perf_counter(), [], [0], [0.0]
    while not trainer.finished:
        rows.append(trainer.iterate())
        frames.append(trainer.frames)
        seconds.append(time.perf_counter() - begin)
    trainer.close()

    def speed(first: int, last: int) -> float:
        return (frames[last] - frames[first]) / (seconds[last] - seconds[first])

    middle, end = len(rows) // 2, len(rows)
    return {
        "env": config.env.id,
        "method": config.method,
        "preset": config.preset,
        "fps": speed(0, end),
        "fps_fresh": speed(1, 5),
        "fps_half_trained": speed(middle - 2, middle + 2),
        "fps_trained": speed(end - 4, end),
        "frames": frames[-1],
        "final_return": rows[-1]["return_mean"],
        "phases": {phase: float(np.mean([row[f"seconds_{phase}"] or 0.0 for row in rows])) for phase in PHASES},
        **_memory_mb(),
        "mflop_per_frame": plain_mflop_per_frame(config),
    }


def measure_peer(name: str, env_id: str, iterations: int) -> dict[str, Any]:
    from deir.experiments.bench.peers import frames_per_second

    fps = frames_per_second(name, env_id, iterations, available_threads(None))
    return {"env": env_id, "method": name, "fps": fps, **_memory_mb()}


JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    "measure": measure,
    "measure_run": measure_run,
    "measure_peer": measure_peer,
}


def _in_own_process(job: str, *arguments: Any) -> dict[str, Any]:
    command = [*python(__name__, main.__name__), json.dumps([job, arguments])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"bench: {job} {arguments} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


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
        figures = _with_efficiency(_in_own_process(job, *arguments), threads)
        results.append({"kind": kind, **labels, **figures})
        print(_line(results[-1]), flush=True)

    for overrides in wanted:
        add("pair", "measure", overrides, args.iterations, args.warm_up)
    if args.whole_run:
        add("whole run", "measure_run", {"env": {"id": "DoorKey-8x8"}})
    if args.peers:
        for peer in ("stable-baselines3 PPO", "sb3-contrib RecurrentPPO"):
            add("peer", "measure_peer", peer, "MiniGrid-DoorKey-8x8-v0", max(1, args.iterations // 2))
    for curve in args.curves:
        CURVES[curve](add, args.iterations)
    _print_table(results, threads)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


def _variants(add: Any, iterations: int) -> None:
    for label, overrides in VARIANTS.items():
        add("variant", "measure", overrides, iterations, variant=label)


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
    "variants": _variants,
    "environments": _environments_curve,
    "length": _length_curve,
    "queue": _queue_curve,
}


def _name(figures: dict[str, Any]) -> str:
    extra = [f"{k} {figures[k]:,}" for k in ("environments", "episode_length", "queue_size") if k in figures]
    extra += [str(figures[k]) for k in ("variant",) if k in figures]
    extra += [figures["kind"]] if figures["kind"] == "whole run" else []
    extra += [f"preset {figures['preset']}"] if "preset" in figures else []
    return " ".join([figures["env"].removeprefix("MiniGrid-"), figures["method"], *extra])


def _line(figures: dict[str, Any]) -> str:
    efficiency = f"  efficiency {figures['efficiency']:.2f}" if "efficiency" in figures else ""
    return f"{_name(figures):60s} {figures['fps']:>8,.0f} frames/s{efficiency}"


def _print_table(results: list[dict[str, Any]], threads: int) -> None:
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


def main() -> None:
    """One job, in a process of its own."""
    name, arguments = json.loads(sys.argv[1])
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    print(json.dumps(JOBS[name](*arguments)))
