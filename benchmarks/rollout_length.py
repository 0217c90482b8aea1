"""What a shorter rollout changes, in numbers: python benchmarks/rollout_length.py [--frames 60k] [--seed 0]

Trains DEIR on DoorKey-8x8 with rollouts of several lengths, everything else as in Table A1, and prints for each, as
means over the run: gradient steps for 8,192 frames and between two rollouts, how far one update moves the policy
(approximate KL, share of clipped ratios), how old the stored memories are when they are used (in gradient steps) and
how far they are from those that the updated policy would have (relative error at the end of the update), how often the
moving moments are renewed, and what share of the observations joins the queue, after the first quarter of the run.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch

from deir.algorithm.trainer import Trainer
from deir.config import parse_count
from deir.runs.run import configure
from deir.runs.training import make_trainer

LENGTHS = (512, 256, 128, 64, 32)


@torch.no_grad()
def stale_share(trainer: Trainer, collected: Any) -> float:
    """|h' - h| / |h| over the rollout: h the stored memories, h' those of the present parameters."""
    rollout, stored, policy = collected.rollout, collected.trace.hidden, trainer.policy.eval()
    embeddings = policy.encoder(rollout.table.distinct)
    memory, renewed = stored[0], []
    for ids, starts in zip(rollout.ids[:-1], rollout.starts[:-1], strict=True):
        memory = memory * ~starts[:, None]
        renewed.append(memory)
        memory = policy.gru(embeddings[ids], memory)
    return float((torch.stack(renewed) - stored).norm() / stored.norm().clamp(min=1e-9))


def measure(steps: int, frames: int, seed: int) -> dict[str, float]:
    config = configure(
        {"preset": "minigrid", "threads": 1, "seed": seed, "steps": frames, "ppo": {"rollout_steps": steps}}
    )
    trainer = make_trainer(config)
    collect, last = trainer._collect, []

    def remembered(timer: Any) -> Any:
        last[:] = [collect(timer)]
        return last[0]

    trainer._collect = remembered  # type: ignore[method-assign]
    rows, stale, joined = [], [], []
    queue = trainer.model.reward.queue
    while not trainer.finished:
        before = queue.head
        rows.append(trainer.iterate())
        joined.append((queue.head - before) % queue.capacity)
        stale.append(stale_share(trainer, last[0]))
    trainer.close()
    per_rollout = config.ppo.epochs * round(steps * config.env.n_envs / config.ppo.minibatch_size)
    later = slice(len(rows) // 4, None)  # the queue takes everything at first
    return {
        "steps": steps,
        "gradient steps for 8,192 frames": per_rollout * 8192 / (steps * config.env.n_envs),
        "gradient steps between rollouts": per_rollout,
        "approximate KL": float(np.mean([row["approx_kl"] for row in rows])),
        "clipped": float(np.mean([row["clip_fraction"] for row in rows])),
        "mean age of a memory": (per_rollout - 1) / 2,
        "memories' error after the update": float(np.mean(stale)),
        "renewals of the moments for 8,192 frames": 8192 / (steps * config.env.n_envs),
        "observations that join the queue": float(
            np.sum(joined[later]) / (steps * config.env.n_envs * len(joined[later]))
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frames", default="60k")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rows = [measure(steps, parse_count(args.frames), args.seed) for steps in LENGTHS]
    for name in rows[0]:
        cells = (f"{row[name]:,.0f}" if row[name] >= 10 else f"{row[name]:.3g}" for row in rows)
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
