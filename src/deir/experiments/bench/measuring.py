"""Speed, memory and arithmetic of one configuration, each measured in a process of its own."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch.utils.flop_counter import FlopCounterMode

from deir import compiled
from deir.algorithm.ops import PlainOps
from deir.algorithm.policy import Policy
from deir.algorithm.reward_model import RewardModel
from deir.algorithm.trainer import PHASES
from deir.algorithm.types import Rollout, no_indices
from deir.config import Config
from deir.errors import UserError
from deir.fast.threads import available_threads
from deir.imports import python
from deir.runs.run import configure
from deir.runs.training import make_trainer

FRAMES = 8192  # of one measured iteration, at least


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


def plain_mflop_per_frame(config: Config, sees: Space[Any], acts: Space[Any]) -> float:
    """Arithmetic of one frame: acting, rewarding, and every epoch of both updates (backward is twice forward).

    sees, acts: the spaces of observations and actions
    """
    policy = Policy(sees, acts, config.network)
    count = 8
    observations = torch.from_numpy(np.stack([sees.sample() for _ in range(count)]))
    forward = _flops(lambda: policy(observations, policy.initial_hidden(count))) / count
    total = forward + 3 * config.ppo.epochs * forward
    stage = RewardModel(config, sees, acts)
    if stage.reward.learns:
        rollout = _plain_rollout(observations, torch.from_numpy(np.stack([acts.sample() for _ in range(count)])))
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
    envs = trainer.envs
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
        "mflop_per_frame": plain_mflop_per_frame(config, envs.observation_space, envs.action_space),
    }


def measure_run(overrides: dict[str, Any]) -> dict[str, Any]:
    """A whole run: frames/s of its first, middle and last iterations, and the average."""
    config = configure(overrides)
    trainer = make_trainer(config)
    envs = trainer.envs
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
        "mflop_per_frame": plain_mflop_per_frame(config, envs.observation_space, envs.action_space),
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


def in_own_process(job: str, *arguments: Any) -> dict[str, Any]:
    """Done once more where loops had to be compiled: the compiler takes more memory than training."""
    figures = _in_new_process(job, *arguments)
    if figures.pop("compiled"):
        figures = _in_new_process(job, *arguments)
        figures.pop("compiled")  # once more, if no directory can be written that remembers the loops
    return figures


def _in_new_process(job: str, *arguments: Any) -> dict[str, Any]:
    command = [*python(__name__, main.__name__), json.dumps([job, arguments])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"bench: {job} {arguments} failed:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """One job, in a process of its own."""
    name, arguments = json.loads(sys.argv[1])
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    print(json.dumps({**JOBS[name](*arguments), "compiled": compiled.has_compiled()}))
