"""Stable-Baselines3's PPO with and without our reward on one sparse task: docs/results/sb3.csv, sb3.png and sb3.md.

python -m deir.experiments.sb3_comparison [--env ID] [--frames 250k] [--seeds 3] [--beta 0.01] [--out docs/results]

A seed that is done is not run again; the curves so far stand in `--out`/sb3.csv (one task a directory).
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
import tyro
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from deir.config import Count
from deir.experiments.bench.peers import GridFeatures
from deir.experiments.report.figures import compare_curves
from deir.plugin.stable_baselines3 import add_reward

ENVS, STEPS = 16, 512
PPO_OPTIONS: dict[str, Any] = {
    "n_steps": STEPS,
    "batch_size": 512,
    "n_epochs": 4,
    "ent_coef": 1e-2,
    "device": "cpu",
    "policy_kwargs": {"features_extractor_class": GridFeatures, "net_arch": [128], "normalize_images": False},
}
VARIANTS = {"PPO": None, "PPO + DEIR": "deir"}
SOLVED = 0.9


class Point(NamedTuple):
    variant: str
    seed: int
    frames: int
    return_mean: float  # over the last 100 episodes


class CurveRecorder(BaseCallback):
    """Notes the mean return after every rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[tuple[int, float]] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        episodes = [episode["r"] for episode in self.model.ep_info_buffer or []]
        self.points.append((self.num_timesteps, float(np.mean(episodes)) if episodes else 0.0))


def train(env: str, variant: str, seed: int, frames: int, beta: float) -> list[Point]:
    from minigrid.wrappers import ImgObsWrapper

    torch.set_num_threads(1)
    envs = make_vec_env(lambda: ImgObsWrapper(gymnasium.make(env)), n_envs=ENVS, seed=seed)
    model = PPO("CnnPolicy", envs, seed=seed, **PPO_OPTIONS)
    method = VARIANTS[variant]
    if method is not None:
        add_reward(model, method, beta=beta)
    curve = CurveRecorder()
    model.learn(frames, callback=curve)
    envs.close()
    return [Point(variant, seed, *point) for point in curve.points]


def read(path: Path) -> list[Point]:
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [Point(r["variant"], int(r["seed"]), int(r["frames"]), float(r["return_mean"])) for r in rows]


def append(path: Path, points: list[Point]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = not path.is_file()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if header:
            writer.writerow(Point._fields)
        writer.writerows((*point[:3], f"{point.return_mean:.4g}") for point in points)


def table(points: list[Point]) -> str:
    """Markdown: each seed's last mean return, and the frames at which it first reached 0.9."""
    lines = ["| | seed | mean return of the last 100 episodes | frames to 0.9 |", "|---|---|---|---|"]
    for variant, seed in sorted({(point.variant, point.seed) for point in points}):
        curve = [point for point in points if (point.variant, point.seed) == (variant, seed)]
        reached = next((f"{point.frames:,}" for point in curve if point.return_mean >= SOLVED), "not reached")
        lines.append(f"| {variant} | {seed} | {curve[-1].return_mean:.2f} | {reached} |")
    return "\n".join(lines)


def report(file: Path, env: str) -> None:
    """The picture and the table of what is there."""
    compare_curves(file, file.with_suffix(".png"), f"Stable-Baselines3 PPO on {env}")
    file.with_suffix(".md").write_text(f"PPO of Stable-Baselines3 on {env}\n\n{table(read(file))}\n")


def main(
    env: str = "MiniGrid-DoorKey-8x8-v0",
    frames: Count = 250_000,
    seeds: int = 3,
    beta: float = 0.01,
    out: Path = Path("docs/results"),
) -> None:
    file = out / "sb3.csv"
    for seed in range(seeds):
        for variant in VARIANTS:
            done = [point.frames for point in read(file) if (point.variant, point.seed) == (variant, seed)]
            if max(done, default=0) < frames:
                append(file, train(env, variant, seed, frames, beta))
                report(file, env)
    report(file, env)
    print(table(read(file)))


if __name__ == "__main__":
    tyro.cli(main)
