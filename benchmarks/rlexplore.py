"""Time of one rollout's reward and of the model's update: all eight rewards of RLeXplore against ours, in one run.

rllte-core pins old packages, so it has an environment of its own, where only what its rewards need is installed:

    python3 -m venv .rllte
    .rllte/bin/pip install torch==2.13.0
    .rllte/bin/pip install numpy numba gymnasium minigrid tyro pyyaml safetensors scipy termcolor pynvml
    .rllte/bin/pip install --no-deps rllte-core==1.0.1
    PYTHONPATH=src .rllte/bin/python -W ignore benchmarks/rlexplore.py [--rollouts 7] [--threads 1] [--norm none]

Every rollout is timed with ours and then with theirs, so that both see the same machine. Equal are the rollouts, the
width of embeddings (64), one epoch in mini-batches of 256, no running normalisation of observations. Each has the
networks its package takes for such observations: for views ours are three 2x2 convolutions, theirs `espeholt`; for
images both have the DQN's (our third kernel is larger); for vectors both have a small MLP. Ours have batch norms in
every layer unless `--norm none` is given, theirs none. Of theirs the reward includes `watch`, which episodic rewards
need at each step; their update is timed within `compute`, where it is called. Not equal by their design: with each
mini-batch their Disagreement trains one model of the ensemble, ours all five; their RIDE counts by NGU's kernel, ours
exactly; their RE3 compares with a storage of 1,000 steps, ours with the rollout; their RND is an encoder alone, ours
has the wide heads of Appendix A.5 on it (256; `--rnd-mlp 64` makes it about as small as theirs). The last column is our
number of parameters by theirs.
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
THEIRS: dict[str, tuple[str, dict[str, Any]]] = {  # our name -> theirs, and what makes it alike
    "icm": ("ICM", {}),
    "rnd": ("RND", {}),
    "disagreement": ("Disagreement", {"ensemble_size": 5}),
    "ngu": ("NGU", {}),
    "pseudo-counts": ("PseudoCounts", {}),
    "ride": ("RIDE", {}),
    "re3": ("RE3", {"k": 3}),
    "e3b": ("E3B", {}),
}


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


class Ours:
    def __init__(self, method: str, kind: str, norm: str, rnd_mlp: int | None) -> None:
        self.reward = deir.make_reward(
            method, space_of(kind), ACTIONS, SHAPES[kind][1],
            epochs=1, minibatch_size=BATCH, network={"features": WIDTH, "norm": norm}, rnd={"mlp": rnd_mlp},
        )  # fmt: skip

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.reward.model.reward.parameters())

    def __call__(self, rollout: dict[str, Any]) -> tuple[float, float]:
        """Seconds of the reward and of the update."""
        ended = rollout["ended"]
        begin = time.perf_counter()
        self.reward.compute(rollout["observations"], rollout["actions"], ended, np.zeros_like(ended))
        middle = time.perf_counter()
        self.reward.update()
        return middle - begin, time.perf_counter() - middle


class Theirs:
    def __init__(self, method: str, kind: str) -> None:
        import rllte.xplore.reward as rewards

        n_envs, space = SHAPES[kind][1], space_of(kind)
        if len(space.shape) == 3:
            space = spaces.Box(0, 255, (space.shape[2], *space.shape[:2]), np.uint8)
        envs = SimpleNamespace(
            observation_space=space, action_space=ACTIONS, unwrapped=SimpleNamespace(num_envs=n_envs)
        )
        name, own = THEIRS[method]
        batches = {} if method == "re3" else {"batch_size": BATCH}
        self.kind = kind
        self.module = getattr(rewards, name)(
            envs, latent_dim=WIDTH, obs_norm_type="none", encoder_model=ENCODERS[kind], **batches, **own
        )
        if method == "ngu":
            self.module.mrs = 5.0  # version 1.0.1 reads this bound without having set it
        self.modules = self.module.rewards if method == "ngu" else [self.module]
        self.updating = Stopwatch(self.modules)

    @property
    def parameters(self) -> int:
        parts = [part for module in self.modules for part in vars(module).values()]
        networks = [x for part in parts for x in (part if isinstance(part, list) else [part])]
        return sum(p.numel() for x in networks if isinstance(x, torch.nn.Module) for p in x.parameters())

    def __call__(self, rollout: dict[str, Any]) -> tuple[float, float]:
        samples = as_samples(rollout, self.kind)
        self.updating.seconds, begin = 0.0, time.perf_counter()
        for t in range(len(rollout["actions"])):
            self.module.watch(*(samples[name][t] for name in samples))
        self.module.compute(samples)
        return time.perf_counter() - begin - self.updating.seconds, self.updating.seconds


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
    parser.add_argument("--rnd-mlp", type=int, help="width of our heads of random distillation; twice the MLP's else")
    parser.add_argument("--kinds", nargs="*", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--methods", nargs="*", default=list(THEIRS), choices=list(THEIRS))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        "| observations | T x N | method | reward: ours, ms | RLeXplore, ms | update: ours, ms | RLeXplore, ms | both "
        "| parameters |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for kind in options.kinds:
        data = rollouts(kind, options.rollouts + 1)
        for method in options.methods:
            our_way, their_way = Ours(method, kind, options.norm, options.rnd_mlp), Theirs(method, kind)
            times = [(our_way(rollout), their_way(rollout)) for rollout in data]
            reward, update = medians([ours for ours, _ in times])
            their_reward, their_update = medians([theirs for _, theirs in times])
            ratio = (their_reward + their_update) / (reward + update)
            size = our_way.parameters / their_way.parameters
            steps, n_envs, shape = SHAPES[kind]
            print(
                f"| {kind} {'x'.join(map(str, shape))} | {steps} x {n_envs} | {THEIRS[method][0]} | {reward:.1f} "
                f"| {their_reward:.1f} | {update:.1f} | {their_update:.1f} | {ratio:.1f}x | {size:.1f}x |",
                flush=True,
            )


if __name__ == "__main__":
    main()
