"""Time of one rollout's reward and of the model's update: our RND and NGU against RLeXplore's, in one run.

rllte-core pins old packages, so it has an environment of its own, where only what its rewards need is installed:

    python3 -m venv .rllte
    .rllte/bin/pip install torch==2.13.0
    .rllte/bin/pip install numpy gymnasium minigrid tyro pyyaml safetensors scipy termcolor pynvml
    .rllte/bin/pip install --no-deps rllte-core==1.0.1
    PYTHONPATH=src .rllte/bin/python -W ignore benchmarks/rlexplore.py [--rollouts 7] [--threads 1] [--norm none]

Equal are the rollouts, the width of embeddings (64), one epoch in mini-batches of 256, no running normalisation of
observations. Each has the networks its package takes for such observations: for views ours are three 2x2 convolutions,
theirs `espeholt`; for images both have the DQN's (our third kernel is larger); for vectors both have a small MLP. Ours
have batch normalisation in every layer unless `--norm none` is given, theirs none. Of theirs the reward includes
`watch`, which NGU needs at each step; their update is timed within `compute`, where it is called.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

import deir
from deir.config import EnvConfig

WIDTH, BATCH = 64, 256
SHAPES = {"views": (256, 16, (7, 7, 3)), "vectors": (256, 16, (8,)), "images": (128, 8, (84, 84, 4))}
ENCODERS = {"views": "espeholt", "vectors": "mnih", "images": "mnih"}
ACTIONS = spaces.Discrete(7)


def space_of(kind: str) -> spaces.Box:
    shape = SHAPES[kind][2]
    return spaces.Box(-10, 10, shape, np.float32) if kind == "vectors" else spaces.Box(0, 255, shape, np.uint8)


def rollouts(kind: str, count: int) -> list[dict[str, Any]]:
    """Rollouts of random actions that follow each other: DoorKey-8x8, or random vectors and images."""
    steps, n_envs, shape = SHAPES[kind]
    rng, made = np.random.default_rng(0), []
    envs = deir.make_envs(EnvConfig("DoorKey-8x8", n_envs=n_envs, layout_worker=False), seed=0)
    last = envs.reset() if kind == "views" else None
    for _ in range(count):
        actions = rng.integers(0, 7, (steps, n_envs))
        if kind == "views":
            taken = [envs.step(row) for row in actions]
            observations = np.stack([last, *(step.observations for step in taken)])
            ended = np.stack([step.terminated | step.truncated for step in taken])
            last = observations[-1]
        else:
            whole = (steps + 1, n_envs, *shape)
            vectors = kind == "vectors"
            observations = rng.normal(size=whole).astype("f4") if vectors else rng.integers(0, 256, whole, np.uint8)
            ended = rng.random((steps, n_envs)) < 0.01
        made.append({"observations": observations, "actions": actions, "ended": ended})
    envs.close()
    return made


def ours(method: str, kind: str, data: list[dict[str, Any]], norm: str) -> list[tuple[float, float]]:
    """Seconds of the reward and of the update, rollout by rollout."""
    reward = deir.make_reward(
        method, space_of(kind), ACTIONS, SHAPES[kind][1],
        epochs=1, minibatch_size=BATCH, network={"features": WIDTH, "norm": norm},
    )  # fmt: skip
    times = []
    for rollout in data:
        ended = rollout["ended"]
        begin = time.perf_counter()
        reward.compute(rollout["observations"], rollout["actions"], ended, np.zeros_like(ended))
        middle = time.perf_counter()
        reward.update()
        times.append((middle - begin, time.perf_counter() - middle))
    return times


def theirs(method: str, kind: str, data: list[dict[str, Any]]) -> list[tuple[float, float]]:
    from rllte.xplore.reward import NGU, RND

    n_envs, space = SHAPES[kind][1], space_of(kind)
    if len(space.shape) == 3:
        space = spaces.Box(0, 255, (space.shape[2], *space.shape[:2]), np.uint8)
    envs = SimpleNamespace(observation_space=space, action_space=ACTIONS, unwrapped=SimpleNamespace(num_envs=n_envs))
    module = {"rnd": RND, "ngu": NGU}[method](
        envs, latent_dim=WIDTH, batch_size=BATCH, obs_norm_type="none", encoder_model=ENCODERS[kind]
    )
    if method == "ngu":
        module.mrs = 5.0  # version 1.0.1 reads this bound without having set it
    updating = Stopwatch(module.rewards if method == "ngu" else [module])
    times = []
    for rollout in data:
        samples = as_samples(rollout, kind)
        updating.seconds, begin = 0.0, time.perf_counter()
        for t in range(len(rollout["actions"])):
            module.watch(*(samples[name][t] for name in samples))
        module.compute(samples)
        times.append((time.perf_counter() - begin - updating.seconds, updating.seconds))
    return times


class Stopwatch:
    """Adds up the time spent in the modules' `update`."""

    def __init__(self, modules: list[Any]) -> None:
        self.seconds = 0.0
        for module in modules:
            module.update = self._timed(module.update)

    def _timed(self, update: Any) -> Any:
        def timed(samples: Any) -> None:
            begin = time.perf_counter()
            update(samples)
            self.seconds += time.perf_counter() - begin

        return timed


def as_samples(rollout: dict[str, Any], kind: str) -> dict[str, torch.Tensor]:
    """What RLeXplore takes, in the order of `watch`; images channels first."""
    seen = torch.from_numpy(rollout["observations"]).float()
    seen = seen if kind == "vectors" else seen.movedim(-1, -3).contiguous()
    ended = torch.from_numpy(rollout["ended"])
    return {
        "observations": seen[:-1],
        "actions": torch.from_numpy(rollout["actions"]),
        "rewards": torch.zeros(ended.shape),
        "terminateds": ended,
        "truncateds": torch.zeros_like(ended),
        "next_observations": seen[1:],
    }


def medians(times: list[tuple[float, float]]) -> tuple[float, float]:
    """In milliseconds, without the first rollout."""
    rewards, updates = zip(*times[1:], strict=True)
    return 1000 * median(rewards), 1000 * median(updates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=7, help="timed ones, after one to warm up; medians are shown")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--norm", default="batch", choices=["batch", "layer", "none"], help="of our networks")
    parser.add_argument("--kinds", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        "| observations | T x N | method | reward: ours, ms | RLeXplore, ms | update: ours, ms | RLeXplore, ms | both |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for kind in options.kinds:
        data = rollouts(kind, options.rollouts + 1)
        for method in ("rnd", "ngu"):
            reward, update = medians(ours(method, kind, data, options.norm))
            their_reward, their_update = medians(theirs(method, kind, data))
            ratio = (their_reward + their_update) / (reward + update)
            steps, n_envs, shape = SHAPES[kind]
            print(
                f"| {kind} {'x'.join(map(str, shape))} | {steps} x {n_envs} | {method.upper()} | {reward:.1f} "
                f"| {their_reward:.1f} | {update:.1f} | {their_update:.1f} | {ratio:.1f}x |",
                flush=True,
            )


if __name__ == "__main__":
    main()
